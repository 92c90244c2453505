"""Spans by OpenTelemetry's conventions for messaging: put -> claim -> run -> settle.

Names, kinds and attributes are those of https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/.
None has a payload, a result or a group.
"""

from __future__ import annotations

import traceback
from contextlib import contextmanager
from dataclasses import replace
from time import time_ns
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.trace import Link, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from typing_extensions import override

from freshq.model.answers import PutOutcome
from freshq.model.lifecycle import truncated
from freshq.model.outcomes import Busy, Reject, Retry, error_text
from freshq.model.telemetry import RunScope
from freshq.model.trace_context import joined
from freshq.worker.instrumented_runner import CancelledRun

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

    from freshq.model.answers import Claim, Receipt
    from freshq.model.task import Task, Verb

SYSTEM: Final = "freshq"
# Always these headers, whatever the process propagates elsewhere: who puts and who claims must agree.
W3C: Final = TraceContextTextMapPropagator()
# What a runner raises to say how its attempt ended is no surprise, and its traceback says nothing.
EXPECTED: Final = (Busy, Reject, Retry, CancelledRun)


class Spans:
    """Makes the spans of queues and workers."""

    def __init__(self, tracer: Tracer, *, propagate: bool) -> None:
        """Use a tracer.

        Args:
            tracer: Starts the spans.
            propagate: Whether tasks get the context of their put.
        """
        self._tracer = tracer
        self._propagate = propagate

    @contextmanager
    def put(self, queue: str, tasks: Sequence[Task]) -> Iterator[tuple[Span, Sequence[Task]]]:
        """Make the span of a put, and one of the creation of each task if there are several.

        Yields:
            The span, and the tasks with the trace context to write.
        """
        if self._propagate and len(tasks) > 1:
            tasks = [self._created(queue, task) for task in tasks]
        gives = self._propagate and any(task.trace_context is None for task in tasks)
        kind = SpanKind.PRODUCER if gives else SpanKind.CLIENT
        attributes = _attributes(queue, "put", "send", tasks)
        span = self._tracer.start_span("put " + queue, kind=kind, attributes=attributes, links=_links(tasks))
        with _current_until_end(span):
            yield span, [_carrying(task) for task in tasks] if gives else tasks

    def _created(self, queue: str, task: Task) -> Task:
        """Return a task that carries the context of its own span, unless it carries one."""
        if task.trace_context is not None:
            return task
        attributes = _attributes(queue, "create", "create", [task])
        span = self._tracer.start_span("create " + queue, kind=SpanKind.PRODUCER, attributes=attributes)
        span.end()
        return _carrying(task, trace.set_span_in_context(span))

    def claim(self, queue: str, claims: Sequence[Claim], began_ns: int, error: Exception | None) -> None:
        """Make the span of a claim that is over: only then are the tasks known that it links to.

        Args:
            queue: Name of the queue.
            claims: What was claimed.
            began_ns: When the claim began, in nanoseconds since the epoch.
            error: Why it failed; None if it did not.
        """
        tasks = [claim.task for claim in claims]
        span = self._tracer.start_span(
            "claim " + queue,
            kind=SpanKind.CLIENT,
            attributes=_attributes(queue, "claim", "receive", tasks, count_always=True),
            links=_links(tasks),
            start_time=began_ns,
        )
        if error is not None:
            _fail(span, error)
        span.end()

    def settle(self, queue: str, ends: Sequence[tuple[Task, Verb]]) -> AbstractContextManager[Span]:
        """Return a block with the span of a settlement.

        Of one task it belongs to the trace of its put, unless there is a current span.
        """
        tasks = [task for task, _verb in ends]
        alone = len(tasks) == 1
        name = str(ends[0][1]) if alone else "settle"
        span = self._tracer.start_span(
            f"{name} {queue}",
            _parent_of(tasks[0]) if alone else None,
            kind=SpanKind.CLIENT,
            attributes=_attributes(queue, name, "settle", tasks),
            links=_links(tasks),
        )
        return _current_until_end(span)

    def run(self, task: Task) -> RunSpan:
        """Return the scope of a run. Its span is in the trace of the put, unless there is a current span."""
        attributes = _attributes(task.queue, "run", "process", [task])
        span = self._tracer.start_span(
            "run " + task.queue,
            _parent_of(task),
            kind=SpanKind.CONSUMER,
            attributes=attributes | {"messaging.freshq.attempt": task.attempts},
            links=_links([task]),
        )
        return RunSpan(task, span)


class RunSpan(RunScope):
    """The span of one run."""

    def __init__(self, task: Task, span: Span) -> None:
        super().__init__(task)
        self._span = span

    @property
    @override
    def trace_id(self) -> str | None:
        found = self._span.get_span_context()
        return trace.format_trace_id(found.trace_id) if found.is_valid else super().trace_id

    @override
    def current(self) -> AbstractContextManager[object]:
        return trace.use_span(self._span, record_exception=False, set_status_on_exception=False)

    @override
    def end(self, error: BaseException | None) -> None:
        if error is not None:
            _fail(self._span, error)
            if self._span.is_recording() and not isinstance(error, EXPECTED):
                self._span.add_event("exception", _exception(error))
        self._span.end()


def note_put(span: Span, receipts: Sequence[Receipt]) -> None:
    """Note on the span of a put of one task what became of it."""
    if len(receipts) == 1 and receipts[0].outcome is not PutOutcome.CREATED:
        span.set_attribute("messaging.freshq.put.outcome", receipts[0].outcome.value)


def note_settled(span: Span, answers: Sequence[object]) -> None:
    """Note on the span of a settlement which of its tasks were not settled."""
    errors = [answer for answer in answers if isinstance(answer, Exception)]
    if errors:
        _fail(span, errors[0])
        if len(answers) > 1:
            span.set_attribute("messaging.freshq.not_settled_count", len(errors))


def _attributes(
    queue: str, name: str, type_: str, tasks: Sequence[Task], *, count_always: bool = False
) -> dict[str, Any]:
    """Return the attributes of a span: of one task its id, of several their number."""
    attributes: dict[str, Any] = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": name,
        "messaging.operation.type": type_,
        "messaging.destination.name": queue,
    }
    if len(tasks) == 1:
        attributes["messaging.message.id"] = tasks[0].task_id
        if tasks[0].kind is not None:
            attributes["messaging.freshq.kind"] = tasks[0].kind
    if len(tasks) != 1 or count_always:
        attributes["messaging.batch.message_count"] = len(tasks)
    return attributes


def _links(tasks: Sequence[Task]) -> list[Link]:
    """Return a link to the context that each task carries, with the id of the task."""
    return [
        Link(found, {"messaging.message.id": task.task_id})
        for task in tasks
        if (found := _carried(task)) is not None
    ]


def _carried(task: Task) -> trace.SpanContext | None:
    """Return the context that a task carries; None if it carries none."""
    headers: Mapping[str, str] = task.trace_headers
    if not headers:
        return None
    found = trace.get_current_span(W3C.extract(headers, contexts.Context())).get_span_context()
    return found if found.is_valid else None


def _carrying(task: Task, context: Context | None = None) -> Task:
    """Return a task that carries a context; as it is if it carries one, or if the context has no trace.

    Args:
        task: The task.
        context: The context; None for the current one.
    """
    carrier: dict[str, str] = {}
    W3C.inject(carrier, context)
    if task.trace_context is not None or "traceparent" not in carrier:
        return task
    return replace(task, trace_context=joined(carrier["traceparent"], carrier.get("tracestate", "")))


def _parent_of(task: Task) -> Context | None:
    """Return the context that is the parent of what is done with a task.

    It is the current one, which None means, if that has a span, else the one that the task carries.
    """
    if trace.get_current_span().get_span_context().is_valid:
        return None
    return W3C.extract(task.trace_headers)


@contextmanager
def _current_until_end(span: Span) -> Iterator[Span]:
    """Make a span current; end it with the block, as failed if that raises."""
    try:
        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            yield span
    except BaseException as error:
        _fail(span, error)
        raise
    finally:
        span.end()


def _fail(span: Span, error: BaseException) -> None:
    """Note that what a span stands for failed."""
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, truncated(error_text(error))))


def _exception(error: BaseException) -> dict[str, str]:
    """Return the attributes of the event of an exception; the SDK's own fail if its text cannot be read."""
    return {
        "exception.type": type(error).__qualname__,
        "exception.message": error_text(error),
        "exception.stacktrace": "".join(traceback.format_exception(error)),
    }


def now_ns() -> int:
    """Return the time of spans, in nanoseconds since the epoch."""
    return time_ns()
