"""The overload control of one queue, validated as a whole."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from freshq.errors import quoted
from freshq.policy.groups import SHARED_EQUALLY, GroupRules
from freshq.policy.order import Order, OrderPolicy
from freshq.policy.pressure import AdmissionLimit  # noqa: TC001 - part of a dataclass
from freshq.policy.reserve import FixedReserve, QuantileReserve, Reserve
from freshq.policy.shedding import SHED_AFTER_TARGETS, Codel

if TYPE_CHECKING:
    from freshq.policy.backlog_limit import BacklogLimit
    from freshq.policy.reserve import QuantileSketch


# How to write the reserve that depends on the order.
AUTO: Final = "auto"
# Share of the runs for which that reserve suffices.
DEFAULT_QUANTILE: Final = 0.9


@dataclass(frozen=True, slots=True)
class ReserveRule:
    """The reserve: a fixed time, or a running quantile of the service times.

    Attributes:
        seconds: The fixed time.
        quantile: Such as 0.9; overrides `seconds` if it is set.
        automatic: Whether the order decides; see `for_order`.

    Examples:
        >>> from freshq.policy import ReserveRule
        >>> ReserveRule.parse("p90") == ReserveRule(quantile=0.9)
        True
    """

    seconds: float = 0.0
    quantile: float | None = None
    automatic: bool = False

    @classmethod
    def parse(cls, text: str) -> ReserveRule:
        """Return the rule written as seconds (``0.5``), a percentile (``p90``), ``auto`` or ``none``."""
        if text.lower() in WRITTEN_RESERVES:
            return WRITTEN_RESERVES[text.lower()]
        try:
            return cls(quantile=float(text[1:]) / 100) if text.startswith("p") else cls(float(text))
        except ValueError:
            msg = "reserve: must be seconds from 0 on, a percentile such as p90, auto or none, got "
            raise ValueError(msg + quoted(text)) from None

    def for_order(self, order: Order, *, has_max_age: bool) -> ReserveRule:
        """Return the rule that applies in a queue: p90 by default, unless the newest task is served first.

        Oldest first, a queue above its capacity serves every task at the last moment, and so too late. Newest
        first it hardly does.

        Args:
            order: Order of the queue.
            has_max_age: Whether its tasks go stale by age.
        """
        if not self.automatic:
            return self
        needed = has_max_age and (order.oldest_first or order.switches)
        return ReserveRule(quantile=DEFAULT_QUANTILE) if needed else ReserveRule()

    def __str__(self) -> str:
        """Return the rule as `parse` takes it."""
        if self.automatic:
            return AUTO
        return f"{self.seconds:.12g}" if self.quantile is None else f"p{100 * self.quantile:.12g}"

    def __post_init__(self) -> None:
        """Check the time and the quantile."""
        if not 0 <= self.seconds < math.inf:
            msg = f"reserve: must be 0 seconds or more, got {self.seconds}"
            raise ValueError(msg)
        if self.quantile is not None and not 0 < self.quantile < 1:
            msg = f"reserve: a percentile must be above 0 and below 100, got {100 * self.quantile:g}"
            raise ValueError(msg)


WRITTEN_RESERVES: Final = {AUTO: ReserveRule(automatic=True), "none": ReserveRule()}


@dataclass(frozen=True, slots=True)
class CodelRule:
    """The constants of CoDel.

    Attributes:
        target_seconds: Acceptable shortest wait.
        interval_seconds: Interval of the shortest wait; at least twice the wake-up latency.

    Examples:
        >>> from freshq.policy import CodelRule
        >>> queue = Queue.memory(order="fifo", codel=CodelRule(0.5, 1.0))
    """

    target_seconds: float
    interval_seconds: float

    @property
    def longest_wait_seconds(self) -> float:
        """The wait above which an overloaded line sheds tasks."""
        return SHED_AFTER_TARGETS * self.target_seconds

    def for_line(self, order: Order) -> Codel:
        """Return the CoDel of one line.

        Raises:
            ValueError: If the order is not FIFO, or a time is not positive.
        """
        return Codel(self.target_seconds, self.interval_seconds, order)


@dataclass(frozen=True, slots=True)
class OverloadRules:
    """The rules of a queue under overload. Validated on construction.

    Attributes:
        deadline_seconds: Age at which a task is stale.
        order: Order of service within a level.
        reserve: Time that must be left before the deadline when a task is claimed.
        codel: Sheds tasks that waited long; only with FIFO.
        backlog: Bounds the number of waiting tasks.
        fair: Whether groups share time, as in every queue; only a simulation may switch it off.
        admission: Rejects new work beyond a multiple of capacity.
        groups: How they share it.
    """

    deadline_seconds: float
    order: Order = Order.LIFO
    reserve: ReserveRule = ReserveRule()
    codel: CodelRule | None = None
    backlog: BacklogLimit | None = None
    fair: bool = False
    admission: AdmissionLimit | None = None
    groups: GroupRules = SHARED_EQUALLY

    def __post_init__(self) -> None:
        """Check the combination of the parts.

        Raises:
            ValueError: One line that names the option.
        """
        if not 0 < self.deadline_seconds < math.inf:
            msg = f"deadline_seconds: must be greater than 0, got {self.deadline_seconds}"
            raise ValueError(msg)
        if self.reserve.seconds >= self.deadline_seconds:
            msg = f"reserve: {self.reserve.seconds} s leave no time within the deadline of "
            raise ValueError(msg + f"{self.deadline_seconds} s; nothing would ever be claimed")
        if self.backlog is not None and self.backlog.group_share is not None and not self.fair:
            raise ValueError("group_share: needs fair; only then does each group have its own line")
        self.new_codel()

    def new_order(self) -> OrderPolicy:
        """Return the order of one line."""
        return OrderPolicy(self.order, self.deadline_seconds)

    def new_reserve(self, sketch: QuantileSketch | None = None) -> Reserve:
        """Return the reserve of the queue.

        Args:
            sketch: Service times that are known already.
        """
        if self.reserve.quantile is None:
            return FixedReserve(self.reserve.seconds)
        return QuantileReserve(self.reserve.quantile, self.deadline_seconds, sketch)

    def new_codel(self) -> Codel | None:
        """Return the CoDel of one line, None if there is none.

        Raises:
            ValueError: If the order is not FIFO.
        """
        return None if self.codel is None else self.codel.for_line(self.order)
