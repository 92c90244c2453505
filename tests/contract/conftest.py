"""What the contract tests share beyond the stores."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conftest import StoreUnderTest, on_table
from tests.support.matching import Desk

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient


@pytest.fixture(params=["moto", "dynamodb_local"])
def client(request: pytest.FixtureRequest) -> DynamoDBClient:
    """Return a client of each implementation of DynamoDB."""
    name = "moto_client" if request.param == "moto" else "dynamodb_local"
    client: DynamoDBClient = request.getfixturevalue(name)
    return client


@pytest.fixture
def table(client: DynamoDBClient, request: pytest.FixtureRequest) -> StoreUnderTest:
    """Return an empty store on a table of each implementation of DynamoDB."""
    return on_table(request.node.callspec.params["client"], client)


@pytest.fixture(params=["memory", "dynamodb_local"])
def desk(request: pytest.FixtureRequest) -> Desk:
    """Return an empty store of resources of each kind."""
    if request.param == "memory":
        return Desk()
    desk = Desk(client=request.getfixturevalue("dynamodb_local"))
    desk.queue().create_table()
    return desk


@pytest.fixture
def table_desk(dynamodb_local: DynamoDBClient) -> Desk:
    """Return an empty store of resources on DynamoDB Local."""
    desk = Desk(client=dynamodb_local)
    desk.queue().create_table()
    return desk
