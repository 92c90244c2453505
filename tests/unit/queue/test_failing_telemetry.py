"""Telemetry that raises does not affect a queue or its workers."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final

import pytest
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import Sampler
from typing_extensions import override

from freshq import Busy, Handlers, Queue, Reject, Retry, Task, Worker
from freshq.errors import Unreachable
from freshq.model.task import OVER
from freshq.model.telemetry import RunScope, Telemetry, guarded
from freshq.policy.retry import Backoff
from freshq.telemetry import Observer, OpenTelemetry, Outcome
from freshq.testing import FaultyStore, drain, make_task
from freshq.worker.run import in_thread
from tests.support.patience import PATIENCE_SECONDS
from tests.support.readings import known
from tests.support.worker_threads import Quiet

SECRET = "s3cr3t-payload"


class Broken(Exception):
    """Telemetry is broken."""


def _raise(*_arguments: object) -> None:
    raise Broken(SECRET)


broken: Any = _raise  # takes the place of any method


class Silent(Telemetry):
    """Records nothing: every verb goes through the methods that it inherits."""


class FailsBefore(Telemetry, Observer):
    """Raises before the store is called."""

    put = claim = settle = run = settled = overran = switched = claimed = broken


class FailsAfter(Telemetry, Observer):
    """Raises after every answer of the store."""

    settled = overran = switched = claimed = broken

    @override
    @contextlib.contextmanager
    def put(self, span: object) -> Iterator[None]:
        try:
            yield
        finally:
            broken(span)

    claim = settle = put

    @override
    def run(self, task: Task) -> RunScope:
        return BrokenScope(task)


class Hides(FailsAfter):
    """Answers nothing, and hides the errors of the store."""

    @override
    @contextlib.contextmanager
    def put(self, span: Any) -> Iterator[None]:
        with contextlib.suppress(Exception):
            yield
        for name in ("receipts", "claims", "answers"):
            with contextlib.suppress(AttributeError):
                setattr(span, name, None)

    claim = settle = put

    @override
    def run(self, task: Task) -> RunScope:
        return SuppressingScope(task)


class BrokenScope(RunScope):
    @property
    @override
    def trace_id(self) -> str | None:
        return str(broken())

    current = end = broken


class Suppressing:
    """A block that suppresses exceptions raised inside."""

    def __enter__(self) -> None:
        return

    def __exit__(self, *_error: object) -> bool:
        return True


class BrokenAtExit(Suppressing):
    @override
    def __exit__(self, *_error: object) -> bool:
        return bool(broken())


class SuppressingScope(RunScope):
    @override
    def current(self) -> AbstractContextManager[object]:
        block: Any = BrokenAtExit() if self.task.payload == "broken" else Suppressing()
        return block  # type: ignore[no-any-return]  # it is a block, whatever its class


class BrokenSampler(Sampler):
    should_sample = broken

    @override
    def get_description(self) -> str:
        return "broken"


class BrokenAtStart(SpanProcessor):
    on_start = broken


class BrokenAtEnd(SpanProcessor):
    on_end = broken


def _of_sdk(processor: SpanProcessor | None) -> Telemetry:
    if processor is None:
        return OpenTelemetry(TracerProvider(sampler=BrokenSampler(), shutdown_on_exit=False))
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(processor)
    return OpenTelemetry(provider)


ALL = {
    "before": FailsBefore,
    "after": FailsAfter,
    "hides": Hides,
    "sampler": lambda: _of_sdk(None),
    "on_start": lambda: _of_sdk(BrokenAtStart()),
    "on_end": lambda: _of_sdk(BrokenAtEnd()),
}


@pytest.fixture(params=ALL)
def telemetry(request: pytest.FixtureRequest) -> Telemetry:
    make: Any = ALL[request.param]
    made: Telemetry = make()
    return made


ENDS: dict[str, Exception | None] = {
    "succeeds": None,
    "rejects": Reject("never"),
    "retries": Retry("later", delay_seconds=0.001),
    "fails": OSError("down"),
}


def _handlers() -> Handlers:
    handlers = Handlers()

    def end(task: Task) -> str:
        logging.getLogger("application").info("runs")
        error = ENDS[str(task.kind).removeprefix("a")]
        if error is not None:
            raise error
        return "done"

    async def end_later(task: Task) -> str:
        await asyncio.sleep(0)
        return end(task)

    for kind in ENDS:
        handlers.on(kind)(end)
        handlers.on("a" + kind)(end_later)
    return handlers


def _fates(telemetry: Telemetry, **options: Any) -> dict[str, Any]:
    """Return the fates of tasks that end in every way."""
    quick = Backoff(base_seconds=0.001, cap_seconds=0.001)
    queue = Queue.memory(telemetry=telemetry, max_attempts=2, backoff=quick)
    kinds = [*ENDS, *("a" + kind for kind in ENDS)]
    outcomes = [queue.put("one", task_id=kinds[0], kind=kinds[0]).outcome]
    outcomes.append(queue.put("again", task_id=kinds[0], kind=kinds[0]).outcome)
    rest = [{"payload": "broken", "task_id": kind, "kind": kind} for kind in kinds[1:]]
    outcomes += [receipt.outcome for receipt in queue.put_many(rest)]
    observer = Quiet()
    worker = Worker(queue, _handlers(), poll_seconds=0.01, observer=observer, **options)

    def is_over() -> bool:
        return all(known(queue, kind).status in OVER for kind in kinds)

    report = in_thread("worker", partial(worker.run, until=is_over)).result(PATIENCE_SECONDS)
    tasks = [known(queue, kind) for kind in kinds]
    return {
        "put": outcomes,
        "tasks": [(task.status, task.attempts, task.result, task.error) for task in tasks],
        "outcomes": report.outcomes,
        "claimed": report.claimed,
        "observed": sorted(observer.settlements),
    }


# A limit of the run prevents prefetches: the machine's speed decides which of those come back.
LIMITED: Final = {"concurrency": 8, "max_run_seconds": PATIENCE_SECONDS}


@pytest.mark.parametrize("options", [LIMITED, {"concurrency": 8, "at_most_once": True}])
def test_tasks_end_as_without(telemetry: Telemetry, options: dict[str, Any]) -> None:
    fates = _fates(telemetry, **options)
    assert fates["outcomes"][Outcome.SUCCEEDED] == 2
    assert fates == _fates(Telemetry(), **options)


def test_a_release_and_a_drain_end_as_without(telemetry: Telemetry) -> None:
    def run(task: Task) -> None:
        if task.kind == "busy":
            raise Busy

    queue = Queue.memory(telemetry=telemetry)
    queue.put("one", task_id="a", kind="busy")
    queue.put("two", task_id="b")
    assert [(fate.task.task_id, fate.outcome) for fate in drain(queue, run)] == [
        ("b", Outcome.SUCCEEDED),
        ("a", Outcome.RELEASED),
    ]


def test_the_error_of_the_store_is_what_the_caller_gets(telemetry: Telemetry) -> None:
    store = FaultyStore()
    queue = store.queue(telemetry=telemetry)
    calls: list[Callable[[], object]] = [lambda: queue.put("one"), queue.claim]
    for call in calls:
        with store.down(), pytest.raises(Unreachable):
            call()


def test_the_store_is_called_once(telemetry: Telemetry) -> None:
    queue = Queue.memory(telemetry=telemetry)
    queue.put_many([{"payload": number} for number in range(3)])
    assert queue.stats().pending == 3
    assert len(queue.claim(2)) == 2
    assert queue.stats().pending == 1


def test_each_failure_is_logged_once_and_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    queue = Queue.memory(telemetry=FailsBefore())
    for _ in range(3):
        queue.put(SECRET)
        (claim,) = queue.claim()
        queue.complete(claim)
    told = [record.getMessage() for record in caplog.records if record.name.startswith("freshq.model")]
    assert [message.split()[1] for message in told] == ["put", "claim", "settle"]
    assert all("Broken" in message and __file__ in message for message in told)
    assert SECRET not in caplog.text


class CannotStart(Handlers):
    """Its coroutines fail to start for an unexpected reason."""

    @override
    def start(self, task: Task, loop: object = None) -> Any:
        if task.kind == "afails":
            raise Broken
        return super().start(task)


def test_a_run_that_cannot_start_ends_the_worker_and_not_the_others() -> None:
    done: list[str] = []
    handlers = CannotStart()

    @handlers.on("afails")
    async def fails(_task: Task) -> None:
        raise AssertionError

    @handlers.on("succeeds")
    def succeeds(task: Task) -> None:
        done.append(task.task_id)

    queue = Queue.memory()
    queue.put_many(
        [{"payload": None, "kind": "afails"}, {"payload": None, "kind": "succeeds", "task_id": "b"}]
    )
    worker = Worker(queue, handlers, concurrency=2, poll_seconds=0.01, idle_exit_seconds=0.05)
    with pytest.raises(Broken):
        in_thread("worker", worker.run).result(PATIENCE_SECONDS)
    assert done == ["b"]


class Told(Telemetry):
    """An observer that keeps its reports of runs."""

    def __init__(self) -> None:
        self.heard: list[object] = []

    @override
    def run(self, task: Task) -> RunScope:
        self.heard.append(("run", task.task_id))
        return ToldScope(task, self.heard)


class ToldScope(RunScope):
    def __init__(self, task: Task, heard: list[object]) -> None:
        super().__init__(task)
        self.heard = heard

    @property
    @override
    def trace_id(self) -> str:
        return "4bf9"

    @override
    def current(self) -> AbstractContextManager[object]:
        self.heard.append("current")
        return contextlib.nullcontext()

    @override
    def end(self, error: BaseException | None) -> None:
        self.heard.append(("end", repr(error)))


def test_telemetry_that_works_is_told_all(caplog: pytest.LogCaptureFixture) -> None:
    telemetry = Told()
    scope = guarded(telemetry).run(make_task(1, task_id="a"))
    assert (scope.task.task_id, scope.trace_id) == ("a", "4bf9")
    with scope.current():
        telemetry.heard.append("inside")
    scope.end(KeyError("x"))
    assert telemetry.heard == [("run", "a"), "current", "inside", ("end", "KeyError('x')")]
    assert caplog.records == []


def test_telemetry_that_tells_nothing_knows_the_run() -> None:
    task = make_task(1, trace_context="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    scope = Telemetry().run(task)
    assert (scope.task, scope.trace_id) == (task, "4bf92f3577b34da6a3ce929d0e0e4736")


def test_a_block_that_could_not_begin_does_not_end(caplog: pytest.LogCaptureFixture) -> None:
    with guarded(FailsAfter()).run(make_task(1)).current():
        pass
    assert len(caplog.records) == 1
    assert "telemetry: current raised Broken" in caplog.text


def test_a_telemetry_that_overrides_nothing_changes_nothing() -> None:
    queue = Queue.memory(telemetry=Silent())
    assert [receipt.task_id for receipt in queue.put_many([{"task_id": "a"}, {"task_id": "b"}])] == ["a", "b"]
    claims = queue.claim(2)
    assert [claim.task.task_id for claim in claims] == ["b", "a"]
    assert queue.complete(claims[0], result=1).result == 1
    queue.fail(claims[1], error="no stock")
    assert (queue.stats().success, queue.stats().failure) == (1, 1)
