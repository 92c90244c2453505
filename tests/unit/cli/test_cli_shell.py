"""`freshq shell`, piped and interactive: the walkthrough of a record, and errors."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput
from typer.testing import CliRunner, Result
from types_boto3_dynamodb import DynamoDBClient

from freshq import Queue
from freshq.cli.main import ALIASES as WORDS
from freshq.cli.main import app
from freshq.cli.output import Output
from freshq.cli.prompt import ShellCompleter, prompt_text, prompted
from freshq.cli.session import Session
from freshq.cli.shell import ALIASES, Shell, split
from freshq.stores.dynamodb import calls
from tests.conftest import StoreUnderTest
from tests.support.programs import python

# The article's example: shipments are created, made ready, queued and claimed; one succeeds, one fails.
WALK = """
create-test
ls
id A-101
sys
update READY_TO_SHIP
enqueue
qstat
peek
data
done
sys
id A-202
en
claim
invalid --error "no such address"
dlq
restore
PEEK
retry --error later --delay-seconds 0
peek
fail --error "still no such address"
dlq redrive --all --yes
touch
cancel
id A-303
ready
enqueue
dequeue
info
"""


def piped(*lines: str, options: tuple[str, ...] = ()) -> Result:
    return CliRunner().invoke(
        app, ["shell", "--queue", "memory://", *options], input="".join(f"{line}\n" for line in lines)
    )


def answers(*lines: str) -> list[Any]:
    """Return the JSON answer of each line."""
    done = piped(*lines, options=("--json",))
    assert done.exit_code == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def shell() -> Shell:
    return Shell(Session(Queue.memory(), Output(as_json=False)))


def test_the_articles_walkthrough_in_a_separate_process(table_store: StoreUnderTest) -> None:
    assert table_store.client is not None
    environment = os.environ | {
        "AWS_ENDPOINT_URL_DYNAMODB": table_store.client.meta.endpoint_url,
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
        "AWS_DEFAULT_REGION": table_store.client.meta.region_name,
        "FRESHQ_QUEUE": f"dynamodb://{table_store.table}",
    }
    done = python(
        "-c", "from freshq.cli.main import app; app()", "shell", input=WALK, env=environment, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    for said in (
        "record A-101: UNDER_CONSTRUCTION", "record A-101: READY", "task A-101: CREATED",
        "task A-101: SUCCESS", "task A-202: FAILURE", "no such address", "1 redriven",
        "task A-202: PENDING after attempt 1", "task A-202: CANCELLED",
    ):  # fmt: skip
        assert said in done.stdout, said
    stats = Queue.dynamodb(table_store.table or "", table_store.client).stats()
    assert (stats.success, stats.cancelled, stats.pending, stats.failure) == (2, 1, 0, 0)


class TestPipe:
    def test_every_line_is_run_until_the_end(self) -> None:
        shown = answers(*(f"put {number}" for number in range(200)), "stats")
        assert len(shown) == 201
        assert shown[-1]["pending"] == 200

    def test_the_last_line_needs_no_newline(self) -> None:
        done = CliRunner().invoke(app, ["shell", "--queue", "memory://"], input="put 1 --task-id a")
        assert (done.exit_code, done.stdout) == (0, "task a: CREATED\n")

    def test_nothing_after_quit_is_run(self) -> None:
        done = piped("quit", "put 1 --task-id a")
        assert (done.exit_code, done.stdout) == (0, "")

    @pytest.mark.parametrize(
        ("lines", "status"),
        [
            (["put 1"], 0),
            (["claim", "put 1"], 1),
            (["id nobody", "put 1"], 1),
            (["claim", "fly", "put 1"], 2),
            (["put {"], 2),
            (['put "1'], 2),
            (["put 1 --colour red"], 2),
            (["done"], 2),
            (["done a"], 2),
            (["purge"], 2),
            (["update COMPLETED"], 2),
            (["aws"], 2),
            (["aws someone"], 2),
            (["ls --queue memory://"], 2),
            (["", "   ", "# a comment"], 0),
        ],
    )
    def test_the_status_is_the_worst_of_the_commands(self, lines: list[str], status: int) -> None:
        done = piped(*lines)
        assert done.exit_code == status, done.stderr
        assert done.stderr.count("\n") == (0 if status == 0 else done.stderr.count("freshq: "))
        assert "Traceback" not in done.output

    def test_lines_after_an_error_are_run(self) -> None:
        done = piped("fly", "put 1 --task-id a")
        assert done.stderr == "freshq: unknown command 'fly'; help lists the commands\n"
        assert "task a: CREATED" in done.stdout
        assert "did you mean 'claim'" in piped("cliam").stderr

    def test_json_needs_no_quotes(self) -> None:
        answer = answers(
            'put {"a": [1, "two words"]} --task-id x --priority 3', "put [1] --task-id y", "get x"
        )[-1]
        assert (answer["payload"], answer["priority"]) == ({"a": [1, "two words"]}, 3)

    def test_purge_runs_if_confirmed(self) -> None:
        assert answers("put 1", "purge --yes")[-1] == {"deleted": 1}


class TestRecords:
    def test_a_record_under_construction_is_in_no_queue(self) -> None:
        made, stats = answers("ct", "stats")
        assert [record["status"] for record in made] == ["UNDER_CONSTRUCTION"] * 4
        assert stats["pending"] == 0
        refused = piped("ct", "id A-101", "touch", "done A-202")
        assert refused.exit_code == 1
        assert "cannot touch a record that is UNDER_CONSTRUCTION" in refused.stderr
        assert "cannot done" in refused.stderr

    def test_a_queued_record_cannot_be_queued_again(self) -> None:
        refused = piped("ct", "id A-101", "enqueue", "enqueue", "ct", "touch A-101", "reset")
        assert refused.exit_code == 1
        assert "already queued, it is PENDING" in refused.stderr
        assert "task A-101: already in the queue, PENDING" in refused.stdout
        assert "cannot reset a task that is PENDING" in refused.stderr

    def test_ready_and_reset_change_a_record_back_and_forth(self) -> None:
        shown = answers("ct", "id A-101", "ready", "reset")
        assert [record["status"] for record in shown[1:]] == [
            "UNDER_CONSTRUCTION", "READY", "UNDER_CONSTRUCTION",
        ]  # fmt: skip

    def test_ready_redrives_a_dead_letter_and_releases_a_claim(self) -> None:
        shown = answers("put 1 --task-id a", "claim", "fail", "ready", "claim", "ready a", "stats")
        assert shown[-1]["pending"] == 1
        refused = piped("put 1 --task-id a", "ready a")
        assert "cannot make ready a task that is PENDING" in refused.stderr

    def test_a_listing_shows_drafts(self) -> None:
        assert "not queued: A-404  UNDER_CONSTRUCTION" in piped("ct", "ls").stdout


class TestCurrent:
    def test_a_claimed_task_is_current_and_needs_no_token(self) -> None:
        shown = answers(
            "put 1 --task-id a", "put 2 --task-id b", "claim --limit 2", "done", "release b", "id b", "id"
        )
        assert [task["status"] for task in shown[3:6]] == ["SUCCESS", "PENDING", "PENDING"]
        assert shown[-1] == {"current": None}

    def test_an_unknown_task_does_not_become_current(self, shell: Shell) -> None:
        shell.run_all(["put 1 --task-id a", "id a"])
        assert prompt_text(shell.session) == "default [a]> "
        assert shell.run("id nobody") == 1
        assert prompt_text(shell.session) == "default [a]> "
        assert shell.run("id") == 0
        assert prompt_text(shell.session) == "default> "

    def test_a_token_of_another_process_is_accepted(self, shell: Shell) -> None:
        shell.run("put 1 --task-id a")
        (claim,) = shell.session.queue.claim()
        assert shell.run("done a") == 2
        assert shell.run(f"done a --token {claim.token}") == 0
        assert shell.run(f"done a --token {claim.token}") == 1

    def test_aws_changes_the_account_and_keeps_the_queue(
        self, account_client: DynamoDBClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        credentials = tmp_path / "credentials"
        credentials.write_text("[other]\naws_access_key_id = a\naws_secret_access_key = b\n", "utf-8")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
        queue = Queue.dynamodb("Tasks", account_client, name="mail")
        queue.create_table()
        queue.put("work")
        asked: list[Any] = []

        def client(session: Any) -> DynamoDBClient:
            asked.append((session.profile_name, session.region_name))
            return account_client

        monkeypatch.setattr(calls, "default_client", client)
        shell = Shell(Session(queue, Output(as_json=False), address="dynamodb://Tasks?region=eu-west-1"))
        assert shell.run("aws other us-east-2") == 0
        assert asked == [("other", "us-east-2")]
        assert (shell.session.queue.name, shell.session.queue.stats().pending) == ("mail", 1)
        assert shell.run("aws nobody") == 2


class TestTyped:
    def test_lines_are_typed_until_the_end(
        self, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
        with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
            # A line, a line dropped by Ctrl-C, a line completed by Tab, the end by Ctrl-D.
            keys.send_text("put 1 --task-id a\nnever\x03stat\tus\n\x04")
            typed = list(prompted(shell.session, shell.names, shell.options))
        assert typed[0] == "put 1 --task-id a"
        assert "never" not in typed
        history = (tmp_path / "freshq" / "history").read_text("utf-8")
        assert "put 1 --task-id a" in history

    @pytest.mark.parametrize(
        ("before", "completions"),
        [
            ("cla", {"claim"}),
            ("id A-1", {"A-101"}),
            ("redrive --as", {"--as-new"}),
            ("claim --lim", {"--limit"}),
            ("ls --q", set()),
        ],
    )
    def test_commands_ids_and_options_are_completed(
        self, shell: Shell, before: str, completions: set[str]
    ) -> None:
        shell.run("create-test")
        found = ShellCompleter(shell.session, shell.names, shell.options).get_completions(
            Document(before), CompleteEvent()
        )
        assert {completion.text for completion in found} == completions

    def test_help_names_every_command(self, shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
        shell.session.output = Output(as_json=False)  # prints where the test captures
        assert shell.run("?") == 0
        shown = capsys.readouterr().out
        for name in {*shell.names} - {*ALIASES, *WORDS[""], *WORDS, "help"}:
            assert name in shown, name
        assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", []),
        ("  # note", []),
        ("done  a", ["done", "a"]),
        ("fail --error 'two words'", ["fail", "--error", "two words"]),
        ('en [1, {"a b": 2}] --task-id x', ["en", '[1, {"a b": 2}]', "--task-id", "x"]),
    ],
)
def test_lines_are_split_like_a_posix_shell(line: str, words: list[str]) -> None:
    assert split(line) == words
