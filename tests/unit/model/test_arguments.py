"""The errors for wrong arguments and options, word for word; every limit is inclusive."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from types_boto3_dynamodb import DynamoDBClient

from freshq import Claim, NotFound, Queue, Settlement, Task
from freshq.model.options import QueueConfig
from freshq.model.task import MAX_SECONDS
from freshq.model.validation import MAX_RESULT_AND_PAYLOAD_BYTES
from freshq.policy.retry import Backoff
from tests.support.verbs import prepared

STATUSES = "PENDING, TAKEN, SUCCESS, FAILURE, CANCELLED, SHED, UNDER_CONSTRUCTION, READY"
ELSEWHERE = "store it elsewhere and return a reference"
CALLS: list[tuple[Callable[[Queue, Claim], object], str]] = [
    (lambda queue, _: queue.claim(0), "limit: must be a whole number from 1 to 1000, got 0"),
    (lambda queue, _: queue.list(limit=0), "limit: must be a whole number from 1 to 2147483647, got 0"),
    (
        lambda queue, _: queue.list(limit=2**31),
        "limit: must be a whole number from 1 to 2147483647, got 2147483648",
    ),
    (
        lambda queue, claim: queue.extend(claim, lease_seconds=0),
        "lease_seconds: must be a number of seconds, greater than 0 and at most 3153600000, got 0",
    ),
    (
        lambda queue, claim: queue.release(claim, delay_seconds=-1),
        "delay_seconds: must be a number of seconds, 0 or more and at most 3153600000, got -1",
    ),
    (
        lambda queue, _: queue.reprioritize("t0", priority=10),
        "priority: must be a whole number from 0 to 9, got 10",
    ),
    (lambda queue, _: queue.list("done"), f"status: unknown value 'done'; use one of {STATUSES}"),
    (
        lambda queue, claim: queue.fail(claim, error=5),  # type: ignore[arg-type]
        "error: must be a string or None, got int; pass str(error)",
    ),
    (
        lambda queue, claim: queue.complete(claim, result="x" * 410_000),
        f"result: 410003 bytes with the payload, at most 403456 fit; {ELSEWHERE}",
    ),
    (
        lambda queue, _: queue.complete("t0"),  # type: ignore[arg-type]
        "claim: must be a Claim, as returned by claim(), got str",
    ),
    (
        lambda queue, _: queue.purge(status="FAILURE", limit=0, confirm=queue.name),
        "limit: must be a whole number from 1 to 2147483647, got 0",
    ),
    (
        lambda queue, _: queue.claim(wait_seconds=-1),
        "wait_seconds: must be a number of seconds, 0 or more and at most 3153600000, got -1",
    ),
    (
        lambda queue, _: queue.purge(confirm="other"),
        "confirm: must be the queue's name 'default', got 'other'; nothing was deleted",
    ),
]
OPTIONS: list[tuple[dict[str, Any], str]] = [
    (
        {"lease": 60, "leases": 5},
        f"lease: unknown option; use one of {', '.join(QueueConfig.model_fields)}",
    ),
    ({"max_attempts": 0}, "max_attempts: input should be greater than or equal to 1, got 0"),
    (
        {"backoff": Backoff(base_seconds=0)},
        "backoff.base_seconds: must be greater than 0 and at most 3153600000, got 0",
    ),
    (
        {"backoff": Backoff(cap_seconds="5")},  # type: ignore[arg-type]
        "backoff.cap_seconds: must be greater than 0 and at most 3153600000, got '5'",
    ),
]


def problem(call: Callable[[], object]) -> str:
    with pytest.raises(ValueError, match=r"^\w") as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize(("call", "message"), CALLS)
def test_of_a_verb(call: Callable[[Queue, Claim], object], message: str) -> None:
    queue = Queue.memory()
    claim = prepared(queue)
    assert problem(lambda: call(queue, claim)) == message


@pytest.mark.parametrize(("options", "message"), OPTIONS)
def test_of_a_queue(options: dict[str, Any], message: str) -> None:
    assert problem(lambda: Queue.memory(**options)) == message


@pytest.mark.parametrize(
    "name",
    [
        "connect_timeout_seconds",
        "answer_timeout_seconds",
        "lock_timeout_seconds",
        "max_connections",
        "durable",
    ],
)
def test_of_a_queue_in_a_database(name: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    assert problem(lambda: Queue.sql(url, **{name: -1})).startswith(f"{name}: must be ")  # type: ignore[arg-type]


def test_a_key_is_for_attached_tables(default_client: DynamoDBClient) -> None:
    message = "key: only with attach=True; freshq's own tables have the key taskId"
    assert problem(lambda: Queue.dynamodb("Tasks", default_client, key="id")) == message  # type: ignore[call-overload]


def test_results_must_fit_beside_their_payloads() -> None:
    queue = Queue.memory()
    half = "x" * (MAX_RESULT_AND_PAYLOAD_BYTES // 2 - 2)
    queue.put(half)
    (claim,) = queue.claim()
    for call in (
        lambda: queue.complete(claim, result=half + "x"),
        lambda: queue.settle_many([Settlement.complete(claim, half + "x")]),
    ):
        assert problem(call).startswith("result: 403457 bytes with the payload")
    (done,) = queue.settle_many([Settlement.complete(claim, half)])
    assert isinstance(done, Task)


def test_the_limits_themselves_are_allowed() -> None:
    queue = Queue.memory(backoff=Backoff(base_seconds=1e-9, cap_seconds=MAX_SECONDS))
    queue.put("work", task_id="x" * 1024, priority=0)
    assert queue.reprioritize("x" * 1024, priority=9).priority == 9
    (claim,) = queue.claim(1000, lease_seconds=MAX_SECONDS)
    assert queue.extend(claim, lease_seconds=MAX_SECONDS).lease_until >= claim.lease_until


def test_ten_tasks_are_shown_unless_more_are_asked_for() -> None:
    queue = Queue.memory()
    queue.put_many([{"payload": number} for number in range(12)])
    assert (len(queue.peek()), len(queue.peek(11))) == (10, 11)


def test_a_wait_for_an_unknown_task_names_it_and_its_queue() -> None:
    with pytest.raises(NotFound, match=r"'x'.*'mail'"):
        Queue.memory(name="mail").wait("x", timeout_seconds=1)
