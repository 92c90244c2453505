"""Roles and servers whose settings differ from the defaults."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Final

import pytest
import sqlalchemy as sa

from freshq import Queue, Settlement
from freshq.errors import StoreError, TableMissing, Unreachable
from tests.sql.workers import LIMITS

HARMLESS: Final = [
    "client_encoding = 'SQL_ASCII'",
    "client_encoding = 'LATIN1'",
    "default_transaction_isolation = 'serializable'",
    "default_transaction_isolation = 'repeatable read'",
    "statement_timeout = '100ms'",  # for the statement that sets another one, on a busy machine
    "lock_timeout = '1ms'",
    "standard_conforming_strings = off",
    "DateStyle = 'German, DMY'",
    "TimeZone = 'Pacific/Chatham'",
    "enable_indexscan = off",
    "bytea_output = 'escape'",
    "array_nulls = off",
]
REFUSED: Final = {
    "search_path = no_such_schema": (TableMissing, "search_path"),
    "default_transaction_read_only = on": (Unreachable, "default_transaction_read_only"),
}
OF_MARIADB: Final = {
    "max_statement_time": "0.0001",
    "sql_select_limit": "1",
    "max_join_size": "10",
    "sql_mode": "'ANSI_QUOTES,NO_BACKSLASH_ESCAPES'",
    "autocommit": "0",
    "completion_type": "1",
    "time_zone": "'+05:45'",
    "transaction_isolation": "'SERIALIZABLE'",
    "collation_connection": "'latin1_bin'",
    "innodb_snapshot_isolation": "1",
}
ODD: Final = "Grüße 日本 \U0001f600 \\ 'x' \"y\""


@contextmanager
def role(engine: sa.Engine, setting: str) -> Iterator[str]:
    """Yield the address of a role with a setting."""
    apart = sa.create_engine(engine.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with apart.connect() as connection:
        connection.exec_driver_sql("CREATE ROLE odd LOGIN SUPERUSER")
        connection.exec_driver_sql(f"ALTER ROLE odd SET {setting}")
        try:
            yield engine.url.set(username="odd").render_as_string(hide_password=False)
        finally:
            connection.exec_driver_sql("DROP ROLE odd")


def live(queue: Queue) -> None:
    """Put, claim and settle tasks with any text."""
    queue.put({"text": ODD}, task_id=ODD, group=ODD)
    queue.put_many([{"payload": number, "task_id": str(number)} for number in range(5)])
    claims = queue.claim(6)
    assert len(claims) == 6
    assert {claim.task.task_id: claim.task.payload for claim in claims}[ODD] == {"text": ODD}
    for claim in claims[:2]:
        queue.retry(claim, error=ODD, delay_seconds=5)
    queue.complete(claims[2], result=ODD)
    queue.settle_many([Settlement.complete(claim, ODD) for claim in claims[3:]])
    assert (queue.stats().success, queue.stats().delayed) == (4, 2)
    assert queue.stats(approximate=True).success == 4


@pytest.mark.parametrize("setting", HARMLESS)
def test_a_role_whose_settings_do_not_matter(postgres_engine: sa.Engine, setting: str) -> None:
    with role(postgres_engine, setting) as url, closing(Queue.sql(url)) as queue:
        live(queue)


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("setting", REFUSED)
def test_a_refusal_names_the_setting(postgres_engine: sa.Engine, setting: str) -> None:
    kind, name = REFUSED[setting]
    with role(postgres_engine, setting) as url, closing(Queue.sql(url, **LIMITS)) as queue:
        with pytest.raises(kind, match=name):
            queue.put("work")
        if kind is TableMissing:
            with pytest.raises(StoreError, match="search_path"):
                queue.create_table()


def test_row_security_is_refused(postgres_engine: sa.Engine) -> None:
    """A policy would hide tasks, so that they would never be claimed."""
    apart = sa.create_engine(postgres_engine.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with apart.connect() as connection:
        for statement in (
            "CREATE ROLE guarded LOGIN",
            "GRANT ALL ON ALL TABLES IN SCHEMA public TO guarded",
            "ALTER TABLE tasks ENABLE ROW LEVEL SECURITY",
            "CREATE POLICY only_own ON tasks USING (queue = 'other')",
        ):
            connection.exec_driver_sql(statement)
        try:
            url = postgres_engine.url.set(username="guarded").render_as_string(hide_password=False)
            with closing(Queue.sql(url)) as queue, pytest.raises(StoreError, match="row-level security"):
                queue.claim()
        finally:
            for statement in (
                "DROP POLICY only_own ON tasks",
                "ALTER TABLE tasks DISABLE ROW LEVEL SECURITY",
                "DROP OWNED BY guarded",
                "DROP ROLE guarded",
            ):
                connection.exec_driver_sql(statement)


@contextmanager
def global_setting(engine: sa.Engine, name: str, value: str) -> Iterator[sa.Connection]:
    """Change a setting of a server of MariaDB; yield a connection."""
    apart = sa.create_engine(engine.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with apart.connect() as connection:
        found = connection.exec_driver_sql("SHOW GLOBAL VARIABLES LIKE %s", (name,)).fetchall()
        if not found:
            pytest.skip("this version has no such setting")
        before = found[0][1]
        connection.exec_driver_sql(f"SET GLOBAL {name} = {value}")
        try:
            yield connection
        finally:
            as_number = before.replace(".", "").isdigit() or before in ("ON", "OFF")
            connection.exec_driver_sql(f"SET GLOBAL {name} = " + (before if as_number else f"'{before}'"))


@pytest.mark.parametrize("name", OF_MARIADB)
def test_a_server_of_mariadb_whose_settings_do_not_matter(mariadb_engine: sa.Engine, name: str) -> None:
    url = mariadb_engine.url.render_as_string(hide_password=False)
    with global_setting(mariadb_engine, name, OF_MARIADB[name]), closing(Queue.sql(url)) as queue:
        live(queue)


def test_tables_have_transactions_whatever_engine_the_server_prefers(mariadb_engine: sa.Engine) -> None:
    url = mariadb_engine.url.set(database="odd").render_as_string(hide_password=False)
    with global_setting(mariadb_engine, "default_storage_engine", "'MyISAM'") as connection:
        connection.exec_driver_sql("CREATE DATABASE odd")
        try:
            with closing(Queue.sql(url)) as queue:
                queue.create_table()
            engines = "SELECT DISTINCT engine FROM information_schema.tables WHERE table_schema = 'odd'"
            assert connection.exec_driver_sql(engines).scalars().all() == ["InnoDB"]
        finally:
            connection.exec_driver_sql("DROP DATABASE odd")
