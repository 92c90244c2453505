"""The scenarios through the simulator, which runs the policy objects of the worker, spread by Spark."""

from __future__ import annotations

import json
from functools import partial
from itertools import accumulate, product
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
from pyspark.sql import functions as F

from freshq.policy.order import Order
from freshq.policy.rules import OverloadRules
from freshq.simulate import simulate_load
from freshq_pipeline.replays.check import check
from freshq_pipeline.replays.outcomes import measures

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from freshq_pipeline.replays.grid import Grid
    from freshq_pipeline.replays.record import Recorded

# Order, capacity as a multiple of the recorded one, and max age in seconds or None.
_Scenario: TypeAlias = "tuple[str, float, float | None]"
_SCHEMA: Final = "place int, load int, policy string, capacity double, deadline_seconds double"
_IMPUTATION: Final = (
    "A task that was never served runs and ends as a random served task did; if unserved tasks take longer, "
    "the replay is optimistic. A task that failed or went stale between attempts does so in every replay. "
    "All attempts of a task run as one, and its pauses between them follow. "
    "Tasks that were cancelled or buried while they waited are left out."
)


def replayed(spark: SparkSession, loads: list[Recorded], grid: Grid) -> dict[str, Any]:
    """Return the result of each scenario of each queue, with the recorded load and the check against it.

    The first scenario of each queue is its recorded policy. `record` sums up all queues, and `check` is the
    one of the queue whose replay is furthest off.

    Args:
        spark: The session.
        loads: The recorded load of each queue.
        grid: The scenarios.
    """
    wanted = [(grid.recorded, 1.0, None), *product(grid.policies, grid.capacities, grid.deadlines_seconds)]
    chosen = [distinct(load, wanted) for load in loads]
    rows = [(number, *scenario) for number, scenarios in enumerate(chosen) for scenario in scenarios]
    results = _simulated(spark, loads, [(place, *row) for place, row in enumerate(rows)], grid.seed)
    firsts = accumulate(map(len, chosen[:-1]), initial=0)
    queues: list[dict[str, Any]] = [
        {"queue": load.queue, "record": load.figures(), "check": check(load, results[first])}
        for load, first in zip(loads, firsts, strict=True)
    ]
    names = loads[0].figures()
    total = {name: sum(one["record"][name] for one in queues) for name in names}
    return {
        "record": total | {"imputation": _IMPUTATION},
        "check": max((one["check"] for one in queues), key=lambda found: found["difference_ratio"]),
        "queues": queues,
        "scenarios": results,
    }


def distinct(load: Recorded, wanted: Sequence[_Scenario]) -> list[_Scenario]:
    """Return the scenarios that differ, as servers are whole: of those that do not, the nearest capacity."""
    base = load.occupied.servers
    nearest: dict[tuple[str, int, float | None], tuple[str, float, float | None]] = {}
    for order, capacity, deadline in wanted:
        servers = _servers(base, capacity)
        key = (str(order), servers, deadline)
        known = nearest.get(key)
        if known is None or abs(servers - base * capacity) < abs(servers - base * known[1]):
            nearest[key] = (str(order), float(capacity), None if deadline is None else float(deadline))
    return list(nearest.values())


def _servers(base: int, capacity: float) -> int:
    return max(1, round(base * capacity))


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


def _simulate(batches: Iterator[pa.RecordBatch], shipped: Any, seed: int) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = batch.to_pylist()
        results = [json.dumps(_scenario(shipped.value[row["load"]], row, seed)) for row in rows]
        yield pa.RecordBatch.from_arrays(
            [pa.array([row["place"] for row in rows], pa.int32()), pa.array(results)], ["place", "result"]
        )


def _scenario(record: Recorded, row: dict[str, Any], seed: int) -> dict[str, Any]:
    deadline_seconds = row["deadline_seconds"]
    servers = _servers(record.occupied.servers, row["capacity"])
    rules = OverloadRules(deadline_seconds or record.max_age_seconds, Order(row["policy"]))
    simulation = simulate_load(record.load(deadline_seconds), rules, servers, seed)
    named = {name: row[name] for name in ("policy", "capacity", "deadline_seconds")}
    return (
        {"queue": record.queue}
        | named
        | {"servers": servers}
        | measures(simulation, record, deadline_seconds)
    )
