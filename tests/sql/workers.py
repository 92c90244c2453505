"""Processes that work on a queue until they are killed."""

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from typing import Any, Final

import sqlalchemy as sa

from freshq import LeaseLost, Queue
from freshq.feeds.relay import Relay
from freshq.model.options import QueueOptions
from tests.sql.conftest import write
from tests.support.patience import PATIENCE_SECONDS

LEASE_SECONDS: Final = 1.0
# The processes are forked from one that has everything loaded and no threads.
CONTEXT: Final = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.sql.workers"])
# For the workers only: the process that puts the tasks names no lease.
OPTIONS: Final[QueueOptions] = {"lease_seconds": LEASE_SECONDS, "max_attempts": 1000, "override": True}
# By default such short leases mean short timeouts, at which workers on a busy machine would end.
LIMITS: Final[Any] = {
    "connect_timeout_seconds": PATIENCE_SECONDS,
    "answer_timeout_seconds": PATIENCE_SECONDS,
    "lock_timeout_seconds": PATIENCE_SECONDS,
}


def work_under_leases(url: str) -> None:
    """Claim in batches, and complete each task under its lease."""
    queue = Queue.sql(url, **LIMITS, **OPTIONS)
    while True:
        claims = queue.claim(limit=random.choice([1, 10]))
        for claim in claims:
            try:
                queue.complete(claim, result="by lease")
            except LeaseLost:
                continue  # too slow: another holds it now
        if not claims:
            time.sleep(0.02)


def work_within_limits(url: str) -> None:
    """Hold each claim for a moment, so that the limits of groups matter."""
    queue = Queue.sql(url, **LIMITS, **OPTIONS)
    while True:
        claims = queue.claim(limit=random.choice([1, 4]))
        time.sleep(random.uniform(0.0, 0.02))
        for claim in claims:
            with suppress(LeaseLost):
                queue.complete(claim)


def work_in_transactions(url: str) -> None:
    """Write an effect in the same transaction as the task's end."""
    queue = Queue.sql(url, **LIMITS, **OPTIONS)
    while True:
        with queue.transaction() as work:
            if work is not None:
                write(work.connection, work.task.task_id)
                work.result = "by transaction"
        if work is None:
            time.sleep(0.02)


def relay(source: str, destination_table: str) -> None:
    """Relay from one table to another of the same database."""
    destination = Queue.sql(source, destination_table, **LIMITS)
    from_here = Queue.sql(source, **LIMITS, **OPTIONS)
    Relay(from_here, destination, batch=20, lease_seconds=LEASE_SECONDS, poll_seconds=0.02).run()


class Crew:
    """Processes that are killed at random and replaced."""

    def __init__(self, jobs: list[tuple[Callable[..., None], tuple[Any, ...]]], seed: int) -> None:
        """Start a process for each job."""
        self._jobs = jobs
        self._dice = random.Random(seed)
        self._processes = [self._start(job) for job in jobs]
        self.killed = 0

    @staticmethod
    def _start(job: tuple[Callable[..., None], tuple[Any, ...]]) -> BaseProcess:
        process = CONTEXT.Process(target=job[0], args=job[1], daemon=True)
        process.start()
        return process

    def work_until(self, done: Callable[[], bool], *, kills: int, within_seconds: float) -> bool:
        """Kill processes at random moments, then let the rest work until all tasks are done.

        Returns:
            Whether it was done in time.
        """
        deadline = time.monotonic() + within_seconds
        while not done():
            if time.monotonic() > deadline:
                return False
            if self.killed < kills:
                self._kill_one()
            time.sleep(self._dice.uniform(0.01, 0.12))
        return True

    def _kill_one(self) -> None:
        number = self._dice.randrange(len(self._jobs))
        victim = self._processes[number]
        assert victim.is_alive(), f"a worker exited with status {victim.exitcode}"
        os.kill(victim.pid or 0, signal.SIGKILL)
        victim.join()
        self.killed += 1
        self._processes[number] = self._start(self._jobs[number])

    def end(self) -> None:
        """Kill all that are left."""
        for process in self._processes:
            process.kill()
            process.join()


def rows(engine: sa.Engine, statement: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query."""
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(sa.text(statement))]
