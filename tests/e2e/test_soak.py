"""The deployed application under load for minutes, while its workers are killed; then the ledger is exact."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import pytest

from freshq import Task, TaskStatus
from freshq.errors import RefusedError
from tests.e2e.conftest import Deployment, wait_until

SOAK_SECONDS: Final = float(os.environ.get("FRESHQ_SOAK_SECONDS", "120"))
KILL_EVERY_SECONDS: Final = 20.0
# In an account the schedule sweeps every minute, as it does here besides.
SWEEP_EVERY_SECONDS: Final = 10.0
LOOK_SECONDS: Final = 1.0
LEASE_SECONDS: Final = 12.0
# The max age of tasks that cannot be served in time while workers are dead.
SHORT_LIFE_SECONDS: Final = 5.0
BACKLOG: Final = 30
ENOUGH_HOPS: Final = 30 if SOAK_SECONDS >= 600 else 8
# Between a kill and the time that the journal has for it.
TOLERANCE_SECONDS: Final = 1.0


@dataclass
class Play:
    """The load and the killing, and what was put and done."""

    application: Deployment
    created: set[str] = field(default_factory=set)
    cancelled: set[str] = field(default_factory=set)
    killed_at: list[float] = field(default_factory=list)

    def run(self, seconds: float) -> None:
        """Put, cancel, sweep and kill for some time."""
        ended = time.monotonic() + seconds
        next_kill = time.monotonic() + KILL_EVERY_SECONDS
        next_sweep = time.monotonic() + SWEEP_EVERY_SECONDS
        while time.monotonic() < ended:
            self.load()
            if time.monotonic() >= next_kill:
                next_kill += KILL_EVERY_SECONDS
                self.kill()
            if time.monotonic() >= next_sweep:
                next_sweep += SWEEP_EVERY_SECONDS
                self.application.invoke("Sweep", {})
            time.sleep(LOOK_SECONDS)

    def load(self) -> None:
        """Keep tasks waiting: most with a long life, some with a short one, one cancelled."""
        queue = self.application.queue
        missing = BACKLOG - queue.stats(approximate=True).pending
        lives = (
            {"max_age_seconds": SHORT_LIFE_SECONDS} if number % 5 == 0 else {} for number in range(missing)
        )
        tasks = [{"payload": {"reject": number % 7 == 0}, **life} for number, life in enumerate(lives)]
        receipts = queue.put_many(tasks) if tasks else []
        self.created.update(receipt.task_id for receipt in receipts)
        if receipts:
            self.cancel(receipts[0].task_id)

    def cancel(self, task_id: str) -> None:
        try:
            self.application.queue.cancel(task_id)
        except RefusedError:
            return  # it was claimed in between
        self.cancelled.add(task_id)

    def kill(self) -> None:
        """Kill the processes that run workers, which are the emulator's own children."""
        for pid in self.application.processes("ProcessTasks"):
            os.kill(pid, signal.SIGKILL)
            self.killed_at.append(time.time())

    def is_over(self) -> bool:
        """Sweep; return whether no task waits or is held."""
        self.application.invoke("Sweep", {})
        stats = self.application.queue.stats()
        return stats.pending + stats.delayed + stats.taken == 0

    def unexplained(self, versions: Sequence[Task]) -> int:
        """Return how many claims of a task follow one that no run gave back and no kill ended."""
        unexplained = 0
        taken: Task | None = None
        for version in versions:
            if version.status is TaskStatus.TAKEN:
                taken = taken if taken and taken.lease_token == version.lease_token else version
            elif version.status is TaskStatus.PENDING and taken is not None:
                given_back = version.attempts < taken.attempts
                began, ended = taken.updated - TOLERANCE_SECONDS, version.updated + TOLERANCE_SECONDS
                killed = any(began <= moment <= ended for moment in self.killed_at)
                unexplained += not (given_back or killed)
                taken = None
        return unexplained


@pytest.mark.soak
@pytest.mark.timeout(SOAK_SECONDS + 600)
def test_the_ledger_is_exact_after_many_hops_and_deaths(deployed_alone: Callable[..., Deployment]) -> None:
    application = deployed_alone(
        pass_seconds=1,
        settle_seconds=2,
        concurrency=2,
        demo_capacity=2,
        demo_task_seconds=0.3,
        lease_seconds=LEASE_SECONDS,
        max_age_seconds=900,
        max_attempts=10,
        max_hops=1000,
    )
    play = Play(application)
    play.run(SOAK_SECONDS)
    wait_until(play.is_over, patience_seconds=240)

    stats = application.queue.stats()
    ends = (stats.success, stats.failure, stats.cancelled, stats.shed)
    assert sum(ends) == len(play.created), (ends, len(play.created))
    assert stats.cancelled == len(play.cancelled)
    assert all(ends), ends
    versions = application.versions()
    assert set(versions) == play.created
    assert set(application.runs().values()) == {1}
    assert [task_id for task_id, each in versions.items() if play.unexplained(each)] == []
    passes = [line for line in application.log("ProcessTasks") if line["message"] == "pass ended"]
    hops = sum(line["report"]["tail_call"] for line in passes)
    assert hops >= ENOUGH_HOPS, (hops, len(passes))
    assert len(play.killed_at) >= SOAK_SECONDS / KILL_EVERY_SECONDS - 2, play.killed_at
    facts = {"created": len(play.created), "ends": ends, "tail calls": hops, "killed": len(play.killed_at)}
    print(facts)  # for people who run it by hand, with -s
