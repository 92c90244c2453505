"""A table of the application that has the name of one of freshq's is neither changed nor deleted."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner
from types_boto3_dynamodb import DynamoDBClient

from freshq import Queue, StoreError
from freshq.cli.main import app
from freshq.matching.stores.sql import SqlMatchStore
from freshq.queue.core import core_of
from freshq.stores.dynamodb.store import DynamoDBStore
from freshq.stores.sql import SqlStore
from tests.conftest import DATABASES

run = CliRunner().invoke
REFUSAL = "it is not freshq's"
NAME = "todo"


@pytest.fixture(params=DATABASES)
def engine(request: pytest.FixtureRequest) -> Iterator[sa.Engine]:
    """Return an engine on a database where the application has a table of its own."""
    engine: sa.Engine = request.getfixturevalue(f"{request.param}_engine")
    todo = sa.Table(
        NAME,
        sa.MetaData(),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("title", sa.String(80), nullable=False),
        sa.Column("status", sa.String(20)),
    )
    todo.create(engine)
    with engine.begin() as connection:
        connection.execute(todo.insert().values(id=1, title="buy milk"))
    yield engine
    todo.drop(engine)


def tables(engine: sa.Engine) -> dict[str, list[Any]]:
    inspector = sa.inspect(engine)
    return {
        name: [str(column) for column in inspector.get_columns(name)] for name in inspector.get_table_names()
    }


@pytest.mark.parametrize("store_class", [SqlStore, SqlMatchStore])
def test_create_table_refuses_it_and_writes_nothing(engine: sa.Engine, store_class: Any) -> None:
    before = tables(engine)
    with pytest.raises(StoreError, match=REFUSAL):
        store_class(engine, NAME).create_table()
    assert tables(engine) == before


def test_delete_table_refuses_it(engine: sa.Engine) -> None:
    before = tables(engine)
    with pytest.raises(StoreError, match=REFUSAL):
        SqlMatchStore(engine, NAME).delete_table()
    assert tables(engine) == before


def test_a_put_a_read_and_the_doctor_say_whose_table_it_is(engine: sa.Engine) -> None:
    queue = Queue(SqlStore(engine, NAME))
    for verb in (lambda: queue.put(1), lambda: queue.get("a"), lambda: [*core_of(queue).store.examine()]):
        with pytest.raises(StoreError, match=f"table 'todo': {REFUSAL}.*#TABLE"):
            verb()


def test_a_table_that_any_part_of_the_store_needs(engine: sa.Engine) -> None:
    """For example, a table named like freshq's shared records."""
    records = sa.Table("mail_records", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))
    records.create(engine)
    before = tables(engine)
    try:
        with pytest.raises(StoreError, match=f"table 'mail_records': {REFUSAL}"):
            SqlStore(engine, "mail").create_table()
        assert tables(engine) == before
    finally:
        records.drop(engine)


@pytest.mark.parametrize(
    ("columns", "value"),
    [
        ({"version": sa.String(80)}, "20240101-begin"),
        ({"version": sa.String(80), "name": sa.String(80)}, "20240101-begin"),
        ({"id": sa.Integer()}, 1),
    ],
)
def test_migrations_of_the_application(engine: sa.Engine, columns: dict[str, Any], value: object) -> None:
    """They may have versions that are text."""
    migrations = sa.Table(
        "mail_migrations", sa.MetaData(), *(sa.Column(*column) for column in columns.items())
    )
    migrations.create(engine)
    before = tables(engine)
    try:
        with engine.begin() as connection:
            connection.execute(migrations.insert().values({next(iter(columns)): value}))
        with pytest.raises(StoreError, match=f"'mail_migrations': {REFUSAL}"):
            SqlStore(engine, "mail").create_table()
        assert tables(engine) == before
    finally:
        migrations.drop(engine)


@pytest.mark.parametrize("part", ["records", "histories", "history"])
def test_tables_of_lives(engine: sa.Engine, part: str) -> None:
    """Foreign tables in place of the history of resources are also refused before any change."""
    store = SqlMatchStore(engine, "desks")
    store.create_table()
    owned = tables(engine)
    lives = sa.Table(f"desks_lives_{part}", sa.MetaData(), sa.Column("mine", sa.Integer, primary_key=True))
    lives.drop(engine)
    lives.create(engine)
    before = tables(engine)
    try:
        for verb in (store.create_table, store.delete_table):
            with pytest.raises(StoreError, match=f"table 'desks_lives_{part}': {REFUSAL}"):
                verb()
            assert tables(engine) == before
    finally:
        lives.drop(engine)
        store.create_table()
        assert tables(engine) == owned
        store.delete_table()


def test_commands_refuse_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/app.db"
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for name in ("tasks", "resources"):
            connection.execute(sa.text(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, title TEXT)"))
    before = tables(engine)
    for command in (
        ["table", "create", url],
        ["table", "create", url],
        ["match", "create", "--queue", url],
        ["put", "1", "--queue", url],
    ):
        answer = run(app, command)
        assert (answer.exit_code, REFUSAL in answer.output, "older" in answer.output) == (3, True, False)
    assert tables(engine) == before
    engine.dispose()


@pytest.mark.parametrize("key", ["userId", "taskId"])
def test_a_table_of_dynamodb_keeps_its_items(dynamodb_local: DynamoDBClient, key: str) -> None:
    """TTL is not turned on, which would delete items that have an attribute of this name."""
    table = f"users-{uuid.uuid4().hex}"
    dynamodb_local.create_table(
        TableName=table,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"}],
        KeySchema=[{"AttributeName": key, "KeyType": "HASH"}],
    )
    with pytest.raises(StoreError, match=REFUSAL):
        DynamoDBStore(table, dynamodb_local).create_table()
    found = dynamodb_local.describe_time_to_live(TableName=table)["TimeToLiveDescription"]
    assert found.get("TimeToLiveStatus") == "DISABLED"
