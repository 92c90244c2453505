"""The verbs of a queue as commands: output and exit status."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.stub import Stubber
from typer.testing import CliRunner, Result
from types_boto3_dynamodb import DynamoDBClient

from freshq import Queue, TaskStatus
from freshq.cli import stacks as stacks_module
from freshq.cli.main import app
from freshq.cli.output import span
from freshq.errors import printable
from freshq.stores.dynamodb import calls, store
from tests.support.readings import known

URL = "dynamodb://Tasks"
STACK = {
    "StackName": "app",
    "StackStatus": "CREATE_COMPLETE",
    "CreationTime": datetime(2024, 1, 1, tzinfo=UTC),
    "Parameters": [{"ParameterKey": "Stage", "ParameterValue": "dev"}],
    "Outputs": [
        {"OutputKey": "QueueTableName", "OutputValue": "Tasks"},
        {"OutputKey": "QueueName", "OutputValue": "mail"},
    ],
}


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    """Return a queue on SQLite that the commands also use."""
    url = f"sqlite:///{tmp_path / 'tasks.db'}"
    monkeypatch.setenv("FRESHQ_QUEUE", url)
    with Queue.sql(url) as queue:
        queue.create_table()
        yield queue


@pytest.fixture
def in_dynamodb(account_client: DynamoDBClient, monkeypatch: pytest.MonkeyPatch) -> Queue:
    monkeypatch.setenv("FRESHQ_QUEUE", URL)
    # Making a client takes longer than most tests.
    monkeypatch.setattr(store, "default_client", lambda: account_client)
    queue = Queue.dynamodb("Tasks", account_client)
    queue.create_table()
    return queue


@pytest.fixture
def stacks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stubber]:
    """Return a stub of CloudFormation."""
    client = boto3.client("cloudformation")
    monkeypatch.setattr(stacks_module, "client_of", lambda _service: client)
    with Stubber(client) as stubber:
        yield stubber
        stubber.assert_no_pending_responses()


def freshq(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(app, arguments, input=text)


def answer(*arguments: str, text: str | None = None) -> Any:
    """Return the JSON that a command prints."""
    done = freshq(*arguments, "--json", text=text)
    assert done.exit_code == 0, done.stderr
    return json.loads(done.stdout)


def fails(status: int, said: str, *arguments: str) -> None:
    """Check the exit status and the one-line error of a command."""
    done = freshq(*arguments)
    assert done.exit_code == status, done.output
    assert said in done.stderr
    assert done.stderr.startswith("freshq: ")
    assert done.stderr.count("\n") == 1, done.stderr


def claimed(*arguments: str) -> tuple[str, str]:
    """Claim one task; return its id and token."""
    (claim,) = answer("claim", *arguments)
    return claim["task_id"], claim["token"]


@pytest.mark.usefixtures("queue")
class TestPutAndGet:
    def test_get_returns_a_put_task(self, queue: Queue) -> None:
        put = answer("put", '{"order": 42}', "--task-id", "a", "--priority", "3", "--group", "g")
        assert put == {"task_id": "a", "outcome": "CREATED"}
        task = answer("get", "a")
        assert (task["payload"], task["priority"], task["group"], task["status"]) == (
            {"order": 42}, 3, "g", "PENDING",
        )  # fmt: skip
        assert "lease_token" not in task
        assert queue.stats().pending == 1
        assert '{"order": 42}' in freshq("get", "a").stdout

    def test_a_task_is_put_with_its_cost(self) -> None:
        answer("put", "1", "--task-id", "dear", "--cost", "700")
        assert answer("get", "dear")["cost"] == 700
        assert "cost 700" in " ".join(freshq("get", "dear").stdout.replace(":", " ").split())
        fails(2, "cost", "put", "1", "--task-id", "free", "--cost", "0")

    def test_a_duplicate_is_refused_and_changes_nothing(self) -> None:
        answer("put", "1", "--task-id", "a")
        fails(1, "already queued", "put", "2", "--task-id", "a")
        assert answer("get", "a")["payload"] == 1

    def test_on_conflict_keeps_or_replaces_a_live_task(self) -> None:
        answer("put", "1", "--task-id", "a")
        fails(1, "already queued", "put", "2", "--task-id", "a", "--on-conflict", "ignore")
        assert answer("put", "2", "--task-id", "a", "--on-conflict", "update")["outcome"] == "UPDATED"
        assert answer("get", "a")["payload"] == 2
        fails(
            2, "on_conflict: must be 'ignore', 'update'", "put", "3", "--task-id", "a", "--on-conflict", "no"
        )
        fails(2, "on_conflict: lines have no --task-id", "put", "--lines", "-", "--on-conflict", "update")
        assert answer("get", "a")["payload"] == 2

    def test_payloads_as_text_from_input_and_by_line(self, queue: Queue, tmp_path: Path) -> None:
        answer("put", "hello", "--text", "--task-id", "text")
        answer("put", "-", "--task-id", "input", text='{"from": "input"}')
        assert (answer("get", "text")["payload"], answer("get", "input")["payload"]) == (
            "hello", {"from": "input"},
        )  # fmt: skip
        file = tmp_path / "lines"
        file.write_text('1\n\n"two"\n', "utf-8")
        assert answer("put", "--lines", str(file)) == {"created": 2, "duplicates": 0}
        assert answer("put", "--lines", "-", text="1\n2\n3\n")["created"] == 3
        assert queue.stats().pending == 7

    @pytest.mark.parametrize(
        ("said", "arguments"),
        [
            ("payload: must be JSON", ["put", "{"]),
            ("payload: must be JSON ('a' is given 2 times", ["put", '{"a": 1, "a": 2}']),
            ("payload: must be JSON (nested too deeply)", ["put", "[" * 100_000]),
            ("payload: missing", ["put"]),
            ("at: must be a time such as 2026-12-01T08:00Z, got noon", ["put", "1", "--at", "noon"]),
            (
                "at: needs a time zone, got 2026-12-01T08:00; append Z",
                ["put", "1", "--at", "2026-12-01T08:00"],
            ),
            ("at: cannot be combined", ["put", "1", "--at", "2026-12-01T08:00Z", "--delay-seconds", "5"]),
            ("at: more than a century ahead", ["put", "1", "--at", "9000-12-01T08:00Z"]),
            ("priority: ", ["put", "1", "--priority", "10"]),
            ("--priority", ["put", "1", "--priority", "high"]),
            ("lines: cannot read", ["put", "--lines", "/no/such/file"]),
            ("lines: give either JSON or --lines", ["put", "1", "--lines", "-"]),
            ("task_id: missing", ["get"]),
            ("status: ", ["list", "--status", "GONE"]),
            ("limit: ", ["list", "--limit", "0"]),
            ("token: missing", ["complete", "a"]),
            ("--priority", ["reprioritize", "a"]),
            ("name: ", ["stats", "--name", "#"]),
            ("No such option", ["list", "--colour"]),
            ("No such command", ["fly"]),
        ],
    )
    def test_wrong_use_is_one_line(self, said: str, arguments: list[str]) -> None:
        fails(2, said, *arguments)

    def test_a_delayed_put_shows_its_schedule_to_the_end(self, queue: Queue) -> None:
        due = datetime(2096, 12, 1, 8, tzinfo=UTC)
        for task_id, at in (("a", "2096-12-01T08:00Z"), ("b", "2096-12-01T09:00:00+01:00")):
            answer("put", "1", "--task-id", task_id, "--at", at)
            assert answer("get", task_id)["first_due"] == due.timestamp()
        assert "due        2096-12-01T08:00:00Z, in " in freshq("get", "a").stdout
        assert "created" not in freshq("get", "a").stdout
        answer("put", "1", "--task-id", "c", "--delay-seconds", "0.001")
        first_due = answer("get", "c")["first_due"]
        queue.put_many([{"payload": 1, "task_id": name} for name in ("d", "e")])
        claims = {claim["task_id"]: claim for claim in answer("claim", "--limit", "5")}
        assert answer("complete", "c", "--token", claims["c"]["token"])["first_due"] == first_due
        assert "\ndue " in freshq("get", "c").stdout
        assert "\ndue " not in freshq("get", "d").stdout
        assert claims["d"]["put_at"] == claims["d"]["created"]

    def test_lines_may_be_put_for_later(self, queue: Queue) -> None:
        assert answer("put", "--lines", "-", "--at", "2096-12-01T08:00Z", text="1\n2\n")["created"] == 2
        assert {task.first_due for task in queue.list()} == {datetime(2096, 12, 1, 8, tzinfo=UTC).timestamp()}

    def test_lines_of_whole_tasks(self, queue: Queue, tmp_path: Path) -> None:
        file = tmp_path / "lines"
        first = '{"payload": "a\u2028b", "task_id": "t1", "at": "2096-12-01T08:00Z", "kind": "mail"}'
        file.write_text(f'\ufeff{first}\r\n\r\n{{"payload": 2, "group": "acme"}}\r\n', "utf-8")
        arguments = ["put", "--lines", str(file), "--as-tasks", "--priority", "3"]
        assert answer(*arguments) == {"created": 2, "duplicates": 0}
        found = known(queue, "t1")
        assert (found.payload, found.kind, found.priority) == ("a\u2028b", "mail", 3)
        assert found.first_due == datetime(2096, 12, 1, 8, tzinfo=UTC).timestamp()
        assert {task.group for task in queue.list()} == {None, "acme"}
        fails(1, "1 of 2 were duplicates", *arguments)

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ('{"task_id": "a"}', "line 1 must be an object with a payload"),
            ('{"payload": 1}\n[1]', "line 2 must be an object with a payload"),
            ('{"payload": 1, "colour": 1}', "line 1: colour"),
            ('{"payload": 1, "at": "noon"}', "at: must be a time"),
            ('{"payload": 1, "priority": 10}', "line 1: priority"),
        ],
    )
    def test_lines_that_are_no_tasks_put_nothing(self, queue: Queue, text: str, said: str) -> None:
        done = CliRunner().invoke(app, ["put", "--lines", "-", "--as-tasks"], input=text)
        assert (done.exit_code, queue.stats().pending) == (2, 0)
        assert said in done.stderr

    @pytest.mark.parametrize(
        ("text", "warns"),
        [
            ('{"task_id": "a", "at": 4e9}\n{"payload": 1}', True),
            ('{"task_id": "a"}\n{"other": 1}', False),
            ('{"kind": "mail"}', False),
            ("1\n", False),
        ],
    )
    def test_payloads_that_look_like_tasks_are_warned_of(self, queue: Queue, text: str, warns: bool) -> None:
        done = CliRunner().invoke(app, ["put", "--lines", "-"], input=text)
        assert (done.exit_code, queue.stats().pending) == (0, len(text.splitlines()))
        assert ("--as-tasks" in done.stderr) == warns

    def test_a_listing_has_the_newest_first_with_kinds_and_groups(self, queue: Queue) -> None:
        for number in range(5):
            queue.put(number, task_id=f"t{number}", kind="mail" if number else None, group="acme")
        shown = freshq("list").stdout.splitlines()
        assert [line.split()[0] for line in shown if " PENDING " in line] == ["t4", "t3", "t2", "t1", "t0"]
        assert " kind  group  payload" in shown[1]
        assert [task["task_id"] for task in answer("list")["tasks"]] == ["t4", "t3", "t2", "t1", "t0"]

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("--group", ["forget", "--yes", "--group", "\udcff"]),
            ("--kind", ["list", "--kind", "\udcff"]),
            ("--id", ["forget", "--yes", "--id", "a", "--id", "\udcff"]),
            ("TASK_ID", ["get", "\udcff"]),
        ],
    )
    def test_text_that_no_queue_has_is_refused_by_name(self, name: str, words: list[str]) -> None:
        fails(2, f"Invalid value for '{name}': it is not UTF-8, or the locale is not", *words)

    @pytest.mark.parametrize("line", ["x", '{"a": 1, "a": 2}', "[" * 100_000])
    def test_nothing_is_put_if_a_line_is_wrong(self, queue: Queue, line: str) -> None:
        done = CliRunner().invoke(app, ["put", "--lines", "-"], input=f"1\n{line}\n")
        assert (done.exit_code, queue.stats().pending) == (2, 0)
        assert "line 2 is not JSON" in done.stderr


@pytest.mark.usefixtures("queue")
class TestClaims:
    @pytest.mark.parametrize(
        ("verb", "status"),
        [("complete", "SUCCESS"), ("fail", "FAILURE"), ("retry", "PENDING"), ("release", "PENDING")],
    )
    def test_a_claim_is_carried_by_id_and_token(self, verb: str, status: str) -> None:
        answer("put", "1", "--task-id", "a")
        task_id, token = claimed()
        assert answer(verb, task_id, "--token", token)["status"] == status
        fails(1, "no longer holds it", verb, task_id, "--token", token)

    def test_results_errors_and_delays_are_kept(self, queue: Queue) -> None:
        answer("put", "1", "--task-id", "a")
        _, token = claimed()
        retried = answer("retry", "a", "--token", token, "--error", "busy", "--delay-seconds", "0")
        assert (retried["error"], retried["attempts"]) == ("busy", 1)
        _, token = claimed()
        assert answer("complete", "a", "--token", token, "--result", '{"n": 1}')["result"] == {"n": 1}
        assert queue.stats().success == 1

    def test_extend_keeps_the_token(self) -> None:
        answer("put", "1", "--task-id", "a")
        _, token = claimed("--lease-seconds", "90")
        until = answer("get", "a")["lease_until"]
        (held,) = answer("extend", "a", "--token", token, "--lease-seconds", "500")
        assert held["token"] == token
        assert held["lease_until"] > until + 300

    def test_a_stale_token_changes_nothing(self, queue: Queue) -> None:
        answer("put", "1", "--task-id", "a")
        claimed()
        fails(1, "another token", "complete", "a", "--token", "stale")
        task = known(queue, "a")
        assert task.status is TaskStatus.TAKEN

    def test_nothing_to_claim_is_refused(self) -> None:
        fails(1, "has nothing to claim", "claim")
        nothing = freshq("claim", "--json")
        assert (nothing.exit_code, json.loads(nothing.stdout)) == (1, [])
        answer("pause")
        fails(1, "is paused", "claim")
        assert answer("resume") == {"paused": False}

    def test_the_token_is_printed_in_full(self) -> None:
        answer("put", "1", "--task-id", "a" * 70)
        shown = freshq("claim").stdout
        token = next(line.split()[1] for line in shown.splitlines() if line.startswith("token"))
        assert len(token) == 12 + 1 + 32
        assert answer("complete", "a" * 70, "--token", token)["status"] == "SUCCESS"


@pytest.mark.usefixtures("queue")
class TestWaitingTasks:
    def test_touch_and_reprioritize_change_the_next_claim(self, queue: Queue) -> None:
        for name in ("a", "b", "c"):
            answer("put", "1", "--task-id", name)
        answer("touch", "a")
        assert claimed()[0] == "a"
        assert answer("reprioritize", "b", "--priority", "7")["priority"] == 7
        assert claimed()[0] == "b"
        assert queue.stats().pending == 1

    def test_cancelling_several_tasks_needs_confirmation(self, queue: Queue) -> None:
        for name in ("a", "b", "c"):
            answer("put", "1", "--task-id", name)
        assert answer("cancel", "a")["status"] == "CANCELLED"
        fails(2, "pass --yes", "cancel", "b", "c")
        assert [task["status"] for task in answer("cancel", "b", "c", "--yes")] == ["CANCELLED"] * 2
        fails(1, "cannot cancel a task that is CANCELLED", "cancel", "a")
        assert queue.stats().cancelled == 3

    def test_a_list_continues_at_its_cursor(self) -> None:
        for name in ("a", "b", "c"):
            answer("put", "1", "--task-id", name)
        first = answer("list", "--limit", "2")
        rest = answer("list", "--cursor", first["cursor"])
        assert sorted(task["task_id"] for page in (first, rest) for task in page["tasks"]) == ["a", "b", "c"]
        assert rest["cursor"] is None
        assert f"more: add --cursor {first['cursor']}" in freshq("list", "--limit", "2").stdout
        assert "no tasks" in freshq("list", "--status", "taken").stdout

    @pytest.mark.parametrize("columns", ["50", "80", "120"])
    def test_lists_fit_the_terminal(self, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", columns)
        answer("put", json.dumps("long " * 50))
        lines = freshq("list").stdout.splitlines()
        assert max(map(len, lines)) <= int(columns)
        assert any('"long' in line and line.rstrip().endswith("…") for line in lines)

    def test_a_short_id_leaves_room_for_the_other_columns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        answer("put", json.dumps("long " * 50), "--task-id", "a")
        (line,) = [line for line in freshq("list").stdout.splitlines() if '"long' in line]
        assert line.split()[:4] == ["a", "PENDING", "0", "0"]


@pytest.mark.usefixtures("queue")
class TestWait:
    def test_each_task_is_printed_as_it_ends(self, queue: Queue) -> None:
        for name in ("a", "b"):
            answer("put", "1", "--task-id", name)
        for _ in range(2):
            queue.complete(queue.claim()[0])
        assert freshq("wait", "a", "b").stdout.splitlines() == ["task b: SUCCESS", "task a: SUCCESS"]
        lines = freshq("wait", "a", "b", "--json").stdout.splitlines()
        assert [json.loads(line)["status"] for line in lines] == ["SUCCESS", "SUCCESS"]

    def test_the_status_says_how_they_ended(self) -> None:
        for name in ("a", "b"):
            answer("put", "1", "--task-id", name)
        answer("cancel", "a")
        done = freshq("wait", "a", "b", "--timeout-seconds", "0")
        assert (done.exit_code, done.stdout) == (4, "task a: CANCELLED\n")
        fails(1, "1 of 1 task did not end as SUCCESS", "wait", "a")
        fails(1, "'nobody'", "wait", "nobody")
        fails(2, "timeout_seconds: ", "wait", "a", "--timeout-seconds", "-1")


def test_pressure_and_recovery(queue: Queue) -> None:
    queue.put("work")
    shown = answer("pressure")
    assert (shown["probability_in_time"], shown["overloaded"]) == (1.0, False)
    assert "in time" in freshq("pressure").stdout
    of_value = answer("pressure", "--value", "12")
    assert (of_value["value"], of_value["probability_of_value"], of_value["by_value"]) == (12.0, 1.0, {})
    assert "value 12" in freshq("pressure", "--value", "12").stdout
    fails(2, "--value", "pressure", "--value", "0")
    assert answer("recover") == {"recovered": 0}


class TestDeletion:
    def test_purge_needs_confirmation(self, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        answer("put", "1")
        fails(2, "pass --yes", "purge")
        monkeypatch.setattr("freshq.cli.session.is_interactive", lambda: True)
        assert freshq("purge", text="n\n").exit_code == 1
        assert queue.stats().pending == 1
        assert freshq("purge", text="y\n").exit_code == 0
        assert queue.stats().pending == 0
        answer("put", "1")
        assert answer("purge", "--yes") == {"deleted": 1}

    def test_dead_letters_are_listed_redriven_and_deleted(self, queue: Queue) -> None:
        for name in ("a", "b", "c"):
            answer("put", "1", "--task-id", name)
            answer("fail", name, "--token", claimed()[1], "--error", f"no {name}")
        shown = freshq("list", "--status", "FAILURE").stdout
        assert all(f"no {name}" in shown for name in ("a", "b", "c"))
        assert answer("redrive", "a") == {"redriven": 1}
        assert answer("redrive", "--limit", "1", "--yes") == {"redriven": 1}
        fails(1, "cannot redrive", "redrive", "a")
        fails(2, "pass --yes", "purge", "--status", "FAILURE")
        fails(1, "cannot purge a task that is PENDING", "purge", "--status", "FAILURE", "a", "--yes")
        assert answer("purge", "--status", "FAILURE", "--yes") == {"deleted": 1}
        assert (queue.stats().pending, queue.stats().failure) == (2, 0)


class TestAddresses:
    def test_options_of_the_address_apply(self, in_dynamodb: Queue) -> None:
        where = f"{URL}?name=mail&order=fifo&lease_seconds=7"
        for name in ("a", "b"):
            answer("put", "1", "--task-id", name, "--queue", where)
        (claim,) = answer("claim", "--queue", where)
        assert claim["task_id"] == "a"
        assert claim["lease_until"] == pytest.approx(claim["updated"] + 7, abs=0.001)
        assert answer("stats", "--queue", URL, "--name", "mail")["pending"] == 1
        assert in_dynamodb.stats().pending == 0

    @pytest.mark.parametrize(
        ("address", "said"),
        [
            ("Tasks", "must look like dynamodb://TABLE"),
            ("ftp://Tasks", "must look like dynamodb://TABLE"),
            ("dynamodb://Tasks?colour=red", "unknown option 'colour'"),
            ("dynamodb://Tasks?lease_seconds=soon", "lease_seconds: must be a number"),
            ("memory://?telemetry=statsd", "telemetry: must be opentelemetry"),
            ("dynamodb://Tasks?order=random", "order: "),
            ("dynamodb://Tasks?name", "NAME=VALUE"),
            ("dynamodb://Tasks?name=a&name=b", "each option at most once"),
            ("dynamodb://Tasks?profile=nobody-has-this", "profile: "),
            ("dynamodb://T", "table: "),
            ("dynamodb://", "must look like dynamodb://TABLE"),
            ("dynamodb://Tasks#work", "must look like dynamodb://TABLE"),
            ("memory://Tasks", "must look like dynamodb://TABLE"),
            ("memory://?shards=2", "unknown option 'shards'"),
        ],
    )
    def test_a_wrong_address_is_wrong_use(self, address: str, said: str) -> None:
        fails(2, said, "stats", "--queue", address)

    def test_no_address_at_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("FRESHQ_QUEUE", raising=False)
        fails(2, "--queue URL or --stack NAME", "stats")

    def test_an_unreachable_store_is_not_an_empty_queue(self, monkeypatch: pytest.MonkeyPatch) -> None:
        nobody = boto3.client(
            "dynamodb", endpoint_url="http://127.0.0.1:9", config=Config(retries={"total_max_attempts": 1})
        )
        monkeypatch.setattr(calls, "default_client", lambda _session: nobody)
        fails(3, "did not answer", "get", "a", "--queue", f"{URL}?region=eu-west-1")

    @pytest.mark.usefixtures("account_client")
    def test_a_missing_table_names_itself(self) -> None:
        fails(3, "'Nowhere'", "ls", "--queue", "dynamodb://Nowhere")

    def test_sql_addresses_reach_the_library(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[tuple[str, str, dict[str, Any]]] = []

        def sql(url: str, table: str, **options: Any) -> Queue:
            asked.append((url, table, options))
            return Queue.memory(**options)

        monkeypatch.setattr(Queue, "sql", sql)
        answer("put", "1", "--queue", "mysql+pymysql://u@h/db?charset=utf8mb4&name=mail&max_attempts=2#work")
        options = {"name": "mail", "max_attempts": 2}
        assert asked == [("mysql+pymysql://u@h/db?charset=utf8mb4", "work", options)]

    def test_the_options_of_a_stack_are_stored_and_shown(self, in_dynamodb: Queue, stacks: Stubber) -> None:
        del in_dynamodb  # the table of the stack
        for _ in range(8):
            stacks.add_response("describe_stacks", {"Stacks": [STACK]}, {"StackName": "app"})
        words = ("configure", "--stack", "app")
        shown = answer(*words, "--max-age-seconds", "600", "--concurrency", "10")
        assert shown["max_age_seconds"] == {"value": 600.0, "source": "stored"}
        assert shown["concurrency"] == {"value": 10, "source": "stored"}
        assert shown["max_hops"] == {"value": 100, "source": "default"}
        fails(2, "concurrency: ", *words, "--concurrency", "0", "--max-age-seconds", "5")
        assert answer(*words)["max_age_seconds"]["value"] == 600
        answer(*words, "--forget")
        assert {row["source"] for row in answer(*words).values()} == {"default"}
        answer(*words, "--order", "fifo", "--lease-seconds", "7")
        answer("put", "1", "--task-id", "a", "--stack", "app")
        (claim,) = answer("claim", "--stack", "app")
        assert (claim["task_id"], claim["queue"]) == ("a", "mail")
        assert claim["lease_until"] == pytest.approx(claim["updated"] + 7, abs=0.001)

    def test_options_of_passes_are_only_for_a_stack(self, queue: Queue) -> None:
        del queue
        fails(2, "concurrency: only with --stack", "configure", "--concurrency", "4")

    def test_a_missing_stack_or_one_without_a_queue(self, stacks: Stubber) -> None:
        bare = {key: value for key, value in STACK.items() if key != "Outputs"}
        stacks.add_response("describe_stacks", {"Stacks": [bare]})
        fails(1, "no output QueueTableName", "ls", "--stack", "bare")
        stacks.add_response("describe_stacks", {})
        fails(3, "check the endpoint", "ls", "--stack", "app")
        stacks.add_client_error("describe_stacks", "ValidationError", "Stack with id none does not exist")
        fails(1, "does not exist", "ls", "--stack", "none")
        stacks.add_client_error("describe_stacks", "AccessDenied", "not authorized")
        fails(3, "not authorized", "ls", "--stack", "app")
        fails(2, "either --queue or --stack", "ls", "--stack", "app", "--queue", URL)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"), (0, "0.0 s"), (9.94, "9.9 s"), (12.4, "12 s"), (59.9, "60 s"), (60, "1 min"),
        (200, "3 min 20 s"), (3_600, "1 h"), (7_500, "2 h 5 min"), (90_000, "1 d 1 h"), (-5, "-5.0 s"),
    ],
)  # fmt: skip
def test_spans_have_at_most_two_units(seconds: float | None, text: str) -> None:
    assert span(seconds) == text


def test_control_characters_are_escaped() -> None:
    assert printable("a\x1b[2Jb\n\u202e") == r"a\u001b[2Jb\n\u202e"
