"""Putting a task behind a running one of the same id, on every store."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from freshq import Claim, LeaseLost, PutOutcome, Queue, TaskStatus
from freshq.errors import IllegalTransition
from freshq.model.lifecycle import Settlement
from freshq.model.task import Task, changed, followed_by
from tests.conftest import StoreUnderTest
from tests.support.readings import counts, known, payloads, total

Settle = Callable[[Queue, Claim], Any]
# The ways in which a holder ends a run, and the status of the task that it gets back.
ENDS: dict[str, tuple[Settle, TaskStatus]] = {
    "complete": (lambda queue, claim: queue.complete(claim, result=7), TaskStatus.SUCCESS),
    "fail": (lambda queue, claim: queue.fail(claim, error="broken"), TaskStatus.FAILURE),
    "retry": (lambda queue, claim: queue.retry(claim, error="once more"), TaskStatus.CANCELLED),
    "release": (lambda queue, claim: queue.release(claim, delay_seconds=9), TaskStatus.CANCELLED),
    "settle_many": (
        lambda queue, claim: queue.settle_many([Settlement.complete(claim, 7)])[0],
        TaskStatus.SUCCESS,
    ),
}


def after(queue: Queue, payload: Any, **options: Any) -> str:
    return str(queue.put(payload, task_id="a", on_conflict="after", **options).outcome)


def running(queue: Queue, payload: Any = "old") -> Claim:
    queue.put(payload, task_id="a")
    (claim,) = queue.claim()
    return claim


def test_without_a_running_task_it_puts_and_updates(queue: Queue) -> None:
    assert [after(queue, number) for number in (1, 1, 2)] == ["CREATED", "DUPLICATE", "UPDATED"]
    (claim,) = queue.claim()
    queue.complete(claim)
    assert after(queue, 3) == "CREATED"
    assert payloads(queue.claim(5)) == [3]


@pytest.mark.parametrize("end", ENDS)
def test_the_last_put_enters_its_line_when_the_run_ends(
    queue: Queue, store: StoreUnderTest, end: str
) -> None:
    settle, status = ENDS[end]
    claim = running(queue)
    store.clock.advance(1)
    other = store.queue()
    assert [after(other, number) for number in (1, 2, 2)] == ["CREATED", "UPDATED", "DUPLICATE"]
    put_at = store.clock.now
    task = known(queue, "a")
    assert (task.status, task.payload, task.attempts) == (TaskStatus.TAKEN, "old", 1)
    assert task.successor is not None
    assert task.successor.payload == 2
    assert queue.claim() == []
    store.clock.advance(1)
    assert settle(queue, claim).status is status
    waiting = known(queue, "a")
    assert (waiting.status, waiting.payload, waiting.attempts) == (TaskStatus.PENDING, 2, 0)
    assert (waiting.result, waiting.error, waiting.successor, waiting.lease_token) == (None,) * 4
    assert waiting.put_at == waiting.created == pytest.approx(put_at, abs=1e-3)
    assert waiting.deadline == pytest.approx(put_at + 3600, abs=1e-3)
    assert counts(queue.stats()) == {"pending": 1}
    with pytest.raises(LeaseLost):
        queue.release(claim)
    (following,) = queue.claim(5)
    assert following.task.payload == 2
    queue.complete(following)
    assert counts(queue.stats()) == {"success": 1}


def test_the_running_attempt_goes_on_undisturbed(queue: Queue, store: StoreUnderTest) -> None:
    claim = running(queue)
    after(store.queue(), 1)
    store.clock.advance(3)
    extended = queue.extend(claim, lease_seconds=500, progress=0.5)
    assert extended.token == claim.token
    after(store.queue(), 2)
    extended = queue.extend(extended, lease_seconds=600)
    assert (extended.token, extended.task.progress_fraction) == (claim.token, 0.5)
    assert extended.lease_until == pytest.approx(store.clock.now + 600, abs=1e-3)
    assert queue.admin.held("a", claim.token).token == claim.token
    store.clock.advance(550)
    assert (queue.admin.recover(), queue.claim()) == (0, [])
    assert queue.complete(extended).result is None
    assert payloads(queue.claim(5)) == [2]


@pytest.mark.parametrize("attempts", [1, 5])
def test_an_expired_lease_lets_it_enter(store: StoreUnderTest, attempts: int) -> None:
    queue = store.queue(max_attempts=attempts)
    claim = running(queue)
    after(queue, "new")
    store.clock.advance(61)
    assert queue.admin.recover() >= 1
    assert counts(queue.stats()) == {"pending": 1}
    assert payloads(queue.claim(5)) == ["new"]
    for settle, _status in ENDS.values():
        if settle is not ENDS["settle_many"][0]:
            with pytest.raises(LeaseLost):
                settle(queue, claim)


def test_it_has_its_own_level_group_value_and_delay(queue: Queue, store: StoreUnderTest) -> None:
    claim = running(queue)
    options: dict[str, Any] = {"priority": 4, "group": "g", "kind": "k", "value": 3, "max_age_seconds": 100}
    after(queue, None, delay_seconds=20, **options)
    put_at = store.clock.now
    store.clock.advance(5)
    queue.complete(claim)
    task = known(queue, "a")
    assert {name: getattr(task, name) for name in ("priority", "group", "kind", "value")} == {
        "priority": 4, "group": "g", "kind": "k", "value": 3
    }  # fmt: skip
    assert task.not_before == task.first_due == pytest.approx(put_at + 20, abs=1e-3)
    assert task.deadline == pytest.approx(put_at + 120, abs=1e-3)
    assert queue.claim() == []
    store.clock.advance(15.1)
    queue.admin.recover()
    assert [claim.task.payload for claim in queue.claim(5)] == [None]


def test_a_delay_that_has_passed_holds_it_up_no_longer(queue: Queue, store: StoreUnderTest) -> None:
    claim = running(queue)
    after(queue, "new", delay_seconds=2)
    store.clock.advance(3)
    queue.complete(claim)
    assert payloads(queue.claim(5)) == ["new"]


def test_its_age_counts_from_its_put(queue: Queue, store: StoreUnderTest) -> None:
    claim = running(queue)
    after(queue, "new", max_age_seconds=10)
    store.clock.advance(11)
    assert after(queue, "new", max_age_seconds=10) == "UPDATED"  # the one that waited is stale
    store.clock.advance(11)
    queue.complete(claim)
    assert known(queue, "a").status is TaskStatus.SHED
    assert counts(queue.stats()) == {"shed": 1}
    assert queue.claim() == []


@pytest.mark.parametrize("others", [None, "ignore"])
def test_other_puts_find_the_id_taken(queue: Queue, others: Any) -> None:
    claim = running(queue)
    after(queue, "new")
    assert queue.put("newer", task_id="a", on_conflict=others).outcome is PutOutcome.DUPLICATE
    queue.complete(claim)
    assert queue.put("newer", task_id="a", on_conflict=others).outcome is PutOutcome.DUPLICATE
    assert payloads(queue.claim(5)) == ["new"]


@pytest.mark.parametrize("newest", ["newest", "old"])
def test_an_update_replaces_both(queue: Queue, newest: str) -> None:
    claim = running(queue)
    after(queue, "new")
    assert queue.put(newest, task_id="a", on_conflict="update").outcome is PutOutcome.UPDATED
    assert known(queue, "a").successor is None
    with pytest.raises(LeaseLost):
        queue.complete(claim)
    (claim,) = queue.claim(5)
    assert (claim.task.payload, queue.complete(claim).status) == (newest, TaskStatus.SUCCESS)
    assert counts(queue.stats()) == {"success": 1}


@pytest.mark.parametrize("dead", [False, True])
def test_a_forced_cancel_cancels_both(queue: Queue, dead: bool) -> None:
    claim = running(queue)
    after(queue, "new")
    with pytest.raises(IllegalTransition):
        queue.cancel("a")
    assert known(queue, "a").successor is not None
    queue.cancel("a", force=True, dead=dead)
    task = known(queue, "a")
    assert (task.payload, task.status) == ("new", TaskStatus.FAILURE if dead else TaskStatus.CANCELLED)
    with pytest.raises(LeaseLost):
        queue.complete(claim)
    assert queue.claim() == []


@pytest.mark.parametrize("others", [[], ["b"]])
def test_a_forced_redrive_moves_the_one_that_waits(
    queue: Queue, store: StoreUnderTest, others: list[str]
) -> None:
    claim = running(queue)
    queue.put("other", task_id="b")
    after(queue, "new")
    store.clock.advance(5)
    queue.put("later", task_id="c")
    assert queue.redrive([*others, "a"], as_new=True, force=True) == 1 + len(others)
    with pytest.raises(LeaseLost):
        queue.complete(claim)
    task = known(queue, "a")
    assert task.payload == "new"
    assert task.created == pytest.approx(store.clock.now, abs=1e-3)
    assert payloads(queue.claim(1)) == ["new"]  # the newest


@pytest.mark.parametrize("verb", ["cancel", "redrive"])
def test_force_ends_a_run_behind_which_a_stale_task_waits(
    queue: Queue, store: StoreUnderTest, verb: str
) -> None:
    claim = running(queue)
    after(queue, "new", max_age_seconds=1)
    store.clock.advance(5)
    if verb == "cancel":
        assert queue.cancel("a", force=True).status is TaskStatus.SHED
    else:
        assert queue.redrive(["a"], as_new=True, force=True) == 1
    assert known(queue, "a").status is TaskStatus.SHED
    with pytest.raises(LeaseLost):
        queue.complete(claim)


def test_purge_deletes_both(queue: Queue) -> None:
    for arguments in ({"task_ids": ["a"]}, {"status": "TAKEN"}, {"where": lambda _task: True}, {}):
        claim = running(queue)
        after(queue, "new")
        queue.purge(confirm=queue.name, **arguments)
        assert total(queue) == 0
        with pytest.raises(LeaseLost):
            queue.complete(claim)
        assert queue.claim() == []


def test_a_batch_takes_the_last_of_each_id(queue: Queue) -> None:
    queue.put_many([{"payload": "old", "task_id": str(number)} for number in range(30)])
    claims = queue.claim(30)
    some = range(0, 30, 2)
    tasks = [{"payload": 100 * half + each, "task_id": str(each)} for half in (1, 2) for each in some]
    outcomes = [receipt.outcome for receipt in queue.put_many(tasks, on_conflict="after")]
    assert outcomes == [PutOutcome.CREATED] * 15 + [PutOutcome.UPDATED] * 15
    answers = queue.settle_many([Settlement.complete(claim) for claim in claims])
    assert [getattr(answer, "status", answer) for answer in answers] == [TaskStatus.SUCCESS] * 30
    assert counts(queue.stats()) == {"pending": 15, "success": 15}
    assert {*payloads(queue.claim(30))} == {200 + each for each in some}


def test_a_batch_of_settlements_tells_how_each_run_ended(queue: Queue) -> None:
    queue.put_many([{"payload": number, "task_id": str(number)} for number in range(6)])
    claims = sorted(queue.claim(6), key=lambda claim: claim.task.task_id)
    for number in (0, 2, 4):
        queue.put("new", task_id=str(number), on_conflict="after")
    make: Any = [
        *[Settlement.complete] * 2,
        *[partial(Settlement.retry, error="x")] * 2,
        *[Settlement.release] * 2,
    ]
    answers = queue.settle_many([each(claim) for each, claim in zip(make, claims, strict=True)])
    statuses = [getattr(answer, "status", answer) for answer in answers]
    ended, waits = TaskStatus.CANCELLED, TaskStatus.PENDING
    assert statuses == [TaskStatus.SUCCESS, TaskStatus.SUCCESS, ended, waits, ended, waits]


def test_a_settlement_that_is_repeated_is_recognized(queue: Queue) -> None:
    claim = running(queue)
    after(queue, "new")
    settlement = Settlement.complete(claim, 7)
    for _ in range(2):
        (answer,) = queue.settle_many([settlement])
        assert getattr(answer, "result", answer) == 7
    assert payloads(queue.claim(5)) == ["new"]


def test_puts_behind_a_running_task_are_debounced_together(queue: Queue, store: StoreUnderTest) -> None:
    claim = running(queue)
    first = store.clock.now
    for number in range(4):
        after(queue, number, delay_seconds=5, debounce_max_seconds=12)
        store.clock.advance(4)
    queue.complete(claim)
    task = known(queue, "a")
    assert (task.put_at, task.first_due) == pytest.approx((first, first + 12), abs=1e-3)
    assert payloads(queue.claim(5)) == [3]


def test_a_waiter_waits_for_the_last_run(queue: Queue) -> None:
    claim = running(queue)
    after(queue, "new")
    queue.complete(claim, result="first")
    (claim,) = queue.claim()
    queue.complete(claim, result="last")
    assert queue.wait("a", timeout_seconds=5).result == "last"


def test_a_long_record_and_any_payload_survive(queue: Queue) -> None:
    payload = {"text": "\u0000 \N{SNOWMAN} \\ ' \" \n", "numbers": [1.5, -0.0, 10**15, None, True]}
    parent = {"task_id": "p" * 900, "group": "g" * 250}
    for _ in range(2):
        claim = running(queue)
        after(queue, payload, parent=parent, trace_context=f"00-{'1' * 32}-{'2' * 16}-01")
        queue.complete(claim)
        (claim,) = queue.claim()
        assert claim.task.payload == payload
        assert (claim.task.parent_id, claim.task.group) == ("p" * 900, "g" * 250)
        queue.complete(claim)
        queue.purge(confirm=queue.name)


Damage = Callable[[dict[str, Any]], Any]


def put_damaged(monkeypatch: pytest.MonkeyPatch, queue: Queue, damage: Damage) -> str:
    """Put a successor whose record is damaged; return the record."""
    records = []

    def damaged(task: Task, successor: Task) -> Task:
        followed = followed_by(task, successor)
        values = damage(json.loads(followed.successor_record or ""))
        records.append(values if isinstance(values, str) else json.dumps(values))
        return changed(followed, successor_record=records[-1])

    with monkeypatch.context() as patch:
        patch.setattr("freshq.model.lifecycle.followed_by", damaged)
        assert after(queue, "new") == "CREATED"
    return records[-1]


DAMAGES: dict[str, tuple[Damage, str]] = {
    "no JSON": (lambda _values: "{", "Expecting property name"),
    "a list": (lambda _values: "[]", "not an object"),
    "no times": (lambda values: values | {"created": None, "updated": "now"}, "created, updated"),
    "another level": (lambda values: values | {"priority": 10}, "priority"),
    "no number": (lambda values: values | {"value": float("inf")}, "value"),
    "a group of numbers": (lambda values: values | {"group": 7, "kind": []}, "group, kind"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("end", ["complete", "settle_many", "release"])
def test_a_damaged_successor_becomes_a_dead_letter(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, damage: str, end: str
) -> None:
    make, why = DAMAGES[damage]
    claim = running(queue)
    record = put_damaged(monkeypatch, queue, make)
    settle, status = ENDS[end]
    assert settle(queue, claim).status is status
    letter = known(queue, "a")
    assert (letter.status, letter.payload) == (TaskStatus.FAILURE, record)
    assert "successor" in str(letter.error)
    assert why in str(letter.error)
    assert [task.task_id for task in queue.list(status="FAILURE")] == ["a"]
    assert counts(queue.stats()) == {"failure": 1}
    assert queue.claim() == []
    assert after(queue, "repaired") == "CREATED"
    assert payloads(queue.claim()) == ["repaired"]


def test_a_put_replaces_a_damaged_successor(
    queue: Queue, store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = running(queue)
    put_damaged(monkeypatch, queue, lambda _values: {})
    assert after(queue, "newer", delay_seconds=1, debounce_max_seconds=2) == "UPDATED"
    queue.complete(claim)
    store.clock.advance(1)
    assert payloads(queue.claim()) == ["newer"]


def test_a_field_of_a_newer_program_is_left_out(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    claim = running(queue)
    put_damaged(monkeypatch, queue, lambda values: values | {"field_of_tomorrow": 1})
    queue.complete(claim)
    assert payloads(queue.claim()) == ["new"]
