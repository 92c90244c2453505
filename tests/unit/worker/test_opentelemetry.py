"""Spans and metrics of OpenTelemetry, from the put in a request to the end in another thread."""

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from freshq import (
    AsyncQueue,
    Busy,
    Handlers,
    LeaseLost,
    Overloaded,
    Queue,
    Reject,
    Retry,
    Settlement,
    StoreError,
    Task,
    Worker,
)
from freshq.errors import PutIncomplete, RefusedError, Unreachable
from freshq.model.telemetry import PutSpan
from freshq.policy import BacklogLimit, WhenFull
from freshq.policy.retry import Backoff
from freshq.queue.core import core_of
from freshq.telemetry import OpenTelemetry, Outcome, otel
from freshq.testing import FaultyStore, ManualClock
from tests.support import isolated
from tests.support.functions import PROJECT
from tests.support.patience import PATIENCE_SECONDS
from tests.support.programs import python
from tests.support.readings import known
from tests.support.worker_threads import Ageing, Quiet, raising, wait_until, work_off

SECRET = "s3cr3t-payload"
QUICK: Any = {"backoff": Backoff(base_seconds=0.001, cap_seconds=0.001)}


@dataclass
class Told:
    """The recorded spans and metrics."""

    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    reader: InMemoryMetricReader = field(default_factory=InMemoryMetricReader)

    def __post_init__(self) -> None:
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meters = MeterProvider([self.reader], shutdown_on_exit=False)
        self.telemetry = OpenTelemetry(self.tracers, self.meters)
        self.tracer = self.tracers.get_tracer("application")

    def spans(self, *names: str) -> list[ReadableSpan]:
        """Return the ended spans in the order of their ends, perhaps only some."""
        ended = self.exporter.get_finished_spans()
        return [span for span in ended if not names or span.name.split()[0] in names]

    def span(self, name: str) -> ReadableSpan:
        """Return the only span of a name."""
        (found,) = self.spans(name)
        return found

    def names(self) -> list[str]:
        return [span.name for span in self.spans()]

    def metrics(self) -> dict[str, Any]:
        """Return the points of each metric, by name and queue."""
        data = self.reader.get_metrics_data()
        found: dict[str, Any] = {}
        for resource in data.resource_metrics if data else []:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.data.data_points:
                        found[metric.name] = (metric.unit, dict(point.attributes or {}), point)
        return found

    def counted(self) -> dict[str, int]:
        """Return the counters."""
        return {
            name: point.value
            for name, (_unit, _attributes, point) in self.metrics().items()
            if hasattr(point, "value")
        }


@pytest.fixture
def told() -> Iterator[Told]:
    """Return the test's own providers; check at the end that nothing recorded a payload."""
    told = Told()
    yield told
    for span in told.spans():
        assert SECRET not in span.to_json()
    told.tracers.shutdown()
    told.meters.shutdown()


@pytest.fixture
def queue(told: Told) -> Queue:
    return Queue.memory(telemetry=told.telemetry)


def parent(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


def own(span: ReadableSpan) -> int:
    return context_of(span).span_id


def context_of(span: ReadableSpan) -> trace.SpanContext:
    found = span.get_span_context()
    assert found is not None
    return found


def trace_of(span: ReadableSpan) -> int:
    return context_of(span).trace_id


def linked(span: ReadableSpan) -> set[int]:
    return {link.context.span_id for link in span.links}


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def failure(span: ReadableSpan) -> tuple[StatusCode, str | None, Any]:
    return span.status.status_code, span.status.description, attributes(span).get("error.type")


SUCCEEDED = (StatusCode.UNSET, None, None)


def of(name: str, operation_type: str, **others: object) -> dict[str, object]:
    return {
        "messaging.system": "freshq",
        "messaging.operation.name": name,
        "messaging.operation.type": operation_type,
        "messaging.destination.name": "default",
    } | {key.replace("__", "."): value for key, value in others.items()}


class TestOneTask:
    def test_is_one_trace_from_the_request_to_its_end(self, told: Told, queue: Queue) -> None:
        with told.tracer.start_as_current_span("GET /", kind=SpanKind.SERVER) as request:
            queue.put(SECRET, task_id="a", kind="quote", group="secret group")
        inner: list[int] = []

        def run(_task: Task) -> str:
            with told.tracer.start_as_current_span("ask a service") as span:
                inner.append(span.get_span_context().span_id)
            return SECRET

        work_off(queue, run)
        assert told.names() == [
            "put default", "GET /", "claim default", "ask a service", "run default", "complete default",
        ]  # fmt: skip
        put, claim, run_span, end = (told.span(name) for name in ("put", "claim", "run", "complete"))
        assert [span.kind for span in (put, claim, run_span, end)] == [
            SpanKind.PRODUCER,
            SpanKind.CLIENT,
            SpanKind.CONSUMER,
            SpanKind.CLIENT,
        ]
        assert parent(put) == request.get_span_context().span_id
        assert parent(run_span) == parent(end) == own(put)
        assert {trace_of(span) for span in (put, run_span, end)} == {request.get_span_context().trace_id}
        assert linked(run_span) == linked(end) == linked(claim) == {own(put)}
        assert parent(told.span("ask")) == own(run_span)
        # A claim is for several tasks, so it has its own trace, with links to theirs.
        assert (parent(claim), linked(put)) == (None, set())
        assert trace_of(claim) != trace_of(put)
        assert all(failure(span) == SUCCEEDED for span in told.spans())

    def test_has_the_attributes_of_the_conventions(self, told: Told, queue: Queue) -> None:
        queue.put(SECRET, task_id="a", kind="quote", group="secret group")
        work_off(queue, lambda _task: SECRET)
        one: dict[str, object] = {"messaging__message__id": "a", "messaging__freshq__kind": "quote"}
        assert attributes(told.span("put")) == of("put", "send", **one)
        assert attributes(told.span("run")) == of("run", "process", **one, messaging__freshq__attempt=1)
        assert attributes(told.span("complete")) == of("complete", "settle", **one)
        assert attributes(told.span("claim")) == of(
            "claim", "receive", **one, messaging__batch__message_count=1
        )
        (link,) = told.span("run").links
        assert dict(link.attributes or {}) == {"messaging.message.id": "a"}

    @pytest.mark.parametrize(
        ("raised", "verb", "description"),
        [
            (Busy("full"), "release", "full"),
            (Retry("later", delay_seconds=60), "retry", "later"),
            (Reject("never"), "fail", "never"),
            (OSError("down"), "retry", "down"),
        ],
    )
    def test_that_fails_is_a_failed_run_and_an_end_by_its_verb(
        self, told: Told, raised: Exception, verb: str, description: str
    ) -> None:
        queue = Queue.memory(telemetry=told.telemetry, backoff=Backoff(base_seconds=60, cap_seconds=60))
        queue.put(SECRET)
        done: list[str] = []

        def run(task: Task) -> None:
            if done:
                return
            done.append(task.task_id)
            raise raised

        work_off(queue, run)
        first = told.spans("run")[0]
        assert failure(first) == (StatusCode.ERROR, description, type(raised).__name__)
        # The traceback of an unexpected exception.
        events = [(event.name, dict(event.attributes or {})) for event in first.events]
        if not isinstance(raised, OSError):
            assert events == []
        else:
            ((name, said),) = events
            trace_text = str(said.pop("exception.stacktrace"))
            assert (name, said) == (
                "exception",
                {"exception.type": "OSError", "exception.message": "down"},
            )
            assert trace_text.startswith("Traceback")
            assert trace_text.endswith("OSError: down\n")
        assert failure(told.spans(verb)[0]) == SUCCEEDED

    def test_each_attempt_is_a_run_in_the_same_trace(self, told: Told) -> None:
        queue = Queue.memory(telemetry=told.telemetry, max_attempts=3, **QUICK)
        queue.put(SECRET)
        work_off(queue, raising(OSError("down")), idle_exit_seconds=0.3)
        runs = told.spans("run")
        assert [attributes(run)["messaging.freshq.attempt"] for run in runs] == [1, 2, 3]
        assert {trace_of(run) for run in runs} == {trace_of(told.span("put"))}
        assert len(told.spans("claim")) == len(told.spans("retry")) == 3
        assert told.counted()["freshq.tasks_retried"] == 2
        assert told.counted()["freshq.tasks_failed"] == 1

    def test_that_went_stale_before_its_run_has_no_run(self, told: Told) -> None:
        clock = ManualClock()
        queue = Queue.memory(telemetry=told.telemetry, clock=clock, max_age_seconds=10)
        queue.put(SECRET, task_id="a")
        observer = Ageing(clock)
        work_off(queue, lambda task: task, observer=observer)
        assert told.names() == ["put default", "claim default", "release default"]
        assert parent(told.span("release")) == own(told.span("put"))
        assert told.counted()["freshq.tasks_shed_before_run"] == 1

    @pytest.mark.parametrize(("verb", "metric"), [("cancel", "tasks_cancelled"), ("redrive", "leases_lost")])
    def test_whose_lease_was_lost_has_a_settlement_that_failed(
        self, told: Told, queue: Queue, verb: str, metric: str
    ) -> None:
        queue.put(SECRET, task_id="a")
        taken: list[str] = []

        def run(task: Task) -> None:
            if not taken:
                taken.append(task.task_id)
                if verb == "cancel":
                    queue.cancel(task.task_id, force=True)
                else:
                    queue.redrive([task.task_id], as_new=True, force=True)

        work_off(queue, run)
        end = told.spans("complete")[0]
        assert failure(end)[::2] == (StatusCode.ERROR, "LeaseLost")
        assert "the claim no longer holds it" in str(end.status.description)
        assert failure(told.spans("run")[0]) == SUCCEEDED
        assert told.counted()[f"freshq.{metric}"] == 1

    def test_that_is_worked_by_hand_is_where_its_code_is(self, told: Told, queue: Queue) -> None:
        queue.put(SECRET)
        with told.tracer.start_as_current_span("job") as job:
            (claim,) = queue.claim()
            queue.complete(claim)
        mine = job.get_span_context().span_id
        assert parent(told.span("claim")) == parent(told.span("complete")) == mine
        assert linked(told.span("complete")) == {own(told.span("put"))}
        queue.put(SECRET)
        (claim,) = queue.claim()
        queue.retry(claim, delay_seconds=9)
        with pytest.raises(LeaseLost):
            queue.complete(claim)
        assert failure(told.spans("complete")[1])[2] == "LeaseLost"

    def test_that_is_completed_before_its_run(self, told: Told, queue: Queue) -> None:
        queue.put(SECRET)
        work_off(queue, lambda _task: None, at_most_once=True)
        assert told.names() == ["put default", "claim default", "complete default", "run default"]

    def test_held_in_a_transaction(self, told: Told, tmp_path: Path) -> None:
        queue = Queue.sql(f"sqlite:///{tmp_path}/tasks.db", telemetry=told.telemetry)
        queue.create_table()
        queue.put(SECRET)

        def run(_task: Task, _connection: object) -> None:
            with told.tracer.start_as_current_span("inner"):
                return

        Worker(queue, run, transaction=True, concurrency=1, poll_seconds=0.01, idle_exit_seconds=0.05).run()
        # Its end is the commit of the transaction.
        assert told.names() == [
            "put default",
            "claim default",
            "inner",
            "run default",
        ]
        assert parent(told.span("run")) == own(told.span("put"))
        assert parent(told.span("inner")) == own(told.span("run"))
        assert told.counted()["freshq.tasks_succeeded"] == 1


class TestAsync:
    def test_a_handler_runs_inside_its_span(self, told: Told) -> None:
        handlers = Handlers()

        @handlers.on("quote")
        async def quote(task: Task) -> str:
            await asyncio.sleep(0)
            with told.tracer.start_as_current_span(f"inner {task.task_id}"):
                await asyncio.sleep(0)
            return SECRET

        @handlers.on("bad")
        async def bad(_task: Task) -> None:
            await asyncio.sleep(0)
            raise Reject("never")

        @handlers.on("plain")
        def plain(_task: Task) -> None:
            with told.tracer.start_as_current_span("inner plain"):
                return

        queue = Queue.memory(telemetry=told.telemetry)
        for task_id, kind in [("a", "quote"), ("b", "quote"), ("c", "bad"), ("d", "plain")]:
            queue.put(SECRET, task_id=task_id, kind=kind)
        work_off(queue, handlers, concurrency=10)
        puts = {attributes(span)["messaging.message.id"]: span for span in told.spans("put")}
        runs = {attributes(span)["messaging.message.id"]: span for span in told.spans("run")}
        assert {task_id: parent(run) for task_id, run in runs.items()} == {
            task_id: own(put) for task_id, put in puts.items()
        }
        inner = {span.name: parent(span) for span in told.spans("inner")}
        assert inner == {"inner a": own(runs["a"]), "inner b": own(runs["b"]), "inner plain": own(runs["d"])}
        assert failure(runs["c"]) == (StatusCode.ERROR, "never", "Reject")

    def test_a_run_that_is_cancelled_ends_its_span(self, told: Told) -> None:
        handlers, begun = Handlers(), threading.Event()

        @handlers.on("endless")
        async def endless(_task: Task) -> None:
            begun.set()
            await asyncio.Event().wait()

        queue = Queue.memory(telemetry=told.telemetry)
        queue.put(SECRET, kind="endless")
        worker = Worker(queue, handlers, poll_seconds=0.01)
        thread = threading.Thread(target=worker.run)
        thread.start()
        assert begun.wait(PATIENCE_SECONDS)
        worker.stop_at_once()
        thread.join(PATIENCE_SECONDS)
        wait_until(lambda: bool(told.spans("run")))
        assert failure(told.span("run"))[2] == "CancelledRun"

    def test_a_coroutine_puts_in_its_own_span(self, told: Told) -> None:
        async def request() -> int:
            with told.tracer.start_as_current_span("GET /") as span:
                await AsyncQueue(Queue.memory(telemetry=told.telemetry)).put(SECRET)
                return span.get_span_context().span_id

        assert asyncio.run(request()) == parent(told.span("put"))


class TestSeveralTasks:
    def test_have_each_a_context_of_their_own(self, told: Told, queue: Queue) -> None:
        with told.tracer.start_as_current_span("GET /") as request:
            queue.put_many([{"payload": SECRET, "task_id": task_id} for task_id in "abc"])
        created = {attributes(span)["messaging.message.id"]: span for span in told.spans("create")}
        assert sorted(created) == ["a", "b", "c"]
        assert attributes(created["a"]) == of("create", "create", messaging__message__id="a")
        put = told.span("put")
        assert {span.kind for span in created.values()} == {SpanKind.PRODUCER}
        assert put.kind is SpanKind.CLIENT  # the context of the tasks is that of their creation
        assert {parent(span) for span in (put, *created.values())} == {request.get_span_context().span_id}
        assert linked(put) == {own(span) for span in created.values()}
        assert attributes(put) == of("put", "send", messaging__batch__message_count=3)
        claims = queue.claim(3)
        claim = told.span("claim")
        assert linked(claim) == linked(put)
        assert attributes(claim) == of("claim", "receive", messaging__batch__message_count=3)
        queue.settle_many([Settlement.complete(claim) for claim in claims])
        end = told.span("settle")
        assert (linked(end), parent(end), end.kind) == (linked(put), None, SpanKind.CLIENT)
        assert attributes(end) == of("settle", "settle", messaging__batch__message_count=3)
        assert failure(end) == SUCCEEDED

    def test_some_of_which_cannot_be_settled(self, told: Told, queue: Queue) -> None:
        queue.put_many([{"payload": SECRET, "task_id": task_id} for task_id in "abc"])
        claims = queue.claim(3)
        queue.complete(claims[1])
        queue.settle_many([Settlement.complete(claim) for claim in claims])
        end = told.span("settle")
        assert failure(end)[::2] == (StatusCode.ERROR, "LeaseLost")
        assert attributes(end)["messaging.freshq.not_settled_count"] == 1

    def test_that_bring_a_context_keep_it(self, told: Told) -> None:
        given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 vendor=1"
        queue = Queue.memory(telemetry=told.telemetry)
        queue.put(SECRET, task_id="a", trace_context=given)
        assert (told.span("put").kind, linked(told.span("put"))) == (SpanKind.CLIENT, {0x00F067AA0BA902B7})
        queue.put_many([{"payload": 1, "trace_context": given}, {"payload": 2}])
        assert len(told.spans("create")) == 1
        contexts = [claim.task.trace_context for claim in queue.claim(3)]
        assert contexts.count(given) == 2
        work_off(queue, lambda _task: None)


class TestPuts:
    def test_of_an_id_that_is_taken_says_so(self, told: Told, queue: Queue) -> None:
        for _ in range(2):
            queue.put(SECRET, task_id="a")
        queue.put(2, task_id="a", on_conflict="update")
        outcomes = [attributes(span).get("messaging.freshq.put.outcome") for span in told.spans("put")]
        assert outcomes == [None, "DUPLICATE", "UPDATED"]
        counted = told.counted()
        assert [counted[f"freshq.tasks_{name}"] for name in ("created", "duplicate", "updated")] == [1, 1, 1]

    def test_that_are_turned_away(self, told: Told) -> None:
        queue = Queue.memory(telemetry=told.telemetry, backlog=BacklogLimit(1, WhenFull.REFUSE_NEWEST))
        queue.put(SECRET)
        with pytest.raises(Overloaded):
            queue.put(SECRET)
        assert failure(told.spans("put")[1])[::2] == (StatusCode.ERROR, "Overloaded")
        with pytest.raises(PutIncomplete):
            queue.put_many([{"payload": SECRET}, {"payload": SECRET}])
        assert failure(told.spans("put")[2])[2] == "PutIncomplete"
        assert told.counted()["freshq.tasks_turned_away"] == 3

    def test_that_the_store_does_not_answer(self, told: Told) -> None:
        store = FaultyStore()
        store.queue().put("work")  # so that this write does not decide about the options
        queue = store.queue(telemetry=told.telemetry)
        queue.stats()
        with store.down(), pytest.raises(Unreachable):
            queue.put(SECRET)
        with store.down(), pytest.raises(StoreError):
            queue.claim()
        assert failure(told.span("put"))[2] == failure(told.span("claim"))[2] == "Unreachable"
        assert told.counted() == {"freshq.tasks_not_written": 1}

    def test_of_nothing_tell_nothing(self, told: Told, queue: Queue) -> None:
        assert queue.put_many([]) == []
        assert queue.claim() == []
        assert queue.settle_many([]) == []
        assert told.names() == []


class TestPropagation:
    def test_can_be_switched_off(self, told: Told) -> None:
        telemetry = OpenTelemetry(told.tracers, told.meters, propagate=False)
        queue = Queue.memory(telemetry=telemetry)
        with told.tracer.start_as_current_span("GET /"):
            queue.put(SECRET)
            queue.put_many([{"payload": SECRET}] * 2)
        assert [task.trace_context for task in queue.list()] == [None] * 3
        work_off(queue, lambda _task: None)
        assert told.spans("create") == []
        assert {span.kind for span in told.spans("put")} == {SpanKind.CLIENT}
        runs = told.spans("run")
        assert len(runs) == 3
        assert [(parent(run), linked(run)) for run in runs] == [(None, set())] * 3

    def test_tells_the_worker_what_is_not_sampled(self, told: Told) -> None:
        queue = Queue.memory(telemetry=OpenTelemetry(TracerProvider(ALWAYS_OFF), told.meters))
        queue.put(SECRET, task_id="a")
        task = known(queue, "a")
        flags = int((task.trace_context or "")[-2:], 16)
        assert flags % 2 == 0  # not sampled
        worker = Queue(core_of(queue).store, telemetry=told.telemetry)
        work_off(worker, lambda _task: None)
        assert told.names() == ["claim default"]  # a span of several tasks, with its own sampling decision

    def test_needs_no_sdk_and_passes_on_the_context_of_the_request(self) -> None:
        queue = Queue.memory(telemetry=OpenTelemetry())
        queue.put_many([{"payload": 1, "task_id": task_id} for task_id in ("without", "neither")])
        found = trace.SpanContext(0xABC, 0xDEF, is_remote=True)
        with trace.use_span(trace.NonRecordingSpan(found)):
            queue.put(1, task_id="with")
        contexts = {task.task_id: task.trace_id for task in queue.list()}
        assert contexts == {"without": None, "neither": None, "with": f"{0xABC:032x}"}
        assert work_off(queue, lambda _task: None).progress == 3


class TestMetrics:
    def test_have_the_names_of_the_page_and_units(self, told: Told, queue: Queue) -> None:
        told.telemetry.watch(queue)
        queue.put_many([{"payload": SECRET}] * 3)
        work_off(queue, lambda _task: None)
        queue.put(SECRET)
        metrics = told.metrics()
        units = {name: unit for name, (unit, _attributes, _point) in metrics.items()}
        assert units.pop("freshq.wanted_servers", "{task}") == "{task}"  # known once runs were timed
        assert units == {
            **dict.fromkeys(
                ["freshq.tasks_created", "freshq.tasks_claimed", "freshq.tasks_succeeded"], "{task}"
            ),
            **dict.fromkeys(["freshq.claim_age_seconds", "freshq.run_seconds"], "s"),
            **dict.fromkeys(
                [
                    f"freshq.tasks_{state}"
                    for state in ("pending", "delayed", "taken", "dead", "stale_in_index")
                ],
                "{task}",
            ),
            **dict.fromkeys(["freshq.oldest_pending_seconds", "freshq.newest_pending_seconds"], "s"),
            **dict.fromkeys(["freshq.offered_per_second", "freshq.served_per_second"], "{task}/s"),
            "freshq.shed_ratio": "1",
            "freshq.workers_slowed": "{worker}",
            "freshq.queue_paused": "",
        }
        assert {tuple(attributes.items()) for _unit, attributes, _point in metrics.values()} == {
            (("queue", "default"),)
        }
        points = {name: point for name, (_unit, _attributes, point) in metrics.items()}
        assert points["freshq.tasks_created"].value == 4
        assert points["freshq.tasks_succeeded"].value == 3
        assert points["freshq.tasks_pending"].value == 1
        for name in ("claim_age_seconds", "run_seconds"):
            assert points[f"freshq.{name}"].count == 3
            assert points[f"freshq.{name}"].explicit_bounds[0] < 0.01

    def test_of_several_queues_are_all_told_whoever_watches_them(self, told: Told) -> None:
        """An SDK has one gauge of a name, so the second callback would be lost."""
        other = OpenTelemetry(told.tracers, told.meters)
        for name, telemetry in [("a", told.telemetry), ("b", told.telemetry), ("c", other)]:
            queue = Queue.memory(name=name, telemetry=telemetry)
            telemetry.watch(AsyncQueue(queue) if name == "b" else queue)
            queue.put_many([{"payload": SECRET}] * 2)
        data: Any = told.reader.get_metrics_data()
        (scope,) = data.resource_metrics[0].scope_metrics
        pending = next(metric for metric in scope.metrics if metric.name == "freshq.tasks_pending")
        assert {point.attributes["queue"]: point.value for point in pending.data.data_points} == {
            "a": 2,
            "b": 2,
            "c": 2,
        }

    def test_of_a_queue_that_does_not_answer_are_missing_and_the_others_there(
        self, told: Told, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(otel, "READING_SECONDS", PATIENCE_SECONDS)
        store = FaultyStore()
        for queue in (store.queue(name="away"), Queue.memory()):
            told.telemetry.watch(queue)
        with store.down():
            metrics = told.metrics()
        assert {attributes["queue"] for _unit, attributes, _point in metrics.values()} == {"default"}
        assert "freshq.tasks_pending" in metrics
        (said,) = [record.getMessage() for record in caplog.records]  # once, not for each gauge
        assert said.startswith("queue 'away' was not read")

    @pytest.mark.parametrize(
        ("outcome", "counter"),
        [
            (Outcome.SUCCEEDED, "tasks_succeeded"),
            (Outcome.FAILED, "tasks_failed"),
            (Outcome.RETRIED, "tasks_retried"),
            (Outcome.RELEASED, "tasks_released"),
            (Outcome.UNKNOWN_KIND, "tasks_of_unknown_kind"),
            (Outcome.SHED, "tasks_shed_before_run"),
            (Outcome.LEASE_LOST, "leases_lost"),
            (Outcome.CANCELLED, "tasks_cancelled"),
            (Outcome.UNSETTLED, "tasks_unsettled"),
        ],
    )
    def test_count_each_end_of_a_run_by_its_outcome(self, told: Told, outcome: Outcome, counter: str) -> None:
        queue = Queue.memory(name="orders")
        queue.put(SECRET)
        (claim,) = queue.claim()
        told.telemetry.settled(claim, outcome, 2.0, None)
        metrics = told.metrics()
        assert metrics.keys() == {f"freshq.{counter}", "freshq.run_seconds"}
        unit, attributes, point = metrics[f"freshq.{counter}"]
        assert (unit, attributes, point.value) == ("{task}", {"queue": "orders"}, 1)
        _unit, attributes, point = metrics["freshq.run_seconds"]
        assert (attributes, point.count, point.sum) == ({"queue": "orders"}, 1, 2.0)

    def test_count_a_put_that_is_refused(self, told: Told) -> None:
        queue = Queue.memory(name="orders")
        queue.put_many([{"payload": SECRET}] * 2)
        with pytest.raises(RefusedError), told.telemetry.put(PutSpan("orders", list(queue.list()))):
            raise RefusedError("not now")
        assert told.counted() == {"freshq.tasks_refused": 2}

    def test_are_told_beside_the_observer(self, told: Told) -> None:
        queue, quiet = Queue.memory(telemetry=told.telemetry), Quiet()
        queue.put(SECRET)
        work_off(queue, lambda _task: None, observer=quiet)
        assert len(quiet.settlements) == len(quiet.ages) == 1
        assert told.counted()["freshq.tasks_succeeded"] == 1

    def test_count_runs_that_exceed_their_time(self, told: Told) -> None:
        queue, end = Queue.memory(telemetry=told.telemetry), threading.Event()
        queue.put(SECRET)
        worker = Worker(
            queue, lambda _task: end.wait(PATIENCE_SECONDS) and None, max_run_seconds=0.05, poll_seconds=0.01
        )
        worker.run(until=lambda: told.counted().get("freshq.tasks_overran") == 1)
        end.set()
        assert told.counted()["freshq.tasks_overran"] == 1
        assert told.metrics()["freshq.tasks_overran"][:2] == ("{task}", {"queue": "default"})

    def test_count_order_switches(self, told: Told) -> None:
        clock = ManualClock()
        queue = Queue.memory(telemetry=told.telemetry, order="adaptive", max_age_seconds=50, clock=clock)
        queue.put(SECRET)
        clock.advance(26)
        work_off(queue, lambda _task: None)
        assert told.counted()["freshq.order_switches"] == 1
        assert told.metrics()["freshq.order_switches"][:2] == ("{switch}", {})


RUNNER = """
import sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

tracers = TracerProvider()
show = lambda span: f"{span.name} {span.context.trace_id:032x}\\n"
tracers.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(out=sys.stderr, formatter=show)))
trace.set_tracer_provider(tracers)

def run(task):
    return None
"""


def test_the_address_of_a_queue_says_that_a_command_tells_of_it(tmp_path: Path) -> None:
    """The runner's module sets up the SDK after the queue is open; buffered data are sent at the end."""
    (tmp_path / "app.py").write_text(RUNNER)
    url = f"sqlite:///{tmp_path}/tasks.db"
    queue = Queue.sql(url)
    queue.create_table()
    queue.put(SECRET, trace_context="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    queue.close()
    command = ["work", "app:run", "--queue", f"{url}?telemetry=opentelemetry", "--idle-exit-seconds", "0.05"]
    done = python("-m", "freshq.cli", *command, cwd=tmp_path)
    spans = dict(line.rsplit(" ", 1) for line in done.stderr.splitlines())
    assert spans.keys() == {"claim default", "run default", "complete default"}
    assert spans["run default"] == spans["complete default"] == "4bf92f3577b34da6a3ce929d0e0e4736"


def test_the_page_has_the_figures_that_were_measured() -> None:
    """Write them to the page when `make bench PARTS=telemetry` has measured anew."""
    page = (PROJECT / "docs/contributing/measurements.md").read_text("utf-8")
    results = json.loads((PROJECT / "benchmarks/results/telemetry.json").read_text("utf-8"))["figures"]
    assert f"takes {results['context_bytes']} bytes of a task" in (PROJECT / "docs/telemetry.md").read_text(
        "utf-8"
    )
    for figure in results["settings"].values():
        shown = (
            f"{figure[f'{part}_microseconds']:.0f} | {figure[f'{part}_ratio']:.1f}"
            for part in ("put", "work")
        )
        assert f"| {' | '.join(shown)} |" in page


PROGRAM = """
import sys
from freshq import Queue, Worker
queue = Queue.memory()
queue.put(1)
Worker(queue, lambda task: None, idle_exit_seconds=0).run()
print([name for name in sys.modules if name.startswith("opentelemetry") or "otel" in name])
"""


def test_nothing_of_it_is_loaded_unless_it_is_used() -> None:
    run = python("-c", PROGRAM)
    assert run.stdout == "[]\n"


def test_without_its_extra_it_is_one_error_that_names_it() -> None:
    program = "import sys; sys.modules['opentelemetry'] = None; from freshq.telemetry import OpenTelemetry"
    run = python("-c", program, check=False)
    assert run.stderr.splitlines()[-1].endswith(
        "opentelemetry is not installed; run: pip install 'freshq[otel]'"
    )


@pytest.mark.parametrize(
    ("runner", "payload", "kind"),
    [(isolated.run, ["trace_and_span"], None), (isolated.handlers, 1, "traced batch")],
    ids=["function", "batch"],
)
def test_the_span_of_a_run_is_current_in_its_process(
    told: Told, queue: Queue, runner: Any, payload: Any, kind: str | None
) -> None:
    queue.put(payload, kind=kind, task_id="a")
    work_off(queue, runner, isolate=True)
    (run,) = [span for span in told.spans() if span.name == "run default"]
    assert known(queue, "a").result == [
        trace.format_trace_id(run.context.trace_id),
        trace.format_span_id(run.context.span_id),
    ]
