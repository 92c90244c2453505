"""How the functions are traced: by AWS's X-Ray SDK, through Powertools. No other module knows it.

It is loaded only if tracing is on: even a tracer that is switched off would load its SDK.

A successor has to provide `traced_handler`, `traced` and `trace_libraries`, and to send the same segments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from aws_lambda_powertools import Tracer

if TYPE_CHECKING:
    from collections.abc import Callable

    from freshq.model.task import Task
    from freshq.worker.runner import Runner

Handler = TypeVar("Handler", bound="Callable[..., Any]")
LIBRARIES_VARIABLE: Final = "FRESHQ_TRACED_LIBRARIES"
# The library of freshq's own calls. Patching another one changes its behaviour: sqlite3's connections, for
# example, can then no longer be copied by `backup`.
OWN_LIBRARY: Final = "botocore"
_TRACER: Final[Any] = Tracer(patch_modules=(OWN_LIBRARY,))


def traced_handler(handler: Handler) -> Handler:
    """Return the handler with X-Ray subsegments around invocations."""
    return cast("Handler", _TRACER.capture_lambda_handler(handler, capture_response=False))


def trace_libraries(names: str) -> None:
    """Trace the calls of further libraries, which the runner uses.

    Args:
        names: Names that the X-Ray SDK supports, with commas between them, such as "httpx,psycopg".

    Raises:
        ValueError: If the SDK does not support one, or it is not installed.
    """
    wanted = tuple(filter(None, (name.strip() for name in names.split(","))))
    from aws_xray_sdk.core.patcher import SUPPORTED_MODULES, patch  # type: ignore[import-untyped]

    unknown = sorted(set(wanted) - set(SUPPORTED_MODULES))
    if unknown:
        known = ", ".join(sorted(SUPPORTED_MODULES))
        msg = f"{LIBRARIES_VARIABLE}: X-Ray's SDK cannot trace {', '.join(unknown)}; use some of {known}"
        raise ValueError(msg)
    try:
        patch(wanted)
    except ImportError as error:
        msg = f"{LIBRARIES_VARIABLE}: a library is not installed ({error}); add it to the runner's packages"
        raise ValueError(msg) from error


def traced(runner: Runner) -> Runner:
    """Return a runner whose runs are X-Ray subsegments with the task's id and attempt."""
    in_subsegment = _TRACER.provider.in_subsegment

    def run(task: Task) -> Any:
        with in_subsegment(name="## runner") as subsegment:
            if subsegment is not None:
                subsegment.put_annotation(key="task_id", value=task.task_id)
                subsegment.put_annotation(key="attempt", value=str(task.attempts))
            return runner(task)

    return run
