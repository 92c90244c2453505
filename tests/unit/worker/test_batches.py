"""Handlers that take a batch: what they are given, what they answer, and when they are called."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import threading
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, assert_type

import pytest

from freshq import Busy, GroupRule, GroupRules, Handlers, Queue, Reject, Retry, Task, TaskStatus, Worker
from freshq.model.answers import Claims, error_text
from freshq.policy.batching import BatchRule, ExpectedTime
from freshq.policy.limits import ConcurrencyLimit
from freshq.policy.retry import Backoff
from freshq.queue.core import core_of
from freshq.stores.memory import MemoryStore
from freshq.telemetry import Outcome, RunScope, TaskLogFilter, Telemetry
from freshq.testing import FaultyStore, ManualClock, drain
from freshq.worker import batches as worker_batches
from freshq.worker import executor, loop
from freshq.worker.batches import WaitingRuns
from freshq.worker.run import BatchRun, TaskRun, runs_of
from freshq.worker.runner import CoroutineRunner
from tests.support.patience import PATIENCE_SECONDS
from tests.support.readings import known
from tests.support.refusals import refused
from tests.support.worker_threads import InThread, Quiet, lease_of, wait_until, work_off

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from freshq import Claim

LONG_SECONDS = 1000.0


@dataclass
class Text:
    model: str
    words: int = 1


def numbers(queue: Queue, count: int, kind: str = "embed", **options: Any) -> list[str]:
    """Put tasks with the payloads 0, 1, ...; return their ids, in the order of claims."""
    ids = [f"{kind}-{number}" for number in range(count)]
    for number, task_id in enumerate(ids):
        queue.put(number, task_id=task_id, kind=kind, **options)
    return ids


@pytest.fixture
def queue() -> Queue:
    return Queue.memory(order="fifo")


class Batched:
    """Handlers with one function of batches, which keeps the ids of each call."""

    def __init__(self, answer: Callable[[list[Task[Any]]], Any] | None = None, **options: Any) -> None:
        self.handlers, self.calls = Handlers(), list[list[str]]()
        self._answer = answer or (lambda tasks: [task.payload for task in tasks])
        self.handlers.on("embed", **{"batch": 4, "within_seconds": 0.05, **options})(self._embed)

    def _embed(self, tasks: list[Task[Any]]) -> Any:
        self.calls.append([task.task_id for task in tasks])
        return self._answer(tasks)


def outcomes(queue: Queue, ids: Iterable[str]) -> list[tuple[TaskStatus, Any, str | None, int]]:
    tasks = [known(queue, task_id) for task_id in ids]
    return [(task.status, task.result, task.error, task.attempts) for task in tasks]


class TestAnswers:
    def test_each_task_gets_its_result_and_a_batch_takes_one_slot(self, queue: Queue) -> None:
        ids, batched = numbers(queue, 10), Batched(within_seconds=0.3)
        work_off(queue, batched.handlers, concurrency=1)
        assert [*chain.from_iterable(batched.calls)] == ids
        assert [len(call) for call in batched.calls] == [4, 4, 2]
        assert outcomes(queue, ids) == [(TaskStatus.SUCCESS, number, None, 1) for number in range(10)]

    def test_an_exception_fails_each_task_with_its_own_attempts(self, queue: Queue) -> None:
        ids = numbers(queue, 3)
        queue.put(0, task_id="tried", kind="embed")
        (claim,) = [each for each in queue.claim(4) if each.task.task_id == "tried"]
        queue.retry(claim, delay_seconds=0)
        for each in ids:
            queue.release(queue.admin.held(each, known(queue, each).lease_token or ""))

        def answer(_tasks: object) -> None:
            raise ValueError("no model")

        batched = Batched(answer, max_attempts=2, backoff=Backoff(LONG_SECONDS, LONG_SECONDS))
        work_off(queue, batched.handlers)
        assert [len(call) for call in batched.calls] == [4]
        assert {each[0] for each in outcomes(queue, ids)} == {TaskStatus.PENDING}
        assert {each[2:] for each in outcomes(queue, ids)} == {("ValueError: no model", 1)}
        assert known(queue, "tried").status is TaskStatus.FAILURE

    def test_an_element_may_end_only_its_task(self, queue: Queue) -> None:
        ids = numbers(queue, 5)
        ends = [
            7,
            Retry("soon", delay_seconds=LONG_SECONDS),
            Reject("bad"),
            KeyError("x"),
            Busy("full", retry_after_seconds=LONG_SECONDS),
        ]
        batched = Batched(lambda _tasks: ends, batch=5, backoff=Backoff(LONG_SECONDS, LONG_SECONDS))
        report = work_off(queue, batched.handlers)
        assert outcomes(queue, ids) == [
            (TaskStatus.SUCCESS, 7, None, 1),
            (TaskStatus.PENDING, None, "soon", 1),
            (TaskStatus.FAILURE, None, "bad", 1),
            (TaskStatus.PENDING, None, "KeyError: 'x'", 1),
            (TaskStatus.PENDING, None, None, 0),
        ]
        assert report.outcomes[Outcome.RETRIED] == 2
        assert report.claimed == sum(report.outcomes.values()) == 5

    def test_busy_for_half_of_a_batch_slows_its_kind_once_and_keeps_the_other_half(self) -> None:
        rules = GroupRules(kinds={"embed": GroupRule(rate_per_second=100)})
        queue = Queue.memory(order="fifo", groups=rules)
        ids = numbers(queue, 4)
        ends = [0, Busy(retry_after_seconds=90), 2, Busy(retry_after_seconds=60)]
        report = work_off(queue, Batched(lambda _tasks: ends).handlers)
        assert [known(queue, each).result for each in ids] == [0, None, 2, None]
        assert [known(queue, each).attempts for each in ids] == [1, 0, 1, 0]
        assert (report.outcomes[Outcome.SUCCEEDED], report.outcomes[Outcome.RELEASED]) == (2, 2)
        now = queue.admin.now()
        assert [round((known(queue, each).not_before or now) - now, -1) for each in ids] == [0, 90, 0, 60]
        for since, rate in ((0, 70), (89, 70), (101, 80)):  # it grows 90 s later
            slowed = core_of(queue).limits.brakes.groups(rules, now + since).kinds["embed"]
            assert slowed.rate_per_second == pytest.approx(rate, abs=2)

    @pytest.mark.parametrize(
        ("answer", "got"),
        [
            ([1], "a list of 1"),
            ([1, 2, 3], "a list of 3"),
            (None, "NoneType"),
            ((1, 2), "tuple"),
            ("ab", "str"),
        ],
        ids=["short", "long", "none", "tuple", "text"],
    )
    def test_anything_but_a_list_of_that_length_fails_all_without_loss(
        self, queue: Queue, answer: object, got: str
    ) -> None:
        ids, batched = numbers(queue, 2), Batched(lambda _tasks: answer, batch=2, max_attempts=1)
        work_off(queue, batched.handlers)
        error = (
            "ValueError: handler of 'embed': must return a list with one result for each of its 2 tasks, "
            f"in order, got {got}; that was attempt 1 of 1"
        )
        assert outcomes(queue, ids) == [(TaskStatus.FAILURE, None, error, 1)] * 2

    def test_the_list_of_a_library_is_a_list(self, queue: Queue) -> None:
        ids, rows = numbers(queue, 2), type("Rows", (list,), {})
        work_off(queue, Batched(lambda tasks: rows([1] * len(tasks)), batch=2).handlers)
        assert [known(queue, each).result for each in ids] == [1, 1]

    def test_a_payload_that_does_not_fit_fails_its_task_alone(self, queue: Queue) -> None:
        handlers, given = Handlers(), list[list[Text]]()

        @handlers.on("embed", batch=3)
        def embed(tasks: list[Task[Text]]) -> list[int]:
            given.append([task.payload for task in tasks])
            return [task.payload.words for task in tasks]

        for task_id, payload in (
            ("a", {"model": "m", "words": 2}),
            ("b", {"words": 1}),
            ("c", {"model": "n"}),
        ):
            queue.put(payload, kind="embed", task_id=task_id)
        work_off(queue, handlers)
        assert given == [[Text("m", 2), Text("n", 1)]]
        assert [known(queue, each).result for each in "abc"] == [2, None, 1]
        assert (known(queue, "b").status, known(queue, "b").error) == (
            TaskStatus.FAILURE,
            "payload.model: field required",
        )

    def test_no_task_fits(self, queue: Queue) -> None:
        handlers = Handlers()

        @handlers.on("embed", batch=2)
        def embed(tasks: list[Task], payloads: list[int]) -> list[int]:
            raise AssertionError(tasks, payloads)

        for _ in range(2):
            queue.put("x", kind="embed")
        assert work_off(queue, handlers).outcomes[Outcome.FAILED] == 2

    def test_a_result_that_cannot_be_stored_fails_its_task_alone(self, queue: Queue) -> None:
        ids, batched = numbers(queue, 2), Batched(lambda _tasks: [{1}, 2], batch=2)
        work_off(queue, batched.handlers)
        assert [known(queue, each).status for each in ids] == [TaskStatus.FAILURE, TaskStatus.SUCCESS]


class TestCoroutines:
    def test_a_coroutine_takes_a_batch(self, queue: Queue) -> None:
        handlers, sizes = Handlers(), list[int]()

        @handlers.on("embed", batch=4)
        async def embed(tasks: list[Task], payloads: list[int]) -> list[int | Retry | Reject]:
            sizes.append(len(tasks))
            await asyncio.sleep(0.001)
            return [Reject("odd") if each % 2 else each * 10 for each in payloads]

        ids = numbers(queue, 4)
        work_off(queue, handlers, concurrency=1)
        assert sizes == [4]
        assert [known(queue, each).result for each in ids] == [0, None, 20, None]
        assert [known(queue, each).error for each in ids] == [None, "odd", None, "odd"]

    def test_the_time_limit_of_a_handler_retries_each_task(self, queue: Queue) -> None:
        handlers = Handlers()

        @handlers.on("embed", batch=2, max_run_seconds=0.05, backoff=Backoff(LONG_SECONDS, LONG_SECONDS))
        async def embed(tasks: list[Task]) -> list[int]:
            await asyncio.sleep(PATIENCE_SECONDS)
            return [0 for _ in tasks]

        ids = numbers(queue, 2)
        work_off(queue, handlers)
        assert [known(queue, each).error for each in ids] == ["the handler took longer than 0.05 s"] * 2

    def test_a_cancellation_of_its_own_retries_each_task(self, queue: Queue) -> None:
        handlers = Handlers()

        @handlers.on("embed", batch=2, backoff=Backoff(LONG_SECONDS, LONG_SECONDS))
        async def embed(_tasks: list[Task]) -> list[int]:
            raise asyncio.CancelledError

        ids = numbers(queue, 2)
        assert work_off(queue, handlers, concurrency=1).outcomes[Outcome.RETRIED] == 2
        assert [known(queue, each).error for each in ids] == ["CancelledError: "] * 2
        assert [known(queue, each).attempts for each in ids] == [1, 1]

    def test_it_is_cancelled_only_once_all_its_tasks_are(self) -> None:
        clock, cancelled = ManualClock(), threading.Event()
        queue = Queue.memory(order="fifo", clock=clock, lease_seconds=20)
        handlers, seen = Handlers(), list[list[bool]]()
        started = threading.Event()

        @handlers.on("embed", batch=2)
        async def embed(tasks: list[Task]) -> list[int]:
            started.set()
            try:
                while True:
                    seen.append([task.cancelled for task in tasks])
                    await asyncio.sleep(0.005)
            except asyncio.CancelledError:
                cancelled.set()
                raise

        first, second = numbers(queue, 2)
        with InThread(Worker(queue, handlers, poll_seconds=0.01)) as work:
            assert started.wait(PATIENCE_SECONDS)
            queue.cancel(first, force=True)
            clock.advance(15)  # the renewal of its lease finds out
            wait_until(lambda: seen[-1] == [True, False])
            assert not cancelled.is_set()
            queue.cancel(second, force=True)
            clock.advance(15)
            assert cancelled.wait(PATIENCE_SECONDS)
            wait_until(lambda: work.worker.status().outcomes[Outcome.CANCELLED] == 2)


class TestKeys:
    def test_kinds_and_keys_are_never_mixed(self, queue: Queue) -> None:
        handlers, calls = Handlers(), list[tuple[str, set[str]]]()

        def embed(tasks: list[Task[Text]]) -> list[None]:
            calls.append((tasks[0].kind or "", {task.payload.model for task in tasks}))
            return [None] * len(tasks)

        handlers.on("by field", batch=8, batch_by="model")(embed)
        handlers.on("by function", batch=8, batch_by=lambda task: task.payload.model)(embed)
        for number in range(24):
            queue.put({"model": "mn"[number % 2]}, kind=("by field", "by function")[number % 3 == 0])
        work_off(queue, handlers, concurrency=4)
        assert {len(models) for _kind, models in calls} == {1}
        assert queue.stats().success == 24
        assert len(calls) < 24

    def test_a_key_that_fails_ends_only_the_attempt_of_its_task(self, queue: Queue) -> None:
        def key(task: Task) -> str:
            if task.payload == 1:
                raise LookupError("no key")
            if task.payload == 4:
                raise SystemExit(3)
            return [] if task.payload == 2 else "k"  # type: ignore[return-value]

        ids, batched = numbers(queue, 5), Batched(batch_by=key, max_attempts=1)
        work_off(queue, batched.handlers)
        assert [known(queue, each).result for each in ids] == [0, None, None, 3, None]
        assert "no key" in (known(queue, ids[1]).error or "")
        assert "keys must be hashable, such as a string, got list" in (known(queue, ids[2]).error or "")
        assert sorted(chain.from_iterable(batched.calls)) == [ids[0], ids[3]]

    def test_a_key_that_cannot_be_compared_ends_only_the_attempt_of_its_task(self, queue: Queue) -> None:
        class Key:
            def __hash__(self) -> int:
                return 1

            def __eq__(self, other: object) -> bool:
                raise ValueError("no key like any other")

        numbers(queue, 3)
        batched = Batched(batch_by=lambda _task: Key(), max_attempts=1)
        fates = drain(queue, batched.handlers)
        assert sorted(fate.error or "" for fate in fates) == ["", *["ValueError: no key like any other"] * 2]

    def test_a_payload_without_the_field_fails_alone(self, queue: Queue) -> None:
        batched = Batched(batch_by="model", max_attempts=1)
        queue.put({"model": "m"}, kind="embed", task_id="a")
        queue.put({}, kind="embed", task_id="b")
        work_off(queue, batched.handlers)
        assert batched.calls == [["a"]]
        assert "batch_by: the payload has no field 'model'" in (known(queue, "b").error or "")


class TestWaiting:
    def test_other_kinds_run_while_a_batch_fills(self, queue: Queue) -> None:
        batched, ran = Batched(within_seconds=LONG_SECONDS), threading.Event()
        batched.handlers.on("other")(lambda _task: ran.set())
        numbers(queue, 1)
        with InThread(Worker(queue, batched.handlers, concurrency=2, poll_seconds=0.01)):
            wait_until(lambda: queue.stats().taken == 1)
            queue.put(None, kind="other")
            assert ran.wait(PATIENCE_SECONDS)
            assert batched.calls == []

    def test_a_batch_keeps_no_slot_from_a_task_that_needs_it(self, queue: Queue) -> None:
        batched, ran = Batched(within_seconds=LONG_SECONDS), threading.Event()
        batched.handlers.on("other")(lambda _task: ran.set())
        numbers(queue, 1)
        with InThread(Worker(queue, batched.handlers, concurrency=1, poll_seconds=0.01)):
            wait_until(lambda: queue.stats().taken == 1)
            queue.put(None, kind="other")
            assert ran.wait(PATIENCE_SECONDS)
            assert batched.calls == [["embed-0"]]

    def test_it_fills_from_later_puts(self, queue: Queue) -> None:
        batched = Batched(within_seconds=LONG_SECONDS)
        with InThread(Worker(queue, batched.handlers, concurrency=1, poll_seconds=0.01)):
            for number in range(4):
                queue.put(number, kind="embed", task_id=str(number))
                wait_until(lambda: queue.stats().pending == 0)
            wait_until(lambda: queue.stats().success == 4)
        assert batched.calls == [["0", "1", "2", "3"]]

    def test_the_earliest_deadline_is_kept_however_long_it_may_wait(self) -> None:
        queue = Queue.memory(order="fifo", max_age_seconds=LONG_SECONDS)
        batched = Batched(within_seconds=LONG_SECONDS)
        numbers(queue, 1)
        queue.put(1, kind="embed", task_id="urgent", max_age_seconds=1.0)
        with InThread(Worker(queue, batched.handlers, concurrency=1, poll_seconds=0.01)):
            wait_until(lambda: queue.stats().success + queue.stats().shed == 2)
        assert outcomes(queue, ["urgent"]) == [(TaskStatus.SUCCESS, 1, None, 1)]

    def test_a_stale_task_is_shed_and_the_others_run(self) -> None:
        clock = ManualClock()
        queue = Queue.memory(order="fifo", clock=clock, max_age_seconds=100)
        batched = Batched(within_seconds=LONG_SECONDS)
        queue.put(0, kind="embed", task_id="stale", max_age_seconds=10)
        numbers(queue, 3)
        waiting = threading.Event()

        class Told(Quiet):
            def claimed(self, claim: Any, age_seconds: float) -> None:
                super().claimed(claim, age_seconds)
                if claim.task.task_id == "embed-1":
                    clock.advance(20)
                    waiting.set()

        with InThread(
            Worker(queue, batched.handlers, concurrency=1, observer=Told(), poll_seconds=0.01)
        ) as work:
            wait_until(lambda: queue.stats().success == 3)
            report = work.ended()
        assert batched.calls == [["embed-0", "embed-1", "embed-2"]]
        assert (report.outcomes[Outcome.SHED], known(queue, "stale").status) == (1, TaskStatus.SHED)
        assert known(queue, "stale").attempts == 0

    def test_a_task_that_is_cancelled_while_it_waits_is_dropped(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(worker_batches, "CHECK_AFTER_SECONDS", 0.0)
        batched = Batched(within_seconds=LONG_SECONDS)
        numbers(queue, 3)
        with InThread(Worker(queue, batched.handlers, concurrency=1, poll_seconds=0.01)) as work:
            wait_until(lambda: queue.stats().taken == 3)
            queue.cancel("embed-1", force=True)
            queue.put(3, kind="embed", task_id="embed-3")
            wait_until(lambda: queue.stats().success == 3)
            report = work.ended()
        assert batched.calls == [["embed-0", "embed-2", "embed-3"]]
        assert (report.outcomes[Outcome.CANCELLED], report.outcomes[Outcome.SUCCEEDED]) == (1, 3)

    def test_an_outage_of_that_check_loses_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(worker_batches, "CHECK_AFTER_SECONDS", 0.0)
        store = FaultyStore()
        queue = store.queue(order="fifo")
        numbers(queue, 2)
        runs = [TaskRun(claim, 0.0) for claim in queue.claim(2)]
        waiting = WaitingRuns(queue, Batched(batch=2).handlers)
        (call,) = waiting.add(runs)
        assert isinstance(call, BatchRun)
        with store.down():
            assert waiting.lost(call) == set()
        until = [run.claim.lease_until for run in runs]
        assert waiting.lost(call) == set()
        assert [run.claim.lease_until for run in runs] >= until

    def test_their_leases_are_extended_and_they_know_their_time(self) -> None:
        clock = ManualClock()
        queue = Queue.memory(order="fifo", clock=clock, lease_seconds=20, max_age_seconds=1000)
        left = list[float | None]()

        def answer(tasks: list[Task]) -> list[Any]:
            left.extend(task.seconds_left() for task in tasks)
            return [task.payload for task in tasks]

        batched = Batched(answer, batch=3, within_seconds=LONG_SECONDS)
        ids = numbers(queue, 2)
        with InThread(Worker(queue, batched.handlers, concurrency=1, poll_seconds=0.01)) as work:
            wait_until(lambda: work.worker.status().running == 1 and queue.stats().taken == 2)
            clock.advance(15)
            wait_until(lambda: all(lease_of(queue, each) == clock() + 20 for each in ids))
            ids += [queue.put(2, kind="embed", task_id="embed-2").task_id]
            wait_until(lambda: queue.stats().success == 3)
        assert outcomes(queue, ids) == [(TaskStatus.SUCCESS, number, None, 1) for number in range(3)]
        assert (batched.calls, left) == ([ids], [985, 985, 1000])

    def test_the_end_of_the_worker_returns_them_uncounted(self, queue: Queue) -> None:
        batched = Batched(within_seconds=LONG_SECONDS)
        ids = numbers(queue, 2)
        with InThread(Worker(queue, batched.handlers, concurrency=1, poll_seconds=0.01)) as work:
            wait_until(lambda: queue.stats().taken == 2)
            report = work.ended()
        assert batched.calls == []
        assert outcomes(queue, ids) == [(TaskStatus.PENDING, None, None, 0)] * 2
        assert report.outcomes[Outcome.GIVEN_BACK] == 2

    def test_stopping_at_once_returns_running_and_waiting_tasks(self, queue: Queue) -> None:
        started, release = threading.Event(), threading.Event()

        def answer(tasks: list[Task]) -> list[None]:
            started.set()
            assert release.wait(PATIENCE_SECONDS)
            return [None for _ in tasks]

        batched = Batched(answer, within_seconds=LONG_SECONDS)
        ids = numbers(queue, 6)
        work = InThread(Worker(queue, batched.handlers, concurrency=2, poll_seconds=0.01))
        with work:
            assert started.wait(PATIENCE_SECONDS)
            wait_until(lambda: queue.stats().taken == 6)
            work.worker.stop_at_once()
            wait_until(lambda: queue.stats().pending == 6)
            release.set()
            assert sorted(work.ended().given_back) == ids[:4]
        assert {each[3] for each in outcomes(queue, ids)} == {0}

    def test_batches_in_every_slot_do_not_stop_claims_that_fill_them(self, queue: Queue) -> None:
        batched = Batched(within_seconds=LONG_SECONDS, batch_by=lambda task: task.payload % 2)
        with InThread(Worker(queue, batched.handlers, concurrency=2, poll_seconds=0.01)):
            numbers(queue, 2)
            wait_until(lambda: queue.stats().taken == 2)
            for number in range(2, 8):
                queue.put(number, kind="embed", task_id=f"embed-{number}")
            wait_until(lambda: queue.stats().success == 8)
        assert sorted(map(len, batched.calls)) == [4, 4]


class TestAhead:
    """Batches that are claimed before a slot is free for them."""

    @pytest.fixture(autouse=True)
    def _ends_always(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let each run seem to be about to end."""
        monkeypatch.setattr(ExpectedTime, "ahead", lambda *_: (0.0, math.inf))

    def hold(self, queue: Queue, seen: list[list[int]], **options: Any) -> InThread:
        """Return a worker whose first call lasts until its release, and then 8 tasks are put."""

        def answer(tasks: list[Task]) -> list[None]:
            seen.append([task.payload for task in tasks])
            assert len(seen) > 1 or work.release.wait(PATIENCE_SECONDS)
            return [None for _ in tasks]

        batched = Batched(answer, within_seconds=LONG_SECONDS)
        options = {"concurrency": 1, "poll_seconds": 0.01, **options}
        work = InThread(Worker(queue, batched.handlers, **options))
        numbers(queue, 12)
        return work

    def test_the_next_batch_has_its_tasks_when_the_slot_is_free(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(BatchRun, "patience", 10_000)
        seen = list[list[int]]()
        with self.hold(queue, seen) as work:
            wait_until(lambda: queue.stats().taken == 8)
            assert (queue.stats().pending, seen) == (4, [[0, 1, 2, 3]])
            work.release.set()
            wait_until(lambda: queue.stats().success == 12)
        assert seen == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]

    def test_a_run_that_takes_longer_than_expected_does_not_make_claims_smaller(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(BatchRun, "patience", 10_000)
        asked, claim = list[int](), queue.claim

        def noted(limit: int) -> Claims:
            claims = claim(limit)
            asked.extend([limit] if claims else [])
            if len(asked) == 2:  # claimed ahead: from now on the run seems late
                monkeypatch.setattr(ExpectedTime, "ahead", lambda *_: (math.inf, math.inf))
            return claims

        monkeypatch.setattr(queue, "claim", noted)
        with self.hold(queue, []) as work:
            wait_until(lambda: queue.stats().taken == 8)
            work.release.set()
            wait_until(lambda: queue.stats().success == 12)
        assert asked == [4, 4, 4]

    def test_it_is_given_back_if_it_gets_no_slot(self, queue: Queue) -> None:
        seen = list[list[int]]()
        with self.hold(queue, seen) as work:
            wait_until(lambda: work.worker.status().outcomes[Outcome.GIVEN_BACK] >= 4)
            work.release.set()
            wait_until(lambda: queue.stats().success == 12)
        assert sorted(chain.from_iterable(seen)) == [*range(12)]
        assert {each[3] for each in outcomes(queue, [f"embed-{number}" for number in range(12)])} == {1}

    def test_a_limit_allows_none(self, queue: Queue) -> None:
        seen = list[list[int]]()
        with self.hold(queue, seen, rate_per_second=1000.0) as work:
            wait_until(lambda: len(seen) == 1)
            assert work.worker.status().running == 1
            assert queue.stats().taken == 4
            work.release.set()
            wait_until(lambda: queue.stats().success == 12)


class TestLimits:
    def test_a_rate_and_a_limit_count_tasks(self, queue: Queue) -> None:
        ids, batched = numbers(queue, 6), Batched(batch=6, within_seconds=0.01)
        work_off(queue, batched.handlers, concurrency=1, limit=ConcurrencyLimit.fixed(2))
        assert max(map(len, batched.calls)) <= 2
        assert outcomes(queue, ids) == [(TaskStatus.SUCCESS, number, None, 1) for number in range(6)]

    def test_the_limit_of_a_group_counts_tasks(self) -> None:
        groups = GroupRules(GroupRule(max_running=2))
        queue = Queue.memory(order="fifo", groups=groups)
        batched = Batched(batch=6, within_seconds=0.01)
        numbers(queue, 5, group="a")
        work_off(queue, batched.handlers, concurrency=1)
        assert max(map(len, batched.calls)) <= 2
        assert queue.stats().success == 5

    def test_a_time_limit_starts_with_the_run_and_a_hang_costs_one_thread(self) -> None:
        queue, observer, release = Queue.memory(order="fifo", lease_seconds=30), Quiet(), threading.Event()

        def answer(tasks: list[Task]) -> list[None]:
            assert release.wait(PATIENCE_SECONDS)
            return [None for _ in tasks]

        batched = Batched(answer, batch=40, within_seconds=0.5)
        numbers(queue, 40)
        batched.handlers.on("other")(lambda _task: "done")
        worker = Worker(
            queue, batched.handlers, concurrency=1, max_run_seconds=0.2, observer=observer, poll_seconds=0.01
        )
        with InThread(worker) as work:
            wait_until(lambda: len(observer.overruns) == 40)
            assert batched.calls
            queue.put(None, kind="other", task_id="other")
            wait_until(lambda: known(queue, "other").status is TaskStatus.SUCCESS)
            release.set()
            wait_until(lambda: queue.stats().success == 41)
            assert work.worker.status().overran == 40

    def test_a_slow_observer_of_an_overrun_keeps_no_slot(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(executor, "MAX_WAIT_SECONDS", PATIENCE_SECONDS)
        queue, hangs, told = Queue.memory(order="fifo", max_attempts=1), threading.Event(), threading.Event()

        class Slow(Quiet):
            def overran(self, claim: Claim, run_seconds: float) -> None:
                super().overran(claim, run_seconds)
                told.wait(2 * PATIENCE_SECONDS)

        batched = Batched(lambda tasks: [hangs.wait(PATIENCE_SECONDS) for _ in tasks], within_seconds=0.01)
        batched.handlers.on("other")(lambda _task: "done")
        numbers(queue, 1)
        options: Any = {"max_run_seconds": 0.05, "poll_seconds": 0.01, "observer": Slow()}
        with InThread(Worker(queue, batched.handlers, concurrency=1, **options)):
            try:
                wait_until(lambda: options["observer"].overruns)
                queue.put(None, kind="other", task_id="other")
                wait_until(lambda: known(queue, "other").status is TaskStatus.SUCCESS)
            finally:
                told.set()
                hangs.set()

    def test_a_failed_batch_is_one_failure_for_the_breaker_and_one_busy_run(
        self, queue: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(loop, "BUSY_BACKOFF", Backoff(0.01, 0.01))
        failing = Batched(lambda tasks: [KeyError("x") for _ in tasks], batch=20, max_attempts=1)
        numbers(queue, 40)
        slowed = list[bool]()

        class Told(Quiet):
            def slowed(self, _queue: str, *, opened: bool) -> None:
                slowed.append(opened)

        work_off(queue, failing.handlers, concurrency=1, observer=Told())
        assert (slowed, queue.stats().failure) == ([], 40)
        queue.purge(confirm="default")
        numbers(queue, 4)
        busy = Batched(
            lambda tasks: [Busy("full") for _ in tasks] if len(busy.calls) == 1 else [0 for _ in tasks]
        )
        report = work_off(queue, busy.handlers, concurrency=1)
        assert (report.outcomes[Outcome.RELEASED], report.outcomes[Outcome.SUCCEEDED]) == (4, 4)

    def test_the_time_of_a_run_is_split_among_its_tasks(self) -> None:
        clock = ManualClock()
        queue = Queue.memory(order="fifo", clock=clock)

        def answer(tasks: list[Task]) -> list[None]:
            clock.advance(8)
            return [None for _ in tasks]

        numbers(queue, 4, group="a")
        drain(queue, Batched(answer).handlers)
        assert core_of(queue).schedulers.seconds_of("a") == pytest.approx(2.0)


# The error begins with its value.
WRONG_OPTIONS: dict[str, dict[str, Any]] = {
    "batch: must be a whole number from 1 to 1000, got 0": {"batch": 0},
    "batch: must be a whole number from 1 to 1000, got 2.5": {"batch": 2.5},
    "batch: must be a whole number from 1 to 1000, got True": {"batch": True},
    "batch: must be a whole number from 1 to 1000, got 1001": {"batch": 1001},
    "within_seconds: must be a number of seconds, 0 or more": {"batch": 2, "within_seconds": -1},
    "within_seconds: only with batch, the number of tasks of a call": {"within_seconds": 1},
    "batch_by: only with batch, the number of tasks of a call": {"batch_by": "model"},
    "batch_by: must be a function of the task, not async, or the name of a field": {
        "batch": 2,
        "batch_by": 7,
    },
    "batch_by: must be a function of the task, not async, or": {"batch": 2, "batch_by": lambda: 1},
}


def no_parameter() -> list[int]:
    return []


def three(tasks: list[Task], payloads: list[int], more: int) -> list[int]:
    return [more for _ in zip(tasks, payloads, strict=True)]


def one_task(task: Task) -> int:
    return len(task.task_id)


def only_payloads(payloads: list[int]) -> list[int]:
    return payloads


def one_payload(tasks: list[Task], payload: int) -> list[int]:
    return [payload for _ in tasks]


def two_types(tasks: list[Task[str]], payloads: list[int]) -> list[int]:
    return [each for each, _task in zip(payloads, tasks, strict=True)]


WRONG_FUNCTIONS: dict[Callable[..., Any], str] = {
    no_parameter: "must take a list of tasks, or a list of tasks and a list of payloads",
    three: "must take a list of tasks, or a list of tasks and a list of payloads",
    one_task: "with batch, it gets a list of tasks, but one_task takes task: freshq.model.task.Task there",
    only_payloads: "with batch, it gets a list of tasks, but only_payloads takes payloads: list[int] there",
    one_payload: "with batch, it gets a list of payloads, but one_payload takes payload: int there",
    two_types: "has two types of payload",
}


class TestRegistration:
    @pytest.mark.parametrize("message", WRONG_OPTIONS, ids=range(len(WRONG_OPTIONS)))
    def test_wrong_options(self, message: str) -> None:
        with pytest.raises(ValueError, match="^" + re.escape(message)):
            Handlers().on("embed", **WRONG_OPTIONS[message])

    @pytest.mark.parametrize("function", WRONG_FUNCTIONS)
    def test_wrong_functions(self, function: Callable[..., Any]) -> None:
        message = f"handler of 'embed': {WRONG_FUNCTIONS[function]}"
        with pytest.raises(ValueError, match="^" + re.escape(message)):
            Handlers().on("embed", batch=2)(function)

    def test_a_list_of_tasks_without_batch(self) -> None:
        with pytest.raises(ValueError, match="the first parameter gets the task"):
            Handlers().on("embed")(Batched()._embed)  # type: ignore[arg-type]

    def test_an_unknown_field(self) -> None:
        with pytest.raises(
            ValueError, match="batch_by: the payload has no field 'size'; it has model, words"
        ):

            @Handlers().on("embed", batch=2, batch_by="size")
            def embed(tasks: list[Task[Text]]) -> list[int]:
                return [0 for _ in tasks]

    def test_a_function_without_annotations_and_one_of_sequences(self, queue: Queue) -> None:
        handlers = Handlers()
        handlers.on("plain", batch=2)(lambda tasks, payloads: payloads[: len(tasks)])

        @handlers.on("sequence", batch=2)
        def run(tasks: Sequence[Task]) -> list[str]:
            return [task.task_id for task in tasks]

        for kind in ("plain", "sequence"):
            queue.put(3, kind=kind, task_id=kind)
        work_off(queue, handlers)
        assert [known(queue, kind).result for kind in ("plain", "sequence")] == [3, "sequence"]

    def test_at_most_once_is_refused(self, queue: Queue) -> None:
        with refused("at_most_once"):
            Worker(queue, Batched().handlers, at_most_once=True)
        handlers = Handlers()
        worker = Worker(queue, handlers, at_most_once=True)
        handlers.on("embed", batch=2)(lambda tasks: [None for _ in tasks])
        with refused("at_most_once"):
            worker.run()

    def test_a_transaction_is_refused(self, tmp_path: Path) -> None:
        queue = Queue.sql(f"sqlite:///{tmp_path}/tasks.db")
        with refused("transaction"):
            Worker(queue, Batched().handlers, transaction=True)
        queue.close()


class TestTypes:
    def test_results_and_payloads_have_their_types(self, queue: Queue) -> None:
        handlers = Handlers()

        @handlers.on("one", batch=2)
        def one(tasks: list[Task[Text]]) -> list[Text]:
            return [Text(task.payload.model * 2) for task in tasks]

        @handlers.on("two", batch=2)
        async def two(_tasks: list[Task], payloads: list[int]) -> list[int]:
            return [each + 1 for each in payloads]

        first, second = one.put(queue, Text("m")), two.put(queue, 4)
        work_off(queue, handlers)
        assert_type(first.wait(queue), Text)
        assert_type(second.wait(queue), int)
        assert (first.wait(queue), second.wait(queue)) == (Text("mm"), 5)
        assert one.call(Text("n")) == Text("nn")
        assert two.call(1) == 2
        with pytest.raises(ValueError, match=r"payload\.words"):
            one.put(queue, Text("m", "many"))  # type: ignore[arg-type]

    def test_a_result_beside_outcomes_keeps_its_type(self, queue: Queue) -> None:
        handlers = Handlers()

        @handlers.on("one", batch=2)
        def one(tasks: list[Task]) -> list[Text | Retry | Reject]:
            return [Text("m") for _ in tasks]

        receipt = one.put(queue, None)
        work_off(queue, handlers)
        assert receipt.wait(queue) == Text("m")
        with pytest.raises(Reject, match="no"):
            Batched(lambda _tasks: [Reject("no")]).handlers._handlers["embed"].call(1)


class Spans(Telemetry):
    """Keeps how each run ended."""

    def __init__(self) -> None:
        self.ended, self.current = dict[str, str | None](), list[str]()

    def run(self, task: Task) -> RunScope:
        spans = self

        class Span(RunScope):
            def current(self) -> AbstractContextManager[object]:
                spans.current.append(task.task_id)
                return super().current()

            def end(self, error: BaseException | None) -> None:
                spans.ended[task.task_id] = None if error is None else error_text(error)

        return Span(task)


class TestContext:
    @pytest.mark.parametrize("is_async", [False, True], ids=["thread", "coroutine"])
    def test_each_task_has_a_span_and_the_log_names_all(
        self, is_async: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        spans = Spans()
        queue = Queue.memory(order="fifo", telemetry=spans)
        caplog.handler.addFilter(log_filter := TaskLogFilter())
        handlers = Handlers()

        def answer(tasks: list[Task]) -> list[Any]:
            logging.getLogger("app").warning("called")
            for number, task in enumerate(tasks):
                task.progress(number / 4, f"step {number}")
                assert (task.cancelled, (task.seconds_left() or 0) > 0) == (False, True)
            return [1, Reject("no")]

        async def answer_later(tasks: list[Task]) -> list[Any]:
            return answer(tasks)

        handlers.on("embed", batch=2)(answer_later if is_async else answer)
        ids = numbers(queue, 2)
        try:
            work_off(queue, handlers)
        finally:
            caplog.handler.removeFilter(log_filter)
        (record,) = [each for each in caplog.records if each.name == "app"]
        assert (vars(record)["task_id"], vars(record)["kind"]) == ("embed-0, embed-1", "embed")
        assert spans.ended == {ids[0]: None, ids[1]: "no"}
        assert spans.current == [ids[0]]
        assert [known(queue, each).progress_step for each in ids] == ["step 0", "step 1"]

    def test_a_failed_call_ends_each_span_and_is_logged_once_with_its_traceback(
        self, queue: Queue, caplog: pytest.LogCaptureFixture
    ) -> None:
        def answer(_tasks: object) -> None:
            raise OSError("gone")

        numbers(queue, 3)
        work_off(queue, Batched(answer, max_attempts=1).handlers)
        assert len([each for each in caplog.records if each.exc_info]) == 1
        assert len([each for each in caplog.records if "gone" in each.getMessage()]) == 3

    def test_middleware_and_provided_arguments_surround_the_call(self, queue: Queue) -> None:
        surrounded = list[int]()

        def around(call: Callable[[], Any], tasks: list[Task]) -> Any:
            surrounded.append(len(tasks))
            return [each * 2 for each in call()]

        handlers = Handlers(middleware=[around], provide={Text: lambda: Text("provided")})

        @handlers.on("embed", batch=3)
        def embed(tasks: list[Task], payloads: list[int], text: Text) -> list[int]:
            assert text.model == "provided"
            return [each + len(tasks) for each in payloads]

        ids = numbers(queue, 3)
        work_off(queue, handlers)
        assert (surrounded, [known(queue, each).result for each in ids]) == ([3], [6, 8, 10])

    def test_a_successor_follows_each_task(self, queue: Queue) -> None:
        def answer(tasks: list[Task]) -> list[int]:
            if tasks[0].payload == 0:
                queue.put(5, task_id="embed-1", kind="embed", on_conflict="after")
            return [task.payload for task in tasks]

        ids, batched = numbers(queue, 2), Batched(answer, batch=2, within_seconds=0.01)
        work_off(queue, batched.handlers)
        assert batched.calls == [ids, [ids[1]]]
        assert [known(queue, each).result for each in ids] == [0, 5]


class TestDrain:
    def test_it_runs_batches_when_they_are_full_or_nothing_else_is_due(self, queue: Queue) -> None:
        batched = Batched()
        batched.handlers.on("other")(lambda _task: "other")
        ids = numbers(queue, 6)
        queue.put(None, kind="other", task_id="other")
        fates = drain(queue, batched.handlers)
        assert [len(call) for call in batched.calls] == [4, 2]
        assert [fate.task.task_id for fate in fates] == [*ids[:4], "other", *ids[4:]]
        assert {fate.outcome for fate in fates} == {Outcome.SUCCEEDED}

    def test_the_rest_is_released_when_it_ends_early(self, queue: Queue) -> None:
        ids = numbers(queue, 6)
        with pytest.raises(AssertionError, match="after 3 runs"):
            drain(queue, Batched().handlers, max_runs=3)
        busy = Batched(lambda tasks: [Busy("full") for _ in tasks])
        fates = drain(queue, busy.handlers)
        assert (len(fates), {fate.outcome for fate in fates}) == (4, {Outcome.RELEASED})
        assert outcomes(queue, ids) == [(TaskStatus.PENDING, None, None, 0)] * 6

    def test_a_key_that_fails_fails_as_in_a_worker(self, queue: Queue) -> None:
        numbers(queue, 1)
        (fate,) = drain(queue, Batched(batch_by="model").handlers)
        assert "batch_by" in (fate.error or "")


def test_a_worker_of_a_function_batches_too(queue: Queue) -> None:
    """The Lambda function wraps handlers in functions, for traces and for the stack's own task."""
    from freshq.aws.worker_pass import past_synthetic  # noqa: PLC0415 - it loads Powertools

    batched = Batched(within_seconds=0.3)
    ids = numbers(queue, 5)
    queue.put(None, kind="freshq-synthetic", task_id="synthetic")
    queue.put(None, kind="unknown", task_id="unknown")
    report = work_off(queue, past_synthetic(batched.handlers), concurrency=1)
    assert [len(call) for call in batched.calls] == [4, 1]
    assert queue.stats().success == len(ids) + 1
    assert report.outcomes[Outcome.UNKNOWN_KIND] >= 1


def test_claims_are_few(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """One claim and one settlement serve a batch, and one call of the function."""
    counts = Counter[str]()
    settle_many, real_claim = MemoryStore.settle_many, queue.claim

    def settled(*arguments: Any) -> Any:
        counts["settle_many"] += 1
        return settle_many(*arguments)

    def claim(limit: int = 1, **options: Any) -> Any:
        claims = real_claim(limit, **options)
        counts["claim"] += bool(claims)  # how often it looks in vain depends on the time that runs take
        return claims

    monkeypatch.setattr(MemoryStore, "settle_many", settled)
    monkeypatch.setattr(queue, "claim", claim)
    batched = Batched(batch=32, within_seconds=LONG_SECONDS)
    numbers(queue, 320)
    work_off(queue, batched.handlers, concurrency=1)
    assert [len(call) for call in batched.calls] == [32] * 10
    assert counts["settle_many"] == 10
    assert counts["claim"] == 10


def test_calls_are_flattened(queue: Queue) -> None:
    numbers(queue, 3)
    one, two, three = (TaskRun(claim, 0.0) for claim in queue.claim(3))
    assert runs_of([one, BatchRun([two, three], 0.0)]) == [one, two, three]


class EachAlone(CoroutineRunner):
    """A runner of its own that says only which tasks may share a call."""

    batch_rules: Mapping[str, BatchRule] = {"embed": BatchRule(2, 0.01)}

    def __call__(self, task: Task) -> Any:
        return task.payload

    def has_coroutine(self, task: Task) -> bool:
        return bool(task.payload == 2)

    def start(self, task: Task, loop: object = None) -> None:
        del task, loop


def test_a_runner_that_takes_one_task_runs_each_of_a_batch(queue: Queue) -> None:
    ids = numbers(queue, 3)
    work_off(queue, EachAlone())
    assert [known(queue, each).result for each in ids] == [0, 1, 2]
