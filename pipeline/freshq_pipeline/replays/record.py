"""The recorded load of each queue, its outcome, and the utilization of its servers."""

from __future__ import annotations

from array import array
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from freshq.model.task import MAX_SECONDS
from freshq.policy.shedding import ShedReason
from freshq.policy.value import DEFAULT_VALUE, Decay
from freshq.simulate import Load
from freshq_pipeline.errors import BadInput

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from freshq_pipeline.replays.grid import Grid


class Ending(IntEnum):
    """How a task ends in every replay that serves it: as in the recording."""

    SUCCESS = 0
    FAILURE = 1
    SHED = 2  # it became stale between two attempts
    UNKNOWN = 3  # it was still in progress at the end


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of tasks by their state at the end of the recording.

    Attributes:
        served_in_time: Tasks that succeeded by their deadline.
        served_late: Tasks that succeeded after their deadline.
        failed: Tasks that failed.
        shed: Tasks that were shed.
        pending: Tasks that were still waiting.
    """

    served_in_time: int
    served_late: int
    failed: int
    shed: int
    pending: int

    @property
    def offered(self) -> int:
        """Number of all tasks."""
        return sum(asdict(self).values())

    @classmethod
    def recorded(cls, rows: pa.Table) -> Counts:
        """Count rows of `tasks`, except tasks still in progress."""
        found = pc.value_counts(rows["outcome"].combine_chunks()).to_pylist()
        by_outcome = {one["values"]: one["counts"] for one in found}
        in_time = pc.sum(rows["in_time"]).as_py() or 0
        late = by_outcome.get("success", 0) - in_time
        return cls(in_time, late, *(by_outcome.get(name, 0) for name in ("failure", "shed", "pending")))


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The utilization of the servers while tasks waited.

    Attributes:
        servers: Number of servers: the median of the tasks in progress.
        mean_servers: Mean number of tasks in progress.
        idle_ratio: Idle share of the servers' time.
        surplus_ratio: Work beyond the capacity of the servers, as a share of their time.
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
    """Return the utilization of the servers while tasks waited.

    No server should be idle while tasks wait, so the usual number of tasks in progress is the number of
    servers. If no task ever waited, the maximum number of tasks in progress is.

    Args:
        created: Time at which each task started waiting, in seconds.
        left: Time at which it stopped waiting, claimed or not.
        begun: Time of its first claim; NaN if it was never claimed.
        service: Time that it ran from then on.
        servers: Number of servers; None: estimate it.
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


# Excludes tasks that were ended while they waited: cancelled tasks, and dead letters that never ran.
LOAD: Final = "outcome <> 'cancelled' and (outcome <> 'failure' or first_taken_ms is not null)"
COLUMNS: Final = (
    "queue", "put_ms", "created_ms", "deadline_ms", "first_taken_ms", "finished_ms", "run_seconds",
    "priority", "outcome", "shed_reason", "in_time", "inverted", "value", "decay", "value_delivered",
)  # fmt: skip
_EARLY: Final = pa.array(
    [str(one) for one in ShedReason if one not in (ShedReason.EXPIRED, ShedReason.RESERVE)]
)
# The max age of tasks without a deadline.
NO_DEADLINE_SECONDS: Final = MAX_SECONDS


@dataclass(frozen=True, slots=True)
class Recorded:
    """The recorded load of a queue and its outcome. Times are in seconds from its start.

    Attributes:
        queue: Name of the queue; None if the events have none.
        created: Creation time of each task, ascending; negative if it already waited at the start.
        service: Service time of each task: its time in progress over all attempts.
        pause: Time of each task between its attempts.
        deadline: Deadline of each task.
        levels: Priority of each task.
        endings: How each task ends if it is served, as an `Ending`.
        end: Time of the last put, claim or end.
        imputed: Number of service times drawn for tasks that were never served.
        occupied: How busy the servers were.
        inverted_ratio: Share of tasks that were claimed while a newer one waited.
        shed_early: Number of tasks shed before their deadline, which no replay does.
        counts: Outcomes in the recording.
        values: Value of each task; 1 if it was put without one.
        decays: 1 for each task whose value falls steadily until its deadline.
        value_delivered: Value delivered in the recording; None if no task was put with a value or a decay.
    """

    queue: str | None
    created: NDArray[np.float64]
    service: NDArray[np.float64]
    pause: NDArray[np.float64]
    deadline: NDArray[np.float64]
    levels: NDArray[np.uint8]
    endings: NDArray[np.uint8]
    end: float
    imputed: int
    occupied: Occupancy
    inverted_ratio: float
    shed_early: int
    counts: Counts
    values: NDArray[np.float64]
    decays: NDArray[np.uint8]
    value_delivered: float | None

    def load(self, deadline_seconds: float | None) -> Load:
        """Return the load for the simulator, with another max age if one is given.

        Tasks that waited at the start arrive at the start.
        """
        arrived = np.maximum(self.created, 0.0)
        return Load(
            created=array("d", arrived.tobytes()),
            service=array("d", self.service.tobytes()),
            deadline=array("d", self.deadlines(deadline_seconds).tobytes()),
            duration_seconds=float(np.nextafter(arrived[-1], np.inf)),
            levels=self.levels.tobytes() if self.levels.any() else b"",
            values=() if self.value_delivered is None else array("d", self.values.tobytes()),
            decays=b"" if self.value_delivered is None else self.decays.tobytes(),
        )

    def deadlines(self, deadline_seconds: float | None) -> NDArray[np.float64]:
        """Return the recorded deadlines, or those for another max age."""
        return self.deadline if deadline_seconds is None else self.created + deadline_seconds

    @property
    def max_age_seconds(self) -> float:
        """Max age of the queue: the longest of any task."""
        return float(np.max(self.deadline - self.created))

    def worth(self, done: NDArray[np.float64], deadline_seconds: float | None) -> NDArray[np.float64]:
        """Return what each task is worth if it is done in time, like `policy.value.value_at`.

        Args:
            done: When each task is done.
            deadline_seconds: Max age; None: the recorded deadlines.
        """
        deadline = self.deadlines(deadline_seconds)
        left = (deadline - done) / np.maximum(1e-6, deadline - self.created)
        return np.where(self.decays, self.values * np.minimum(1.0, left), self.values)

    def figures(self) -> dict[str, Any]:
        """Return the figures for the result; those of values are 0 if no task has any."""
        ended = self.endings != Ending.UNKNOWN
        has_values = self.value_delivered is not None
        return {
            "tasks": len(self.created),
            "servers": self.occupied.servers,
            **asdict(self.counts),
            "running": int((self.endings == Ending.UNKNOWN).sum()),
            "service_times_imputed": self.imputed,
            "value_offered": float(self.values[ended].sum()) if has_values else 0.0,
            "value_delivered": self.value_delivered or 0.0,
        }


def recorded_loads(rows: pa.Table, grid: Grid, first_ms: float | None = None) -> list[Recorded]:
    """Return the recorded load of each queue that served a task.

    Args:
        rows: The rows of `tasks` that meet `LOAD`, with `COLUMNS`.
        grid: The scenarios.
        first_ms: Start of the days to replay. Tasks created before are load only if they still waited then.
            None: all tasks are.

    Raises:
        BadInput: If no task was ever served, so that no service time is known, or the queue to replay has no
            tasks.
    """
    rows = _offered(_waiting_at(rows, first_ms)).sort_by("created_ms")
    names = sorted(rows["queue"].unique().to_pylist(), key=lambda name: (name is None, name or ""))
    if grid.queue is not None:
        grid.check_queue(names)
        names = [grid.queue]
    loads = [_recorded(name, _of_queue(rows, name), grid, first_ms) for name in names]
    served = [load for load in loads if load is not None]
    if not served:
        raise BadInput("events: no task was ever served, so no service time is known")
    return served


def _waiting_at(rows: pa.Table, first_ms: float | None) -> pa.Table:
    """Leave out tasks created before a time at which they no longer waited."""
    if first_ms is None:
        return rows
    later = pc.greater_equal(rows["created_ms"], first_ms)
    gone_ms = pc.coalesce(rows["first_taken_ms"], rows["finished_ms"])
    waited = pc.fill_null(pc.greater_equal(gone_ms, first_ms), True)  # noqa: FBT003 - PyArrow's
    return rows.filter(pc.or_(later, waited))


def _offered(rows: pa.Table) -> pa.Table:
    """Leave out delayed puts that were not due at the last put, claim or end."""
    put_ms = pc.coalesce(rows["put_ms"], rows["created_ms"])
    last_ms = pc.max(pc.max_element_wise(put_ms, rows["first_taken_ms"], rows["finished_ms"]))
    return rows.filter(pc.less_equal(rows["created_ms"], last_ms))


def _of_queue(rows: pa.Table, name: str | None) -> pa.Table:
    column = rows["queue"]
    return rows.filter(column.is_null() if name is None else pc.equal(column, name))


def _recorded(queue: str | None, rows: pa.Table, grid: Grid, first_ms: float | None) -> Recorded | None:
    """Return the load of a queue; None if it never served a task."""
    created_ms = _numbers(rows, "created_ms")
    start_ms = created_ms[0] if first_ms is None else max(first_ms, created_ms[0])
    created, deadline, begun, ended = (
        (_numbers(rows, name) - start_ms) / 1000
        for name in ("created_ms", "deadline_ms", "first_taken_ms", "finished_ms")
    )
    runs = _Runs.of(rows, ended - begun)
    if not runs.known.any():
        return None
    like = runs.like(grid.seed)
    end = np.nanmax(np.concatenate([created, begun, ended]))
    left = np.where(np.isnan(begun), np.where(np.isnan(ended), end, ended), begun)
    service = runs.seconds[like]
    return Recorded(
        queue, created, service, runs.pause_seconds[like],
        deadline=np.where(np.isnan(deadline), created + NO_DEADLINE_SECONDS, deadline),
        levels=pc.fill_null(rows["priority"], 0).to_numpy().astype(np.uint8),
        endings=np.where(runs.decided, runs.ending, runs.ending[like]),
        end=float(end),
        imputed=int((~runs.own).sum()),
        occupied=occupancy(np.maximum(created, 0.0), left, begun, service, grid.servers),
        inverted_ratio=pc.mean(pc.cast(rows["inverted"], pa.int8())).as_py() or 0.0,
        shed_early=pc.sum(pc.is_in(rows["shed_reason"], _EARLY)).as_py() or 0,
        counts=Counts.recorded(rows),
        values=pc.fill_null(rows["value"], DEFAULT_VALUE).to_numpy(),
        decays=pc.fill_null(pc.equal(rows["decay"], Decay.LINEAR), False).to_numpy().astype(np.uint8),  # noqa: FBT003
        value_delivered=_value_delivered(rows),
    )  # fmt: skip


def _value_delivered(rows: pa.Table) -> float | None:
    """Return the value that tasks delivered; None if none was put with a value or a decay."""
    valued = pc.or_(pc.is_valid(rows["value"]), pc.is_valid(rows["decay"]))
    return float(pc.sum(rows["value_delivered"]).as_py() or 0.0) if pc.any(valued).as_py() else None


@dataclass(frozen=True, slots=True)
class _Runs:
    """The runs of the tasks of a queue.

    Attributes:
        seconds: Time in progress over all attempts; not positive if unknown.
        pause_seconds: Time between the attempts of a task that succeeded.
        ending: How the task ended, as an `Ending`.
        known: Whether it ran to its end.
        own: Whether it ran at all, so that no run is drawn for it.
        decided: Whether its ending is known, so that it is not drawn.
    """

    seconds: NDArray[np.float64]
    pause_seconds: NDArray[np.float64]
    ending: NDArray[np.uint8]
    known: NDArray[np.bool_]
    own: NDArray[np.bool_]
    decided: NDArray[np.bool_]

    @classmethod
    def of(cls, rows: pa.Table, span_seconds: NDArray[np.float64]) -> _Runs:
        """Return the runs of tasks.

        Args:
            rows: The tasks.
            span_seconds: Time from the first claim of each task to its end.
        """
        seconds = np.nan_to_num(_numbers(rows, "run_seconds"))
        is_outcome = {name: pc.equal(rows["outcome"], name).to_numpy() for name in _ENDINGS}
        ending = np.full(len(rows), Ending.SUCCESS, dtype=np.uint8)
        for name, value in _ENDINGS.items():
            ending[is_outcome[name]] = value
        # A released task used no server.
        ran = seconds > 0
        known = ran & (is_outcome["success"] | is_outcome["failure"])
        pause = np.where(known, np.clip(np.nan_to_num(span_seconds - seconds), 0, None), 0.0)
        own = known | (ran & is_outcome["shed"])
        decided = own | is_outcome["success"] | is_outcome["failure"] | is_outcome["taken"]
        return cls(seconds, pause, ending, known, own, decided)

    def like(self, seed: int) -> NDArray[np.int_]:
        """Return the index of each task's run: its own, or a random finished task's."""
        drawn = np.random.default_rng(seed).choice(np.flatnonzero(self.known), size=len(self.known))
        return np.where(self.own, np.arange(len(self.own)), drawn)


_ENDINGS: Final = {
    "success": Ending.SUCCESS, "failure": Ending.FAILURE, "shed": Ending.SHED, "taken": Ending.UNKNOWN,
}  # fmt: skip


def _numbers(rows: pa.Table, name: str) -> NDArray[np.float64]:
    """Return the values of a column, NaN for null."""
    values: NDArray[np.float64] = rows[name].to_numpy().astype(np.float64, copy=False)
    return values
