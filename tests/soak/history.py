"""The journals of many processes that use one queue, and the rules that they must obey.

A process writes a line before each call and another after it. When it is killed in between, the outcome of
that call is unknown, and the checker assumes the outcome that breaks no rule. All processes run on one
machine and use its clock, which is also the queue's.
"""

import json
import math
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from freshq import FreshqError, Task, TaskStatus
from freshq.errors import RefusedError
from freshq.model.task import TRANSITIONS, Verb

OK: Final = "ok"
REFUSED: Final = "refused"
UNKNOWN: Final = "unknown"

# The final state that each verb leaves.
ENDS: Final = {
    "complete": TaskStatus.SUCCESS,
    "fail": TaskStatus.FAILURE,
    "cancel": TaskStatus.CANCELLED,
    "cancel as dead": TaskStatus.FAILURE,
}
# Verbs that return an ended task to its line, with its attempts reset.
REVIVALS: Final = ("redrive", "redrive as new")
# Verbs that can take a task from its holder.
FORCING: Final = ("cancel", "cancel as dead", *REVIVALS)
# Possible transitions of a verb, if its event does not show which one it was. A redrive may find nothing to
# do.
ALTERNATIVES: Final = {
    "cancel": ("cancel", "cancel by force"),
    "cancel as dead": ("cancel as dead", "cancel as dead by force"),
    "redrive": ("redrive", "redrive as new"),
    "redrive as new": ("redrive as new", "redrive by force"),
}
# Placeholder for the task of a claim that was never answered, or not in full.
NO_TASK: Final = ""
# Claims faster than this must return fresh leases; far less than a lease of the soak.
SLOW_CLAIM_SECONDS: Final = 0.02
SETTLING: Final = frozenset({"complete", "fail", "retry", "release"})
# Two readings of one clock in two processes; far less than any lease in a soak.
CLOCK_SLACK_SECONDS: Final = 0.002
# Bytes at the end of a journal that hold at least one whole line; the longest line has ten claims.
LAST_BYTES: Final = 16_384
# Minimum part of its lease that a claim has left when it returns.
MIN_PART_LEFT: Final = 0.9


@dataclass(frozen=True)
class Event:
    """One call about one task.

    Attributes:
        process: Who made it.
        verb: The method of the queue.
        task_id: The task.
        began: When the call was made, in seconds since the epoch.
        ended: When it returned; infinite if it did not.
        outcome: `OK`, `REFUSED`, or `UNKNOWN`: it failed or never returned, and may have been carried out.
        token: The lease token of the claim that it made or used.
        lease_until: Until when the claim holds the task, by a claim or an extension.
        deadline: The task's deadline, where the call returned the task.
        lease_seconds: Length of the leases that a claim asked for.
        checked: When the queue last read its clock between the store's answer and the return of the claim.
    """

    process: str
    verb: str
    task_id: str
    began: float
    ended: float
    outcome: str
    token: str | None = None
    lease_until: float | None = None
    deadline: float | None = None
    lease_seconds: float | None = None
    checked: float | None = None


@dataclass(frozen=True)
class Stop:
    """A period in which a process was stopped."""

    process: str
    began: float
    ended: float

    def overlaps(self, event: Event) -> bool:
        """Return whether the process was stopped during a call."""
        return self.process == event.process and self.began <= event.ended and event.began <= self.ended


@dataclass(frozen=True)
class Violation:
    """A rule that a history breaks, and by what."""

    rule: str
    task_id: str
    found: str

    def __str__(self) -> str:
        """Return it on one line."""
        return f"{self.rule}: {self.task_id}: {self.found}"


@dataclass
class Journal:
    """The file in which one process writes down its calls."""

    path: Path
    process: str
    now: Callable[[], float] = time.time
    _number: int = 0

    @contextmanager
    def call(self, verb: str, *task_ids: str, token: str | None = None) -> Iterator[dict[str, Any]]:
        """Write the beginning and the end of a call into the journal; the block may add fields."""
        self._number += 1
        head = {"number": self._number, "verb": verb, "ids": task_ids, "token": token, "at": self.now()}
        self._write(head)
        tail: dict[str, Any] = {"number": self._number, "outcome": UNKNOWN}
        try:
            yield tail
            tail["outcome"] = OK
        except FreshqError as error:
            tail["outcome"] = REFUSED if isinstance(error, RefusedError) else UNKNOWN
            raise
        finally:
            self._write(tail | {"at": self.now()})

    def _write(self, line: Mapping[str, Any]) -> None:
        # One write of one line, and no buffer: a kill leaves whole lines.
        with self.path.open("ab", buffering=0) as file:
            file.write(json.dumps(line).encode() + b"\n")


def last_number(path: Path) -> int:
    """Return how many calls a journal has, by its end."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LAST_BYTES))
        numbers = re.findall(rb'"number": (\d+)', file.read())
    return int(numbers[-1]) if numbers else 0


def read(paths: Iterable[Path]) -> list[Event]:
    """Return the events of some journals, in the order in which they began."""
    events: list[Event] = []
    for path in paths:
        lines = [
            json.loads(line) for line in path.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")
        ]
        tails = {line["number"]: line for line in lines if "outcome" in line}
        heads = [line for line in lines if "verb" in line]
        events += [event for head in heads for event in _events(path.stem, head, tails.get(head["number"]))]
    return sorted(events, key=lambda event: event.began)


def _events(process: str, head: Mapping[str, Any], tail: Mapping[str, Any] | None) -> Iterator[Event]:
    ended = float("inf") if tail is None else tail["at"]
    outcome = UNKNOWN if tail is None else tail["outcome"]
    claims = () if tail is None else tail.get("claims", ())
    # A slow claim leaves out tasks whose leases it has lost in the meantime.
    told_all = tail is not None and not (tail.get("short") and ended - head["at"] > SLOW_CLAIM_SECONDS)
    if head["verb"] == "claim" and (outcome == UNKNOWN or not told_all):
        yield Event(process, head["verb"], NO_TASK, head["at"], ended, outcome)
    for task_id in head["ids"]:
        refused = tail is not None and task_id in tail.get("refused", ())
        yield Event(
            process,
            head["verb"],
            task_id,
            head["at"],
            ended,
            REFUSED if refused else outcome,
            head["token"],
            lease_until=None if tail is None else tail.get("lease_until"),
        )
    for claim in claims:
        yield Event(process, head["verb"], began=head["at"], ended=ended, outcome=outcome, **claim)


@dataclass
class _Holding:
    """The time for which a claim certainly held its task.

    Attributes:
        claim: The claim.
        until: The time until which nobody else can have claimed the task.
    """

    claim: Event
    until: float


@dataclass
class _Life:
    """The events of one task, by verb and outcome."""

    events: list[Event] = field(default_factory=list)

    def of(self, *verbs: str, outcome: str = OK) -> list[Event]:
        return [event for event in self.events if event.verb in verbs and event.outcome == outcome]

    def holdings(self) -> list[_Holding]:
        """Return the claims that were answered, each with the time for which it certainly held the task."""
        found = []
        for claim in self.of("claim"):
            until = claim.lease_until or claim.ended
            for event in self.events:
                if event.token != claim.token or event is claim:
                    continue
                if event.verb == "extend" and event.outcome == OK and event.lease_until is not None:
                    until = max(until, event.lease_until)
            # A settling call may take effect from its beginning on, whatever its answer; so may one that
            # takes the task from its holder.
            ends = [
                event.began
                for event in self.events
                if (event.verb in SETTLING and event.token == claim.token)
                or (event.verb in FORCING and event.ended >= claim.began)
            ]
            found.append(_Holding(claim, min([until - CLOCK_SLACK_SECONDS, *ends])))
        return found


def traced(events: Sequence[Event], left: Mapping[str, Task]) -> list[Violation]:
    """Return the tasks whose calls fit in no order that their times and the code's transitions allow.

    Args:
        events: What was done.
        left: Every task in the queue at the end, by id.
    """
    lives = _lives(events)
    unanswered = [event.began for event in lives.pop(NO_TASK, _Life()).events]
    return [
        violation
        for task_id, life in lives.items()
        for violation in _traced(task_id, life, left.get(task_id), unanswered)
    ]


def _lives(events: Iterable[Event]) -> defaultdict[str, _Life]:
    lives: defaultdict[str, _Life] = defaultdict(_Life)
    for event in events:
        lives[event.task_id].events.append(event)
    return lives


def check(events: Sequence[Event], left: Mapping[str, Task], stops: Sequence[Stop] = ()) -> list[Violation]:
    """Return the rules that a history breaks.

    Args:
        events: What was done.
        left: Every task in the queue at the end, by id.
        stops: When processes were stopped.
    """
    lives = _lives(events)
    unanswered = lives.pop(NO_TASK, _Life()).events
    found = [violation for task_id, life in lives.items() for violation in _of_life(task_id, life)]
    for task_id, life in lives.items():
        found += _of_end(task_id, life, left, len(unanswered))
    found += _used_up_leases(events, stops)
    known = {task_id for task_id, life in lives.items() if life.of("put") or life.of("put", outcome=UNKNOWN)}
    found += [Violation("invented", task_id, "nobody put it") for task_id in left.keys() - known]
    return found


def _of_life(task_id: str, life: _Life) -> Iterator[Violation]:
    yield from _one_holder(task_id, life)
    yield from _no_stale_settlement(task_id, life)
    yield from _no_claim_of_what_is_over(task_id, life)
    for claim in life.of("claim"):
        if claim.deadline is not None and claim.began > claim.deadline + CLOCK_SLACK_SECONDS:
            yield Violation(
                "stale claim", task_id, f"{claim.process} {claim.began - claim.deadline:.3f} s late"
            )


class _State(NamedTuple):
    """The state of a task in the specification.

    Attributes:
        status: Its status; None: it was not put yet.
        token: The token under which it is held; None if it is not, or by a claim that was not answered.
        until: When its lease ends; minus infinity for such a claim.
    """

    status: TaskStatus | None
    token: str | None = None
    until: float = -math.inf


def _traced(task_id: str, life: _Life, left: Task | None, unanswered: Sequence[float]) -> Iterator[Violation]:
    """Replay the calls about a task through the transitions, in any order that their times allow.

    A failed call may have been carried out, even after it returned. Between any two calls a lease that
    ran out may be recovered, a claim that was not answered may have taken the task, and a task may be shed.

    Args:
        task_id: The task.
        life: Its events.
        left: The task at the end.
        unanswered: When each claim began that was not answered, or not in full.
    """
    events = [event for event in life.events if event.outcome != REFUSED and event.verb != "recover"]
    ends = [event.ended if event.outcome == OK else math.inf for event in events]
    statuses = [] if left is None else [left.status]
    todo = [((1 << len(events)) - 1, _State(None))]
    seen, furthest = set(todo), len(events)
    while todo:
        rest, state = todo.pop()
        open_events = [place for place in range(len(events)) if rest >> place & 1]
        certain = [place for place in open_events if events[place].outcome == OK]
        moment = min([ends[place] for place in open_events], default=math.inf)
        states = _alone(state, moment, unanswered)
        if not certain and (not statuses or any(each.status in statuses for each in states)):
            return
        furthest = min(furthest, len(certain))
        for place in open_events:
            if events[place].began <= moment:
                after = {new for each in states for new in _after(each, events[place])}
                reached = {(rest & ~(1 << place), each) for each in after} - seen
                seen |= reached
                todo += reached
    yield Violation(
        "no transition", task_id, f"{furthest} calls fit in no order of the specification's steps"
    )


def _alone(state: _State, until: float, unanswered: Sequence[float]) -> set[_State]:
    """Return the possible states of a task up to a time, without any call that names it."""
    found, new = {state}, {state}
    while new:
        after = set()
        for each in new:
            if each.status is TaskStatus.TAKEN and each.until - CLOCK_SLACK_SECONDS <= until:
                after |= {_State(status) for status in TRANSITIONS[Verb.RECOVER][1]}
            if each.status is TaskStatus.PENDING:
                after |= {_State(status) for status in TRANSITIONS[Verb.SHED][1]}
                if any(began <= until for began in unanswered):
                    after |= {_State(status) for status in TRANSITIONS[Verb.CLAIM][1]}
        new = after - found
        found |= new
    return found


def _after(state: _State, event: Event) -> Iterator[_State]:
    """Yield the states to which a call may take a task."""
    if event.verb == "put":
        if state.status is None:
            yield _State(TaskStatus.PENDING)
        return
    own = event.token is not None and event.token == state.token
    if event.verb == "extend" and own:
        yield state._replace(until=max(state.until, event.lease_until or math.inf))
        return
    if event.outcome != OK or (event.verb in REVIVALS and state.status is not None):
        yield state
    if event.verb in (*SETTLING, "extend") and not own:
        return
    for verb in ALTERNATIVES.get(event.verb, (event.verb,)):
        sources, targets = TRANSITIONS[Verb(verb)]
        if state.status in sources:
            for target in targets:
                held = target is TaskStatus.TAKEN
                yield _State(target, event.token, event.lease_until or math.inf) if held else _State(target)


def _used_up_leases(events: Sequence[Event], stops: Sequence[Stop]) -> Iterator[Violation]:
    for claim in events:
        if claim.verb != "claim" or claim.outcome != OK or None in (claim.lease_until, claim.lease_seconds):
            continue
        assert claim.lease_until is not None
        assert claim.lease_seconds is not None
        # On a busy machine other processes may run between the call and its line.
        left_seconds = claim.lease_until - (claim.checked or claim.ended)
        short = left_seconds < MIN_PART_LEFT * claim.lease_seconds - CLOCK_SLACK_SECONDS
        if short and not any(stop.overlaps(claim) for stop in stops):
            what = f"{claim.process} got {left_seconds:.3f} s of {claim.lease_seconds} s"
            yield Violation("used-up lease", claim.task_id, what)


def _one_holder(task_id: str, life: _Life) -> Iterator[Violation]:
    for held in life.holdings():
        for other in life.of("claim"):
            inside = held.claim.ended <= other.began and other.ended <= held.until
            if inside and other.token != held.claim.token:
                yield Violation(
                    "two holders", task_id, f"{other.process} claimed what {held.claim.process} held"
                )


def _no_stale_settlement(task_id: str, life: _Life) -> Iterator[Violation]:
    # Of two simultaneous claims either may be the second.
    ended = {claim.token: claim.ended for claim in life.of("claim")}
    for settled in life.of(*SETTLING, "extend"):
        own = ended.get(settled.token, float("inf"))
        for claim in life.of("claim"):
            if own < claim.began and claim.ended < settled.began:
                yield Violation(
                    "stale settlement",
                    task_id,
                    f"{settled.process} could {settled.verb} what {claim.process} had claimed since",
                )


def _no_claim_of_what_is_over(task_id: str, life: _Life) -> Iterator[Violation]:
    ends = life.of(*ENDS)
    revivals = [event for event in life.events if event.verb in REVIVALS and event.outcome != REFUSED]
    for end in ends:
        for later in [*life.of("claim"), *ends]:
            revived = any(revival.began < later.ended and revival.ended > end.began for revival in revivals)
            if later is not end and end.ended < later.began and not revived:
                yield Violation("after the end", task_id, f"{later.verb} after {end.verb}")


def _of_end(
    task_id: str, life: _Life, left: Mapping[str, Task], unanswered_claims: int
) -> Iterator[Violation]:
    task = left.get(task_id)
    if task is None:
        if life.of("put"):
            yield Violation("lost", task_id, "its put was answered, and it is gone")
        return
    ends = life.of(*ENDS)
    doubtful = [event for event in life.events if event.outcome == UNKNOWN or event.verb in REVIVALS]
    if ends and not doubtful and task.status is not ENDS[ends[-1].verb]:
        yield Violation("wrong end", task_id, f"{ends[-1].verb} was answered, and it is {task.status}")
    claims = len(life.of("claim")) + unanswered_claims
    if task.attempts > claims and not doubtful:
        yield Violation("attempts", task_id, f"{task.attempts} counted, {claims} made")


def balance(
    events: Sequence[Event], ended: Mapping[str, TaskStatus], drained: Sequence[str]
) -> list[Violation]:
    """Return fates that do not add up: after the drain each task has ended, by a call that was made.

    Args:
        events: What was done.
        ended: The status of every task in the queue after the drain, by id.
        drained: The tasks that the drain completed.
    """
    causes: defaultdict[TaskStatus, set[str]] = defaultdict(set)
    for event in events:
        if event.verb in ENDS and event.outcome != REFUSED:
            causes[ENDS[event.verb]].add(event.task_id)
    causes[TaskStatus.SUCCESS].update(drained)
    put = {event.task_id for event in events if event.verb == "put" and event.outcome == OK}
    found = [
        Violation("lost", task_id, "its put was answered, and it is gone") for task_id in put - ended.keys()
    ]
    for task_id, status in ended.items():
        if task_id in drained and status is not TaskStatus.SUCCESS:
            found.append(Violation("wrong end", task_id, f"it was completed at the end, and it is {status}"))
        elif status is TaskStatus.SHED or task_id in causes[status]:
            continue
        else:
            found.append(Violation("no cause", task_id, f"it is {status} by no call"))
    found += [
        Violation("drained twice", task_id, "it was claimed again after it was completed")
        for task_id in {*drained}
        if drained.count(task_id) > 1
    ]
    return found
