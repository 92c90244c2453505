"""Fixtures of the databases: each server is started once, its tables are emptied for each test."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import pytest
import sqlalchemy as sa
from local.servers import MariaDB, PgBouncer, Postgres, Server, Unavailable, databases_are_required

from freshq.stores.sql import ConnectionLimits, SqlStore
from freshq.stores.sql.database import open_engine
from freshq.stores.sql.schema import schema
from tests.support.patience import PATIENCE_SECONDS
from tests.support.postgres import answer
from tests.support.readings import within_seconds

S = TypeVar("S", bound=Server)
# A thread or a server that the machine stalls is no outage.
PATIENT: Final = ConnectionLimits(
    connect_timeout_seconds=PATIENCE_SECONDS,
    answer_timeout_seconds=PATIENCE_SECONDS,
    lock_timeout_seconds=PATIENCE_SECONDS,
)


def _running(server: S) -> Iterator[S]:
    try:
        with server:
            yield server
    except Unavailable as missing:
        if databases_are_required():
            raise
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """Return a PostgreSQL; skip visibly if it is not installed."""
    yield from _running(Postgres())


@pytest.fixture
def pgbouncer_engine(postgres_server: Postgres, postgres_engine: sa.Engine) -> Iterator[sa.Engine]:
    """Return an engine on the same empty tables, through PgBouncer."""
    assert postgres_engine.url.port == postgres_server.port
    for server in _running(PgBouncer(postgres_server)):
        engine = open_engine(server.url, PATIENT)
        yield engine
        engine.dispose()


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[Server]:
    """Return a MariaDB; skip visibly if it is not installed."""
    yield from _running(MariaDB())


def _migrated(server: Server) -> Iterator[sa.Engine]:
    engine = open_engine(server.url, PATIENT)
    # While there is a store, others on its tables share its statements.
    with closing(SqlStore(engine)) as store:
        store.create_table()
        yield engine
    engine.dispose()


def emptied(engine: sa.Engine) -> sa.Engine:
    """Return the engine once the tables are empty, which is quicker than new ones."""
    tables = schema("tasks", engine.dialect.name)
    with engine.begin() as connection:
        for table in (tables.tasks, tables.records, tables.counts, tables.histories, tables.history):
            connection.execute(table.delete())
    return engine


@pytest.fixture(scope="session")
def _postgres_tables(postgres_server: Server) -> Iterator[sa.Engine]:
    yield from _migrated(postgres_server)


@pytest.fixture(scope="session")
def _mariadb_tables(mariadb_server: Server) -> Iterator[sa.Engine]:
    yield from _migrated(mariadb_server)


@pytest.fixture
def postgres_engine(_postgres_tables: sa.Engine) -> sa.Engine:
    """Return an engine on empty tables."""
    return emptied(_postgres_tables)


@pytest.fixture
def postgres_at_rest(postgres_server: Postgres, postgres_engine: sa.Engine) -> Iterator[sa.Engine]:
    """Return an engine on empty tables, beside which nothing is vacuumed or analysed.

    Autovacuum changes plans; and while it holds a snapshot, scans read dead entries of an index again.
    """
    assert postgres_engine.url.port == postgres_server.port
    running = "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'autovacuum%'"
    ask = partial(answer, postgres_server)
    ask("ALTER SYSTEM SET autovacuum = off")
    ask("SELECT pg_reload_conf()")
    assert within_seconds(PATIENCE_SECONDS, lambda: ask(running) == 0)
    yield postgres_engine
    ask("ALTER SYSTEM RESET autovacuum")
    ask("SELECT pg_reload_conf()")


@pytest.fixture
def mariadb_engine(_mariadb_tables: sa.Engine) -> sa.Engine:
    """Return an engine on empty tables."""
    return emptied(_mariadb_tables)


@pytest.fixture(scope="session")
def _sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    store = SqlStore(f"sqlite:///{path}")
    store.create_table()
    store.close()
    # While there is a store, others on such tables share its statements.
    with closing(store):
        yield path


@pytest.fixture
def sqlite_url(_sqlite_template: Path, tmp_path: Path) -> str:
    """Return the url of a file with empty tables."""
    path = tmp_path / "tasks.db"
    shutil.copyfile(_sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture
def sqlite_engine(sqlite_url: str) -> Iterator[sa.Engine]:
    """Return an engine on empty tables."""
    # A test's file need not outlive a loss of power.
    engine = open_engine(sqlite_url, replace(PATIENT, durable=False))
    yield engine
    engine.dispose()
