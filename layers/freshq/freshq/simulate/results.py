"""The measures of a simulation."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from math import ceil, fsum
from operator import add, and_, ge, mul, not_, or_, sub
from typing import TYPE_CHECKING, Final

from freshq.simulate.backlog import Fates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from freshq.policy.shedding import ShedReason
    from freshq.simulate.engine import Simulation
    from freshq.simulate.load import Burst, Load
    from freshq.simulate.stress import Dip

# Recovered: of this many consecutive arrivals, this share of the usual number was served in time.
RECOVERY_TASKS: Final = 50
RECOVERY_SHARE: Final = 0.9
# Goodput is reported by periods of this length, for at most this many: 115 days.
PERIOD_SECONDS: Final = 10.0
MAX_PERIODS: Final = 1_000_000


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
class LevelResult:
    """The measures of one priority level.

    Attributes:
        offered: Tasks that were put.
        served_in_time: Tasks done by their deadline.
        wait_mean_seconds: Mean wait of all served tasks, from arrival to start; None if none was served.
        wait_second_moment_square_seconds: Mean of the squares of these waits.
    """

    offered: int
    served_in_time: int
    wait_mean_seconds: float | None
    wait_second_moment_square_seconds: float | None


@dataclass(frozen=True, slots=True)
class ValueResult:
    """What the tasks of a simulation were worth.

    Attributes:
        delivered: Value of the tasks done by their deadline, less what had decayed by then.
        offered: Value of all tasks, without those that clients put again.
        of_offered_ratio: The value delivered, as a share of this.
        possible: The most that can be expected; see `possible_value`.
        of_possible_ratio: The value delivered, as a share of this.
    """

    delivered: float
    offered: float
    of_offered_ratio: float
    possible: float
    of_possible_ratio: float


@dataclass(frozen=True, slots=True)
class Result:
    """The measures of one simulation.

    Attributes:
        goodput_ratio: Tasks done by their deadline while tasks arrived, as a share of capacity: of the work
            that the servers could have done in that time at the mean service time.
        load: Service time offered per second of a server.
        shed_ratio: Share of the offered tasks that were shed.
        wait_p50_seconds: Median wait of the tasks served in time, from arrival to start; None if none was.
        wait_p99_seconds: 99th percentile of the same.
        wasted_ratio: Share of the servers' work spent on tasks that ended after their deadline.
        shed_by_reason: Number of shed tasks by reason.
        recovery_seconds: Time from the end of the burst or dip until arrivals are served in time again; None
            without a burst, a dip or a recovery.
        offered: Tasks that were put; each is served in time, served late or shed.
        put_again: Number of these that a client repeated, because it had no answer in time.
        served_in_time: Tasks done by their deadline, also after the last arrival.
        served_late: Tasks done after their deadline.
        order_switches: Number of switches of an adaptive order.
        by_level: Measures by priority level.
        goodput_by_10_seconds: Tasks done in time, per second, in each 10 seconds while tasks arrived; empty
            if there are more than `MAX_PERIODS`.
        by_group: Measures by group, if there are groups.
        value: What the tasks were worth; None if they have no values.
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
    put_again: int
    served_in_time: int
    served_late: int
    order_switches: int
    by_level: dict[str, LevelResult]
    goodput_by_10_seconds: list[float]
    by_group: dict[str, GroupResult] = field(default_factory=dict)
    value: ValueResult | None = None


def summarize(simulation: Simulation, trigger: Burst | Dip | None = None) -> Result:
    """Return the measures of a simulation.

    Args:
        simulation: The fate of every task.
        trigger: The burst that was part of its load, or the dip that was part of its stress.
    """
    load, fates = simulation.load, simulation.fates
    offered = len(load)
    in_time, late = _mask(fates, Fates.IN_TIME), _mask(fates, Fates.LATE)
    waits = waits_in_time(simulation)
    ends = list(map(add, compress(simulation.starts, in_time), compress(load.service, in_time)))
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
        recovery_seconds=None if trigger is None else _recovery_seconds(simulation, trigger),
        offered=offered,
        put_again=simulation.put_again,
        served_in_time=len(waits),
        served_late=sum(late),
        order_switches=len(simulation.switches),
        by_level=_by_level(simulation),
        goodput_by_10_seconds=_by_period(ends, load.duration_seconds),
        by_group=_by_group(simulation),
        value=_value(simulation) if load.values else None,
    )


def _value(simulation: Simulation) -> ValueResult:
    load, requests = simulation.load, simulation.requests or simulation.load
    ends = enumerate(map(add, simulation.starts, load.service))
    delivered = fsum(load.worth(*end) for end in compress(ends, _mask(simulation.fates, Fates.IN_TIME)))
    offered, possible = fsum(requests.values), possible_value(requests, simulation.servers)
    return ValueResult(delivered, offered, _ratio(delivered, offered), possible, _ratio(delivered, possible))


def possible_value(load: Load, servers: int) -> float:
    """Return the most that anybody could expect to deliver who knows all arrivals, but no service times.

    The servers' time from the first arrival to the last deadline is filled with the dearest tasks, each for
    the mean service time and the last one in part (Dantzig's bound of the knapsack, 1957). Each is worth as
    much as if it started on arrival, and nothing if it would end too late even then.
    """
    worths = list(map(load.worth, range(len(load)), map(add, load.created, load.service)))
    dearest_first = sorted(filter(worths.__getitem__, range(len(load))), key=lambda task: -worths[task])
    per_second = servers * _ratio(len(load), fsum(load.service))
    return _possible_value(load, per_second, worths, dearest_first)


def _possible_value(load: Load, per_second: float, worths: Sequence[float], tasks: Sequence[int]) -> float:
    """Return the bound for some tasks, the dearest first, if some can be done per second.

    The bound of the tasks that arrive in the first half of the time and that of the others may add up to
    less, because nobody does the work of a busy time before it arrives or after its deadlines.
    """
    created = list(map(load.created.__getitem__, tasks))
    deadlines = map(load.deadline.__getitem__, tasks)
    start, end = min(created, default=0.0), max(deadlines, default=0.0)
    room = per_second * (end - start)
    if room >= len(tasks):
        return fsum(map(worths.__getitem__, tasks))
    last = int(room)
    bound = fsum(map(worths.__getitem__, tasks[:last])) + (room - last) * worths[tasks[last]]
    middle = (start + max(created)) / 2
    is_later = list(map(middle.__lt__, created))
    if not any(is_later):
        return bound
    earlier, later = compress(tasks, map(not_, is_later)), compress(tasks, is_later)
    return min(bound, sum(_possible_value(load, per_second, worths, [*half]) for half in (earlier, later)))


def waits_in_time(simulation: Simulation) -> list[float]:
    """Return the waits of the tasks served in time, ascending, in seconds."""
    in_time = _mask(simulation.fates, Fates.IN_TIME)
    return sorted(map(sub, compress(simulation.starts, in_time), compress(simulation.load.created, in_time)))


def percentile(ascending: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least a `share` of the values does not exceed."""
    return ascending[max(0, ceil(share * len(ascending)) - 1)] if ascending else None


def _mask(fates: bytes | bytearray, code: int) -> bytes:
    """Return 1 for each task of this fate or level, 0 for other tasks."""
    return bytes(fates.translate(bytes(int(value == code) for value in range(256))))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _by_period(ends: Sequence[float], duration_seconds: float) -> list[float]:
    """Return the rate, per second, of tasks that end in each period of the duration."""
    count = ceil(duration_seconds / PERIOD_SECONDS)
    if count > MAX_PERIODS:
        return []
    counts = [0] * count
    for end in ends:
        if end < duration_seconds:
            counts[int(end / PERIOD_SECONDS)] += 1
    rates = [number / PERIOD_SECONDS for number in counts]
    if rates:
        # The last period may be shorter.
        rates[-1] = counts[-1] / (duration_seconds - PERIOD_SECONDS * (count - 1))
    return rates


def _by_level(simulation: Simulation) -> dict[str, LevelResult]:
    """Return the measures of each level, by its number."""
    load, fates = simulation.load, simulation.fates
    levels = bytes(load.levels) or bytes(len(load))
    in_time = _mask(fates, Fates.IN_TIME)
    served = bytes(map(or_, in_time, _mask(fates, Fates.LATE)))
    results = {}
    for level in sorted(set(levels), reverse=True):
        own = _mask(levels, level)
        chosen = bytes(map(and_, served, own))
        waits = list(map(sub, compress(simulation.starts, chosen), compress(load.created, chosen)))
        count = len(waits)
        results[str(level)] = LevelResult(
            offered=sum(own),
            served_in_time=sum(map(and_, in_time, own)),
            wait_mean_seconds=fsum(waits) / count if count else None,
            wait_second_moment_square_seconds=fsum(map(mul, waits, waits)) / count if count else None,
        )
    return results


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


def _recovery_seconds(simulation: Simulation, trigger: Burst | Dip) -> float | None:
    """Return when, after the trigger, the first `RECOVERY_TASKS` consecutive arrivals did well.

    They did well if their share served in time is at least `RECOVERY_SHARE` times the share before the
    trigger.
    """
    load = simulation.load
    before = bisect_left(load.deadline, trigger.start)
    usual = _ratio(simulation.fates[:before].count(Fates.IN_TIME), before) if before else 1.0
    enough = RECOVERY_SHARE * usual * RECOVERY_TASKS
    first = bisect_left(load.created, trigger.end)
    good = 0
    for task in range(first, len(load)):
        good += simulation.fates[task] == Fates.IN_TIME
        start = task - RECOVERY_TASKS + 1
        if start >= first:
            if good >= enough:
                return load.created[start] - trigger.end
            good -= simulation.fates[start] == Fates.IN_TIME
    return None
