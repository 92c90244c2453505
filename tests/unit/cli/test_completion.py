"""The completion of shells: commands, options, and ids of the queue; and where the command is found."""

import os
from pathlib import Path

import pytest

from freshq import Queue
from tests.support.programs import python


@pytest.fixture
def address(tmp_path: Path) -> str:
    address = f"sqlite:///{tmp_path / 'tasks.db'}"
    with Queue.sql(address) as queue:
        queue.create_table()
        queue.put_many([{"payload": 1, "task_id": task_id} for task_id in ("order-1", "order-2", "mail-1")])
    return address


def completed(line: str, **environment: str) -> list[str]:
    """Return what bash would offer for the last word of a line."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), "_FRESHQ_COMPLETE": "complete_bash"}
    program = "import sys; sys.argv[0] = 'freshq'; from freshq.cli.__main__ import main; main()"
    return python("-c", program, env={**os.environ, **words, **environment}).stdout.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("freshq comp", ["complete"]),
        ("freshq table ", ["create", "attach"]),
        ("freshq get --js", ["--json"]),
        ("freshq get order", []),
    ],
)
def test_words(line: str, words: list[str]) -> None:
    assert completed(line) == words


def test_ids_of_the_queue(address: str) -> None:
    assert sorted(completed("freshq get order", FRESHQ_QUEUE=address)) == ["order-1", "order-2"]
    assert completed(f"freshq cancel --queue {address} mail", FRESHQ_QUEUE="memory://") == ["mail-1"]
    assert completed("freshq get order", FRESHQ_QUEUE="none://") == []


def test_the_database_of_an_application_is_the_queue(address: str) -> None:
    run = python("-m", "freshq", "list", "--status", "PENDING", env={**os.environ, "DATABASE_URL": address})
    assert "order-1" in run.stdout
