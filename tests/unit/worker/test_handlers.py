"""Handlers: a function for each kind, with typed payloads and results."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

from freshq import Handlers, Queue, Reject, Retry, Task, TaskStatus, Worker
from freshq.telemetry import Outcome
from freshq.testing import ManualClock, drain, make_task
from freshq.worker import report as worker_report
from tests.support.programs import python
from tests.support.refusals import refused
from tests.support.worker_threads import work_off


@dataclass
class Quote:
    symbol: str
    at: datetime
    limit: Decimal = Decimal("1.50")


class Price(BaseModel):
    amount: Decimal
    of: UUID


SOME_ID = UUID(int=7)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@dataclass
class Card:
    pays: Literal["card"]


@dataclass
class Cash:
    pays: Literal["cash"]


def by_name(_task: Task, *, payload: int) -> int:
    return payload


async def yields(_task: Task) -> AsyncIterator[int]:
    yield 1


def yields_now(_task: Task) -> Iterator[int]:
    yield 1


class Ping:
    async def __call__(self, _task: Task) -> str:
        return "pong"


@pytest.fixture
def handlers() -> Handlers:
    return Handlers()


@pytest.fixture
def queue() -> Queue:
    return Queue.memory(clock=ManualClock(), max_attempts=5)


def test_the_page_works_as_it_is_written(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "worker.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(# quotes\.py\n.*?)```", page, re.DOTALL)
    program = tmp_path / "quotes.py"
    program.write_text(code, "utf-8")
    run = python("-W", "error", str(program))
    assert run.stdout == "1.50\n"


class TestTypes:
    def test_a_payload_and_a_result_have_types(self, handlers: Handlers, queue: Queue) -> None:
        seen = []

        @handlers.on("quote")
        def quote(task: Task, payload: Quote) -> Price:
            seen.append((task.kind, payload))
            return Price(amount=payload.limit, of=SOME_ID)

        queue.put(Quote("ABC", NOON), kind="quote")
        (fate,) = drain(queue, handlers)
        assert seen == [("quote", Quote("ABC", NOON))]
        assert fate.task.result == {"amount": "1.50", "of": str(SOME_ID)}
        assert fate.task.payload == {"symbol": "ABC", "at": "2026-01-01T12:00:00+00:00", "limit": "1.50"}

    def test_a_payload_that_does_not_fit_is_a_dead_letter_that_names_the_field(
        self, handlers: Handlers, queue: Queue
    ) -> None:
        @handlers.on("quote")
        def quote(_task: Task, _payload: Quote) -> None:
            raise AssertionError("not to be called")

        queue.put({"symbol": "ABC", "at": "secret"}, kind="quote")
        (fate,) = drain(queue, handlers)
        assert fate.outcome is Outcome.FAILED
        assert (fate.error or "").startswith("payload.at: input should be a valid datetime")
        assert "secret" not in (fate.error or "")

    def test_limits_in_an_annotation_hold(self, handlers: Handlers) -> None:
        @handlers.on("few")
        def few(_task: Task, _payload: Annotated[int, Field(lt=5)]) -> None:
            raise AssertionError("not to be called")

        with pytest.raises(Reject, match=r"^payload: "):
            handlers(make_task(7, kind="few"))

    def test_no_error_has_the_tag_of_a_union_or_a_second_line(self, handlers: Handlers) -> None:
        @handlers.on("pay")
        def pay(_task: Task, _payload: Annotated[Card | Cash, Field(discriminator="pays")]) -> None:
            raise AssertionError("not to be called")

        @handlers.on("counts")
        def counts(_task: Task, _payload: dict[str, int]) -> None:
            raise AssertionError("not to be called")

        with pytest.raises(Reject, match=r"^payload: the tag must be one of 'card', 'cash'$"):
            handlers(make_task({"pays": "secret"}, kind="pay"))
        with pytest.raises(Reject, match=r"^payload\.a\\nb: input should be a valid integer"):
            handlers(make_task({"a\nb": "x"}, kind="counts"))

    def test_without_an_annotation_the_payload_is_as_it_was_put(self, handlers: Handlers) -> None:
        handlers.on("any")(lambda _task, payload: payload)
        assert handlers(make_task({"a": [1]}, kind="any")) == {"a": [1]}

    @pytest.mark.parametrize("payload", [{1: "a"}, [{"a": {None: 1}}], ({True: 1},)])
    def test_a_key_that_json_would_change_is_refused(self, queue: Queue, payload: Any) -> None:
        with refused("payload"):
            queue.put(payload)

    def test_a_result_with_such_a_key_is_a_dead_letter(self, queue: Queue) -> None:
        queue.put("work")
        (fate,) = drain(queue, lambda _task: {1: "a"})
        assert (fate.error or "").startswith("result: a key is of type int")


class TestKinds:
    def test_handlers_may_reject_an_unknown_kind_and_list_the_known_ones(self, queue: Queue) -> None:
        handlers = Handlers(unknown="reject")
        handlers.on("b")(lambda _task: None)
        handlers.on("a")(lambda _task: None)
        queue.put(1)
        (fate,) = drain(queue, handlers)
        assert (fate.outcome, fate.error) == (Outcome.FAILED, "kind: no handler for None; there are a, b")
        with refused("unknown"):
            Handlers(unknown="dead")  # type: ignore[arg-type]

    @pytest.mark.parametrize("at_most_once", [False, True])
    def test_a_worker_counts_unknown_kinds_and_warns_once_a_minute(
        self,
        handlers: Handlers,
        queue: Queue,
        caplog: pytest.LogCaptureFixture,
        *,
        at_most_once: bool,
    ) -> None:
        queue.put_many([{"payload": "secret", "kind": "new"}] * 3 + [{"payload": "secret"}])
        report = work_off(queue, handlers, at_most_once=at_most_once)
        assert (report.claimed, report.outcomes[Outcome.UNKNOWN_KIND]) == (4, 4)
        assert report.unknown_kinds == {"new": 3, "": 1}
        assert queue.stats().delayed == 4
        warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert sorted("'new'" in each for each in warned) == [False, True]
        assert "secret" not in caplog.text

    def test_a_warning_is_repeated_after_a_minute(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = iter([0.0, 59.0, 60.0])
        monkeypatch.setattr(worker_report, "time", SimpleNamespace(monotonic=lambda: next(now)))
        counts: dict[str, int] = {}
        unknown = worker_report.UnknownKinds(counts)
        for _ in range(3):
            unknown.note(make_task(kind="new"), "no handler")
        assert (counts, len(caplog.records)) == ({"new": 3}, 2)

    def test_a_kind_may_have_fewer_attempts_than_the_queue(self, handlers: Handlers, queue: Queue) -> None:
        @handlers.on("flaky", max_attempts=2)
        def flaky(_task: Task) -> None:
            raise Retry("down", delay_seconds=0)

        @handlers.on("broken", max_attempts=1)
        def broken(_task: Task) -> None:
            raise KeyError("price")

        queue.put(1, kind="flaky")
        assert [fate.outcome for fate in drain(queue, handlers)] == [Outcome.RETRIED, Outcome.FAILED]
        queue.put(1, kind="broken")
        (fate,) = drain(queue, handlers)
        assert fate.error == "KeyError: 'price'; that was attempt 1 of 1"

    def test_a_rejection_stays_one(self, handlers: Handlers) -> None:
        @handlers.on("no", max_attempts=3)
        def no(_task: Task) -> None:
            raise Reject("never")

        with pytest.raises(Reject):
            handlers(make_task(kind="no"))


class TestAsync:
    def test_many_share_one_loop_and_wait_at_the_same_time(self, handlers: Handlers) -> None:
        queue = Queue.memory()
        everybody, loops, started = asyncio.Event(), set(), []

        @handlers.on("wait")
        async def wait(task: Task) -> None:
            loops.add(asyncio.get_running_loop())
            started.append(task.task_id)
            if len(started) == 40:
                everybody.set()
            await everybody.wait()

        queue.put_many([{"payload": None, "kind": "wait"} for _ in range(40)])
        report = Worker(queue, handlers, concurrency=40, idle_exit_seconds=0.05, poll_seconds=0.01).run()
        assert report.outcomes[Outcome.SUCCEEDED] == 40
        assert len(loops) == 1

    def test_one_that_takes_too_long_is_cancelled_and_tried_again(
        self, handlers: Handlers, queue: Queue
    ) -> None:
        cancelled = []

        @handlers.on("slow", max_run_seconds=0.02)
        async def slow(_task: Task) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

        queue.put(1, kind="slow")
        (fate,) = drain(queue, handlers)
        assert (fate.outcome, fate.error) == (Outcome.RETRIED, "the handler took longer than 0.02 s")
        assert fate.task.status is TaskStatus.PENDING
        assert cancelled == [True]

    def test_an_exit_ends_only_its_attempt(self, handlers: Handlers, queue: Queue) -> None:
        @handlers.on("exit")
        async def leave(_task: Task) -> None:
            raise SystemExit(3)

        @handlers.on("next")
        async def after(_task: Task) -> str:
            return "done"

        queue.put(1, kind="next", priority=0)
        queue.put(1, kind="exit", priority=1)
        first, second = drain(queue, handlers)
        assert (first.outcome, first.error) == (Outcome.RETRIED, "SystemExit: 3")
        assert second.task.result == "done"

    def test_a_loop_that_could_not_start_is_started_by_the_next_task(
        self, handlers: Handlers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        @handlers.on("ping")
        async def ping(_task: Task) -> str:
            return "pong"

        def no_thread_left(_thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", no_thread_left)
            with pytest.raises(RuntimeError):
                handlers(make_task(kind="ping"))
        assert handlers(make_task(kind="ping")) == "pong"

    def test_an_object_with_an_async_call_is_awaited(self, handlers: Handlers) -> None:
        handlers.on("ping")(Ping())
        assert handlers(make_task(kind="ping")) == "pong"

    def test_a_timeout_of_its_own_is_an_error_of_its_own(self, handlers: Handlers) -> None:
        @handlers.on("own", max_run_seconds=60)
        async def own(_task: Task) -> None:
            raise TimeoutError("upstream")

        with pytest.raises(TimeoutError):
            handlers(make_task(kind="own"))


@pytest.mark.parametrize(
    ("register", "problem"),
    [
        (lambda handlers: handlers.on(""), "kind: must be a non-empty string"),
        (lambda handlers: handlers.on("a", max_attempts=0), "max_attempts: must be a whole number"),
        (lambda handlers: handlers.on("a", max_run_seconds=0), "max_run_seconds: must be"),
        (lambda handlers: handlers.on("a", max_run_seconds=1)(print), "only an async function"),
        (lambda handlers: handlers.on("a")(lambda: None), "must take a task, or a task and a payload"),
        (lambda handlers: handlers.on("a")(7), "must be a function, got int"),
        (lambda handlers: handlers.on("a")(by_name), "must take a task, or a task and a payload"),
        (lambda handlers: handlers.on("a")(yields), "is a generator, whose body would never run"),
        (lambda handlers: handlers.on("a")(yields_now), "is a generator, whose body would never run"),
        (lambda _handlers: Worker(Queue.memory(), yields_now), "runner: is a generator"),
        (lambda handlers: [handlers.on("a")(lambda _task: 1) for _ in "ab"], "'a' has a function already"),
    ],
)
def test_wrong_use_is_refused_at_once(
    handlers: Handlers, register: Callable[[Handlers], object], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        register(handlers)
