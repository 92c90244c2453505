"""A simulated call centre on a `MatchQueue`, with made-up people and a virtual clock."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from freshq.matching.criteria import parse_criteria
from freshq.matching.places import fits, parse_attributes

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    from freshq.matching.match import Match
    from freshq.matching.queue import MatchQueue

LANGUAGES: Final = {"English": 0.6, "Spanish": 0.25, "French": 0.15}
GENDERS: Final = ("F", "M", "X")
FIRST_NAMES: Final = (
    "Ada", "Amir", "Bela", "Carla", "Chidi", "Dana", "Elif", "Farid", "Gita", "Hugo", "Ines", "Jun",
    "Kofi", "Lena", "Malik", "Nadia", "Omar", "Priya", "Quinn", "Rosa", "Sami", "Tara", "Uma", "Yusuf",
)  # fmt: skip
MEAN_CALL_SECONDS: Final = 180.0
MEAN_WRAP_UP_SECONDS: Final = 30.0
LEASE_SECONDS: Final = 900.0
# Above 1, so that callers have to wait.
LOAD: Final = 1.2
# Share of the connections that break silently; the agent is recovered when the lease expires.
LOST_SHARE: Final = 0.01


@dataclass(frozen=True, slots=True)
class Agent:
    """A person who takes calls."""

    agent_id: str
    attributes: dict[str, Any]


@dataclass(slots=True)
class Caller:
    """A person who calls.

    Attributes:
        name: A name.
        language: The preferred language.
        criteria: What the caller asks of an agent.
        called: Time of the call, in seconds since the start.
        call_seconds: Duration of the call.
        lost: Whether the connection breaks silently.
        waited_seconds: Time until an agent was found; None before.
        served_in: The language of the call: preferred, other or any.
    """

    name: str
    language: str
    criteria: dict[str, Any]
    called: float
    call_seconds: float
    lost: bool
    waited_seconds: float | None = None
    served_in: str = ""


def agents(number: int, rng: random.Random) -> list[Agent]:
    """Return made-up agents who speak one to three languages."""
    made = []
    for index in range(number):
        spoken = _languages(rng, rng.choices((1, 2, 3), (0.5, 0.35, 0.15))[0])
        attributes = {"language": set(spoken), "gender": rng.choices(GENDERS, (0.48, 0.48, 0.04))[0]}
        made.append(Agent(f"{_name(rng)}-{index + 1:03}", attributes))
    return made


def callers(number: int, agents_there: int, rng: random.Random) -> list[Caller]:
    """Return made-up callers, in the order in which they call.

    Half of them insist on their language, the others accept a second one or any. One in five prefers a
    gender.
    """
    mean_gap_seconds = (MEAN_CALL_SECONDS + MEAN_WRAP_UP_SECONDS) / (LOAD * agents_there)
    now = 0.0
    made = []
    for _ in range(number):
        now += rng.expovariate(1 / mean_gap_seconds)
        language, second = _languages(rng, 2)
        accepted: list[list[str | None]] = [[language], [language, second], [language, None]]
        criteria: dict[str, Any] = {"language": rng.choices(accepted, (0.5, 0.35, 0.15))[0]}
        if rng.random() < 0.2:  # noqa: PLR2004 - one in five
            criteria["gender"] = [rng.choice(("F", "M")), None]
        call_seconds = min(rng.expovariate(1 / MEAN_CALL_SECONDS), LEASE_SECONDS - 1)
        lost = rng.random() < LOST_SHARE
        made.append(Caller(_name(rng), language, criteria, now, call_seconds, lost))
    return made


def _languages(rng: random.Random, number: int) -> list[str]:
    chosen: list[str] = []
    while len(chosen) < number:
        language = rng.choices(list(LANGUAGES), list(LANGUAGES.values()))[0]
        if language not in chosen:
            chosen.append(language)
    return chosen


def _name(rng: random.Random) -> str:
    return rng.choice(FIRST_NAMES)


@dataclass
class Floor:
    """The call centre, event by event. The queue must use its virtual `clock`.

    Attributes:
        callers: All callers.
        waiting: Callers without an agent, longest wait first.
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
    waiting: deque[Caller] = field(default_factory=deque)
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
        """Unregister the agents."""
        self.clock.now_seconds += LEASE_SECONDS
        for agent in self.staff:
            if self.queue.get(agent.agent_id) is not None:
                self.queue.leave(agent.agent_id)
                self.queue.unregister(agent.agent_id)

    def _at(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (seconds, next(self._order), happen))

    def _arrive(self, caller: Caller) -> None:
        if not self._serve(caller):
            self.waiting.append(caller)

    def _serve(self, caller: Caller) -> bool:
        matches = self.queue.match(caller.criteria)
        if not matches:
            return False
        match, now = matches[0], self.clock.now_seconds
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
        return True

    def _hang_up(self, match: Match) -> None:
        self.talking -= 1
        self.queue.release(match)
        pause_seconds = self.rng.expovariate(1 / MEAN_WRAP_UP_SECONDS)
        self._at(self.clock.now_seconds + pause_seconds, lambda: self._return(match))

    def _return(self, match: Match) -> None:
        self.queue.enqueue(match.resource_id)
        self._serve_first(match)

    def _recover(self, match: Match) -> None:
        # An earlier caller who found no agent may have recovered this one already.
        self.queue.recover()
        agent = self.queue.get(match.resource_id)
        self.recovered += agent is not None and agent.token != match.token
        self._serve_first(match)

    def _serve_first(self, match: Match) -> None:
        """Match the first waiting caller whose criteria an agent meets."""
        for caller in self.waiting:
            ranks = parse_criteria(caller.criteria)
            if any(fits(ask, match.attributes) for asks in ranks for ask in asks):
                if self._serve(caller):
                    self.waiting.remove(caller)
                return

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
