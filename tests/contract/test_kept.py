"""Work that must not be lost: tasks that are never stale."""

from math import inf

import pytest

from freshq import Overloaded, Queue, TaskStatus
from freshq.feeds import Relay
from freshq.policy import BacklogLimit, Door, WhenFull
from tests.conftest import StoreUnderTest
from tests.support.readings import counts, ids, known

HOUR_SECONDS = 3600.0
MONTH_SECONDS = 30 * 86_400.0


@pytest.mark.parametrize("away_seconds", [HOUR_SECONDS, MONTH_SECONDS])
def test_what_is_never_stale_waits_for_a_late_consumer(store: StoreUnderTest, away_seconds: float) -> None:
    queue = store.queue(order="fifo", max_age_seconds=None)
    queue.put("delayed", task_id="delayed", delay_seconds=60)
    queue.put("at", task_id="at", at=store.clock.now + 61)
    queue.put("grouped", task_id="grouped", group="acme")
    queue.put("retried", task_id="retried", priority=1)
    (retried,) = queue.claim()
    queue.retry(retried, error="down", delay_seconds=5)
    store.clock.advance(away_seconds)

    queue.admin.recover()  # deletes what is past its retention
    assert counts(queue.stats()) == counts(queue.stats(approximate=True)) == {"pending": 4}
    for task_id in ("delayed", "at", "grouped", "retried"):
        task = known(queue, task_id)
        assert (task.status, task.deadline) == (TaskStatus.PENDING, None)
        assert task.expires > store.clock.now + 40 * 365 * 86_400
    claims = queue.claim(limit=9)
    assert {claim.task.deadline for claim in claims} == {None}
    assert sorted(ids(claims)) == ["at", "delayed", "grouped", "retried"]
    assert queue.complete(claims[0]).deadline is None


def test_a_task_has_the_shorter_max_age_also_where_one_has_none(store: StoreUnderTest) -> None:
    never, hourly = store.queue(max_age_seconds=None), store.queue(max_age_seconds=HOUR_SECONDS)
    for task_id, queue in (("of-never", never), ("of-hourly", hourly)):
        queue.put(1, task_id=task_id)
    never.put(1, task_id="own", max_age_seconds=5)
    put_at = store.clock.now
    for queue, until in ((never, None), (hourly, put_at + HOUR_SECONDS)):
        deadline = known(queue, "of-never").deadline
        assert deadline == (until and pytest.approx(until))
    store.clock.advance(5)
    assert counts(never.stats()) == {"pending": 2, "shed": 1}
    store.clock.advance(HOUR_SECONDS)
    assert counts(hourly.stats()) == {"shed": 3}
    assert ids(never.claim(limit=9)) == ["of-never"]


def test_a_dead_letter_that_is_never_stale_is_redriven_as_it_was_or_as_new(store: StoreUnderTest) -> None:
    queue = store.queue(max_age_seconds=None)
    for task_id in ("as-it-was", "as-new"):
        queue.put(1, task_id=task_id)
    for claim in queue.claim(limit=2):
        queue.fail(claim, error="down")
    store.clock.advance(2 * HOUR_SECONDS)
    assert queue.redrive(["as-it-was"]) == queue.redrive(["as-new"], as_new=True) == 1
    assert {task.deadline for task in queue.list("PENDING").tasks} == {None}
    assert len(queue.claim(limit=9)) == 2


def test_a_relay_gives_the_rest_of_a_max_age_and_none_where_there_is_none(store: StoreUnderTest) -> None:
    source = store.queue(name="outbox", max_age_seconds=None)
    target = Queue.memory(max_age_seconds=None, clock=store.clock)
    source.put(1, task_id="never")
    source.put(1, task_id="soon", max_age_seconds=60)
    store.clock.advance(20)
    assert Relay(source, target).move() == 2
    assert known(target, "never").deadline is None
    assert known(target, "soon").deadline == pytest.approx(store.clock.now + 40, abs=0.01)


@pytest.mark.parametrize("written", [None, "none", inf])
def test_never_has_three_spellings_and_is_read_as_none(written: float | str | None) -> None:
    assert Queue.memory(max_age_seconds=written).admin.config.max_age_seconds is None  # type: ignore[arg-type]


def test_a_door_needs_a_max_age_or_what_sheds() -> None:
    with pytest.raises(ValueError, match=r"^door: judges the load by the max age"):
        Queue.memory(max_age_seconds=None, door=Door())


def test_a_full_backlog_names_a_sensible_time_to_retry() -> None:
    queue = Queue.memory(max_age_seconds=None, backlog=BacklogLimit(1, WhenFull.REFUSE_NEWEST))
    queue.put(1)
    with pytest.raises(Overloaded) as caught:
        queue.put(2)
    assert caught.value.retry_after_seconds is not None
    assert caught.value.retry_after_seconds <= HOUR_SECONDS
