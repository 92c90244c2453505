"""Which scenarios to replay, and how the command line names them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from freshq.policy.order import Order
from freshq_pipeline.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


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
