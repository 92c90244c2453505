"""If the producer's max age exceeds the claimer's, all reads of the claimer agree with its claims."""

import pytest

from freshq import PutOutcome, TaskStatus
from freshq.errors import IllegalTransition
from freshq.stores.base import OnConflict
from tests.conftest import StoreUnderTest
from tests.support.readings import counts, ids, known


def test_a_task_that_claims_pass_over_for_its_age_is_shed(store: StoreUnderTest) -> None:
    producer, worker = store.queue(max_age_seconds=3600), store.queue(max_age_seconds=2, override=True)
    producer.put("old", task_id="old")
    producer.put("later", task_id="later", delay_seconds=5)
    store.clock.advance(2)
    producer.put("new", task_id="new")

    assert counts(worker.stats()) == {"pending": 1, "delayed": 1, "shed": 1}
    assert worker.stats().shed_by_reason == {"expired": 1}
    assert [task.task_id for task in worker.list("SHED").tasks] == ["old"]
    old = known(worker, "old")
    assert (old.status, old.deadline) == (TaskStatus.SHED, old.created + 2)
    assert old.ended_at(store.clock.now) == old.deadline
    assert [waiting.task.task_id for waiting in worker.peek(9)] == ["new", "later"]
    assert ids(worker.claim(limit=9)) == ["new"]


def test_what_the_shorter_max_age_sheds_is_still_claimable_with_the_longer(store: StoreUnderTest) -> None:
    producer, worker = store.queue(max_age_seconds=3600), store.queue(max_age_seconds=2, override=True)
    producer.put("old", task_id="old")
    store.clock.advance(2)
    assert known(worker, "old").status is TaskStatus.SHED
    assert counts(producer.stats()) == {"pending": 1}
    assert known(producer, "old").deadline == known(producer, "old").created + 3600
    (claim,) = producer.claim()
    assert counts(worker.stats()) == {"taken": 1}
    producer.complete(claim)
    assert counts(worker.stats()) == {"success": 1}


def test_a_shorter_max_age_than_the_queues_stays_the_tasks_own(store: StoreUnderTest) -> None:
    queue = store.queue(max_age_seconds=60)
    queue.put("short", task_id="short", max_age_seconds=1)
    assert known(queue, "short").deadline == known(queue, "short").created + 1
    store.clock.advance(1)
    assert counts(queue.stats()) == {"shed": 1}


def test_a_dead_letter_that_claims_would_pass_over_is_not_redriven(store: StoreUnderTest) -> None:
    producer, worker = store.queue(max_age_seconds=3600), store.queue(max_age_seconds=2, override=True)
    for task_id in ("old", "older"):
        producer.put(task_id, task_id=task_id)
        worker.fail(worker.claim()[0], error="down")
    store.clock.advance(3)
    producer.put("new", task_id="new")
    worker.fail(worker.claim()[0], error="down")

    assert worker.redrive() == 1
    assert counts(worker.stats()) == {"pending": 1, "failure": 2}
    assert ids(worker.claim(limit=9)) == ["new"]
    with pytest.raises(IllegalTransition):
        worker.redrive(["old"])
    assert producer.redrive(["old"]) == 1
    assert producer.redrive() == 1
    assert sorted(ids(producer.claim(limit=9))) == ["old", "older"]


def test_approximate_counts_have_no_pending_task_that_claims_pass_over(store: StoreUnderTest) -> None:
    producer, worker = store.queue(max_age_seconds=3600), store.queue(max_age_seconds=2, override=True)
    producer.put("old", task_id="old")
    store.clock.advance(3)
    producer.put("new", task_id="new")
    assert counts(worker.stats()) == {"pending": 1, "shed": 1}
    approximate = worker.stats(approximate=True)
    # SQL leaves it out.
    assert (approximate.pending, approximate.shed) in {(1, 1), (1, 0)}
    assert producer.stats(approximate=True).pending == 2


@pytest.mark.parametrize("on_conflict", ["ignore", "update"])
def test_puts_and_verbs_by_id_go_by_the_deadline_of_the_put(
    store: StoreUnderTest, on_conflict: OnConflict
) -> None:
    producer, worker = store.queue(max_age_seconds=3600), store.queue(max_age_seconds=2, override=True)
    producer.put("work", task_id="old")
    store.clock.advance(3)
    assert known(worker, "old").status is TaskStatus.SHED
    assert worker.put("work", task_id="old", on_conflict=on_conflict).outcome is PutOutcome.DUPLICATE
    assert known(producer, "old").status is TaskStatus.PENDING
    assert worker.cancel("old").status is TaskStatus.CANCELLED
    assert producer.claim() == []
