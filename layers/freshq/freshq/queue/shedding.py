"""Sheds by CoDel: claimed tasks that waited too long, and the tasks behind them in one batch."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Final

from freshq.errors import StoreError
from freshq.model.answers import held_task
from freshq.model.task import TaskStatus
from freshq.policy.codel import MAX_SHED_BEHIND
from freshq.policy.shedding import ShedReason
from freshq.stores.base import Guard
from freshq.stores.oldest_request import OldestRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from freshq.model.answers import Claim
    from freshq.model.task import Task
    from freshq.queue.core import Core

logger = logging.getLogger(__name__)

# Lines in which a claim sheds what waits behind.
MAX_SHED_LINES: Final = 4


def shed_late(core: Core, doomed: Sequence[Claim]) -> float:
    """Shed claimed tasks that waited too long, and those that wait behind them, by one batch of writes.

    A claimed task that cannot be shed is recovered when its lease expires.

    Args:
        core: The queue.
        doomed: The claims; one or more.

    Returns:
        The longest wait in seconds of the tasks that the claim may take next; infinite if none is left that
        is to be shed.
    """
    now = core.now()
    oldest = _oldest_behind(core, doomed, now)
    late = [task for task in oldest if core.codel.sheds_behind(task, now)]
    _store_as_shed(core, doomed, late, now)
    complete = oldest and len(oldest) < MAX_SHED_BEHIND and core.codel.has_one_line
    return math.inf if complete else _longest_wait_seconds(core)


def _oldest_behind(core: Core, doomed: Sequence[Claim], now: float) -> list[Task]:
    """Return the oldest tasks in the lines of some that are shed; none if they cannot be read."""
    level = doomed[0].task.priority
    groups = dict.fromkeys(claim.task.group for claim in doomed if claim.task.priority == level)
    # CoDel does not shed tasks that the reserve keeps from being claimed.
    reserve_seconds = core.reserve.seconds(now)
    created_after = now - core.config.max_age_seconds + reserve_seconds
    request = OldestRequest(core.name, now, created_after, MAX_SHED_BEHIND, [*groups][:MAX_SHED_LINES], level)
    try:
        oldest = core.store.oldest_tasks(request)
    except StoreError:
        logger.warning("queue %r: could not read what else waited too long", core.name, exc_info=True)
        return []
    return [task for task in oldest if task.deadline > now + reserve_seconds]


def _store_as_shed(core: Core, doomed: Sequence[Claim], late: Sequence[Task], now: float) -> None:
    life = core.lifecycle
    changes = [
        (
            life.shed_claimed(held_task(claim), now, ShedReason.CODEL),
            Guard(TaskStatus.TAKEN, lease_token=claim.token),
        )
        for claim in doomed
    ]
    changes += [
        (
            life.shed(task, now, ShedReason.CODEL),
            Guard(TaskStatus.PENDING, request_token=task.request_token),
        )
        for task in late
    ]
    stored: Sequence[Task | None] = []
    problem = None
    try:
        stored = core.store.replace_many(changes)
    except StoreError as error:
        problem = error
    lost = len(doomed) - sum(task is not None for task in stored[: len(doomed)])
    if lost:
        logger.warning(
            "%d tasks could not be shed; each returns when its lease expires", lost, exc_info=problem
        )
    if shed := sum(task is not None for task in stored):
        core.meter.shed_early(now, shed)


def _longest_wait_seconds(core: Core) -> float:
    rule = core.config.codel
    return math.inf if rule is None else rule.longest_wait_seconds


class ShedWhenHeld:
    """Sheds what waited too long while a transaction looks for a task to hold.

    Attributes:
        longest_wait_seconds: The longest wait of the tasks to look at next; infinite until one was shed.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self.longest_wait_seconds = math.inf

    def shed_version(self, task: Task) -> Task | None:
        """Return the shed version of a task that was just claimed; None if it is to be run."""
        core = self._core
        if not core.codel.sheds(task, task.updated):
            return None
        self.longest_wait_seconds = _longest_wait_seconds(core)
        core.meter.shed_early(task.updated, 1)
        return core.lifecycle.shed_claimed(task, task.updated, ShedReason.CODEL)
