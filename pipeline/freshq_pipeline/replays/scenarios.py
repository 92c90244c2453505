"""The scenarios through the simulator, which runs the policy objects of the worker, spread by Spark."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F

from freshq.policy.order import Order
from freshq.policy.rules import OverloadRules
from freshq.simulate import simulate_load, summarize
from freshq_pipeline.replays.check import check
from freshq_pipeline.replays.record import recorded_loads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from freshq_pipeline.replays.grid import Grid
    from freshq_pipeline.replays.record import Recorded

_SCHEMA: Final = "place int, load int, policy string, capacity double, deadline_seconds double"
_IMPUTATION: Final = (
    "A task that was never served gets the service time of a random served task. If unserved tasks "
    "take longer, the replay is optimistic. All attempts of a task count as one service; pauses "
    "between attempts are not replayed. Cancelled tasks are left out."
)


def replayed(spark: SparkSession, tasks: DataFrame, grid: Grid) -> dict[str, Any]:
    """Return the result of each scenario of each queue, with the recorded load and the check against it.

    The first scenario of each queue is its recorded policy. `record` sums up all queues, and `check` is the
    one of the queue whose replay is furthest off.

    Args:
        spark: The session.
        tasks: The table `tasks`.
        grid: The scenarios.

    Raises:
        BadInput: If no task was ever served, or the wanted queue has no tasks.
    """
    loads = recorded_loads(tasks, grid)
    wanted = [(grid.recorded, 1.0, None), *product(grid.policies, grid.capacities, grid.deadlines_seconds)]
    scenarios = list(dict.fromkeys(wanted))
    rows = [
        (load * len(scenarios) + place, load, str(order), float(capacity), deadline and float(deadline))
        for load in range(len(loads))
        for place, (order, capacity, deadline) in enumerate(scenarios)
    ]
    results = _simulated(spark, loads, rows, grid.seed)
    queues: list[dict[str, Any]] = [
        {"queue": load.queue, "record": load.figures(), "check": check(load, result)}
        for load, result in zip(loads, results[:: len(scenarios)], strict=True)
    ]
    names = loads[0].figures()
    total = {name: sum(one["record"][name] for one in queues) for name in names}
    return {
        "record": total | {"imputation": _IMPUTATION},
        "check": max((one["check"] for one in queues), key=lambda found: found["difference_ratio"]),
        "queues": queues,
        "scenarios": results,
    }


def _simulated(
    spark: SparkSession, loads: list[Recorded], rows: list[tuple[Any, ...]], seed: int
) -> list[dict[str, Any]]:
    """Return the results of scenarios, in order."""
    # One partition per scenario: they are few and slow.
    spread = spark.createDataFrame(rows, _SCHEMA).repartition(len(rows), F.col("place"))
    shipped = spark.sparkContext.broadcast(loads)
    try:
        simulated = spread.mapInArrow(
            partial(_simulate, shipped=shipped, seed=seed), "place int, result string"
        ).collect()
    finally:
        shipped.destroy()
    return [json.loads(row["result"]) for row in sorted(simulated, key=lambda row: row["place"])]


def _simulate(batches: Iterator[pa.RecordBatch], shipped: Any, seed: int) -> Iterator[pa.RecordBatch]:  # noqa: ANN401 - Spark's Broadcast
    for batch in batches:
        rows = batch.to_pylist()
        results = [json.dumps(_scenario(shipped.value[row["load"]], row, seed)) for row in rows]
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
    return {"queue": record.queue} | named | {"servers": servers} | result
