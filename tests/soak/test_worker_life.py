"""Workers on a store that is slow, fails and loses replies, and the fate of every task at the end.

Each round has a seed, which the error names. `make soak` sets FRESHQ_SOAK_SECONDS; without it, this is the
short form of `make test-all`.
"""

import asyncio
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import pytest

from freshq import Busy, Handlers, Queue, Reject, Retry, Task, TaskStatus, Worker
from freshq.errors import FreshqError, Unreachable
from freshq.policy.retry import Backoff
from freshq.stores.base import Guard
from freshq.stores.memory import MemoryStore
from freshq.telemetry import RunReport
from freshq.worker import executor, loop, settle
from tests.support.worker_threads import InThread, wait_until

SOAK_SECONDS: Final = float(os.environ.get("FRESHQ_SOAK_SECONDS", "1.5"))
SEED: Final = 20_270_000
OVER: Final = (TaskStatus.SUCCESS, TaskStatus.FAILURE)
# Tasks whose first run fails may run twice.
RUNS: Final = {"busy": 2, "retry": 2}
# The threads of a worker that may outlive its run.
THREADS: Final = ("freshq-run", "freshq-settle", "freshq-give-back")


class Wild(MemoryStore):
    """A store whose calls may take milliseconds, fail, or succeed and lose their reply."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng, self.failing = rng, 0.0

    def _call(self) -> None:
        if self._rng.random() < 0.2:
            time.sleep(self._rng.random() * 0.01)
        if self._rng.random() < self.failing:
            raise Unreachable("no answer")

    def paused(self, queue: str) -> bool:  # the first call of a claim
        self._call()
        return super().paused(queue)

    def settle_many(self, settled: Sequence[tuple[Task, str]]) -> list[Task | FreshqError]:
        answers = super().settle_many(settled)
        self._call()  # the stored settlement is recognized
        lost = Unreachable("the reply was lost")
        return [lost if self._rng.random() < self.failing else answer for answer in answers]

    def replace(self, task: Task, guard: Guard) -> Task:
        self._call()
        return super().replace(task, guard)


class Play:
    """One round: tasks, a worker that ends in some way, and how often each task ran."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.store = Wild(random.Random(seed + 1))
        self.queue = Queue(self.store, max_attempts=50, backoff=Backoff(0.001, 0.002))
        self.at_most_once = self.rng.random() < 0.25
        self.end = self.rng.choice(["idle", "stop", "stop_at_once"])
        self.runs, self._lock = Counter[str](), threading.Lock()
        self.payloads = {
            f"task-{number}": self.rng.choice(["quick", "quick", "slow", "busy", "retry", "reject"])
            for number in range(self.rng.randrange(1, 50))
        }

    def handlers(self) -> Handlers:
        """Return functions and coroutines that end as the payloads say."""
        handlers = Handlers()

        @handlers.on("thread")
        def in_thread(task: Task) -> None:
            self._began(task)
            if task.payload == "slow":
                time.sleep(0.01)
            self._raise(task)

        @handlers.on("coroutine")
        async def in_coroutine(task: Task) -> None:
            self._began(task)
            if task.payload == "slow":
                await asyncio.sleep(0.01)
            self._raise(task)

        return handlers

    def _began(self, task: Task) -> None:
        with self._lock:
            self.runs[task.task_id] += 1

    def _raise(self, task: Task) -> None:
        is_first = self.runs[task.task_id] == 1
        if task.payload == "busy" and is_first:
            raise Busy
        if task.payload == "retry" and is_first:
            raise Retry("once more", delay_seconds=0)
        if task.payload == "reject":
            raise Reject("never")

    def report(self) -> RunReport:
        """Work until the end."""
        kinds = ("thread", "thread", "coroutine")
        self.queue.put_many(
            [
                {"payload": payload, "task_id": task_id, "kind": self.rng.choice(kinds)}
                for task_id, payload in self.payloads.items()
            ]
        )
        options: dict[str, Any] = {"poll_seconds": 0.005, "concurrency": self.rng.choice([1, 2, 5, 8, 32])}
        idle_exit_seconds = 0.1 if self.end == "idle" else None
        self.store.failing = self.rng.choice([0.0, 0.05, 0.2])
        worker = Worker(
            self.queue,
            self.handlers(),
            at_most_once=self.at_most_once,
            idle_exit_seconds=idle_exit_seconds,
            **options,
        )
        with InThread(worker) as work:
            if self.end == "idle":
                wait_until(lambda: work.report is not None)
            else:
                time.sleep(self.rng.random() * 0.05)
                getattr(worker, self.end)()
            report = work.ended()
        self.store.failing = 0.0
        wait_until(lambda: not [each for each in threading.enumerate() if each.name in THREADS])
        return report

    def problems(self, report: RunReport) -> list[str]:
        """Return what should not be."""
        tasks = {task_id: self.queue.get(task_id) for task_id in self.payloads}
        status = {task_id: task.status if task else None for task_id, task in tasks.items()}
        allowed = {each: 1 if self.at_most_once else RUNS.get(self.payloads[each], 1) for each in tasks}
        found = [f"{each} ran {self.runs[each]} times" for each in tasks if self.runs[each] > allowed[each]]
        found += [
            f"{each} succeeded and did not run"
            for each in tasks
            if status[each] is TaskStatus.SUCCESS and not self.runs[each] and not self.at_most_once
        ]
        found += [
            f"{each} was given back and is {status[each]}"
            for each in report.given_back
            if status[each] in OVER
        ]
        if self.end == "idle":
            found += [f"{each} is {status[each]}" for each in tasks if status[each] not in OVER]
        if self.end != "stop_at_once":
            found += [f"{each} is still held" for each in tasks if status[each] is TaskStatus.TAKEN]
            found += [f"{each} is unfinished" for each in report.unfinished]
        ended = sum(report.outcomes.values())
        if not ended <= report.claimed <= ended + len(report.unfinished) + len(report.given_back):
            found.append(f"of {report.claimed} claims, {ended} ended")
        return found


def test_every_task_is_done_once_or_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle, "SETTLE_BACKOFF", Backoff(0.005, 0.02))
    monkeypatch.setattr(loop, "CLAIM_BACKOFF", Backoff(0.005, 0.02))
    monkeypatch.setattr(loop, "BUSY_BACKOFF", Backoff(0.002, 0.005))
    monkeypatch.setattr(executor, "SLOW_CALL_SECONDS", 0.01)
    end, seed = time.monotonic() + SOAK_SECONDS, SEED
    while seed == SEED or time.monotonic() < end:
        play = Play(seed)
        report = play.report()
        assert play.problems(report) == [], f"seed {seed}, {play.end}: {report}"
        seed += 1
