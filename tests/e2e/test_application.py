"""The deployed application: real functions, stream, topics and rights, on the embedded emulator."""

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from itertools import count

import pytest

from freshq import TaskStatus
from tests.e2e.conftest import Deployment, wait_until
from tests.support.readings import known

# A chain of passes that is idle for longer has broken.
QUIET_SECONDS = 15.0

# The schedule runs within a minute, while the other tests run.
pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("left_alone")]


def test_what_is_put_is_done_once_and_what_is_delayed_when_it_is_due(
    deployed: Callable[..., Deployment],
) -> None:
    application = deployed(demo_task_seconds=0.02, concurrency=4, demo_capacity=4)
    application.put(
        *({"task_id": f"task-{number}", "payload": number} for number in range(40)),
        {"task_id": "bad", "payload": {"reject": True}},
        {"task_id": "later", "payload": 0, "delay_seconds": 3},
    )
    wait_until(lambda: application.queue.stats().success >= 40 and application.queue.stats().failure == 1)
    # In an account the schedule does this every minute.
    wait_until(lambda: application.invoke("Sweep", {}) and application.queue.stats().success == 41)
    assert set(application.runs().values()) == {1}
    later = known(application.queue, "later")
    assert later.first_due is not None
    assert later.first_due >= (later.put_at or 0) + 2.9
    assert later.updated >= later.first_due
    stats = application.queue.stats()
    assert (stats.pending, stats.delayed, stats.taken, stats.shed) == (0, 0, 0, 0)


def test_a_task_comes_back_from_a_worker_that_is_killed_in_the_middle_of_it(
    deployed: Callable[..., Deployment],
) -> None:
    application = deployed(demo_task_seconds=4, lease_seconds=5, max_age_seconds=300)
    survivor = killed_in_the_middle(application)
    # The lease runs out after 5 s, the dead worker's place after 15 s; then the sweep finds the task and
    # rings for another worker, unless Lambda has repeated the failed invocation before.
    wait_until(
        lambda: (
            application.invoke("Sweep", {})["rang"] or status_of(application, survivor) is TaskStatus.SUCCESS
        )
    )
    wait_until(lambda: status_of(application, survivor) is TaskStatus.SUCCESS)
    task = known(application.queue, survivor)
    assert task.attempts >= 2
    assert application.runs()[survivor] == 1


def status_of(application: Deployment, task_id: str) -> TaskStatus | None:
    task = application.queue.get(task_id)
    return None if task is None else task.status


def killed_in_the_middle(application: Deployment) -> str:
    """Kill the worker of a task, and return the task; try another if a busy machine was too slow."""
    for number in count():
        task_id = f"survivor-{number}"
        application.put({"task_id": task_id, "payload": {}})
        wait_until(partial(is_begun, application, task_id))
        victims = application.processes("ProcessTasks")
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        if victims and status_of(application, task_id) is TaskStatus.TAKEN:
            return task_id
    raise AssertionError


def is_begun(application: Deployment, task_id: str) -> bool:
    """Return whether a task was claimed; if not, sweep: a worker that was killed keeps its place."""
    if status_of(application, task_id) is TaskStatus.PENDING:
        application.invoke("Sweep", {})
    return status_of(application, task_id) in (TaskStatus.TAKEN, TaskStatus.SUCCESS)


def test_a_backlog_is_worked_off_over_more_than_twenty_tail_calls(
    deployed: Callable[..., Deployment],
) -> None:
    application = deployed(
        pass_seconds=1, settle_seconds=2, concurrency=1, demo_capacity=1, demo_task_seconds=0.6
    )
    application.put(*({"payload": number} for number in range(46)))

    chain = Chain(application)

    def over_twenty_hops() -> bool:
        left = chain.left()
        if max((line.get("hop", 0) for line in application.log("ProcessTasks")), default=0) >= 20:
            return True
        if left == 0:  # it was broken
            application.put(*({"payload": number} for number in range(46)))
        return False

    wait_until(over_twenty_hops, patience_seconds=300)
    hops = [line["report"] for line in application.log("ProcessTasks") if line["message"] == "pass ended"]
    assert sum(report["tail_call"] for report in hops) >= 20
    wait_until(lambda: chain.left() == 0)
    assert set(application.runs().values()) == {1}


class Chain:
    """Passes that call their successors; a sweep starts them again if a busy machine stalled one of them."""

    def __init__(self, application: Deployment) -> None:
        self._application = application
        self._done, self._since = -1, 0.0

    def left(self) -> int:
        """Return how many tasks are left; sweep if nothing has happened for a while."""
        stats, now = self._application.queue.stats(), time.monotonic()
        if stats.success != self._done:
            self._done, self._since = stats.success, now
        elif stats.pending and now - self._since > QUIET_SECONDS:
            self._application.invoke("Sweep", {})
            self._since = now
        return stats.pending + stats.taken


def test_a_burst_of_rings_starts_only_the_workers_that_are_reserved_and_each_ring_is_answered(
    deployed: Callable[..., Deployment],
) -> None:
    rings, reserved = 8, 2
    application = deployed(ReservedConcurrency=reserved)
    for _ in range(rings):
        application.client("sns").publish(TopicArn=application.outputs["ProcessTasksTopicArn"], Message="{}")

    def answers() -> int:
        lines = application.log("ProcessTasks")
        return sum(line["message"] in ("pass ended", "no pass") for line in lines)

    wait_until(lambda: answers() == rings)
    assert len(application.processes("ProcessTasks")) <= reserved


def test_the_schedule_runs_the_sweep_by_itself(left_alone: Deployment) -> None:
    wait_until(lambda: left_alone.queue.stats().success == 1, patience_seconds=150)

    def recovered() -> int:
        lines = (line for line in left_alone.log("Sweep") if line["message"] == "swept")
        return sum(line["found"]["recovered"] for line in lines)

    # On a busy machine the emulator logs an invocation's last lines with the next one, a minute later.
    wait_until(lambda: recovered() == 1, patience_seconds=150)
