"""Fixtures of the contract tests, apart from the stores."""

import pytest
from types_boto3_dynamodb import DynamoDBClient

from freshq.matching.stores.dynamodb import DynamoDBMatchStore
from freshq.stores.dynamodb import line_records
from tests.conftest import DATABASES, StoreUnderTest, on_table
from tests.support.attached import Shipments
from tests.support.matching import Desk, emptied_resources


@pytest.fixture
def client(dynamodb_local: DynamoDBClient) -> DynamoDBClient:
    """Return a client of DynamoDB Local."""
    return dynamodb_local


@pytest.fixture
def table(client: DynamoDBClient) -> StoreUnderTest:
    """Return an empty store on a table of DynamoDB."""
    return on_table("dynamodb_local", client)


@pytest.fixture
def shipments(client: DynamoDBClient) -> Shipments:
    """Return an attached table with three records, A, B and C."""
    table = Shipments(client)
    table.create_attached()
    table.add("A", "B", "C")
    return table


def make_table(desk: Desk) -> None:
    """Create the table of a desk; its first queue stores the options, because it is new."""
    DynamoDBMatchStore(desk.table, desk.client).create_table()


@pytest.fixture(params=["memory", "dynamodb_local", *DATABASES])
def desk(request: pytest.FixtureRequest) -> Desk:
    """Return an empty store of resources of each kind."""
    if request.param == "memory":
        return Desk()
    if request.param in DATABASES:
        return Desk(engine=emptied_resources(request.getfixturevalue(f"{request.param}_engine")))
    desk = Desk(client=request.getfixturevalue("dynamodb_local"))
    make_table(desk)
    return desk


@pytest.fixture
def table_desk(dynamodb_local: DynamoDBClient) -> Desk:
    """Return an empty store of resources on DynamoDB Local."""
    desk = Desk(client=dynamodb_local)
    make_table(desk)
    return desk


@pytest.fixture
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a process read the control record and the list of lines once, however slow this machine is."""
    monkeypatch.setattr(line_records, "MAX_STALENESS_SECONDS", 3600.0)
    monkeypatch.setattr(line_records, "LIST_SECONDS", 3600.0)
