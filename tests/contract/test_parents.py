"""Tasks put by the run of another task: their deadline, group, trace and chain, on every store."""

import asyncio
import json
import logging
import math
from pathlib import Path
from typing import Any, Final

import pytest

from freshq import AsyncQueue, Handlers, Overloaded, Queue, Task, TaskStatus
from freshq.errors import PutIncomplete, RefusedError
from freshq.feeds import Relay
from freshq.model.lifecycle import CHILD_LEAD_SECONDS
from freshq.telemetry import Outcome
from freshq.testing import drain
from tests.conftest import Clock, StoreUnderTest
from tests.support.attached import Shipments
from tests.support.readings import known, total

TRACE: Final = f"00-{'1a' * 16}-{'2b' * 8}-01"
OTHER_TRACE: Final = f"00-{'3c' * 16}-{'4d' * 8}-01"


def claimed(queue: Queue) -> Task:
    """Claim the next task, as a handler gets it."""
    (claim,) = queue.claim()
    return claim.task


def learn(store: StoreUnderTest, queue: Queue, kind: str, service_seconds: float) -> None:
    """Let the queue serve enough tasks of a kind to know how long they take."""
    for _ in range(20):
        queue.put(0, kind=kind)
        (claim,) = queue.claim()
        store.clock.advance(service_seconds)
        queue.complete(claim)


def refusal(call: Any, *arguments: Any, **options: Any) -> Overloaded:
    with pytest.raises(Overloaded) as caught:
        call(*arguments, **options)
    return caught.value


def test_a_child_has_the_deadline_the_group_and_the_trace_of_its_root_and_its_own_place(
    store: StoreUnderTest,
) -> None:
    queue = store.queue(max_age_seconds=60)
    queue.put(1, task_id="root", group="acme", trace_context=TRACE, max_age_seconds=30)
    root = claimed(queue)
    store.clock.advance(10)
    queue.put(2, task_id="child", parent=root)
    child = claimed(queue)
    store.clock.advance(10)
    queue.put(3, task_id="grandchild", parent=child)
    last = claimed(queue)
    assert root.deadline == child.deadline == last.deadline == root.created + 30
    assert (child.put_at, last.put_at) == (root.created + 10, root.created + 20)
    assert {task.group for task in (root, child, last)} == {"acme"}
    assert {task.trace_context for task in (root, child, last)} == {TRACE}
    chain = [(task.parent_id, task.root_id) for task in (root, child, last)]
    assert chain == [(None, None), ("root", "root"), ("child", "root")]
    stored = known(queue, "grandchild")
    assert (stored.parent_id, stored.root_id, stored.deadline) == ("child", "root", root.deadline)


def test_newest_first_a_child_is_ahead_of_the_roots_that_come_before_its_parents_slot_claims_again(
    store: StoreUnderTest,
) -> None:
    """Without it they delay the child past its deadline, and the work done for it is lost."""
    queue = store.queue(max_age_seconds=60)
    queue.put(1, task_id="root")
    root = claimed(queue)
    queue.put(2, task_id="child", parent=root)
    store.clock.advance(CHILD_LEAD_SECONDS / 2)
    queue.put(3, task_id="during the claim")
    store.clock.advance(CHILD_LEAD_SECONDS)
    queue.put(4, task_id="later")
    assert [claimed(queue).task_id for _ in range(3)] == ["later", "child", "during the claim"]
    child = known(queue, "child")
    assert child.created == pytest.approx(root.created + CHILD_LEAD_SECONDS, abs=1e-5)
    assert child.deadline == root.deadline


def test_a_child_enters_its_line_before_its_deadline(store: StoreUnderTest) -> None:
    queue = store.queue(max_age_seconds=60)
    queue.put(1, max_age_seconds=1)
    parent = claimed(queue)
    store.clock.advance(1 - CHILD_LEAD_SECONDS)
    queue.put(2, parent=parent)
    assert claimed(queue).created == pytest.approx(store.clock.now + CHILD_LEAD_SECONDS / 2)


def test_a_child_keeps_what_its_put_names_and_an_earlier_deadline_of_its_own(store: StoreUnderTest) -> None:
    queue = store.queue(max_age_seconds=60)
    queue.put(1, group="acme", trace_context=TRACE)
    parent = claimed(queue)
    queue.put(2, task_id="own", parent=parent, group="own", trace_context=OTHER_TRACE, max_age_seconds=5)
    own = claimed(queue)
    assert (own.group, own.trace_context, own.deadline) == ("own", OTHER_TRACE, store.clock.now + 5)
    queue.put(3, task_id="shorter", parent=own)
    assert claimed(queue).deadline == own.deadline


def test_a_parent_that_is_never_stale_gives_no_deadline(store: StoreUnderTest) -> None:
    queue = store.queue(max_age_seconds=None)
    queue.put(1, task_id="root")
    parent = claimed(queue)
    queue.put_many([{"payload": 2, "task_id": "b", "parent": parent}])
    assert (known(queue, "b").deadline, known(queue, "b").root_id) == (None, "root")
    assert parent.seconds_left() is None


def test_a_delayed_child_is_stale_with_its_parent(store: StoreUnderTest) -> None:
    queue = store.queue(max_age_seconds=60)
    queue.put(1)
    parent = claimed(queue)
    queue.put(2, task_id="soon", parent=parent, delay_seconds=20)
    assert known(queue, "soon").deadline == parent.deadline
    assert refusal(queue.put, 2, parent=parent, delay_seconds=60).reason == "deadline"


def test_no_change_loses_the_chain(store: StoreUnderTest) -> None:
    queue = store.queue(max_attempts=3)
    queue.put(1, task_id="child", parent={"task_id": "p", "root_id": "r"})
    (claim,) = queue.claim()
    queue.retry(claim, delay_seconds=0)
    (claim,) = queue.claim()
    queue.fail(claim, error="no")
    queue.redrive(["child"])
    (claim,) = queue.claim()
    done = queue.complete(claim)
    assert (done.parent_id, done.root_id) == ("p", "r")
    queue.put(1, task_id="other", parent={"task_id": "p"})
    queue.put(2, task_id="other", on_conflict="update")
    assert (known(queue, "other").parent_id, known(queue, "other").root_id) == (None, None)


def test_a_child_whose_deadline_is_over_is_refused_and_counted(store: StoreUnderTest) -> None:
    queue = store.queue(max_age_seconds=60)
    queue.put(1, max_age_seconds=5)
    (claim,) = queue.claim()
    store.clock.advance(5)
    refused_child = refusal(queue.put, 2, task_id="late", parent=claim)
    assert (refused_child.task_id, refused_child.reason) == ("late", "deadline")
    assert refused_child.retry_after_seconds == math.inf
    assert "task 'late': rejected (deadline)" in str(refused_child)
    assert queue.get("late") is None
    assert queue.stats().shed_by_reason["deadline"] == 1
    assert queue.stats(approximate=True).taken == total(queue) == 1


def test_a_child_that_takes_longer_than_is_left_is_refused(store: StoreUnderTest) -> None:
    queue = store.queue(max_age_seconds=200)
    learn(store, queue, "slow", 4.0)
    queue.put(1, max_age_seconds=5)
    parent = claimed(queue)
    queue.put(2, kind="slow", parent=parent)
    store.clock.advance(1.5)
    problem = str(refusal(queue.put, 2, kind="slow", parent=parent))
    assert "leaves it 3.5 s, and its kind takes 4" in problem
    queue.put(2, kind="unknown", parent=parent)
    queue.put(2, kind="slow")  # no child
    store.queue(name="other", max_age_seconds=200).put(2, kind="slow", parent=parent)


def test_every_queue_object_of_a_process_knows_how_long_a_kind_takes(tmp_path: Path) -> None:
    """A worker opens the queue, and so do its handlers."""
    clock = Clock()
    worker, handlers = (Queue.sql(f"sqlite:///{tmp_path}/tasks.db", clock=clock) for _ in range(2))
    worker.create_table()
    for _ in range(20):
        worker.put(0, kind="slow")
        (claim,) = worker.claim()
        clock.advance(4)
        worker.complete(claim)
    worker.put(1, max_age_seconds=3)
    assert refusal(handlers.put, 2, kind="slow", parent=claimed(worker)).reason == "deadline"
    worker.close()
    handlers.close()


def test_the_estimate_lapses_when_nothing_of_the_kind_was_served_for_a_while(store: StoreUnderTest) -> None:
    queue = store.queue(max_age_seconds=200)
    learn(store, queue, "slow", 4.0)
    store.clock.advance(61)
    queue.put(1, max_age_seconds=1)
    receipt = queue.put(2, kind="slow", parent=claimed(queue))
    assert known(queue, receipt.task_id).status is TaskStatus.PENDING


def test_without_an_estimate_the_reserve_counts(store: StoreUnderTest) -> None:
    queue = store.queue(max_age_seconds=60, reserve="2")
    queue.put(1, max_age_seconds=5)
    parent = claimed(queue)
    queue.put(2, parent=parent)
    store.clock.advance(3)
    assert refusal(queue.put, 2, parent=parent).reason == "deadline"


def test_put_many_refuses_the_late_ones_alone(store: StoreUnderTest) -> None:
    queue = store.queue(max_age_seconds=60)
    queue.put(1, max_age_seconds=5)
    parent = claimed(queue)
    store.clock.advance(5)
    with pytest.raises(PutIncomplete) as caught:
        queue.put_many([{"payload": 1, "task_id": "a"}, {"payload": 2, "task_id": "b", "parent": parent}])
    created, late = caught.value.receipts
    assert known(queue, "a").parent_id is None
    assert isinstance(late, Overloaded)
    assert (created is not None, late.reason, queue.get("b")) == (True, "deadline", None)


def test_a_handler_knows_how_much_time_is_left(store: StoreUnderTest) -> None:
    queue = store.queue(max_age_seconds=60)
    queue.put(1)
    task = claimed(queue)
    assert task.deadline == store.clock.now + 60
    store.clock.advance(45)
    assert task.seconds_left() == 15
    assert known(queue, task.task_id).seconds_left(store.clock.now) == 15
    store.clock.advance(16)
    assert task.seconds_left() == 0
    with pytest.raises(RefusedError):
        known(queue, task.task_id).seconds_left()


def test_a_chain_goes_on_in_another_store_through_json(store: StoreUnderTest) -> None:
    queue, elsewhere = store.queue(max_age_seconds=60), Queue.memory(clock=store.clock)
    queue.put(1, task_id="root", group="acme", trace_context=TRACE)
    parent = json.loads(json.dumps(claimed(queue).as_parent))
    elsewhere.put(2, task_id="child", parent=parent)
    child = claimed(elsewhere)
    assert (child.parent_id, child.root_id, child.group) == ("root", "root", "acme")
    assert (child.deadline, child.trace_context) == (known(queue, "root").deadline, TRACE)
    queue.put(3, task_id="back", parent=child)
    assert known(queue, "back").parent_id == "child"
    assert known(queue, "back").root_id == "root"


def test_a_relay_keeps_the_chain_and_the_deadline(store: StoreUnderTest) -> None:
    source, destination = store.queue(max_age_seconds=60), Queue.memory(clock=store.clock)
    source.put(1, task_id="root", max_age_seconds=30)
    parent = claimed(source)
    source.put(2, task_id="child", parent=parent)
    store.clock.advance(10)
    assert Relay(source, destination).move() == 1
    child = known(destination, "child")
    assert (child.parent_id, child.root_id, child.deadline) == ("root", "root", parent.deadline)


def test_a_coroutine_puts_a_child(store: StoreUnderTest) -> None:
    queue = store.queue(max_age_seconds=60)
    queue.put(1, task_id="root")
    parent = claimed(queue)

    async def put() -> None:
        async with AsyncQueue(queue) as awaited:
            await awaited.put(2, task_id="child", parent=parent)
            assert known(queue, "child").root_id == "root"

    asyncio.run(put())


def test_a_run_whose_child_is_refused_is_not_repeated_but_shed(
    store: StoreUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    queue, handlers = store.queue(max_age_seconds=60, max_attempts=3), Handlers()

    @handlers.on("first", max_attempts=1)
    def first(task: Task) -> None:
        store.clock.advance(6)
        queue.put(2, kind="second", parent=task, max_age_seconds=50)

    queue.put(1, task_id="root", kind="first", max_age_seconds=8)
    learn(store, queue, "second", 0.1)  # after the root, whose place is behind
    store.clock.now = known(queue, "root").created
    learn_from = queue.claim()
    assert [claim.task.task_id for claim in learn_from] == ["root"]
    queue.release(learn_from[0])
    store.clock.advance(7.95)
    with caplog.at_level(logging.ERROR):
        (fate,) = drain(queue, handlers)
    assert (fate.outcome, caplog.records) == (Outcome.SHED, [])
    assert fate.error is not None
    assert "rejected (deadline)" in fate.error
    assert known(queue, "root").status is TaskStatus.SHED
    assert drain(queue, handlers) == []
    assert queue.stats().failure == 0


def test_it_waits_for_its_deadline_without_another_claim(store: StoreUnderTest) -> None:
    queue, handlers = store.queue(max_age_seconds=60, reserve="2"), Handlers()

    @handlers.on("first")
    def first(task: Task) -> None:
        store.clock.advance(3.5)
        queue.put(2, kind="second", parent=task)

    queue.put(1, task_id="root", kind="first", max_age_seconds=5)
    (fate,) = drain(queue, handlers)
    waiting = known(queue, "root")
    assert (fate.outcome, waiting.status, waiting.not_before) == (
        Outcome.SHED,
        TaskStatus.PENDING,
        waiting.deadline,
    )
    assert drain(queue, handlers) == []
    store.clock.advance(1.5)
    queue.admin.recover()
    assert (drain(queue, handlers), known(queue, "root").status) == ([], TaskStatus.SHED)


def test_a_wrong_parent_is_named(queue: Queue) -> None:
    wrong: list[Any] = ["root", 5, queue, {"task_id": ""}, {"id": "x"}, {"task_id": "a", "deadline": "soon"}]
    for parent in wrong:
        with pytest.raises(ValueError, match=r"^parent"):
            queue.put(1, parent=parent)
    with pytest.raises(ValueError, match=r"^parent"):
        queue.put(1, parent="root")  # type: ignore[arg-type]
    assert total(queue) == 0


def test_records_carry_their_parent_while_they_are_queued(shipments: Shipments) -> None:
    shipments.add("A")
    queue = shipments.queue()
    queue.put(task_id="A", parent={"task_id": "p", "root_id": "r"})
    (claim,) = queue.claim()
    assert (claim.task.parent_id, claim.task.root_id) == ("p", "r")
    queue.complete(claim)
    queue.records.ready("A")
    queue.put(task_id="A")
    (again,) = queue.claim()

    assert (again.task.parent_id, again.task.root_id) == (None, None)
    shipments.assert_untouched("A")
