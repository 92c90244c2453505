"""Fixtures of the SQL store's tests, apart from the databases."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from freshq import Queue
from freshq.policy.retry import Backoff, CallRetry
from freshq.stores.sql import SqlStore, database
from tests.conftest import DATABASES, StoreUnderTest

EFFECTS = sa.Table("effects", sa.MetaData(), sa.Column("name", sa.String(100), primary_key=True))


@pytest.fixture(params=DATABASES)
def engine(request: pytest.FixtureRequest) -> sa.Engine:
    """Return an engine of each database, on empty tables."""
    engine: sa.Engine = request.getfixturevalue(f"{request.param}_engine")
    return engine


@pytest.fixture
def store(engine: sa.Engine) -> StoreUnderTest:
    """Return an empty store of each database."""
    return StoreUnderTest(engine.dialect.name, lambda _shards: SqlStore(engine))


@pytest.fixture
def queue(store: StoreUnderTest) -> Queue:
    return store.queue()


@pytest.fixture
def effects(engine: sa.Engine) -> Iterator[sa.Engine]:
    """Return the engine, with a table for what handlers write."""
    EFFECTS.create(engine)
    yield engine
    EFFECTS.drop(engine)


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeat failed calls as often as usual, but without pauses."""
    retry = CallRetry(max_tries=5, backoff=Backoff(base_seconds=0.01, cap_seconds=0.01))
    monkeypatch.setattr(database, "CALL_RETRY", retry)


def write(connection: sa.Connection, name: str) -> None:
    """Do a handler's work: write a row."""
    connection.execute(EFFECTS.insert().values(name=name))


def written(engine: sa.Engine) -> list[str]:
    """Return what handlers wrote, and committed."""
    with engine.connect() as connection:
        return sorted(connection.execute(sa.select(EFFECTS.c.name)).scalars())
