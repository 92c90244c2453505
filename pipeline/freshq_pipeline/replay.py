"""`replay`: what would have happened to the recorded load under other policies and capacities.

The policy objects are those that the worker uses, and the simulator is freshq's own; Spark only spreads
the scenarios. The policy that was in force is replayed as well: it must come close to the record.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from freshq.policy.order import Order
from freshq.policy.rules import OverloadRules
from freshq.simulate import Load, run, summarize
from freshq_pipeline.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

TOLERANCE: Final = 0.05
# Tasks that their owners withdrew are no load; all others were there to be served.
LOAD: Final = "outcome <> 'cancelled'"
COLUMNS: Final = ("created_ms", "deadline_ms", "first_taken_ms", "run_seconds", "priority", "outcome")
# Of a task without one.
NO_DEADLINE_SECONDS: Final = 100 * 365 * 86_400.0


@dataclass(frozen=True, slots=True)
class Grid:
    """Which scenarios to replay.

    Attributes:
        policies: Orders of service.
        capacities: As multiples of the recorded one.
        deadlines_seconds: Instead of the recorded deadlines; None among them stands for these.
        recorded: The order that was in force.
        servers: Tasks in work at a time while it was recorded; None: as the record shows.
        seed: Of the service times that are drawn.
    """

    policies: tuple[Order, ...] = (Order.LIFO, Order.FIFO, Order.ADAPTIVE)
    capacities: tuple[float, ...] = (0.5, 1.0, 2.0)
    deadlines_seconds: tuple[float | None, ...] = (None,)
    recorded: Order = Order.LIFO
    servers: int | None = None
    seed: int = 1

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name, values in (("capacity", self.capacities), ("deadline-seconds", self.deadlines_seconds)):
            if any(value is not None and not 0 < value < float("inf") for value in values):
                msg = f"{name}: must be greater than 0, got {', '.join(map(str, values))}"
                raise BadInput(msg)
        if self.servers is not None and self.servers < 1:
            msg = f"servers: must be 1 or more, got {self.servers}"
            raise BadInput(msg)


@dataclass(frozen=True, slots=True)
class Recorded:
    """The load that was recorded, and what came of it.

    Attributes:
        created: When each task came, in seconds from the first.
        service: How long each kept a server, in seconds.
        deadline: When each was stale, on the same clock.
        levels: Its priority.
        imputed: How many service times were drawn, because the task was never served.
        servers: How many tasks were in work at a time.
        in_time: How many were done, well or badly, by their deadline.
        shed: How many were shed.
    """

    created: NDArray[np.float64]
    service: NDArray[np.float64]
    deadline: NDArray[np.float64]
    levels: NDArray[np.uint8]
    imputed: int
    servers: int
    in_time: int
    shed: int

    def load(self, deadline_seconds: float | None) -> Load:
        """Return the load, with another deadline if one is given."""
        deadline = self.deadline if deadline_seconds is None else self.created + deadline_seconds
        return Load(
            created=array("d", self.created.tobytes()),
            service=array("d", self.service.tobytes()),
            deadline=array("d", deadline.tobytes()),
            duration_seconds=float(np.nextafter(self.created[-1], np.inf)),
            levels=self.levels.tobytes() if self.levels.any() else b"",
        )

    @property
    def usual_deadline_seconds(self) -> float:
        """The median age at which a task was stale."""
        return float(np.median(self.deadline - self.created))


def recorded_load(tasks: DataFrame, grid: Grid) -> Recorded:
    """Return what a table `tasks` says of load and service.

    Raises:
        BadInput: If no task was ever served: then no service time is known.
    """
    rows = tasks.where(LOAD).select(*COLUMNS).toArrow().sort_by("created_ms")
    column = {name: rows[name].to_numpy() for name in COLUMNS if name != "outcome"}
    outcome = np.asarray(rows["outcome"].to_pylist(), dtype=object)
    service = column["run_seconds"].astype(float)
    # What was put back untried kept no server.
    known = np.nan_to_num(service) > 0
    if not known.any():
        raise BadInput("events: no task in them was ever served, so that no service time is known")
    rng = np.random.default_rng(grid.seed)
    service = np.where(known, service, rng.choice(service[known], size=len(service)))
    start_ms = column["created_ms"][0]
    created = (column["created_ms"] - start_ms) / 1000
    deadline = (column["deadline_ms"].astype(float) - start_ms) / 1000
    deadline = np.where(np.isnan(deadline), created + NO_DEADLINE_SECONDS, deadline)
    begun = (column["first_taken_ms"].astype(float) - start_ms) / 1000
    done = np.isin(outcome, ("success", "failure"))
    return Recorded(
        created, service, deadline, column["priority"].astype(np.uint8),
        imputed=int((~known).sum()),
        servers=grid.servers or busy_servers(created, begun, service, deadline),
        in_time=int((done & (begun + service <= deadline)).sum()),
        shed=int((outcome == "shed").sum()),
    )  # fmt: skip


def busy_servers(
    created: NDArray[np.float64],
    begun: NDArray[np.float64],
    service: NDArray[np.float64],
    deadline: NDArray[np.float64],
) -> int:
    """Return how many servers worked: the median of those in work, over the time in which tasks waited.

    While work waits no server is idle. Where nothing ever waited, it is the most that worked at once.
    """
    served = ~np.isnan(begun)
    left = np.where(served, begun, deadline)
    moments = np.concatenate([created, left, begun[served], (begun + service)[served]])
    sizes = [len(created), len(left), served.sum(), served.sum()]
    waits = np.repeat([1, -1, 0, 0], sizes)
    works = np.repeat([0, 0, 1, -1], sizes)
    order = np.argsort(moments, kind="stable")
    waiting, working = np.cumsum(waits[order]), np.cumsum(works[order])
    spans = np.diff(moments[order], append=moments[order][-1])
    weights = np.where(waiting > 0, spans, 0.0)
    if weights.sum() <= 0:
        return max(1, int(working.max()))
    by_size = np.argsort(working, kind="stable")
    middle = np.searchsorted(np.cumsum(weights[by_size]), weights.sum() / 2)
    return max(1, int(working[by_size][middle]))


def replay(spark: SparkSession, tasks: DataFrame, grid: Grid) -> dict[str, Any]:
    """Return what each scenario comes to, beside the record and the check against it.

    Args:
        spark: The session.
        tasks: The table `tasks`.
        grid: Which scenarios.
    """
    record = recorded_load(tasks, grid)
    wanted = [(grid.recorded, 1.0, None), *product(grid.policies, grid.capacities, grid.deadlines_seconds)]
    scenarios = list(dict.fromkeys(wanted))
    rows = [
        (place, str(order), capacity, deadline) for place, (order, capacity, deadline) in enumerate(scenarios)
    ]
    frame = spark.createDataFrame(rows, "place int, policy string, capacity double, deadline_seconds double")
    # A partition each: scenarios take their time, and are few.
    spread = frame.repartition(len(rows), F.col("place"))
    shipped = spark.sparkContext.broadcast(record)
    try:
        told = spread.mapInArrow(
            partial(_simulate, shipped=shipped, seed=grid.seed), "place int, result string"
        ).collect()
    finally:
        shipped.destroy()
    results = [json.loads(row["result"]) for row in sorted(told, key=lambda row: row["place"])]
    return {"record": _record(record), "check": _check(record, results[0]), "scenarios": results}


def _simulate(batches: Iterator[pa.RecordBatch], shipped: Any, seed: int) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - Spark's Broadcast
    for batch in batches:
        rows = batch.to_pylist()
        results = [json.dumps(_scenario(shipped.value, row, seed)) for row in rows]
        yield pa.RecordBatch.from_arrays(
            [pa.array([row["place"] for row in rows], pa.int32()), pa.array(results)], ["place", "result"]
        )


def _scenario(record: Recorded, row: dict[str, Any], seed: int) -> dict[str, Any]:
    deadline_seconds = row["deadline_seconds"]
    servers = max(1, round(record.servers * row["capacity"]))
    rules = OverloadRules(deadline_seconds or record.usual_deadline_seconds, Order(row["policy"]))
    result = asdict(summarize(run(record.load(deadline_seconds), rules, servers, seed)))
    del result["by_group"], result["recovery_seconds"]
    named = {name: row[name] for name in ("policy", "capacity", "deadline_seconds")}
    return named | {"servers": servers} | result


def _record(record: Recorded) -> dict[str, Any]:
    return {
        "tasks": len(record.created),
        "servers": record.servers,
        "served_in_time": record.in_time,
        "shed": record.shed,
        "service_times_imputed": record.imputed,
        "imputation": (
            "A task that was never served has no service time: it is given that of a served task, drawn at "
            "random. Were unserved tasks longer than served ones, the replay would be too bright. All "
            "attempts of a task are one service; the pauses between them are not replayed. Cancelled tasks "
            "are left out."
        ),
    }


def _check(record: Recorded, result: dict[str, Any]) -> dict[str, Any]:
    """Return how far the replay of the policy in force is from what happened."""
    off = abs(result["served_in_time"] - record.in_time) / max(1, record.in_time)
    return {
        "policy": result["policy"],
        "served_in_time_recorded": record.in_time,
        "served_in_time_replayed": result["served_in_time"],
        "difference_ratio": off,
        "within": off <= TOLERANCE,
        "tolerance": TOLERANCE,
    }


def parse_numbers(name: str, text: str) -> tuple[float, ...]:
    """Return numbers separated by commas."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        msg = f"{name}: must be numbers separated by commas, got {text!r}"
        raise BadInput(msg) from None


def parse_orders(text: str) -> tuple[Order, ...]:
    """Return orders separated by commas."""
    try:
        return tuple(Order(part) for part in text.split(","))
    except ValueError:
        known: Sequence[str] = [order.value for order in Order]
        msg = f"policies: must be of {', '.join(known)}, separated by commas, got {text!r}"
        raise BadInput(msg) from None
