"""The shell session of the article on priority queues, typed as its readers would, on an attached table.

Each step has a typed line and the shell's answer. Names that differ from the article's are
explained in docs/cli.md.
"""

from typing import Any

import pytest
from types_boto3_dynamodb import DynamoDBClient

from freshq import AttachedQueue, LeaseLost, Queue, TaskStatus
from freshq.cli.output import Output
from freshq.cli.session import Session
from freshq.cli.shell import Shell
from freshq.queue.core import core_of
from tests.support.attached import Shipments
from tests.support.readings import counts, ids

# A typed line, and parts of the output up to the next line.
SESSION: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("ls", ("no tasks",)),
    ("create-test", ("record A-101: UNDER_CONSTRUCTION", "record A-404: UNDER_CONSTRUCTION")),
    ("ls", ("A-101", "A-202", "A-303", "A-404", "UNDER_CONSTRUCTION")),
    ("qstat", ("pending", "failure")),
    ("id A-101", ("A-101", "UNDER_CONSTRUCTION")),
    ("info", ("A-101", "UNDER_CONSTRUCTION")),
    ("data", ('"sku": "Item-1"', '"packed": true')),
    ("update READY_TO_SHIP", ("task A-101: READY",)),
    ("sys", ("READY",)),
    ("reset", ("task A-101: UNDER_CONSTRUCTION",)),
    ("ready", ("task A-101: READY",)),
    ("enqueue", ("task A-101: CREATED",)),
    ("stat", ("pending",)),
    ("id A-202", ("UNDER_CONSTRUCTION",)),
    ("en", ("task A-202: READY", "task A-202: CREATED")),  # under construction: made ready first
    ("enqueue A-303", ("task A-303: CREATED",)),
    ("peek", ("A-101", "token")),
    ("sys", ("TAKEN", "lease ends")),
    ("done", ("task A-101: SUCCESS",)),
    ("peek", ("A-202", "token")),
    ("restore", ("task A-202: PENDING",)),  # the article's fail: back to the end of the queue
    ("peek", ("A-303", "token")),
    ("invalid --error 'no such address'", ("task A-303: FAILURE",)),
    ("dlq", ("A-303", "no such address")),
    ("restore A-303", ("task A-303: PENDING",)),
    ("touch A-202", ("task A-202: PENDING",)),  # to the end again
    ("dequeue", ("A-303", "SUCCESS")),
    ("remove A-202", ("task A-202: CANCELLED",)),
    ("id", ("no current task",)),
    ("record upsert {\"id\": \"A-404\", \"carrier\": \"by sea\"}", ("record A-404: written",)),
    ("record get A-404", ("by sea", "Item-1")),
    ("record delete A-404 --yes", ("record A-404: deleted",)),
    ("ls --status READY", ("no tasks",)),
    ("purge --yes", ("tasks deleted",)),
    ("ls --status READY", ("A-101", "A-202", "A-303")),
    ("quit", ()),
)  # fmt: skip


@pytest.fixture
def shipments(dynamodb_local: DynamoDBClient) -> Shipments:
    """Return an attached table without records."""
    table = Shipments(dynamodb_local)
    table.create_attached()
    return table


def test_the_session_typed_as_written(shipments: Shipments, capsys: pytest.CaptureFixture[str]) -> None:
    queue = Queue.dynamodb(shipments.table, shipments.client, attach=True, key="id")
    shell = Shell(Session(queue, Output(as_json=False)))
    for line, said in SESSION:
        status = shell.run(line)
        answer = capsys.readouterr()
        assert (status, answer.err) == (0, ""), line
        for part in said:
            assert part in answer.out, line
    assert queue.stats().pending == 0


def test_the_same_by_its_api(shipments: Shipments) -> None:
    """Each method of the article's SDK, by the name that it has here."""
    queue: AttachedQueue = shipments.queue()
    for record_id in ("A", "B", "C"):
        record: dict[str, Any] = {"id": record_id, "items": [{"sku": "Item-1", "packed": True}]}
        assert queue.records.put(record) == record_id  # put
        assert queue.records.get(record_id) == record  # get
    queue.records.upsert({"id": "C", "carrier": "by sea"})  # upsert
    queue.records.hold("A")  # updateStatus(UNDER_CONSTRUCTION)
    queue.records.ready("A")  # updateStatus(READY_TO_SHIP)
    assert [task.task_id for task in queue.list("READY")] != []  # listIDs
    for record_id in ("A", "B", "C"):
        queue.put(task_id=record_id)  # enqueue
        shipments.clock.advance(1)
    (first,) = queue.claim()  # peek
    assert (first.task.task_id, core_of(queue).found("A").status) == ("A", TaskStatus.TAKEN)
    queue.redrive(["A"], as_new=True, force=True)  # restore: from any consumer, to the end of the queue
    with pytest.raises(LeaseLost):
        queue.complete(first)
    assert [each.task.task_id for each in queue.peek(5)] == ["B", "C", "A"]
    shipments.clock.advance(1)
    queue.redrive(["B"], as_new=True)  # touch
    assert [each.task.task_id for each in queue.peek(5)] == ["C", "A", "B"]
    queue.cancel("C", dead=True, error="invalid data")  # sendToDLQ
    assert [(task.task_id, task.error) for task in queue.list("FAILURE")] == [("C", "invalid data")]
    assert queue.stats(ids=100).ids["failure"] == ("C",)  # getDLQStats
    queue.redrive(["C"], as_new=True)
    assert queue.stats(ids=100).ids["pending"] == ("A", "B", "C")  # getQueueStats
    assert [queue.complete(claim).task_id for claim in queue.claim()] == ["A"]  # dequeue
    queue.cancel("B")  # remove
    assert ids(queue.claim(limit=5)) == ["C"]
    assert counts(queue.stats()) == {"success": 1, "cancelled": 1, "taken": 1}
    queue.records.delete("B")  # delete
    assert queue.records.get("B") is None
