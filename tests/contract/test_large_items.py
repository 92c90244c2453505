"""A record or task at DynamoDB's limit of 400 KB fails alone: all others are served."""

from collections.abc import Callable
from typing import Any

import pytest
from types_boto3_dynamodb import DynamoDBClient

from freshq import AttachedQueue, Claim, Queue, Task, TaskStatus, Worker
from freshq.errors import PutIncomplete, StoreError
from freshq.worker.report import Outcome
from tests.conftest import StoreUnderTest
from tests.support.attached import Shipments
from tests.support.readings import ids

LIMIT_BYTES = 400 * 1024
# More bytes than a record has besides the text.
OTHER_BYTES = 4096
LONG = "x" * 500


def fill(shipments: Shipments, task_id: str, room_bytes: int = 0) -> None:
    """Add text to a record until exactly this many bytes are left in the item."""
    error = shipments.client.exceptions.ClientError
    low, high = LIMIT_BYTES - OTHER_BYTES, LIMIT_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        try:
            shipments.change(task_id, filling={"S": "x" * middle})
            low = middle
        except error:
            high = middle - 1
    shipments.change(task_id, filling={"S": "x" * (low - room_bytes)})


@pytest.fixture
def queue(shipments: Shipments) -> AttachedQueue:
    return shipments.queue(max_attempts=2)


def put_all(queue: AttachedQueue, shipments: Shipments) -> None:
    for task_id in "ABC":
        queue.put(task_id=task_id)
        shipments.clock.advance(1)


def the_dead_one(queue: AttachedQueue) -> Task:
    (dead,) = queue.list("FAILURE")
    assert queue.stats().failure == 1
    return dead


@pytest.mark.parametrize("room_bytes", [0, 20, 50])
def test_a_claim_passes_over_a_record_without_room(
    shipments: Shipments, queue: AttachedQueue, room_bytes: int
) -> None:
    put_all(queue, shipments)
    fill(shipments, "A", room_bytes)
    assert ids(queue.claim(limit=1)) == ["B"]
    assert ids(queue.claim(limit=5)) == ["C"]
    dead = the_dead_one(queue)
    assert (dead.task_id, dead.attempts) == ("A", 0)
    assert "too large" in str(dead.error) or "no room" in str(dead.error)
    assert queue.admin.take_dead_letter_counts().unreadable == 1
    # Once the record is smaller, it can be redriven.
    shipments.change("A", filling=None)
    assert queue.redrive(["A"]) == 1
    assert ids(queue.claim(limit=5)) == ["A"]


def test_a_record_that_is_filled_again_after_a_redrive(shipments: Shipments, queue: AttachedQueue) -> None:
    queue.put(task_id="A")
    for _ in range(3):
        fill(shipments, "A")
        assert queue.claim() == []
        assert the_dead_one(queue).task_id == "A"
        shipments.change("A", filling=None)
        queue.redrive(["A"])
    assert ids(queue.claim()) == ["A"]


def test_a_damaged_record_without_room(shipments: Shipments, queue: AttachedQueue) -> None:
    put_all(queue, shipments)
    shipments.change("A", freshq_priority={"S": "high"})
    fill(shipments, "A")
    assert ids(queue.claim(limit=5)) == ["B", "C"]
    assert queue.claim() == []


ENDS: dict[str, Callable[[Queue | AttachedQueue, Claim], Any]] = {
    "fail": lambda queue, claim: queue.fail(claim, error=LONG),
    "retry": lambda queue, claim: queue.retry(claim, error=LONG),
    "complete": lambda queue, claim: queue.complete(claim, result=LONG),
}


@pytest.mark.parametrize("verb", ENDS)
def test_a_run_whose_end_has_no_room(shipments: Shipments, queue: AttachedQueue, verb: str) -> None:
    put_all(queue, shipments)
    (claim,) = queue.claim()
    fill(shipments, "A")
    ended = ENDS[verb](queue, claim)
    assert ended == the_dead_one(queue)
    assert (ended.status, ended.task_id, ended.attempts) == (TaskStatus.FAILURE, "A", 1)
    assert "no room" in str(ended.error)
    assert ("xxx" in str(ended.error)) is (verb != "complete")
    assert ids(queue.claim(limit=5)) == ["B", "C"]


@pytest.mark.parametrize("verb", ["release", "complete", "extend"])
def test_what_needs_no_room_is_stored(shipments: Shipments, queue: AttachedQueue, verb: str) -> None:
    put_all(queue, shipments)
    (claim,) = queue.claim()
    fill(shipments, "A")
    getattr(queue, verb)(claim)
    task = queue.get("A")
    expected = {"release": TaskStatus.PENDING, "complete": TaskStatus.SUCCESS, "extend": TaskStatus.TAKEN}
    assert task is not None
    assert task.status is expected[verb]


def test_a_lease_that_expires_and_a_delay_that_ends(shipments: Shipments, queue: AttachedQueue) -> None:
    queue.put(task_id="B", delay_seconds=5)
    queue.put(task_id="A")
    queue.claim(lease_seconds=10)
    fill(shipments, "A")
    fill(shipments, "B")
    shipments.clock.advance(20)
    assert queue.admin.recover() == 2
    assert sorted(task.task_id for task in queue.list("PENDING")) == ["A", "B"]
    queue.claim(limit=5)
    assert {task.task_id for task in queue.list("FAILURE")} <= {"A", "B"}


@pytest.mark.parametrize("state", ["waiting", "delayed"])
def test_a_cancelled_record_without_room_is_a_dead_letter(
    shipments: Shipments, queue: AttachedQueue, state: str
) -> None:
    queue.put(task_id="A", delay_seconds=60 if state == "delayed" else 0)
    fill(shipments, "A")
    assert queue.cancel("A", dead=True, error=LONG).status is TaskStatus.FAILURE
    assert the_dead_one(queue).task_id == "A"


@pytest.mark.parametrize("verb", ["claim_dead", "redrive"])
def test_a_dead_letter_without_room_does_not_hold_up_the_others(
    shipments: Shipments, queue: AttachedQueue, verb: str
) -> None:
    put_all(queue, shipments)
    for claim in queue.claim(limit=2):
        queue.fail(claim)
    fill(shipments, "B")  # the last to die is the first in line
    if verb == "redrive":
        assert queue.redrive() >= 1
    claims = queue.claim(limit=5) if verb == "redrive" else queue.records.claim_dead(limit=2)
    assert "A" in ids(claims)


def test_a_put_without_room_says_so(shipments: Shipments, queue: AttachedQueue) -> None:
    fill(shipments, "A")
    with pytest.raises(StoreError, match="400 KB"):
        queue.put(task_id="A")
    with pytest.raises(PutIncomplete):
        queue.put_many([{"task_id": "A"}, {"task_id": "B"}])
    assert ids(queue.claim(limit=5)) == ["B"]


def test_a_record_with_the_room_of_the_page_does_everything(
    shipments: Shipments, queue: AttachedQueue
) -> None:
    """The page on attached tables says how much room a record needs."""
    fill(shipments, "A", 3 * 1024)
    queue.put(task_id="A", group="g" * 256)
    (claim,) = queue.claim()
    queue.extend(claim, progress=0.5, step="é" * 200)
    queue.retry(claim, error="é" * 500, delay_seconds=0)
    (claim,) = queue.claim()
    assert queue.fail(claim, error="é" * 500).error == "é" * 500


def test_a_worker_goes_on(shipments: Shipments, queue: AttachedQueue) -> None:
    put_all(queue, shipments)
    fill(shipments, "A")

    def run(task: Task) -> str:
        if task.task_id == "B":
            fill(shipments, "B")
            return LONG
        return "done"

    report = Worker(queue, run, concurrency=1, idle_exit_seconds=0.01).run()
    assert (report.outcomes[Outcome.SUCCEEDED], report.outcomes[Outcome.FAILED]) == (1, 1)
    assert {task.task_id for task in queue.list("FAILURE")} == {"A", "B"}


def test_tasks_of_a_table_of_freshqs_own(table: StoreUnderTest, client: DynamoDBClient) -> None:
    """An item that another program enlarged; a put leaves room in any case."""
    queue = table.queue(order="fifo")
    queue.put_many([{"payload": number, "task_id": str(number)} for number in range(3)])
    own = Shipments(client, str(table.table))

    def enlarge(task_id: str, size: int) -> None:
        client.update_item(
            TableName=own.table,
            Key={"taskId": {"S": task_id}},
            UpdateExpression="SET filling = :f",
            ExpressionAttributeValues={":f": {"S": "x" * size}},
        )

    size = 409_180
    while True:
        try:
            enlarge("0", size)
        except client.exceptions.ClientError:
            break
        size += 1
    assert ids(queue.claim(limit=3)) == ["1", "2"]
    assert [task.task_id for task in queue.list("FAILURE")] == ["0"]
