"""The runbooks for restores, as docs/operations.md has them, word for word on the emulator.

The emulator has no point-in-time recovery; a backup made at the chosen time replaces it.
"""

import gzip
import json
import re
import shlex
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from local.emulator import REGION, Connection, Emulator

from freshq import Queue, TaskStatus
from tests.e2e.conftest import Deployment, delete, deploy_application, wait_until
from tests.e2e.package import Package
from tests.support.aws_cli import arguments
from tests.support.functions import PROJECT
from tests.support.snippets import snippets

pytestmark = pytest.mark.timeout(600)
PAGE: Final = PROJECT / "docs" / "operations.md"


def runbook(heading: str) -> list[str]:
    """Return the commands below a heading, in order."""
    lines = PAGE.read_text("utf-8").splitlines()
    begin = lines.index(f"### {heading}")
    end = next(at for at in range(begin + 1, len(lines)) if lines[at].startswith("##"))
    return [
        command
        for snippet in snippets(PAGE)
        if begin < int(snippet.place.rpartition(":")[2]) <= end and snippet.language == "sh"
        for command in snippet.code.splitlines()
    ]


@dataclass
class Operator:
    """Types the commands of a runbook.

    Attributes:
        application: The stack that they are typed for.
        names: What stands for a word in capitals.
        printed: The answers of freshq.
        past: ARN of the backup that replaces point-in-time recovery.
    """

    application: Deployment
    names: dict[str, str] = field(default_factory=dict)
    printed: list[str] = field(default_factory=list)
    past: str = ""

    def remember(self) -> None:
        """Save the present state of the table, as its continuous backups would."""
        table, new = self.application.outputs["QueueTableName"], f"restored-{uuid.uuid4().hex[:8]}"
        made = self.application.client("dynamodb").create_backup(TableName=table, BackupName="past")
        self.past = made["BackupDetails"]["BackupArn"]
        self.names |= {"STACK": self.application.stack, "TABLE": table, "NEW": new, "BACKUP": self.past}
        self.names |= {"TIME": "2026-01-01T00:00:00Z", "QUEUE": "default"}

    def follow(self, commands: Sequence[str], *, extra: str = "") -> None:
        """Run commands, with some more options of `freshq copy`."""
        for command in commands:
            named = re.sub(r"\b[A-Z][A-Z_]+2?\b", lambda word: self.names.get(word[0], word[0]), command)
            program, *words = shlex.split(named)
            if program == "aws":
                self.call(*words)
            else:
                self.freshq(*words, *(extra.split() if words[0] == "copy" else ()))

    def freshq(self, *words: str) -> None:
        """Run freshq as its user does."""
        done = subprocess.run(
            [sys.executable, "-m", "freshq", *words],
            env=self.application.emulator.environment,
            cwd=Path(sys.prefix),
            capture_output=True,
            text=True,
            check=False,
        )
        skips = words[0] == "copy" and "skipped" in done.stdout
        assert done.returncode == int(skips), done.stdout + done.stderr
        self.printed += done.stdout.splitlines()

    def call(self, service: str, operation: str, *words: str) -> None:
        """Make the call of a command of the AWS CLI."""
        client = self.application.client(service)
        if operation == "wait":
            waiter, words = client.get_waiter(words[0].replace("-", "_")), words[1:]
            waiter.wait(**arguments(client, waiter.config.operation, words))
            return
        name = client.meta.method_to_api_mapping[operation.replace("-", "_")]
        given = arguments(client, name, words)
        if name == "RestoreTableToPointInTime":
            target = given["TargetTableName"]
            client.restore_table_from_backup(TargetTableName=target, BackupArn=self.past)
            return
        answer = getattr(client, operation.replace("-", "_"))(**given)
        if name == "ImportTable":  # whose table AWS makes ACTIVE once the import has ended
            arn = answer["ImportTableDescription"]["ImportArn"]
            ended = partial(client.describe_import, ImportArn=arn)
            wait_until(lambda: ended()["ImportTableDescription"]["ImportStatus"] != "IN_PROGRESS")
        if name == "ListBackups":
            assert self.past in json.dumps(answer["BackupSummaries"], default=str)
        assert not answer.get("FunctionError"), answer


@dataclass
class OtherSide:
    """A client of the emulator for another region or account; the access key is the account number."""

    emulator: Emulator
    region_name: str = REGION
    account: str = "test"

    @property
    def pid(self) -> int:
        return self.emulator.pid

    @property
    def connection(self) -> Connection:
        connection = self.emulator.connection.copy()
        connection["region_name"], connection["aws_access_key_id"] = self.region_name, self.account
        return connection

    @property
    def environment(self) -> dict[str, str]:
        access = {"AWS_DEFAULT_REGION": self.region_name, "AWS_ACCESS_KEY_ID": self.account}
        return self.emulator.environment | access


def exported(application: Deployment, bucket: str, owner: Any, export: str) -> None:
    """Put the files of an export, which the emulator only notes, into a bucket."""
    items = application.client("dynamodb").scan(TableName=application.outputs["QueueTableName"])["Items"]
    lines = "".join(json.dumps({"Item": item}) + "\n" for item in items)
    key = f"freshq/AWSDynamoDB/{export}/data/1.json.gz"
    owner.put_object(Bucket=bucket, Key=key, Body=gzip.compress(lines.encode()))


def states(queue: Queue) -> dict[str, TaskStatus]:
    return {task.task_id: task.status for task in queue.list()}


@pytest.fixture
def stopped(deployed: Callable[..., Deployment]) -> Operator:
    """Return the operator of an application with stopped workers, so that tasks stay unchanged."""
    application = deployed(demo_task_seconds=0.02, max_age_seconds=86_400)
    operator = Operator(application, {"STACK": application.stack})
    operator.follow(runbook("Restore from a point in time")[:1])
    return operator


def settle_all(application: Deployment, *ids: str) -> None:
    """Wait until the stack's workers have done some tasks."""
    wait_until(
        lambda: (
            application.invoke("Sweep", {})
            and all(states(application.queue)[task_id] == "SUCCESS" for task_id in ids)
        )
    )


def test_a_point_in_time_comes_back_without_what_has_ended_since(stopped: Operator) -> None:
    application, queue = stopped.application, stopped.application.queue
    queue.put("ends", task_id="ends")
    queue.put("fails", task_id="fails")
    (failed,) = queue.claim()
    queue.fail(failed, error="by the test")
    queue.put("runs", task_id="runs")
    assert len(queue.claim()) == 1
    queue.put("waits", task_id="waits")
    queue.put("later", task_id="later", delay_seconds=3600)
    stopped.remember()
    created = {task.task_id: task.created for task in queue.list()}
    # Later damage, and later work.
    queue.cancel("waits")
    queue.redrive(["fails"], as_new=True)
    for task_id in ("runs", "later", "fails"):
        queue.purge(confirm="default", task_ids=[task_id])
    (ended,) = queue.claim()
    assert ended.task.task_id == "ends"
    queue.complete(ended)
    before = states(queue)
    assert before == {"ends": "SUCCESS", "waits": "CANCELLED"}
    commands = runbook("Restore from a point in time")
    (copy,) = (number for number, command in enumerate(commands) if command.startswith("freshq copy"))
    stopped.follow(commands[: copy + 1])
    assert "1 skipped: is CANCELLED in the destination: waits" in stopped.printed
    assert "1 skipped: is SUCCESS in the destination: ends" in stopped.printed
    stopped.follow([commands[copy]], extra="--over cancelled,shed")
    restored = {"ends": "SUCCESS", "fails": "FAILURE", "runs": "PENDING", "waits": "PENDING"}
    assert states(queue) == restored | {"later": "PENDING"}
    assert {task.task_id: task.created for task in queue.list()} == created
    stopped.follow(commands[copy + 1 :])
    settle_all(application, "runs", "waits")
    assert application.runs()["ends"] == 1
    assert stopped.names["NEW"] not in application.client("dynamodb").list_tables()["TableNames"]


def test_a_wrong_purge_is_undone_and_other_queues_stay(stopped: Operator) -> None:
    application, queue = stopped.application, stopped.application.queue
    other = Queue.dynamodb(
        application.outputs["QueueTableName"], application.client("dynamodb"), name="other"
    )
    queue.put_many([{"payload": number, "task_id": f"task-{number}"} for number in range(5)])
    other.put("stays", task_id="stays")
    stopped.remember()
    other.cancel("stays")
    queue.purge(confirm="default")
    queue.put("new", task_id="new")
    stopped.follow(runbook("Undo a purge"))
    assert states(other) == {"stays": "CANCELLED"}
    ids = ("new", *(f"task-{number}" for number in range(5)))
    assert states(queue) == dict.fromkeys(ids, TaskStatus.PENDING)
    assert not queue.paused()
    application.client("ssm").put_parameter(
        Name=application.outputs["KillSwitchParameterName"], Value="run", Overwrite=True
    )
    settle_all(application, *ids)


def test_the_work_of_a_deleted_table_goes_on_in_a_new_stack(
    stopped: Operator, deployed: Callable[..., Deployment]
) -> None:
    old = stopped.application
    old.queue.put_many([{"payload": number, "task_id": f"task-{number}"} for number in range(5)])
    (done,) = old.queue.claim()
    old.queue.complete(done)
    stopped.remember()
    old.client("dynamodb").delete_table(TableName=stopped.names["TABLE"])
    new = deployed(demo_task_seconds=0.02, max_age_seconds=86_400)
    stopped.names |= {
        "TABLE2": new.outputs["QueueTableName"],
        "SWEEP_FUNCTION_NAME": new.outputs["SweepFunctionName"],
    }
    stopped.follow(runbook("Recover a deleted table"))
    assert "5 tasks copied: 4 PENDING, 1 SUCCESS" in stopped.printed
    settle_all(new, *(f"task-{number}" for number in range(5)))
    assert done.task.task_id not in new.runs() or new.runs()[done.task.task_id] == 1


@pytest.mark.parametrize(
    "side", [{"region_name": "us-west-2"}, {"account": "222222222222"}], ids=["region", "account"]
)
def test_the_work_goes_on_in_another_region_or_account(
    stopped: Operator, package: Package, side: dict[str, str]
) -> None:
    old = stopped.application
    old.queue.put_many([{"payload": number, "task_id": f"task-{number}"} for number in range(5)])
    (done,) = old.queue.claim()
    old.queue.complete(done)
    created = {task.task_id: task.created for task in old.queue.list()}
    other: Any = OtherSide(old.emulator, **side)
    there = package.elsewhere()
    there.upload(other.connection)
    new = deploy_application(
        other, there, f"freshq-{uuid.uuid4().hex[:8]}", demo_task_seconds=0.02, max_age_seconds=86_400
    )
    bucket = f"exports-{uuid.uuid4().hex[:8]}"
    where: Any = {"LocationConstraint": side.get("region_name", "eu-west-1")}
    new.client("s3").create_bucket(Bucket=bucket, CreateBucketConfiguration=where)
    table = old.client("dynamodb").describe_table(TableName=old.outputs["QueueTableName"])["Table"]
    stopped.names |= {"TABLE_ARN": table["TableArn"], "BUCKET": bucket, "ACCOUNT": "222222222222"}
    commands = runbook("Move to another region or account")
    stopped.follow(commands[:1])
    exported(old, bucket, new.client("s3"), "01234-export")
    operator = Operator(new, stopped.names | {"STACK2": new.stack, "TABLE2": new.outputs["QueueTableName"]})
    operator.names |= {"EXPORT": "01234-export", "NEW": f"imported-{uuid.uuid4().hex[:8]}"}
    operator.names["SWEEP_FUNCTION_NAME"] = new.outputs["SweepFunctionName"]
    operator.follow(commands[1:])
    assert "5 tasks copied: 4 PENDING, 1 SUCCESS" in operator.printed
    settle_all(new, *(f"task-{number}" for number in range(5)))
    assert {task.task_id: task.created for task in new.queue.list()} == created
    assert done.task.task_id not in new.runs()
    delete([new.stack], other)
