"""Run scenarios through the simulator, which uses the worker's policy objects, on Spark's executors.

The simulator knows when a task starts and how long it keeps a server; the recording knows how it ends.
Outcomes are counted as in the table `tasks`.
"""

from __future__ import annotations

from array import array
from dataclasses import asdict, replace
from functools import partial
from itertools import accumulate, product
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from freshq.policy.order import Order
from freshq.policy.rules import OverloadRules
from freshq.policy.shedding import ShedReason
from freshq.simulate import simulate_load, summarize
from freshq.simulate.backlog import Fates
from freshq_pipeline.replays.grid import POLICIES
from freshq_pipeline.replays.record import Counts, Ending

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from pyspark import Broadcast
    from pyspark.sql import SparkSession

    from freshq.simulate import Simulation
    from freshq_pipeline.replays.grid import Grid
    from freshq_pipeline.replays.record import Recorded


# Fates unknown to the simulator.
FAILED: Final = 253
PENDING: Final = 254
# The fate of tasks whose end was not recorded; it is counted neither in the recording nor in the replay.
UNKNOWN: Final = 255
_EXPIRED: Final = Fates.SHED[ShedReason.EXPIRED]
_SERVED: Final = (Fates.IN_TIME, Fates.LATE)
# Measures that recorded loads do not have.
_LEFT_OUT: Final = ("by_group", "recovery_seconds", "value")


def measures(simulation: Simulation, record: Recorded, deadline_seconds: float | None) -> dict[str, Any]:
    """Return the measures of a simulation, named as in `simulate.Result` and `Counts`.

    Args:
        simulation: Simulation of the recorded load.
        record: The recorded load.
        deadline_seconds: Max age in the simulation; None: the recorded deadlines.
    """
    served = np.isin(_codes(simulation), _SERVED)
    codes = _fates(simulation, record, record.deadlines(deadline_seconds), served)
    # Values are counted here, because the simulator knows neither pauses nor failures.
    load = replace(simulation.load, created=array("d", record.created.tobytes()), values=())
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
        **_values(record, codes, _done(simulation, record), deadline_seconds),
    }
    counted = asdict(found)
    del counted["shed"]
    return {name: value for name, value in result.items() if name not in _LEFT_OUT} | counted | more


def _done(simulation: Simulation, record: Recorded) -> NDArray[np.float64]:
    """Return when each task is done, if it is served."""
    done: NDArray[np.float64] = np.frombuffer(simulation.starts) + record.service + record.pause
    return done


def _values(
    record: Recorded, codes: NDArray[np.uint8], done: NDArray[np.float64], deadline_seconds: float | None
) -> dict[str, float]:
    """Return the value offered and delivered; 0 if no task of the recording has a value."""
    if record.value_delivered is None:
        return {"value_offered": 0.0, "value_delivered": 0.0}
    in_time = codes == Fates.IN_TIME
    delivered = record.worth(done, deadline_seconds)[in_time].sum()
    offered = record.values[codes != UNKNOWN].sum()
    return {"value_offered": float(offered), "value_delivered": float(delivered)}


def _fates(
    simulation: Simulation, record: Recorded, deadline: NDArray[np.float64], served: NDArray[np.bool_]
) -> NDArray[np.uint8]:
    """Return the fate of each task, given its recorded pauses and ending.

    A task that starts after the end of the recording still waits at the end, unless it is stale by then.
    """
    codes, starts = _codes(simulation).copy(), np.frombuffer(simulation.starts)
    done = _done(simulation, record)
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
    """Compare the replay of the recorded policy with the recording.

    Args:
        record: The recorded load of a queue.
        result: Result of its recorded policy at its recorded capacity.
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
        # Possible reasons for a difference.
        **asdict(record.occupied),
        "shed_early": record.shed_early,
        "inverted_ratio": record.inverted_ratio,
    }


# Order, multiple of the recorded capacity, and max age in seconds or None.
_Scenario: TypeAlias = "tuple[str, float, float | None]"
# A scenario after the number of its load.
_Row: TypeAlias = "tuple[int, str, float, float | None]"
_IMPUTATION: Final = (
    "Tasks that were never served get the run time and outcome of a random served task, so the replay is "
    "optimistic if unserved tasks take longer. Tasks that failed or became stale between attempts do so in "
    "every replay. All attempts of a task run as one, followed by the pauses between them. "
    "Tasks that were cancelled or buried while they waited are left out."
)


def replayed(spark: SparkSession, loads: list[Recorded], grid: Grid) -> dict[str, Any]:
    """Return the result of each scenario of each queue, with the recorded load and the check against it.

    The first scenario of each queue is its recorded policy. `record` adds up all queues, and `check` is for
    the queue with the largest difference.

    Args:
        spark: The session.
        loads: The recorded load of each queue.
        grid: The scenarios.
    """
    chosen = [distinct(load, _wanted(load, grid)) for load in loads]
    rows = [(number, *scenario) for number, scenarios in enumerate(chosen) for scenario in scenarios]
    results = _simulated(spark, loads, rows, grid.seed)
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


def _wanted(load: Recorded, grid: Grid) -> list[_Scenario]:
    """Return the scenarios of a load. If its tasks have values, orders that look at them are among these."""
    policies = grid.policies
    if policies is None:
        policies = POLICIES if load.value_delivered is None else (*POLICIES, Order.VALUE, Order.DEADLINE)
    return [(grid.recorded, 1.0, None), *product(policies, grid.capacities, grid.deadlines_seconds)]


def distinct(load: Recorded, wanted: Sequence[_Scenario]) -> list[_Scenario]:
    """Return scenarios with different numbers of servers; of equal ones, that with the nearest capacity."""
    base = load.occupied.servers
    nearest: dict[tuple[str, int, float | None], _Scenario] = {}
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
    spark: SparkSession, loads: list[Recorded], rows: Sequence[_Row], seed: int
) -> list[dict[str, Any]]:
    """Return the results of scenarios, each given with the number of its load, in order."""
    shipped = spark.sparkContext.broadcast(loads)
    try:
        # One partition per scenario: scenarios are few and slow.
        spread = spark.sparkContext.parallelize(rows, len(rows))
        return spread.map(partial(_simulate, shipped, seed)).collect()
    finally:
        shipped.destroy()


def _simulate(shipped: Broadcast[list[Recorded]], seed: int, row: _Row) -> dict[str, Any]:
    number, policy, capacity, deadline_seconds = row
    record = shipped.value[number]
    servers = _servers(record.occupied.servers, capacity)
    rules = OverloadRules(deadline_seconds or record.max_age_seconds, Order(policy))
    simulation = simulate_load(record.load(deadline_seconds), rules, servers, seed)
    named = {"policy": policy, "capacity": capacity, "deadline_seconds": deadline_seconds, "servers": servers}
    return {"queue": record.queue} | named | measures(simulation, record, deadline_seconds)
