"""Output for people and programs: help, tables, pipes, JSON, and errors that say what to do."""

import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from types_boto3_dynamodb import DynamoDBClient

from freshq import Queue
from freshq.cli.main import COMMANDS
from freshq.cli.output import Output, fields, json_text, task_facts
from tests.conftest import Clock
from tests.unit.cli.test_cli_verbs import answer, fails, freshq

LONG_ID = "order-" + "0123456789" * 20


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the address of a queue on SQLite; FRESHQ_QUEUE names it, and the output is a pipe."""
    monkeypatch.delenv("COLUMNS", raising=False)
    found = f"sqlite:///{tmp_path / 'tasks.db'}"
    monkeypatch.setenv("FRESHQ_QUEUE", found)
    assert freshq("table", "create", found).exit_code == 0
    return found


def commands(command: Any) -> Iterator[Any]:
    """Yield a command; for a group also its commands."""
    yield command
    for inner in getattr(command, "commands", {}).values():
        yield from commands(inner)


class TestHelp:
    @pytest.mark.parametrize("listed", COMMANDS, ids=lambda listed: listed.name)
    def test_flags_have_no_type(self, listed: Any) -> None:
        for command in commands(listed.load()):
            params = command.get_params(typer.Context(command))
            flags = [param for param in params if getattr(param, "is_flag", False)]
            assert "--help" in [flag.opts[0] for flag in flags]
            assert {flag.metavar for flag in flags} == {""}

    def test_help_shows_none(self) -> None:
        for path in ([], ["claim"], ["table"], ["table", "create"]):
            shown = freshq(*path, "--help").stdout
            assert "--help" in shown
            assert "bool" not in shown


@pytest.mark.usefixtures("url")
class TestNext:
    def test_it_shows_the_order_of_claims_and_what_each_waits_for(self) -> None:
        for words in (("a", "--group", "x"), ("b", "--group", "y"), ("c", "--delay-seconds", "900")):
            answer("put", "1", "--task-id", *words)
        shown = answer("peek")["tasks"]
        assert {each["task_id"]: each["waits_for"] for each in shown} == {"a": None, "b": "turn", "c": "due"}
        assert [each["task_id"] for each in answer("peek", "--limit", "2")["tasks"]] == ["a", "b"]
        lines = freshq("peek").stdout.splitlines()
        assert [line.split()[0] for line in lines if line.strip()][2:] == ["a", "b", "c"]
        assert "waits for its turn" in lines[4]
        assert [answer("claim")[0]["task_id"] for _ in range(2)] == ["a", "b"]


@pytest.mark.usefixtures("url")
class TestPipe:
    def test_ids_and_payloads_are_whole_and_on_one_line(self) -> None:
        payload = {"text": "long " * 100}
        answer("put", json.dumps(payload), "--task-id", LONG_ID)
        for command in (["list"], ["get", LONG_ID], ["claim"]):
            lines = freshq(*command).stdout.splitlines()
            assert any(LONG_ID in line for line in lines), command
            assert any(json.dumps(payload) in line for line in lines), command

    def test_stats_have_a_name_for_each_column(self) -> None:
        for more in ([], ["--approximate"]):
            _title, _rule, heading, *rest = freshq("stats", *more).stdout.splitlines()
            assert heading.replace("┃", " ").split() == ["state", "tasks"]
            assert all(row.count("│") == 3 for row in rest if row.startswith("│"))


class TestSqlite:
    @pytest.mark.parametrize("command", ["stats", "ls", "claim", "watch --once", "put 1"])
    def test_a_wrong_path_is_an_error_and_makes_no_file(self, command: str, tmp_path: Path) -> None:
        file = tmp_path / "wrong.db"
        fails(
            3, f"there is no file '{file}'; check the path", *command.split(), "--queue", f"sqlite:///{file}"
        )
        assert not file.exists()

    @pytest.mark.usefixtures("url")
    def test_a_large_payload_is_refused_without_a_word_of_another_store(self) -> None:
        done = freshq("put", "-", text=json.dumps("a" * 5_000_000))
        assert done.exit_code == 2
        assert "at most 401408 are allowed on every store" in done.stderr
        assert "S3" not in done.stderr


class TestTableCreate:
    def test_a_queue_on_sqlite_twice(self, url: str) -> None:
        answer("put", "1", "--task-id", "a")
        assert freshq("table", "create", url).stdout == f"The table is ready: {url}\n"
        assert answer("get", "a")["payload"] == 1

    def test_a_queue_on_dynamodb(self, account_client: DynamoDBClient) -> None:
        fails(3, "freshq table create", "stats", "--queue", "dynamodb://New")
        assert freshq("table", "create", "dynamodb://New").exit_code == 0
        assert answer("put", "1", "--queue", "dynamodb://New")["outcome"] == "CREATED"
        assert Queue.dynamodb("New", account_client).stats().pending == 1

    def test_no_password_is_printed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Queue, "create_table", lambda _: None)
        shown = freshq("table", "create", "postgresql://user:s3cret@host/db").output
        assert "s3cret" not in shown
        assert "***" in shown


class TestJson:
    def test_it_has_neither_infinity_nor_nan(self, capsys: pytest.CaptureFixture[str]) -> None:
        Output(as_json=True).answer({"a": math.inf, "b": [(math.nan, 1.5)], "c": {"d": -math.inf}})
        assert json.loads(capsys.readouterr().out) == {"a": None, "b": [[None, 1.5]], "c": {"d": None}}
        assert json_text({"a": 1}, indent=2) == '{\n  "a": 1\n}'


def test_a_task_that_carries_a_trace_shows_its_id() -> None:
    queue = Queue.memory()
    traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    queue.put(1, task_id="a", trace_context=traceparent)
    queue.put(1, task_id="b")
    with_trace, without = queue.get("a"), queue.get("b")
    assert with_trace is not None
    assert without is not None
    assert task_facts(with_trace, queue.admin.now())["trace"] == traceparent[3:35]
    assert fields(with_trace, queue.admin.now())["trace_context"] == traceparent
    assert "trace" not in task_facts(without, queue.admin.now())


@pytest.mark.parametrize(
    ("width", "columns"),
    [(40, "age"), (60, "prio tries age kind"), (80, "prio tries age kind group")],
)
def test_a_listing_fits_the_terminal_and_breaks_only_ids(width: int, columns: str, clock: Clock) -> None:
    queue = Queue.memory(clock=clock)
    queue.put({"text": "long " * 50}, task_id="7e54094c-3753-473b-9800-a879e7889805", kind="mail", group="a")
    stream = io.StringIO()
    output = Output(as_json=False)
    output.console = Console(file=stream, width=width)
    output.tasks([*queue.list()], None, clock.now)
    heading, _line, *rows = (line for line in stream.getvalue().splitlines() if line.strip())
    assert heading.split() == ["task", "state", *columns.split(), "payload"]
    assert "PENDING" in rows[0]
    assert max(map(len, (heading, *rows))) <= width
