"""The kind of a message, on every store."""

from freshq import Handlers, PutOutcome, Queue, TaskStatus
from freshq.telemetry import Outcome
from freshq.testing import drain
from tests.conftest import StoreUnderTest
from tests.support.readings import known


def test_it_is_stored_with_the_task_through_its_life(queue: Queue) -> None:
    queue.put_many([{"payload": 1, "task_id": "a", "kind": "mail"}, {"payload": 2, "task_id": "b"}])
    kinds = {claim.task.task_id: claim.task.kind for claim in queue.claim(2)}
    assert kinds == {"a": "mail", "b": None}
    assert {task.task_id: task.kind for task in queue.list()} == kinds


def test_it_stays_when_the_task_is_tried_again(queue: Queue) -> None:
    queue.put(1, task_id="a", kind="mail")
    (claim,) = queue.claim()
    queue.retry(claim, error="later", delay_seconds=0)
    (again,) = queue.claim()
    queue.complete(again, result="done")
    task = known(queue, "a")
    assert (task.kind, task.result) == ("mail", "done")


def test_a_put_over_a_waiting_task_replaces_it(queue: Queue) -> None:
    queue.put(1, task_id="a", kind="mail")
    assert queue.put(1, task_id="a", kind="mail", on_conflict="update").outcome is PutOutcome.DUPLICATE
    assert queue.put(1, task_id="a", kind="letter", on_conflict="update").outcome is PutOutcome.UPDATED
    (claim,) = queue.claim()
    assert claim.task.kind == "letter"


def test_a_task_of_an_unknown_kind_goes_back_until_a_worker_knows_it(store: StoreUnderTest) -> None:
    queue, handlers = store.queue(max_attempts=1, max_age_seconds=300), Handlers()
    queue.put(1, task_id="a", kind="new")
    put = known(queue, "a")
    delays = []
    for _ in range(4):
        (fate,) = drain(queue, handlers)
        task = known(queue, "a")
        assert (fate.outcome, task.status, task.attempts) == (Outcome.UNKNOWN_KIND, TaskStatus.PENDING, 0)
        assert (task.created, task.deadline) == (put.created, put.deadline)
        assert task.not_before is not None
        delays.append(task.not_before - store.clock.now)
        store.clock.advance(delays[-1])
    assert delays == [1, 1, 2, 4]
    handlers.on("new")(lambda _task: "done")
    drain(queue, handlers)
    assert known(queue, "a").status is TaskStatus.SUCCESS


def test_its_deadline_ends_the_tries_of_an_unknown_kind(store: StoreUnderTest) -> None:
    queue, handlers = store.queue(max_age_seconds=300), Handlers()
    queue.put(1, task_id="a", kind="new")
    delays = []
    while (task := known(queue, "a")).stale_at > store.clock.now:
        drain(queue, handlers)
        delays.append((known(queue, "a").not_before or 0) - store.clock.now)
        store.clock.advance(delays[-1])
    assert max(delays) == 60
    assert drain(queue, handlers) == []
    assert known(queue, "a").status is TaskStatus.SHED
    assert task.attempts == 0
