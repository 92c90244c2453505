"""A simulated call centre on a `MatchQueue`, with made-up people and a virtual clock."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from freshq.cli.commands.example.people import LANGUAGES, LEASE_SECONDS, MEAN_WRAP_UP_SECONDS, Agent, Caller
from freshq.matching.places import fits, parse_attributes

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    from freshq.matching.match import Match
    from freshq.matching.queue import MatchQueue


@dataclass
class Floor:
    """The call centre, event by event. The queue must use its virtual `clock`.

    Attributes:
        callers: All callers.
        waiting: Callers in the queue's line, by id.
        calls: Number of calls by agent, finished and running.
        talking: Number of running calls.
        lost: Number of connections that broke.
        recovered: Number of agents recovered after a connection broke.
        longest_idle_seconds: Longest time that an agent waited for a call.
    """

    queue: MatchQueue
    staff: list[Agent]
    callers: list[Caller]
    clock: Clock
    rng: random.Random
    waiting: dict[str, Caller] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    talking: int = 0
    lost: int = 0
    recovered: int = 0
    longest_idle_seconds: float = 0.0
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: Iterator[int] = field(default_factory=count)

    def run(self) -> Iterator[float]:
        """Serve every caller, and yield the time in seconds since the start after each event."""
        for agent in self.staff:
            self.queue.register(agent.agent_id, agent.attributes)
            self.queue.enqueue(agent.agent_id)
        for caller in self.callers:
            self._at(caller.called, lambda caller=caller: self._arrive(caller))  # type: ignore[misc]
        while self._events:
            at, _, happen = heapq.heappop(self._events)
            self.clock.now_seconds = at
            happen()
            yield at

    def close(self) -> None:
        """Unregister the agents, and send away the callers."""
        for caller_id in self.waiting:
            self.queue.abandon(caller_id)
        self.clock.now_seconds += LEASE_SECONDS
        for agent in self.staff:
            if self.queue.get(agent.agent_id) is not None:
                self.queue.leave(agent.agent_id)
                self.queue.unregister(agent.agent_id)

    def _at(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (seconds, next(self._order), happen))

    def _arrive(self, caller: Caller) -> None:
        match = self.queue.wait(caller.criteria, caller.name)
        if match is None:
            self.waiting[caller.name] = caller
        else:
            self._begin(caller, match)

    def _begin(self, caller: Caller, match: Match) -> None:
        now = self.clock.now_seconds
        caller.waited_seconds = now - caller.called
        asked = match.criteria.get("language")
        spoken = match.attributes["language"]
        caller.served_in = "preferred" if caller.language in spoken else "any" if asked is None else "other"
        self.calls[match.resource_id] += 1
        self.longest_idle_seconds = max(self.longest_idle_seconds, self.clock() - match.since)
        if caller.lost:
            self.lost += 1
            self._at(match.lease_until - self.clock.start, lambda: self._recover(match))
        else:
            self.talking += 1
            self._at(now + caller.call_seconds, lambda: self._hang_up(match))

    def _hang_up(self, match: Match) -> None:
        self.talking -= 1
        self.queue.release(match)
        pause_seconds = self.rng.expovariate(1 / MEAN_WRAP_UP_SECONDS)
        self._at(self.clock.now_seconds + pause_seconds, lambda: self._return(match))

    def _return(self, match: Match) -> None:
        self.queue.enqueue(match.resource_id)
        self._answer(match.resource_id)

    def _recover(self, match: Match) -> None:
        # A caller who came at the same time may have recovered this agent already.
        self.queue.recover()
        agent = self.queue.get(match.resource_id)
        self.recovered += agent is not None and agent.token != match.token
        self._answer(match.resource_id)

    def _answer(self, agent_id: str) -> None:
        """Begin the call of the waiting caller that the queue has matched with an agent, if there is one."""
        agent = self.queue.get(agent_id)
        caller = None if agent is None else self.waiting.pop(agent.caller_id or "", None)
        if caller is not None and (match := self.queue.wait(caller.criteria, caller.name)) is not None:
            self._begin(caller, match)

    def languages_free(self) -> Counter[str]:
        """Return the number of waiting agents by language, as the queue counts them."""
        free: Counter[str] = Counter()
        for name, depth in self.queue.depths().items():
            free[name.rpartition("language=")[2]] += depth
        return free


@dataclass
class Clock:
    """The virtual clock of the call centre.

    Attributes:
        start: Time of the start, in seconds since the epoch.
        now_seconds: Seconds since the start.
    """

    start: float
    now_seconds: float = 0.0

    def __call__(self) -> float:
        """Return the time in seconds since the epoch."""
        return self.start + self.now_seconds


def report(floor: Floor, order: str) -> dict[str, Any]:
    """Return waits, languages of the calls, and the spread of calls over agents."""
    served = [caller for caller in floor.callers if caller.waited_seconds is not None]
    calls = [floor.calls[agent.agent_id] for agent in floor.staff]
    return {
        "order": order,
        "agents": len(floor.staff),
        "callers": len(floor.callers),
        "served": len(served),
        "never_served": len(floor.waiting),
        "open_seconds": round(floor.clock.now_seconds, 1),
        "waits_by_language": {
            language: _waits([caller for caller in served if caller.language == language])
            for language in LANGUAGES
        },
        "longest_wait_seconds": _waits(served)["longest_seconds"],
        "share_by_language_served_in": _shares(served),
        "calls_by_agent": {"least": min(calls), "mean": sum(calls) / len(calls), "most": max(calls)},
        "fairness_among_agents": round(jain_index(calls), 3),
        "longest_idle_seconds": round(floor.longest_idle_seconds, 1),
        "connections_lost": floor.lost,
        "agents_recovered": floor.recovered,
    }


def _shares(served: list[Caller]) -> dict[str, float]:
    shares = Counter(caller.served_in for caller in served)
    return {name: round(shares[name] / max(len(served), 1), 3) for name in ("preferred", "other", "any")}


def _waits(served: list[Caller]) -> dict[str, Any]:
    waits = sorted(caller.waited_seconds or 0.0 for caller in served)
    if not waits:
        return {"callers": 0, "at_once": 0, "mean_seconds": 0.0, "p95_seconds": 0.0, "longest_seconds": 0.0}
    return {
        "callers": len(waits),
        "at_once": sum(wait == 0 for wait in waits),
        "mean_seconds": round(sum(waits) / len(waits), 1),
        "p95_seconds": round(waits[min(int(0.95 * len(waits)), len(waits) - 1)], 1),
        "longest_seconds": round(waits[-1], 1),
    }


def jain_index(shares: list[int]) -> float:
    """Return Jain's fairness index: 1 if all shares are equal, 1/n if one has everything."""
    squares = sum(share * share for share in shares)
    return 1.0 if squares == 0 else sum(shares) ** 2 / (len(shares) * squares)


def speaks(agent: Agent, language: str) -> bool:
    """Return whether an agent speaks a language."""
    return fits({"language": language}, parse_attributes(agent.attributes))
