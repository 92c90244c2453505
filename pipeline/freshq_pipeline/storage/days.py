"""UTC days by number, and what a run stores about the events of each.

An event belongs to the day of its creation time. So nearly all events of a task belong to one day.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from freshq_pipeline.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

DAY_US: Final = 86_400_000_000
# Later than any time.
FOREVER_US: Final = 2**62
_LONGEST_YEAR: Final = 4


@dataclass(slots=True)
class Day:
    """What is known about the events of a day.

    Attributes:
        silver: Size in bytes of the day in each part of silver that has events of it.
        first_us: Earliest time at which they matter to other tasks or to a minute.
        last_us: Latest such time, except of the waits and runs of open tasks.
        has_open: Whether a task waits without a deadline, or is in progress: it matters to all later minutes.
        next_deadline_us: When the next of its waiting tasks will be shed without an event; None: never.
        unbegun: Whether a task's first event is not its put: then the start of the recording matters.
        linked: Other days in which some of its tasks' ids occur.
        events: Number of distinct events.
        later: Number of events after as-of, copies included.
    """

    silver: dict[str, int] = field(default_factory=dict)
    first_us: int | None = None
    last_us: int | None = None
    has_open: bool = False
    next_deadline_us: int | None = None
    unbegun: bool = False
    linked: list[int] = field(default_factory=list)
    events: int = 0
    later: int = 0

    @property
    def forgotten(self) -> bool:
        """Whether its events were deleted, so that its tables stay as they are."""
        return not self.silver

    def touches(self, days: Collection[int]) -> bool:
        """Return whether its events matter at a time of one of some days."""
        if self.first_us is None or self.last_us is None:
            return False
        first, last = self.first_us // DAY_US, self.last_us // DAY_US
        return any(first <= day <= last for day in days)


def recorded_days(days: Mapping[int, Day], as_of_us: int) -> set[int]:
    """Return the days with tasks, and those at whose times they matter.

    Args:
        days: What is known of the days with tasks.
        as_of_us: End of the recording.
    """
    found = set(days)
    for known in days.values():
        if known.first_us is not None and known.last_us is not None:
            last_us = as_of_us if known.has_open else min(known.last_us, as_of_us)
            found.update(range(known.first_us // DAY_US, last_us // DAY_US + 1))
    return found


def days_from_json(kept: Mapping[str, Any]) -> dict[int, Day]:
    """Return days by number from days by name."""
    return {number(name): Day(**value) for name, value in kept.items()}


def iso(day: int) -> str:
    """Return a day as Spark writes it: YYYY-MM-DD."""
    import numpy as np

    text = str(np.datetime64(day, "D"))
    return text if len(text.split("-", 1)[0]) <= _LONGEST_YEAR else f"+{text}"


def number(text: str) -> int:
    """Return the number of a day since 1970-01-01.

    Args:
        text: From `iso`.
    """
    import numpy as np

    return int(np.datetime64(text.removeprefix("+"), "D").astype(np.int64))


def linked_days(days: Mapping[int, Day], chosen: Iterable[int]) -> set[int]:
    """Return the other days in which ids of some days occur, directly or through a third day."""
    seen = set(chosen)
    found = list(seen)
    while found:
        more = {other for day in found if day in days for other in days[day].linked} - seen
        seen |= more
        found = list(more)
    return seen - set(chosen)


def check_days(since: str | None, until: str | None) -> None:
    """Check the options for a first and a last day.

    Raises:
        BadInput: If one is no day, or they are in the wrong order.
    """
    for name, day in (("since", since), ("until", until)):
        try:
            valid = day is None or date.fromisoformat(day).isoformat() == day
        except ValueError:
            valid = False
        if not valid:
            msg = f"{name}: must be a day as YYYY-MM-DD, got {day!r}"
            raise BadInput(msg)
    if since is not None and until is not None and since > until:
        msg = f"since: must not be after until, got {since} and {until}"
        raise BadInput(msg)
