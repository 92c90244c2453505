"""Measure the load of a queue, and decide which puts its admission limit turns away."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from math import floor
from typing import TYPE_CHECKING, Final, NamedTuple

from freshq.policy.fairness import LEAST_SECONDS, fair_share
from freshq.policy.order import LIFO_ABOVE, Wait
from freshq.policy.value import BAND_OFFSET, DEFAULT_VALUE, band_of, least_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

# Bounds of the time after which a producer should retry, as multiples of the deadline.
SOONEST_RETRY: Final = 0.1
LATEST_RETRY: Final = 10.0
# How often the admission limit measures the pressure. At least every second.
ADMISSION_CHECKS_PER_DEADLINE: Final = 10
MAX_CHECK_INTERVAL_SECONDS: Final = 1.0
# The flow is measured over the last deadline, but no longer than a producer would wait for news.
LONGEST_WINDOW_SECONDS: Final = 60.0
# A retry spreads the excess of one deadline, but no producer waits days for it.
LONGEST_SPREAD_SECONDS: Final = 3600.0
# The shortest time over which a rate is taken, when counting has just begun.
SHORTEST_WINDOW_SECONDS: Final = 1.0
# Counts in each of two rows that groups share: with the times of groups they are a write of three units on
# DynamoDB.
GROUP_COUNTS: Final = 64
# Groups whose counts a process need not compute again.
MAX_KNOWN_GROUPS: Final = 10_000
FLOW_NAMES: Final = (
    *("offered", "served", "served_in_time", "shed_early", "work_us"),
    *("expired", "own", "own_urgency"),
)
# Counts are whole numbers, and an urgency is 1 / seconds.
URGENCY_SCALE: Final = 1e9
# Shorter max ages of tasks count as this value.
SHORTEST_OWN_SECONDS: Final = 0.01
# Deadlines are rounded to microseconds.
ROUNDING_SECONDS: Final = 1e-5
# Servers are counted so that at most this share of the tasks waits too long. If more expire, too much is
# offered.
LATE_RATIO: Final = 0.01
# Beyond this many busy servers the spare ones are less than a hundredth.
MOST_COUNTED_SERVERS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Pressure:
    """The degree of overload of a queue, as reported to producers.

    Attributes:
        offered_per_second: Tasks put, including rejected ones.
        served_per_second: Tasks done.
        probability_in_time: Chance that a task put now is served in time, from 0 to 1.
        overloaded: Whether more is offered than can be served.
        retry_after_seconds: When to try again, jittered; None unless overloaded.
        service_seconds: Time that workers held tasks, failed attempts included, per task done; None if none
            was done.
        wanted_servers: Slots that suffice for the offered work, by `wanted_servers`; None if the time of a
            task is not known.
        own_ratio: Share of the tasks put with a max age of their own, shorter than the queue's.
        own_max_age_seconds: The mean of these max ages (harmonic, so that the short ones count); None without
            any.
        least_value: The price of the queue: the least value per second of service that is still served. Of
            tasks worth less, hardly any is. 0 unless the queue is overloaded and serves by value.
        by_value: The chance of a new task from a value on, up to the next one, the least value first; empty
            unless the queue is overloaded and serves by value.
        value_offered_per_second: Value of the tasks put, including rejected ones; None if no recent task has
            a value or a decay. Others are worth 1.
        value_delivered_per_second: Value that tasks still had when they were done; None as above.
        value_lost_ratio: Share of the value of new tasks that will not be delivered, because they are shed,
            late or decay; None as above.

    Examples:
        >>> queue.pressure().retry_after_seconds is None
        True
    """

    offered_per_second: float
    served_per_second: float
    probability_in_time: float
    overloaded: bool
    retry_after_seconds: float | None
    service_seconds: float | None = None
    wanted_servers: int | None = None
    own_ratio: float = 0.0
    own_max_age_seconds: float | None = None
    least_value: float = 0.0
    by_value: Mapping[float, float] = field(default_factory=dict)
    value_offered_per_second: float | None = None
    value_delivered_per_second: float | None = None
    value_lost_ratio: float | None = None

    def chance(self, value: float = DEFAULT_VALUE) -> float:
        """Return the chance that a task of a value that is put now is served in time, from 0 to 1.

        A value below all that were put lately has at most the chance of the cheapest of them.
        """
        least = [each for each in self.by_value if each <= value] or [*self.by_value][:1]
        return self.by_value[least[-1]] if least else self.probability_in_time


def assess(
    flow: Flow,
    oldest_age_seconds: float | None,
    deadline_seconds: float,
    uniform: float,
    latest: Wait | None = None,
) -> Pressure:
    """Return the degree of overload of a queue.

    It is overloaded while a live task is older than 0.4 of the time until its own deadline, or tasks are shed
    early, or more than 1 in 100 expires. Then a new task's chance is the share of the load that is served in
    time; else it is the share that does not expire. Backlog over capacity does not estimate the wait here:
    newest first, a task does not wait for older ones. The retry spreads the excess of one deadline over the
    time that serving it takes.

    Args:
        flow: Recent flow.
        oldest_age_seconds: Age of the oldest live task; None if none waits.
        deadline_seconds: The queue's max age: the longest life of a task.
        uniform: A random number from [0, 1), for the jitter.
        latest: The wait of the live task that has used most of its own life; None if it is not known.
    """
    overloaded = _is_overloaded(flow, oldest_age_seconds, deadline_seconds, latest)
    life_seconds = flow.life_seconds(deadline_seconds)
    shortest_seconds = life_seconds if latest is None else min(life_seconds, latest.life_seconds)
    spread_seconds = flow.spread_seconds(shortest_seconds) * (0.5 + uniform)
    chance = flow.chance(overloaded=overloaded)
    return Pressure(
        *(flow.offered, flow.served, chance, overloaded),
        spread_seconds if overloaded else None,
        flow.service_seconds,
        flow.wanted_servers(life_seconds),
        own_ratio=flow.own_ratio,
        own_max_age_seconds=flow.own_seconds,
        least_value=flow.price if overloaded else 0.0,
        by_value=flow.by_value if overloaded else {},
        value_offered_per_second=flow.value.offered,
        value_delivered_per_second=flow.value.delivered,
        value_lost_ratio=flow.value.lost_ratio(chance, overloaded=overloaded),
    )


def _is_overloaded(
    flow: Flow, oldest_age_seconds: float | None, deadline_seconds: float, latest: Wait | None
) -> bool:
    late = latest is not None and latest.is_late
    old = oldest_age_seconds is not None and oldest_age_seconds > LIFO_ABOVE * deadline_seconds
    return late or old or flow.shed_early > 0 or flow.expired > LATE_RATIO * flow.offered


def wanted_servers(offered_per_second: float, service_seconds: float, deadline_seconds: float) -> int:
    """Return the fewest slots with which at most 1 in 100 tasks waits too long, in any order.

    The backlog plays no role: newest first, an overloaded queue always has one, and added servers would come
    too late for it. The share of the tasks that wait is Erlang's C; the mean wait of these does not depend on
    the order (Kleinrock, Queueing Systems 2, 1976, section 3.4), so Markov's inequality bounds the share of
    them that wait longer than the deadline allows.

    Args:
        offered_per_second: Tasks put, including rejected ones.
        service_seconds: Mean time of a task.
        deadline_seconds: Age at which a task is stale.
    """
    busy = offered_per_second * service_seconds
    if not 0 < busy < MOST_COUNTED_SERVERS:
        return math.ceil(busy)
    longest_wait_seconds = max(deadline_seconds - service_seconds, SOONEST_RETRY * deadline_seconds)
    servers, blocked = 0, 1.0
    while True:
        servers += 1
        blocked *= busy / (servers + busy * blocked)
        spare = servers - busy
        if spare > 0:
            waits = blocked * servers / (spare + busy * blocked)
            if waits * min(1.0, service_seconds / spare / longest_wait_seconds) <= LATE_RATIO:
                return servers


@dataclass(frozen=True, slots=True)
class AdmissionLimit:
    """Admission control by load: rejects new work beyond a multiple of capacity, before it costs a write.

    The client-side throttle of the SRE book ("Handling Overload"), on the producers' side of a queue:
    `multiple` times the served rate is admitted. Groups share the time that this takes by `fair_share`, so
    that a flood is rejected before a quiet group, and a group with long tasks puts fewer. Tasks of a group
    beyond its share are rejected at random. It rejects nothing unless the queue is overloaded. So a
    queue that served nothing for a while, because the downstream was down, does not stay locked.

    Attributes:
        multiple: Of the served rate, 1 or more; with 2 there is always work to choose from.
    """

    multiple: float = 2.0

    def __post_init__(self) -> None:
        """Check the multiple."""
        if not 1 <= self.multiple < math.inf:
            msg = f"admission: must be a multiple of the capacity of 1 or more, got {self.multiple}"
            raise ValueError(msg)

    def share_per_second(self, pressure: Pressure, flow: Flow) -> float:
        """Return the time that each group may put, per second; infinite if the capacity suffices for all.

        Time is in units of the mean service time.

        Args:
            pressure: How overloaded the queue is.
            flow: Recent flow by group.
        """
        return _overloaded_share(self, flow) if pressure.overloaded else math.inf


def _overloaded_share(limit: AdmissionLimit, flow: Flow) -> float:
    """Return the time that each group may put, per second, while the queue is overloaded."""
    return fair_share(flow.demands(), limit.multiple * flow.served)


class AdmissionPolicy:
    """Rejects tasks at the admission limit, by the wait and the flow that it last observed.

    Whether the queue is overloaded depends on the task that asks: on whether the oldest live task is older
    than 0.4 of the time until the deadline of the new one. Expired tasks are no evidence here: if the
    downstream was down, they would keep the admission limit closed after it is back.

    A queue that serves by value rejects by it, not by chance: the tasks that it would hardly serve.

    Attributes:
        check_at: When to call `observe` again, in seconds.
    """

    __slots__ = (
        "_check_interval_seconds",
        "_deadline_seconds",
        "_flow",
        "_limit",
        "_oldest_age_seconds",
        "_share_per_second",
        "check_at",
    )

    def __init__(self, limit: AdmissionLimit, deadline_seconds: float) -> None:
        """Start open.

        Args:
            limit: The rule.
            deadline_seconds: Age at which tasks of the queue are stale.
        """
        self._limit = limit
        self._deadline_seconds = deadline_seconds
        self._check_interval_seconds = min(
            MAX_CHECK_INTERVAL_SECONDS, deadline_seconds / ADMISSION_CHECKS_PER_DEADLINE
        )
        self._share_per_second = math.inf
        self._flow: Flow | None = None
        self._oldest_age_seconds = -math.inf
        self.check_at = -math.inf

    def observe(self, now: float, flow: Flow, oldest_age_seconds: float | None) -> None:
        """Set the rejections until the next call.

        Args:
            now: Current time in seconds.
            flow: Recent flow by group.
            oldest_age_seconds: Age of the oldest live task; None if none waits.
        """
        # In this order: another thread that sees the share also sees the flow and the age.
        self._oldest_age_seconds = -math.inf if oldest_age_seconds is None else oldest_age_seconds
        self._flow = flow
        self._share_per_second = _overloaded_share(self._limit, flow)
        self.check_at = now + self._check_interval_seconds

    @property
    def price(self) -> float:
        """The price at the last look; see `Pressure.least_value`."""
        return 0.0 if self._flow is None else self._flow.price

    def rejects(
        self,
        group: str | None,
        uniform: Callable[[], float],
        life_seconds: float = math.inf,
        value: float | None = None,
    ) -> float | None:
        """Return after how many seconds a rejected task may be put again; None to admit it.

        Args:
            group: The group of the task.
            uniform: Draws a random number from [0, 1).
            life_seconds: Age at which the task is stale, if that is before the queue's max age.
            value: Its value, in a queue that serves by value.
        """
        share, flow = self._share_per_second, self._flow
        wait = Wait(self._oldest_age_seconds, min(life_seconds, self._deadline_seconds))
        if flow is None or not (wait.is_late or flow.shed_early > 0):
            return None
        offered = flow.offered_by(group)
        if value is not None:
            if value >= flow.least_value:
                return None
        elif offered <= share or uniform() >= 1.0 - share / offered:
            return None
        return flow.spread_seconds(wait.life_seconds) * (0.5 + uniform())


@lru_cache(MAX_KNOWN_GROUPS)
def group_counts(group: str | None) -> tuple[str, str]:
    """Return the names of the two counts of a group.

    The number of counts is fixed, so groups share them, by a hash of the name. A group is judged by the
    smaller of its two: two groups are taken for one only if they share both (the count-min sketch of
    Cormode and Muthukrishnan, Journal of Algorithms 55(1), 2005).
    """
    first, second = blake2b((group or "").encode(), digest_size=2).digest()
    return f"g{first % GROUP_COUNTS}", f"h{second % GROUP_COUNTS}"


# Prefixes of the counts of tasks by the band of their value: tasks put, and tasks done in time.
PUT_OF_BAND: Final = "b"
IN_TIME_OF_BAND: Final = "i"
# The share of the tasks below the price that may still be served.
HARDLY_SERVED: Final = 0.02
# Chances closer to 0 or 1 than this count as one class.
RARE: Final = 0.1
# Prefixes of two more counts of a group: tasks served, and the microseconds that they took.
DONE: Final = "n"
TOOK: Final = "t"
# Names of the sums by which tasks put, done, and done in time are worth more or less than the default.
VALUE_PUT: Final = "value_put"
VALUE_DONE: Final = "value_done"
VALUE_DELIVERED: Final = "value_delivered"
MILLIONTHS: Final = "_millionths"
# Larger amounts are counted as whole numbers, smaller ones in millionths, so that no sum overflows 64 bits.
LARGE_VALUE: Final = 1e6


class ValueFlow(NamedTuple):
    """The value of the recent tasks of a queue, per second; None if no task has a value or a decay.

    Attributes:
        offered: Value of the tasks put.
        served: Value of the tasks done, in time or not, as if they had lost nothing.
        delivered: Value that these still had when they were done.
    """

    offered: float | None = None
    served: float | None = None
    delivered: float | None = None

    def lost_ratio(self, chance: float, *, overloaded: bool) -> float | None:
        """Return the share of the value of new tasks that will be lost.

        Without overload, tasks that were just put are still waiting, so only the tasks done show what decays.

        Args:
            chance: Chance of a new task to be served in time.
            overloaded: Whether the queue is overloaded.
        """
        if self.offered is None or self.served is None or self.delivered is None:
            return None
        kept, worth = (1.0, self.offered) if overloaded else (chance, self.served)
        return 1.0 - min(1.0, kept * self.delivered / worth if worth > 0 else kept)


@dataclass(frozen=True, slots=True)
class Flow:
    """The recent flow of a queue, in tasks per second.

    Attributes:
        offered: Tasks put, including tasks that admission control rejected.
        served: Tasks done, in time or not.
        served_in_time: Tasks done in time.
        shed_early: Tasks shed before their deadline: overflow, group, codel.
        by_group: The offered tasks by the counts of `group_counts`, if they are counted.
        work: Seconds for which workers held the tasks whose attempts ended.
        lengths: The mean service time of a group's tasks, relative to all tasks, by its first count.
        expired: Tasks that went stale while they waited.
        own: Tasks put with a max age of their own, shorter than the queue's.
        own_urgency: Sum of 1 / max age of these, per second.
        least_value: The least value that is still served: of the tasks worth less, hardly any is. 0 if tasks
            are not counted by value, or too few.
        by_value: The chance to be served in time by value, the least value first; empty in the same cases.
        value: The value of the tasks.
    """

    offered: float
    served: float
    served_in_time: float
    shed_early: float = 0.0
    by_group: Mapping[str, float] = field(default_factory=dict)
    work: float = 0.0
    lengths: Mapping[str, float] = field(default_factory=dict)
    expired: float = 0.0
    own: float = 0.0
    own_urgency: float = 0.0
    least_value: float = 0.0
    by_value: Mapping[float, float] = field(default_factory=dict)
    value: ValueFlow = field(default_factory=ValueFlow)

    @property
    def service_seconds(self) -> float | None:
        """Time that workers held tasks per task done; None if none was done."""
        return self.work / self.served if self.served > 0 else None

    @property
    def price(self) -> float:
        """The least value that is still served, per second of service."""
        return self.least_value / (self.service_seconds or 1.0)

    def wanted_servers(self, life_seconds: float) -> int | None:
        """Return the slots that suffice for the offered work; None if the time of a task is not known.

        Args:
            life_seconds: Age at which a task is stale.
        """
        if self.offered == 0:
            return 0
        seconds = self.service_seconds
        return None if seconds is None else wanted_servers(self.offered, seconds, life_seconds)

    def chance(self, *, overloaded: bool) -> float:
        """Return the chance of a new task to be served in time."""
        if self.offered <= 0:
            return 1.0
        in_time = self.served_in_time if overloaded else self.offered - self.expired
        return min(1.0, in_time / self.offered)

    @property
    def own_ratio(self) -> float:
        """Share of the offered tasks with a max age of their own."""
        return min(1.0, self.own / self.offered) if self.offered > 0 else 0.0

    @property
    def own_seconds(self) -> float | None:
        """The harmonic mean of the max ages of tasks with their own; None without any."""
        return self.own / self.own_urgency if self.own_urgency > 0 else None

    def life_seconds(self, max_age_seconds: float) -> float:
        """Return the harmonic mean of the ages at which the offered tasks are stale.

        Args:
            max_age_seconds: The queue's max age.
        """
        if not (self.own_urgency > 0 and self.offered > 0):
            return max_age_seconds
        others = max(0.0, self.offered - self.own)
        return min(max_age_seconds, self.offered / (self.own_urgency + others / max_age_seconds))

    def spread_seconds(self, life_seconds: float) -> float:
        """Return the time over which producers should spread the excess of the load that one life brings.

        Args:
            life_seconds: Age at which a task is stale.
        """
        excess = self.offered / self.served - 1 if self.served > 0 else LATEST_RETRY
        return min(life_seconds, LONGEST_SPREAD_SECONDS) * min(LATEST_RETRY, max(SOONEST_RETRY, excess))

    def offered_by(self, group: str | None) -> float:
        """Return the time that a group offers, in mean service times; slightly more if it shares its counts.

        Tasks of a group without served tasks take the mean.
        """
        first, second = group_counts(group)
        tasks = min(self.by_group.get(first, 0.0), self.by_group.get(second, 0.0))
        return tasks * self.lengths.get(first, 1.0)

    def demands(self) -> list[float]:
        """Return the offered time by group; groups that share a counter count as one."""
        return [rate * self.lengths.get(name, 1.0) for name, rate in self.by_group.items() if name[0] == "g"]


def flow_window_seconds(deadline_seconds: float) -> float:
    """Return the window over which the flow of a queue is measured, in seconds."""
    return min(deadline_seconds, LONGEST_WINDOW_SECONDS)


def flow_between(
    window_seconds: float, into_seconds: float, current: Mapping[str, float], before: Mapping[str, float]
) -> Flow:
    """Return the flow over the window that ends now, from counts by whole windows.

    The window before counts for the part that is still covered, as if its events were spread evenly. If
    it counted nothing, counting began in the current one, and rates are over the part of it that has
    passed.

    Args:
        window_seconds: Length of a window.
        into_seconds: How much of the current one has passed.
        current: Counts of the current window, by the names of the fields of `Flow` and of `group_counts`.
        before: Counts of the window before.
    """
    covered = 1.0 - into_seconds / window_seconds
    observed_seconds = window_seconds
    if not any(before.values()):
        observed_seconds = min(window_seconds, max(into_seconds, SHORTEST_WINDOW_SECONDS))

    def count(name: str) -> float:
        return current.get(name, 0) + covered * before.get(name, 0)

    def rate(name: str) -> float:
        return count(name) / observed_seconds

    names = sorted({*current, *before}.difference(FLOW_NAMES))
    offered, served, served_in_time, shed_early, work_us, expired, own, urgency = map(rate, FLOW_NAMES)
    return Flow(
        *(offered, served, served_in_time, shed_early),
        by_group={name: rate(name) for name in names if name[0] in "gh"},
        work=work_us / 1e6,
        lengths=_lengths(names, rate),
        expired=expired,
        own=own,
        own_urgency=urgency / URGENCY_SCALE,
        least_value=_least_value(names, count),
        by_value=_by_value(names, count),
        value=_value(names, rate),
    )


def _by_value(names: Iterable[str], count: Callable[[str], float]) -> dict[float, float]:
    """Return the chance to be served in time from a value on, from the counts by band.

    A dearer task has no smaller chance, so bands whose counts say otherwise are one class (pool adjacent
    violators: Ayer and others, Annals of Mathematical Statistics 26(4), 1955).
    """
    classes: list[_Counted] = []
    for band in sorted(int(name[1:]) for name in names if name[0] == PUT_OF_BAND):
        put, in_time = (count(f"{what}{band}") for what in (PUT_OF_BAND, IN_TIME_OF_BAND))
        found = _Counted(least_of(band - BAND_OFFSET), put, min(put, in_time))
        while classes and put > 0 and classes[-1].is_like(found):
            cheaper = classes.pop()
            found = _Counted(cheaper.least_value, cheaper.put + found.put, cheaper.in_time + found.in_time)
        if put > 0:
            classes.append(found)
    return {each.least_value: each.chance for each in classes}


class _Counted(NamedTuple):
    """How many tasks of a value or more were put, and how many of them were done in time."""

    least_value: float
    put: float
    in_time: float

    @property
    def chance(self) -> float:
        return self.in_time / self.put

    def is_like(self, dearer: _Counted) -> bool:
        """Return whether dearer tasks have no greater chance, or both are hardly served, or hardly shed."""
        return dearer.chance <= self.chance or dearer.chance < RARE or self.chance > 1 - RARE


def _value(names: Iterable[str], rate: Callable[[str], float]) -> ValueFlow:
    """Return the value of the tasks."""
    if not any(name.startswith("value_") for name in names):
        return ValueFlow()
    tasks_and_more = (("offered", VALUE_PUT), ("served", VALUE_DONE), ("served_in_time", VALUE_DELIVERED))
    worths = (
        DEFAULT_VALUE * rate(tasks) + rate(more) + rate(more + MILLIONTHS) / 1e6
        for tasks, more in tasks_and_more
    )
    return ValueFlow(*(max(0.0, worth) for worth in worths))


def _least_value(names: Iterable[str], count: Callable[[str], float]) -> float:
    """Return the least value that is still served, from the counts by band."""
    put, in_time = 0.0, 1.0  # as if one more had been served: few tasks prove nothing
    for band in sorted(int(name[1:]) for name in names if name[0] == PUT_OF_BAND):
        put += count(f"{PUT_OF_BAND}{band}")
        in_time += count(f"{IN_TIME_OF_BAND}{band}")
        if in_time > HARDLY_SERVED * put:
            return least_of(band - BAND_OFFSET)
    return 0.0


def _lengths(names: Iterable[str], rate: Callable[[str], float]) -> dict[str, float]:
    """Return the mean service time of groups, relative to all tasks, from the rates of their counts."""
    done = {name[1:]: rate(name) for name in names if name[0] == DONE and rate(name)}
    took = {name: rate(TOOK + name) for name in done}
    mean = sum(took.values()) / (sum(done.values()) or 1.0)
    return {name: took[name] / done[name] / mean for name in done}


class FlowCounter:
    """Counts tasks by whole windows of time.

    Two windows are enough for the flow, and are what a store keeps for many processes.

    Attributes:
        window_seconds: Length of a window.
    """

    __slots__ = ("_shorter_than_seconds", "_windows", "window_seconds")

    def __init__(self, deadline_seconds: float) -> None:
        """Start with nothing counted.

        Args:
            deadline_seconds: Age at which tasks of the queue are stale.
        """
        self._shorter_than_seconds = deadline_seconds - ROUNDING_SECONDS
        self.window_seconds = flow_window_seconds(deadline_seconds)
        self._windows: defaultdict[int, Counter[str]] = defaultdict(Counter)

    def window(self, now: float) -> int:
        """Return the number of the window that `now` (seconds) is in."""
        return floor(now / self.window_seconds)

    def counts(self, window: int) -> Counter[str]:
        """Return the counts of a window, to be added to."""
        return self._windows[window]

    def offered(self, now: float, count: int = 1, lives_seconds: Iterable[float] = ()) -> None:
        """Count tasks that were put, including rejected ones, and among these the tasks with a max age.

        Args:
            now: When they were put, in seconds.
            count: How many they are.
            lives_seconds: Age at which each of them is stale; empty: none has a max age of its own.
        """
        counts = self._windows[floor(now / self.window_seconds)]
        counts["offered"] += count
        shorter_than = self._shorter_than_seconds
        # A task that is put by a run whose deadline has passed has no life, and is rejected.
        own = [max(SHORTEST_OWN_SECONDS, seconds) for seconds in lives_seconds if 0 < seconds < shorter_than]
        if own:
            counts["own"] += len(own)
            counts["own_urgency"] += round(sum(URGENCY_SCALE / seconds for seconds in own))

    def expired(self, now: float, deadlines: Iterable[float]) -> None:
        """Count tasks that expired, each in the window of its deadline (seconds); leave out old ones."""
        oldest = self.window(now) - 1
        for deadline in deadlines:
            if (window := self.window(deadline)) >= oldest:
                self.counts(window)["expired"] += 1

    def offered_by(self, group: str | None, now: float) -> None:
        """Count a task of a group that was put, rejected or not."""
        counts = self.counts(floor(now / self.window_seconds))
        for name in group_counts(group):
            counts[name] += 1

    def served_by(self, group: str | None, now: float, took_seconds: float) -> None:
        """Count the time that a task of a group took, which was done."""
        counts, (name, _second) = self.counts(floor(now / self.window_seconds)), group_counts(group)
        counts[DONE + name] += 1
        counts[TOOK + name] += round(1e6 * max(LEAST_SECONDS, took_seconds))

    def valued(self, now: float, value: float, what: str) -> None:
        """Count a task of a value as `PUT_OF_BAND` or `IN_TIME_OF_BAND`."""
        self.counts(floor(now / self.window_seconds))[f"{what}{band_of(value) + BAND_OFFSET}"] += 1

    def valued_put(self, now: float, value: float) -> None:
        """Count the value of a task that was put with a value or a decay."""
        self._add_value(now, VALUE_PUT, value)

    def valued_done(self, now: float, value: float, delivered: float, *, in_time: bool) -> None:
        """Count the value of such a task that was done, and what was left of it.

        Args:
            now: When it was done, in seconds.
            value: Its value.
            delivered: The value that was left.
            in_time: Whether it was done in time.
        """
        self._add_value(now, VALUE_DONE, value)
        if in_time:
            self._add_value(now, VALUE_DELIVERED, delivered)

    def _add_value(self, now: float, what: str, value: float) -> None:
        """Count by how much a value differs from the default, so that tasks without a value need no count."""
        more, counts = value - DEFAULT_VALUE, self.counts(floor(now / self.window_seconds))
        if more > LARGE_VALUE:
            counts[what] += round(more)
        else:
            counts[what + MILLIONTHS] += round(1e6 * more)

    def ended(self, now: float, work_seconds: float, *, in_time: bool | None) -> None:
        """Count an attempt that ended, and its task if it was done.

        Args:
            now: When it ended, in seconds.
            work_seconds: How long a worker held the task.
            in_time: Whether the task was done in time; None if it was not done.
        """
        counts = self._windows[floor(now / self.window_seconds)]
        # At least one, so that a task that takes no measurable time counts.
        counts["work_us"] += max(1, round(1e6 * work_seconds))
        if in_time is not None:
            counts["served"] += 1
        if in_time:
            counts["served_in_time"] += 1

    def shed_early(self, now: float, count: int = 1) -> None:
        """Count tasks that were shed before their deadline."""
        self.counts(floor(now / self.window_seconds))["shed_early"] += count

    def take(self) -> dict[int, Counter[str]]:
        """Return the counts by window, and start again with nothing."""
        windows, self._windows = self._windows, defaultdict(Counter)
        return windows

    def flow(self, now: float) -> Flow:
        """Return the flow at `now` (seconds) from these counts alone; forget past windows."""
        number = self.window(now)
        current, before = self.counts(number), self.counts(number - 1)
        self._windows = defaultdict(Counter, {number - 1: before, number: current})
        return self.between(now, current, before)

    def between(self, now: float, current: Mapping[str, float], before: Mapping[str, float]) -> Flow:
        """Return the flow at `now` (seconds) from the counts of its window and the one before."""
        into_seconds = now - self.window(now) * self.window_seconds
        return flow_between(self.window_seconds, into_seconds, current, before)
