"""`freshq doctor` finds each problem and says what to do."""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import boto3
import pytest
from botocore.exceptions import ClientError
from botocore.stub import Stubber
from typer.testing import CliRunner
from types_boto3_dynamodb import DynamoDBClient

from freshq import Queue
from freshq.aws.pass_options import configure_stack, stored_pass_options
from freshq.cli import stacks as stacks_module
from freshq.cli.commands import doctor
from freshq.cli.main import app
from freshq.stores.base import Health, Stats
from freshq.stores.dynamodb import store, table
from freshq.stores.dynamodb.schema import STATUS_INDEX, TTL_ATTRIBUTE, table_definition

STACK: dict[str, Any] = {
    "StackName": "app",
    "StackStatus": "UPDATE_ROLLBACK_COMPLETE",
    "CreationTime": datetime(2026, 1, 1, tzinfo=UTC),
    "Parameters": [{"ParameterKey": "Stage", "ParameterValue": "dev"}],
    "Outputs": [{"OutputKey": "QueueTableName", "OutputValue": "Tasks"}],
}


INDEXES: Final = "GlobalSecondaryIndexes"


def without(answer: Any, path: Sequence[str], *, null: bool) -> Any:
    """Return an answer without a field, or with a null there; in every entry of a list on the way."""
    if isinstance(answer, list):
        return [without(each, path, null=null) for each in answer]
    name, *rest = path
    left = {key: value for key, value in answer.items() if key != name}
    if rest:
        return left | {name: without(answer[name], rest, null=null)}
    return left | {name: None} if null else left


def examined(*arguments: str) -> tuple[int, dict[str, tuple[str, str, str]]]:
    """Return the exit status, and the findings by subject."""
    done = CliRunner().invoke(app, ["doctor", "--json", *arguments])
    rows = json.loads(done.stdout)
    return done.exit_code, {row["subject"]: (row["health"], row["text"], row["action"]) for row in rows}


@pytest.fixture
def address(tmp_path: Path) -> str:
    address = f"sqlite:///{tmp_path / 'tasks.db'}"
    with Queue.sql(address) as queue:
        queue.create_table()
    return address


class TestQueue:
    def test_a_healthy_queue(self, address: str) -> None:
        status, found = examined("--queue", address)
        assert status == 0
        assert {health for health, _text, _action in found.values()} == {"ok"}
        assert {"table", "clock", "options", "load", "dead"} <= found.keys()

    def test_people_read_it_as_lines(self, address: str) -> None:
        done = CliRunner().invoke(app, ["doctor", "--queue", address])
        assert done.stdout.splitlines()[-1] == "ok       dead        no dead letters"

    def test_what_operators_did_and_forgot(self, address: str) -> None:
        with Queue.sql(address) as queue:
            queue.put(1)
            queue.fail(queue.claim()[0], error="no")
            queue.pause()
        status, found = examined("--queue", address)
        assert status == 0
        assert found["claims"][0] == "warning"
        assert found["dead"][0] == "warning"
        assert "freshq resume" in found["claims"][2]
        assert found["dead"][1].startswith("1 dead letter, the oldest ")

    def test_an_option_that_contradicts_the_stored_one(self, address: str) -> None:
        with Queue.sql(address) as queue:
            queue.configure(order="fifo")
        status, found = examined("--queue", f"{address}?order=lifo")
        assert status == 1
        assert found["options"][0] == "wrong"

    def test_a_missing_database(self, tmp_path: Path) -> None:
        status, found = examined("--queue", f"sqlite:///{tmp_path / 'none.db'}")
        assert (status, found["store"][0]) == (1, "wrong")

    def test_a_wrong_clock(self, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(doctor, "CLOCK_SECONDS", -1)
        _status, found = examined("--queue", address)
        assert found["clock"][0] == "warning"

    def test_an_old_snapshot(self, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        stats = Stats(oldest_snapshot_seconds=4000, dead_rows=12_345)
        monkeypatch.setattr(Queue, "stats", lambda *_arguments, **_options: stats)
        _status, found = examined("--queue", address)
        assert found["snapshot"][:2] == ("warning", "a transaction of 1 h 6 min keeps 12,345 dead rows")

    def test_an_overload(self, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(doctor, "OVERLOAD_RATIO", -1)
        _status, found = examined("--queue", address)
        assert found["load"][0] == "warning"


class TestDynamoDB:
    @pytest.fixture
    def client(self, account_client: DynamoDBClient, monkeypatch: pytest.MonkeyPatch) -> DynamoDBClient:
        monkeypatch.setattr(store, "default_client", lambda: account_client)
        Queue.dynamodb("Tasks", account_client).create_table()
        return account_client

    def test_a_table_for_trials(self, client: DynamoDBClient) -> None:
        status, found = examined("--queue", "dynamodb://Tasks")
        assert status == 0
        assert found["table"][:2] == ("ok", "Tasks and its indexes are ACTIVE")
        assert found["ttl"][0] == "ok"
        assert (found["backups"][0], found["deletion"][0]) == ("warning", "warning")
        client.update_continuous_backups(
            TableName="Tasks", PointInTimeRecoverySpecification={"PointInTimeRecoveryEnabled": True}
        )
        client.update_table(TableName="Tasks", DeletionProtectionEnabled=True)
        _status, found = examined("--queue", "dynamodb://Tasks")
        assert (found["backups"][0], found["deletion"][0]) == ("ok", "ok")

    def test_a_restored_table_without_ttl(self, client: DynamoDBClient) -> None:
        client.update_time_to_live(
            TableName="Tasks", TimeToLiveSpecification={"Enabled": False, "AttributeName": TTL_ATTRIBUTE}
        )
        status, found = examined("--queue", "dynamodb://Tasks")
        assert (status, found["ttl"][0]) == (1, "wrong")

    def test_a_missing_index(self, client: DynamoDBClient) -> None:
        index = "due-index"
        client.update_table(TableName="Tasks", GlobalSecondaryIndexUpdates=[{"Delete": {"IndexName": index}}])
        (finding,) = [each for each in table.examine_table(client, "Tasks") if each.subject == "table"]
        assert (finding.health, finding.text) == (Health.WRONG, f"Tasks has no index {index}")

    def test_an_index_without_the_deadlines(self, client: DynamoDBClient) -> None:
        definition: Any = table_definition("other")
        definition["GlobalSecondaryIndexes"][0]["Projection"] = {"ProjectionType": "KEYS_ONLY"}
        client.create_table(**definition)
        (finding,) = [each for each in table.examine_table(client, "other") if each.subject == "table"]
        assert finding.health is Health.WRONG
        assert finding.text == f"the index {STATUS_INDEX} of other lacks the attribute deadline"

    def test_what_it_may_not_ask(self, client: DynamoDBClient, monkeypatch: pytest.MonkeyPatch) -> None:
        denied = ClientError({"Error": {"Code": "AccessDeniedException", "Message": "not you"}}, "Describe")

        def refuse(**_arguments: object) -> None:
            raise denied

        monkeypatch.setattr(client, "describe_continuous_backups", refuse)
        status, found = examined("--queue", "dynamodb://Tasks")
        assert (status, found["backups"][:2]) == (0, ("unknown", "not you"))

    @pytest.mark.parametrize(
        ("call", "path"),
        [
            ("describe_table", ("Table", "GlobalSecondaryIndexes", "IndexStatus")),
            ("describe_table", ("Table", "GlobalSecondaryIndexes", "Projection")),
            ("describe_table", ("Table", "GlobalSecondaryIndexes", "KeySchema")),
            ("describe_table", ("Table", "GlobalSecondaryIndexes")),
            ("describe_table", ("Table", "TableStatus")),
            ("describe_table", ("Table", "TableName")),
            ("describe_table", ("Table", "KeySchema")),
            ("describe_table", ("Table", "AttributeDefinitions")),
            ("describe_table", ("Table", "TableSizeBytes")),
            ("describe_table", ("Table", "BillingModeSummary")),
            ("describe_table", ("Table",)),
            ("describe_time_to_live", ("TimeToLiveDescription", "TimeToLiveStatus")),
            ("describe_time_to_live", ("TimeToLiveDescription",)),
            (
                "describe_continuous_backups",
                (
                    "ContinuousBackupsDescription",
                    "PointInTimeRecoveryDescription",
                    "PointInTimeRecoveryStatus",
                ),
            ),
            (
                "describe_continuous_backups",
                ("ContinuousBackupsDescription", "PointInTimeRecoveryDescription"),
            ),
            ("describe_continuous_backups", ("ContinuousBackupsDescription",)),
        ],
    )
    @pytest.mark.parametrize("null", [False, True])
    def test_an_answer_that_lacks_a_field(
        self,
        client: DynamoDBClient,
        monkeypatch: pytest.MonkeyPatch,
        call: str,
        path: tuple[str, ...],
        *,
        null: bool,
    ) -> None:
        """Other implementations have fewer fields, and so has a table while it is deleted."""
        whole = getattr(client, call)
        monkeypatch.setattr(client, call, lambda **given: without(whole(**given), path, null=null))
        _status, found = examined("--queue", "dynamodb://Tasks")
        assert "store" not in found
        assert {"table", "ttl", "backups", "clock", "dead"} <= found.keys()

    def test_a_call_that_the_implementation_does_not_have(
        self, client: DynamoDBClient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        answer: Any = {"Error": {"Code": "501", "Message": "no such thing"}}
        unknown = ClientError(answer | {"ResponseMetadata": {"HTTPStatusCode": 501}}, "Describe")

        def fail(**_arguments: object) -> None:
            raise unknown

        monkeypatch.setattr(client, "describe_continuous_backups", fail)
        status, found = examined("--queue", "dynamodb://Tasks")
        assert (status, found["backups"][:2]) == (0, ("unknown", "no such thing"))

    @pytest.mark.parametrize("state", ["CREATING", "DELETING", "ARCHIVED"])
    def test_a_table_that_cannot_be_used(
        self, client: DynamoDBClient, monkeypatch: pytest.MonkeyPatch, state: str
    ) -> None:
        found: Any = client.describe_table(TableName="Tasks")["Table"]
        answer: Any = {"Table": {"TableName": "Tasks", "TableStatus": state, INDEXES: found[INDEXES]}}
        monkeypatch.setattr(client, "describe_table", lambda **_given: answer)
        (finding,) = [each for each in table.examine_table(client, "Tasks") if each.subject == "table"]
        assert (finding.health, state in finding.text) == (Health.WARNING, True)

    def test_other_errors_are_errors(self, client: DynamoDBClient, monkeypatch: pytest.MonkeyPatch) -> None:
        failed = ClientError({"Error": {"Code": "InternalServerError", "Message": "sorry"}}, "Describe")

        def fail(**_arguments: object) -> None:
            raise failed

        monkeypatch.setattr(client, "describe_time_to_live", fail)
        status, found = examined("--queue", "dynamodb://Tasks")
        assert (status, found["store"][0]) == (1, "wrong")

    @pytest.fixture
    def stacks(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stubber]:
        stub = boto3.client("cloudformation")
        other = stacks_module.client_of
        for module in (stacks_module, doctor):
            monkeypatch.setattr(
                module, "client_of", lambda name: stub if name == "cloudformation" else other(name)
            )
        with Stubber(stub) as stubber:
            yield stubber

    def test_a_stack(self, client: DynamoDBClient, stacks: Stubber, monkeypatch: pytest.MonkeyPatch) -> None:
        del client  # the table of the stack
        for _ in range(2):
            stacks.add_response("describe_stacks", {"Stacks": [STACK]}, {"StackName": "app"})
        alarm = {"AlarmName": "app-ShedRatioAlarm-1", "AlarmDescription": "More is shed."}
        monkeypatch.setattr(doctor, "_alarms", lambda _stack: [alarm])
        done = CliRunner().invoke(app, ["doctor", "--stack", "app"])
        assert done.exit_code == 1
        assert "warning  stack     app is UPDATE_ROLLBACK_COMPLETE" in done.stdout
        assert "wrong    alarm     app-ShedRatioAlarm-1: More is shed." in done.stdout

    @pytest.mark.parametrize(
        ("given", "problem"),
        [
            ({}, None),
            ({"TimeoutSeconds": "120", "ReservedConcurrency": "0", "RunnerEnvironment": "{}"}, None),
            ({"VpcSubnetIds": "subnet-1", "VpcSecurityGroupIds": "sg-1", "SnapStart": "on"}, None),
            ({"TimeoutSeconds": "45"}, "settle_seconds: 60 leave no time"),
            ({"ReservedConcurrency": "1"}, "ReservedConcurrency: "),
            ({"RunnerEnvironment": '{"AWS_\\u0052EGION": "x"}'}, "RunnerEnvironment: variable 'AWS_REGION'"),
            ({"RunnerEnvironment": "{"}, "RunnerEnvironment: is not JSON"),
            ({"RunnerEnvironment": '{"A": 1}'}, "RunnerEnvironment: must be a JSON object of strings"),
            ({"VpcSubnetIds": "subnet-1"}, "VpcSubnetIds, VpcSecurityGroupIds: "),
            (
                {"AttachTable": "A", "AttachStreamArn": "arn:aws:dynamodb:x:1:table/B/stream/1"},
                "AttachStream",
            ),
            ({"SnapStart": "on", "Runtime": "python3.11"}, "SnapStart: "),
        ],
    )
    def test_parameters_that_cannot_work(
        self, client: DynamoDBClient, given: dict[str, str], problem: str | None
    ) -> None:
        queue = Queue.dynamodb("Tasks", client)
        configure_stack(queue, settle_seconds=60, worker_passes=2)
        parameters = {stacks_module._snake_case(name): value for name, value in given.items()}
        stack = stacks_module.Stack("app", "CREATE_COMPLETE", {}, parameters)
        (found,) = doctor._of_parameters(stack, queue)
        assert found.health is (Health.OK if problem is None else Health.WRONG)
        assert found.text.startswith(problem or "they fit")

    def test_a_stack_is_not_configured_so_that_no_pass_has_time(
        self, client: DynamoDBClient, stacks: Stubber
    ) -> None:
        parameters = [{"ParameterKey": "TimeoutSeconds", "ParameterValue": "60"}]
        for _ in range(2):
            answer = {"Stacks": [STACK | {"Parameters": parameters}]}
            stacks.add_response("describe_stacks", answer, {"StackName": "app"})
        done = CliRunner().invoke(app, ["configure", "--stack", "app", "--settle-seconds", "60"])
        assert (done.exit_code, "TimeoutSeconds is 60" in done.output) == (2, True)
        assert stored_pass_options(Queue.dynamodb("Tasks", client)) == {}

    @pytest.mark.parametrize(
        ("answer", "health"),
        [
            ({"StackPolicyBody": '{"Resource": "LogicalResourceId/QueueTable"}'}, "ok"),
            ({}, "warning"),
            (None, "unknown"),
        ],
    )
    def test_a_stack_in_production_has_a_policy(
        self, stacks: Stubber, answer: dict[str, str] | None, health: str
    ) -> None:
        if answer is None:
            stacks.add_client_error("get_stack_policy", "AccessDenied", "not authorized")
        else:
            stacks.add_response("get_stack_policy", answer, {"StackName": "app"})
        (found,) = doctor._of_protection("app")
        assert (found.health, found.subject) == (health, "policy")

    def test_alarms_are_those_of_the_stack_that_stand(self, client: DynamoDBClient) -> None:
        del client  # moto answers
        cloudwatch = boto3.client("cloudwatch")
        for name in ("app-A", "app-B", "other-A"):
            cloudwatch.put_metric_alarm(
                AlarmName=name,
                MetricName="Errors",
                Namespace="AWS/Lambda",
                Statistic="Sum",
                Period=60,
                EvaluationPeriods=1,
                Threshold=1,
                ComparisonOperator="GreaterThanThreshold",
            )
        for name in ("app-B", "other-A"):
            cloudwatch.set_alarm_state(AlarmName=name, StateValue="ALARM", StateReason="test")
        assert [alarm["AlarmName"] for alarm in doctor._alarms("app")] == ["app-B"]
