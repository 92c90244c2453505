"""The progress of a claim is stored with its lease, on every store."""

from collections.abc import Callable

import pytest
from benchmarks.capacity import metered

from freshq import Claim, LeaseLost, Queue, Settlement, Task, TaskStatus
from freshq.model.task import MAX_STEP_CHARS
from freshq.queue.core import core_of
from tests.conftest import StoreUnderTest
from tests.support.attached import Shipments
from tests.support.readings import counts, known


def begun(queue: Queue, task_id: str = "a", step: str | None = "loading") -> Claim:
    """Return a claim of a task whose work has begun."""
    queue.put("work", task_id=task_id)
    (claim,) = queue.claim()
    return queue.extend(claim, lease_seconds=60, progress=0.4, step=step)


def progress(task: Task) -> tuple[float | None, str | None]:
    return task.progress_fraction, task.progress_step


class TestStored:
    def test_with_the_lease_by_its_holder(self, queue: Queue, store: StoreUnderTest) -> None:
        claim = begun(queue)
        task = known(queue, "a")
        assert progress(task) == progress(claim.task) == (0.4, "loading")
        assert (task.status, task.lease_until) == (TaskStatus.TAKEN, claim.lease_until)
        assert [progress(held) for held in core_of(store.queue()).store.leased("default", 5)] == [
            (0.4, "loading")
        ]

    @pytest.mark.parametrize("fraction", [0, 1e-6, 0.333333, 1])
    def test_to_the_millionth(self, queue: Queue, fraction: float) -> None:
        queue.put("work", task_id="a")
        queue.extend(queue.claim()[0], lease_seconds=60, progress=fraction)
        assert progress(known(queue, "a")) == (fraction, None)

    def test_a_renewal_without_progress_keeps_it(self, queue: Queue) -> None:
        queue.extend(begun(queue), lease_seconds=120)
        assert progress(known(queue, "a")) == (0.4, "loading")

    def test_a_report_replaces_the_one_before(self, queue: Queue) -> None:
        queue.extend(begun(queue), lease_seconds=60, progress=0.2)
        assert progress(known(queue, "a")) == (0.2, None)

    def test_a_long_step_is_truncated_and_odd_characters_are_replaced(self, queue: Queue) -> None:
        begun(queue, step="\0\ud800" + "é" * 300)
        step = known(queue, "a").progress_step or ""
        assert (step[:4], len(step), step[-1]) == ("\\0?é", MAX_STEP_CHARS, "…")

    def test_a_former_holder_changes_nothing_and_learns_it(self, store: StoreUnderTest) -> None:
        queue = store.queue()
        former = begun(queue)
        store.clock.advance(61)
        queue.admin.recover()
        (claim,) = queue.claim()
        with pytest.raises(LeaseLost):
            queue.extend(former, lease_seconds=60, progress=0.9, step="late")
        assert progress(claim.task) == progress(known(queue, "a")) == (None, None)


ENDS: dict[str, Callable[[Queue, Claim], object]] = {
    "complete": lambda queue, claim: queue.complete(claim, result=1),
    "fail": lambda queue, claim: queue.fail(claim, error="broken"),
    "retry after the last attempt": lambda queue, claim: queue.retry(claim, error="broken"),
    "cancel by force": lambda queue, _claim: queue.cancel("a", force=True),
    "cancel as dead by force": lambda queue, _claim: queue.cancel("a", dead=True, force=True),
}
RETURNS: dict[str, Callable[[Queue, Claim], object]] = {
    "retry": lambda queue, claim: queue.retry(claim, error="broken", delay_seconds=0),
    "retry later": lambda queue, claim: queue.retry(claim, error="broken", delay_seconds=30),
    "release": lambda queue, claim: queue.release(claim),
    "redrive by force": lambda queue, _claim: queue.redrive(["a"], as_new=True, force=True),
    "redrive": lambda queue, claim: (queue.fail(claim), queue.redrive()),
    "update": lambda queue, _claim: queue.put("more work", task_id="a", on_conflict="update"),
}


class TestAtTheEnd:
    @pytest.mark.parametrize("end", ENDS)
    def test_a_task_that_is_over_keeps_it(self, store: StoreUnderTest, end: str) -> None:
        queue = store.queue(max_attempts=1)
        ENDS[end](queue, begun(queue))
        assert progress(known(queue, "a")) == (0.4, "loading")
        assert sum(counts(queue.stats()).values()) == 1

    def test_those_that_are_settled_together_keep_theirs(self, queue: Queue) -> None:
        claims = [begun(queue, name, step=name) for name in "abc"]
        queue.settle_many([Settlement.complete(claim) for claim in claims])
        assert [progress(known(queue, name)) for name in "abc"] == [(0.4, name) for name in "abc"]

    @pytest.mark.parametrize("verb", RETURNS)
    def test_a_task_that_is_to_run_again_has_none(self, queue: Queue, verb: str) -> None:
        RETURNS[verb](queue, begun(queue))
        assert progress(known(queue, "a")) == (None, None)

    def test_nor_has_one_that_was_brought_back(self, store: StoreUnderTest) -> None:
        queue = store.queue()
        begun(queue)
        store.clock.advance(61)
        queue.admin.recover()
        assert progress(known(queue, "a")) == (None, None)


class TestOnDynamoDB:
    @pytest.mark.usefixtures("read_once")
    def test_progress_costs_no_more_than_the_renewal(self, table_store: StoreUnderTest) -> None:
        queue = table_store.queue()
        queue.put("work", task_id="a")
        (claim,) = queue.claim()
        assert table_store.client is not None
        with metered(table_store.client) as renewal:
            claim = queue.extend(claim, lease_seconds=60)
        with metered(table_store.client) as report:
            queue.extend(claim, lease_seconds=60, progress=0.4, step="loading")
        assert (report.write_units, report.calls) == (renewal.write_units, renewal.calls)
        assert report.write_units == 1

    def test_a_record_keeps_its_own_attributes(self, shipments: Shipments) -> None:
        queue = shipments.queue()
        before = queue.records.get("A")
        queue.put(task_id="A")
        (claim,) = queue.claim()
        claim = queue.extend(claim, lease_seconds=60, progress=0.4, step="loading")
        assert progress(core_of(queue).found("A")) == (0.4, "loading")
        queue.fail(claim, error="broken")
        assert progress(core_of(queue).found("A")) == (0.4, "loading")
        (claim,) = queue.records.claim_dead()
        assert progress(core_of(queue).found("A")) == progress(claim.task) == (None, None)
        assert queue.records.get("A") == before
