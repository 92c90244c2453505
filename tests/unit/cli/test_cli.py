"""The `freshq` command."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner
from types_boto3_dynamodb import DynamoDBClient

from freshq import Queue
from freshq.cli.command import of_system
from freshq.cli.main import app
from tests.support.readings import known

run = CliRunner().invoke


def test_stats_as_a_table_and_as_json(account_client: DynamoDBClient) -> None:
    queue = Queue.dynamodb("Tasks", account_client)
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
    """Run the command in a separate process; return its status, output and errors."""
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


@pytest.mark.matrix("unbuffered")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("output", [">/dev/full", ">&-"])
def test_an_answer_that_is_lost_has_a_status_of_its_own(output: str, unbuffered: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    done = subprocess.run(
        ["/bin/sh", "-c", f'"$0" -m freshq.cli table create {url} {output}', sys.executable],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
    )
    assert done.returncode == 74
    assert done.stderr.startswith("freshq: the answer could not be printed: ")
    assert done.stderr.count("\n") == 1
    answer = run(app, ["stats", "--queue", url])  # the table was made
    assert (answer.exit_code, answer.stderr) == (0, "")


def test_an_error_of_the_system_is_no_lost_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A codec of the application may raise an OSError without the name of a file."""
    (tmp_path / "own.py").write_text(
        "from freshq import Queue\n"
        "class Codec:\n"
        "    def encode(self, value): raise OSError(5, 'the key service is down')\n"
        "    def decoder(self, kind): return lambda value: value\n"
        f"queue = Queue.sql('sqlite:///{tmp_path}/tasks.db', codec=Codec())\n"
    )
    monkeypatch.chdir(tmp_path)
    assert run(app, ["table", "create", f"sqlite:///{tmp_path}/tasks.db"]).exit_code == 0
    status, shown, problem = freshq("put", "1", "--queue", "own:queue")
    assert (status, shown) == (3, "")
    assert "the key service is down" in problem
    assert "printed" not in problem


def script(text: str, before: str = "", after: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program of Python with words of a shell before and after it."""
    program = f"import os, signal, sys\nfrom freshq.cli import errors\n{text}"
    words = ["/bin/sh", "-c", f'{before} exec "$0" -c "$1" {after}', sys.executable, program]
    return subprocess.run(words, check=False, capture_output=True, text=True)


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&- 2>&-"])
def test_no_file_gets_the_number_of_a_closed_stream(closed: str) -> None:
    text = "errors.occupy_closed_streams()\nsys.exit(os.open(os.devnull, os.O_RDWR) + len(sys.stdin.read()))"
    assert script(text, after=f"</dev/null {closed}").returncode > 2


@pytest.mark.parametrize(
    ("number", "ignored"), [("SIGTERM", ""), ("SIGHUP", ""), ("SIGHUP", "trap '' HUP; ")]
)
def test_a_signal_unwinds_a_command_before_it_ends_it(number: str, ignored: str) -> None:
    text = f"""
with errors.unwound_by_signals():
    try: os.kill(os.getpid(), signal.{number})
    finally:
        print("restored", flush=True)
        if {not ignored}: raise OSError("the terminal is closed")
"""
    done = script(text, before=ignored)
    assert (done.stdout, done.stderr) == ("restored\n", "")
    assert done.returncode == (0 if ignored else -getattr(signal, number))


def test_an_error_that_cannot_be_printed_changes_no_status() -> None:
    assert script("errors.print_error('lost'); sys.exit(3)", after="2>/dev/full").returncode == 3


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (RuntimeError("can't start new thread"), "can't start new thread"),
        (MemoryError(), "the system has no memory left"),
    ],
)
def test_a_shortage_of_the_system_is_one_line(
    error: BaseException, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert of_system(cast("Any", error)) == 3
    assert capsys.readouterr().err == f"freshq: {shown}\n"
    with pytest.raises(RuntimeError, match="a fault"):
        of_system(RuntimeError("a fault"))
