"""Handlers that take a batch, on every store: each task is settled once, with its own outcome."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from freshq import Handlers, Queue, Reject, Retry, Task, TaskStatus
from freshq.testing import drain
from tests.support.patience import PATIENCE_SECONDS
from tests.support.readings import known
from tests.support.worker_threads import work_off


def answers(tasks: list[Task[int]]) -> list[Any]:
    """Reject every fifth task, try every third one again once, and double the others."""
    given: list[Any] = []
    for task in tasks:
        if task.payload % 5 == 4:
            given.append(Reject("fifth"))
        elif task.payload % 3 == 2 and task.attempts == 1:
            given.append(Retry("third", delay_seconds=0))
        else:
            given.append(2 * task.payload)
    return given


@pytest.mark.parametrize("run", [work_off, drain], ids=["worker", "drain"])
def test_each_task_ends_as_its_element_says(queue: Queue, run: Any) -> None:
    handlers, sizes = Handlers(), list[int]()

    @handlers.on("embed", batch=8)
    def embed(tasks: list[Task[int]]) -> list[Any]:
        sizes.append(len(tasks))
        return answers(tasks)

    receipts = embed.put_many(queue, range(20))
    run(queue, handlers)
    for number, receipt in enumerate(receipts):
        task = known(queue, receipt.task_id)
        if number % 5 == 4:
            assert (task.status, task.error, task.attempts) == (TaskStatus.FAILURE, "fifth", 1)
        else:
            attempts = 2 if number % 3 == 2 else 1
            assert (task.status, task.result, task.attempts) == (TaskStatus.SUCCESS, 2 * number, attempts)
    retried = sum(number % 3 == 2 and number % 5 != 4 for number in range(20))
    assert (sum(sizes), max(sizes)) == (20 + retried, 8)
    stats = queue.stats()
    assert (stats.success, stats.failure, stats.pending + stats.delayed + stats.taken) == (16, 4, 0)


def test_a_task_that_is_cancelled_in_a_batch_stays_cancelled(queue: Queue) -> None:
    handlers = Handlers()

    @handlers.on("embed", batch=4)
    def embed(tasks: list[Task[int]]) -> list[int]:
        queue.cancel(tasks[0].task_id, force=True)
        return [task.payload for task in tasks]

    receipts = embed.put_many(queue, range(4))
    drain(queue, handlers)
    found = Counter(known(queue, receipt.task_id).status for receipt in receipts)
    assert found == {TaskStatus.CANCELLED: 1, TaskStatus.SUCCESS: 3}


# Prints the tasks of each call, and is killed while the first call runs, or while a batch fills.
PROGRAM: Final = """
import sys, time
from freshq import Handlers, Queue, Worker

handlers = Handlers()

@handlers.on("embed", batch=4, within_seconds=float(sys.argv[2]))
def embed(tasks):
    print(*(f"{task.task_id}:{task.attempts}" for task in tasks), flush=True)
    while sys.argv[3] == "hangs":
        time.sleep(0.01)
    return [task.payload for task in tasks]

queue = Queue.sql(sys.argv[1], order="fifo")
Worker(queue, handlers, concurrency=1, poll_seconds=0.02, idle_exit_seconds=0.5).run()
"""


def program(url: str, within_seconds: float, way: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", PROGRAM, url, str(within_seconds), way]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("within_seconds", [0.05, 1000.0], ids=["runs", "fills"])
def test_a_kill_costs_each_task_one_attempt_and_loses_none(tmp_path: Path, within_seconds: float) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    queue = Queue.sql(url, order="fifo")
    queue.create_table()
    fills = within_seconds > 1
    ids = [receipt.task_id for receipt in queue.put_many([{"payload": n, "kind": "embed"} for n in range(3)])]
    with program(url, within_seconds, "hangs") as killed:
        assert killed.stdout is not None
        if not fills:
            assert len(killed.stdout.readline().split()) == 3
        deadline = time.monotonic() + PATIENCE_SECONDS
        while queue.stats().taken < 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(killed.pid, signal.SIGKILL)
    # By this clock the leases have expired; if they did so soon, a stall would cost other attempts.
    ahead_seconds = 2 * queue.admin.config.lease_seconds
    with Queue.sql(url, order="fifo", clock=lambda: time.time() + ahead_seconds) as later:
        assert later.admin.recover() == 3
    with program(url, 0.05, "ends") as other:
        assert other.stdout is not None
        ran = Counter(other.stdout.read().split())
    assert other.returncode == 0
    assert ran == {f"{task_id}:2": 1 for task_id in ids}
    tasks = [known(queue, task_id) for task_id in ids]
    assert [(task.status, task.result, task.attempts) for task in tasks] == [
        (TaskStatus.SUCCESS, number, 2) for number in range(3)
    ]
    queue.close()
