"""Shell completion: commands, options and ids of the queue; and the place of the command."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from freshq import Queue
from freshq.cli.main import app
from tests.support.programs import python

Completed = Callable[..., list[str]]


@pytest.fixture
def address(tmp_path: Path) -> str:
    address = f"sqlite:///{tmp_path / 'tasks.db'}"
    with Queue.sql(address) as queue:
        queue.create_table()
        queue.put_many([{"payload": 1, "task_id": task_id} for task_id in ("order-1", "order-2", "mail-1")])
    return address


@pytest.fixture
def completed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Completed:
    """Return a function: what bash would offer for the last word of a line."""

    def offered(line: str, queue: str = "") -> list[str]:
        words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")), "_FRESHQ_COMPLETE": "complete_bash"}
        for name, value in {**words, "FRESHQ_QUEUE": queue}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(SystemExit):
            app(prog_name="freshq")
        return capsys.readouterr().out.split()

    return offered


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("freshq comp", ["complete"]),
        ("freshq table ", ["create", "attach"]),
        ("freshq get --js", ["--json"]),
        ("freshq get order", []),
    ],
)
def test_words(completed: Completed, line: str, words: list[str]) -> None:
    assert completed(line) == words


def test_ids_of_the_queue(completed: Completed, address: str) -> None:
    assert sorted(completed("freshq get order", address)) == ["order-1", "order-2"]
    assert completed(f"freshq cancel --queue {address} mail", "memory://") == ["mail-1"]
    assert completed("freshq get order", "none://") == []


def test_the_database_of_an_application_is_the_queue(address: str) -> None:
    run = python("-m", "freshq", "list", "--status", "PENDING", env={**os.environ, "DATABASE_URL": address})
    assert "order-1" in run.stdout
