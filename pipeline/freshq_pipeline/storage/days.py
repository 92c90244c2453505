"""UTC days by number, and what a run stores about the events of each day.

An event belongs to the day on which its task was created, so nearly all events of a task share a day.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from freshq_pipeline.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

DAY_US: Final = 86_400_000_000
# Later than any event.
FOREVER_US: Final = 2**62
_LONGEST_YEAR: Final = 4


@dataclass(slots=True)
class Day:
    """What is known about the events of a day.

    Attributes:
        silver: Size in bytes of the day's files in each part of silver.
        first_us: Earliest time at which the events matter to other tasks or to a minute.
        last_us: Latest such time, except for the waits and runs of open tasks.
        has_open: Whether a task is in progress or waits without a deadline: it matters to all later minutes.
        next_deadline_us: Time at which the next waiting task is shed without an event; None: never.
        unbegun: Whether the first event of a task is not its put, so that the start of the recording matters.
        linked: Other days on which ids of its tasks occur.
        chained: Other days with tasks of its chains.
        events: Number of distinct events.
        later: Number of events after as-of, including duplicates.
    """

    silver: dict[str, int] = field(default_factory=dict)
    first_us: int | None = None
    last_us: int | None = None
    has_open: bool = False
    next_deadline_us: int | None = None
    unbegun: bool = False
    linked: list[int] = field(default_factory=list)
    chained: list[int] = field(default_factory=list)
    events: int = 0
    later: int = 0

    @property
    def forgotten(self) -> bool:
        """Whether its events were deleted, so that its tables cannot change."""
        return not self.silver

    def touches(self, days: Collection[int]) -> bool:
        """Return whether its events matter on any of some days."""
        if self.first_us is None or self.last_us is None:
            return False
        first, last = self.first_us // DAY_US, self.last_us // DAY_US
        return any(first <= day <= last for day in days)


def latest(one: int | None, other: int | None) -> int | None:
    """Return the later of two times that may be unknown."""
    return max((time for time in (one, other) if time is not None), default=None)


def recorded_days(days: Mapping[int, Day], as_of_us: int) -> set[int]:
    """Return the days with tasks, and all days on which these tasks matter.

    Args:
        days: The days with tasks.
        as_of_us: End of the recording.
    """
    found = set(days)
    for known in days.values():
        if known.first_us is not None and known.last_us is not None:
            last_us = as_of_us if known.has_open else min(known.last_us, as_of_us)
            found.update(range(known.first_us // DAY_US, last_us // DAY_US + 1))
    return found


def days_from_json(kept: Mapping[str, Any]) -> dict[int, Day]:
    """Return the days of a stored state, by number."""
    return {number(name): Day(**value) for name, value in kept.items()}


def iso(day: int) -> str:
    """Return a day as Spark writes it: YYYY-MM-DD, with a sign before longer years."""
    import numpy as np

    text = str(np.datetime64(day, "D"))
    return text if len(text.split("-", 1)[0]) <= _LONGEST_YEAR else f"+{text}"


def number(text: str) -> int:
    """Return the number of days from 1970-01-01 to a day, given as `iso` writes it."""
    import numpy as np

    return int(np.datetime64(text.removeprefix("+"), "D").astype(np.int64))


def linked_days(days: Mapping[int, Day], chosen: Iterable[int]) -> set[int]:
    """Return the other days that share ids with some days, directly or through further days."""
    seen = set(chosen)
    found = list(seen)
    while found:
        more = {other for day in found if day in days for other in days[day].linked} - seen
        seen |= more
        found = list(more)
    return seen - set(chosen)


def chained_days(days: Mapping[int, Day], chosen: Iterable[int]) -> set[int]:
    """Return some days, and all days with tasks of their chains."""
    seen = set(chosen)
    return seen.union(*(days[day].chained for day in seen if day in days))


def check_days(since: str | None, until: str | None) -> None:
    """Check the options for the first and the last day.

    Raises:
        BadInput: If either is not a day, or they are in the wrong order.
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
