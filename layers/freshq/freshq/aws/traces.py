"""How the functions are traced: by AWS's X-Ray SDK, through Powertools. No other module knows it.

It is loaded only if tracing is on: even a tracer that is switched off would load its SDK.

A successor has to provide `traced_handler` and `traced`, and to send the same segments.
"""

from __future__ import annotations

import logging
import traceback
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from aws_lambda_powertools import Tracer
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from freshq.model.task import Task
    from freshq.worker.runner import Runner

Handler = TypeVar("Handler", bound="Callable[..., Any]")
# The library of freshq's own calls. Patching another one changes its behaviour: sqlite3's connections, for
# example, can then no longer be copied by `backup`.
OWN_LIBRARY: Final = "botocore"
# X-Ray's limit for the value of an annotation.
MAX_ANNOTATION_CHARS: Final = 1000
_TRACER: Final[Any] = Tracer(patch_modules=(OWN_LIBRARY,))


class _First(logging.Filter):
    """Passes one record: where the daemon cannot be reached, the SDK logs an error for each run and call."""

    has_passed = False

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        self.has_passed, had_passed = True, self.has_passed
        return not had_passed


logging.getLogger("aws_xray_sdk.core.emitters.udp_emitter").addFilter(_First())


def traced_handler(handler: Handler) -> Handler:
    """Return the handler with X-Ray subsegments around invocations."""
    in_trace = _TRACER.capture_lambda_handler(handler, capture_response=False)

    @wraps(handler)
    def handle(event: Any, context: Any) -> Any:
        # Of an earlier invocation in the same trace, as tail calls are, the SDK would keep the parent.
        _TRACER.provider.clear_trace_entities()
        return in_trace(event, context)

    return cast("Handler", handle)


def traced(runner: Runner) -> Runner:
    """Return a runner whose runs are X-Ray subsegments with the task's id and attempt."""

    def run(task: Task) -> Any:
        with _subsegment([task]):
            return runner(task)

    return run


def traced_batch(run: Callable[[Sequence[Task]], Sequence[Any]], tasks: Sequence[Task]) -> Sequence[Any]:
    """Run tasks together in one X-Ray subsegment with their ids, and the attempt of the first."""
    with _subsegment(tasks):
        return run(tasks)


@contextmanager
def _subsegment(tasks: Sequence[Task]) -> Iterator[None]:
    recorder = _TRACER.provider
    subsegment = recorder.begin_subsegment(name="## runner")
    try:
        if subsegment is not None:
            ids = ", ".join(task.task_id for task in tasks)[:MAX_ANNOTATION_CHARS]
            subsegment.put_annotation(key="task_id", value=ids)
            subsegment.put_annotation(key="attempt", value=str(tasks[0].attempts))
        yield
    except BaseException as error:
        if subsegment is not None:
            stack = traceback.extract_tb(error.__traceback__, limit=recorder.max_trace_back)
            subsegment.add_exception(_shown(error), stack)
        raise
    finally:
        if subsegment is not None:
            recorder.end_subsegment()


def _shown(error: BaseException) -> Exception:
    """Return a stand-in for an exception that may be frozen, have no text, or one too long for a datagram.

    The SDK sets attributes of what it records, and asks for its text.
    """
    from freshq.model.answers import error_text  # functions that only ring need none of the model
    from freshq.model.lifecycle import truncated

    shown: type[Exception] = type(type(error).__name__, (Exception,), {})
    return shown(truncated(error_text(error)))
