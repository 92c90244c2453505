"""A running quantile in little memory."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# Each bucket ends 5 % above the one before.
GAMMA: Final = 1.05
LOG_GAMMA: Final = math.log(GAMMA)
# Below this a value counts as this; the time a computer's clock resolves.
SMALLEST: Final = 1e-6
# Weights are scaled down before they leave the range in which floats are exact enough.
LARGEST_WEIGHT: Final = 1e12


class QuantileSketch:
    """Quantiles of positive values, never below an exact one and at most 5 % above; old values fade.

    The buckets are those of DDSketch (Masson, Rim, Lee, "DDSketch: a fast and fully-mergeable quantile
    sketch with relative-error guarantees", PVLDB 12(12), 2019): bucket i holds the values in
    (gamma**(i-1), gamma**i]. It answers the upper end of a bucket, not the middle: a reserve that is a
    little too long costs little, one that is a little too short lets every task end a little too late.
    Unlike P2 (Jain and Chlamtac, CACM 28(10), 1985) it can be merged, so that short-lived workers share
    one through a store, and it forgets, so that it follows a service that becomes slower: a value's
    weight halves with every `half_life` values that come after it.
    """

    __slots__ = ("_buckets", "_growth", "_total", "_weight")

    def __init__(self, half_life: float = 500.0) -> None:
        """Start empty.

        Args:
            half_life: After so many more values a value counts half; math.inf: it always counts in full.
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
        """How many values it knows, the old ones counted for less, in units of the newest."""
        return self._total / self._weight

    def add(self, values: Iterable[float]) -> None:
        """Count values, 0 or more each, the newest last."""
        ceil, log, buckets = math.ceil, math.log, self._buckets
        for value in values:
            # The little more keeps a value on the edge of a bucket from falling beyond it by rounding.
            index = ceil(log(max(SMALLEST, value)) / LOG_GAMMA + 1e-9)
            buckets[index] = buckets.get(index, 0.0) + self._weight
            self._total += self._weight
            self._weight *= self._growth
            if self._weight > LARGEST_WEIGHT:
                self._rescale()

    def quantile(self, share: float) -> float | None:
        """Return the value that a `share` in (0, 1] of the weight does not exceed; None if it is empty."""
        if not 0 < share <= 1:
            msg = f"share: must be greater than 0 and at most 1, got {share}"
            raise ValueError(msg)
        rank = share * self._total
        seen = 0.0
        index = None
        for index in sorted(self._buckets):
            seen += self._buckets[index]
            if seen >= rank:
                break
        return None if index is None else GAMMA**index

    def counts(self) -> dict[int, float]:
        """Return the weight of each bucket, in units of the newest value: what a store may keep."""
        return {index: weight / self._weight for index, weight in self._buckets.items()}

    def merge(self, counts: Mapping[int, float]) -> None:
        """Add the `counts` of another sketch."""
        for index, weight in counts.items():
            self._buckets[index] = self._buckets.get(index, 0.0) + weight * self._weight
            self._total += weight * self._weight

    def _rescale(self) -> None:
        # What has faded to nothing is dropped, so that the memory follows the values in use.
        counts = self.counts()
        self._buckets.clear()
        self._buckets.update(
            (index, weight) for index, weight in counts.items() if weight * LARGEST_WEIGHT > 1
        )
        self._total = sum(self._buckets.values())
        self._weight = 1.0

    def clear(self) -> None:
        """Forget everything."""
        self._buckets.clear()
        self._total = 0.0
        self._weight = 1.0
