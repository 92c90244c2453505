"""The discrete-event simulation of one queue, its policy and its servers.

The objects that decide are those of `freshq.policy`, the same that a queue uses. There are two kinds of
events: a task arrives, and a server becomes free. At each, the free servers claim.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Final

from freshq.simulate.admission import Admission
from freshq.simulate.backlog import backlog_for
from freshq.simulate.claims import Claims
from freshq.simulate.fates import Fates

if TYPE_CHECKING:
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

    __slots__ = ("_admission", "_busy", "_claim", "_claims", "_idle", "_load", "_running", "fates", "starts")

    def __init__(self, load: Load, rules: OverloadRules, servers: int, seed: int) -> None:
        self._load = load
        self.fates = Fates(len(load))
        self.starts = array("d", bytes(8 * len(load)))
        backlog = backlog_for(load, rules, self.fates)
        self._admission = Admission(load, rules, backlog, self.fates, seed)
        self._claims = Claims(load, rules, backlog, self._admission)
        # Without a reserve and CoDel there is nothing to do but take the next task.
        plain = rules.codel is None and rules.reserve.quantile is None and not rules.reserve.seconds
        self._claim = backlog.take if plain else self._claims.claim
        self._idle = servers
        # When each busy server ends.
        self._busy: list[float] = []
        # When which task ends; only kept if a rule observes it.
        observed = rules.door is not None or rules.reserve.quantile is not None
        self._running: list[tuple[float, int]] | None = [] if observed else None

    def serve(self) -> None:
        """Let every task arrive, and be served or shed."""
        busy, put = self._busy, self._admission.put
        for task, now in enumerate(self._load.created):
            while busy and busy[0] <= now:
                self._complete()
            put(task, now)
            if self._idle:
                self._start_idle(now)
        while busy:
            self._complete()
        self.fates.shed_waiting(self._load, self._claims.spans)

    def _complete(self) -> None:
        """Let the server that ends first claim its next task."""
        busy = self._busy
        now = busy[0]
        if self._running is not None:
            self._observe(self._running, now)
        task = self._claim(now)
        if task is None:
            heappop(busy)
            self._idle += 1
            return
        heapreplace(busy, self._start(task, now))
        if self._idle:
            self._start_idle(now)

    def _start_idle(self, now: float) -> None:
        """Let idle servers claim, until one finds nothing."""
        while self._idle and (task := self._claim(now)) is not None:
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
        """Show the policy what ended by now."""
        while running and running[0][0] <= now:
            end, task = heappop(running)
            self._claims.served(end - self.starts[task])
            self._admission.served(task, end)
