"""Simulate causes of metastable failures: clients that try again, chains, lost capacity, slow service.

A queue is in a metastable failure if its goodput stays low after the trigger is gone, because the work that
failed comes again (Bronson, Aghayev, Charapko, Zhu, "Metastable Failures in Distributed Systems", HotOS 2021;
Huang et al., "Metastable Failures in the Wild", OSDI 2022).
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any, Final

from freshq.errors import quoted
from freshq.policy.reserve import KindTimes
from freshq.policy.rules import DEFAULT_QUANTILE
from freshq.policy.shedding import ShedReason
from freshq.simulate.backlog import Fates
from freshq.simulate.engine import Engine, Simulation, check_servers
from freshq.simulate.load import MAX_TASKS, Load, positive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from freshq.policy.rules import OverloadRules

# A client waits at random up to this share of its timeout before it puts the task again.
JITTER: Final = 0.5
# Events in the order in which they are handled if they are simultaneous.
END, CAPACITY, TIMEOUT, PUT_AGAIN = range(4)


@dataclass(frozen=True, slots=True)
class Clients:
    """Clients that give up waiting, and put the task again.

    The queue does not know that a client gave up: the old task stays in its line. The new one has a fresh
    position and deadline.

    Attributes:
        timeout_seconds: How long a client waits for a task to be done.
        retries: How often it puts the task again.
    """

    timeout_seconds: float
    retries: int = 0

    def __post_init__(self) -> None:
        """Check the numbers."""
        positive("client_timeout", self.timeout_seconds)
        if self.retries < 0:
            msg = f"client_retries: must be 0 or more, got {self.retries}"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class Dip:
    """A time of lower capacity. Running tasks run to their end; the lost servers claim no further task.

    Attributes:
        start: When it begins, in seconds from the start of the simulation.
        seconds: Its length.
        factor: Capacity during that time, as a share of all servers: 0 for an outage.
    """

    start: float
    seconds: float
    factor: float = 0.0

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not (0 <= self.start < inf and 0 < self.seconds < inf and 0 <= self.factor < 1):
            msg = (
                "dip: needs a start of 0 s or later, a length above 0 s and a factor from 0 to below 1, got "
            )
            raise ValueError(msg + f"{self.start:g}+{self.seconds:g}x{self.factor:g}")

    @property
    def end(self) -> float:
        """When it ends, in seconds."""
        return self.start + self.seconds

    @classmethod
    def parse(cls, text: str) -> Dip:
        """Return the dip written as ``START+SECONDSxFACTOR``, such as ``60+30x0``."""
        try:
            start, _, rest = text.partition("+")
            seconds, _, factor = rest.partition("x")
            numbers = float(start), float(seconds), float(factor)
        except ValueError:
            msg = f"dip: must look like START+SECONDSxFACTOR, such as 60+30x0, got {quoted(text)}"
            raise ValueError(msg) from None
        return cls(*numbers)


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Service that takes longer under load: 1 + work * (running tasks - 1) + backlog * waiting tasks.

    The first term is the contention of the Universal Scalability Law (Gunther, Guerrilla Capacity Planning,
    2007, chapter 4). The second stands for a backlog in the servers' memory, as in the runs with garbage
    collection of "Metastable Failures in the Wild".

    Attributes:
        work: Further share of the service time for each other running task.
        backlog: Further share of it for each waiting task.
    """

    work: float = 0.0
    backlog: float = 0.0

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("work", "backlog"):
            if not 0 <= getattr(self, name) < inf:
                msg = f"slowdown: {name} must be 0 or more, got {getattr(self, name):g}"
                raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class Stress:
    """The conditions that make the overload worse.

    Attributes:
        clients: Clients that try again; None: each task is put once, and counts until its deadline.
        dip: A loss of capacity.
        slowdown: Service that slows down.
        hops: Tasks of a chain: each run but the last puts the next task, as `put(..., parent=task)` does.
    """

    clients: Clients | None = None
    dip: Dip | None = None
    slowdown: Slowdown | None = None
    hops: int = 1

    def __post_init__(self) -> None:
        """Check the number of hops."""
        if self.hops < 1:
            msg = f"hops: must be 1 or more, got {self.hops}"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class ChainResult:
    """The fates of the chains of a run.

    Attributes:
        done_ratio: Chains whose last task was done by their deadline, as a share of all chains.
        useful_ratio: Work done for these chains, as a share of all work.
        refused: Tasks that were refused because of their parent's deadline.
    """

    done_ratio: float
    useful_ratio: float
    refused: int


def simulate_chains(load: Load, rules: OverloadRules, servers: int, hops: int, seed: int = 1) -> ChainResult:
    """Serve chains of tasks to their end.

    Args:
        load: The first task of each chain; the other tasks take service times of other tasks of the load.
        rules: The policy.
        servers: Number of tasks that run at a time, 1 or more.
        hops: Tasks of each chain.
        seed: Seed of the admission limit's random draws.

    Raises:
        ValueError: If there is no server, or too many, or too many tasks may be put.
    """
    engine = _engine(load, rules, servers, Stress(hops=hops), seed)
    return engine.chains()


def simulate_stressed(
    load: Load, rules: OverloadRules, servers: int, stress: Stress, seed: int = 1
) -> Simulation:
    """Serve a load to its end under stress.

    The deadlines of the returned load are the times by which tasks had to be done to count, including a
    client's timeout.

    Args:
        load: The tasks, each put once.
        rules: The policy.
        servers: Number of tasks that run at a time, 1 or more.
        stress: What happens meanwhile.
        seed: Seed of the jitter, and of the admission limit's random draws.

    Raises:
        ValueError: If there is no server, or too many, or too many tasks may be put.
    """
    return _engine(load, rules, servers, stress, seed).simulation(servers)


def _engine(load: Load, rules: OverloadRules, servers: int, stress: Stress, seed: int) -> _StressedEngine:
    """Return the state after a run."""
    check_servers(servers)
    tries = stress.hops * (1 if stress.clients is None else 1 + stress.clients.retries)
    if len(load) * tries > MAX_TASKS:
        names = "client_retries" if stress.hops == 1 else "hops"
        msg = f"{names}: up to {len(load) * tries:,} tasks may be put, more than {MAX_TASKS:,}; "
        raise ValueError(msg + f"shorten the run, or lower {names}")
    engine = _StressedEngine(load, rules, servers, stress, seed)
    engine.serve()
    return engine


class _StressedEngine(Engine):
    """State of one run. Tasks are numbered in the order of their puts."""

    def __init__(self, load: Load, rules: OverloadRules, servers: int, stress: Stress, seed: int) -> None:
        put = replace(
            load,
            created=load.created[:],
            service=load.service[:],
            deadline=load.deadline[:],
            levels=(levels := bytearray(load.levels)),
            groups=(groups := list(load.groups)),
            values=(values := array("d", load.values)),
            decays=(decays := bytearray(load.decays)),
        )
        given = (load.levels, load.groups, load.values, load.decays)
        # What a put copies from its request, as far as the load has it.
        self._copied: list[tuple[Any, Sequence[Any]]] = [
            *zip((levels, groups, values, decays), given, strict=True)
        ]
        super().__init__(put, rules, servers, seed)
        # The backlog was made for all kinds of tasks of the load; none has been put yet.
        for column in (put.created, put.service, put.deadline, self.starts, levels, groups, values, decays):
            del column[:]
        del self.fates.codes[:]
        self._requests = load
        self._clients = stress.clients
        self._slowdown = stress.slowdown
        self._in_work = 0
        self._uniform = Random(f"{seed}/clients").uniform
        # By when each task has to be done to count.
        self._limits = array("d")
        # The position of each task in the requests, and the number of earlier puts.
        self._request_of: list[tuple[int, int]] = []
        self._events: list[tuple[float, int, int]] = []
        # The number of parents of each task, and the times of the tasks by number of parents.
        self._hops = stress.hops
        self._hop_of = bytearray()
        self._times = KindTimes()
        self._share = rules.reserve.quantile or DEFAULT_QUANTILE
        if stress.dip is not None:
            lost = servers - round(servers * stress.dip.factor)
            self._events += [(stress.dip.start, CAPACITY, -lost), (stress.dip.end, CAPACITY, lost)]

    def serve(self) -> None:
        """Let every task arrive, and be served or shed."""
        for request, now in enumerate(self._requests.created):
            self._run_until(now)
            self._put(request, 0, now)
            self._start_idle(now)
        self._run_until(inf)
        self.fates.shed_waiting(self._load, self._claimer.spans)

    def simulation(self, servers: int) -> Simulation:
        """Return the fate of every task that was put."""
        counted = replace(self._load, deadline=self._limits)
        again = len(counted) - len(self._requests)
        codes, switches = self.fates.codes, self.fates.switches
        return Simulation(counted, servers, codes, self.starts, switches, again, self._possible())

    def _possible(self) -> Load:
        """Return the requests, each with the latest time by which it may be done to count."""
        load, clients = self._requests, self._clients
        if clients is None:
            return load
        retries_seconds = clients.retries * (1 + JITTER) * clients.timeout_seconds
        limits = (
            retries_seconds + min(created + clients.timeout_seconds, deadline)
            for created, deadline in zip(load.created, load.deadline, strict=True)
        )
        return replace(load, deadline=array("d", limits))

    def _run_until(self, until: float) -> None:
        """Process all events up to a time."""
        events = self._events
        while events and events[0][0] <= until:
            now, kind, number = heappop(events)
            if kind == END:
                self._end(number, now)
            elif kind == CAPACITY:
                self._idle += number
            elif kind == TIMEOUT:
                self._time_out(number, now)
                continue
            else:
                request, puts = self._request_of[number]
                self._put(request, puts + 1, now)
            self._start_idle(now)

    def chains(self) -> ChainResult:
        """Return the fates of the chains."""
        codes, last = self.fates.codes, self._hops - 1
        ends = [task for task, hop in enumerate(self._hop_of) if hop == last]
        done = {self._request_of[task][0] for task in ends if codes[task] == Fates.IN_TIME}
        worked_seconds = {True: 0.0, False: 0.0}
        for task, code in enumerate(codes):
            if code in (Fates.IN_TIME, Fates.LATE):
                worked_seconds[self._request_of[task][0] in done] += self._load.service[task]
        useful_ratio = worked_seconds[True] / (sum(worked_seconds.values()) or 1.0)
        refused = codes.count(Fates.SHED[ShedReason.DEADLINE])
        return ChainResult(len(done) / max(1, len(self._requests)), useful_ratio, refused)

    def _put(self, request: int, puts_before: int, now: float, parent: int | None = None) -> None:
        put, requests = self._load, self._requests
        task, count = len(put.created), len(requests)
        hop = 0 if parent is None else self._hop_of[parent] + 1
        age_seconds = requests.deadline[request] - requests.created[request]
        put.created.append(now)
        put.service.append(requests.service[(request + hop * count // self._hops) % count])
        put.deadline.append(
            now + age_seconds if parent is None else min(now + age_seconds, put.deadline[parent])
        )
        self._hop_of.append(hop)
        for column, given in self._copied:
            if given:
                column.append(given[request])
        self.fates.codes.append(Fates.WAITING)
        self.starts.append(0.0)
        self._request_of.append((request, puts_before))
        if self._clients is None:
            self._limits.append(put.deadline[task])
        else:
            gives_up = now + self._clients.timeout_seconds
            self._limits.append(min(gives_up, put.deadline[task]))
            heappush(self._events, (gives_up, TIMEOUT, task))
        needed_seconds = 0.0 if parent is None else self._times.seconds(str(hop), self._share, now)
        if parent is not None and put.deadline[task] - now <= needed_seconds:
            self.fates.shed(task, ShedReason.DEADLINE)
        else:
            self._admission.put(task, now)

    def _time_out(self, task: int, now: float) -> None:
        """Let a client repeat its put, if the task was not done in time."""
        clients, (_request, puts_before) = self._clients, self._request_of[task]
        if clients is None or puts_before >= clients.retries or self.fates.codes[task] == Fates.IN_TIME:
            return
        pause_seconds = self._uniform(0.0, JITTER * clients.timeout_seconds)
        heappush(self._events, (now + pause_seconds, PUT_AGAIN, task))

    def _end(self, task: int, now: float) -> None:
        self._idle += 1
        self._in_work -= 1
        self._ended(task, now)
        if self._hops > 1:
            hop = self._hop_of[task]
            self._times.observe(str(hop), now - self.starts[task], now)
            if hop + 1 < self._hops:
                self._put(self._request_of[task][0], 0, now, task)

    def _start_idle(self, now: float) -> None:
        """Let idle servers claim, until one finds nothing."""
        while self._idle > 0 and (self._backlog.waiting or not self._pausing):
            task = self._claim(now)
            if task is None:
                return
            self._idle -= 1
            heappush(self._events, (self._start(task, now), END, task))

    def _start(self, task: int, now: float) -> float:
        """Start a task; return when it ends."""
        if self._slowdown is not None:
            self._load.service[task] *= self._factor(self._slowdown)
        end = now + self._load.service[task]
        self._in_work += 1
        self.starts[task] = now
        self.fates.codes[task] = Fates.IN_TIME if end <= self._limits[task] else Fates.LATE
        return end

    def _factor(self, slowdown: Slowdown) -> float:
        return 1.0 + slowdown.work * self._in_work + slowdown.backlog * self._backlog.count()
