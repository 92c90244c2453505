"""Stores for the dashboard, and queues in many states."""

import pytest

from freshq.stores.memory import MemoryStore
from freshq.stores.sql import SqlStore
from tests.conftest import StoreUnderTest

MAX_AGE_SECONDS = 10.0


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest) -> StoreUnderTest:
    """Return an empty store, in memory or in SQLite; the contract tests cover the other stores."""
    if request.param == "memory":
        memory = MemoryStore()
        return StoreUnderTest("memory", lambda _shards: memory)
    engine = request.getfixturevalue("sqlite_engine")
    return StoreUnderTest("sqlite", lambda _shards: SqlStore(engine))
