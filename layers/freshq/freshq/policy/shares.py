"""How the workers of a queue divide its concurrency limit."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self


@dataclass(frozen=True, slots=True)
class Share:
    """The share of one worker.

    Attributes:
        until: When it expires, in seconds, unless the worker renews it.
        slots: Tasks that the worker may have in work.
        peak: Most tasks that it had in work in its last window.
    """

    until: float
    slots: int
    peak: int


@dataclass(frozen=True, slots=True)
class WorkerShares:
    """The shares of all live workers.

    Attributes:
        shares: By worker.
    """

    shares: Mapping[str, Share]

    @classmethod
    def of(cls, values: Mapping[str, Sequence[float]], now: float) -> Self:
        """Return the shares that have not expired, from what `values` returned."""
        shares = {
            worker: Share(until, int(slots), int(peak)) for worker, (until, slots, peak) in values.items()
        }
        return cls({worker: share for worker, share in shares.items() if share.until > now})

    def values(self) -> dict[str, list[float]]:
        """Return the shares as JSON values."""
        return {worker: list(astuple(share)) for worker, share in self.shares.items()}

    def peak_of_others(self, worker: str) -> int:
        """Return the sum of the other workers' peaks."""
        return sum(share.peak for other, share in self.shares.items() if other != worker)

    def without(self, worker: str) -> WorkerShares:
        """Return the shares of the others."""
        return WorkerShares({other: share for other, share in self.shares.items() if other != worker})

    def taken(
        self, worker: str, share: Share, limit: int, wanted: int, in_flight: int
    ) -> tuple[WorkerShares, int]:
        """Return the shares after one worker took its share, and the number of slots in it.

        A share is an equal part of the limit, the remainder going to the first workers by name, but never
        more than the others leave. They shrink to their own part when they renew, so a new worker has
        its part within a window.

        Args:
            worker: Who takes the share.
            share: Its `until` and `peak`; the slots are computed.
            limit: Number of slots in all.
            wanted: Number of slots that the worker can use.
            in_flight: Number of slots in use, which it cannot return.
        """
        others = self.without(worker).shares
        ranked = sorted([*others, worker])
        part, left_over = divmod(limit, len(ranked))
        due = part + (ranked.index(worker) < left_over)
        left = limit - sum(other.slots for other in others.values())
        slots = max(in_flight, min(wanted, due, left), 0)
        mine = Share(share.until, slots, share.peak)
        return WorkerShares({**others, worker: mine}), slots
