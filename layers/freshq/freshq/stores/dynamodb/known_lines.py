"""What one process knows about the lines of one queue: which may have work, and which it found empty."""

from __future__ import annotations

import uuid
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Final

from freshq.stores.dynamodb.line_rules import QUIET_SECONDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from freshq.stores.lines import Line

# Groups of a level among which a claim of one task chooses; a larger claim has as many more as it wants.
WINDOW: Final = 64
# Lines found empty into which a claim looks again, and how often into each.
EMPTY_IN_WINDOW: Final = 2
EMPTY_CHECK_SECONDS: Final = 0.5
# After this time a line is looked into again before its record is taken away.
OUTDATED_SECONDS: Final = 1.0


@dataclass(slots=True)
class _OpenGroups:
    """The groups of a level that may have work.

    Attributes:
        new: Those not served since they were announced, in this order.
        served: The others, the one served longest ago first.
    """

    new: OrderedDict[str | None, None] = field(default_factory=OrderedDict)
    served: OrderedDict[str | None, None] = field(default_factory=OrderedDict)

    def add(self, group: str | None) -> None:
        if group not in self.served:
            self.new[group] = None

    def serve(self, group: str | None) -> None:
        self.discard(group)
        self.served[group] = None

    def discard(self, group: str | None) -> None:
        self.new.pop(group, None)
        self.served.pop(group, None)

    def first(self, count: int) -> list[str | None]:
        """Return up to `count` groups, half of each kind if there are as many."""
        new_count = max(count // 2, count - len(self.served))
        chosen = [*islice(self.new, new_count)]
        return [*chosen, *islice(self.served, count - len(chosen))]


@dataclass(slots=True)
class _EmptyLine:
    """A line that was found empty, by monotonic times in seconds.

    Attributes:
        since: When it was found empty first.
        seen: When it was found empty last.
        drained_here: Whether this process took its last task.
    """

    since: float
    seen: float
    drained_here: bool


class KnownLines:
    """The lines of one queue that one process knows. Not thread-safe.

    Up to `WINDOW` groups of a level are all in the window of a claim. If there are more, groups enter it in
    turn.
    """

    def __init__(self) -> None:
        # Each known line is in exactly one of the three states below; here by when it was announced.
        self._announced_at: dict[Line, float] = {}
        self._open: defaultdict[int, _OpenGroups] = defaultdict(_OpenGroups)
        self._empty: OrderedDict[Line, _EmptyLine] = OrderedDict()
        self._closing: dict[Line, _EmptyLine] = {}
        # Processes that learn of many lines at once begin with different ones.
        self._salt = uuid.uuid4().int

    def lines(self) -> list[Line]:
        """Return the lines that may have tasks, the empty ones included."""
        return [line for line in self._announced_at if line not in self._closing]

    def announced(self, lines: Sequence[tuple[Line, float]]) -> None:
        """Note line records and when each was written; those known already change nothing."""
        news = [(line, at) for line, at in lines if self._announced_at.get(line) != at]
        start = self._salt % len(news) if len(news) > WINDOW else 0
        for line, at in [*news[start:], *news[:start]]:
            self.may_have_work(line)
            self._announced_at[line] = at

    def may_have_work(self, line: Line) -> None:
        """Note that a line may have tasks."""
        self._announced_at.setdefault(line, 0.0)
        self._empty.pop(line, None)
        self._closing.pop(line, None)
        self._open[line[0]].add(line[1])

    def window(self, count: int, now: float) -> list[Line]:
        """Return the lines that a claim looks into.

        Args:
            count: How many tasks it wants.
            now: Monotonic time in seconds.
        """
        lines = [
            (level, group) for level, groups in self._open.items() for group in groups.first(WINDOW + count)
        ]
        return lines + self.due_checks(EMPTY_IN_WINDOW, now)

    def due_checks(self, count: int, now: float) -> list[Line]:
        """Return up to `count` lines found empty into which it is time to look again."""
        return [
            line
            for line, empty in islice(self._empty.items(), count)
            if now - empty.seen >= EMPTY_CHECK_SECONDS
        ]

    def served(self, line: Line) -> None:
        """Note that tasks of a line were claimed, and more may wait."""
        self.may_have_work(line)
        self._open[line[0]].serve(line[1])

    def drained(self, line: Line, now: float, *, quiet: bool) -> None:
        """Note that this process took the last task of a line.

        Args:
            line: The line.
            now: Monotonic time in seconds.
            quiet: Whether no task was put into it lately.
        """
        if line in self._announced_at:
            self._note_empty(line, now, drained_here=True, close=quiet)

    def found_empty(self, line: Line, now: float) -> None:
        """Note that a line has no claimable task at `now`, a monotonic time in seconds."""
        if line in self._announced_at:
            empty = self._empty.get(line)
            close = empty is not None and now - empty.since >= QUIET_SECONDS
            self._note_empty(line, now, drained_here=False, close=close)

    def _note_empty(self, line: Line, now: float, *, drained_here: bool, close: bool) -> None:
        self._open[line[0]].discard(line[1])
        empty = (
            self._empty.pop(line, None) or self._closing.pop(line, None) or _EmptyLine(now, now, drained_here)
        )
        empty.seen = now
        empty.drained_here |= drained_here
        (self._closing if close else self._empty)[line] = empty

    def to_close(self, least: int, most: int, now: float) -> dict[Line, bool]:
        """Return up to `most` lines that are to be closed, if there are at least `least`.

        Args:
            least: Fewest lines.
            most: Most lines.
            now: Monotonic time in seconds.

        Returns:
            For each line, whether this process took its last task.
        """
        outdated = [line for line, empty in self._closing.items() if now - empty.seen > OUTDATED_SECONDS]
        for line in outdated:
            self._empty[line] = self._closing.pop(line)
            self._empty.move_to_end(line, last=False)
        if len(self._closing) < least:
            return {}
        return {line: empty.drained_here for line, empty in islice(self._closing.items(), most)}

    def closed(self, lines: Iterable[Line]) -> None:
        """Forget lines whose records were deleted, unless they were announced again meanwhile."""
        for line in lines:
            if self._closing.pop(line, None) is not None:
                del self._announced_at[line]
