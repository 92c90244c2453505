"""The recorded load of each queue, and what it achieved."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freshq.model.task import MAX_SECONDS
from freshq.simulate import Load
from freshq_pipeline.errors import BadInput

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyspark.sql import DataFrame

    from freshq_pipeline.replays.grid import Grid

# Cancelled tasks are no load.
LOAD: Final = "outcome <> 'cancelled'"
COLUMNS: Final = (
    "queue", "put_ms", "created_ms", "deadline_ms", "first_taken_ms", "finished_ms", "run_seconds",
    "priority", "outcome",
)  # fmt: skip
# For a task without a deadline.
NO_DEADLINE_SECONDS: Final = MAX_SECONDS


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How busy the servers were while tasks waited.

    Attributes:
        servers: Number of servers: the median of the tasks in progress.
        idle_ratio: Share of the servers' time that was idle.
    """

    servers: int
    idle_ratio: float


@dataclass(frozen=True, slots=True)
class Recorded:
    """The recorded load of a queue and its outcome.

    Attributes:
        queue: Name of the queue; None: the events do not have it.
        created: Creation time of each task, in seconds since the first.
        service: Service time of each task, in seconds.
        deadline: Deadline of each task, on the clock of `created`.
        levels: Priority of each task.
        imputed: Number of service times drawn for tasks that were never served.
        servers: Number of tasks in progress at a time.
        idle_ratio: Share of the servers' time that was idle while tasks waited.
        in_time: Number of tasks that succeeded or failed by their deadline.
        shed: Number of tasks that were shed.
    """

    queue: str | None
    created: NDArray[np.float64]
    service: NDArray[np.float64]
    deadline: NDArray[np.float64]
    levels: NDArray[np.uint8]
    imputed: int
    servers: int
    idle_ratio: float
    in_time: int
    shed: int

    def load(self, deadline_seconds: float | None) -> Load:
        """Return the load for the simulator, with another deadline if one is given."""
        deadline = self.deadline if deadline_seconds is None else self.created + deadline_seconds
        return Load(
            created=array("d", self.created.tobytes()),
            service=array("d", self.service.tobytes()),
            deadline=array("d", deadline.tobytes()),
            duration_seconds=float(np.nextafter(self.created[-1], np.inf)),
            levels=self.levels.tobytes() if self.levels.any() else b"",
        )

    @property
    def max_age_seconds(self) -> float:
        """Max age of the queue: the longest of any task."""
        return float(np.max(self.deadline - self.created))

    def figures(self) -> dict[str, Any]:
        """Return the figures for the result."""
        return {
            "tasks": len(self.created),
            "servers": self.servers,
            "served_in_time": self.in_time,
            "shed": self.shed,
            "service_times_imputed": self.imputed,
        }


def recorded_loads(tasks: DataFrame, grid: Grid) -> list[Recorded]:
    """Return the recorded load of each queue of a table `tasks`, without queues that never served a task.

    Raises:
        BadInput: If no task was ever served, so that no service time is known, or the wanted queue has no
            tasks.
    """
    rows = _offered(tasks.where(LOAD).select(*COLUMNS).toArrow()).sort_by("created_ms")
    names = sorted(rows["queue"].unique().to_pylist(), key=lambda name: (name is None, name or ""))
    if grid.queue is not None:
        if grid.queue not in names:
            known = ", ".join(str(name) for name in names)
            msg = f"queue: the events have no queue {grid.queue!r}, only {known}"
            raise BadInput(msg)
        names = [grid.queue]
    loads = [_recorded(name, _of_queue(rows, name), grid) for name in names]
    served = [load for load in loads if load is not None]
    if not served:
        raise BadInput("events: no task was ever served, so no service time is known")
    return served


def _offered(rows: pa.Table) -> pa.Table:
    """Leave out delayed puts that were not due when something last happened."""
    put_ms = pc.coalesce(rows["put_ms"], rows["created_ms"])
    last_ms = pc.max(pc.max_element_wise(put_ms, rows["first_taken_ms"], rows["finished_ms"]))
    return rows.filter(pc.less_equal(rows["created_ms"], last_ms))


def _of_queue(rows: pa.Table, name: str | None) -> pa.Table:
    column = rows["queue"]
    return rows.filter(column.is_null() if name is None else pc.equal(column, name))


def _recorded(queue: str | None, rows: pa.Table, grid: Grid) -> Recorded | None:
    """Return the load of one queue, None if it never served a task."""
    column = {name: rows[name].to_numpy() for name in COLUMNS if name not in ("queue", "outcome")}
    outcome = np.asarray(rows["outcome"].to_pylist(), dtype=object)
    service = column["run_seconds"].astype(float)
    # A released task used no server.
    known = np.nan_to_num(service) > 0
    if not known.any():
        return None
    rng = np.random.default_rng(grid.seed)
    service = np.where(known, service, rng.choice(service[known], size=len(service)))
    start_ms = column["created_ms"][0]
    created = (column["created_ms"] - start_ms) / 1000
    deadline = (column["deadline_ms"].astype(float) - start_ms) / 1000
    deadline = np.where(np.isnan(deadline), created + NO_DEADLINE_SECONDS, deadline)
    begun = (column["first_taken_ms"].astype(float) - start_ms) / 1000
    done = np.isin(outcome, ("success", "failure"))
    occupied = occupancy(created, begun, service, deadline)
    return Recorded(
        queue, created, service, deadline, column["priority"].astype(np.uint8),
        imputed=int((~known).sum()),
        servers=grid.servers or occupied.servers,
        idle_ratio=occupied.idle_ratio,
        in_time=int((done & (begun + service <= deadline)).sum()),
        shed=int((outcome == "shed").sum()),
    )  # fmt: skip


def occupancy(
    created: NDArray[np.float64],
    begun: NDArray[np.float64],
    service: NDArray[np.float64],
    deadline: NDArray[np.float64],
) -> Occupancy:
    """Return how busy the servers were while tasks waited.

    While tasks wait no server should be idle, so the usual number of tasks in progress is that of the
    servers. If no task ever waited, it is the maximum of the tasks in progress.
    """
    served = ~np.isnan(begun)
    left = np.where(served, begun, deadline)
    times = np.concatenate([created, left, begun[served], (begun + service)[served]])
    sizes = [len(created), len(left), served.sum(), served.sum()]
    waits = np.repeat([1, -1, 0, 0], sizes)
    works = np.repeat([0, 0, 1, -1], sizes)
    order = np.argsort(times, kind="stable")
    waiting, working = np.cumsum(waits[order]), np.cumsum(works[order])
    spans = np.diff(times[order], append=times[order][-1])
    weights = np.where(waiting > 0, spans, 0.0)
    if weights.sum() <= 0:
        return Occupancy(max(1, int(working.max())), 0.0)
    by_size = np.argsort(working, kind="stable")
    middle = np.searchsorted(np.cumsum(weights[by_size]), weights.sum() / 2)
    servers = max(1, int(working[by_size][middle]))
    idle = np.clip(servers - working, 0, None)
    return Occupancy(servers, float((idle * weights).sum() / (servers * weights.sum())))
