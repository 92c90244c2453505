"""The last attempts at a task, on every store."""

import json
from typing import Any

from freshq import Handlers, Queue, Task, TaskStatus
from freshq.cli.output import fields, task_facts
from freshq.model.task import Attempt, attempts_of, record_with
from freshq.model.validation import MAX_PAYLOAD_BYTES
from freshq.testing import drain
from tests.conftest import StoreUnderTest
from tests.support.readings import known


def failing(queue: Queue) -> list[Any]:
    """Run every due task, which fails."""
    handlers = Handlers()

    @handlers.on("quote")
    def quote(task: Task) -> None:
        msg = f"no price for {task.payload}"
        raise KeyError(msg)

    return drain(queue, handlers)


def test_each_failed_attempt_is_kept_with_its_traceback(store: StoreUnderTest) -> None:
    queue = store.queue(max_attempts=3, worker_name="w1", max_age_seconds=None)
    queue.put("ABC", task_id="a", kind="quote")
    for _ in range(3):
        failing(queue)
        store.clock.advance(400)
    task = known(queue, "a")
    assert task.status is TaskStatus.FAILURE
    log = task.attempt_log
    assert [(each.number, each.outcome, each.worker) for each in log] == [
        (1, "retried", "w1"),
        (2, "retried", "w1"),
        (3, "failed", "w1"),
    ]
    assert {each.error for each in log} == {"KeyError: 'no price for ABC'"}
    assert all(each.started is not None and each.started <= each.ended for each in log)
    assert all(each.traceback is not None and "in quote" in each.traceback for each in log)
    assert max(len(each.traceback or "") for each in log) <= 2048
    queue.redrive(["a"])
    (claim,) = queue.claim()
    store.clock.advance(2)
    queue.complete(claim, result=1)
    done = known(queue, "a").attempt_log
    assert [each.outcome for each in done] == ["retried", "retried", "failed", "succeeded"]
    assert (done[-1].number, done[-1].ended - (done[-1].started or 0)) == (1, 2)


def test_an_expired_lease_is_an_attempt_and_five_are_kept(store: StoreUnderTest) -> None:
    queue = store.queue(max_attempts=9, max_age_seconds=None)
    queue.put(1, task_id="a")
    for number in range(7):
        (claim,) = queue.claim(lease_seconds=5)
        if number % 2:
            queue.retry(claim, error=f"error {number}", delay_seconds=0)
        else:
            store.clock.advance(6)
            queue.admin.recover()
    log = known(queue, "a").attempt_log
    assert [each.number for each in log] == [3, 4, 5, 6, 7]
    assert [each.outcome for each in log] == ["lease_lost", "retried", "lease_lost", "retried", "lease_lost"]
    assert [each.error for each in log][1::2] == ["error 3", "error 5"]


def test_tracebacks_can_be_turned_off(store: StoreUnderTest) -> None:
    queue = store.queue(max_attempts=1, traceback_bytes=0)
    queue.put("secret", task_id="a", kind="quote")
    failing(queue)
    (attempt,) = known(queue, "a").attempt_log
    assert (attempt.outcome, attempt.traceback) == ("failed", None)


def test_a_large_payload_leaves_no_room_and_the_task_goes_on(store: StoreUnderTest) -> None:
    queue = store.queue(max_attempts=3)
    payload = "x" * (MAX_PAYLOAD_BYTES - 2)
    queue.put(payload, task_id="a")
    (claim,) = queue.claim()
    queue.retry(claim, error="e" * 500, delay_seconds=0)
    assert known(queue, "a").attempt_log == ()
    (claim,) = queue.claim()
    assert queue.complete(claim).status is TaskStatus.SUCCESS


def test_a_large_result_takes_the_room_of_the_log(store: StoreUnderTest) -> None:
    queue = store.queue(max_attempts=3)
    queue.put("x" * 200_000, task_id="a")
    (claim,) = queue.claim()
    queue.retry(claim, error="no", delay_seconds=0)
    (claim,) = queue.claim()
    assert len(claim.task.attempt_log) == 1
    queue.complete(claim, result="y" * 203_000)
    assert [each.outcome for each in known(queue, "a").attempt_log] == ["succeeded"]


def test_people_and_programs_see_the_attempts(store: StoreUnderTest) -> None:
    queue = store.queue(max_attempts=1, worker_name="w1")
    queue.put("ABC", task_id="a", kind="quote")
    failing(queue)
    task = known(queue, "a")
    (shown,) = json.loads(json.dumps(fields(task, store.clock.now)))["attempt_log"]
    assert (shown["number"], shown["outcome"], shown["worker"]) == (1, "failed", "w1")
    facts = task_facts(task, store.clock.now)
    assert facts["attempt 1"].startswith("failed after 0.0 s by w1")
    assert facts["traceback"].endswith("KeyError: 'no price for ABC'")


def test_old_tracebacks_make_room_first() -> None:
    attempt = Attempt(1, 1.0, 2.0, None, "retried", "error", "t" * 100)
    record = record_with(None, attempt, 1000)
    assert attempts_of(record) == (attempt,)
    both = record_with(record, attempt._replace(number=2), 250)
    assert [(each.number, each.traceback is None) for each in attempts_of(both)] == [(1, True), (2, False)]
    assert [each.number for each in attempts_of(record_with(both, attempt._replace(number=3), 60))] == [3]
    assert record_with(both, attempt, 5) is None
    assert attempts_of("damaged") == attempts_of("[[1]]") == ()
