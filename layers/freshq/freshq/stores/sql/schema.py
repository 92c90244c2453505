"""The tables, and what their columns mean.

Times are whole microseconds since the Unix epoch: exact, and the same on every database.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from freshq.model.new_task import MAX_GROUP_BYTES, MAX_ID_BYTES

# The names of tables and indexes begin with it; PostgreSQL allows 63 bytes for each.
TABLE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
NAME_BYTES: Final = 64
# A lease token is the worker's name, of up to 64 bytes, and 33 bytes more.
TOKEN_BYTES: Final = 100
STATUS_CHARS: Final = 16
REASON_CHARS: Final = 32
AGENDA_CHARS: Final = 8


@dataclass(frozen=True)
class Schema:
    """The tables of one store.

    Attributes:
        metadata: All of them.
        tasks: One row per task. `line` is set only while the task is claimable: its priority level, one
            digit, then its group. `due_us` is when the task needs attention, and `agenda` which: "due" if
            its lease or delay ends, "stale" if its deadline passes while it is in a line, "over" if its
            retention ends. `put_token` names the puts that wrote it last.
        records: Small records that the processes of a queue share, as JSON.
        counts: Numbers to which the processes of a queue add.
        migrations: The migrations that were applied.
    """

    metadata: sa.MetaData
    tasks: sa.Table
    records: sa.Table
    counts: sa.Table
    migrations: sa.Table


def checked_table(table: str) -> str:
    """Return the name of a table, checked.

    Raises:
        ValueError: If it is not a valid name.
    """
    if not isinstance(table, str) or not TABLE_NAME.fullmatch(table):
        msg = f"table: must be 1 to 40 letters, digits or _, no digit first, got {table!r:.60}"
        raise ValueError(msg)
    return table


class KeyBytes(sa.types.TypeDecorator[str]):
    """Text that MariaDB and MySQL store as bytes: none of their collations compares it exactly."""

    impl = mysql.VARBINARY
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> bytes | None:  # noqa: ARG002 - the interface
        """Return the bytes of the text."""
        return None if value is None else value.encode()

    def process_result_value(self, value: bytes | None, dialect: sa.Dialect) -> str | None:  # noqa: ARG002 - the interface
        """Return the text of the bytes."""
        return None if value is None else value.decode()


def key_text(size_bytes: int) -> sa.types.TypeEngine[str]:
    """Return the type of text that is compared byte by byte, trailing spaces included."""
    text: sa.types.TypeEngine[str] = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    return text.with_variant(KeyBytes(size_bytes), "mysql", "mariadb")


def long_text() -> sa.types.TypeEngine[str]:
    """Return the type of text of up to 16 MB."""
    return sa.Text().with_variant(mysql.MEDIUMTEXT(charset="utf8mb4"), "mysql", "mariadb")


def schema(table: str) -> Schema:
    """Return the tables of a store.

    Args:
        table: Name of the table of tasks; the names of the others begin with it.
    """
    metadata = sa.MetaData()
    return Schema(
        metadata,
        _tasks(checked_table(table), metadata),
        _records(table, metadata),
        _counts(table, metadata),
        sa.Table(
            f"{table}_migrations",
            metadata,
            sa.Column("version", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("name", sa.String(100), nullable=False),
        ),
    )


def _tasks(table: str, metadata: sa.MetaData) -> sa.Table:
    tasks = sa.Table(
        table,
        metadata,
        sa.Column("task_id", key_text(MAX_ID_BYTES), primary_key=True),
        sa.Column("queue", key_text(NAME_BYTES), primary_key=True),
        sa.Column("status", sa.String(STATUS_CHARS), nullable=False),
        sa.Column("created_us", sa.BigInteger, nullable=False),
        sa.Column("updated_us", sa.BigInteger, nullable=False),
        sa.Column("deadline_us", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.BigInteger, nullable=False),
        sa.Column("request_token", sa.String(TOKEN_BYTES), nullable=False),
        sa.Column("put_token", sa.String(TOKEN_BYTES), nullable=False),
        sa.Column("priority", sa.SmallInteger, nullable=False),
        sa.Column("task_group", key_text(MAX_GROUP_BYTES)),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("not_before_us", sa.BigInteger),
        sa.Column("lease_token", sa.String(TOKEN_BYTES)),
        sa.Column("lease_until_us", sa.BigInteger),
        sa.Column("shed_reason", sa.String(REASON_CHARS)),
        sa.Column("line", key_text(MAX_GROUP_BYTES + 1)),
        sa.Column("agenda", sa.String(AGENDA_CHARS), nullable=False),
        sa.Column("due_us", sa.BigInteger, nullable=False),
        sa.Column("error", long_text()),
        sa.Column("result", long_text()),
        sa.Column("payload", long_text(), nullable=False),
        mysql_charset="utf8mb4",
        mariadb_charset="utf8mb4",
    )
    line = tasks.c.line
    sa.Index(
        f"{table}_lines",
        *(tasks.c.queue, line, tasks.c.created_us, tasks.c.task_id),
        postgresql_where=line.is_not(None),
        sqlite_where=line.is_not(None),
    )
    sa.Index(f"{table}_agenda", tasks.c.queue, tasks.c.agenda, tasks.c.due_us)
    return tasks


def _records(table: str, metadata: sa.MetaData) -> sa.Table:
    return sa.Table(
        f"{table}_records",
        metadata,
        sa.Column("queue", key_text(NAME_BYTES), primary_key=True),
        sa.Column("name", key_text(200), primary_key=True),
        sa.Column("version", sa.String(TOKEN_BYTES), nullable=False),
        sa.Column("record", long_text(), nullable=False),
        mysql_charset="utf8mb4",
        mariadb_charset="utf8mb4",
    )


def _counts(table: str, metadata: sa.MetaData) -> sa.Table:
    return sa.Table(
        f"{table}_counts",
        metadata,
        sa.Column("queue", key_text(NAME_BYTES), primary_key=True),
        sa.Column("name", key_text(200), primary_key=True),
        sa.Column("field", key_text(100), primary_key=True),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("expires", sa.BigInteger),
    )
