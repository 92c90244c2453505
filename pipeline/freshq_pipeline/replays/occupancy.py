"""How many servers a queue had, and how busy they were while tasks waited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How busy the servers were while tasks waited.

    Attributes:
        servers: Number of servers: the median of the tasks in progress.
        mean_servers: Mean of the tasks in progress.
        idle_ratio: Share of the servers' time that was idle.
        surplus_ratio: Work beyond that of the servers, as a share of their time.
    """

    servers: int
    mean_servers: float
    idle_ratio: float
    surplus_ratio: float


def occupancy(
    created: NDArray[np.float64],
    left: NDArray[np.float64],
    begun: NDArray[np.float64],
    service: NDArray[np.float64],
    servers: int | None = None,
) -> Occupancy:
    """Return how busy the servers were while tasks waited.

    While tasks wait no server should be idle, so the usual number of tasks in progress is that of the
    servers. If no task ever waited, it is the maximum of the tasks in progress.

    Args:
        created: When each task began to wait, in seconds.
        left: When it stopped waiting, claimed or not.
        begun: When it was claimed first; NaN if it never was.
        service: How long it ran from then on.
        servers: The number of servers; None: estimate it.
    """
    served = ~np.isnan(begun)
    times = np.concatenate([created, left, begun[served], (begun + service)[served]])
    sizes = [len(created), len(left), served.sum(), served.sum()]
    waits = np.repeat([1, -1, 0, 0], sizes)
    works = np.repeat([0, 0, 1, -1], sizes)
    order = np.argsort(times, kind="stable")
    waiting, working = np.cumsum(waits[order]), np.cumsum(works[order])
    spans = np.diff(times[order], append=times[order][-1])
    weights = np.where(waiting > 0, spans, 0.0)
    seconds = weights.sum()
    if seconds <= 0:
        known = servers or max(1, int(working.max()))
        return Occupancy(known, float(known), 0.0, 0.0)
    known = servers or max(1, _median(working, weights))
    idle, surplus = np.clip(known - working, 0, None), np.clip(working - known, 0, None)
    return Occupancy(
        known,
        mean_servers=float((working * weights).sum() / seconds),
        idle_ratio=float((idle * weights).sum() / (known * seconds)),
        surplus_ratio=float((surplus * weights).sum() / (known * seconds)),
    )


def _median(values: NDArray[np.int_], weights: NDArray[np.float64]) -> int:
    """Return the weighted median."""
    by_size = np.argsort(values, kind="stable")
    middle = np.searchsorted(np.cumsum(weights[by_size]), weights.sum() / 2)
    return int(values[by_size][middle])
