"""The settings of connections, and the errors that end them, without a server."""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Self, cast

import psycopg
import pymysql  # type: ignore[import-untyped]
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import ExceptionContext

from freshq import StoreError
from freshq.errors import Unreachable
from freshq.policy.retry import CallRetry
from freshq.stores.base import Finding, Health
from freshq.stores.sql import SqlStore
from freshq.stores.sql import database as module
from freshq.stores.sql.database import (
    Database,
    PreparedStatement,
    answer_within,
    default_settings,
    open_engine,
)
from freshq.stores.sql.migrations import MIGRATIONS
from freshq.stores.sql.url import ConnectionLimits

LIMITS: Final = ConnectionLimits(
    connect_timeout_seconds=1.5, answer_timeout_seconds=7.0, lock_timeout_seconds=2.5
)
PLANNING: Final = (
    "enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off; "
    "SET plan_cache_mode = force_generic_plan; SET jit = off; SET row_security = off; "
    "SET standard_conforming_strings = on; SET array_nulls = on"
)


class Server:
    """A connection that only records its statements."""

    def __init__(self, name: str, **driver: Any) -> None:
        self.told: list[str] = []
        self.driver = SimpleNamespace(**driver)
        preparer = SimpleNamespace(format_table=lambda table: f'"{table.name}"')
        self.dialect = SimpleNamespace(name=name, identifier_preparer=preparer)
        self.connection = SimpleNamespace(driver_connection=self.driver)

    def execute(self, statement: object) -> None:
        self.told.append(str(statement))

    exec_driver_sql = execute

    def as_connection(self) -> sa.Connection:
        return cast("sa.Connection", self)


class Cursor:
    """A cursor that only records its statements."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        """Stay open."""

    def execute(self, statement: str) -> None:
        self.told.append(statement)

    def fetchone(self) -> tuple[str]:
        return ("11.4.2-MariaDB",)


@pytest.mark.parametrize("pooled", [False, True])
def test_a_new_connection_to_postgresql(*, pooled: bool) -> None:
    told: list[str] = []
    driver: Any = SimpleNamespace(execute=told.append, is_pooled=lambda: pooled, prepare_threshold=5)
    module._prepare_postgresql(driver, None, LIMITS)
    limits = "SET statement_timeout = 7000; SET lock_timeout = 2500"
    stopped = "SET idle_in_transaction_session_timeout = 30000"
    isolation = "SET default_transaction_isolation = 'read committed'"
    assert told == [f"SET {PLANNING}; {limits}; {stopped}; {isolation}"]
    assert (driver.autocommit, driver.answer_timeout_seconds) == (True, 7.0)
    assert driver.prepare_threshold == (None if pooled else 5)
    assert module._postgresql_arguments(LIMITS) == {
        "client_encoding": "utf8",
        "connect_timeout": 2,
        "tcp_user_timeout": 7000,
        "keepalives": 1,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 3,
    }


def test_a_new_connection_to_mysql() -> None:
    cursor = Cursor()
    module._prepare_mysql(SimpleNamespace(cursor=lambda: cursor), None, LIMITS)
    isolation, version, settings = cursor.told
    assert isolation == "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
    assert version == "SELECT VERSION()"
    assert settings.startswith("SET SESSION ")
    for setting in ("innodb_lock_wait_timeout=3", "lock_wait_timeout=3", "max_statement_time=0"):
        assert setting in settings
    assert module._mysql_arguments(LIMITS) == {
        "connect_timeout": 1.5,
        "read_timeout": 7.0,
        "write_timeout": 7.0,
        "init_command": "SET SESSION time_zone='+00:00', sql_mode='STRICT_ALL_TABLES'",
    }


def test_no_time_is_no_limit_by_rounding() -> None:
    assert [module.milliseconds(seconds) for seconds in (0.0, 0.0006, 1.4996)] == [1, 1, 1500]


def test_the_callers_statements_have_the_servers_settings() -> None:
    server = Server("postgresql", settings={"jit": "off", "lock_timeout": "5"}, answer_timeout_seconds=7.0)
    with default_settings(server.as_connection()):
        seconds = [server.driver.answer_timeout_seconds]
    assert [*seconds, server.driver.answer_timeout_seconds] == [None, 7.0]
    module.use_own_settings(server.as_connection())
    assert server.told == [
        "SET LOCAL jit TO DEFAULT; SET LOCAL lock_timeout TO DEFAULT",
        "SET LOCAL jit = off; SET LOCAL lock_timeout = 5",
    ]


@pytest.mark.parametrize("name", ["sqlite", "mysql"])
def test_other_databases_have_no_such_settings(name: str) -> None:
    server = Server(name)
    with default_settings(server.as_connection()):
        module.use_own_settings(server.as_connection())
    assert server.told == []


@pytest.mark.parametrize(
    ("name", "attribute", "seconds", "told"),
    [
        ("postgresql", "answer_timeout_seconds", 60.0, "60000"),
        ("postgresql", "answer_timeout_seconds", None, "0"),
        ("mysql", "_read_timeout", 60.0, None),
        ("sqlite", "_read_timeout", 7.0, None),
        ("postgresql", None, 60.0, "60000"),
        ("mysql", None, 60.0, None),
    ],
)
def test_a_long_statement_has_a_timeout_of_its_own(
    name: str, attribute: str | None, seconds: float | None, told: str | None
) -> None:
    server = Server(name, **({} if attribute is None else {attribute: 7.0}))
    with answer_within(server.as_connection(), seconds):
        assert vars(server.driver) == ({} if attribute is None else {attribute: seconds})
    assert vars(server.driver) == ({} if attribute is None else {attribute: 7.0})
    settings = f"SET LOCAL statement_timeout = {told}; SET LOCAL lock_timeout = {told}"
    assert server.told == ([] if told is None else [settings])


def read_only() -> psycopg.Error:
    error = psycopg.OperationalError("cannot execute INSERT in a read-only transaction")
    error.sqlstate = "25006"
    return error


@pytest.mark.parametrize(
    ("error", "leaves"),
    [(read_only(), True), (pymysql.OperationalError(1290), True), (pymysql.OperationalError(1205), False)],
)
def test_a_standby_is_left(error: Exception, *, leaves: bool) -> None:
    context: Any = SimpleNamespace(original_exception=error, is_disconnect=False)
    module._leave_standby(cast("ExceptionContext", context))
    assert context.is_disconnect is leaves


@pytest.mark.parametrize("host", ["db.example.com", "127.0.0.1", None])
def test_a_password_should_travel_encrypted(host: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqlStore(f"postgresql://app:secret@{host or ''}/q")
    told = []
    for encrypted in (True, False):
        monkeypatch.setattr(store.database, "rows", lambda *_, found=encrypted: [(found,)])
        found = store._encryption()
        told.append([(each.health.name, each.subject, each.text, each.action) for each in found])
    clear = f"the password goes to {host} without TLS"
    remote = [
        [("OK", "encryption", f"TLS to {host}", "")],
        [("WARNING", "encryption", clear, "see docs/sql.md, Encryption")],
    ]
    assert told == (remote if host == "db.example.com" else [[], []])


def test_migrations_warn_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/tasks.db")
    found = [
        Finding(Health.OK, "durability", "safe"),
        Finding(Health.WARNING, "durability", "lost", "set it"),
    ]
    monkeypatch.setattr(store, "_durability", lambda: found)
    assert store.migrate() == [each.name for each in MIGRATIONS]
    assert [record.getMessage() for record in caplog.records] == ["table 'tasks': lost; set it"]
    store.close()


def test_a_driver_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ValueError, match=r"is not installed .*; install freshq\[sql\] for"):
        open_engine("postgresql://app@localhost/q")


class TestFailedStatement:
    """A connection whose statement failed is closed, and with a lost server every other one."""

    @pytest.fixture
    def database(self, tmp_path: Path) -> Iterator[Database]:
        database = Database(f"sqlite:///{tmp_path}/tasks.db", "tasks")
        database.allow_new_file()
        yield database
        database.close()

    @pytest.mark.parametrize("gone", [False, True])
    def test_its_connection_is_closed(
        self, database: Database, monkeypatch: pytest.MonkeyPatch, *, gone: bool
    ) -> None:
        discarded: list[tuple[object, BaseException, bool]] = []
        pool: Any = database.engine.pool
        discard = pool.discard

        def note(entry: Any, error: BaseException, *, all_others: bool) -> None:
            discarded.append((entry, error, all_others))
            discard(entry, error, all_others=all_others)

        monkeypatch.setattr(pool, "discard", note)
        if gone:
            monkeypatch.setattr(database, "translated", Unreachable)
        statement = PreparedStatement(sa.select(sa.literal_column("nothing")), database.engine.dialect)
        monkeypatch.setattr(module, "CALL_RETRY", CallRetry(1, module.CALL_RETRY.backoff))
        with pytest.raises(StoreError) as raised:
            database.execute(statement, {})
        ((_entry, error, all_others),) = discarded
        assert error is raised.value.__cause__
        assert all_others is gone
