"""A program whose user may use single tables only: those that docs/sql.md lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from freshq import Queue, TableMissing
from freshq.stores.sql import SqlStore
from freshq.stores.sql.engine import open_engine
from freshq.stores.sql.history import keeper

if TYPE_CHECKING:
    from collections.abc import Iterator

    import sqlalchemy as sa

    from tests.conftest import Clock

USER: Final = "app"
TABLES: Final = ("tasks", "tasks_records", "tasks_counts")
GRANT: Final = "GRANT SELECT, INSERT, UPDATE, DELETE ON"
# For each database: statements that make the user, and that remove it.
MAKE: Final = {"postgresql": "CREATE ROLE app LOGIN", "mysql": "CREATE USER app@'127.0.0.1'"}
REMOVE: Final = {
    "postgresql": ("DROP OWNED BY app", "DROP ROLE app"),
    "mysql": ("DROP USER app@'127.0.0.1'",),
}


@pytest.fixture(params=["postgres", "mariadb"])
def engine(request: pytest.FixtureRequest) -> sa.Engine:
    """Return an engine of the owner of the tables, on empty tables."""
    engine: sa.Engine = request.getfixturevalue(f"{request.param}_engine")
    return engine


@pytest.fixture
def role(engine: sa.Engine) -> Iterator[sa.Engine]:
    """Return an engine of a user with grants on the tables of the queue, and on nothing else."""
    kind = "postgresql" if engine.dialect.name == "postgresql" else "mysql"
    grantee = USER if kind == "postgresql" else f"{USER}@'127.0.0.1'"
    with engine.begin() as connection:
        connection.exec_driver_sql(MAKE[kind])
        for table in TABLES:
            connection.exec_driver_sql(f"{GRANT} {table} TO {grantee}")
    opened = open_engine(engine.url.set(username=USER))
    yield opened
    opened.dispose()
    with engine.begin() as connection:
        for statement in REMOVE[kind]:
            connection.exec_driver_sql(statement)


@pytest.fixture
def queue(role: sa.Engine, clock: Clock) -> Queue:
    return Queue(SqlStore(role, queue="default"), clock=clock)


def test_a_task_lives_without_rights_to_the_tables_of_histories(
    queue: Queue, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    queue.put("x", "a")
    queue.complete(queue.claim()[0])
    for _ in range(2):
        assert queue.claim() == []
        queue.recover()
        clock.advance(2 * keeper.LOOK_SECONDS)
    assert queue.stats().success == 1
    told = [record for record in caplog.records if record.name == keeper.__name__]
    assert len(told) == 1
    assert "docs/sql.md" in told[0].getMessage()


def test_another_error_is_no_missing_right(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE tasks_histories RENAME TO elsewhere")
    try:
        with pytest.raises(TableMissing):
            SqlStore(engine).history.prune("default", 0, 10)
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE elsewhere RENAME TO tasks_histories")
