"""Work that must not be lost: tasks that are never stale, and dead letters."""

from math import inf
from typing import Any

import pytest

from freshq import Overloaded, Queue, TaskStatus
from freshq.feeds import Relay
from freshq.policy import AdmissionLimit, BacklogLimit, WhenFull
from tests.conftest import StoreUnderTest
from tests.support.readings import counts, ids, known
from tests.support.refusals import refused

HOUR_SECONDS = 3600.0
DAY_SECONDS = 86_400.0


@pytest.mark.parametrize("away_seconds", [HOUR_SECONDS, 30 * DAY_SECONDS])
def test_what_is_never_stale_waits_for_a_late_consumer(store: StoreUnderTest, away_seconds: float) -> None:
    queue = store.queue(order="fifo", max_age_seconds=None)
    queue.put("delayed", task_id="delayed", delay_seconds=60)
    queue.put("at", task_id="at", at=store.clock.now + 61)
    queue.put("grouped", task_id="grouped", group="acme")
    queue.put("retried", task_id="retried", priority=1)
    (retried,) = queue.claim()
    queue.retry(retried, error="down", delay_seconds=5)
    store.clock.advance(away_seconds)

    queue.admin.recover()  # deletes tasks past their retention
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
    never, hourly = (
        store.queue(max_age_seconds=None, override=True),
        store.queue(max_age_seconds=HOUR_SECONDS),
    )
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


def test_an_admission_limit_needs_a_max_age_or_what_sheds() -> None:
    with refused("admission"):
        Queue.memory(max_age_seconds=None, admission=AdmissionLimit())


def test_a_full_backlog_names_a_sensible_time_to_retry() -> None:
    queue = Queue.memory(max_age_seconds=None, backlog=BacklogLimit(1, WhenFull.REFUSE_NEWEST))
    queue.put(1)
    with pytest.raises(Overloaded) as caught:
        queue.put(2)
    assert caught.value.retry_after_seconds is not None
    assert caught.value.retry_after_seconds <= HOUR_SECONDS


def dead_of_each_kind(store: StoreUnderTest, **options: Any) -> Queue:
    """Return a queue with a dead letter of each kind: rejected, out of attempts, abandoned, buried."""
    queue = store.queue(max_attempts=1, lease_seconds=10, **options)
    for number in range(4):
        queue.put(number, task_id=f"{number}")
        store.clock.advance(1)
    queue.cancel("0", dead=True, error="no address")
    rejected, retried, _abandoned = queue.claim(limit=3)
    queue.fail(rejected, error="rejected")
    queue.retry(retried, error="down")
    store.clock.advance(11)
    queue.admin.recover()
    return queue


def test_dead_letters_outlive_their_deadline_and_the_retention_of_others(store: StoreUnderTest) -> None:
    queue = dead_of_each_kind(store, max_age_seconds=30 * DAY_SECONDS)
    queue.put("done", task_id="done")
    queue.complete(queue.claim()[0])
    store.clock.advance(13.9 * DAY_SECONDS)
    if not store.kind.startswith("dynamodb"):  # there, TTL deletes
        queue.admin.recover()
        assert queue.get("done") is None
    assert counts(queue.stats())["failure"] == len(queue.list("FAILURE").tasks) == 4
    expire = {task.expires for task in queue.list("FAILURE").tasks}
    assert min(expire) > store.clock.now
    assert max(expire) <= store.clock.now + 14 * DAY_SECONDS
    assert queue.redrive(limit=9) == 4
    assert len(queue.claim(limit=9)) == 4


@pytest.mark.parametrize(("kept_seconds", "stays"), [(None, True), (5 * DAY_SECONDS, False)])
def test_dead_letters_stay_as_long_as_the_option_says(
    store: StoreUnderTest, kept_seconds: float | None, stays: bool
) -> None:
    queue = dead_of_each_kind(store, dead_letter_retention_seconds=kept_seconds)
    store.clock.advance((20 * 365 if stays else 6) * DAY_SECONDS)
    expire = [task.expires for task in queue.list("FAILURE").tasks]
    assert {each > store.clock.now for each in expire} == {stays}
    queue.admin.recover()
    if not store.kind.startswith("dynamodb"):  # there, TTL deletes
        assert counts(queue.stats()) == ({"failure": 4} if stays else {})


def test_the_stats_have_the_age_of_the_oldest_dead_letter(store: StoreUnderTest) -> None:
    queue = store.queue()
    assert queue.stats().oldest_dead_seconds is None
    assert queue.stats(approximate=True).oldest_dead_seconds is None
    for task_id in ("first", "second"):
        queue.put(1, task_id=task_id)
        queue.fail(queue.claim()[0], error="wrong")
        store.clock.advance(30)
    for stats in (queue.stats(), queue.stats(approximate=True)):
        assert stats.failure == 2
        assert stats.oldest_dead_seconds == pytest.approx(60, abs=0.01)
        assert "failure" not in stats.bounded
    queue.redrive(["first"])
    stats = queue.stats(approximate=True)
    assert (stats.pending, stats.failure) == (1, 1)
    assert stats.oldest_dead_seconds == pytest.approx(30, abs=0.01)
    queue.purge(status="FAILURE", confirm=queue.name)
    assert queue.stats().oldest_dead_seconds is None


def test_what_a_rule_sheds_is_no_dead_letter(store: StoreUnderTest) -> None:
    queue = store.queue(backlog=BacklogLimit(1))
    for task_id in ("old", "new"):
        queue.put(1, task_id=task_id)
        store.clock.advance(1)
    old = known(queue, "old")
    assert old.status is TaskStatus.SHED
    assert old.expires <= store.clock.now + DAY_SECONDS + 1
