"""The discrete-event simulation of one queue, its policy and its servers.

The objects that decide are those of `freshq.policy`, the same that a worker uses. Two kinds of events
drive the run: a task arrives, and a server becomes free and claims. Only these can change anything.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from random import Random
from typing import TYPE_CHECKING, Final

from freshq.policy.pressure import Flow, WindowCounter, assess, flow_window_seconds
from freshq.policy.shedding import FixedReserve, ShedReason, Victim
from freshq.simulate.lines import Ledger, lines_for

if TYPE_CHECKING:
    from freshq.policy.order import OrderSwitch
    from freshq.policy.pressure import Door
    from freshq.policy.rules import OverloadRules
    from freshq.policy.shedding import BacklogLimit
    from freshq.simulate.load import Load

MAX_SERVERS: Final = 100_000
# The door looks at the flow of the last deadline, so often in a deadline.
DOOR_LOOKS: Final = 10


@dataclass(frozen=True, slots=True)
class Run:
    """What became of every task of a load.

    Attributes:
        load: The tasks.
        servers: How many served them.
        fates: For each task a code, see `Ledger`.
        starts: For each task that was served, when; in seconds.
        switches: Each time that an adaptive order turned round.
    """

    load: Load
    servers: int
    fates: bytearray
    starts: array[float]
    switches: list[OrderSwitch] = field(default_factory=list)


def run(load: Load, rules: OverloadRules, servers: int, seed: int = 1) -> Run:
    """Serve a load until nothing is left of it.

    Args:
        load: The tasks.
        rules: The policy.
        servers: How many tasks are in work at a time, 1 or more.
        seed: Of the door's draws.

    Raises:
        ValueError: If there is no server, or too many.
    """
    if not 1 <= servers <= MAX_SERVERS:
        msg = f"servers: must be from 1 to {MAX_SERVERS:,}, got {servers}"
        raise ValueError(msg)
    engine = _Engine(load, rules, servers, seed)
    engine.serve()
    return Run(load, servers, engine.ledger.fates, engine.starts, engine.ledger.switches)


class _Engine:
    """State of one run.

    A server is the time at which it is, or was, free. Whenever tasks wait, no server is idle.
    """

    __slots__ = ("_backlog", "_door", "_free", "_lines", "_load", "_reserve", "_running", "ledger", "starts")

    def __init__(self, load: Load, rules: OverloadRules, servers: int, seed: int) -> None:
        self._load = load
        self.ledger = Ledger(len(load))
        self.starts = array("d", bytes(8 * len(load)))
        self._reserve = rules.new_reserve()
        self._lines = lines_for(load, rules, self._reserve, self.ledger)
        self._backlog = rules.backlog
        self._door = None if rules.door is None else _DoorKeeper(rules.door, rules.deadline_seconds, seed)
        self._free = [0.0] * servers
        # When which task ends; only kept if somebody wants to know.
        watched = self._door is not None or not isinstance(self._reserve, FixedReserve)
        self._running: list[tuple[float, int]] | None = [] if watched else None

    def serve(self) -> None:
        """Let every task arrive, and be served or shed."""
        free, lines, claim = self._free, self._lines, self._claim
        for task, now in enumerate(self._load.created):
            while free[0] <= now and lines.waiting and claim(free[0]):
                pass
            if self._door is not None and self._refuses(task, now):
                continue
            lines.push(task)
            if free[0] <= now:
                claim(now)
            elif self._backlog is not None:
                self._keep_bound(self._backlog, task, now)
        while lines.waiting and claim(free[0]):
            pass

    def _claim(self, now: float) -> bool:
        """Let the server that is free first take a task at `now`, if there is one for it."""
        running = self._running
        if running and running[0][0] <= now:
            self._settle(running, now)
        task = self._lines.take(now)
        if task is None:
            return False
        done = now + self._load.service[task]
        self.starts[task] = now
        self.ledger.fates[task] = Ledger.IN_TIME if done <= self._load.deadline[task] else Ledger.LATE
        heapreplace(self._free, done)
        if running is not None:
            heappush(running, (done, task))
        return True

    def _settle(self, running: list[tuple[float, int]], now: float) -> None:
        """Tell those who want to know about the tasks that have ended by now."""
        observe, service, door = self._reserve.observe, self._load.service, self._door
        while running and running[0][0] <= now:
            done, task = heappop(running)
            observe(service[task])
            if door is not None:
                door.settled(done, in_time=self.ledger.fates[task] == Ledger.IN_TIME)

    def _refuses(self, task: int, now: float) -> bool:
        """Return whether the door is closed to a task that comes now."""
        if self._door is None or self._running is None:
            return False
        self._settle(self._running, now)
        if self._door.due(now):
            self._lines.purge(now)
            oldest = self._lines.oldest() if self._lines.waiting else None
            age_seconds = None if oldest is None else now - self._load.created[oldest]
            self._door.look(now, age_seconds, self.ledger.turned_away)
        if not self._door.refuses(now):
            return False
        self.ledger.shed(task, ShedReason.DOOR)
        return True

    def _keep_bound(self, backlog: BacklogLimit, newcomer: int, now: float) -> None:
        """Shed one task if the newcomer is one too many."""
        lines = self._lines
        if lines.waiting <= backlog.max_waiting:
            return
        lines.purge(now)
        by_group = {} if backlog.group_share is None else lines.waiting_by_group()
        eviction = backlog.eviction(lines.waiting, by_group)
        if eviction is None:
            return
        task = newcomer
        if eviction.victim is Victim.OLDEST:
            task = lines.oldest()
        elif eviction.victim is Victim.OLDEST_OF_GROUP:
            task = lines.oldest_of(eviction.group)
        lines.remove(task)
        self.ledger.turn_away(task, eviction.reason)


class _DoorKeeper:
    """Feeds the door what a queue would count: rates over the last deadline, and the oldest age."""

    def __init__(self, door: Door, deadline_seconds: float, seed: int) -> None:
        self._door = door
        self._deadline_seconds = deadline_seconds
        self._offered, self._served, self._in_time, self._away = (
            WindowCounter(flow_window_seconds(deadline_seconds), 0.0) for _ in range(4)
        )
        self._turned_away = 0
        self._refusal = 0.0
        self._next_look = 0.0
        self._random = Random(f"{seed}/door").random  # noqa: S311 - a simulation

    def settled(self, done: float, *, in_time: bool) -> None:
        """Count a task that ended."""
        self._served.add(done)
        if in_time:
            self._in_time.add(done)

    def due(self, now: float) -> bool:
        """Return whether it is time to look at the queue."""
        return now >= self._next_look

    def look(self, now: float, oldest_age_seconds: float | None, turned_away: int) -> None:
        """Decide how much to refuse until the next look."""
        self._away.add(now, turned_away - self._turned_away)
        self._turned_away = turned_away
        flow = Flow(*(count.rate(now) for count in (self._offered, self._served, self._in_time, self._away)))
        pressure = assess(flow, oldest_age_seconds, self._deadline_seconds, uniform=0.0)
        self._refusal = self._door.refusal_probability(pressure)
        self._next_look = now + self._deadline_seconds / DOOR_LOOKS

    def refuses(self, now: float) -> bool:
        """Count a task that comes, and return whether it is refused."""
        self._offered.add(now)
        return self._refusal > 0 and self._random() < self._refusal
