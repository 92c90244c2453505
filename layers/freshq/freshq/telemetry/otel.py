"""Report verbs and runs to OpenTelemetry."""

from __future__ import annotations

import atexit
import logging
import time
import traceback
from contextlib import contextmanager
from functools import cache, partial
from time import time_ns
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from typing_extensions import override

from freshq.errors import StoreError, needs, quoted
from freshq.model.answers import Busy, PutOutcome, Receipt, Reject, Retry, error_text
from freshq.model.forks import new_lock
from freshq.model.lifecycle import truncated
from freshq.model.task import changed, joined, keep_origin
from freshq.model.telemetry import RunScope, Telemetry
from freshq.queue.base import blocking_queue
from freshq.queue.gauges import (
    BOUNDS_SECONDS,
    GAUGES,
    METRIC_OF_PUT,
    METRICS_OF_NO_PUT,
    counted_put,
    gauges_of,
    metric_of,
    snake_case,
)
from freshq.worker.report import METRIC_OF_OUTCOME, Observer, Outcome
from freshq.worker.runner import CancelledRun

with needs("otel"):
    from opentelemetry import context as contexts
    from opentelemetry import trace
    from opentelemetry.metrics import MeterProvider, Observation, get_meter
    from opentelemetry.trace import Link, SpanKind, Status, StatusCode, get_tracer
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from opentelemetry.context import Context
    from opentelemetry.metrics import CallbackOptions, Meter
    from opentelemetry.trace import Span, TracerProvider

    from freshq.model.answers import Claim
    from freshq.model.task import Task
    from freshq.model.telemetry import ClaimSpan, PutSpan, SettleSpan
    from freshq.policy.order import OrderSwitch
    from freshq.queue.asyncio import AsyncQueue
    from freshq.queue.base import BaseQueue

logger = logging.getLogger(__name__)
SCOPE: Final = "freshq"
COUNTERS: Final = (
    *METRIC_OF_PUT.values(),
    *METRICS_OF_NO_PUT,
    "TasksClaimed",
    *METRIC_OF_OUTCOME.values(),
    "TasksOverran",
    "BreakersOpened",
    "OrderSwitches",
)
HISTOGRAMS: Final = ("ClaimAgeSeconds", "RunSeconds")
# The gauges of one collection share a single reading of the queue.
READING_SECONDS: Final = 0.5
_of_providers: Final[WeakKeyDictionary[object, Instruments]] = WeakKeyDictionary()
_lock: Final = new_lock()
SYSTEM: Final = "freshq"
# Always these headers, whatever else the process propagates: producers and workers must agree.
W3C: Final = TraceContextTextMapPropagator()
# A runner raises these to end its attempt, so their tracebacks say nothing.
EXPECTED: Final = (Busy, Reject, Retry, CancelledRun)


def otel_name(name: str) -> str:
    """Return the name of a metric as OpenTelemetry writes names: TasksPending is freshq.tasks_pending."""
    return f"freshq.{snake_case(name)}"


def unit_of(metric: str) -> str:
    """Return the unit of a metric, as UCUM writes it."""
    units = {"PerSecond": "{task}/s", "Seconds": "s", "Ratio": "1", "Paused": "", "Switches": "{switch}"}
    units |= {"Slowed": "{worker}", "Opened": "{worker}"}
    if metric.startswith("Value"):
        units["PerSecond"] = "{value}/s"
    return next((unit for end, unit in units.items() if metric.endswith(end)), "{task}")


class Instruments:
    """The metrics of queues and workers."""

    def __init__(self, meter: Meter) -> None:
        """Create the instruments, and watch no queue yet."""
        self._readings: dict[BaseQueue, _GaugeReading] = {}
        self._counters = {name: meter.create_counter(otel_name(name), unit_of(name)) for name in COUNTERS}
        self._histograms = {
            name: meter.create_histogram(
                otel_name(name), "s", explicit_bucket_boundaries_advisory=BOUNDS_SECONDS
            )
            for name in HISTOGRAMS
        }
        for name, meaning in GAUGES.items():
            meter.create_observable_gauge(
                otel_name(name), [partial(self._observed, name)], unit_of(name), meaning
            )

    def count(self, queue: str, name: str, number: int = 1) -> None:
        """Add to a counter."""
        if number:
            self._counters[name].add(number, {"queue": queue})

    def put(self, queue: str, answers: Sequence[object]) -> None:
        """Count the outcomes of a put: for each task a receipt or an error."""
        for answer in answers:
            self.count(queue, metric_of(answer))

    def claimed(self, queue: str, claims: Sequence[Claim]) -> None:
        """Count claims, and the ages of the tasks."""
        self.count(queue, "TasksClaimed", len(claims))
        for claim in claims:
            age_seconds = max(0.0, claim.task.updated - claim.task.created)
            self._histograms["ClaimAgeSeconds"].record(age_seconds, {"queue": queue})

    def settled(self, queue: str, outcome: Outcome, run_seconds: float) -> None:
        """Count the end of a run, and its time."""
        self.count(queue, METRIC_OF_OUTCOME[outcome])
        self._histograms["RunSeconds"].record(run_seconds, {"queue": queue})

    def switched(self) -> None:
        """Count an order switch, without the queue's name, which is not known."""
        self._counters["OrderSwitches"].add(1)

    def watch(self, queue: BaseQueue) -> None:
        """Also observe the state of a queue whenever metrics are collected."""
        # A new dictionary: another thread may be collecting.
        self._readings = {**self._readings, queue: _GaugeReading(queue)}

    def _observed(self, name: str, _options: CallbackOptions) -> Iterable[Observation]:
        for queue, reading in self._readings.items():
            value = reading.values().get(name)
            if value is not None:
                yield Observation(value, {"queue": queue.name})


class _GaugeReading:
    """The state of a queue, read once for the gauges of one collection."""

    def __init__(self, queue: BaseQueue) -> None:
        self._queue = queue
        self._lock = new_lock()
        self._read_at = float("-inf")
        self._values: dict[str, float] = {}

    def values(self) -> dict[str, float]:
        """Return the gauges with a current value; none if the store does not answer."""
        with self._lock:
            if time.monotonic() - self._read_at >= READING_SECONDS:
                self._values = self._read()
                self._read_at = time.monotonic()
            return self._values

    def _read(self) -> dict[str, float]:
        queue = self._queue
        try:
            return gauges_of(queue)
        except StoreError as error:
            logger.warning("queue %r was not read, so its metrics have no values: %s", queue.name, error)
            return {}


class _Process:
    """Forwards to the process-wide provider, which may be set later."""


_PROCESS: Final = _Process()


def instruments_of(provider: MeterProvider | None) -> Instruments:
    """Return the instruments of a provider, the same at each call.

    An SDK keeps one instrument per name, and silently drops the observations of a second one.

    Args:
        provider: The provider; None for the process-wide one.
    """
    key: object = _PROCESS if provider is None else provider
    with _lock:
        if key not in _of_providers:
            _of_providers[key] = Instruments(get_meter(SCOPE, meter_provider=provider))
        return _of_providers[key]


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
    def elsewhere(self) -> Callable[[], AbstractContextManager[object]]:
        carrier: dict[str, str] = {}
        W3C.inject(carrier, trace.set_span_in_context(self._span))
        return partial(continued, carrier)

    @override
    def end(self, error: BaseException | None) -> None:
        if error is not None:
            _fail(self._span, error)
            if self._span.is_recording() and not isinstance(error, EXPECTED):
                self._span.add_event("exception", _exception(error))
        self._span.end()


def continued(carrier: Mapping[str, str]) -> AbstractContextManager[object]:
    """Return a block whose spans belong to a run of another process.

    Args:
        carrier: The context of the run, as W3C headers.
    """
    span = trace.get_current_span(W3C.extract(carrier))
    _flush_at_exit()
    return trace.use_span(span, record_exception=False, set_status_on_exception=False)


@cache
def _flush_at_exit() -> None:
    """Have this process export its spans when it ends, before the next export is due."""
    flush = getattr(trace.get_tracer_provider(), "force_flush", None)
    if flush is not None:
        atexit.register(flush)


def _note_put(span: Span, receipts: Sequence[Receipt]) -> None:
    """Note the outcome of a put of one task on its span, unless it is CREATED."""
    if len(receipts) == 1 and receipts[0].outcome is not PutOutcome.CREATED:
        span.set_attribute("messaging.freshq.put.outcome", receipts[0].outcome.value)


def _note_settled(span: Span, answers: Sequence[object]) -> None:
    """Note on the span of a settlement how many of its tasks were not settled."""
    errors = [answer for answer in answers if isinstance(answer, Exception)]
    if errors:
        _fail(span, errors[0])
        if len(answers) > 1:
            span.set_attribute("messaging.freshq.not_settled_count", len(errors))


def _attributes(
    queue: str, name: str, type_: str, tasks: Sequence[Task], *, count_always: bool = False
) -> dict[str, Any]:
    """Return the attributes of a span: the id of a single task, or the number of several."""
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
    """Return a link to the context of each task that carries one, with the id of the task."""
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


def _keeps_its_own(task: Task) -> bool:
    """Return whether a put leaves the context of a task unchanged.

    The inherited context of a child gives way to a later one of the same trace, from the run of its parent.
    """
    current = trace.get_current_span().get_span_context()
    continues = current.is_valid and trace.format_trace_id(current.trace_id) == task.trace_id
    return task.trace_context is not None and not (task.parent_id is not None and continues)


def _carrying(task: Task, context: Context | None = None) -> Task:
    """Return a copy of a task that carries a context; the task itself if it has one, or there is no trace.

    Args:
        task: The task.
        context: The context; None for the current one.
    """
    carrier: dict[str, str] = {}
    W3C.inject(carrier, context)
    if _keeps_its_own(task) or "traceparent" not in carrier:
        return task
    trace_context = joined(carrier["traceparent"], carrier.get("tracestate", ""))
    return keep_origin(changed(task, trace_context=trace_context), task)


def _parent_of(task: Task) -> Context | None:
    """Return the parent of the spans about a task.

    None (use the current context) if a span is active; otherwise the context stored with the task.
    """
    if trace.get_current_span().get_span_context().is_valid:
        return None
    return W3C.extract(task.trace_headers)


@contextmanager
def _current_until_end(span: Span) -> Iterator[Span]:
    """Make a span current; end it with the block, as failed if that raises."""
    with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield span
        except BaseException as error:
            _fail(span, error)
            raise


def _fail(span: Span, error: BaseException) -> None:
    """Mark a span as failed."""
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, truncated(error_text(error))))


def _exception(error: BaseException) -> dict[str, str]:
    """Return the attributes of an exception event; the SDK's own code fails if the text cannot be read."""
    return {
        "exception.type": type(error).__qualname__,
        "exception.message": error_text(error),
        "exception.stacktrace": "".join(traceback.format_exception(error)),
    }


def _check(name: str, given: object, kind: type) -> None:
    if given is not None and not isinstance(given, kind):
        msg = f"{name}: must be an {kind.__module__}.{kind.__qualname__} or None, got {quoted(given)}"
        raise ValueError(msg)


class OpenTelemetry(Telemetry, Observer):
    """Reports every put, claim, run and settlement to OpenTelemetry. Pass it to a queue as `telemetry`.

    A put makes a span, and the task carries its context, so that its run is in the same trace, whichever
    process runs the task. A `Worker` of such a queue also counts its runs; its observer or the log still
    receives them. Without an SDK in the process, this costs next to nothing. Needs the extra `otel`.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        *,
        propagate: bool = True,
    ) -> None:
        """Use providers.

        Args:
            tracer_provider: Where spans go; None for the provider of the process.
            meter_provider: Where metrics go; None for the provider of the process.
            propagate: Whether tasks carry the context of their put, in about 70 bytes of their item or row.

        Raises:
            ValueError: If a provider is none.
        """
        _check("tracer_provider", tracer_provider, trace.TracerProvider)
        _check("meter_provider", meter_provider, MeterProvider)
        self._tracer = get_tracer(SCOPE, tracer_provider=tracer_provider)
        self._propagate = propagate
        self._instruments = instruments_of(meter_provider)

    def watch(self, queue: BaseQueue | AsyncQueue) -> None:
        """Observe the state of a queue, as `freshq metrics`, whenever metrics are collected.

        Let one process do so: each collection costs about six reads per queue. If the store of a queue does
        not answer, a warning is logged, and its metrics have no values.

        Args:
            queue: The queue.

        Raises:
            ValueError: If it is no queue.
        """
        self._instruments.watch(blocking_queue(queue))

    @override
    @contextmanager
    def put(self, span: PutSpan) -> Iterator[None]:
        if not span.tasks:
            yield
            return
        with self._put_span(span), counted_put(span, partial(self._instruments.put, span.queue)):
            yield

    @contextmanager
    def _put_span(self, put: PutSpan) -> Iterator[None]:
        """Make the span of a put, and one for the creation of each task if there are several."""
        queue, tasks = put.queue, put.tasks
        if self._propagate and len(tasks) > 1:
            tasks = [self._created(queue, task) for task in tasks]
        gives = self._propagate and not all(map(_keeps_its_own, tasks))
        kind = SpanKind.PRODUCER if gives else SpanKind.CLIENT
        attributes = _attributes(queue, "put", "send", tasks)
        span = self._tracer.start_span("put " + queue, kind=kind, attributes=attributes, links=_links(tasks))
        with _current_until_end(span):
            put.tasks = [_carrying(task) for task in tasks] if gives else tasks
            yield
            _note_put(span, put.receipts)

    def _created(self, queue: str, task: Task) -> Task:
        """Return a task that carries the context of its own span, unless it already carries a context."""
        if _keeps_its_own(task):
            return task
        attributes = _attributes(queue, "create", "create", [task])
        span = self._tracer.start_span("create " + queue, kind=SpanKind.PRODUCER, attributes=attributes)
        span.end()
        return _carrying(task, trace.set_span_in_context(span))

    @override
    @contextmanager
    def claim(self, span: ClaimSpan) -> Iterator[None]:
        began_ns = time_ns()
        try:
            yield
        except Exception as error:
            self._claimed(span, began_ns, error)
            raise
        if span.claims:  # a worker polls: a span for each empty claim would hide the rest
            self._instruments.claimed(span.queue, span.claims)
            self._claimed(span, began_ns, None)

    def _claimed(self, claim: ClaimSpan, began_ns: int, error: Exception | None) -> None:
        """Make the span of a claim at its end, when the tasks to link to are known.

        Args:
            claim: The claim.
            began_ns: When the claim began, in nanoseconds since the epoch.
            error: Why it failed; None if it did not.
        """
        tasks = [each.task for each in claim.claims]
        span = self._tracer.start_span(
            "claim " + claim.queue,
            kind=SpanKind.CLIENT,
            attributes=_attributes(claim.queue, "claim", "receive", tasks, count_always=True),
            links=_links(tasks),
            start_time=began_ns,
        )
        if error is not None:
            _fail(span, error)
        span.end()

    @override
    @contextmanager
    def settle(self, span: SettleSpan) -> Iterator[None]:
        """Make the span of a settlement.

        The settlement of one task belongs to the trace of its put, unless there is a current span.
        """
        tasks = [task for task, _verb in span.ends]
        alone = len(tasks) == 1
        name = str(span.ends[0][1]) if alone else "settle"
        own = self._tracer.start_span(
            f"{name} {span.queue}",
            _parent_of(tasks[0]) if alone else None,
            kind=SpanKind.CLIENT,
            attributes=_attributes(span.queue, name, "settle", tasks),
            links=_links(tasks),
        )
        with _current_until_end(own):
            yield
            _note_settled(own, span.answers)

    @override
    def run(self, task: Task) -> RunScope:
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

    @override
    def settled(self, claim: Claim, outcome: Outcome, run_seconds: float, error: str | None) -> None:
        self._instruments.settled(claim.task.queue, outcome, run_seconds)

    @override
    def overran(self, claim: Claim, run_seconds: float) -> None:
        self._instruments.count(claim.task.queue, "TasksOverran")

    def slowed(self, queue: str, *, opened: bool) -> None:
        """Count a worker that slowed down."""
        self._instruments.count(queue, "BreakersOpened", int(opened))

    @override
    def switched(self, switch: OrderSwitch) -> None:
        self._instruments.switched()
