"""Which tasks to shed so that a counted backlog stays within its bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

from freshq.policy.backlog_limit import Eviction, Victim

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from freshq.policy.backlog_limit import BacklogLimit


class CountedBacklog:
    """The number of waiting tasks, kept up to date while tasks are admitted and shed."""

    def __init__(
        self, limit: BacklogLimit, by_group: Mapping[str | None, int], of_any_group: int = 0
    ) -> None:
        """Start from a count.

        Args:
            limit: The bound.
            by_group: Number of waiting tasks of each group.
            of_any_group: Number of waiting tasks whose group is unknown.
        """
        self._limit = limit
        self._by_group = dict(by_group)
        # Without the tasks that were admitted, which are not stored yet.
        self._stored_by_group = dict(by_group)
        self._waiting = sum(by_group.values()) + of_any_group

    @property
    def room(self) -> int:
        """How many more tasks fit within the bound."""
        return max(0, self._limit.max_waiting - self._waiting)

    def admit(self, group: str | None) -> Eviction | None:
        """Add a task of a group; return which task to shed for it, None if it fits.

        If the noisiest group has no stored task to evict, the new task is shed.
        """
        self._waiting += 1
        self._by_group[group] = self._by_group.get(group, 0) + 1
        eviction = self._limit.eviction(self._waiting, self._by_group)
        if eviction is None:
            return None
        if eviction.victim is Victim.OLDEST_OF_GROUP and not self._stored_by_group.get(eviction.group):
            eviction = Eviction(eviction.reason, Victim.NEWCOMER)
        self._count_out(eviction, group)
        return eviction

    def excess(self) -> Iterator[Eviction]:
        """Yield what to shed until the backlog is within its bound."""
        while (eviction := self._limit.eviction(self._waiting, self._by_group)) is not None:
            self._count_out(eviction)
            yield eviction

    def _count_out(self, eviction: Eviction, newcomers_group: str | None = None) -> None:
        self._waiting -= 1
        if eviction.victim is Victim.NEWCOMER:
            self._by_group[newcomers_group] -= 1
        elif eviction.victim is Victim.OLDEST_OF_GROUP:
            self._by_group[eviction.group] -= 1
            self._stored_by_group[eviction.group] -= 1
