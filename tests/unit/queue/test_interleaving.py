"""Workers and a sweep in many orders on the store in memory, and stores without one of its guards."""

import os
from types import SimpleNamespace

import pytest
from typing_extensions import override

from freshq.model.task import Task
from freshq.stores.base import Conflict, Guard
from tests.support.interleaving import Audited, explore

# `make soak` runs more.
SCHEDULES = int(os.environ.get("FRESHQ_SCHEDULES", "500"))
MOST_SCHEDULES = 3_000


@pytest.fixture(autouse=True)
def _no_second_look_at_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stalls for seconds must not add a call to a schedule."""
    monkeypatch.setattr("freshq.queue.core.time", SimpleNamespace(monotonic=lambda: 0.0))


class NoFence(Audited):
    """Stores a new version whoever holds the task."""

    @override
    def replace(self, task: Task, guard: Guard) -> Task:
        return super().replace(task, Guard(guard.status, request_token=guard.request_token))


class FenceByAttempt(Audited):
    """Compares the attempts of a task instead of the token."""

    @override
    def replace(self, task: Task, guard: Guard) -> Task:
        current = self.get(task.task_id)
        # A release takes its own attempt back.
        if guard.lease_token is not None and current and current.attempts - task.attempts not in (0, 1):
            raise Conflict(current)
        return super().replace(task, Guard(guard.status, request_token=guard.request_token))


class NoGuard(Audited):
    """Stores a new version whatever happened to the task."""

    @override
    def replace(self, task: Task, guard: Guard) -> Task:
        current = self.get(task.task_id)
        return super().replace(task, guard if current is None else Guard(current.status))


class StatusOnlyAfterTheLease(Audited):
    """Lets whoever had a task end it when nobody holds it any more."""

    @override
    def replace(self, task: Task, guard: Guard) -> Task:
        current = self.get(task.task_id)
        if current is not None and current.lease_token is None and guard.lease_token is not None:
            return super().replace(task, Guard(current.status))
        return super().replace(task, guard)


def test_no_order_of_calls_breaks_the_store() -> None:
    assert explore(Audited, range(SCHEDULES)) is None


def test_a_seed_repeats_its_schedule() -> None:
    found = explore(NoGuard, range(MOST_SCHEDULES))
    assert found is not None
    seed, problems = found
    again = explore(NoGuard, range(seed, seed + 1))
    assert again == (seed, problems)


@pytest.mark.parametrize("store", [NoFence, FenceByAttempt, NoGuard, StatusOnlyAfterTheLease])
def test_a_lost_guard_is_found(store: type[Audited]) -> None:
    assert explore(store, range(MOST_SCHEDULES)) is not None
