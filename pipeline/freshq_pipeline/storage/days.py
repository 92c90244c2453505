"""UTC days and hours by number, and the facts that a run stores about the events of each.

An event belongs to the hour in which its task was created, so nearly all events of a task share an hour. Runs
compute hours; silver and the published tables are in folders by day.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from datetime import date
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from freshq_pipeline.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

HOUR_US: Final = 3_600_000_000
HOURS_A_DAY: Final = 24
DAY_US: Final = HOURS_A_DAY * HOUR_US
# Later than any event.
FOREVER_US: Final = 2**62
_LONGEST_YEAR: Final = 4


@dataclass(slots=True)
class Hour:
    """The facts known about the tasks created in an hour.

    Attributes:
        first_us: Earliest time at which their events affect other tasks or a minute.
        last_us: Latest such time, except for the waits and runs of open tasks.
        has_open: Whether a task is in progress or waits without a deadline, so that it affects all later
            minutes.
        next_deadline_us: Time at which the next waiting task is shed without an event; None: never.
        unbegun: Whether the put of a task is missing, so that the start of the recording affects it.
        events: Number of distinct events.
    """

    first_us: int
    last_us: int
    has_open: bool = False
    next_deadline_us: int | None = None
    unbegun: bool = False
    events: int = 0

    def touches(self, hours: Sequence[int]) -> bool:
        """Return whether its events matter in any of the given hours, in ascending order."""
        at = bisect_left(hours, self.first_us // HOUR_US)
        return at < len(hours) and hours[at] <= self.last_us // HOUR_US


@dataclass(slots=True)
class Day:
    """The facts known about the tasks created on a day.

    Attributes:
        silver: Size in bytes of the day's files in each part of silver.
        linked: Days on which ids of its tasks also occur; the day itself if an id occurs in several hours.
        chained: Other days with tasks of its chains.
        later: Number of events after as-of, including duplicates.
        hours: The hours with events up to as-of, by number.
    """

    silver: dict[str, int] = field(default_factory=dict)
    linked: list[int] = field(default_factory=list)
    chained: list[int] = field(default_factory=list)
    later: int = 0
    hours: dict[int, Hour] = field(default_factory=dict)

    @property
    def forgotten(self) -> bool:
        """Whether its events were deleted, so that its tables cannot change."""
        return not self.silver

    @property
    def has_open(self) -> bool:
        """Whether a task is in progress or waits without a deadline."""
        return any(hour.has_open for hour in self.hours.values())

    @property
    def last_us(self) -> int | None:
        """Latest time that its events affect, except for open tasks; None if it has no events."""
        return max((hour.last_us for hour in self.hours.values()), default=None)

    @property
    def events(self) -> int:
        """Number of distinct events."""
        return sum(hour.events for hour in self.hours.values())

    def silver_bytes(self, hours: Collection[int] | None) -> int:
        """Return the estimated size of the silver of the given hours; None: of all hours."""
        whole, every = sum(self.silver.values()), self.events
        if hours is None or not every:
            return whole
        return whole * sum(known.events for hour, known in self.hours.items() if hour in hours) // every


# Conditions with more spans would take Spark longer to plan than the hours between them to compute.
MAX_SPANS: Final = 100


def spans(hours: Iterable[int]) -> list[tuple[int, int]]:
    """Return hours as ascending spans, each from its first hour to before its end."""
    ordered = sorted(hours)
    gaps = [(one + 1, other) for one, other in pairwise(ordered) if other > one + 1]
    if not ordered:
        return []
    firsts, ends = [ordered[0], *(end for _, end in gaps)], [*(begin for begin, _ in gaps), ordered[-1] + 1]
    return list(zip(firsts, ends, strict=True))


def widened(hours: Collection[int]) -> set[int]:
    """Return hours with the shortest gaps between them filled, in at most `MAX_SPANS` spans."""
    found = spans(hours)
    gaps = sorted(((end, first) for (_, end), (first, _) in pairwise(found)), key=lambda gap: gap[1] - gap[0])
    filled = gaps[: max(0, len(found) - MAX_SPANS)]
    return set(hours).union(*(range(*gap) for gap in filled))


def days_of(hours: Iterable[int]) -> frozenset[int]:
    """Return the days of the given hours."""
    return frozenset(hour // HOURS_A_DAY for hour in hours)


def known_hours(days: Iterable[Day]) -> dict[int, Hour]:
    """Return the hours with events of the given days, by number."""
    return {hour: known for day in days for hour, known in day.hours.items()}


def hours_of(days: Iterable[int]) -> set[int]:
    """Return all hours of the given days."""
    return {day * HOURS_A_DAY + hour for day in days for hour in range(HOURS_A_DAY)}


def latest(one: int | None, other: int | None) -> int | None:
    """Return the later of two times that may be unknown."""
    return max((time for time in (one, other) if time is not None), default=None)


def recorded_days(days: Mapping[int, Day], as_of_us: int) -> set[int]:
    """Return the days with tasks, and all days that these tasks affect.

    Args:
        days: The days with tasks.
        as_of_us: End of the recording.
    """
    found = set(days)
    for known in known_hours(days.values()).values():
        last_us = as_of_us if known.has_open else min(known.last_us, as_of_us)
        found.update(range(known.first_us // DAY_US, last_us // DAY_US + 1))
    return found


def days_from_json(kept: Mapping[str, Any]) -> dict[int, Day]:
    """Return the days of a stored state, by number."""
    return {number(name): _day_from_json(value) for name, value in kept.items()}


def _day_from_json(kept: Mapping[str, Any]) -> Day:
    hours = {int(hour): Hour(**known) for hour, known in kept["hours"].items()}
    return Day(**{**kept, "hours": hours})


def iso(day: int) -> str:
    """Return a day as Spark writes it: YYYY-MM-DD, with a sign before longer years."""
    import numpy as np

    text = str(np.datetime64(day, "D"))
    return text if len(text.split("-", 1)[0]) <= _LONGEST_YEAR else f"+{text}"


def number(text: str) -> int:
    """Return the number of days from 1970-01-01 to a day, in the form of `iso`."""
    import numpy as np

    return int(np.datetime64(text.removeprefix("+"), "D").astype(np.int64))


def linked_days(days: Mapping[int, Day], chosen: Iterable[int]) -> set[int]:
    """Return the days on which ids of the given days occur again, also days with an id in several hours."""
    return {other for day in chosen if day in days for other in days[day].linked}


def chained_days(days: Mapping[int, Day], chosen: Iterable[int]) -> set[int]:
    """Return the given days, and all days with tasks of their chains."""
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
