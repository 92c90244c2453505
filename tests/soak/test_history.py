"""The checker of histories sees each planted violation, and nothing in a history that is clean."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from freshq import Queue, Task, TaskStatus
from freshq.queue import filters
from freshq.queue.core import core_of
from freshq.stores.base import Guard
from freshq.stores.lines import Choice, ClaimRequest
from freshq.stores.memory import MemoryStore
from tests.soak.actors import Actor, Watch
from tests.soak.history import (
    OK,
    REFUSED,
    UNKNOWN,
    Event,
    Journal,
    Stop,
    balance,
    check,
    last_number,
    read,
    traced,
)

LEASE_SECONDS = 10.0


def event(verb: str, at: float, by: str | None = None, **more: Any) -> Event:
    """Return an event about task "t" that took a tenth of a second."""
    given = {"process": "p", "task_id": "t", "outcome": OK} | more
    return Event(verb=verb, began=at, ended=at + 0.1, token=by, **given)


def claim(at: float, by: str, **more: Any) -> Event:
    return event("claim", at, by, lease_until=at + LEASE_SECONDS, **more)


def left(status: TaskStatus, attempts: int = 1) -> dict[str, Task]:
    return {"t": Task("t", "default", status, 0, 0, 100, 200, "token", attempts=attempts)}


def rules(events: list[Event], tasks: dict[str, Task]) -> list[str]:
    return [violation.rule for violation in check(events, tasks)]


def test_a_task_that_is_put_claimed_and_done_breaks_no_rule() -> None:
    events = [event("put", 0), claim(1, "a"), event("complete", 2, by="a")]

    assert rules(events, left(TaskStatus.SUCCESS)) == []


def test_a_lease_that_expired_lets_the_next_holder_in() -> None:
    events = [event("put", 0), claim(1, "a"), claim(12, "b"), event("complete", 13, by="b")]

    assert rules(events, left(TaskStatus.SUCCESS, attempts=2)) == []


def test_two_holders_at_a_time() -> None:
    events = [event("put", 0), claim(1, "a"), claim(5, "b")]

    assert rules(events, left(TaskStatus.TAKEN, attempts=2)) == ["two holders"]


def test_an_extended_lease_still_holds() -> None:
    extended = event("extend", 9, by="a", lease_until=30.0)
    events = [event("put", 0), claim(1, "a"), extended, claim(20, "b")]

    assert rules(events, left(TaskStatus.TAKEN, attempts=2)) == ["two holders"]


def test_a_settlement_of_unknown_outcome_may_have_ended_the_lease() -> None:
    events = [event("put", 0), claim(1, "a"), event("release", 2, by="a", outcome=UNKNOWN), claim(5, "b")]

    assert rules(events, left(TaskStatus.TAKEN, attempts=1)) == []


def test_a_stale_holder_settles() -> None:
    events = [event("put", 0), claim(1, "a"), claim(12, "b"), event("retry", 13, by="a")]

    assert rules(events, left(TaskStatus.PENDING, attempts=2)) == ["stale settlement"]


def test_of_two_claims_at_the_same_time_either_may_have_come_second() -> None:
    first = replace(claim(1, "a"), ended=3)
    events = [event("put", 0), first, claim(1.5, "b"), event("release", 2, "b"), event("complete", 4, "a")]

    assert rules(events, left(TaskStatus.SUCCESS, attempts=1)) == []


def test_a_claim_of_what_is_done() -> None:
    events = [event("put", 0), claim(1, "a"), event("complete", 2, by="a"), claim(15, "b")]

    assert rules(events, left(TaskStatus.SUCCESS, attempts=2)) == ["after the end"]


def test_a_claim_after_a_redrive_is_no_violation() -> None:
    redriven = event("redrive", 3)
    events = [event("put", 0), claim(1, "a"), event("fail", 2, by="a"), redriven, claim(15, "b")]

    assert rules(events, left(TaskStatus.TAKEN)) == []


@pytest.mark.parametrize("verb", ["cancel", "cancel as dead", "redrive as new"])
def test_a_task_taken_by_force_is_nobody_s(verb: str) -> None:
    forced, restored = event(verb, 2), event("redrive as new", 3)
    events = [event("put", 0), claim(1, "a"), forced, restored, claim(4, "b")]

    assert rules(events, left(TaskStatus.TAKEN)) == []


def test_a_claim_of_what_was_cancelled_as_dead() -> None:
    events = [event("put", 0), event("cancel as dead", 1), claim(2, "a")]

    assert rules(events, left(TaskStatus.FAILURE)) == ["after the end"]


def test_a_task_that_was_cancelled_as_dead_and_is_not_dead() -> None:
    assert rules([event("put", 0), event("cancel as dead", 1)], left(TaskStatus.CANCELLED, 0)) == [
        "wrong end"
    ]


def test_a_claim_past_the_deadline() -> None:
    events = [event("put", 0), claim(1, "a", deadline=0.5)]

    assert rules(events, left(TaskStatus.TAKEN)) == ["stale claim"]


@pytest.mark.parametrize(
    ("left_seconds", "broken"), [(9.9, []), (9.0, []), (8.6, ["used-up lease"]), (-1.0, ["used-up lease"])]
)
def test_a_claim_whose_lease_is_used_up(left_seconds: float, broken: list[str]) -> None:
    returned = replace(claim(1, "a"), ended=11 - left_seconds, lease_seconds=LEASE_SECONDS)

    assert rules([event("put", 0), returned], left(TaskStatus.TAKEN)) == broken


def test_what_happens_after_the_queue_has_looked_at_its_clock_is_not_its_fault() -> None:
    returned = replace(claim(1, "a"), ended=9, lease_seconds=LEASE_SECONDS)

    assert rules([event("put", 0), replace(returned, checked=1.9)], left(TaskStatus.TAKEN)) == []
    late = [event("put", 0), replace(returned, checked=2.1)]
    assert rules(late, left(TaskStatus.TAKEN)) == ["used-up lease"]


@pytest.mark.parametrize(("process", "broken"), [("p", []), ("another", ["used-up lease"])])
def test_a_process_that_was_stopped_may_find_its_lease_used_up(process: str, broken: list[str]) -> None:
    returned = replace(claim(1, "a"), ended=9, lease_seconds=LEASE_SECONDS)
    found = check([event("put", 0), returned], left(TaskStatus.TAKEN), [Stop(process, 2, 8)])

    assert [violation.rule for violation in found] == broken


def test_a_put_that_is_lost() -> None:
    assert rules([event("put", 0)], {}) == ["lost"]


def test_a_put_of_unknown_outcome_may_be_lost() -> None:
    assert rules([event("put", 0, outcome=UNKNOWN)], {}) == []


def test_a_task_that_nobody_put() -> None:
    assert rules([], left(TaskStatus.PENDING)) == ["invented"]


def test_an_end_that_did_not_last() -> None:
    events = [event("put", 0), claim(1, "a"), event("complete", 2, by="a")]

    assert rules(events, left(TaskStatus.FAILURE)) == ["wrong end"]


def test_an_attempt_that_nobody_made() -> None:
    events = [event("put", 0), claim(1, "a")]

    assert rules(events, left(TaskStatus.TAKEN, attempts=2)) == ["attempts"]


def fates(events: list[Event], status: TaskStatus, *drained: str) -> list[str]:
    return [violation.rule for violation in balance(events, {"t": status}, drained)]


@pytest.mark.parametrize(
    ("last", "status", "drained", "broken"),
    [
        (event("complete", 2, "p"), TaskStatus.SUCCESS, [], []),
        (event("complete", 2, "p", outcome=UNKNOWN), TaskStatus.SUCCESS, [], []),
        (event("complete", 2, "p", outcome=REFUSED), TaskStatus.SUCCESS, [], ["no cause"]),
        (event("fail", 2, "p"), TaskStatus.SUCCESS, [], ["no cause"]),
        (event("cancel as dead", 2), TaskStatus.FAILURE, [], []),
        (event("release", 2, "p"), TaskStatus.SUCCESS, ["t"], []),
        (event("release", 2, "p"), TaskStatus.FAILURE, ["t"], ["wrong end"]),
        (event("release", 2, "p"), TaskStatus.SUCCESS, ["t", "t"], ["drained twice"]),
        (event("release", 2, "p"), TaskStatus.PENDING, [], ["no cause"]),
        (event("release", 2, "p"), TaskStatus.SHED, [], []),
    ],
)
def test_every_fate_has_a_cause(
    last: Event, status: TaskStatus, drained: list[str], broken: list[str]
) -> None:
    assert fates([event("put", 0), claim(1, "p"), last], status, *drained) == broken


def test_a_put_that_is_not_there_at_the_end() -> None:
    assert [violation.rule for violation in balance([event("put", 0)], {}, [])] == ["lost"]


@pytest.mark.parametrize(
    ("calls", "status", "is_allowed"),
    [
        ([claim(1, "p"), event("complete", 2, "p")], TaskStatus.SUCCESS, True),
        ([claim(1, "p"), event("complete", 2, "p")], TaskStatus.PENDING, False),
        ([claim(1, "p"), event("complete", 2, "p", outcome=UNKNOWN)], TaskStatus.PENDING, True),
        ([claim(1, "p"), event("complete", 2, "p", outcome=UNKNOWN)], TaskStatus.SUCCESS, True),
        ([claim(1, "p"), event("complete", 2, "p", outcome=REFUSED)], TaskStatus.SUCCESS, False),
        ([claim(1, "p"), event("retry", 2, "p")], TaskStatus.FAILURE, True),
        ([claim(1, "p"), event("complete", 2, "q")], TaskStatus.SUCCESS, False),
        ([claim(1, "p"), claim(2, "q")], TaskStatus.TAKEN, False),
        ([claim(1, "p"), claim(2 + LEASE_SECONDS, "q")], TaskStatus.TAKEN, True),
        ([claim(1, "p"), event("release", 2, "p"), claim(3, "q")], TaskStatus.TAKEN, True),
        ([claim(1, "p"), event("release", 2, "p"), event("complete", 3, "p")], TaskStatus.SUCCESS, False),
        ([event("cancel", 1), claim(2, "p")], TaskStatus.TAKEN, False),
        ([event("cancel", 1), claim(0.5, "p")], TaskStatus.CANCELLED, True),
        ([claim(1, "p"), event("fail", 2, "p"), event("redrive", 3), claim(4, "q")], TaskStatus.TAKEN, True),
        ([claim(1, "p"), event("fail", 2, "p"), claim(4, "q")], TaskStatus.TAKEN, False),
    ],
)
def test_calls_are_replayed_through_the_transitions(
    calls: list[Event], status: TaskStatus, is_allowed: bool
) -> None:
    assert bool(traced([event("put", 0), *calls], left(status))) is not is_allowed


def test_a_claim_that_was_not_answered_may_have_taken_a_task() -> None:
    lost = event("claim", 1, task_id="", outcome=UNKNOWN)
    assert traced([event("put", 0), lost], left(TaskStatus.TAKEN)) == []
    assert traced([event("put", 0)], left(TaskStatus.TAKEN)) != []


def test_a_journal_that_ends_in_the_middle_of_a_call_is_read(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "a.jsonl", "a")
    with journal.call("put", "t"):
        pass
    with pytest.raises(KeyboardInterrupt), journal.call("cancel", "t"):
        raise KeyboardInterrupt
    with journal.path.open("ab") as file:
        file.write(b'{"number": 3, "verb": "release", "ids": ["t"], "token": null, "at": 5}\n{"num')

    assert [(each.verb, each.outcome) for each in read([journal.path])] == [
        ("release", UNKNOWN),
        ("put", OK),
        ("cancel", UNKNOWN),
    ]


class Forgetful(MemoryStore):
    """A store that makes every change, whoever holds the task."""

    def replace(self, task: Task, guard: Guard) -> Task:
        current = self.get(task.task_id)
        return super().replace(task, guard if current is None else Guard(current.status))


class Generous(MemoryStore):
    """A store that gives away held tasks."""

    def paused(self, queue: str) -> bool:  # the first call of a claim
        for task in list(self.scan(queue)):
            if task.status is TaskStatus.TAKEN:
                super().replace(make_pending(task), Guard(TaskStatus.TAKEN, request_token=task.request_token))
        return super().paused(queue)


class Stingy(MemoryStore):
    """A store that gives half-expired leases."""

    def take(self, request: ClaimRequest, choice: Choice) -> list[Task]:
        half_seconds = request.lease_seconds / 2
        return [
            super(Stingy, self).replace(
                replace(task, lease_until=(task.lease_until or 0.0) - half_seconds), Guard(TaskStatus.TAKEN)
            )
            for task in super().take(request, choice)
        ]


def make_pending(task: Task) -> Task:
    """Return a taken task as if its lease had expired."""
    return replace(task, status=TaskStatus.PENDING, lease_token=None, lease_until=None)


def rules_broken_on(
    store: MemoryStore, folder: Path, lease_seconds: float = 0.05, rounds: int = 700
) -> set[str]:
    """Let three actors act in turns, and return the rules that their history breaks."""
    watch = Watch()
    queue = Queue(store, clock=watch, lease_seconds=lease_seconds, max_age_seconds=30, max_attempts=1000)
    watch.note_answers(queue)
    cast = [
        Actor(queue, Journal(folder / f"{number}.jsonl", str(number)), random.Random(number), watch)
        for number in range(3)
    ]
    for _ in range(rounds):
        for actor in cast:
            actor.act()
    tasks = {task.task_id: task for task in core_of(queue).store.scan(queue.name)}
    events = read(folder.glob("*.jsonl"))
    return {violation.rule for violation in [*check(events, tasks), *traced(events, tasks)]}


def test_a_journal_tells_how_many_calls_it_has(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "actor.jsonl", "actor")
    for number in range(300):
        with journal.call("put", *[f"task-{number}-{each}" for each in range(10)]):
            pass

    assert last_number(journal.path) == 300


def test_random_verbs_break_no_rule(tmp_path: Path) -> None:
    # A busy machine may stall a claim for more than a tenth of a short lease after its last look at the time.
    assert rules_broken_on(MemoryStore(), tmp_path, lease_seconds=0.5) == set()


@pytest.mark.parametrize(("store", "rule"), [(Forgetful, "stale settlement"), (Generous, "two holders")])
def test_random_verbs_on_a_broken_store_are_found_out(
    store: type[MemoryStore], rule: str, tmp_path: Path
) -> None:
    assert rules_broken_on(store(), tmp_path) >= {rule, "no transition"}


def test_leases_that_are_used_up_when_claims_return_are_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a queue that does not ensure fresh leases."""
    monkeypatch.setattr(filters, "with_fresh_leases", lambda core, claims, *_: (list(claims), core.now()))

    assert "used-up lease" in rules_broken_on(Stingy(), tmp_path, lease_seconds=1.0, rounds=30)
