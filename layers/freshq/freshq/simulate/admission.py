"""Admission control of a simulated queue: the door, and the bound of the backlog."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from freshq.policy.backlog_limit import Victim, WhenFull
from freshq.policy.evictions import CountedBacklog
from freshq.policy.flow import FlowCounter
from freshq.policy.pressure import DoorControl
from freshq.policy.shedding import ShedReason

if TYPE_CHECKING:
    from freshq.policy.backlog_limit import Eviction
    from freshq.policy.rules import OverloadRules
    from freshq.simulate.backlog import Backlog
    from freshq.simulate.fates import Fates
    from freshq.simulate.load import Load


class Admission:
    """Puts arriving tasks into the backlog, or rejects them."""

    def __init__(self, load: Load, rules: OverloadRules, backlog: Backlog, fates: Fates, seed: int) -> None:
        """Start open.

        Args:
            load: The tasks.
            rules: The policy.
            backlog: Where admitted tasks wait.
            fates: Where to record what is shed.
            seed: Seed of the door's random draws.
        """
        self._created = load.created
        self._backlog = backlog
        self._fates = fates
        self._limit = rules.backlog
        self._door = None if rules.door is None else DoorControl(rules.door, rules.deadline_seconds)
        self._uniform = Random(f"{seed}/door").random  # noqa: S311 - a simulation
        self._flow = FlowCounter(rules.deadline_seconds)

    def put(self, task: int, now: float) -> None:
        """Let a task arrive at `now` (seconds)."""
        if self._door is None:
            self._put(task, now)
            return
        group = self._backlog.group_of(task)
        if self._rejects(self._door, group, now):
            self._fates.shed(task, ShedReason.DOOR)
        else:
            self._put(task, now)
        self._flow.offered(now)
        self._flow.offered_by(group, now)

    def _rejects(self, door: DoorControl, group: str | None, now: float) -> bool:
        if now >= door.check_at:
            self._backlog.expire(now)
            oldest = self._backlog.oldest()
            age_seconds = None if oldest is None else now - self._created[oldest]
            door.observe(now, self._flow.flow(now), age_seconds)
        return door.rejects(group, self._uniform) is not None

    def _put(self, task: int, now: float) -> None:
        """Add a task to the backlog, within its bound."""
        limit, backlog = self._limit, self._backlog
        if limit is None or backlog.count() < limit.max_waiting:
            backlog.push(task)
            return
        backlog.expire(now)
        if limit.when_full is WhenFull.DROP_OLDEST:
            backlog.push(task)
            for excess in CountedBacklog(limit, backlog.count_by_group()).excess():
                self._evict(excess, now)
            return
        eviction = CountedBacklog(limit, backlog.count_by_group()).admit(backlog.group_of(task))
        if eviction is not None and eviction.victim is Victim.NEWCOMER:
            self.shed_early(task, eviction.reason, now)
            return
        if eviction is not None:
            self._evict(eviction, now)
        backlog.push(task)

    def _evict(self, eviction: Eviction, now: float) -> None:
        task = self._backlog.evict(eviction)
        if task is not None:
            self.shed_early(task, eviction.reason, now)

    def shed_early(self, task: int, reason: ShedReason, now: float) -> None:
        """Record that a task was shed before its deadline, at `now` (seconds)."""
        self._fates.shed(task, reason)
        if self._door is not None:
            self._flow.shed_early(now)

    def served(self, task: int, now: float) -> None:
        """Record for the door that a task was done at `now` (seconds)."""
        self._flow.served(now, in_time=self._fates.codes[task] == self._fates.IN_TIME)
