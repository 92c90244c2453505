"""Simulate what tips a queue over: clients that try again, a loss of capacity, service that slows down.

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
from typing import TYPE_CHECKING, Final

from freshq.errors import quoted
from freshq.simulate.backlog import Fates
from freshq.simulate.engine import Engine, Simulation, check_servers
from freshq.simulate.load import MAX_TASKS, Load, positive

if TYPE_CHECKING:
    from freshq.policy.rules import OverloadRules

# A client waits at random up to this share of its timeout before it puts the task again.
JITTER: Final = 0.5
# Events in the order in which they count if they happen at one time.
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
    """A time of lower capacity. Tasks in work run to their end; the lost servers claim no further task.

    Attributes:
        start: When it begins, in seconds from the start of the simulation.
        seconds: Its length.
        factor: Capacity meanwhile, as a share of all servers: 0 for an outage.
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
    """Service that takes longer under load: 1 + work * (tasks in work - 1) + backlog * waiting tasks.

    The first term is the contention of the Universal Scalability Law (Gunther, Guerrilla Capacity Planning,
    2007, chapter 4). The second stands for a backlog in the memory of the servers, as in the runs with
    garbage collection of "Metastable Failures in the Wild".

    Attributes:
        work: Further share of the service time for each other task in work.
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
    """What makes the overload worse.

    Attributes:
        clients: Clients that try again; None: each task is put once, and counts until its deadline.
        dip: A loss of capacity.
        slowdown: Service that slows down.
    """

    clients: Clients | None = None
    dip: Dip | None = None
    slowdown: Slowdown | None = None


def simulate_stressed(
    load: Load, rules: OverloadRules, servers: int, stress: Stress, seed: int = 1
) -> Simulation:
    """Serve a load to its end under stress.

    The deadlines of the returned load are the times by which tasks had to be done to count: also a client's
    timeout.

    Args:
        load: The tasks, each put once.
        rules: The policy.
        servers: Number of tasks in work at a time, 1 or more.
        stress: What happens meanwhile.
        seed: Seed of the jitter, and of the door's random draws.

    Raises:
        ValueError: If there is no server, or too many, or too many tasks may be put.
    """
    check_servers(servers)
    tries = 1 if stress.clients is None else 1 + stress.clients.retries
    if len(load) * tries > MAX_TASKS:
        msg = f"client_retries: up to {len(load) * tries:,} tasks may be put, more than {MAX_TASKS:,}; "
        raise ValueError(msg + "shorten the run, or lower client_retries")
    engine = _StressedEngine(load, rules, servers, stress, seed)
    engine.serve()
    return engine.simulation(servers)


class _StressedEngine(Engine):
    """State of one run. Tasks are numbered in the order of their puts."""

    def __init__(self, load: Load, rules: OverloadRules, servers: int, stress: Stress, seed: int) -> None:
        self._levels, self._groups = bytearray(load.levels), list(load.groups)
        put = replace(
            load,
            created=load.created[:],
            service=load.service[:],
            deadline=load.deadline[:],
            levels=self._levels,
            groups=self._groups,
        )
        super().__init__(put, rules, servers, seed)
        # The backlog was made for all kinds of tasks of the load; now none is put yet.
        for column in (put.created, put.service, put.deadline, self.starts):
            del column[:]
        del self._levels[:], self._groups[:], self.fates.codes[:]
        self._requests = load
        self._clients = stress.clients
        self._slowdown = stress.slowdown
        self._in_work = 0
        self._uniform = Random(f"{seed}/clients").uniform
        # By when each task has to be done to count.
        self._limits = array("d")
        # The place in the requests of each task, and how often it was put before.
        self._request_of: list[tuple[int, int]] = []
        self._events: list[tuple[float, int, int]] = []
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
        """Return what became of every task that was put."""
        counted = replace(self._load, deadline=self._limits)
        again = len(counted) - len(self._requests)
        return Simulation(counted, servers, self.fates.codes, self.starts, self.fates.switches, again)

    def _run_until(self, until: float) -> None:
        """Let everything happen that happens up to a time."""
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

    def _put(self, request: int, puts_before: int, now: float) -> None:
        put, requests = self._load, self._requests
        task = len(put.created)
        age_seconds = requests.deadline[request] - requests.created[request]
        put.created.append(now)
        put.service.append(requests.service[request])
        put.deadline.append(now + age_seconds)
        if requests.levels:
            self._levels.append(requests.levels[request])
        if requests.groups:
            self._groups.append(requests.groups[request])
        self.fates.codes.append(Fates.WAITING)
        self.starts.append(0.0)
        self._request_of.append((request, puts_before))
        if self._clients is None:
            self._limits.append(put.deadline[task])
        else:
            gives_up = now + self._clients.timeout_seconds
            self._limits.append(min(gives_up, put.deadline[task]))
            heappush(self._events, (gives_up, TIMEOUT, task))
        self._admission.put(task, now)

    def _time_out(self, task: int, now: float) -> None:
        """Let a client put its task again, if it was not done in time."""
        clients, (_request, puts_before) = self._clients, self._request_of[task]
        if clients is None or puts_before >= clients.retries or self.fates.codes[task] == Fates.IN_TIME:
            return
        pause_seconds = self._uniform(0.0, JITTER * clients.timeout_seconds)
        heappush(self._events, (now + pause_seconds, PUT_AGAIN, task))

    def _end(self, task: int, now: float) -> None:
        self._idle += 1
        self._in_work -= 1
        self._ended(task, now)

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
