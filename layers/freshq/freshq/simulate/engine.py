"""Simulate a queue and its servers, with the policies that a worker runs."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from math import inf
from random import Random
from typing import TYPE_CHECKING, Final

from freshq.policy.backlog_limit import CountedBacklog, Victim, WhenFull
from freshq.policy.order import Order
from freshq.policy.pressure import IN_TIME_OF_BAND, PUT_OF_BAND, AdmissionPolicy, FlowCounter
from freshq.policy.reserve import LearnedReserve, ReserveSpans, SkippedTasks
from freshq.policy.rules import ReserveRule
from freshq.policy.shedding import MAX_TAKES, ShedReason
from freshq.policy.value import DEFAULT_VALUE
from freshq.simulate.backlog import Fates, backlog_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from freshq.policy.backlog_limit import Eviction
    from freshq.policy.order import OrderSwitch
    from freshq.policy.rules import OverloadRules
    from freshq.simulate.backlog import Backlog
    from freshq.simulate.load import Load

MAX_SERVERS: Final = 100_000


class Admission:
    """Puts arriving tasks into the backlog, or rejects them."""

    def __init__(self, load: Load, rules: OverloadRules, backlog: Backlog, fates: Fates, seed: int) -> None:
        """Start open.

        Args:
            load: The tasks.
            rules: The policy.
            backlog: Where admitted tasks wait.
            fates: Records the shed tasks.
            seed: Seed of the admission limit's random draws.
        """
        self._created = load.created
        self._deadline = load.deadline
        self._backlog = backlog
        self._fates = fates
        self._limit = rules.backlog
        limit = rules.admission
        self._policy = None if limit is None else AdmissionPolicy(limit, rules.deadline_seconds)
        self._uniform = Random(f"{seed}/admission").random
        self._flow = FlowCounter(rules.deadline_seconds)
        self._by_value = rules.order is Order.VALUE
        self._values = load.values

    def _value(self, task: int) -> float:
        return self._values[task] if self._values else DEFAULT_VALUE

    def put(self, task: int, now: float) -> None:
        """Let a task arrive at `now` (seconds)."""
        if self._policy is None:
            self._put(task, now)
            return
        group = self._backlog.group_of(task)
        if self._rejects(self._policy, group, now, task):
            self._fates.shed(task, ShedReason.ADMISSION)
        else:
            self._put(task, now)
        self._flow.offered(now)
        self._flow.offered_by(group, now)
        if self._by_value:
            self._flow.valued(now, self._value(task), PUT_OF_BAND)

    def _rejects(self, policy: AdmissionPolicy, group: str | None, now: float, task: int) -> bool:
        if now >= policy.check_at:
            self._backlog.expire(now)
            oldest = self._backlog.oldest()
            age_seconds = None if oldest is None else now - self._created[oldest]
            policy.observe(now, self._flow.flow(now), age_seconds)
        life_seconds = self._deadline[task] - self._created[task]
        value = self._value(task) if self._by_value else None
        return policy.rejects(group, self._uniform, life_seconds, value) is not None

    def _put(self, task: int, now: float) -> None:
        """Add a task to the backlog, within its bound."""
        limit, backlog = self._limit, self._backlog
        if limit is None or backlog.count() < limit.max_waiting:
            backlog.push(task)
            return
        backlog.expire(now)
        if limit.when_full is WhenFull.DROP_OLDEST:
            backlog.push(task)
            for excess in CountedBacklog(
                limit, backlog.count_by_group(), seconds_of=backlog.seconds_of
            ).excess():
                self._evict(excess, now)
            return
        counted = CountedBacklog(limit, backlog.count_by_group(), seconds_of=backlog.seconds_of)
        eviction = counted.admit(backlog.group_of(task))
        if eviction is not None and eviction.victim is Victim.NEWCOMER:
            self.shed_early(task, eviction.reason, now)
            return
        if eviction is not None:
            self._evict(eviction, now)
        backlog.push(task)

    def _evict(self, eviction: Eviction, now: float) -> None:
        task = self._backlog.evict(eviction)
        if task is not None:
            self.shed_early(task, eviction.reason, now)

    def shed_early(self, task: int, reason: ShedReason, now: float) -> None:
        """Record that a task was shed before its deadline, at `now` (seconds)."""
        self._fates.shed(task, reason)
        if self._policy is not None:
            self._flow.shed_early(now)

    def served(self, task: int, now: float, took_seconds: float) -> None:
        """Record for the admission limit that a task was done at `now` (seconds)."""
        in_time = self._fates.codes[task] == self._fates.IN_TIME
        self._flow.ended(now, took_seconds, in_time=in_time)
        if in_time and self._by_value:
            self._flow.valued(now, self._value(task), IN_TIME_OF_BAND)
        self._flow.served_by(self._backlog.group_of(task), now, took_seconds)


class SimulatedClaimer:
    """Takes tasks out of the backlog, as the claims of one process do.

    Attributes:
        observe: Records the duration of a task, in seconds.
        spans: When claims skipped tasks because of the reserve.
    """

    def __init__(self, load: Load, rules: OverloadRules, backlog: Backlog, admission: Admission) -> None:
        """Start with nothing learnt.

        Args:
            load: The tasks.
            rules: The policy.
            backlog: Where tasks wait.
            admission: Counts tasks shed by CoDel.
        """
        self._created = load.created
        self._max_age_seconds = rules.deadline_seconds
        self._backlog = backlog
        self._admission = admission
        self._sheds_by_codel = rules.codel is not None
        self._longest_wait_seconds = inf if rules.codel is None else rules.codel.longest_wait_seconds
        self._reserve = LearnedReserve(rules.new_reserve)
        self.observe = self._reserve.observe
        self._skipped = SkippedTasks(rules.order)
        # The shared record of the queue's service times.
        self._counts: dict[int, float] = {}
        self.spans = ReserveSpans()

    def claim(self, now: float) -> int | None:
        """Claim one task at `now` (seconds); return None if there is none, or CoDel shed all it found."""
        reserve, take = self._reserve, self._backlog.take
        longest_wait_seconds = inf
        for _ in range(MAX_TAKES):
            if now >= reserve.next_sync:
                self._sync(now)
            seconds = reserve.seconds
            task = take(now, seconds, longest_wait_seconds)
            if seconds and self._skipped.check_due(now, seconds, short=task is None):
                self._note_skipped(now, seconds, short=task is None)
            if task is None or not self._sheds_by_codel or not self._sheds(task, now):
                return task
            longest_wait_seconds = self._shed_behind(task, now, seconds)
        return None

    def _shed_behind(self, task: int, now: float, reserve_seconds: float) -> float:
        """Shed tasks that wait too long behind a shed task; return the longest wait to take next."""
        for late in self._backlog.late_behind(task, now, reserve_seconds):
            self._admission.shed_early(late, ShedReason.CODEL, now)
        return self._longest_wait_seconds

    def _sheds(self, task: int, now: float) -> bool:
        codel = self._backlog.codel_of(task)
        if codel is None or not codel.sheds(now, now - self._created[task]):
            return False
        self._admission.shed_early(task, ShedReason.CODEL, now)
        self._backlog.ended(task, None)
        return True

    def _sync(self, now: float) -> None:
        """Merge the service times with the shared record."""
        seen = self._reserve.begin_sync(now)
        merged = LearnedReserve.merged(self._counts, seen)
        if seen:
            self._counts = LearnedReserve.shared_counts(merged)
        self._reserve.end_sync(merged)

    def _note_skipped(self, now: float, reserve_seconds: float, *, short: bool) -> None:
        """Record whether this claim skipped tasks because of the reserve."""
        if not self._backlog.count():
            return
        self._backlog.expire(now)
        task = self._backlog.oldest()
        oldest = None if task is None else self._created[task]
        created_after = now - self._max_age_seconds + reserve_seconds
        if self._skipped.found(now, reserve_seconds, oldest, created_after, short=short):
            self.spans = ReserveSpans(self.spans.extended(now, reserve_seconds))
            if short:
                self._reserve.bound(self._backlog.first_to_expire(now))


@dataclass(frozen=True, slots=True)
class Simulation:
    """The fate of every task of a load.

    Attributes:
        load: The tasks.
        servers: Number of servers.
        fates: For each task a code, see `Fates`.
        starts: For each task that was served, when it started; in seconds.
        switches: Every switch of an adaptive order.
        put_again: Number of tasks that clients put again.
        requests: The tasks without those, each with the latest time by which it may be done; None: the load.
    """

    load: Load
    servers: int
    fates: bytearray
    starts: array[float]
    switches: list[OrderSwitch] = field(default_factory=list)
    put_again: int = 0
    requests: Load | None = None


def check_servers(servers: int) -> None:
    """Raise ValueError if there is no server, or too many."""
    if not 1 <= servers <= MAX_SERVERS:
        msg = f"servers: must be from 1 to {MAX_SERVERS:,}, got {servers}"
        raise ValueError(msg)


def simulate_load(load: Load, rules: OverloadRules, servers: int, seed: int = 1) -> Simulation:
    """Serve a load to its end.

    Args:
        load: The tasks.
        rules: The policy.
        servers: Number of tasks that run at a time, 1 or more.
        seed: Seed of the admission limit's random draws.

    Raises:
        ValueError: If there is no server, or too many.
    """
    check_servers(servers)
    engine = Engine(load, rules, servers, seed)
    engine.serve()
    return Simulation(load, servers, engine.fates.codes, engine.starts, engine.fates.switches)


def _observes_ends(load: Load, rules: OverloadRules) -> bool:
    """Return whether a rule depends on the time that tasks take."""
    shares_time = rules.fair and bool(load.groups)
    learns = rules.order.plans or rules.reserve.quantile is not None
    return shares_time or learns or rules.admission is not None


class Engine:
    """State of one run."""

    def __init__(self, load: Load, rules: OverloadRules, servers: int, seed: int) -> None:
        self._load = load
        self.fates = Fates(len(load))
        self.starts = array("d", bytes(8 * len(load)))
        self._backlog = backlog_for(load, rules, self.fates)
        self._admission = Admission(load, rules, self._backlog, self.fates, seed)
        self._claimer = SimulatedClaimer(load, rules, self._backlog, self._admission)
        # Steps that these rules do not need are skipped to save time.
        self._admits_all = rules.admission is None and rules.backlog is None
        unreserved = rules.reserve == ReserveRule()
        plain = unreserved and rules.codel is None
        self._claim: Callable[[float], int | None] = self._backlog.take if plain else self._claimer.claim
        # Whether a claim that finds nothing may be skipped, because it would change nothing.
        self._pausing = unreserved and not (rules.order.switches or rules.order.plans)
        self._idle = servers
        # When each busy server ends.
        self._busy: list[float] = []
        self._limits_admission = rules.admission is not None
        # When each task ends; only kept if a rule observes it.
        self._running: list[tuple[float, int]] | None = [] if _observes_ends(load, rules) else None

    def serve(self) -> None:
        """Let every task arrive, and be served or shed."""
        busy, complete, push, put = self._busy, self._complete, self._backlog.push, self._admission.put
        admits_all, waiting = self._admits_all, self._backlog.waiting
        pausing = self._pausing and self._running is None
        for task, now in enumerate(self._load.created):
            while busy and busy[0] <= now:
                if pausing and not waiting:
                    heappop(busy)
                    self._idle += 1
                else:
                    complete(busy[0])
            if admits_all:
                push(task)
            else:
                put(task, now)
            if self._idle:
                self._start_idle(now)
        while busy:
            complete(busy[0])
        self.fates.shed_waiting(self._load, self._claimer.spans)

    def _complete(self, now: float) -> None:
        """Let the server that becomes free `now`, before all others, claim its next task."""
        if self._running is not None:
            self._observe(self._running, now)
        task = self._claim(now)
        if task is None:
            heappop(self._busy)
            self._idle += 1
            return
        heapreplace(self._busy, self._start(task, now))
        if self._idle:
            self._start_idle(now)

    def _start_idle(self, now: float) -> None:
        """Let idle servers claim, until one of them finds nothing."""
        waiting, pausing = self._backlog.waiting, self._pausing
        while self._idle and (waiting or not pausing):
            task = self._claim(now)
            if task is None:
                return
            heappush(self._busy, self._start(task, now))
            self._idle -= 1

    def _start(self, task: int, now: float) -> float:
        """Start a task; return when it ends."""
        end = now + self._load.service[task]
        self.starts[task] = now
        self.fates.codes[task] = Fates.IN_TIME if end <= self._load.deadline[task] else Fates.LATE
        if self._running is not None:
            heappush(self._running, (end, task))
        return end

    def _observe(self, running: list[tuple[float, int]], now: float) -> None:
        """Report finished tasks to the rules."""
        while running and running[0][0] <= now:
            end, task = heappop(running)
            self._ended(task, end)

    def _ended(self, task: int, end: float) -> None:
        """Report a finished task to the rules."""
        took_seconds = end - self.starts[task]
        self._backlog.ended(task, took_seconds)
        self._claimer.observe(took_seconds)
        if self._limits_admission:
            self._admission.served(task, end, took_seconds)
