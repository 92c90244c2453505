"""`replay`: simulate the recorded load under other policies and capacities.

The simulator runs the policy objects of the worker; Spark distributes the scenarios. As a check, the recorded
policy is replayed too, and its result must be close to the recording.
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
from freshq.simulate import Load, simulate_load, summarize
from freshq_pipeline.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import DataFrame, SparkSession

TOLERANCE: Final = 0.05
# Cancelled tasks are no load.
LOAD: Final = "outcome <> 'cancelled'"
COLUMNS: Final = ("created_ms", "deadline_ms", "first_taken_ms", "run_seconds", "priority", "outcome")
# For a task without a deadline.
NO_DEADLINE_SECONDS: Final = 100 * 365 * 86_400.0


@dataclass(frozen=True, slots=True)
class Grid:
    """Which scenarios to replay.

    Attributes:
        policies: Orders of service.
        capacities: Multiples of the recorded capacity.
        deadlines_seconds: Ages at which tasks become stale; None: the recorded deadlines.
        recorded: The order of service when the events were recorded.
        servers: Tasks in progress at a time in the recording; None: estimated from it.
        seed: Seed for drawing service times.
    """

    policies: tuple[Order, ...] = (Order.LIFO, Order.FIFO, Order.ADAPTIVE)
    capacities: tuple[float, ...] = (0.5, 1.0, 2.0)
    deadlines_seconds: tuple[float | None, ...] = (None,)
    recorded: Order = Order.LIFO
    servers: int | None = None
    seed: int = 1

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            BadInput: If a number is out of range.
        """
        for name, values in (("capacity", self.capacities), ("deadline-seconds", self.deadlines_seconds)):
            if any(value is not None and not 0 < value < float("inf") for value in values):
                msg = f"{name}: must be greater than 0, got {', '.join(map(str, values))}"
                raise BadInput(msg)
        if self.servers is not None and self.servers < 1:
            msg = f"servers: must be 1 or more, got {self.servers}"
            raise BadInput(msg)


@dataclass(frozen=True, slots=True)
class Recorded:
    """The recorded load and its outcome.

    Attributes:
        created: Creation time of each task, in seconds since the first.
        service: Service time of each task, in seconds.
        deadline: Deadline of each task, on the clock of `created`.
        levels: Priority of each task.
        imputed: Number of service times drawn for tasks that were never served.
        servers: Number of tasks in progress at a time.
        in_time: Number of tasks that succeeded or failed by their deadline.
        shed: Number of tasks that were shed.
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


def recorded_load(tasks: DataFrame, grid: Grid) -> Recorded:
    """Return the recorded load of a table `tasks`.

    Raises:
        BadInput: If no task was ever served, so that no service time is known.
    """
    rows = tasks.where(LOAD).select(*COLUMNS).toArrow().sort_by("created_ms")
    column = {name: rows[name].to_numpy() for name in COLUMNS if name != "outcome"}
    outcome = np.asarray(rows["outcome"].to_pylist(), dtype=object)
    service = column["run_seconds"].astype(float)
    # A released task used no server.
    known = np.nan_to_num(service) > 0
    if not known.any():
        raise BadInput("events: no task was ever served, so no service time is known")
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
    """Return the number of servers: the median of the tasks in progress while other tasks waited.

    While tasks wait no server is idle. If no task ever waited, it is the maximum of the tasks in progress.
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
        return max(1, int(working.max()))
    by_size = np.argsort(working, kind="stable")
    middle = np.searchsorted(np.cumsum(weights[by_size]), weights.sum() / 2)
    return max(1, int(working[by_size][middle]))


def replay(spark: SparkSession, tasks: DataFrame, grid: Grid) -> dict[str, Any]:
    """Return the result of each scenario, with the recorded load and the check against it.

    Args:
        spark: The session.
        tasks: The table `tasks`.
        grid: The scenarios.
    """
    record = recorded_load(tasks, grid)
    wanted = [(grid.recorded, 1.0, None), *product(grid.policies, grid.capacities, grid.deadlines_seconds)]
    scenarios = list(dict.fromkeys(wanted))
    rows = [
        (place, str(order), capacity, deadline) for place, (order, capacity, deadline) in enumerate(scenarios)
    ]
    frame = spark.createDataFrame(rows, "place int, policy string, capacity double, deadline_seconds double")
    # One partition per scenario: they are few and slow.
    spread = frame.repartition(len(rows), F.col("place"))
    shipped = spark.sparkContext.broadcast(record)
    try:
        simulated = spread.mapInArrow(
            partial(_simulate, shipped=shipped, seed=grid.seed), "place int, result string"
        ).collect()
    finally:
        shipped.destroy()
    results = [json.loads(row["result"]) for row in sorted(simulated, key=lambda row: row["place"])]
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
    rules = OverloadRules(deadline_seconds or record.max_age_seconds, Order(row["policy"]))
    result = asdict(summarize(simulate_load(record.load(deadline_seconds), rules, servers, seed)))
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
            "A task that was never served gets the service time of a random served task. If unserved tasks "
            "take longer, the replay is optimistic. All attempts of a task count as one service; pauses "
            "between attempts are not replayed. Cancelled tasks are left out."
        ),
    }


def _check(record: Recorded, result: dict[str, Any]) -> dict[str, Any]:
    """Return the difference between the replay of the recorded policy and the recording."""
    difference = abs(result["served_in_time"] - record.in_time) / max(1, record.in_time)
    return {
        "policy": result["policy"],
        "served_in_time_recorded": record.in_time,
        "served_in_time_replayed": result["served_in_time"],
        "difference_ratio": difference,
        "within": difference <= TOLERANCE,
        "tolerance": TOLERANCE,
    }


def parse_numbers(name: str, text: str) -> tuple[float, ...]:
    """Return numbers from text, separated by commas.

    Raises:
        BadInput: If a part is not a number.
    """
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        msg = f"{name}: must be numbers separated by commas, got {text!r}"
        raise BadInput(msg) from None


def parse_orders(text: str) -> tuple[Order, ...]:
    """Return orders of service from text, separated by commas.

    Raises:
        BadInput: If a part is not an order of service.
    """
    try:
        return tuple(Order(part) for part in text.split(","))
    except ValueError:
        known: Sequence[str] = [order.value for order in Order]
        msg = f"policies: must be of {', '.join(known)}, separated by commas, got {text!r}"
        raise BadInput(msg) from None
