"""The next version of a task, where one microsecond or one character decides."""

import pytest

from freshq import Claim, LeaseLost, PutOutcome, Queue
from freshq.errors import IllegalTransition
from freshq.model.lifecycle import MAX_ERROR_CHARS, Stamps
from freshq.model.new_task import NewTask
from freshq.model.task import (
    MAX_SECONDS,
    Task,
    TaskStatus,
    Verb,
    advance,
    changed,
    has_made_id,
    keep_origin,
)
from freshq.queue.core import core_of
from tests.conftest import START, Clock
from tests.support.readings import known
from tests.support.refusals import refused


@pytest.fixture
def queue(clock: Clock) -> Queue:
    return Queue.memory(clock=clock, max_age_seconds=60, max_attempts=9, lease_seconds=100)


def claimed(queue: Queue) -> Claim:
    queue.put("work", task_id="a")
    (claim,) = queue.claim()
    return claim


def test_a_delay_ends_at_a_whole_microsecond(queue: Queue) -> None:
    assert queue.release(claimed(queue), delay_seconds=0.123_456_5).not_before == START + 0.123_456
    queue.put("work", task_id="b", at=START + 0.123_456_5)
    assert known(queue, "b").not_before == START + 0.123_456


def test_a_delayed_put_is_due_at_a_whole_microsecond(queue: Queue) -> None:
    queue.put("work", task_id="a", delay_seconds=0.123_456_5)
    queue.put("work", task_id="b", at=START + 1.123_456_4)
    queue.put("work", task_id="c", delay_seconds=0.123_456_5)
    first, second, third = (known(queue, task_id) for task_id in "abc")
    assert first.not_before == first.first_due == third.first_due == START + 0.123_456
    assert second.created == second.not_before == second.first_due == START + 1.123_456
    # The puts are a microsecond apart, and so are the positions after the same delay.
    assert [round(1e6 * ((task.put_at or 0) - START)) for task in (first, second, third)] == [0, 1, 2]
    assert round(1e6 * (third.created - first.created)) == 2
    assert (first.deadline, second.deadline) == (START + 60.123_456, START + 61.123_456)


def test_a_put_may_be_due_now_or_in_a_century_but_not_later(queue: Queue) -> None:
    queue.put("work", task_id="now", at=START)
    assert (known(queue, "now").first_due, known(queue, "now").not_before) == (None, None)
    queue.put("work", task_id="soon", at=START + 0.000_001)
    assert known(queue, "soon").first_due == START + 0.000_001
    queue.put("work", task_id="late", at=START + MAX_SECONDS)
    queue.put("work", task_id="as late", delay_seconds=MAX_SECONDS)
    assert known(queue, "late").first_due == known(queue, "as late").first_due == START + MAX_SECONDS
    with refused("tasks[1].at") as caught:
        queue.put_many([{"payload": 1}, {"payload": 1, "at": START + MAX_SECONDS + 1}])
    assert str(caught.value).endswith("; use seconds since the epoch")


def test_equal_work_is_no_update_from_the_instant_at_which_it_is_due(queue: Queue, clock: Clock) -> None:
    queue.put("work", task_id="a", at=START + 5)
    clock.advance(4.999_999)
    assert queue.put("work", task_id="a", on_conflict="update").outcome is PutOutcome.UPDATED
    queue.put("work", task_id="b", at=START + 5)
    clock.advance(0.000_001)
    assert queue.put("work", task_id="b", on_conflict="update").outcome is PutOutcome.DUPLICATE


def test_a_moved_deadline_is_at_a_whole_microsecond(clock: Clock, queue: Queue) -> None:
    clock.now = START + 0.000_548
    queue.put("work", task_id="a")
    clock.now = START + 5.000_028
    # Without rounding, their sum is a tenth of a microsecond later.
    for deadline in (START + 65.000_028, START + 65.000_029):
        queue.redrive(["a"], as_new=True)
        assert known(queue, "a").deadline == deadline


def test_a_lease_ends_at_a_whole_microsecond(queue: Queue) -> None:
    claim = queue.extend(claimed(queue), lease_seconds=200.123_456_5)
    assert claim.lease_until == claim.task.lease_until == START + 200.123_456


@pytest.mark.parametrize("verb", ["complete", "fail", "retry", "release"])
def test_a_task_says_when_it_was_settled(queue: Queue, clock: Clock, verb: str) -> None:
    claim = claimed(queue)
    clock.advance(7)
    assert getattr(queue, verb)(claim).updated == known(queue, "a").updated == START + 7


def test_a_task_at_its_deadline_needs_no_delay(queue: Queue, clock: Clock) -> None:
    claim = claimed(queue)
    clock.advance(60)
    assert queue.retry(claim, delay_seconds=5).not_before is None


def test_the_longest_error_is_kept_and_a_longer_one_truncated(queue: Queue) -> None:
    claim = claimed(queue)
    longest = "x" * MAX_ERROR_CHARS
    assert queue.retry(claim, error=longest, delay_seconds=0).error == longest
    (claim,) = queue.claim()
    assert queue.fail(claim, error=longest + "x").error == longest[1:] + "…"


def test_a_claim_made_by_hand_may_hold_the_task_as_it_was_put(queue: Queue) -> None:
    queue.put("work", task_id="a")
    waiting = known(queue, "a")
    (claim,) = queue.claim()
    assert queue.complete(Claim(waiting, claim.token, claim.lease_until)).status is TaskStatus.SUCCESS


def test_an_error_names_the_status_that_the_verb_needs(queue: Queue) -> None:
    claimed(queue)
    with pytest.raises(IllegalTransition) as caught:
        queue.cancel("a")
    assert str(caught.value) == "task 'a': cannot cancel a task that is TAKEN; cancel needs PENDING, or force"


def test_an_error_names_force_only_where_it_helps(queue: Queue) -> None:
    claim = claimed(queue)
    with pytest.raises(IllegalTransition) as caught:
        queue.redrive(["a"], as_new=True)
    assert str(caught.value).endswith("; redrive as new needs PENDING or FAILURE, or force")
    with pytest.raises(IllegalTransition) as caught:
        queue.redrive(["a"])
    assert str(caught.value).endswith("; redrive needs FAILURE")
    queue.complete(claim)
    with pytest.raises(IllegalTransition) as caught:
        queue.cancel("a")
    assert str(caught.value).endswith("; cancel needs PENDING")


def test_no_verb_leads_to_a_status_that_the_table_does_not_allow(queue: Queue) -> None:
    task: Task = claimed(queue).task
    with pytest.raises(AssertionError, match="FAILURE"):
        advance(task, Verb.COMPLETE, TaskStatus.FAILURE, START)


def test_stamps_are_a_microsecond_apart_until_the_clock_goes_back_by_more_than_a_second() -> None:
    clock = Clock(START)
    stamps = Stamps(clock)
    stamped = []
    for now in (START, START, START - 1, START - 1.000_001):
        clock.now = now
        stamped.append(round(1e6 * (stamps.next() - START)))
    assert stamped == [0, 1, 2, -1_000_001]


def test_a_reading_from_before_a_wait_is_no_jump_of_the_clock() -> None:
    stamps = Stamps(lambda: START + 5)
    assert stamps.take(START + 5, 2) == [START + 5, START + 5.000_001]
    assert stamps.take(START, 1) == [START + 5.000_002]


def test_stamps_begin_at_the_epoch() -> None:
    assert [Stamps(lambda: 0.0).next(), Stamps(lambda: -1.0).next()] == [1e-6, 1e-6]


def test_who_loses_a_lease_learns_what_the_task_is_now(queue: Queue) -> None:
    for verb in (queue.complete, queue.release, lambda claim: queue.extend(claim, lease_seconds=5)):
        claim = claimed(queue)
        queue.cancel("a", force=True)
        with pytest.raises(LeaseLost, match=r"\(it is CANCELLED now\)") as lost:
            verb(claim)
        assert lost.value.status is TaskStatus.CANCELLED
        queue.purge(confirm="default")
        with pytest.raises(LeaseLost, match=r"\(it was deleted\)") as lost:
            verb(claim)
        assert lost.value.status is None


@pytest.mark.parametrize("given", [None, "a"])
def test_only_a_new_task_and_its_substitute_may_have_an_id_that_nobody_else_has(
    queue: Queue, given: str | None
) -> None:
    queue.put("decides about the options")
    new = core_of(queue).rules.lifecycle.created(NewTask(payload="é", task_id=given), START, START)
    assert has_made_id(new) is (given is None)
    copy = changed(new, trace_context="other")
    assert not has_made_id(copy)
    assert has_made_id(keep_origin(copy, new)) is (given is None)
    assert copy.payload_text == new.payload_text == '"é"'
    assert not has_made_id(claimed(queue).task)
