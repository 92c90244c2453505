"""The tables, and the meaning of their columns.

Times are whole microseconds since the Unix epoch: exact, and the same on every database.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from typing_extensions import override

from freshq.errors import quoted
from freshq.model.fields import FIELDS, MAX_ID_BYTES, FieldType
from freshq.model.new_task import MAX_GROUP_BYTES
from freshq.model.task import MAX_STEP_CHARS, MAX_TRACE_CONTEXT_BYTES
from freshq.stores.lines import CLASS, CLASS_CHARS

if TYPE_CHECKING:
    from collections.abc import Mapping

# The names of all tables and indexes begin with this name; PostgreSQL allows 63 bytes for each.
TABLE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")
NAME_BYTES: Final = 64
ASTRAL: Final = re.compile("[\U00010000-\U0010ffff]")
# A lease token is the worker's name (up to 64 bytes) and 33 more bytes, and as many for a successor.
TOKEN_BYTES: Final = 133
STATUS_CHARS: Final = 16
REASON_CHARS: Final = 32
AGENDA_CHARS: Final = 8
OPTIONAL_TIMES: Final = tuple(
    field.column for field in FIELDS if field.kind is FieldType.TIME and not field.required
)
CHANGE_CHARS: Final = 6
DECAY_CHARS: Final = 8
MAX_LINE_BYTES: Final = 1 + len(CLASS) + CLASS_CHARS + MAX_GROUP_BYTES
# The batch number of unbatched events, above every other batch.
NO_BATCH: Final = 2**62
# Databases with partial indexes.
PARTIAL_INDEXES: Final = ("postgresql", "sqlite")


@dataclass(frozen=True)
class Schema:
    """The tables of one store.

    Attributes:
        metadata: All tables.
        tasks: One row per task. `line` is set only while the task is claimable: its priority level, one
            digit, its class if the queue serves by value, then its group. `due_us` is when the task needs
            attention, and `agenda` why: "due" if
            its lease or delay ends, "stale" if its deadline passes while it is in a line, "over" if its
            retention ends. `put_token` names the puts that wrote it last. `created_us` is the due time of
            a delayed put, `put_us` the time of the put itself. `progress_ppm` is the part of its work that
            a run reported as done, in millionths.
        records: Small JSON records shared by the processes of a queue.
        counts: Counters shared by the processes of a queue.
        histories: The queues that keep a history, and its retention in seconds. Triggers read it.
        history: One row per change of a task of these queues, with the task's state after the change, or
            before it for a REMOVE. `claimed_us` and `claimed_attempts` are set if one write claimed a task
            and ended the claim. `batch` numbers the batches of pulls; see `freshq.stores.sql.history`.
        migrations: Applied migrations.
    """

    metadata: sa.MetaData
    tasks: sa.Table
    records: sa.Table
    counts: sa.Table
    histories: sa.Table
    history: sa.Table
    migrations: sa.Table


def checked_table(table: str) -> str:
    """Check and return the name of a table.

    Raises:
        ValueError: If it is not a valid name.
    """
    if not isinstance(table, str) or not TABLE_NAME.fullmatch(table):
        msg = f"table: must be 1 to 40 letters, digits or _, no digit first, got {quoted(table)}"
        raise ValueError(msg)
    return table


class KeyBytes(sa.types.TypeDecorator[str]):
    """Text that MariaDB and MySQL store as bytes, because none of their collations compares exactly."""

    impl = sa.VARBINARY
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> bytes | None:  # noqa: ARG002 - the interface
        """Return the bytes of the text."""
        return None if value is None else value.encode()

    def process_result_value(self, value: bytes | None, dialect: sa.Dialect) -> str | None:  # noqa: ARG002 - the interface
        """Return the text of the bytes."""
        return None if value is None else value.decode()


class LongText(sa.types.TypeDecorator[str]):
    """Text of up to 16 MB."""

    impl = sa.Text
    cache_ok = True

    @override
    def load_dialect_impl(self, dialect: sa.Dialect) -> sa.types.TypeEngine[Any]:
        """Return Text, or a longer type for MariaDB and MySQL, whose Text is limited to 64 KB."""
        if dialect.name not in ("mysql", "mariadb"):
            return dialect.type_descriptor(sa.Text())
        from sqlalchemy.dialects import mysql  # noqa: PLC0415 - only the dialect in use is loaded

        return dialect.type_descriptor(mysql.MEDIUMTEXT(charset="utf8mb4"))


class PayloadText(LongText):
    """JSON in MariaDB and MySQL, where an application's connection may know no letters beyond U+FFFF.

    Unless its SQL mode is strict, the server replaces these without an error.
    """

    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:  # noqa: ARG002 - the interface
        """Return the text with such letters as escapes."""
        return None if value is None else ASTRAL.sub(lambda found: json.dumps(found[0])[1:-1], value)


def key_text(size_bytes: int) -> sa.types.TypeEngine[str]:
    """Return the type of text that is compared byte by byte, trailing spaces included."""
    text: sa.types.TypeEngine[str] = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    return text.with_variant(KeyBytes(size_bytes), "mysql", "mariadb")


def required(name: str, kind: Any, server_default: sa.TextClause | None = None) -> sa.Column[Any]:
    """Return a column that always has a value."""
    return sa.Column(name, kind, nullable=False, server_default=server_default)


def long_text() -> sa.types.TypeEngine[str]:
    """Return the type of text of up to 16 MB."""
    return LongText()


@lru_cache(maxsize=16)
def schema(table: str, dialect: str) -> Schema:
    """Return the tables of a store; all its queues share them.

    Args:
        table: Checked name of the table of tasks; the names of the other tables begin with it.
        dialect: Name of the database's dialect. Tables get the options of this dialect only: to check an
            option SQLAlchemy loads its dialect, which takes longer than a put.
    """
    metadata, options = sa.MetaData(), table_options(dialect)

    def of_queue(suffix: str, *columns: sa.Column[Any], **options: Any) -> sa.Table:
        queue = sa.Column("queue", key_text(NAME_BYTES), primary_key=True)
        return sa.Table(f"{table}_{suffix}", metadata, queue, *columns, **options)

    records = (required("version", sa.String(TOKEN_BYTES)), required("record", long_text()))
    counts = (required("number", sa.BigInteger), sa.Column("expires", sa.BigInteger))
    histories = (required("history_id", sa.String(TOKEN_BYTES)), required("keep_seconds", sa.Double))
    version = sa.Column("version", sa.Integer, primary_key=True, autoincrement=False)
    return Schema(
        metadata,
        _tasks(table, metadata, dialect, options),
        of_queue("records", _name(), *records, **options),
        of_queue("counts", _name(), sa.Column("field", key_text(100), primary_key=True), *counts),
        of_queue("histories", *histories),
        _history(table, metadata, dialect),
        sa.Table(f"{table}_migrations", metadata, version, required("name", sa.String(100))),
    )


def _name() -> sa.Column[str]:
    return sa.Column("name", key_text(200), primary_key=True)


def _tasks(table: str, metadata: sa.MetaData, dialect: str, options: Mapping[str, Any]) -> sa.Table:
    tasks = sa.Table(
        table,
        metadata,
        sa.Column("task_id", key_text(MAX_ID_BYTES), primary_key=True),
        sa.Column("queue", key_text(NAME_BYTES), primary_key=True),
        required("status", sa.String(STATUS_CHARS)),
        required("created_us", sa.BigInteger),
        required("updated_us", sa.BigInteger),
        required("deadline_us", sa.BigInteger),
        required("expires", sa.BigInteger),
        required("request_token", sa.String(TOKEN_BYTES)),
        required("put_token", sa.String(TOKEN_BYTES)),
        required("priority", sa.SmallInteger),
        *(sa.Column(name, key_text(MAX_GROUP_BYTES)) for name in ("task_group", "kind")),
        required("attempts", sa.Integer),
        sa.Column("lease_token", sa.String(TOKEN_BYTES)),
        *(sa.Column(name, sa.BigInteger) for name in OPTIONAL_TIMES),
        sa.Column("shed_reason", sa.String(REASON_CHARS)),
        sa.Column("trace_context", sa.String(MAX_TRACE_CONTEXT_BYTES)),
        *(sa.Column(name, key_text(MAX_ID_BYTES)) for name in ("parent_id", "root_id")),
        sa.Column("value_millionths", sa.BigInteger),
        sa.Column("decay", sa.String(DECAY_CHARS)),
        sa.Column("cost_millionths", sa.BigInteger),
        sa.Column("line_class", sa.String(CLASS_CHARS)),
        sa.Column("line", key_text(MAX_LINE_BYTES)),
        required("agenda", sa.String(AGENDA_CHARS)),
        required("due_us", sa.BigInteger),
        sa.Column("progress_ppm", sa.Integer),
        sa.Column("progress_step", sa.String(MAX_STEP_CHARS)),
        sa.Column("error", long_text()),
        sa.Column("attempt_record", long_text()),
        sa.Column("result", long_text()),
        sa.Column("successor_record", long_text()),
        required("payload", LongText().with_variant(PayloadText(), "mysql", "mariadb")),
        **options,
    )
    _index_tasks(table, tasks, dialect)
    return tasks


def _index_tasks(table: str, tasks: sa.Table, dialect: str) -> None:
    line = tasks.c.line
    waiting_only = _only(line.is_not(None), dialect)
    # The deadline comes last, so that the index alone shows which tasks are past it.
    sa.Index(
        f"{table}_lines",
        *(tasks.c.queue, line, tasks.c.created_us, tasks.c.task_id, tasks.c.deadline_us),
        **waiting_only,
    )
    # The queue is not first, or PostgreSQL without statistics might look for lines in this index. The status
    # comes last, so that the index alone counts the tasks by status.
    sa.Index(f"{table}_agenda", tasks.c.agenda, tasks.c.queue, tasks.c.due_us, tasks.c.status)
    # Counts the running tasks by group, for limits. MariaDB counts through the index of the agenda instead,
    # because an index that is not partial would cost every write.
    if dialect in PARTIAL_INDEXES:
        in_work = sa.and_(tasks.c.status == sa.literal_column("'TAKEN'"), tasks.c.task_group.is_not(None))
        sa.Index(f"{table}_running", tasks.c.queue, tasks.c.task_group, **_only(in_work, dialect))
    # On the other databases, reads skip redriven tasks, which keep the time of their death.
    dead_only = _only(tasks.c.status == sa.literal_column("'FAILURE'"), dialect)
    sa.Index(f"{table}_dead", tasks.c.queue, tasks.c.dead_us, tasks.c.task_id, **dead_only)


def _only(condition: sa.ColumnElement[bool], dialect: str) -> dict[str, Any]:
    """Return the options of a partial index; none if the database has no partial indexes."""
    return {f"{dialect}_where": condition} if dialect in PARTIAL_INDEXES else {}


def table_options(dialect: str) -> dict[str, Any]:
    """Return the options of every table in a dialect."""
    return {f"{dialect}_charset": "utf8mb4"} if dialect in ("mysql", "mariadb") else {}


def history_table(
    name: str, index: str, metadata: sa.MetaData, dialect: str, *columns: sa.Column[Any]
) -> sa.Table:
    """Return a table of history events, with the columns that batches need and the given ones.

    Args:
        name: Name of the table.
        index: Name of its index.
        metadata: Collection to add the table to.
        dialect: Name of the database's dialect.
        *columns: Columns of the events.
    """
    # Without AUTOINCREMENT, SQLite would reuse the numbers of deleted rows.
    options = {"sqlite_autoincrement": True} if dialect == "sqlite" else table_options(dialect)
    history = sa.Table(
        name,
        metadata,
        sa.Column("event_id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
        required("queue", key_text(NAME_BYTES)),
        required("batch", sa.BigInteger, server_default=sa.text(str(NO_BATCH))),
        required("at_us", sa.BigInteger),
        *columns,
        **options,
    )
    # In the order in which pulls read events and pruning deletes them.
    sa.Index(index, history.c.queue, history.c.batch, history.c.event_id)
    return history


def _history(table: str, metadata: sa.MetaData, dialect: str) -> sa.Table:
    return history_table(
        f"{table}_history",
        f"{table}_batches",
        metadata,
        dialect,
        required("change_kind", sa.String(CHANGE_CHARS)),
        required("ttl_removal", sa.SmallInteger),
        sa.Column("claimed_us", sa.BigInteger),
        sa.Column("claimed_attempts", sa.Integer),
        required("task_id", key_text(MAX_ID_BYTES)),
        required("status", sa.String(STATUS_CHARS)),
        *(sa.Column(name, key_text(MAX_GROUP_BYTES)) for name in ("task_group", "kind")),
        *(sa.Column(name, key_text(MAX_ID_BYTES)) for name in ("parent_id", "root_id")),
        sa.Column("value_millionths", sa.BigInteger),
        sa.Column("cost_millionths", sa.BigInteger),
        sa.Column("decay", sa.String(DECAY_CHARS)),
        required("priority", sa.SmallInteger),
        required("attempts", sa.Integer),
        *(required(f"{name}_us", sa.BigInteger) for name in ("created", "updated")),
        *(
            sa.Column(f"{name}_us", sa.BigInteger)
            for name in ("put", "deadline", "not_before", "lease_until")
        ),
        sa.Column("lease_token", sa.String(TOKEN_BYTES)),
        sa.Column("shed_reason", sa.String(REASON_CHARS)),
        required("expires", sa.BigInteger),
    )
