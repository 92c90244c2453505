"""The `freshq` command."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from freshq import Queue
from freshq.cli.main import app

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

run = CliRunner().invoke


def test_stats_as_a_table_and_as_json(moto_client: DynamoDBClient) -> None:
    queue = Queue.dynamodb("Tasks", moto_client)
    queue.create_table()
    queue.put_many([{"payload": number} for number in range(3)])
    queue.complete(queue.claim()[0])
    table = run(app, ["stats", "--queue", "dynamodb://Tasks"])
    assert table.exit_code == 0
    assert "pending" in table.output
    counts = json.loads(run(app, ["stats", "--json"], env={"FRESHQ_QUEUE": "dynamodb://Tasks"}).output)
    assert (counts["pending"], counts["success"]) == (2, 1)
    bounded = run(app, ["stats", "--queue", "dynamodb://Tasks", "--approximate"]).output
    assert "not counted" in bounded


@pytest.mark.usefixtures("moto_client")
def test_a_missing_table_is_not_an_empty_queue() -> None:
    answer = run(app, ["stats", "--queue", "dynamodb://NoSuchTable"])
    assert answer.exit_code == 3
    assert "'NoSuchTable'" in answer.output


@pytest.mark.parametrize(
    "arguments",
    [["--queue", "Tasks"], ["--queue", "dynamodb://"], [], ["--queue", "dynamodb://T", "--name", "#"]],
)
def test_wrong_use_exits_with_status_2(arguments: list[str]) -> None:
    assert run(app, ["stats", *arguments], env={"FRESHQ_QUEUE": None}).exit_code == 2


def test_version() -> None:
    assert run(app, ["version"]).output.startswith("0.")
