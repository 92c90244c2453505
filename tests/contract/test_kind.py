"""The kind of a message, on every store."""

from freshq import PutOutcome, Queue
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
