"""How the functions are traced: by AWS's X-Ray SDK, through Powertools. No other module knows it.

It is loaded only if tracing is on: even a tracer that is switched off would load its SDK.

A successor has to provide `traced_handler` and `traced`, and to send the same segments.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from aws_lambda_powertools import Tracer

if TYPE_CHECKING:
    from collections.abc import Callable

    from freshq.model.task import Task
    from freshq.worker.runner import Runner

Handler = TypeVar("Handler", bound="Callable[..., Any]")
# The library of freshq's own calls. Patching another one changes its behaviour: sqlite3's connections, for
# example, can then no longer be copied by `backup`.
OWN_LIBRARY: Final = "botocore"
_TRACER: Final[Any] = Tracer(patch_modules=(OWN_LIBRARY,))


def traced_handler(handler: Handler) -> Handler:
    """Return the handler with X-Ray subsegments around invocations."""
    return cast("Handler", _TRACER.capture_lambda_handler(handler, capture_response=False))


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
