"""The repr of a queue shows its name and tables, and no secret."""

import boto3
import pytest

from freshq import AsyncQueue, MatchQueue, Queue, Worker
from freshq.matching.asyncio import AsyncMatchQueue

SECRET = "hunter2"
URL = f"postgresql://app:{SECRET}@db:5432/shop?sslpassword={SECRET}"


def client() -> object:
    return boto3.client(
        "dynamodb", region_name="eu-west-1", aws_access_key_id="id", aws_secret_access_key=SECRET
    )


@pytest.mark.parametrize(
    ("opened", "shown"),
    [
        (Queue.sql(URL, name="mail"), "Queue('mail', postgresql://app@db:5432/shop#tasks)"),
        (AsyncQueue.sql(URL, "jobs"), "AsyncQueue(Queue('default', postgresql://app@db:5432/shop#jobs))"),
        (Worker(Queue.sql(URL), print), "Worker(Queue('default', postgresql://app@db:5432/shop#tasks))"),
        (Queue.sql(URL).admin, "Admin('default', postgresql://app@db:5432/shop#tasks)"),
        (MatchQueue.sql(URL), "MatchQueue(postgresql://app@db:5432/shop#resources)"),
        (Queue.dynamodb("Tasks", client()), "Queue('default', dynamodb://Tasks)"),  # type: ignore[call-overload]
        (MatchQueue.dynamodb("Agents", client()), "MatchQueue(dynamodb://Agents)"),  # type: ignore[arg-type]
        (Queue.memory(), "Queue('default', memory://)"),
        (AsyncMatchQueue.memory(), "AsyncMatchQueue(MatchQueue(memory://))"),
    ],
)
def test_a_queue_names_itself(opened: object, shown: str) -> None:
    assert repr(opened) == shown


def test_a_closed_queue_says_so() -> None:
    queue, matches = Queue.memory(), MatchQueue.memory()
    queue.close()
    matches.close()
    assert (repr(queue), repr(matches)) == ("Queue('default', closed)", "MatchQueue(closed)")
