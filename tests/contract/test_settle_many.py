"""Settling several claims together, on every store: each in its own way, with its own answer."""

from collections.abc import Callable
from typing import Any

import pytest
from local.faults import refused

from freshq import Claim, LeaseLost, Queue, Settlement, StoreError, Task, TaskStatus
from freshq.errors import Throttled
from freshq.model.task import Verb
from freshq.policy.retry import Backoff
from freshq.queue.core import core_of
from freshq.stores.sql import SqlStore
from tests.conftest import StoreUnderTest
from tests.support.counting import counted_calls
from tests.support.readings import counts, ids, known
from tests.support.statements import database_of

TOO_MUCH = "ProvisionedThroughputExceededException"


def held(queue: Queue, number: int, **options: Any) -> list[Claim]:
    """Put tasks with the ids 0, 1, 2..., and claim them all in this order."""
    queue.put_many([{"payload": each, "task_id": str(each), **options} for each in range(number)])
    return sorted(queue.claim(limit=number), key=lambda claim: int(claim.task.task_id))


def statuses(answers: list[Any]) -> list[str]:
    """Return the status of each task that was settled, or the name of the error."""
    return [answer.status.value if isinstance(answer, Task) else type(answer).__name__ for answer in answers]


def test_each_claim_ends_in_its_own_way(store: StoreUnderTest) -> None:
    queue = store.queue(backoff=Backoff(base_seconds=4))
    claims = held(queue, 8)
    answers = queue.settle_many(
        [
            Settlement.complete(claims[0]),
            Settlement.fail(claims[1], "broken 💥"),
            Settlement.retry(claims[2], "later", 30),
            Settlement.complete(claims[3], {"text": "a\0b \ud83d\udca5".encode(errors="replace").decode()}),
            Settlement.release(claims[4]),
            Settlement.retry(claims[5], "with backoff"),
            Settlement.release(claims[6], 20),
            Settlement.fail(claims[7]),
        ]
    )
    assert answers == [known(queue, str(number)) for number in range(8)]
    zero, one, two, three, four, five, six, seven = (known(queue, str(number)) for number in range(8))
    assert (zero.status, zero.result, zero.error) == (TaskStatus.SUCCESS, None, None)
    assert (one.status, one.error) == (TaskStatus.FAILURE, "broken 💥")
    assert (two.status, two.error, two.attempts) == (TaskStatus.PENDING, "later", 1)
    assert two.not_before == store.clock.now + 30
    assert (three.status, three.result) == (TaskStatus.SUCCESS, {"text": "a\0b ??"})
    assert (four.status, four.attempts, four.not_before) == (TaskStatus.PENDING, 0, None)
    assert five.not_before is not None
    assert store.clock.now < five.not_before < store.clock.now + 4
    assert (six.attempts, six.not_before) == (0, store.clock.now + 20)
    assert (seven.status, seven.error) == (TaskStatus.FAILURE, None)
    assert counts(queue.stats()) == {"success": 2, "failure": 2, "pending": 1, "delayed": 3}
    store.clock.advance(31)
    assert sorted(ids(queue.claim(limit=9))) == ["2", "4", "5", "6"]


def test_a_lost_lease_harms_no_other(store: StoreUnderTest) -> None:
    queue = store.queue(lease_seconds=10)
    claims = held(queue, 4)
    kept = [queue.extend(claims[0], lease_seconds=60), queue.extend(claims[3], lease_seconds=60)]
    store.clock.advance(10)
    queue.admin.recover()
    (other,) = queue.claim()
    queue.cancel("1" if other.task.task_id == "2" else "2")
    answers = queue.settle_many(
        [
            Settlement.complete(kept[0]),
            Settlement.complete(claims[1], "too late"),
            Settlement.retry(claims[2], "too late"),
            Settlement.retry(kept[1], "in time", 0),
        ]
    )
    assert statuses(answers) == ["SUCCESS", "LeaseLost", "LeaseLost", "PENDING"]
    for number, answer in enumerate(answers[1:3], start=1):
        status = "TAKEN" if other.task.task_id == str(number) else "CANCELLED"
        assert f"task '{number}': the claim no longer holds it (it is {status} now)" in str(answer)
    assert queue.complete(other, result="by another").result == "by another"
    assert counts(queue.stats()) == {"success": 2, "cancelled": 1, "pending": 1}


def test_of_two_settlements_of_a_claim_the_first_counts(queue: Queue) -> None:
    first, second = held(queue, 2)
    answers = queue.settle_many(
        [
            Settlement.complete(first, "one"),
            Settlement.fail(first, "two"),
            Settlement.complete(second, "three"),
            Settlement.complete(first, "four"),
        ]
    )
    assert statuses(answers) == ["SUCCESS", "LeaseLost", "SUCCESS", "LeaseLost"]
    assert known(queue, "0").result == "one"


def test_a_released_task_is_not_settled_by_the_same_call(queue: Queue) -> None:
    (claim,) = held(queue, 1)
    answers = queue.settle_many([Settlement.release(claim), Settlement.complete(claim)])
    assert statuses(answers) == ["PENDING", "LeaseLost"]


def test_a_settlement_recognizes_its_own_earlier_write(queue: Queue) -> None:
    claims = held(queue, 4)
    settlements = [
        Settlement.complete(claims[0]),
        Settlement.retry(claims[1], "later", 30),
        Settlement.fail(claims[2]),
        Settlement.release(claims[3]),
    ]
    once = queue.settle_many(settlements)
    assert statuses(queue.settle_many(settlements)) == statuses(once)
    assert statuses(once) == ["SUCCESS", "PENDING", "FAILURE", "PENDING"]


def test_nothing_to_settle_is_no_error(store: StoreUnderTest) -> None:
    queue = store.queue()
    with counted_calls(queue, store) as seen:
        assert queue.settle_many([]) == []
    assert seen == []


def test_a_retry_of_the_last_attempt_is_a_dead_letter(store: StoreUnderTest) -> None:
    queue = store.queue(max_attempts=2)
    claims = held(queue, 3)
    queue.settle_many([Settlement.retry(claim, "once", 0) for claim in claims[:2]])
    again = sorted(queue.claim(limit=2), key=lambda claim: claim.task.task_id)
    answers = queue.settle_many([Settlement.retry(claim, "twice") for claim in (*again, claims[2])])
    assert statuses(answers) == ["FAILURE", "FAILURE", "PENDING"]
    assert known(queue, "1").error == "twice"
    assert counts(queue.stats()) == {"failure": 2, "delayed": 1}


def test_groups_keep_their_turns_and_tasks_their_places(store: StoreUnderTest) -> None:
    queue = store.queue(order="fifo")
    for number, group in enumerate(("a", "a", "b", "b", None)):
        queue.put(number, task_id=str(number), group=group, priority=3 if group is None else 0)
    claims = queue.claim(limit=5)
    queue.settle_many([Settlement.release(claim) for claim in claims])
    again = queue.claim(limit=5)
    assert again[0].task.task_id == "4"
    assert [claim.task.group for claim in again[1:]].count("a") == 2
    assert {claim.task.group for claim in again[1:3]} == {"a", "b"}
    assert [each for each in ids(again) if each in "01"] == ["0", "1"]
    assert {claim.task.group for claim in again} == {"a", "b", None}


def test_one_that_went_stale_is_shed_by_its_return(store: StoreUnderTest) -> None:
    queue = store.queue()
    stale, live = held(queue, 2, max_age_seconds=20)
    store.clock.advance(20)
    answers = queue.settle_many([Settlement.release(stale), Settlement.complete(live)])
    assert isinstance(answers[0], Task)
    assert counts(queue.stats()) == {"shed": 1, "success": 1}


def test_without_an_answer_nothing_is_known_of_any_and_all_may_be_settled_again(
    store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = store.queue()
    claims = held(queue, 4)
    settlements = [Settlement.complete(claim, "done") for claim in claims[:2]]
    settlements += [Settlement.retry(claim, "later", 5) for claim in claims[2:]]
    answers = without_answer(store, queue, monkeypatch, lambda: queue.settle_many(settlements))
    assert [isinstance(answer, StoreError) for answer in answers] == [True] * 4
    assert statuses(queue.settle_many(settlements)) == ["SUCCESS", "SUCCESS", "PENDING", "PENDING"]
    assert known(queue, "1").result == "done"


def without_answer(
    store: StoreUnderTest, queue: Queue, monkeypatch: pytest.MonkeyPatch, call: Callable[[], list[Any]]
) -> list[Any]:
    """Call while the store refuses every change."""

    def fail(*_arguments: object, **_options: object) -> Any:
        raise Throttled("busy")

    if store.client is not None:
        with (
            refused(store.client, "UpdateItem", code=TOO_MUCH),
            refused(store.client, "BatchExecuteStatement", code=TOO_MUCH),
        ):
            return call()
    with monkeypatch.context() as patched:
        if isinstance(core_of(queue).store, SqlStore):
            for name in ("execute", "rows", "transaction"):
                patched.setattr(database_of(queue), name, fail)
        else:
            patched.setattr(core_of(queue).store, "replace", fail)
        return call()


def test_it_takes_few_statements(store: StoreUnderTest) -> None:
    queue = store.queue()
    if not isinstance(core_of(queue).store, SqlStore):
        pytest.skip("for SQL")
    claims = held(queue, 60)
    settlements = [Settlement.complete(claim) for claim in claims[:20]]
    settlements += [Settlement.fail(claim) for claim in claims[20:40]]
    settlements += [Settlement.retry(claim) for claim in claims[40:]]
    with counted_calls(queue, store) as seen:
        assert not [each for each in queue.settle_many(settlements) if isinstance(each, Exception)]
    # How recently other processes were notified decides whether further statements notify them.
    settling = [each for each in seen if "pg_notify" not in str(each)]
    # The other databases lock the rows and change them in one transaction, MariaDB for all rows.
    assert len(settling) <= {"postgres": 2, "sqlite": 5}.get(store.kind, 4)


def test_wrong_arguments_are_named_before_anything_is_settled(queue: Queue) -> None:
    claims = held(queue, 2)
    wrong_types: list[Any] = [None, 5, "a"]
    none, five, letter = wrong_types
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: Settlement.complete(claims[1], {1}), "result: not a JSON value"),
        (lambda: Settlement.retry(claims[1], delay_seconds=-1), "delay_seconds: must be"),
        (lambda: Settlement.release(claims[1], none), "delay_seconds: must be"),
        (lambda: Settlement.fail(claims[1], five), "error: must be a string or None, got int"),
        (lambda: Settlement.complete(letter), "claim: must be a Claim"),
        (lambda: Settlement(claims[1], Verb.CANCEL), "verb: must be one of complete, fail, retry, release"),
    ]
    for make, message in wrong:
        with pytest.raises(ValueError, match=message):
            make()
    with pytest.raises(ValueError, match="settlements"):
        queue.settle_many([Settlement.complete(claims[0]), claims[1]])  # type: ignore[list-item]
    assert counts(queue.stats()) == {"taken": 2}
    assert LeaseLost not in map(type, queue.settle_many([Settlement.complete(claim) for claim in claims]))
