"""The lines in which tasks wait: which end is served, and whose turn it is. Thread-safe.

A line is a group within a priority level. The stores ask these objects while they look for tasks to
claim; what they decide by is `freshq.policy`.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from freshq.policy.fairness import ServedLately
from freshq.policy.order import Order, OrderPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from freshq.policy.order import OrderSwitch

Line: TypeAlias = tuple[int, str | None]
_Candidate = TypeVar("_Candidate")

# An adaptive order looks at the oldest task of a line so often in a deadline, but not less than every
# second: a look costs a query.
LOOKS_PER_DEADLINE: Final = 50
LONGEST_LOOK_SECONDS: Final = 1.0


class LineOrders:
    """Which end of each line is served, by one order for all of them."""

    def __init__(self, order: Order, deadline_seconds: float) -> None:
        """Start with no line known.

        Args:
            order: The order of the queue.
            deadline_seconds: Age at which its tasks are stale.
        """
        self._order = order
        self._deadline_seconds = deadline_seconds
        self._look_seconds = min(LONGEST_LOOK_SECONDS, deadline_seconds / LOOKS_PER_DEADLINE)
        self._lock = threading.Lock()
        self._policies: dict[Line, OrderPolicy] = {}
        self._next_look: dict[Line, float] = {}
        self._switches: list[OrderSwitch] = []

    def newest_first(self, line: Line, now: float, oldest_created: Callable[[], float | None]) -> bool:
        """Return whether the newest task of a line is to be served first.

        Args:
            line: The line.
            now: Current time in seconds.
            oldest_created: Looks when the oldest live task of the line was created; None if it is empty.
        """
        if self._order is not Order.ADAPTIVE:
            return self._order.newest_first
        with self._lock:
            if now < self._next_look.get(line, now):
                return self._policies[line].newest_first
            created = oldest_created()
            policy = self._policies.setdefault(line, OrderPolicy(self._order, self._deadline_seconds))
            switch = policy.observe(now, None if created is None else now - created)
            if switch is not None:
                self._switches.append(switch)
            if created is None and not policy.newest_first:
                self._forget(line)
                return False
            self._next_look[line] = now + self._look_seconds
            return policy.newest_first

    def _forget(self, line: Line) -> None:
        """Keep nothing of an empty line that serves as one that was never seen."""
        self._policies.pop(line, None)
        self._next_look.pop(line, None)

    def take_switches(self) -> list[OrderSwitch]:
        """Return the times that a line turned round since the last call."""
        with self._lock:
            switches, self._switches = self._switches, []
        return switches


class LineTurns:
    """Lets the groups of a level take turns, remembering who was served lately."""

    def __init__(self) -> None:
        """Start with nobody served."""
        self._lock = threading.Lock()
        self._served: defaultdict[int, ServedLately] = defaultdict(ServedLately)

    def record(self, level: int, group: str | None, count: int) -> None:
        """Remember turns that a group had while it was the only one."""
        with self._lock:
            for _ in range(count):
                self._served[level].record(group)

    def interleave(
        self, level: int, lines: Mapping[str | None, Iterator[_Candidate]]
    ) -> Iterator[_Candidate]:
        """Yield the candidates of a level, one group after the other; within a group in its own order.

        Args:
            level: The priority level.
            lines: The candidates of each group that may have work, best first.
        """
        working = dict(lines)
        while working:
            with self._lock:
                group = min(working, key=self._served[level].__getitem__)
            candidate = next(working[group], None)
            if candidate is None:
                del working[group]
                continue
            with self._lock:
                self._served[level].record(group)
            yield candidate
