"""Which scenarios and which days to replay, and how the command line names them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from freshq.policy.order import Order
from freshq_pipeline.errors import BadInput
from freshq_pipeline.storage.days import DAY_US, check_days, number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from freshq_pipeline.storage.days import Day


@dataclass(frozen=True, slots=True)
class Grid:
    """Which scenarios to replay.

    Attributes:
        policies: Orders of service.
        capacities: Multiples of the recorded capacity.
        deadlines_seconds: Ages at which tasks become stale; None: the recorded deadlines.
        recorded: The order of service when the events were recorded.
        servers: Tasks in progress at a time in each recorded queue; None: estimated from the events.
        seed: Seed for drawing service times.
        queue: The queue to replay; None: every queue.
    """

    policies: tuple[Order, ...] = (Order.LIFO, Order.FIFO, Order.ADAPTIVE)
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
        """Check that the wanted queue is one of those in the events.

        Raises:
            BadInput: If it is not.
        """
        found = list(names)
        if self.queue is not None and self.queue not in found:
            known = ", ".join(sorted(repr(name) for name in found if name is not None))
            msg = f"queue: the events have no queue {self.queue!r}, only {known or 'events without a queue'}"
            raise BadInput(msg)


def parse_numbers(name: str, text: str) -> tuple[float, ...]:
    """Return numbers from text, separated by commas.

    Raises:
        BadInput: If a part is not a number.
    """
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        msg = f"{name}: must be numbers separated by commas, got {text!r}"
        raise BadInput(msg) from None


def parse_orders(text: str) -> tuple[Order, ...]:
    """Return orders of service from text, separated by commas.

    Raises:
        BadInput: If a part is not an order of service.
    """
    try:
        return tuple(Order(part) for part in text.split(","))
    except ValueError:
        known: Sequence[str] = [order.value for order in Order]
        msg = f"policies: must be of {', '.join(known)}, separated by commas, got {text!r}"
        raise BadInput(msg) from None


# Unless a first day is given, the newest recorded days, as in the report.
NEWEST_DAYS: Final = 31


@dataclass(frozen=True, slots=True)
class DayRange:
    """Which days to replay.

    Attributes:
        since: First day; None: the first of the newest `NEWEST_DAYS` with tasks.
        until: Last day; None: the last with tasks.
    """

    since: str | None = None
    until: str | None = None

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            BadInput: If one is no day, or they are in the wrong order.
        """
        check_days(self.since, self.until)

    def choose(self, recorded: Iterable[str]) -> ChosenDays:
        """Choose of the days with tasks.

        Raises:
            BadInput: If none is left.
        """
        # Years have four digits or a sign, so their names may not sort.
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
        chosen: Days to replay, ascending; at least one.
        recorded: All days, ascending.
    """

    chosen: Sequence[str]
    recorded: Sequence[str]

    @property
    def first_us(self) -> int:
        """The beginning of the first day, in microseconds since the Unix epoch."""
        return number(self.chosen[0]) * DAY_US

    def before(self, known: dict[int, Day]) -> list[str]:
        """Return the days before, of which a task may still have waited at the beginning."""
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
    """Return whether a task of a day may wait at a later time; of an unknown day, it may."""
    if day is None or day.has_open or day.next_deadline_us is not None:
        return True
    return day.last_us is not None and day.last_us >= at_us
