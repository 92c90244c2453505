"""The scenarios and the days to replay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from freshq.policy.order import Order
from freshq_pipeline.errors import BadInput
from freshq_pipeline.storage.days import DAY_US, check_days, number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from freshq_pipeline.storage.days import Day

_Value = TypeVar("_Value")


# The orders of service to replay unless others are named.
POLICIES: Final = (Order.LIFO, Order.FIFO, Order.ADAPTIVE)


@dataclass(frozen=True, slots=True)
class Grid:
    """The scenarios to replay.

    Attributes:
        policies: Orders of service; None: lifo, fifo and adaptive, and for tasks with values also value and
            deadline.
        capacities: Multiples of the recorded capacity.
        deadlines_seconds: Ages at which tasks become stale; None: the recorded deadlines.
        recorded: Order of service when the events were recorded.
        servers: Tasks in progress at a time in each recorded queue; None: estimated from the events.
        seed: Seed for drawing service times.
        queue: Queue to replay; None: all queues.
    """

    policies: tuple[Order, ...] | None = None
    capacities: tuple[float, ...] = (0.5, 1.0, 2.0)
    deadlines_seconds: tuple[float | None, ...] = (None,)
    recorded: Order = Order.LIFO
    servers: int | None = None
    seed: int = 1
    queue: str | None = None

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            BadInput: If a number is out of range.
        """
        for name, values in (("capacity", self.capacities), ("deadline-seconds", self.deadlines_seconds)):
            if any(value is not None and not 0 < value < float("inf") for value in values):
                msg = f"{name}: must be greater than 0, got {', '.join(map(str, values))}"
                raise BadInput(msg)
        if self.servers is not None and self.servers < 1:
            msg = f"servers: must be 1 or more, got {self.servers}"
            raise BadInput(msg)

    def check_queue(self, names: Iterable[str | None]) -> None:
        """Check that the events contain the queue to replay.

        Raises:
            BadInput: If they do not.
        """
        found = list(names)
        if self.queue is not None and self.queue not in found:
            known = ", ".join(sorted(repr(name) for name in found if name is not None))
            msg = f"queue: the events have no queue {self.queue!r}, only {known or 'events without a queue'}"
            raise BadInput(msg)


def parsed(name: str, text: str, parse: Callable[[str], _Value], expected: str) -> tuple[_Value, ...]:
    """Parse an option that lists values separated by commas.

    Args:
        name: Name of the option.
        text: The list.
        parse: Parses a value; raises ValueError.
        expected: Description of the values, for the error.

    Raises:
        BadInput: If a value is invalid.
    """
    try:
        return tuple(parse(part) for part in text.split(","))
    except ValueError:
        msg = f"{name}: must be {expected}, separated by commas, got {text!r}"
        raise BadInput(msg) from None


# Without a first day, this many of the newest recorded days are replayed, as in the report.
NEWEST_DAYS: Final = 31


@dataclass(frozen=True, slots=True)
class DayRange:
    """The days to replay.

    Attributes:
        since: First day; None: the first of the newest `NEWEST_DAYS` days with tasks.
        until: Last day; None: the last day with tasks.
    """

    since: str | None = None
    until: str | None = None

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            BadInput: If either is not a day, or they are in the wrong order.
        """
        check_days(self.since, self.until)

    def choose(self, recorded: Iterable[str]) -> ChosenDays:
        """Choose from the days with tasks.

        Raises:
            BadInput: If no day is left.
        """
        # Years have four digits, or a sign and more, so the names of days may not sort.
        every = sorted(recorded, key=number)
        first, last = self.since or every[0], self.until or every[-1]
        found = [day for day in every if number(first) <= number(day) <= number(last)]
        if not found:
            given = (("since", self.since), ("until", self.until))
            asked = " and ".join(f"{name} {day}" for name, day in given if day is not None)
            msg = f"since, until: no task was created {asked}; there are tasks from {every[0]} to {every[-1]}"
            raise BadInput(msg)
        return ChosenDays(found if self.since else found[-NEWEST_DAYS:], every)


@dataclass(frozen=True, slots=True)
class ChosenDays:
    """Days with recorded tasks, by name.

    Attributes:
        chosen: Days to replay, at least one, ascending.
        recorded: All days, ascending.
    """

    chosen: Sequence[str]
    recorded: Sequence[str]

    @property
    def first_us(self) -> int:
        """The start of the first day, in microseconds since the Unix epoch."""
        return number(self.chosen[0]) * DAY_US

    def before(self, known: dict[int, Day]) -> list[str]:
        """Return the days before the first, if their tasks may still have waited then."""
        earlier = self.recorded[: self.recorded.index(self.chosen[0])]
        return [day for day in earlier if _matters_at(known.get(number(day)), self.first_us)]

    def figures(self) -> dict[str, object]:
        """Return the figures for the result."""
        return {
            "since": self.chosen[0],
            "until": self.chosen[-1],
            "days": len(self.chosen),
            "recorded_days": len(self.recorded),
        }


def _matters_at(day: Day | None, at_us: int) -> bool:
    """Return whether a task of a day may still wait at a later time; tasks of unknown days may."""
    if day is None or day.has_open or any(hour.next_deadline_us is not None for hour in day.hours.values()):
        return True
    return day.last_us is not None and day.last_us >= at_us
