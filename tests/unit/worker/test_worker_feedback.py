"""The feedback of each run to the limits that workers share: the concurrency limit and the retry budget."""

from collections.abc import Callable
from typing import Any

import pytest

from freshq import Busy, Queue, Reject, Retry, Task
from freshq.policy.limits import ConcurrencyLimit, RetryBudget
from freshq.policy.retry import Backoff
from freshq.queue.shared.limits import SharedRetries, SharedSlots
from tests.conftest import Clock
from tests.support.worker_threads import Ageing, raising, work_off

OK, PUSHED_BACK = "ok", "pushed back"


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the feedback to the concurrency limit so far."""
    told: list[str] = []
    monkeypatch.setattr(SharedSlots, "succeeded", lambda _slots: told.append(OK))
    monkeypatch.setattr(SharedSlots, "pushed_back", lambda _slots: told.append(PUSHED_BACK))
    return told


def work_one(runner: Callable[[Task], Any], **options: Any) -> None:
    queue = Queue.memory(backoff=Backoff(base_seconds=60, cap_seconds=60))
    queue.put("work")
    # A released task is claimed again.
    ended: list[bool] = []

    def once(task: Task) -> Any:
        if ended:
            raise Reject("it ran before")  # says nothing of the downstream
        ended.append(True)
        return runner(task)

    work_off(queue, once, limit=ConcurrencyLimit(1, 4), **options)


@pytest.mark.parametrize(
    ("runner", "feedback", "acknowledged"),
    [
        (lambda _task: "done", [OK], [OK]),
        (lambda _task: object(), [OK], [OK]),  # the call worked; only its result cannot be stored
        (raising(Busy("full")), [PUSHED_BACK], [PUSHED_BACK]),
        (raising(Retry("later", delay_seconds=60)), [PUSHED_BACK], [PUSHED_BACK]),
        (raising(OSError("down")), [PUSHED_BACK], [PUSHED_BACK]),
        (raising(Reject("never")), [], [OK]),
    ],
)
def test_a_run_tells_the_concurrency_limit_how_the_downstream_was(
    told: list[str], runner: Callable[[Task], Any], feedback: list[str], acknowledged: list[str]
) -> None:
    work_one(runner)
    assert told == feedback
    told.clear()
    work_one(runner, at_most_once=True)
    assert told == acknowledged


def test_a_task_that_went_stale_before_its_run_tells_nothing(told: list[str], clock: Clock) -> None:
    queue = Queue.memory(clock=clock, max_age_seconds=10)
    queue.put("work")
    work_off(queue, lambda _task: "done", limit=ConcurrencyLimit(1, 4), observer=Ageing(clock))
    assert told == []


def test_only_first_attempts_credit_the_retry_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    credited: list[bool] = []
    monkeypatch.setattr(SharedRetries, "first_attempt", lambda _retries: credited.append(True))
    queue = Queue.memory(backoff=Backoff(0.001, 0.001), max_attempts=3)
    queue.put_many([{"payload": number} for number in range(2)])
    work_off(queue, raising(OSError("down")), retry_budget=RetryBudget(reserve=10), idle_exit_seconds=0.3)
    assert [task.attempts for task in queue.list(status="FAILURE")] == [3, 3]
    assert len(credited) == 2
