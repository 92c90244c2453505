"""Tables from a description, and `freshq table attach`, by the command line."""

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from types_boto3_dynamodb import DynamoDBClient

from freshq import Queue
from freshq.cli.main import app
from freshq.errors import IllegalTransition
from freshq.stores.dynamodb.table import read_description

run = CliRunner().invoke
ATTACH = ["table", "attach", "Shipments", "--key", "id"]
# As in the article, with a local index and both capacities of each kind.
ARTICLE: dict[str, Any] = {
    "version": "1.0",
    "last_updated_date": "2020-01-01",
    "s3_code_bucket": "code",
    "tables": [
        {
            "logical_name": "Shipment",
            "table_name": "shipment-demo",
            "read_capacity": 100,
            "write_capacity": 0,
            "partition_key": {"attribute_name": "id", "attribute_type": "string"},
            "sort_key": {"attribute_name": "at", "attribute_type": "number"},
            "indexes": [
                {
                    "index_name": "queued-index",
                    "hash_key": {"attribute_name": "queued", "attribute_type": "numeric"},
                    "sort_key": {"attribute_name": "stamp", "attribute_type": "binary"},
                    "read_capacity": 10,
                    "write_capacity": 20,
                    "GSI": True,
                },
                {
                    "index_name": "local-index",
                    "hash_key": {"attribute_name": "id", "attribute_type": "string"},
                    "sort_key": {"attribute_name": "stamp", "attribute_type": "binary"},
                    "GSI": False,
                    "projection": {"type": "INCLUDE", "attributes": ["status"]},
                },
            ],
        }
    ],
    "lambdas": [{"logical_name": "Peek", "runtime": "java8", "memory_megabytes": 512}],
}


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., str]:
    """Return a function that writes the article's description, changed, and returns the file's name."""

    def write(change: Callable[[dict[str, Any]], object] = lambda _table: None) -> str:
        description = copy.deepcopy(ARTICLE)
        change(description["tables"][0])
        path = tmp_path / "queue.json"
        path.write_text(json.dumps(description))
        return str(path)

    return write


def described(client: DynamoDBClient) -> dict[str, Any]:
    return dict(client.describe_table(TableName="shipment-demo")["Table"])


def test_every_type_and_kind_of_index_becomes_what_it_says(
    account_client: DynamoDBClient, written: Callable[..., str]
) -> None:
    answer = run(app, ["table", "create", written()])
    assert answer.exit_code == 0, answer.output
    assert "not created by this command: 1 lambdas" in answer.output
    table = described(account_client)
    types = {entry["AttributeName"]: entry["AttributeType"] for entry in table["AttributeDefinitions"]}
    assert types == {"id": "S", "at": "N", "queued": "N", "stamp": "B"}
    assert table["ProvisionedThroughput"]["ReadCapacityUnits"] == 100
    assert table["ProvisionedThroughput"]["WriteCapacityUnits"] == 5
    (shared,), (local,) = table["GlobalSecondaryIndexes"], table["LocalSecondaryIndexes"]
    assert [key["AttributeName"] for key in shared["KeySchema"]] == ["queued", "stamp"]
    assert shared["ProvisionedThroughput"]["WriteCapacityUnits"] == 20
    assert shared["Projection"]["ProjectionType"] == "ALL"
    assert local["Projection"]["NonKeyAttributes"] == ["status"]


def test_a_dry_run_prints_the_plan_and_changes_nothing(
    account_client: DynamoDBClient, written: Callable[..., str]
) -> None:
    answer = run(app, ["table", "create", written(), "--dry-run"])
    assert answer.exit_code == 0
    assert "create table shipment-demo (provisioned)" in answer.output
    assert account_client.list_tables()["TableNames"] == []


def test_applied_again_it_adds_what_is_new_and_keeps_the_rest(
    account_client: DynamoDBClient, written: Callable[..., str]
) -> None:
    run(app, ["table", "create", written()])
    again = run(app, ["table", "create", written()])
    assert "shipment-demo is as described" in again.output

    def other_index(table: dict[str, Any]) -> None:
        table["indexes"][0]["index_name"] = "second-index"
        table["billing"] = "on_demand"

    answer = run(app, ["table", "create", written(other_index)])
    assert answer.exit_code == 0, answer.output
    assert "add index second-index" in answer.output
    assert "kept, not described: index queued-index" in answer.output
    table = described(account_client)
    assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    assert {index["IndexName"] for index in table["GlobalSecondaryIndexes"]} == {
        "queued-index",
        "second-index",
    }


def test_a_table_on_dynamodb_local(
    dynamodb_local: DynamoDBClient, written: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("freshq.stores.dynamodb.calls.default_client", lambda: dynamodb_local)
    assert run(app, ["table", "create", written()]).exit_code == 0

    def more_units(table: dict[str, Any]) -> None:
        table["read_capacity"] = 50

    answer = run(app, ["table", "create", written(more_units)])
    assert answer.exit_code == 0, answer.output
    assert described(dynamodb_local)["ProvisionedThroughput"]["ReadCapacityUnits"] == 50
    dynamodb_local.delete_table(TableName="shipment-demo")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda t: t.update(tablename="x"), "tables.0.tablename: unknown field; use one of logical_name"),
        (lambda t: t.pop("partition_key"), "tables.0.partition_key: field required"),
        (
            lambda t: t["partition_key"].update(attribute_type="nmber"),
            "tables.0.partition_key.attribute_type",
        ),
        (lambda t: t["indexes"][0].update(GSI="yes"), "tables.0.indexes.0.GSI"),
        (
            lambda t: t["indexes"][0].update(keys=1),
            "tables.0.indexes.0.keys: unknown field",
        ),
        (lambda t: t["indexes"][0].update(projection={"type": "INCLUDE"}), "tables.0.indexes.0.projection"),
        (lambda t: t["indexes"][1].pop("sort_key"), "tables.0: indexes.1: with GSI false"),
        (
            lambda t: t["indexes"][1]["sort_key"].update(attribute_type="number"),
            "tables.0: attribute 'stamp' is a key of type B and of type N",
        ),
        (lambda t: t.update(read_capacity="100"), "tables.0.read_capacity"),
        (lambda t: t.update(billing="free"), "tables.0.billing"),
        (
            lambda t: t["indexes"].append(t["indexes"][0]),
            "tables.0: indexes: 'queued-index' is given",
        ),
    ],
)
def test_an_error_names_the_path_and_nothing_is_made(
    account_client: DynamoDBClient, written: Callable[..., str], change: Any, problem: str
) -> None:
    answer = run(app, ["table", "create", written(change)])
    assert answer.exit_code == 2
    assert problem in answer.output
    assert len(answer.output.strip().splitlines()) == 1
    assert account_client.list_tables()["TableNames"] == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda t: t["sort_key"].update(attribute_name="when"), "keys cannot change"),
        (lambda t: t["sort_key"].update(attribute_type="string"), "'at' .* is of type N, not S"),
        (lambda t: t["indexes"][0].update(projection={"type": "KEYS_ONLY"}), "'queued-index': has keys"),
        (
            lambda t: t["indexes"][1].update(index_name="local-two"),
            "local index can only be created with its table",
        ),
    ],
)
def test_what_cannot_change_is_refused_before_anything_is_changed(
    account_client: DynamoDBClient, written: Callable[..., str], change: Any, problem: str
) -> None:
    run(app, ["table", "create", written()])
    before = described(account_client)
    answer = run(app, ["table", "create", written(change)])
    assert answer.exit_code == 2
    assert answer.output.startswith("freshq: tables.0")
    assert re.search(problem, answer.output)
    assert described(account_client) == before


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    missing = run(app, ["table", "create", str(tmp_path / "none.json")])
    assert (missing.exit_code, "none.json" in missing.output) == (2, True)
    broken = tmp_path / "broken.json"
    broken.write_text('{"tables": [], "tables": []}')
    answer = run(app, ["table", "create", str(broken)])
    assert (answer.exit_code, "'tables' is given 2 times" in answer.output) == (2, True)
    broken.write_text("[]")
    answer = run(app, ["table", "create", str(broken)])
    assert f"{broken}: input: input should be a valid dictionary" in answer.output
    assert ", got" not in answer.output


def test_the_cloudformation_template_declares_the_same(written: Callable[..., str], tmp_path: Path) -> None:
    answer = run(app, ["table", "create", written(), "--cloudformation"])
    resource = json.loads(answer.output)["Resources"]["Shipment"]
    assert (resource["Type"], resource["DeletionPolicy"]) == ("AWS::DynamoDB::Table", "Retain")
    definition = read_description(tmp_path / "queue.json").tables[0].definition()
    properties = resource["Properties"]
    assert properties.pop("SSESpecification") == {"SSEEnabled": True}
    assert properties == {name: value for name, value in definition.items() if name != "SSESpecification"}


def test_on_demand_has_no_capacities(written: Callable[..., str], tmp_path: Path) -> None:
    written(lambda table: table.update(billing="on_demand"))
    definition = read_description(tmp_path / "queue.json").tables[0].definition()
    assert definition["BillingMode"] == "PAY_PER_REQUEST"
    assert "ProvisionedThroughput" not in json.dumps(definition)


class TestAttach:
    @pytest.fixture(autouse=True)
    def _table(self, account_client: DynamoDBClient) -> None:
        account_client.create_table(
            TableName="Shipments",
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            BillingMode="PAY_PER_REQUEST",
        )
        account_client.put_item(TableName="Shipments", Item={"id": {"S": "A"}})

    def test_attach_and_queue(self, account_client: DynamoDBClient) -> None:
        dry = run(app, [*ATTACH, "--order", "fifo", "--dry-run"])
        assert dry.exit_code == 0
        assert "to add: index freshq-due-index" in dry.output
        assert "about 5.25 write units" in dry.output
        assert not account_client.describe_table(TableName="Shipments")["Table"].get("GlobalSecondaryIndexes")
        answer = run(app, [*ATTACH, "--order", "fifo"])
        assert answer.exit_code == 0, answer.output
        again = run(app, ATTACH)
        assert "exists: index freshq-due-index" in again.output
        queue = Queue.dynamodb("Shipments", account_client, attach=True, key="id")
        queue.put(task_id="A")
        assert queue.claim()[0].task.payload == {"id": "A"}

    def test_by_an_attribute(self, account_client: DynamoDBClient) -> None:
        by_price = [*ATTACH, "--order-by", "price", "--order", "descending"]
        answer = run(app, by_price)
        assert answer.exit_code == 0, answer.output
        assert "to write: the attach record (by price, descending, 1 shards)" in answer.output
        prices = {"B": "12", "C": "3", "D": "100"}
        for name, price in prices.items():
            account_client.put_item(TableName="Shipments", Item={"id": {"S": name}, "price": {"N": price}})
        queue = Queue.dynamodb("Shipments", account_client, attach=True, key="id")
        queue.put_many({"task_id": name} for name in prices)
        assert [claim.task.task_id for claim in queue.claim(limit=3)] == ["D", "B", "C"]
        with pytest.raises(IllegalTransition):
            queue.put(task_id="A")
        for other in (by_price[:5], [*by_price[:7], "--order-type", "text"]):
            again = run(app, other)
            assert again.exit_code == 2
            assert "order_by: table 'Shipments' was attached by 'price' (N)" in again.output

    @pytest.mark.parametrize(
        ("options", "problem"),
        [
            (["--order", "ascending"], "order: without --order-by it must be one of fifo, lifo, got"),
            (
                ["--order-by", "price", "--order", "fifo"],
                "order: with --order-by it must be one of ascending, descending",
            ),
            (["--order-by", "freshq_deadline"], "order_by: must be the name of an attribute of the records"),
            (["--order-by", ""], "order_by: must be the name"),
            (["--order-type", "text"], "order_type: only with --order-by"),
        ],
    )
    def test_wrong_orders_are_refused(self, options: list[str], problem: str) -> None:
        answer = run(app, [*ATTACH, *options])
        assert answer.exit_code == 2
        assert problem in answer.output

    def test_with_a_stream(self, account_client: DynamoDBClient) -> None:
        arguments = [*ATTACH, "--stream"]
        dry = run(app, [*arguments, "--dry-run"])
        assert "to enable: the change stream" in dry.output
        assert "LatestStreamArn" not in account_client.describe_table(TableName="Shipments")["Table"]
        answer = run(app, arguments)
        assert answer.exit_code == 0, answer.output
        arn = account_client.describe_table(TableName="Shipments")["Table"]["LatestStreamArn"]
        assert f"Stream: {arn}" in answer.output
        again = run(app, arguments)
        assert f"exists: the stream {arn}" in again.output
        assert again.exit_code == 0

    def test_a_stream_of_another_view_stays(self, account_client: DynamoDBClient) -> None:
        keys_only: Any = {"StreamEnabled": True, "StreamViewType": "KEYS_ONLY"}
        account_client.update_table(TableName="Shipments", StreamSpecification=keys_only)
        answer = run(app, [*ATTACH, "--stream"])
        assert (answer.exit_code, len(answer.output.strip().splitlines())) == (2, 1)
        assert "stream: table 'Shipments' has one with the view KEYS_ONLY" in answer.output
        table = account_client.describe_table(TableName="Shipments")["Table"]
        assert table["StreamSpecification"] == keys_only
        assert not table.get("GlobalSecondaryIndexes")

    def test_the_plan_says_how_ids_are_written(self, account_client: DynamoDBClient) -> None:
        account_client.create_table(
            TableName="Orders",
            AttributeDefinitions=[
                {"AttributeName": "customer", "AttributeType": "N"},
                {"AttributeName": "day", "AttributeType": "S"},
            ],
            KeySchema=[
                {"AttributeName": "customer", "KeyType": "HASH"},
                {"AttributeName": "day", "KeyType": "RANGE"},
            ],
            BillingMode="PAY_PER_REQUEST",
        )
        answer = run(app, ["table", "attach", "Orders", "--key", "customer", "--dry-run"])
        assert answer.exit_code == 0
        assert "The id of a record is CUSTOMER/DAY, a number and text" in answer.output
        assert "the functions of the stack" not in answer.output
        answer = run(app, ["table", "attach", "Orders", "--key", "customer", "--stream", "--dry-run"])
        assert (
            "the hash key 'customer' is of type N; the functions of the stack take only type S"
            in answer.output
        )

    @pytest.mark.parametrize(
        ("arguments", "status", "problem"),
        [
            (["Shipments", "--key", "name"], 2, "hash key of table 'Shipments' is 'id'"),
            (["Nothing", "--key", "id"], 3, "'Nothing'"),
            (["no table", "--key", "id"], 2, "table: must be the name"),
        ],
    )
    def test_wrong_use_is_one_line(self, arguments: list[str], status: int, problem: str) -> None:
        answer = run(app, ["table", "attach", *arguments])
        assert (answer.exit_code, len(answer.output.strip().splitlines())) == (status, 1)
        assert problem in answer.output
