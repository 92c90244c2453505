"""The producer and the worker of each store in examples/, as the documentation shows them."""

import json
import runpy
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import sqlalchemy as sa
from typer.testing import CliRunner
from types_boto3_dynamodb import DynamoDBClient

from freshq import Queue, TaskStatus
from freshq.cli.main import app
from tests.support.functions import PROJECT
from tests.support.readings import known
from tests.support.work_process import QUICK, Work, until

EXAMPLES = PROJECT / "examples"
SHOWN = {"postgresql/app.py": "worker.md"}


class Example:
    """A folder of examples, copied to be the current one."""

    def __init__(self, store: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        shutil.copytree(EXAMPLES / store, folder, dirs_exist_ok=True)
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.delitem(sys.modules, "app", raising=False)
        self._patch = monkeypatch

    def create(self, address: str) -> None:
        """Create the tables, as the example says."""
        answer = CliRunner().invoke(app, ["table", "create", address])
        assert answer.exit_code == 0, answer.stderr

    def produce(self, *arguments: str) -> None:
        self._patch.setattr(sys, "argv", ["producer.py", *arguments])
        runpy.run_path("producer.py")

    def work(self, address: str, *options: str) -> tuple[dict[str, Any], str]:
        """Run the worker until the queue is empty; return its last event and its output."""
        options = (*QUICK, "--idle-exit-seconds", "0.2", *options)
        answer = CliRunner().invoke(app, ["work", "app:run", "--queue", address, *options])
        assert answer.exit_code == 0, answer.stderr
        return json.loads(answer.stdout.splitlines()[-1]), answer.stderr


@pytest.fixture
def example(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Example]:
    """Return the example named like the test; signals are handled as before afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield Example(request.function.__name__.removeprefix("test_"), tmp_path, monkeypatch)
    for number, handler in before.items():
        signal.signal(number, handler)
    sys.modules.pop("app", None)


def status_of(queue: Queue, task_id: str) -> TaskStatus | None:
    task = queue.get(task_id)
    return None if task is None else task.status


@pytest.mark.parametrize(("file", "page"), SHOWN.items())
def test_the_documentation_shows_the_file(file: str, page: str) -> None:
    shown = (PROJECT / "docs" / page).read_text("utf-8")
    assert f"```python\n{(EXAMPLES / file).read_text('utf-8')}```" in shown


def test_sqlite(example: Example, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example.create("sqlite:///tasks.db")
    example.produce("ABC", "XYZ")
    assert capsys.readouterr().out == "quote-ABC CREATED\nquote-XYZ CREATED\n"
    queue = Queue.sql("sqlite:///tasks.db")
    with Work(tmp_path, "sqlite:///tasks.db") as work:
        until(lambda: status_of(queue, "quote-ABC") is TaskStatus.SUCCESS)
        until(lambda: status_of(queue, "quote-XYZ") is TaskStatus.FAILURE)
        assert work.end() == 0
    task = known(queue, "quote-ABC")
    assert task.result == {"symbol": "ABC", "price": 42}
    queue.close()


def test_postgresql(example: Example, postgres_engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    url = postgres_engine.url.render_as_string(hide_password=False)
    monkeypatch.setenv("DATABASE_URL", url)
    try:
        example.create(url)
        example.produce("7", "8")
        bounds = ("--concurrency", "12", "--limit-lowest", "2", "--limit-highest", "12")
        ended, _ = example.work(url, "--transaction", *bounds)
        with postgres_engine.connect() as connection:
            rows = connection.execute(sa.text("SELECT id, status FROM orders ORDER BY id")).all()
    finally:
        with postgres_engine.begin() as connection:
            connection.execute(sa.text("DROP TABLE IF EXISTS orders"))
    assert [tuple(row) for row in rows] == [("7", "shipped"), ("8", "shipped")]
    assert (ended["event"], ended["outcomes"]["succeeded"], ended["idle"]) == ("ended", 2, True)


def test_dynamodb(example: Example, dynamodb_local: DynamoDBClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_DYNAMODB", dynamodb_local.meta.endpoint_url)
    monkeypatch.setenv("AWS_DEFAULT_REGION", dynamodb_local.meta.region_name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "local")  # the tables of that client
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # one of an earlier test has other credentials
    try:
        example.create("dynamodb://Messages")
        example.produce("ready")
        ended, printed = example.work("dynamodb://Messages", "--at-most-once")
        stats = Queue.dynamodb("Messages", dynamodb_local).stats()
    finally:
        dynamodb_local.delete_table(TableName="Messages")
    assert "to +1 555 0100: ready" in printed
    assert (ended["outcomes"]["succeeded"], stats.success) == (1, 1)
