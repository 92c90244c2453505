"""The `freshq` command."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner
from types_boto3_dynamodb import DynamoDBClient

from freshq import Queue
from freshq.cli.main import app
from tests.support.programs import python
from tests.support.readings import known

run = CliRunner().invoke


def test_stats_as_a_table_and_as_json(moto_client: DynamoDBClient) -> None:
    queue = Queue.dynamodb("Tasks", moto_client)
    queue.create_table()
    queue.put_many([{"payload": number} for number in range(3)])
    queue.complete(queue.claim()[0])
    table = run(app, ["stats", "--queue", "dynamodb://Tasks"])
    assert table.exit_code == 0
    assert "pending" in table.output
    exact = CliRunner().invoke(app, ["stats", "--exact", "--json", "--queue", "dynamodb://Tasks"])
    counts = json.loads(exact.stdout)
    assert (counts["pending"], counts["success"]) == (2, 1)
    assert re.search(r"reads the whole table, about \d+ read units", exact.stderr)
    for how in ([], ["--approximate"]):
        bounded = run(app, ["stats", "--queue", "dynamodb://Tasks", *how]).output
        assert "not counted" in bounded


def freshq(*arguments: str, encoding: str = "utf-8", to: int = subprocess.PIPE) -> tuple[int, str, str]:
    """Run the command in a process of its own; return its status, its output and its errors."""
    done = subprocess.run(
        [sys.executable, "-m", "freshq.cli", *arguments],
        check=False,
        stdout=to,
        stderr=subprocess.PIPE,
        encoding=encoding,
        env=os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"},
    )
    return done.returncode, done.stdout or "", done.stderr


def test_a_claim_is_shown_also_where_its_payload_cannot_be_encoded(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    queue = Queue.sql(url)
    queue.create_table()
    queue.put("ключ", task_id="a")
    status, shown, problem = freshq("claim", "--queue", url, encoding="cp1252")
    assert (status, problem) == (0, "")
    assert r"\u043a\u043b\u044e\u0447" in shown
    held = known(queue, "a")
    assert str(held.lease_token) in shown
    queue.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
def test_an_answer_that_cannot_be_printed_is_said_in_one_line(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    queue = Queue.sql(url)
    queue.create_table()
    queue.close()
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        status, _, problem = freshq("stats", "--queue", url, to=full)
    finally:
        os.close(full)
    assert (status, problem) == (74, "freshq: the answer could not be printed: No space left on device\n")


@pytest.mark.parametrize("option", ["--version", "-h"])
def test_options_that_every_command_line_has(option: str) -> None:
    answer = run(app, [option])
    assert answer.exit_code == 0
    assert ("Usage:" in answer.output) == (option == "-h")


def test_a_file_that_cannot_be_opened_is_no_problem_of_printing(tmp_path: Path) -> None:
    answer = run(app, ["table", "create", str(tmp_path)])
    assert answer.exit_code == 2
    assert "printed" not in answer.output


def test_a_command_needs_no_standard_output(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    program = "import sys; sys.stdout = None; from freshq.cli.__main__ import main; main()"
    for arguments in (["table", "create", url], ["stats", "--queue", url]):
        done = python("-c", program, *arguments, check=False)
        assert (done.returncode, done.stderr) == (0, "")
