"""Slot processes are killed at any point of their runs: no task is lost, and none is settled twice."""

import logging
import os
import random
import signal
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]  # its stubs are no package of ours
import pytest

from freshq import Claim, Queue, TaskStatus, Worker
from freshq.policy.retry import Backoff
from freshq.telemetry import Outcome
from tests.support import isolated
from tests.support.worker_threads import Quiet

# Tasks are put until this many runs were killed: on a fast machine most kills hit a slot between two runs.
TASKS = 60
KILLED_RUNS = 4
SEED = 20_261_129


class Killer(threading.Thread):
    """Kills a slot process, and now and then the template, after pauses of milliseconds."""

    def __init__(self) -> None:
        super().__init__()
        self.random = random.Random(SEED)
        self.over = threading.Event()
        self.kills = Counter[str]()

    def run(self) -> None:
        while not self.over.wait(self.random.uniform(0.002, 0.06)):
            with suppress(psutil.NoSuchProcess):
                for template in psutil.Process().children():
                    slots = template.children()
                    if "slot_process" not in " ".join(template.cmdline()) or not slots:
                        continue
                    is_template = self.random.random() < 0.02
                    (template if is_template else self.random.choice(slots)).kill()
                    self.kills["template" if is_template else "slot"] += 1


class Ends(Quiet):
    """Counts the settlements of each task, and notes its last report."""

    def __init__(self) -> None:
        super().__init__()
        self.done = Counter[str]()

    def settled(self, claim: Claim, outcome: Outcome, run_seconds: float, error: str | None) -> None:
        super().settled(claim, outcome, run_seconds, error)
        self.done[claim.task.task_id] += outcome is Outcome.SUCCEEDED

    def killed_runs(self) -> int:
        return sum(signal.SIGKILL.name in (error or "") for _id, _outcome, error in self.settlements)


@pytest.mark.timeout(300)
def test_no_task_is_lost_or_settled_twice(tmp_path: Path) -> None:
    files = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - their number
    backoff = Backoff(base_seconds=0.01, cap_seconds=0.05)
    queue = Queue.sql(f"sqlite:///{tmp_path}/tasks.db", max_attempts=None, backoff=backoff)
    queue.create_table()
    logging.getLogger("isolated.soak").propagate = False
    try:
        numbers, ends, killer = list[int](), Ends(), Killer()

        def put() -> None:
            more = range(len(numbers), len(numbers) + TASKS)
            numbers.extend(more)
            queue.put_many(
                {"payload": ["busy_with_pipe", each % 4 * 100], "task_id": str(each)} for each in more
            )

        def over() -> bool:
            if queue.stats().success < len(numbers):
                return False
            if ends.killed_runs() >= KILLED_RUNS:
                return True
            put()
            return False

        put()
        worker = Worker(queue, isolated.run, isolate=True, concurrency=4, poll_seconds=0.02, observer=ends)
        killer.start()
        report = worker.run(until=over)
        killer.over.set()
        killer.join()
    finally:
        logging.getLogger("isolated.soak").propagate = True
    count = len(numbers)
    tasks = {task.task_id: task for task in queue.list(limit=count + 1)}
    queue.close()
    assert killer.kills["slot"] > 0
    assert all(task.status is TaskStatus.SUCCESS for task in tasks.values())
    assert len(tasks) == len(ends.done) == count
    assert set(ends.done.values()) == {1}
    assert [len(tasks[str(number)].result) for number in range(8)] == [n % 4 * 102_400 for n in range(8)]
    counts = report.outcomes
    assert (counts[Outcome.SUCCEEDED], counts[Outcome.LEASE_LOST], counts[Outcome.UNSETTLED]) == (count, 0, 0)
    assert sum(task.attempts for task in tasks.values()) == count + counts[Outcome.RETRIED]
    deadline = time.monotonic() + 60
    while len(os.listdir("/proc/self/fd")) > files:  # noqa: PTH208 - their number
        assert time.monotonic() < deadline
        time.sleep(0.05)
