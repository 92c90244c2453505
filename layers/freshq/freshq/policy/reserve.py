"""Keep a reserve of time for the run of a task, fixed or learned from service times."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from itertools import accumulate
from typing import TYPE_CHECKING, Final, Protocol

from freshq.policy.shedding import ShedReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from freshq.policy.order import Order

# How often a process shares its observed service times: a read and a write each.
SYNC_SECONDS: Final = 5.0
# Maximum number of service times kept between two syncs; the oldest are dropped.
MOST_KEPT: Final = 5000
# Shared weights are rounded to multiples of 1 / this, so that the record stays small.
WEIGHT_SCALE: Final = 1e6
# Maximum number of spans for which `ReserveSpans` remembers the reserve.
MOST_SPANS: Final = 50
# Each bucket ends 5 % above the previous one.
GAMMA: Final = 1.05
LOG_GAMMA: Final = math.log(GAMMA)
# Smallest value, the resolution of a clock; smaller values count as this.
SMALLEST: Final = 1e-6
# Weights are scaled down before they leave the range in which floats are exact enough.
LARGEST_WEIGHT: Final = 1e12


class Reserve(Protocol):
    """The time that a task must have left to be claimed.

    Without a reserve, FIFO above capacity finishes every task just after its deadline. With
    a reserve r its goodput is the share of services that take no longer than r: C * F(r).

    Attributes:
        seconds: The reserve now.
    """

    seconds: float

    def observe(self, service_seconds: float) -> None:
        """Record the duration of a task, in time or not."""


class FixedReserve:
    """A constant reserve; 0 for none."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        """Keep the reserve in seconds, 0 or more."""
        self.seconds = seconds

    def observe(self, service_seconds: float) -> None:
        """Do nothing."""


class QuantileReserve:
    """A quantile of the recent service times, at most half of the deadline.

    The bound matters: a service that becomes slower than the deadline would otherwise raise the reserve
    above it. Then nothing would be claimed again, and nothing observed that could lower the reserve.
    """

    __slots__ = ("_cap_seconds", "_new", "_quantile", "_refresh_at", "seconds", "sketch")

    # The reserve is 0 before this many services, and is updated after each further batch.
    LEAST: Final = 20
    EVERY: Final = 100

    def __init__(
        self, quantile: float, deadline_seconds: float, sketch: QuantileSketch | None = None
    ) -> None:
        """Start without a reserve, or with known service times.

        Args:
            quantile: Share of the tasks that should find enough time, such as 0.9.
            deadline_seconds: Age at which a task is stale.
            sketch: Service times that are known already.
        """
        self.seconds = 0.0
        self.sketch = sketch or QuantileSketch()
        self._quantile = quantile
        self._cap_seconds = deadline_seconds / 2
        self._new: list[float] = []
        self._refresh_at = self.LEAST
        if self.sketch.total >= self.LEAST:
            self.refresh()

    def observe(self, service_seconds: float) -> None:
        """Record the duration of a task."""
        self._new.append(service_seconds)
        if len(self._new) >= self._refresh_at:
            self.refresh()

    def refresh(self) -> None:
        """Update the reserve."""
        self.sketch.add(self._new)
        self._new.clear()
        self._refresh_at = self.EVERY
        self.seconds = min(self._cap_seconds, self.sketch.quantile(self._quantile) or 0.0)


class KindTimes:
    """Recent service times by kind of task, which tell whether a task can be done by its parent's deadline.

    The times of a kind lapse after a while without new ones: if all its tasks were refused because of them,
    nothing else would show that it has become faster.
    """

    __slots__ = ("_of_kind",)

    # Tasks before the times of a kind are used: fewer make the quantile random, more take longer to collect.
    LEAST: Final = 20
    # The times lapse after this time, or after this many times their quantile if that is longer.
    LAPSE_SECONDS: Final = 60.0
    LAPSE_TIMES: Final = 10
    # The kind that was served longest ago is forgotten beyond this number.
    MOST_KINDS: Final = 1000

    def __init__(self) -> None:
        """Start with nothing seen."""
        # The sketch of each kind, and when it was last served, the latest kind last.
        self._of_kind: dict[str | None, tuple[QuantileSketch, float]] = {}

    def observe(self, kind: str | None, service_seconds: float, now: float) -> None:
        """Record the duration of a task that ended `now` (seconds)."""
        known = self._of_kind.pop(kind, None)
        sketch = QuantileSketch() if known is None else known[0]
        sketch.add((service_seconds,))
        self._of_kind[kind] = sketch, now
        if len(self._of_kind) > self.MOST_KINDS:
            del self._of_kind[next(iter(self._of_kind))]

    def seconds(self, kind: str | None, share: float, now: float) -> float:
        """Return the time that suffices for a `share` of the tasks of a kind; 0 if it is not known.

        Args:
            kind: The kind.
            share: Such as 0.9.
            now: Current time in seconds.
        """
        sketch, seen_at = self._of_kind.get(kind) or (QuantileSketch(), now)
        if math.ceil(sketch.total) < self.LEAST:  # the weights of older services have faded a little
            return 0.0
        seconds = sketch.quantile(share) or 0.0
        return seconds if now - seen_at <= max(self.LAPSE_SECONDS, self.LAPSE_TIMES * seconds) else 0.0


class LearnedReserve:
    """The reserve of a queue as known to one of its processes.

    All processes learn a quantile together: each collects the service times it sees, and at each sync
    merges them into the shared counts and continues with those. A fixed reserve learns nothing.

    A sync is `begin_sync`, `merged` with the shared counts, then `end_sync`; or `abort_sync`.

    A learned reserve is at most half of the queue's max age. If all waiting tasks have a shorter max age of
    their own, `bound` lowers it until the next sync: otherwise the reserve of a slow period would exceed
    their lives indefinitely, because no task would be claimed.

    Attributes:
        seconds: The reserve now.
        learns: Whether it depends on the service times.
        next_sync: When the next sync is due, in seconds; infinite for a fixed reserve.
    """

    __slots__ = ("_most_seconds", "_new_reserve", "_reserve", "_seen", "learns", "next_sync", "seconds")

    def __init__(self, new_reserve: Callable[[QuantileSketch | None], Reserve]) -> None:
        """Start with nothing seen.

        Args:
            new_reserve: Makes the reserve from the known service times.
        """
        self._new_reserve = new_reserve
        self._reserve = new_reserve(None)
        self._most_seconds = math.inf
        self.seconds = self._reserve.seconds
        self._seen: deque[float] = deque(maxlen=MOST_KEPT)
        self.learns = not isinstance(self._reserve, FixedReserve)
        self.next_sync = -math.inf if self.learns else math.inf

    def observe(self, service_seconds: float) -> None:
        """Record how long a task took."""
        if self.learns:
            self._reserve.observe(service_seconds)
            self.seconds = min(self._reserve.seconds, self._most_seconds)
            self._seen.append(service_seconds)

    def bound(self, waiting: Iterable[tuple[float, float]]) -> None:
        """Lower a learned reserve to half of the longest life of the tasks that wait, until the next sync.

        Args:
            waiting: When tasks were created, and their deadlines, in seconds.
        """
        longest_seconds = max((deadline - created for created, deadline in waiting), default=math.inf)
        if self.learns:
            self._most_seconds = longest_seconds / 2
            self.seconds = min(self._reserve.seconds, self._most_seconds)

    def begin_sync(self, now: float) -> list[float]:
        """Return the service times seen since the last sync; `now` is in seconds."""
        self.next_sync = now + SYNC_SECONDS
        seen = list(self._seen)
        self._seen.clear()
        return seen

    @staticmethod
    def merged(shared: Mapping[int, float], seen: Iterable[float]) -> QuantileSketch:
        """Return the counts of all processes: the shared counts plus this process's own."""
        sketch = QuantileSketch()
        sketch.merge(shared)
        sketch.add(seen)
        return sketch

    @staticmethod
    def shared_counts(sketch: QuantileSketch) -> dict[int, float]:
        """Return the counts of a merged sketch to share, without faded ones."""
        return sketch.rounded_counts(WEIGHT_SCALE)

    def end_sync(self, sketch: QuantileSketch) -> None:
        """Continue with the counts of all processes."""
        self._reserve = self._new_reserve(sketch)
        self._most_seconds = math.inf
        self.seconds = self._reserve.seconds

    def abort_sync(self, seen: Iterable[float]) -> None:
        """Keep unshared counts for the next sync."""
        self._most_seconds = math.inf
        self.seconds = self._reserve.seconds
        self._seen = deque([*seen, *self._seen], maxlen=MOST_KEPT)


class SkippedTasks:
    """Finds out when claims skip live tasks because of the reserve.

    Oldest first, such tasks precede all others. In other orders only a claim that finds fewer tasks than its
    limit shows them.
    """

    __slots__ = ("_check_at", "_oldest_first")

    def __init__(self, order: Order) -> None:
        """Check after every claim at first.

        Args:
            order: Order of the queue.
        """
        self._oldest_first = order.oldest_first
        self._check_at = -math.inf

    def check_due(self, now: float, reserve_seconds: float, *, short: bool) -> bool:
        """Return whether to check the oldest live task after a claim.

        Args:
            now: Time of the claim, in seconds.
            reserve_seconds: Its reserve.
            short: Whether it found fewer tasks than it asked for.
        """
        return reserve_seconds > 0 and now >= self._check_at and (short or self._oldest_first)

    def found(
        self, now: float, reserve_seconds: float, oldest: float | None, created_after: float, *, short: bool
    ) -> bool:
        """Return whether the claim skipped tasks; then the next check is half a reserve later.

        Args:
            now: Time of the claim, in seconds.
            reserve_seconds: Its reserve.
            oldest: When the oldest live task was created, in seconds; None if no live task waits.
            created_after: The claim skipped tasks created at or before this time, in seconds.
            short: Whether it found fewer tasks than it asked for.
        """
        if oldest is None or not (short or oldest <= created_after):
            return False
        self._check_at = now + reserve_seconds / 2
        return True


class ReserveSpans:
    """The times in which claims skipped tasks because of the reserve.

    A task that goes stale leaves no trace: nothing is written. The reserve shed it if a claim
    skipped it in its last moments; otherwise its age alone did.
    """

    __slots__ = ("_spans",)

    def __init__(self, spans: Iterable[Sequence[float]] = ()) -> None:
        """Take spans as `extended` returns them: first claim, last claim, largest reserve; in seconds."""
        self._spans = [tuple(span) for span in spans]

    def __len__(self) -> int:
        """Return the number of spans."""
        return len(self._spans)

    def extended(self, now: float, reserve_seconds: float) -> list[tuple[float, ...]]:
        """Return the spans after one more claim, without the oldest beyond `MOST_SPANS`."""
        spans = list(self._spans)
        if spans and now - spans[-1][1] <= reserve_seconds:
            first, last, largest = spans.pop()
            spans.append((first, max(now, last), max(largest, reserve_seconds)))
        else:
            spans.append((now, now, reserve_seconds))
        return spans[-MOST_SPANS:]

    def windows(self) -> list[tuple[float, float]]:
        """Return the spans of deadlines that the reserve shed: after the first time, up to the second."""
        return [(first, last + reserve_seconds) for first, last, reserve_seconds in self._spans]

    def reason(self, deadline: float) -> ShedReason:
        """Return why a task that waited until its deadline (seconds) was shed."""
        if any(after < deadline <= until for after, until in self.windows()):
            return ShedReason.RESERVE
        return ShedReason.EXPIRED


class QuantileSketch:
    """Quantiles of positive values, never below the exact one and at most 5 % above; old values fade.

    The buckets are those of DDSketch (Masson, Rim, Lee, "DDSketch: a fast and fully-mergeable quantile
    sketch with relative-error guarantees", PVLDB 12(12), 2019): bucket i holds the values in
    (gamma**(i-1), gamma**i]. A quantile is the upper end of a bucket, not the middle: a reserve slightly
    too long costs little, one slightly too short lets every task end slightly too late. Unlike P2 (Jain
    and Chlamtac, CACM 28(10), 1985) it can be merged, so that short-lived workers share one through a
    store, and it follows a service that becomes slower: the weight of a value halves with every
    `half_life` values after it.
    """

    __slots__ = ("_buckets", "_growth", "_total", "_weight")

    def __init__(self, half_life: float = 500.0) -> None:
        """Start empty.

        Args:
            half_life: Number of further values after which a value counts half; math.inf: old values count
                in full.
        """
        if not half_life >= 1:
            msg = f"half_life: must be 1 or more, got {half_life}"
            raise ValueError(msg)
        # Instead of shrinking every old weight, each new value weighs more than the one before.
        self._growth = 2.0 ** (1 / half_life)
        self._weight = 1.0
        self._total = 0.0
        self._buckets: dict[int, float] = {}

    @property
    def total(self) -> float:
        """Weight of all values, in units of the newest."""
        return self._total / self._weight

    def add(self, values: Iterable[float]) -> None:
        """Count values, 0 or more each, the newest last."""
        ceil, log, log_gamma, buckets = math.ceil, math.log, LOG_GAMMA, self._buckets
        for value in values:
            # The addend keeps a value on the edge of a bucket from leaving it by rounding.
            index = ceil(log(max(SMALLEST, value)) / log_gamma + 1e-9)
            buckets[index] = buckets.get(index, 0.0) + self._weight
            self._total += self._weight
            self._weight *= self._growth
            if self._weight > LARGEST_WEIGHT:
                self._rescale()

    def quantile(self, share: float) -> float | None:
        """Return the value that a `share` in (0, 1] of the weight does not exceed; None without values."""
        if not 0 < share <= 1:
            msg = f"share: must be greater than 0 and at most 1, got {share}"
            raise ValueError(msg)
        if not self._buckets:
            return None
        indexes = sorted(self._buckets)
        up_to = list(accumulate(map(self._buckets.__getitem__, indexes)))
        # By rounding the total may be a little more than the sum.
        place = min(bisect_left(up_to, share * self._total), len(indexes) - 1)
        return GAMMA ** indexes[place]

    def counts(self) -> dict[int, float]:
        """Return the weight of each bucket, in units of the newest value, in the form that stores keep."""
        return {index: weight / self._weight for index, weight in self._buckets.items()}

    def rounded_counts(self, scale: float) -> dict[int, float]:
        """Return the counts as multiples of `1 / scale`, without those that round to 0."""
        factor = scale / self._weight
        return {
            index: count / scale  # many times faster than round()
            for index, weight in self._buckets.items()
            if (count := int(weight * factor + 0.5))
        }

    def merge(self, counts: Mapping[int, float]) -> None:
        """Add the `counts` of another sketch."""
        if not self._buckets and self._weight == 1.0:
            self._buckets = dict(counts)
            self._total = float(sum(counts.values()))
            return
        for index, weight in counts.items():
            self._buckets[index] = self._buckets.get(index, 0.0) + weight * self._weight
            self._total += weight * self._weight

    def _rescale(self) -> None:
        # Buckets that have faded are dropped, so that memory follows the values in use.
        counts = self.counts()
        self._buckets.clear()
        self._buckets.update(
            (index, weight) for index, weight in counts.items() if weight * LARGEST_WEIGHT > 1
        )
        self._total = sum(self._buckets.values())
        self._weight = 1.0
