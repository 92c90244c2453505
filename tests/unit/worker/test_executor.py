"""The executor of a worker reports the slots freed by a burst once, even while a call settles."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from freshq.policy.limits import MAX_WAIT_SECONDS
from freshq.worker import executor
from freshq.worker.executor import Executor
from tests.support.patience import PATIENCE_SECONDS


class Hands:
    """The hands of a clock."""

    def __init__(self) -> None:
        self.seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds


class Watched:
    """An executor whose runs end immediately, and its actions in order."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.settling = threading.Event()
        self.may_settle = threading.Event()
        self.freed = threading.Semaphore(0)
        self.settled = threading.Semaphore(0)
        self.before_run: Callable[[], None] = lambda: None
        self.executor = Executor(self.run, self.settle, self.on_freed)

    def run(self, run: Any) -> None:
        self.before_run()
        self.happened.append("run")
        self.executor.settle(run)

    def settle(self, ended: list[Any]) -> None:
        self.happened.append(f"settle {len(ended)}")
        self.settling.set()
        assert self.may_settle.wait(PATIENCE_SECONDS)
        for _ in ended:
            self.settled.release()

    def on_freed(self) -> None:
        self.happened.append("freed")
        self.freed.release()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(executor, "SLOW_CALL_SECONDS", PATIENCE_SECONDS)
    watched = Watched()
    yield watched
    watched.may_settle.set()
    watched.executor.close()


def run_of_task() -> Any:
    return SimpleNamespace(patience=1, has_slot=False)


def test_freed_slots_are_reported_before_the_runs_are_settled(watched: Watched) -> None:
    watched.executor.start([run_of_task()])
    watched.executor.wake()
    assert watched.settling.wait(PATIENCE_SECONDS)
    assert watched.happened == ["run", "freed", "settle 1"]


def test_a_slot_that_is_freed_while_a_call_settles_is_reported_at_once(watched: Watched) -> None:
    watched.executor.start([run_of_task()])
    watched.executor.wake()
    assert watched.settling.wait(PATIENCE_SECONDS)
    assert watched.freed.acquire(timeout=PATIENCE_SECONDS)
    watched.executor.start([run_of_task()])
    watched.executor.wake()
    assert watched.freed.acquire(timeout=PATIENCE_SECONDS)
    assert watched.happened == ["run", "freed", "settle 1", "run", "freed"]


def test_every_run_of_a_burst_is_settled(watched: Watched) -> None:
    watched.may_settle.set()
    watched.executor.start([run_of_task() for _ in range(200)])
    watched.executor.wake()
    for _ in range(200):
        assert watched.settled.acquire(timeout=PATIENCE_SECONDS)
    assert watched.happened.count("run") == 200
    assert watched.freed.acquire(timeout=PATIENCE_SECONDS)


def test_coroutines_that_end_while_others_are_handled_are_settled_with_them(watched: Watched) -> None:
    is_first, may_go_on = threading.Event(), threading.Event()

    def hold() -> None:
        is_first.set()
        assert may_go_on.wait(PATIENCE_SECONDS)

    watched.before_run = hold
    for _ in range(5):
        watched.executor.end(run_of_task())
        assert is_first.wait(PATIENCE_SECONDS)
    watched.may_settle.set()
    may_go_on.set()
    for _ in range(5):
        assert watched.settled.acquire(timeout=PATIENCE_SECONDS)
    settled = [int(each.partition(" ")[2]) for each in watched.happened if each.startswith("settle")]
    assert (watched.happened.count("run"), sum(settled)) == (5, 5)


def test_one_thread_at_a_time_handles_ended_coroutines(watched: Watched) -> None:
    busy, handled = threading.Lock(), threading.Semaphore(0)

    def handle() -> None:
        assert busy.acquire(blocking=False)
        busy.release()
        handled.release()

    watched.before_run = handle
    watched.may_settle.set()
    for _ in range(200):
        watched.executor.end(run_of_task())
    for _ in range(200):
        assert handled.acquire(timeout=PATIENCE_SECONDS)


def test_a_coroutine_that_ends_when_no_thread_is_left_is_handled_by_a_later_wake(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        msg = "can't start new thread"
        raise RuntimeError(msg)

    watched.may_settle.set()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        watched.executor.end(run_of_task())
        with pytest.raises(RuntimeError, match="new thread"):
            watched.executor.wake()
    watched.executor.wake()
    assert watched.settled.acquire(timeout=PATIENCE_SECONDS)


def test_a_coroutine_that_ends_after_the_executor_was_closed_is_handled(watched: Watched) -> None:
    watched.may_settle.set()
    watched.executor.close()
    watched.executor.end(run_of_task())
    assert watched.settled.acquire(timeout=PATIENCE_SECONDS)


def test_a_wake_without_work_starts_no_thread(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[threading.Thread] = []
    monkeypatch.setattr(threading.Thread, "start", started.append)
    watched.executor.wake()
    assert started == []


@pytest.fixture
def hands(monkeypatch: pytest.MonkeyPatch) -> Hands:
    """A clock for an executor that starts no thread."""
    hands = Hands()
    monkeypatch.setattr(executor, "time", hands)
    return hands


def executor_of(slots: int | None) -> Executor:
    return Executor(lambda _run: None, lambda _ended: None, lambda: None, slots)


def begin_next(its_executor: Executor) -> bool:
    """Take the next work of an executor, like one of its threads; return whether it runs a task."""
    return its_executor._next_work()[1]


def test_no_more_tasks_run_than_there_are_slots_until_one_is_freed(hands: Hands) -> None:
    executor_of_two, runs = executor_of(2), [run_of_task() for _ in range(4)]
    executor_of_two.start(runs)
    assert [begin_next(executor_of_two) for _ in range(3)] == [True, True, False]
    assert [run.has_slot for run in runs] == [True, True, False, False]
    executor_of_two.free([runs[0], runs[0], runs[3]])  # once, and only tasks that have one
    assert [begin_next(executor_of_two) for _ in range(2)] == [True, False]
    assert (runs[2].has_slot, runs[0].has_slot, hands.seconds) == (True, False, 100.0)


def test_without_slots_every_claimed_task_runs(hands: Hands) -> None:
    its_executor = executor_of(None)
    its_executor.start(run_of_task() for _ in range(300))
    assert all(begin_next(its_executor) for _ in range(300))
    hands.seconds += 60
    assert (its_executor.take_waiting(at_once=True), its_executor.prefetched()) == ([], 0)


def test_tasks_that_wait_for_a_slot_too_long_are_taken_back(hands: Hands) -> None:
    its_executor, runs = executor_of(1), [run_of_task() for _ in range(4)]
    its_executor.start(runs[:2])
    assert its_executor.patience_seconds() == pytest.approx(MAX_WAIT_SECONDS)  # the first has a slot
    hands.seconds += 0.004
    its_executor.start(runs[2:])
    assert begin_next(its_executor)
    hands.seconds += 0.005
    assert its_executor.take_waiting(at_once=False) == []
    assert its_executor.patience_seconds() == pytest.approx(0.001)
    hands.seconds += 0.002
    assert its_executor.take_waiting(at_once=False) == [runs[1]]
    assert its_executor.take_waiting(at_once=True) == [runs[2], runs[3]]
    assert its_executor.patience_seconds() == float("inf")


def test_a_process_that_stood_still_lets_tasks_wait_again(hands: Hands) -> None:
    its_executor, runs = executor_of(1), [run_of_task() for _ in range(2)]
    its_executor.start(runs)
    assert begin_next(its_executor)
    hands.seconds += 5
    its_executor.wait_again()
    assert its_executor.take_waiting(at_once=False) == []
    assert its_executor.patience_seconds() == pytest.approx(MAX_WAIT_SECONDS)


def test_a_task_that_has_a_free_slot_is_not_taken_back(hands: Hands) -> None:
    its_executor, runs = executor_of(2), [run_of_task() for _ in range(3)]
    its_executor.start(runs)
    hands.seconds += 1
    assert its_executor.take_waiting(at_once=False) == [runs[2]]
    assert its_executor.take_waiting(at_once=True) == []
    assert [begin_next(its_executor) for _ in range(3)] == [True, True, False]


def test_short_runs_let_it_prefetch_until_tasks_had_to_be_taken_back(hands: Hands) -> None:
    its_executor, runs = executor_of(1), [run_of_task() for _ in range(3)]
    its_executor.start(runs)
    assert its_executor.prefetched() == 0
    assert begin_next(its_executor)
    hands.seconds += 2**-10
    its_executor.free(runs[:1])
    assert begin_next(its_executor)
    assert its_executor.prefetched() == 5
    hands.seconds += 0.02
    assert its_executor.prefetched() == 0
    assert its_executor.take_waiting(at_once=False) == [runs[2]]
    its_executor.start([runs[0]])
    its_executor.free([runs[1]])
    assert begin_next(its_executor)
    assert its_executor.prefetched() == 0
