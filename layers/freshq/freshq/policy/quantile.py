"""A running quantile in little memory."""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Each bucket ends 5 % above the previous one.
GAMMA: Final = 1.05
LOG_GAMMA: Final = math.log(GAMMA)
# Smaller values count as this, the resolution of a clock.
SMALLEST: Final = 1e-6
# Weights are scaled down before they leave the range in which floats are exact enough.
LARGEST_WEIGHT: Final = 1e12


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
        """Return the weight of each bucket, in units of the newest value, as a store may keep it."""
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
