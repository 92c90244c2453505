"""Forecast the future of a queue, from its recent flow and the tasks that wait.

The queue is simulated on from its present state, many times. Each run draws a rate of arrivals and a mean
service time that may have led to what was counted (the posteriors of a Poisson and of an exponential
distribution), so that the interval covers the error of the counts and the chance of the next minutes.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass, field, replace
from operator import add
from random import Random
from typing import TYPE_CHECKING, Final

from freshq.policy.order import Order
from freshq.policy.pressure import flow_window_seconds, wanted_servers
from freshq.policy.rules import ReserveRule
from freshq.simulate.backlog import Fates
from freshq.simulate.engine import MAX_SERVERS, Simulation, simulate_load
from freshq.simulate.load import Load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from freshq.policy.pressure import Pressure
    from freshq.policy.rules import OverloadRules

# Number of runs, and of runs that try other orders. Tasks of a run at most; more are simulated in batches.
RUNS: Final = 39
TRIED_RUNS: Final = 19
MOST_TASKS: Final = 3000
# Tasks put within this many seconds are followed, for at most this many seconds more.
FOLLOWED_SECONDS: Final = 60.0
MOST_SECONDS: Final = 600.0
# The life of a task that is older than the mean max age, as a multiple of its age.
LEFT_OF_LIFE: Final = 1.05
# No change is named if this share of the tasks is done in time.
ENOUGH_RATIO: Final = 0.99
# How long slots are remembered, and how often a forecast is made.
SLOTS_SECONDS: Final = 10.0
EVERY_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure, with the bounds of its 90 % interval."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, found: Sequence[float]) -> Interval:
        """Return the interval of the figures of runs: leaves out one in twenty at each end.

        Args:
            found: 19, 39, 59 and so on.
        """
        ordered, outside = sorted(found), (len(found) + 1) // 20 - 1
        return cls(ordered[len(ordered) // 2], ordered[outside], ordered[-1 - outside])

    @classmethod
    def nearest(cls, found: Sequence[float]) -> Interval:
        """Return an interval that has as nearly nine in ten of the figures of runs as their values allow.

        Many runs share a whole number, or the last deadline. Leaving out one run in twenty at each end would
        keep most of these values, and hold too often. So the end value with fewer runs is left out, and again
        while that brings the share closer to nine in ten.

        Args:
            found: One or more.
        """
        ordered, wanted = sorted(found), 0.9 * len(found)
        low, end = 0, len(ordered)
        while ordered[low] < ordered[end - 1]:
            after = bisect_right(ordered, ordered[low], low, end)
            before = bisect_left(ordered, ordered[end - 1], low, end)
            # Of equally rare values, the value that shortens the interval more.
            first = (after - low, ordered[low] - ordered[after])
            last = (end - before, ordered[before - 1] - ordered[before])
            shorter = (after, end) if first < last else (low, before)
            if abs(shorter[1] - shorter[0] - wanted) >= abs(end - low - wanted):
                break
            low, end = shorter
        return cls(ordered[len(ordered) // 2], ordered[low], ordered[end - 1])


@dataclass(frozen=True, slots=True)
class Moment:
    """The present state of a queue.

    Attributes:
        offered_per_second: Tasks put, over the last window.
        served_per_second: Tasks done, over the same time.
        window_seconds: Its length.
        service_seconds: Mean time of a task.
        slots: Number of tasks that can run at a time.
        in_work: Tasks in work.
        ages: Age of each waiting task, in seconds.
        own_ratio: Share of the tasks put with a max age of their own, shorter than the queue's.
        own_max_age_seconds: Mean of these max ages; None without any.
        by_value: The chance of new tasks by value, as in `Pressure`.
    """

    offered_per_second: float
    served_per_second: float
    window_seconds: float
    service_seconds: float
    slots: int
    in_work: int
    ages: Sequence[float]
    own_ratio: float = 0.0
    own_max_age_seconds: float | None = None
    by_value: Mapping[float, float] = field(default_factory=dict)

    def life_seconds(self, max_age_seconds: float) -> float:
        """Return the harmonic mean of the ages at which tasks are stale, given the queue's max age."""
        if self.own_max_age_seconds is None:
            return max_age_seconds
        return 1 / (self.own_ratio / self.own_max_age_seconds + (1 - self.own_ratio) / max_age_seconds)


@dataclass(frozen=True, slots=True)
class Forecast:
    """The future of a queue if its load stays as in the last minute.

    Attributes:
        slots: The slots that were assumed.
        in_time_ratio: Share of the tasks put in the next minute that will be done in time.
        backlog_in_time_ratio: The same for the tasks that wait now; None if there are none.
        backlog_over_seconds: When the last of these has been started or is stale, at most `horizon_seconds`.
        horizon_seconds: The period in which simulated tasks arrive.
        more_slots: Slots that are missing for the offered work, by `wanted_servers`.
        better_order: The order that completes most in time, if it completes more in at least 95 % of the
            runs.
        better_ratio: By how much it raises the share of all these tasks, waiting and new, that are done in
            time.
        by_value: The chance of new tasks from a value on, up to the next one; empty unless the queue is
            overloaded and serves by value.
    """

    slots: int
    in_time_ratio: Interval
    backlog_in_time_ratio: Interval | None
    backlog_over_seconds: Interval | None
    horizon_seconds: float
    more_slots: Interval
    better_order: Order | None
    better_ratio: Interval | None
    by_value: Mapping[float, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Scale:
    """The scale of a smaller queue, so that a run has few tasks.

    Attributes:
        batch: Tasks that one simulated task stands for.
        servers: Simulated servers.
        stretch: Multiple of the service time, if there are fewer slots than tasks in a batch.
        horizon_seconds: How long tasks arrive.
    """

    batch: int
    servers: int
    stretch: float
    horizon_seconds: float

    @classmethod
    def of(cls, moment: Moment, deadline_seconds: float) -> _Scale:
        horizon_seconds = min(FOLLOWED_SECONDS, deadline_seconds) + min(MOST_SECONDS, deadline_seconds)
        tasks = len(moment.ages) + moment.offered_per_second * horizon_seconds
        batch = math.ceil((tasks + 1) / MOST_TASKS)
        servers = max(1, round(moment.slots / batch))
        return cls(batch, servers, batch * servers / moment.slots, horizon_seconds)


def forecast(moment: Moment, rules: OverloadRules, seed: int = 1) -> Forecast:
    """Return a forecast. Priorities and groups are left out: it holds for all tasks together.

    Args:
        moment: The queue.
        rules: Its policy.
        seed: Seed of the runs.
    """
    scale = _Scale.of(moment, rules.deadline_seconds)
    rules = _learned(replace(rules, fair=False), moment.service_seconds * scale.stretch)
    runs = [_Run(moment, scale, rules, Random(f"{seed}/{number}")) for number in range(RUNS)]
    outcomes = [run.outcome(rules) for run in runs]
    better_order, better_ratio = _better_order(rules, runs[:TRIED_RUNS], outcomes[:TRIED_RUNS])
    over_seconds = [each.over_seconds for each in outcomes]
    return Forecast(
        slots=moment.slots,
        in_time_ratio=Interval.of([each.new_ratio for each in outcomes]),
        backlog_in_time_ratio=Interval.of([each.old_ratio for each in outcomes]) if moment.ages else None,
        backlog_over_seconds=Interval.nearest(over_seconds) if moment.ages else None,
        horizon_seconds=scale.horizon_seconds,
        more_slots=Interval.nearest([max(0, run.wanted - moment.slots) for run in runs]),
        better_order=better_order,
        better_ratio=better_ratio,
        by_value=moment.by_value,
    )


def _learned(rules: OverloadRules, service_seconds: float) -> OverloadRules:
    """Return the rules with the reserve that is learned from exponential service times."""
    quantile = rules.reserve.quantile
    if quantile is None:
        return rules
    seconds = min(-math.log(1 - quantile) * service_seconds, rules.deadline_seconds / 2)
    return replace(rules, reserve=ReserveRule(seconds))


def _better_order(
    rules: OverloadRules, runs: Sequence[_Run], outcomes: Sequence[_Outcome]
) -> tuple[Order, Interval] | tuple[None, None]:
    """Return the best of the other orders, and its gain, if it is clearly better.

    An order by value is not judged by the number of tasks in time.
    """
    if rules.order is Order.VALUE or Interval.of([each.ratio for each in outcomes]).median >= ENOUGH_RATIO:
        return None, None
    gains = []
    for order in (Order.LIFO, Order.ADAPTIVE, Order.FIFO):
        if order is not rules.order:
            reserve = ReserveRule(automatic=True).for_order(order, has_max_age=True)
            other = replace(rules, order=order, codel=None, reserve=reserve)
            found = [run.outcome(_learned(other, run.service_seconds)) for run in runs]
            gains.append(
                (order, Interval.of([n.ratio - o.ratio for n, o in zip(found, outcomes, strict=True)]))
            )
    best = max(gains, key=lambda each: each[1].median)
    return best if best[1].low > 0 else (None, None)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """Shares done in time of new tasks, waiting tasks and both; when no old task waits any longer."""

    new_ratio: float
    old_ratio: float
    ratio: float
    over_seconds: float


class _Run:
    """One possible future: its arrivals and service times, equal under all rules.

    Attributes:
        service_seconds: Its mean service time.
        wanted: The number of slots that its load needs.
    """

    def __init__(self, moment: Moment, scale: _Scale, rules: OverloadRules, rng: Random) -> None:
        self._scale = scale
        self._age_seconds = rules.deadline_seconds
        self._own = (moment.own_ratio, moment.own_max_age_seconds)
        window_seconds = moment.window_seconds
        # The posteriors of a rate and of a mean, by the prior of Jeffreys.
        rate = rng.gammavariate(moment.offered_per_second * window_seconds + 0.5, 1 / window_seconds)
        served = moment.served_per_second * window_seconds
        seconds = moment.service_seconds * served / rng.gammavariate(served + 0.5, 1)
        self.wanted = wanted_servers(rate, seconds, moment.life_seconds(rules.deadline_seconds))
        self.service_seconds = seconds * scale.stretch
        ages = sorted(moment.ages)[:: scale.batch]
        self._waiting = len(ages)
        self._load = self._drawn(rng, ages[::-1], moment.in_work / moment.slots, rate / scale.batch)

    def _drawn(self, rng: Random, ages: Sequence[float], busy_ratio: float, rate: float) -> Load:
        """Return running tasks, then waiting tasks, then new ones.

        Running tasks began before the first of the waiting tasks arrived. Their remaining time is as long as
        a whole service: it is exponential. Slots without a task are free at 0.
        """
        begin, servers, batch = -2.0 * max(self._age_seconds, 1.0), self._scale.servers, self._scale.batch
        in_work = min(servers, round(busy_ratio * servers))
        created = array("d", [begin]) * servers
        created.extend(-age for age in ages)
        now = 0.0
        while (now := now + rng.gammavariate(batch, 1 / batch) / rate) < self._scale.horizon_seconds:
            created.append(now)
        service = array("d", [rng.expovariate(1 / self.service_seconds) for _ in created])
        for task in range(servers):
            service[task] = (service[task] if task < in_work else 0.0) - begin
        deadline = array("d", [at + self._life_seconds(rng, at) for at in created])
        return Load(created, service, deadline, self._scale.horizon_seconds)

    def _life_seconds(self, rng: Random, created: float) -> float:
        """Return the age at which a task is stale, by the share of tasks with a max age of their own.

        Max ages differ around their mean, so a task that waits longer is about to be stale.
        """
        ratio, own_seconds = self._own
        if own_seconds is None or rng.random() >= ratio:
            return self._age_seconds
        waited_seconds = max(0.0, -created)
        return min(self._age_seconds, max(own_seconds, LEFT_OF_LIFE * waited_seconds))

    def outcome(self, rules: OverloadRules) -> _Outcome:
        """Return the fates of the tasks under some rules."""
        load, old = self._load, self._scale.servers
        done = simulate_load(load, rules, old)
        new = old + self._waiting
        end = bisect_left(load.created, min(FOLLOWED_SECONDS, self._age_seconds), new)
        over = max((self._over(done, task) for task in range(old, new)), default=0.0)
        return _Outcome(
            _share(done.fates[new:end]),
            _share(done.fates[old:new]),
            self._done(done) / max(1, len(load) - old),
            min(over, self._scale.horizon_seconds),
        )

    def _done(self, done: Simulation) -> int:
        """Return how many tasks are done in time while others arrive.

        Afterwards, tasks that an order left behind would have all slots for themselves.
        """
        ends = map(add, done.starts, self._load.service)
        pairs = zip(done.fates, ends, strict=True)
        return sum(fate == Fates.IN_TIME and end <= self._scale.horizon_seconds for fate, end in pairs)

    def _over(self, done: Simulation, task: int) -> float:
        """Return when a task stops waiting."""
        if done.fates[task] in (Fates.IN_TIME, Fates.LATE):
            return max(0.0, done.starts[task])
        return self._load.deadline[task]


def _share(fates: bytearray) -> float:
    return fates.count(Fates.IN_TIME) / len(fates) if fates else 1.0


@dataclass(frozen=True, slots=True)
class WaitingTasks:
    """The tasks that wait.

    Attributes:
        tasks: How many.
        oldest_seconds: Age of the oldest; None if none waits.
        created: Returns the creation times of the newest of them, in seconds.
    """

    tasks: int
    oldest_seconds: float | None
    created: Callable[[], Iterable[float]]

    def ages(self, now: float) -> list[float]:
        """Return the age of each; ages that are not read are spread up to the oldest."""
        ages = sorted(max(0.0, now - at) for at in self.created())[: self.tasks]
        unread, youngest = self.tasks - len(ages), max(ages, default=0.0)
        step_seconds = max(0.0, (self.oldest_seconds or 0.0) - youngest) / max(1, unread)
        return ages + [youngest + step_seconds * number for number in range(1, unread + 1)]


class Forecaster:
    """Makes a forecast at intervals, and remembers the number of slots seen."""

    def __init__(self) -> None:
        """Start with nothing seen."""
        self._taken: deque[tuple[float, int]] = deque()
        self._slots = 0
        self._next_at = -math.inf
        self._last: Forecast | None = None

    def forecast(
        self, now: float, rules: OverloadRules, pressure: Pressure, taken: int, waiting: WaitingTasks
    ) -> Forecast | None:
        """Return the last forecast, or a new one when it is due; None before the first task is done.

        While tasks wait, all slots are taken. Before any waited, the slots are not known, and as many as the
        load needs are assumed.

        Args:
            now: Current time in seconds.
            rules: Policy of the queue.
            pressure: Its rates.
            taken: Tasks in work.
            waiting: The tasks that wait.
        """
        self._taken.append((now, taken))
        while now - self._taken[0][0] > SLOTS_SECONDS:
            self._taken.popleft()
        most = max(taken for _at, taken in self._taken)
        self._slots = most if waiting.tasks else max(most, self._slots)
        if now < self._next_at:
            return self._last
        self._next_at = now + EVERY_SECONDS
        self._last = None
        if pressure.service_seconds is not None:
            slots = self._slots if waiting.tasks else max(self._slots, pressure.wanted_servers or 0)
            moment = Moment(
                offered_per_second=pressure.offered_per_second,
                served_per_second=pressure.served_per_second,
                window_seconds=flow_window_seconds(rules.deadline_seconds),
                service_seconds=pressure.service_seconds,
                slots=min(MAX_SERVERS, max(1, slots)),
                in_work=taken,
                ages=waiting.ages(now),
                own_ratio=pressure.own_ratio,
                own_max_age_seconds=pressure.own_max_age_seconds,
                by_value=pressure.by_value,
            )
            self._last = forecast(moment, rules)
        return self._last
