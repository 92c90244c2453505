"""A failing task is tried until its deadline, or, without one, longer than outages last."""

from __future__ import annotations

from typing import Any

import pytest

from freshq import Backoff, Handlers, Queue, Task, TaskStatus
from freshq.policy.retry import PatientBackoff
from freshq.testing import drain
from tests.conftest import StoreUnderTest
from tests.support.readings import known

DAY_SECONDS = 86_400.0


def fail(_task: Task) -> None:
    raise OSError("the service does not answer")


def fail_until_over(store: StoreUnderTest, queue: Queue, task_id: str, most: int = 50) -> list[float]:
    """Fail every attempt of a task when it is due; return the delays before the attempts."""
    delays: list[float] = []
    for _ in range(most):
        drain(queue, fail)
        task = known(queue, task_id)
        if task.status is not TaskStatus.PENDING or task.not_before is None:
            break
        delays.append(task.not_before - store.clock.now)
        store.clock.now = task.not_before + 1  # a store may round up to whole seconds
    return delays


def test_without_a_max_age_five_attempts_outlast_a_day(store: StoreUnderTest) -> None:
    queue = store.queue(max_age_seconds=None, order="fifo")
    queue.put("work", task_id="a")
    delays = fail_until_over(store, queue, "a")
    assert [
        round(delay // wanted) for delay, wanted in zip(delays, (15, 240, 3600, 86_400), strict=True)
    ] == [1] * 4
    assert sum(delays) > DAY_SECONDS
    assert known(queue, "a").status is TaskStatus.FAILURE


@pytest.mark.parametrize(
    ("options", "put"),
    [({}, {}), ({"max_age_seconds": None}, {"max_age_seconds": 3600}), ({"backoff": Backoff()}, {})],
)
def test_a_deadline_is_a_budget_of_its_own(
    store: StoreUnderTest, options: dict[str, Any], put: dict[str, Any]
) -> None:
    queue = store.queue(**options)
    queue.put("work", task_id="a", **put)
    delays = fail_until_over(store, queue, "a")
    assert len(delays) <= 4
    assert all(delay <= 2**number for number, delay in enumerate(delays))


def test_without_a_limit_a_task_is_tried_until_it_succeeds(store: StoreUnderTest) -> None:
    queue = store.queue(max_attempts=None, max_age_seconds=None)
    queue.put("work", task_id="a")
    delays = fail_until_over(store, queue, "a", most=30)
    assert len(delays) == 30
    assert max(delays) <= 3600 * 1.25
    (fate,) = drain(queue, lambda _task: "done")
    assert (fate.task.status, fate.task.attempts) == (TaskStatus.SUCCESS, 31)


def test_without_a_limit_an_expired_lease_makes_no_dead_letter(store: StoreUnderTest) -> None:
    queue = store.queue(max_attempts=None)
    queue.put("work", task_id="a")
    for _ in range(8):
        assert queue.claim(lease_seconds=5)
        store.clock.advance(6)
        queue.admin.recover()
    assert known(queue, "a").status is TaskStatus.PENDING


def test_without_a_limit_a_task_still_goes_stale(store: StoreUnderTest) -> None:
    queue = store.queue(max_attempts=None, max_age_seconds=600)
    queue.put("work", task_id="a")
    fail_until_over(store, queue, "a")
    store.clock.advance(600)
    assert known(queue, "a").status_at(queue.admin.now()) is TaskStatus.SHED


def test_no_limit_is_stored_with_the_queue(store: StoreUnderTest) -> None:
    store.queue().configure(max_attempts=None, backoff="auto")
    followed = store.queue().configure()
    assert (followed.max_attempts, followed.backoff) == (None, "auto")


@pytest.mark.parametrize(("limit", "runs"), [(1, 1), (2, 2), (5, 5), (None, 20), ("queue", 3)])
@pytest.mark.parametrize("is_async", [False, True])
def test_the_limit_of_a_handler_replaces_the_limit_of_its_queue(
    store: StoreUnderTest, limit: Any, runs: int, is_async: bool
) -> None:
    queue, handlers = store.queue(max_attempts=3), Handlers()

    def mail(_task: Task) -> None:
        raise OSError("no answer")

    async def mail_later(task: Task) -> None:
        mail(task)

    handlers.on("mail", max_attempts=limit, backoff=Backoff(0.001, 0.001))(mail_later if is_async else mail)
    queue.put(1, task_id="a", kind="mail")
    for _ in range(20):
        drain(queue, handlers)
        store.clock.advance(1)
    task = known(queue, "a")
    assert task.attempts == runs
    assert task.status is (TaskStatus.FAILURE if limit is not None else TaskStatus.PENDING)
    last = task.attempt_log[-1]
    assert last.outcome == ("failed" if limit is not None else "retried")
    assert "in mail" in (last.traceback or "")
    if isinstance(limit, int):
        assert task.error == f"OSError: no answer; that was attempt {limit} of {limit}"


@pytest.mark.parametrize("uniform", [0.0, 0.999])
def test_jitter_never_shortens_a_patient_delay(uniform: float) -> None:
    bounds = (15, 240, 3600, 3600, 3600, 86_400)
    delays = [PatientBackoff(7).delay_seconds(attempts, uniform) for attempts in range(1, 7)]
    assert all(bound <= delay <= 1.25 * bound for bound, delay in zip(bounds, delays, strict=True))
