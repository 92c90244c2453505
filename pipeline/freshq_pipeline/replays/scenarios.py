"""What a simulation says of a recorded load, counted as the table `tasks` counts the recording.

The simulator knows when a task starts, and how long a server has it. The recording knows how it ends.
"""

from __future__ import annotations

import json
from array import array
from dataclasses import asdict, replace
from functools import partial
from itertools import accumulate, product
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from freshq.policy.order import Order
from freshq.policy.rules import OverloadRules
from freshq.policy.shedding import ShedReason
from freshq.simulate import simulate_load, summarize
from freshq.simulate.backlog import Fates
from freshq_pipeline.replays.record import Counts, Ending

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    from freshq.simulate import Simulation
    from freshq_pipeline.replays.grid import Grid
    from freshq_pipeline.replays.record import Recorded


# Fates that the simulator does not have.
FAILED: Final = 253
PENDING: Final = 254
# Of a task whose end was not recorded: it is counted on neither side.
UNKNOWN: Final = 255
_EXPIRED: Final = Fates.SHED[ShedReason.EXPIRED]
_SERVED: Final = (Fates.IN_TIME, Fates.LATE)
# Not of recorded loads.
_LEFT_OUT: Final = ("by_group", "recovery_seconds")


def measures(simulation: Simulation, record: Recorded, deadline_seconds: float | None) -> dict[str, Any]:
    """Return the measures of a simulation, by the names of `simulate.Result` and `Counts`.

    Args:
        simulation: The simulation of a load of the record.
        record: The recorded load.
        deadline_seconds: Max age of that load; None: as recorded.
    """
    served = np.isin(_codes(simulation), _SERVED)
    codes = _fates(simulation, record, record.deadlines(deadline_seconds), served)
    load = replace(simulation.load, created=array("d", record.created.tobytes()))
    result = asdict(summarize(replace(simulation, load=load, fates=bytearray(codes.tobytes()))))
    found = _counts(codes)
    shed = {str(reason): int((codes == code).sum()) for reason, code in Fates.SHED.items()}
    worked = served & ~np.isin(codes, (PENDING, UNKNOWN))
    seconds = record.service[worked].sum()
    wasted = record.service[worked & (codes != Fates.IN_TIME)].sum()
    more = {
        "offered": found.offered,
        "shed_by_reason": shed,
        "shed_ratio": found.shed / max(1, found.offered),
        "wasted_ratio": float(wasted / seconds) if seconds else 0.0,
    }
    counted = asdict(found)
    del counted["shed"]
    return {name: value for name, value in result.items() if name not in _LEFT_OUT} | counted | more


def _fates(
    simulation: Simulation, record: Recorded, deadline: NDArray[np.float64], served: NDArray[np.bool_]
) -> NDArray[np.uint8]:
    """Return the fate of each task, with the pauses and the ending that were recorded.

    A task that begins after the end of the recording still waits then, unless it is stale by then.
    """
    codes, starts = _codes(simulation).copy(), np.frombuffer(simulation.starts)
    done = starts + record.service + record.pause
    codes[served & (done > deadline)] = Fates.LATE
    codes[served & (record.endings == Ending.FAILURE)] = FAILED
    codes[served & (record.endings == Ending.SHED)] = _EXPIRED
    codes[served & (starts > record.end)] = PENDING
    codes[~served & (deadline > record.end)] = PENDING
    codes[record.endings == Ending.UNKNOWN] = UNKNOWN
    return codes


def _codes(simulation: Simulation) -> NDArray[np.uint8]:
    return np.frombuffer(simulation.fates, dtype=np.uint8)


def _counts(codes: NDArray[np.uint8]) -> Counts:
    counts = np.bincount(codes, minlength=UNKNOWN + 1)
    shed = sum(int(counts[code]) for code in Fates.SHED.values())
    in_time, late, failed, pending = (
        int(counts[code]) for code in (Fates.IN_TIME, Fates.LATE, FAILED, PENDING)
    )
    return Counts(in_time, late, failed, shed, pending)


TOLERANCE: Final = 0.05


def check(record: Recorded, result: dict[str, Any]) -> dict[str, Any]:
    """Return the difference between the replay of the recorded policy and the recording.

    Args:
        record: The recorded load of a queue.
        result: Result of its recorded policy at the recorded capacity.
    """
    recorded, replayed = record.counts.served_in_time, result["served_in_time"]
    ratio = abs(replayed - recorded) / max(1, recorded)
    return {
        "queue": record.queue,
        "policy": result["policy"],
        "served_in_time_recorded": recorded,
        "served_in_time_replayed": replayed,
        "difference_ratio": ratio,
        "within": ratio <= TOLERANCE,
        "tolerance": TOLERANCE,
        # What may explain a difference.
        "servers": record.occupied.servers,
        "mean_servers": record.occupied.mean_servers,
        "idle_ratio": record.occupied.idle_ratio,
        "surplus_ratio": record.occupied.surplus_ratio,
        "shed_early": record.shed_early,
        "inverted_ratio": record.inverted_ratio,
    }


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
