"""The measures of a simulation."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from math import ceil
from operator import add, ge, sub
from typing import TYPE_CHECKING, Final

from freshq.simulate.backlog import Fates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from freshq.policy.shedding import ShedReason
    from freshq.simulate.engine import Simulation
    from freshq.simulate.load import Burst

# Recovered: of this many consecutive arrivals, this share of the usual number was served in time.
RECOVERY_TASKS: Final = 50
RECOVERY_SHARE: Final = 0.9


@dataclass(frozen=True, slots=True)
class GroupResult:
    """The measures of one group.

    Attributes:
        offered: Tasks that arrived.
        served_in_time: Tasks done by their deadline.
        wait_p50_seconds: Median wait of these; None if there are none.
        wait_p99_seconds: 99th percentile.
    """

    offered: int
    served_in_time: int
    wait_p50_seconds: float | None
    wait_p99_seconds: float | None


@dataclass(frozen=True, slots=True)
class Result:
    """The measures of one simulation.

    Attributes:
        goodput_ratio: Tasks done by their deadline while tasks arrived, as a share of capacity: of what the
            servers could have done in that time at the mean service time.
        load: Service time offered per second of a server.
        shed_ratio: Share of the offered tasks that were shed.
        wait_p50_seconds: Median wait of the tasks served in time, from arrival to start; None if none was.
        wait_p99_seconds: 99th percentile of the same.
        wasted_ratio: Share of the servers' work spent on tasks that ended after their deadline.
        shed_by_reason: Number of shed tasks by reason.
        recovery_seconds: Time from the end of the burst until arrivals are served in time again; None
            without a burst or a recovery.
        offered: Tasks that arrived; each is served in time, served late or shed.
        served_in_time: Tasks done by their deadline, also after the last arrival.
        served_late: Tasks done after their deadline.
        order_switches: Number of switches of an adaptive order.
        by_group: Measures by group, if there are groups.
    """

    goodput_ratio: float
    load: float
    shed_ratio: float
    wait_p50_seconds: float | None
    wait_p99_seconds: float | None
    wasted_ratio: float
    shed_by_reason: dict[ShedReason, int]
    recovery_seconds: float | None
    offered: int
    served_in_time: int
    served_late: int
    order_switches: int
    by_group: dict[str, GroupResult] = field(default_factory=dict)


def summarize(simulation: Simulation, burst: Burst | None = None) -> Result:
    """Return the measures of a simulation.

    Args:
        simulation: The fate of every task.
        burst: The burst that was part of its load.
    """
    load, fates = simulation.load, simulation.fates
    offered = len(load)
    in_time, late = _mask(fates, Fates.IN_TIME), _mask(fates, Fates.LATE)
    waits = waits_in_time(simulation)
    ends = map(add, compress(simulation.starts, in_time), compress(load.service, in_time))
    in_window = sum(map(partial(ge, load.duration_seconds), ends))
    wasted_seconds = sum(compress(load.service, late))
    worked_seconds = sum(compress(load.service, in_time)) + wasted_seconds
    arrived_seconds = sum(load.service)
    capacity = simulation.servers * load.duration_seconds
    by_reason = {reason: fates.count(code) for reason, code in Fates.SHED.items()}
    return Result(
        goodput_ratio=_ratio(in_window * _ratio(arrived_seconds, offered), capacity),
        load=_ratio(arrived_seconds, capacity),
        shed_ratio=_ratio(sum(by_reason.values()), offered),
        wait_p50_seconds=percentile(waits, 0.50),
        wait_p99_seconds=percentile(waits, 0.99),
        wasted_ratio=_ratio(wasted_seconds, worked_seconds),
        shed_by_reason=by_reason,
        recovery_seconds=None if burst is None else _recovery_seconds(simulation, burst),
        offered=offered,
        served_in_time=len(waits),
        served_late=sum(late),
        order_switches=len(simulation.switches),
        by_group=_by_group(simulation),
    )


def waits_in_time(simulation: Simulation) -> list[float]:
    """Return the waits of the tasks served in time, ascending, in seconds."""
    in_time = _mask(simulation.fates, Fates.IN_TIME)
    return sorted(map(sub, compress(simulation.starts, in_time), compress(simulation.load.created, in_time)))


def percentile(ascending: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least a `share` of the values does not exceed."""
    return ascending[max(0, ceil(share * len(ascending)) - 1)] if ascending else None


def _mask(fates: bytearray, code: int) -> bytes:
    """Return 1 for each task of this fate, 0 for other tasks."""
    return bytes(fates.translate(bytes(int(value == code) for value in range(256))))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _by_group(simulation: Simulation) -> dict[str, GroupResult]:
    """Return the measures of each group, by name."""
    load = simulation.load
    offered: dict[str, int] = {}
    waits: dict[str, list[float]] = {}
    for group, fate, start, created in zip(
        load.groups, simulation.fates, simulation.starts, load.created, strict=False
    ):
        name = "" if group is None else group
        offered[name] = offered.get(name, 0) + 1
        if fate == Fates.IN_TIME:
            waits.setdefault(name, []).append(start - created)
    results = {}
    for name in sorted(offered):
        own = sorted(waits.get(name, []))
        results[name] = GroupResult(offered[name], len(own), percentile(own, 0.50), percentile(own, 0.99))
    return results


def _recovery_seconds(simulation: Simulation, burst: Burst) -> float | None:
    """Return when, after the burst, the first `RECOVERY_TASKS` consecutive arrivals did well.

    They did well if their share served in time is at least `RECOVERY_SHARE` times the share before the
    burst.
    """
    load = simulation.load
    before = bisect_left(load.deadline, burst.start)
    usual = _ratio(simulation.fates[:before].count(Fates.IN_TIME), before) if before else 1.0
    enough = RECOVERY_SHARE * usual * RECOVERY_TASKS
    first = bisect_left(load.created, burst.end)
    good = 0
    for task in range(first, len(load)):
        good += simulation.fates[task] == Fates.IN_TIME
        start = task - RECOVERY_TASKS + 1
        if start >= first:
            if good >= enough:
                return load.created[start] - burst.end
            good -= simulation.fates[start] == Fates.IN_TIME
    return None
