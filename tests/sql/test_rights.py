"""A program whose user may use single tables only: those that docs/sql.md lists."""

import time
from collections.abc import Iterator
from typing import Final

import pytest
import sqlalchemy as sa

from freshq import Queue
from freshq.errors import TableMissing
from freshq.stores.sql import SqlStore, history
from freshq.stores.sql.database import open_engine
from tests.conftest import Clock
from tests.support.histories import KEPT_SECONDS, keeping, pulled

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


def grantee_of(engine: sa.Engine) -> str:
    """Return the name of the user in a GRANT."""
    return USER if engine.dialect.name == "postgresql" else f"{USER}@'127.0.0.1'"


@pytest.fixture
def role(engine: sa.Engine) -> Iterator[sa.Engine]:
    """Return an engine of a user with grants on the tables of the queue, and on nothing else."""
    kind = "postgresql" if engine.dialect.name == "postgresql" else "mysql"
    grantee = grantee_of(engine)
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
    queue.put("x", task_id="a")
    queue.complete(queue.claim()[0])
    for _ in range(2):
        assert queue.claim() == []
        queue.admin.recover()
        clock.advance(2 * history.CHECK_INTERVAL_SECONDS)
    assert queue.stats().success == 1
    told = [record for record in caplog.records if record.name == history.__name__]
    assert len(told) == 1
    assert "docs/sql.md" in told[0].getMessage()


# Only PostgreSQL's tables have storage parameters.
@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
def test_a_program_that_may_not_change_the_storage_of_the_table(role: sa.Engine, engine: sa.Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE tasks RESET (fillfactor)")
        connection.exec_driver_sql("GRANT SELECT ON tasks_migrations TO app")
    SqlStore(role).create_table()
    assert "fillfactor" not in storage_of(engine)
    SqlStore(engine).create_table()
    assert "fillfactor" in storage_of(engine)


def storage_of(engine: sa.Engine) -> str:
    """Return the storage parameters of the table of tasks."""
    with engine.connect() as connection:
        return str(connection.scalar(sa.text("SELECT reloptions FROM pg_class WHERE relname = 'tasks'")))


def test_its_changes_are_in_the_history(queue: Queue, engine: sa.Engine) -> None:
    owner = keeping(engine)
    try:
        queue.put("x", task_id="a")
        queue.complete(queue.claim()[0])
        queue.purge(confirm="default")
        assert [event["change"] for event in pulled(owner)] == ["INSERT", "MODIFY", "MODIFY", "REMOVE"]
    finally:
        owner.history.end("default")


def test_a_program_that_gives_history_true_and_deletes_old_events(
    role: sa.Engine, engine: sa.Engine, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    owner = keeping(engine)
    grantee = grantee_of(engine)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"GRANT SELECT ON tasks_histories TO {grantee}")
        connection.exec_driver_sql(f"GRANT SELECT, UPDATE, DELETE ON tasks_history TO {grantee}")
    caplog.clear()  # create_table() warns that the server of the tests waits for no disk
    try:
        store = SqlStore(role, queue="default", history_seconds=KEPT_SECONDS)
        Queue(store, clock=clock).put("x")
        assert len(pulled(store)) == 1
        assert store.history.prune("default", time.time() + KEPT_SECONDS + 60, 10) == 1
        assert pulled(owner) == []
        assert caplog.records == []
    finally:
        owner.history.end("default")


# Not on MariaDB: the other databases have no search path.
@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
def test_a_writer_with_another_search_path(engine: sa.Engine, clock: Clock) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE SCHEMA apart")
    try:
        options = {"options": "-c search_path=apart"}
        apart = open_engine(engine.url.update_query_dict(options))
        store = keeping(apart)
        Queue(store, clock=clock).put("x", task_id="a")
        with engine.begin() as connection:
            # A trigger must not mistake the writer's own table for the history's.
            connection.exec_driver_sql("CREATE TEMPORARY TABLE tasks_histories (queue text) ON COMMIT DROP")
            connection.exec_driver_sql("UPDATE apart.tasks SET request_token = 'other'")
        assert [event["change"] for event in pulled(store)] == ["INSERT", "MODIFY"]
        apart.dispose()
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP SCHEMA apart CASCADE")


def test_another_error_is_no_missing_right(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE tasks_histories RENAME TO elsewhere")
    try:
        with pytest.raises(TableMissing):
            SqlStore(engine).history.prune("default", 0, 10)
    finally:
        with engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE elsewhere RENAME TO tasks_histories")
