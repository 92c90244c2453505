"""The deployed application does what the simulator predicts: each order at three times the capacity.

A busy machine stalls workers for seconds, which no prediction knows. The application serves what the
library's queue serves for the same arrivals and claims. Without such stalls the simulator is right.
"""

import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import pytest
from local.facts import Life, lives_of, served_in_time

from freshq import Order, Queue, Task, TaskStatus
from tests.conftest import Clock
from tests.e2e.conftest import Deployment, wait_until

pytestmark = pytest.mark.timeout(600)

# The orders by time. More applications would keep two processors busy with themselves.
ORDERS: Final = (Order.LIFO, Order.FIFO, Order.ADAPTIVE)
SERVERS: Final = 2
TASK_SECONDS: Final = 1.0
DEADLINE_SECONDS: Final = 8.0
LOAD_SECONDS: Final = 18.0
RATE_PER_SECOND: Final = 3 * SERVERS / TASK_SECONDS
# Number of urgent tasks among ten.
URGENT: Final = 2


@pytest.fixture
def stacks(deployed_alone: Callable[..., Deployment]) -> dict[Order, Deployment]:
    """Return the application once for each order, all on one emulator."""
    return {
        order: deployed_alone(
            stack=f"freshq-{order.value}",
            order=order,
            reserve="none",
            max_age_seconds=DEADLINE_SECONDS,
            concurrency=SERVERS,
            demo_capacity=SERVERS,
            demo_task_seconds=TASK_SECONDS,
            pass_seconds=60,
            settle_seconds=5,
            # The simulator has no workers that wait to be woken.
            BatchingWindowSeconds=0,
        )
        for order in ORDERS
    }


def warm_up(applications: Sequence[Deployment]) -> None:
    """Have every worker started, as it is where there is traffic; a first task may go stale before it is."""

    def started(application: Deployment) -> bool:
        stats = application.queue.stats()
        if stats.pending + stats.taken == 0:
            application.queue.put("first")
        return stats.success > 0

    for application in applications:
        wait_until(partial(started, application))


def offer(applications: Sequence[Deployment]) -> None:
    """Put the same tasks into every queue at the same time."""
    queues = [application.queue for application in applications]
    rng = random.Random(11)
    due = time.monotonic()
    for _ in range(round(LOAD_SECONDS * RATE_PER_SECOND)):
        priority = 9 if rng.random() < URGENT / 10 else 0
        time.sleep(max(0.0, due - time.monotonic()))
        due = max(due, time.monotonic()) + 1 / RATE_PER_SECOND  # after a stall, not all together
        for queue in queues:
            queue.put("work", priority=priority)


def in_time(life: Life) -> bool:
    return life.fate is TaskStatus.SUCCESS and life.ended is not None and life.ended <= life.deadline


def served(lives: Sequence[Life]) -> list[Life]:
    return [life for life in lives if life.fate is TaskStatus.SUCCESS]


def no_worker_was_stalled(lives: Sequence[Life]) -> bool:
    """Return whether every run, and every gap until the next one, took about as long as it should."""
    done = [(life.claims[-1].taken, life.ended or 0.0) for life in served(lives)]
    taken, ended = sorted(start for start, _end in done), sorted(end for _start, end in done)
    gaps = [start - end for start, end in zip(taken[SERVERS:], ended, strict=False)]
    runs = [end - start for start, end in done]
    return max(runs) < 1.5 * TASK_SECONDS and max(gaps) < TASK_SECONDS


def replayed(lives: Sequence[Life], priorities: Sequence[int], order: Order) -> tuple[int, int]:
    """Return how many tasks, and how many urgent ones, the library serves in time by the recorded claims."""
    clock = Clock()
    queue = Queue.memory(
        order=order, reserve="none", clock=clock, max_age_seconds=DEADLINE_SECONDS, lease_seconds=3600
    )
    puts = [(life.created, 0, priority) for life, priority in zip(lives, priorities, strict=True)]
    claims = [(life.claims[-1].taken, life.ended or 0.0) for life in served(lives)]
    events = [*puts, *((taken, 1, ended - taken) for taken, ended in claims)]
    found = [0, 0]
    for moment, is_claim, value in sorted(events):
        clock.now = moment
        if not is_claim:
            queue.put("work", priority=int(value))
            continue
        for claim in queue.claim():
            ends_in_time = moment + value <= claim.task.stale_at
            found[0] += ends_in_time
            found[1] += ends_in_time and claim.task.priority > 0
    return found[0], found[1]


def test_goodput_is_what_the_simulator_predicts(stacks: dict[Order, Deployment]) -> None:
    applications = list(stacks.values())
    warm_up(applications)
    offer(applications)
    wait_until(lambda: all(not waits(application) for application in applications))
    for order, application in stacks.items():
        versions = application.versions()
        lives = [life for life in lives_of(versions, time.time()) if is_load(versions[life.task_id])]
        priorities = [versions[life.task_id][0].priority for life in lives]
        urgent = [life for life, priority in zip(lives, priorities, strict=True) if priority]
        goodput, of_urgent = sum(map(in_time, lives)), sum(map(in_time, urgent))
        by_claims, urgent_by_claims = replayed(lives, priorities, order)
        assert goodput == pytest.approx(by_claims, rel=0.1, abs=2), order
        assert of_urgent == pytest.approx(urgent_by_claims, rel=0.1, abs=2), order
        if no_worker_was_stalled(lives):
            forecast = served_in_time(lives, SERVERS, LOAD_SECONDS, order, priorities)
            assert forecast > SERVERS * DEADLINE_SECONDS / TASK_SECONDS, order
            assert goodput == pytest.approx(forecast, rel=0.1), order
            # All levels are drained from high to low, so the urgent ones do well under every order.
            assert of_urgent >= 0.95 * len(urgent), order


def is_load(versions: Sequence[Task]) -> bool:
    return bool(versions[0].payload == "work")


def waits(application: Deployment) -> int:
    stats = application.queue.stats()
    return stats.pending + stats.taken
