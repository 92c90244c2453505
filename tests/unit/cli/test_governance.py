"""`freshq forget` leaves no trace in any file, and `freshq audit` names who did what."""

import getpass
import gzip
import json
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws
from typer.testing import CliRunner
from types_boto3_dynamodb import DynamoDBClient

from freshq import Queue, Settlement
from freshq.cli import stacks as stacks_module
from freshq.cli.commands import doctor as governance
from freshq.cli.main import app
from freshq.cli.session import AUDIT_ENTRIES
from freshq.queue.core import core_of
from freshq.stores.base import Store
from freshq.stores.dynamodb.table import identity
from freshq.stores.memory import MemoryStore
from freshq.stores.sql import SqlStore
from tests.conftest import REGION
from tests.support.histories import pulled
from tests.template.test_template import source

SECRETS = ("alice@example.org", "payload-of-alice", "result-of-alice", "error-of-alice")


def run(*arguments: str, status: int = 0) -> str:
    done = CliRunner().invoke(app, [*arguments])
    assert done.exit_code == status, done.output
    return done.stdout


def found(*arguments: str, status: int = 0) -> dict[str, list[tuple[str, str, str]]]:
    """Return what `forget` said, by subject."""
    said: dict[str, list[tuple[str, str, str]]] = {}
    for row in json.loads(run("forget", "--yes", "--json", *arguments, status=status)):
        said.setdefault(row["subject"], []).append((row["health"], row["text"], row["action"]))
    return said


@pytest.fixture
def address(tmp_path: Path) -> str:
    """Return the address of a queue in a folder, with a history."""
    address = f"sqlite:///{tmp_path / 'db' / 'tasks.db'}"
    (tmp_path / "db").mkdir()
    with Queue.sql(address, history=True, max_attempts=1) as queue:
        queue.create_table()
    return address


def live(address: str) -> None:
    """Lead tasks of two people to every possible fate."""
    with Queue.sql(address, max_attempts=1) as queue:
        for name in ("alice", "bob"):
            group = f"{name}@example.org"
            for number in range(3):
                payload = {"text": f"payload-of-{name}", "number": number}
                queue.put(payload, task_id=f"{name}-{number}", group=group)
        for claim in queue.claim(limit=5):
            name = claim.task.task_id.partition("-")[0]
            if claim.task.task_id.endswith("1"):
                queue.fail(claim, error=f"error-of-{name}")
            else:
                queue.settle_many([Settlement.complete(claim, result=f"result-of-{name}")])


def texts_of(folder: Path) -> bytes:
    """Return all that is in the files of a folder, unpacked."""
    found = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    return b"\n".join(gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data for data in found)


class TestForget:
    def test_nothing_of_a_group_is_left_in_any_file(self, address: str, tmp_path: Path) -> None:
        live(address)
        run("purge", "--queue", address, "--group", "nobody@example.org", "--yes")
        run("purge", "--queue", address, "--group", "alice@example.org", "--kind", "none", "--yes")
        landed = tmp_path / "landed" / "2026"
        landed.mkdir(parents=True)
        lines = [
            json.dumps({"event_id": str(number), "task_id": f"{name}-0", "group": f"{name}@example.org"})
            for number, name in enumerate(("alice", "bob", "alice"))
        ]
        packed = landed / "events.gz"
        packed.write_bytes(gzip.compress("\n".join([*lines, "no json"]).encode()))
        plain = landed / "plain"
        plain.write_text(lines[1])
        before = texts_of(tmp_path)
        assert [secret for secret in SECRETS if secret.encode() not in before] == []
        said = found("--queue", address, "--group", "alice@example.org", "--events", str(tmp_path / "landed"))
        assert said["queue"][0][1] == "3 tasks deleted"
        assert said["history"][0][0] == "ok"
        assert said["file"][0][0] == "ok"
        assert said["events"][0][1].startswith("the group erased from 2 events")
        assert said["pipeline"][0][0] == "warning"
        after = texts_of(tmp_path)
        assert [secret for secret in SECRETS if secret.encode() in after] == []
        # The data of others are unchanged.
        assert b"payload-of-bob" in after
        assert plain.read_text() == lines[1]
        assert gzip.decompress(packed.read_bytes()).splitlines()[1:] == [
            lines[1].encode(),
            b'{"event_id":"2","task_id":"alice-0"}',
            b"no json",
        ]
        with Queue.sql(address) as queue:
            assert {task.group for task in queue.list()} == {"bob@example.org"}
        assert '"(forgotten)"' in run("audit", "--queue", address, "--json")

    def test_single_tasks(self, address: str) -> None:
        live(address)
        said = found("--queue", address, "--id", "alice-0", "--id", "no-such-task")
        assert said["queue"] == [("ok", "1 task deleted", "")]
        with Queue.sql(address) as queue:
            assert queue.get("alice-0") is None
            assert queue.get("alice-1") is not None
            store = core_of(queue).store
            assert isinstance(store, SqlStore)
            events = [event for event in pulled(store) if event["task_id"].startswith("alice")]
        assert {event["task_id"] for event in events if "group" not in event} == {"alice-0"}
        assert {event["task_id"] for event in events if "group" in event} == {"alice-1", "alice-2"}

    def test_a_damaged_file_is_named_and_the_others_are_erased(self, address: str, tmp_path: Path) -> None:
        landed = tmp_path / "landed"
        landed.mkdir()
        event = json.dumps({"task_id": "a", "group": "alice"}).encode()
        (landed / "1.gz").write_bytes(gzip.compress(event)[:-6])
        (landed / "2").write_bytes(event)
        said = found("--queue", address, "--group", "alice", "--events", str(landed), status=1)
        (wrong, name, _action), (_ok, total, _none) = said["events"]
        assert (wrong, name.partition(":")[0]) == ("wrong", str(landed / "1.gz"))
        assert total.startswith("the group erased from 1 event ")
        assert json.loads((landed / "2").read_bytes()) == {"task_id": "a"}

    def test_ids_or_a_group(self, address: str) -> None:
        run("forget", "--yes", "--queue", address, status=2)
        run("forget", "--yes", "--queue", address, "--id", "a", "--group", "b", status=2)
        assert "give one of them" in CliRunner().invoke(app, ["forget", "--queue", address]).output

    def test_it_asks_first(self, address: str) -> None:
        live(address)
        assert "--yes" in CliRunner().invoke(app, ["forget", "--queue", address, "--id", "bob-0"]).output
        with Queue.sql(address) as queue:
            assert queue.get("bob-0") is not None

    def test_a_stack_with_an_archive(
        self, account_client: DynamoDBClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with Queue.dynamodb("Tasks", account_client) as queue:
            queue.create_table()
            queue.put("payload", task_id="a", group="alice")
        s3 = boto3.client("s3")
        location: Any = {"LocationConstraint": REGION}
        s3.create_bucket(Bucket="archive", CreateBucketConfiguration=location)
        event = {"task_id": "a", "group": "alice"}
        s3.put_object(
            Bucket="archive", Key="events/2026/1.gz", Body=gzip.compress(json.dumps(event).encode())
        )
        s3.put_object(Bucket="archive", Key="events/2026/2", Body=b'{"task_id":"b","group":"bob"}')
        stack = stacks_module.Stack(
            "app",
            "CREATE_COMPLETE",
            {"QueueTableName": "Tasks", "ArchiveBucketName": "archive"},
            {"stage": "dev"},
        )
        for module in (stacks_module, governance):
            monkeypatch.setattr(module.Stack, "describe", classmethod(lambda *_: stack))
        said = found("--stack", "app", "--group", "alice")
        assert said["archive"][0][1] == "the group erased from 1 event in archive"
        body = s3.get_object(Bucket="archive", Key="events/2026/1.gz")["Body"].read()
        assert json.loads(gzip.decompress(body)) == {"task_id": "a"}
        assert s3.get_object(Bucket="archive", Key="events/2026/2")["Body"].read().endswith(b'"bob"}')
        # The remaining places, and until when.
        assert said["logs"][0][2] == "until they are 7 days old"
        assert said["stream"][0][2] == "until they are a day old"
        assert {"backups", "traces", "pipeline"} <= said.keys()
        # An unreadable file is an error, and so is a bucket without access.
        s3.put_object(Bucket="archive", Key="events/2026/0.gz", Body=gzip.compress(b"{}" * 99)[:-6])
        said = found("--stack", "app", "--group", "alice", status=1)
        assert [each[0] for each in said["archive"]] == ["wrong", "ok", "warning"]
        stack.outputs["ArchiveBucketName"] = "another"
        assert "NoSuchBucket" in found("--stack", "app", "--group", "alice", status=1)["archive"][0][1]

    def test_the_logs_are_kept_as_long_as_the_template_says(self) -> None:
        stages = source()["Mappings"]["Stages"]
        days = {stage: governance.LOG_DAYS.get(stage, governance.PROD_LOG_DAYS) for stage in stages}
        assert days == {stage: figures["LogRetentionDays"] for stage, figures in stages.items()}


class TestAudit:
    def test_it_names_who_did_what(self, address: str) -> None:
        live(address)
        run("pause", "--queue", address)
        run("resume", "--queue", address)
        run("configure", "--queue", address)
        run("configure", "--queue", address, "--max-age-seconds", "60")
        run("purge", "--queue", address, "--status", "FAILURE", "--yes")
        run("purge", "--queue", address, "no-such-task", "--yes", status=1)
        run("group", "set", "bob", "--weight", "2", "--queue", address)
        entries = json.loads(run("audit", "--queue", address, "--json"))
        assert [(each["verb"], each["outcome"]) for each in entries] == [
            ("pause", "done"),
            ("resume", "done"),
            ("configure", "done"),
            ("purge", "done"),
            ("purge", "NotFound"),
            ("group set", "done"),
        ]
        assert {each["by"].partition("@")[0] for each in entries} == {getpass.getuser()}
        assert entries[2]["given"] == {"max_age_seconds": "60.0"}
        assert entries[3]["given"]["status"] == "FAILURE"
        last = run("audit", "--queue", address, "--limit", "1")
        assert "group set" in last
        assert len(last.splitlines()) == 1

    def test_an_empty_record(self, address: str) -> None:
        assert run("audit", "--queue", address) == "nothing is recorded\n"

    def test_it_stays_small(self, address: str) -> None:
        for number in range(AUDIT_ENTRIES + 2):
            run("cancel", "--queue", address, f"no-{number}-{'x' * 200}", status=1)
        entries = json.loads(run("audit", "--queue", address, "--json", "--limit", "99"))
        assert len(entries) == AUDIT_ENTRIES
        assert entries[-1]["given"]["task_ids"].startswith(f"['no-{AUDIT_ENTRIES + 1}-")
        assert max(len(each["given"]["task_ids"]) for each in entries) <= 100

    def test_on_aws_the_identity_is_that_of_sts(self, account_client: DynamoDBClient) -> None:
        with Queue.dynamodb("Tasks", account_client) as queue:
            queue.create_table()
        run("pause", "--queue", "dynamodb://Tasks")
        (entry,) = json.loads(run("audit", "--queue", "dynamodb://Tasks", "--json"))
        assert entry["by"].startswith("arn:aws:sts::123456789012:")

    def test_the_identity_is_that_of_the_clients_keys(self, monkeypatch: pytest.MonkeyPatch) -> None:
        client = boto3.client("dynamodb", aws_access_key_id="of-a-profile", aws_secret_access_key="s")
        asked, make = [], boto3.client

        def noting(*names: str, **options: Any) -> Any:
            asked.append(options["aws_access_key_id"])
            return make(*names, **options)  # type: ignore[call-overload]

        monkeypatch.setattr("boto3.client", noting)
        with mock_aws():
            assert str(identity(client)).startswith("arn:aws:sts::")
        assert asked == ["of-a-profile"]

    def test_a_user_may_have_no_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def nameless() -> str:
            raise KeyError("getpwuid(): uid not found: 1000670000")

        monkeypatch.setattr("getpass.getuser", nameless)
        assert MemoryStore().caller().startswith("user ")

    def test_a_verb_that_cannot_be_recorded_is_done_nevertheless(
        self, address: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("freshq.queue.shared.measures.change_record", lambda *_: False)
        done = CliRunner().invoke(app, ["pause", "--queue", address])
        assert done.exit_code == 0
        assert "pause is not in the audit record" in done.stderr
        with Queue.sql(address) as queue:
            assert queue.paused()

    def test_a_missing_store_is_one_error(self, tmp_path: Path) -> None:
        done = CliRunner().invoke(app, ["pause", "--queue", f"sqlite:///{tmp_path}/none.db"])
        assert (done.exit_code, done.stderr.count("freshq:")) == (3, 1)


def test_a_store_without_traces_has_nothing_to_erase() -> None:
    store: Store = MemoryStore()
    assert list(store.erase("default", ("a",), None)) == []
    assert store.caller().startswith(getpass.getuser())
