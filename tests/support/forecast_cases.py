"""Simulated afternoons: the input of a forecast at some moment, and the events afterwards."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from unittest.mock import patch

from freshq.policy.order import Order
from freshq.policy.pressure import flow_window_seconds, wanted_servers
from freshq.policy.rules import OverloadRules, ReserveRule
from freshq.simulate import ServiceDistribution
from freshq.simulate.backlog import Fates
from freshq.simulate.engine import simulate_load
from freshq.simulate.forecast import FOLLOWED_SECONDS, Moment, forecast
from freshq.simulate.load import Load, services

LONG_SECONDS = 1200.0
SERVED = (Fates.IN_TIME, Fates.LATE)


@dataclass(frozen=True)
class Afternoon:
    """A moment of a queue, and its future."""

    rules: OverloadRules
    moment: Moment
    in_time_ratio: float
    backlog_in_time_ratio: float | None
    backlog_over_seconds: float | None
    more_slots: int


@dataclass(frozen=True)
class Swing:
    """A rate that swings by a share."""

    mean_per_second: float
    share: float
    phase: float
    period_seconds: float

    def at(self, seconds: float) -> float:
        """Return the rate at a time, per second."""
        turn = self.phase + math.tau * seconds / self.period_seconds
        return self.mean_per_second * (1 + self.share * math.sin(turn))

    def arrivals(self, rng: Random) -> array[float]:
        """Return Poisson arrivals, thinned from the highest rate."""
        highest, at, now = self.mean_per_second * (1 + self.share), array("d"), 0.0
        while (now := now + rng.expovariate(highest)) < LONG_SECONDS:
            if rng.random() * highest < self.at(now):
                at.append(now)
        return at


def afternoon(seed: int) -> Afternoon:
    """Return a moment of a random queue whose load is 0.6 to 1.6 of its capacity and swings by up to 0.4."""
    rng = Random(seed)
    servers, service_seconds = rng.choice((4, 10, 20)), rng.choice((0.2, 1.0))
    deadline_seconds = rng.choice((10.0, 30.0, 60.0))
    order = rng.choice((Order.LIFO, Order.FIFO, Order.ADAPTIVE))
    rate = rng.uniform(0.6, 1.6) * servers / service_seconds
    swing = Swing(rate, rng.uniform(0, 0.4), rng.uniform(0, math.tau), rng.uniform(600, 3600))
    created = swing.arrivals(rng)
    distribution = rng.choice((ServiceDistribution.EXP, *ServiceDistribution))
    service = services(distribution, service_seconds, len(created), rng)
    load = Load(created, service, array("d", [at + deadline_seconds for at in created]), LONG_SECONDS)
    reserve = ReserveRule(automatic=True).for_order(order, has_max_age=True)
    now = rng.uniform(300, 900)
    load = until(load, now + 2 * max(FOLLOWED_SECONDS, deadline_seconds))
    wanted = wanted_servers(swing.at(now), service_seconds, deadline_seconds)
    return seen(load, OverloadRules(deadline_seconds, order, reserve), servers, now, max(0, wanted - servers))


def until(load: Load, seconds: float) -> Load:
    """Return the tasks put before a time; a later one changes the fate of none that is looked at."""
    count = bisect_left(load.created, seconds)
    return Load(load.created[:count], load.service[:count], load.deadline[:count], seconds)


def seen(load: Load, rules: OverloadRules, servers: int, now: float, more: int) -> Afternoon:
    """Return the state seen `now`, and the events afterwards."""
    done = simulate_load(load, rules, servers)
    ends = [start + service for start, service in zip(done.starts, load.service, strict=True)]
    window_seconds = flow_window_seconds(rules.deadline_seconds)

    def is_recent(at: float) -> bool:
        return now - window_seconds < at <= now

    served = [task for task, fate in enumerate(done.fates) if fate in SERVED]
    over = {task: done.starts[task] if fate in SERVED else load.deadline[task]
            for task, fate in enumerate(done.fates)}  # fmt: skip
    waiting = [task for task, at in enumerate(load.created) if at <= now < over[task]]
    recent = [task for task in served if is_recent(ends[task])]
    followed_seconds = min(FOLLOWED_SECONDS, rules.deadline_seconds)
    new = [task for task, at in enumerate(load.created) if now < at < now + followed_seconds]

    def in_time(tasks: Sequence[int]) -> float:
        return sum(done.fates[task] == Fates.IN_TIME for task in tasks) / len(tasks)

    moment = Moment(
        offered_per_second=sum(map(is_recent, load.created)) / window_seconds,
        served_per_second=len(recent) / window_seconds,
        window_seconds=window_seconds,
        service_seconds=sum(load.service[task] for task in recent) / len(recent),
        slots=servers,
        in_work=sum(done.starts[task] <= now < ends[task] for task in served),
        ages=[now - load.created[task] for task in waiting],
    )
    return Afternoon(
        rules,
        moment,
        in_time(new),
        in_time(waiting) if waiting else None,
        max(over[task] for task in waiting) - now if waiting else None,
        more,
    )


def held(seeds: Iterable[int]) -> dict[str, list[bool]]:
    """Return which intervals of each figure held, without intervals of a single value."""
    found: defaultdict[str, list[bool]] = defaultdict(list)
    for seed in seeds:
        then = afternoon(seed)
        # Other orders are half of the runs, and no interval depends on them.
        with patch("freshq.simulate.forecast._better_order", return_value=(None, None)):
            expected = forecast(then.moment, then.rules, seed)
        for name in ("in_time_ratio", "backlog_in_time_ratio", "backlog_over_seconds", "more_slots"):
            interval, value = getattr(expected, name), getattr(then, name)
            if interval is not None and interval.low < interval.high:
                found[name].append(interval.low <= value <= interval.high)
    return found
