"""How the workers of a queue divide the tasks that may be in work at a time."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self


@dataclass(frozen=True, slots=True)
class Share:
    """What one worker holds.

    Attributes:
        until: It lapses then, in seconds, unless the worker takes it again.
        slots: Tasks that the worker may have in work.
        peak: Most tasks that it had in work in its last window.
    """

    until: float
    slots: int
    peak: int


@dataclass(frozen=True, slots=True)
class WorkerShares:
    """The shares of all workers that are alive.

    Attributes:
        shares: By worker.
    """

    shares: Mapping[str, Share]

    @classmethod
    def of(cls, values: Mapping[str, Sequence[float]], now: float) -> Self:
        """Return the shares that have not lapsed, from what `values` returned."""
        shares = {
            worker: Share(until, int(slots), int(peak)) for worker, (until, slots, peak) in values.items()
        }
        return cls({worker: share for worker, share in shares.items() if share.until > now})

    def values(self) -> dict[str, list[float]]:
        """Return the shares as JSON values."""
        return {worker: list(astuple(share)) for worker, share in self.shares.items()}

    def peak_of_others(self, worker: str) -> int:
        """Return how many tasks the other workers had in work at the most."""
        return sum(share.peak for other, share in self.shares.items() if other != worker)

    def without(self, worker: str) -> WorkerShares:
        """Return the shares of the others."""
        return WorkerShares({other: share for other, share in self.shares.items() if other != worker})

    def taken(
        self, worker: str, share: Share, limit: int, wanted: int, in_flight: int
    ) -> tuple[WorkerShares, int]:
        """Return the shares after one worker took the share that is due to it, and how many slots that is.

        An equal part of the limit, what is left over going to the first by name; but never more than
        the others leave. They shrink to their own part at their next turn, so a worker that comes in
        late has its part after at most a window.

        Args:
            worker: Who takes.
            share: Its life and peak; the slots are worked out.
            limit: How many slots there are.
            wanted: How many it can use.
            in_flight: How many it uses now: those it cannot give back.
        """
        others = self.without(worker).shares
        ranked = sorted([*others, worker])
        part, left_over = divmod(limit, len(ranked))
        due = part + (ranked.index(worker) < left_over)
        left = limit - sum(other.slots for other in others.values())
        slots = max(in_flight, min(wanted, due, left), 0)
        mine = Share(share.until, slots, share.peak)
        return WorkerShares({**others, worker: mine}), slots
