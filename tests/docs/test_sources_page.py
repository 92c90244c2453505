"""Run docs/contributing/sources.md: every command and every line of Python, on three stores."""

import ast
import os
import re
import shlex
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import boto3
import pytest
from typer.testing import CliRunner
from types_boto3_dynamodb import DynamoDBClient

from freshq import Settlement
from freshq.addresses import open_match_queue, open_queue
from freshq.cli.main import app
from tests.support.attached import Shipments

PAGE: Final = Path(__file__).parents[2] / "docs" / "contributing" / "sources.md"
CODE: Final = re.compile(r"`([^`]+)`")
STATUS: Final = re.compile(r" \(status (\d)\)$")
TOKEN: Final = re.compile(r"^token +(\S+) *$", re.MULTILINE)
VARIABLE: Final = re.compile(r"\$(\w+)")
KEEPS_ALL: Final = 'order="fifo", max_age_seconds=None'
FAR: Final = datetime(2099, 12, 1, 9, tzinfo=UTC)


@dataclass(frozen=True)
class Row:
    """A feature, its use from Python and from a shell, and the shell's output."""

    feature: str
    python: str
    commands: tuple[str, ...]
    shows: str
    status: int


def sections() -> dict[str, list[Row]]:
    """Return the rows of the page by heading."""
    found: dict[str, list[Row]] = {}
    for line in PAGE.read_text("utf-8").splitlines():
        if line.startswith("## "):
            rows = found.setdefault(line.removeprefix("## "), [])
        elif line.startswith("| ") and not line.startswith(("| there |", "| --- |")):
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            if len(cells) < 4:  # a table of words, not of features
                continue
            feature, python, commands, shows = cells
            status = STATUS.search(shows)
            rows.append(
                Row(
                    feature,
                    python.strip("`"),
                    tuple(CODE.findall(commands)),
                    STATUS.sub("", shows),
                    int(status[1]) if status else 0,
                )
            )
    return found


PRIORITY: Final = "The priority queue on a table in use"
MATCHING: Final = "Matching callers to agents"
ON_QUEUES: Final = [name for name in sections() if name not in (PRIORITY, MATCHING)]


def typed(rows: list[Row]) -> None:
    """Type the commands of a section, one after the other."""
    variables = dict(os.environ)
    for row in rows:
        assert row.commands, row.feature
        shown = ""
        for command in row.commands:
            words = [
                re.sub(r"\$(\w+)", lambda name: variables[name[1]], word) for word in shlex.split(command)
            ]
            assert words.pop(0) == "freshq"
            done = CliRunner().invoke(app, words)
            last = command == row.commands[-1]
            assert done.exit_code == (row.status if last else 0), f"{command}: {done.output}"
            shown += done.output
            if token := TOKEN.search(done.stdout):
                variables["TOKEN"] = token[1]
        assert row.shows in shown, f"{row.feature}: {shown}"


def ran(rows: list[Row], **names: Any) -> None:
    """Run the Python of a section line by line; comparisons must hold."""
    for row in rows:
        *before, last = ast.parse(row.python).body
        exec(compile(ast.Module(before, []), row.feature, "exec"), names)
        if isinstance(last, ast.Expr):
            compared = isinstance(last.value, ast.Compare | ast.BoolOp | ast.UnaryOp)
            value = eval(compile(ast.Expression(last.value), row.feature, "eval"), names)  # noqa: S307 - likewise
            assert value is True or not compared, f"{row.feature}: {row.python}"
        else:
            exec(compile(ast.Module([last], []), row.feature, "exec"), names)


def to_local(client: DynamoDBClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands find the tables of a client of DynamoDB Local."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", client.meta.endpoint_url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "local")
    monkeypatch.setenv("AWS_DEFAULT_REGION", client.meta.region_name)
    # It would keep the credentials of an earlier test.
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)


@pytest.fixture(params=["sqlite", "postgres", "dynamodb_local"])
def addresses(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Return the addresses of two new tables of a store: for the commands, and for Python."""
    names = [f"t{uuid.uuid4().hex[:12]}" for _ in range(2)]
    if request.param == "dynamodb_local":
        to_local(request.getfixturevalue("dynamodb_local"), monkeypatch)
        typed, run = (f"dynamodb://{name}" for name in names)
    elif request.param == "postgres":
        request.getfixturevalue("postgres_engine")
        typed, run = (f"{request.getfixturevalue('postgres_server').url}#{name}" for name in names)
    else:
        typed, run = (f"{request.getfixturevalue('sqlite_url')}#{name}" for name in names)
    return typed, run


@pytest.fixture
def queue(section: str, addresses: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return the queue of Python; the commands find theirs."""
    monkeypatch.setenv("FRESHQ_QUEUE", addresses[0])
    with closing(open_queue(addresses[0])) as typed_on:
        typed_on.create_table()
    # The first lines of a section say how its queue is opened.
    keeps_all = KEEPS_ALL in PAGE.read_text("utf-8").split(f"## {section}\n")[1].split("\n| there |")[0]
    stored = {"order": "fifo", "max_age_seconds": None} if keeps_all else {}
    with closing(open_queue(addresses[1], **stored)) as queue:
        queue.create_table()
        yield queue


@pytest.mark.parametrize("section", ON_QUEUES)
def test_a_queue_does_what_its_source_does(section: str, queue: Any) -> None:
    rows = sections()[section]
    assert len(rows) > 5
    typed(rows)
    ran(rows, queue=queue, FAR=FAR, Settlement=Settlement)


@pytest.fixture
def shipments(dynamodb_local: DynamoDBClient, monkeypatch: pytest.MonkeyPatch) -> Shipments:
    """Return an attached table, whose address the commands find."""
    table = Shipments(dynamodb_local)
    table.create_attached()
    to_local(dynamodb_local, monkeypatch)
    monkeypatch.setenv("FRESHQ_QUEUE", f"dynamodb://{table.table}?key=id")
    return table


def test_an_attached_table_does_what_its_source_does(shipments: Shipments) -> None:
    rows = sections()[PRIORITY]
    assert len(rows) > 15
    typed(rows)
    ran(rows, queue=shipments.queue())


def test_a_match_queue_does_what_its_source_does(
    addresses: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = sections()[MATCHING]
    assert len(rows) > 10
    monkeypatch.setenv("FRESHQ_MATCH_QUEUE", addresses[0])
    typed(rows)
    with closing(open_match_queue(addresses[1])) as match:
        ran(rows, match=match)


def test_every_test_that_the_page_names_exists() -> None:
    named = set(re.findall(r"tests/[\w/]+\.py", PAGE.read_text("utf-8")))
    assert len(named) >= 3
    assert [name for name in named if not (PAGE.parents[2] / name).exists()] == []
