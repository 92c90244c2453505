"""The discrete-event simulation of one queue, its policy and its servers.

The objects that decide are those of `freshq.policy`, the same that a queue uses. There are two kinds of
events: a task arrives, and a server becomes free. At each, the free servers claim.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Final

from freshq.policy.rules import ReserveRule
from freshq.simulate.admission import Admission
from freshq.simulate.backlog import backlog_for
from freshq.simulate.claims import SimulatedClaimer
from freshq.simulate.fates import Fates

if TYPE_CHECKING:
    from collections.abc import Callable

    from freshq.policy.order import OrderSwitch
    from freshq.policy.rules import OverloadRules
    from freshq.simulate.load import Load

MAX_SERVERS: Final = 100_000


@dataclass(frozen=True, slots=True)
class Simulation:
    """What became of every task of a load.

    Attributes:
        load: The tasks.
        servers: Number of servers.
        fates: For each task a code, see `Fates`.
        starts: For each task that was served, when it started; in seconds.
        switches: Every switch of an adaptive order.
    """

    load: Load
    servers: int
    fates: bytearray
    starts: array[float]
    switches: list[OrderSwitch] = field(default_factory=list)


def simulate_load(load: Load, rules: OverloadRules, servers: int, seed: int = 1) -> Simulation:
    """Serve a load until nothing is left of it.

    Args:
        load: The tasks.
        rules: The policy.
        servers: Number of tasks in work at a time, 1 or more.
        seed: Seed of the door's random draws.

    Raises:
        ValueError: If there is no server, or too many.
    """
    if not 1 <= servers <= MAX_SERVERS:
        msg = f"servers: must be from 1 to {MAX_SERVERS:,}, got {servers}"
        raise ValueError(msg)
    engine = _Engine(load, rules, servers, seed)
    engine.serve()
    return Simulation(load, servers, engine.fates.codes, engine.starts, engine.fates.switches)


class _Engine:
    """State of one run."""

    def __init__(self, load: Load, rules: OverloadRules, servers: int, seed: int) -> None:
        self._load = load
        self.fates = Fates(len(load))
        self.starts = array("d", bytes(8 * len(load)))
        self._backlog = backlog_for(load, rules, self.fates)
        self._admission = Admission(load, rules, self._backlog, self.fates, seed)
        self._claimer = SimulatedClaimer(load, rules, self._backlog, self._admission)
        # Most rules do without some steps, which cost time.
        self._admits_all = rules.door is None and rules.backlog is None
        unreserved = rules.reserve == ReserveRule()
        plain = unreserved and rules.codel is None
        self._claim: Callable[[float], int | None] = self._backlog.take if plain else self._claimer.claim
        # Whether a claim that finds nothing may be left out, because it would change nothing.
        self._pausing = unreserved and not rules.order.switches
        self._idle = servers
        # When each busy server ends.
        self._busy: list[float] = []
        self._door = rules.door is not None
        # When which task ends; only kept if a rule observes it.
        observed = self._door or rules.reserve.quantile is not None
        self._running: list[tuple[float, int]] | None = [] if observed else None

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
        """Let the server that ends first, `now`, claim its next task."""
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
        """Let idle servers claim, until one finds nothing."""
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
        """Show the rules what ended by now."""
        observe, served, starts = self._claimer.observe, self._admission.served, self.starts
        while running and running[0][0] <= now:
            end, task = heappop(running)
            observe(end - starts[task])
            if self._door:
                served(task, end)
