"""Create and migrate the tables, the triggers that write histories, and the function that puts from SQL."""

from __future__ import annotations

import json
import logging
import re
import sys
import zlib
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from math import inf
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from freshq.errors import MAX_QUOTED_CHARS, StoreError
from freshq.model.fields import (
    EVENT_FIELDS,
    MAX_EPOCH_SECONDS,
    MAX_ID_BYTES,
    NEVER,
    QUEUE_KEY_PREFIX,
    REMEMBERED_PUTS,
    RESERVED_ID_PREFIX,
)
from freshq.model.lifecycle import Lifecycle
from freshq.model.new_task import MAX_GROUP_BYTES, parse_new_task
from freshq.model.options import NAME_PATTERN, QueueConfig, checked_options
from freshq.model.storable_options import NOTE_PREFIX, RECORD
from freshq.model.task import MAX_PRIORITY, MAX_SECONDS, MAX_TRACE_CONTEXT_BYTES, TRACEPARENT
from freshq.model.validation import MAX_JSON_DEPTH, MAX_PAYLOAD_BYTES
from freshq.policy.order import Order
from freshq.policy.value import (
    AGE_DIGITS,
    AGE_OFFSET,
    BAND_OFFSET,
    BANDS_PER_DOUBLING,
    DEFAULT_COST,
    DEFAULT_VALUE,
    LARGEST_COST,
    LARGEST_VALUE,
    SMALLEST_COST,
    SMALLEST_VALUE,
    Decay,
)
from freshq.stores.sql.database import NOW_US, answer_within
from freshq.stores.sql.failures import FOREIGN_TABLE, NO_FUNCTION, code_of
from freshq.stores.sql.listening import ANY_SENDER, announcement, channel_of
from freshq.stores.sql.rows import ENTRY_CHARS, NEW_COLUMNS, OVER, SET_LATER
from freshq.stores.sql.statements import parts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from freshq.stores.sql.database import Database
    from freshq.stores.sql.schema import Schema

logger = logging.getLogger(__name__)
LOCK_SECONDS: Final = 60
# Columns that a history copies from the row of a task.
COPIED: Final = (*(field.column for field in EVENT_FIELDS if field.field != "queue"), "lease_token")
REMOVE: Final = "REMOVE"
# The change behind each trigger event, and the row whose state is kept.
CHANGES: Final = {"insert": ("INSERT", "NEW"), "update": ("MODIFY", "NEW"), "delete": ("REMOVE", "OLD")}
# Every version of a task has its own token; upkeep that does not change the task keeps the token.
CHANGED: Final = "NEW.request_token <> OLD.request_token"
# `Queue.transaction` claims a task and ends the claim in one write.
CLAIMED: Final = (
    "OLD.status = 'PENDING' AND NEW.status <> 'TAKEN' AND NEW.last_claim_us IS NOT NULL AND "
    "(OLD.last_claim_us IS NULL OR NEW.last_claim_us <> OLD.last_claim_us OR NEW.attempts > OLD.attempts)"
)
# Names of the working triggers of a table.
_WORKING_MYSQL: Final = (
    "SELECT trigger_name FROM information_schema.triggers "
    "WHERE trigger_schema = DATABASE() AND event_object_table = :of_table"
)
WORKING: Final = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = :of_table",
    "postgresql": "SELECT tgname FROM pg_trigger "
    "WHERE tgrelid = to_regclass(CAST(:of_table AS text)) AND tgenabled IN ('O', 'A')",
    "mysql": _WORKING_MYSQL,
    "mariadb": _WORKING_MYSQL,
}
# The quoted PostgreSQL schema of a table.
SCHEMA: Final = sa.text(
    "SELECT quote_ident(nspname) FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
    "WHERE pg_class.oid = to_regclass(CAST(:of_table AS text))"
)
# How PostgreSQL stores the table of tasks. It vacuums after 1 % of the rows changed; the default suits tables
# with less churn. It leaves half of each page free for new versions of its tasks: the log of an update within
# a page has only the difference, otherwise the whole row.
STORAGE: Final = {
    "autovacuum_vacuum_scale_factor": "0.01",
    "autovacuum_vacuum_threshold": "1000",
    "fillfactor": "50",
}
# The storage parameters of a table, if this role may change them.
PARAMETERS: Final = sa.text(
    "SELECT coalesce(reloptions, '{}') FROM pg_class "
    "WHERE oid = to_regclass(CAST(:of_table AS text)) AND pg_has_role(relowner, 'USAGE')"
)
# On PostgreSQL, a trigger runs with its creator's rights. So its search path has no schema that others can
# write to, and nobody else may attach it to a table of their own.
SAFE: Final = "SECURITY DEFINER SET search_path = pg_catalog, pg_temp"


def check_owned(connection: sa.Connection, tables: Iterable[sa.Table]) -> None:
    """Check that existing tables are freshq's, before they are read, changed or deleted.

    A table of any version of freshq has every column that is never null, and integer columns where freshq
    keeps integers. A migration may therefore add only columns that may be null.

    Raises:
        StoreError: If a table is not freshq's.
    """
    inspector = sa.inspect(connection)
    for table in tables:
        if not inspector.has_table(table.name):
            continue
        found = {column["name"]: column["type"] for column in inspector.get_columns(table.name)}
        needed = (column for column in table.columns if not column.nullable)
        if not all(_fits(column, found) for column in needed):
            msg = f"table {table.name!r}: {FOREIGN_TABLE}; nothing was changed"
            raise StoreError(msg)


def _fits(column: sa.Column[object], found: dict[str, sa.types.TypeEngine[object]]) -> bool:
    is_whole = isinstance(column.type, sa.Integer)
    return column.name in found and (not is_whole or isinstance(found[column.name], sa.Integer))


def place_in(connection: sa.Connection, table: str) -> str:
    """Return the prefix of the name of a table that exists: on PostgreSQL its quoted schema."""
    if connection.dialect.name != "postgresql":
        return ""
    quoted = connection.dialect.identifier_preparer.quote(table)
    return f"{connection.execute(SCHEMA, {'of_table': quoted}).scalar_one()}."


class Triggers:
    """The triggers of a table. On PostgreSQL they name schemas, because a writer's search path may differ."""

    def __init__(self, schema: Schema, dialect: sa.Dialect, place_of: Callable[[str], str]) -> None:
        """Name the tables.

        Args:
            schema: The tables.
            dialect: The dialect of their database.
            place_of: Returns the prefix of a table's name, such as its schema.
        """
        self._tasks = schema.tasks.name
        self._dialect = dialect.name
        self._quoted = dialect.identifier_preparer.quote
        self._place = place_of(self._tasks)
        self._table = self._place + self._quoted(self._tasks)
        self._history = place_of(schema.history.name) + self._quoted(schema.history.name)
        self._histories = place_of(schema.histories.name) + self._quoted(schema.histories.name)

    @classmethod
    def of(cls, schema: Schema, connection: sa.Connection) -> Triggers:
        """Return the triggers of tables that exist."""
        return cls(schema, connection.dialect, partial(place_in, connection))

    def create_missing(self, connection: sa.Connection) -> None:
        """Create the triggers that are missing or do not work.

        Working triggers are kept: recreating one waits for all writers of the table, and MariaDB would miss
        the writes in between.
        """
        for event in CHANGES.keys() - self._found(connection):
            for text in self.texts(event):
                connection.exec_driver_sql(text)

    def missing(self, connection: sa.Connection) -> list[str]:
        """Return the names of the triggers that are missing or do not work."""
        found = self._found(connection)
        return [f"{self._tasks}_history_{event}" for event in CHANGES if event not in found]

    def _found(self, connection: sa.Connection) -> set[str]:
        """Return the events whose triggers work."""
        table = self._table if self._dialect == "postgresql" else self._tasks
        working = connection.execute(sa.text(WORKING[self._dialect]), {"of_table": table})
        names = set(working.scalars())
        return {event for event in CHANGES if f"{self._tasks}_history_{event}" in names}

    def drop(self, connection: sa.Connection) -> None:
        """Drop the triggers."""
        for event in CHANGES:
            name = self._name(event)
            if self._dialect == "postgresql":
                connection.exec_driver_sql(f"DROP FUNCTION IF EXISTS {self._place}{name}() CASCADE")
            else:
                connection.exec_driver_sql(f"DROP TRIGGER IF EXISTS {name}")

    def _name(self, event: str) -> str:
        return self._quoted(f"{self._tasks}_history_{event}")

    def texts(self, event: str) -> list[str]:
        """Return the statements that create the trigger of an event: "insert", "update" or "delete"."""
        name, write = self._name(event), self._write(event)
        on = f"AFTER {event.upper()} ON {self._table} FOR EACH ROW"
        condition = f" WHEN ({CHANGED})" if event == "update" else ""
        if self._dialect == "sqlite":
            return [f"CREATE TRIGGER IF NOT EXISTS {name} {on}{condition} BEGIN {write}; END"]
        if self._dialect == "postgresql":
            body = f"BEGIN {write}; RETURN NULL; END"
            function = f"{self._place}{name}()"
            does = f"RETURNS trigger LANGUAGE plpgsql {SAFE} AS $history$ {body} $history$"
            return [
                f"CREATE OR REPLACE FUNCTION {function} {does}",
                f"REVOKE ALL ON FUNCTION {function} FROM PUBLIC",
                f"DROP TRIGGER IF EXISTS {name} ON {self._table}",
                f"CREATE TRIGGER {name} {on}{condition} EXECUTE FUNCTION {function}",
            ]
        also = f" AND {CHANGED}" if event == "update" else ""
        return [f"CREATE TRIGGER IF NOT EXISTS {name} {on} {write}{also}"]

    def _write(self, event: str) -> str:
        """Return the INSERT of a trigger; it adds a row only if the queue keeps a history."""
        _change, row = CHANGES[event]
        values = self._values(event)
        into = f"INSERT INTO {self._history} ({', '.join(values)}) SELECT {', '.join(values.values())}"
        return f"{into} FROM {self._histories} kept WHERE kept.queue = {row}.queue"

    def _values(self, event: str) -> dict[str, str]:
        """Return the SQL expressions that a trigger writes, by column."""
        change, row = CHANGES[event]
        now_us = NOW_US[self._dialect]
        values = {
            "queue": f"{row}.queue",
            "at_us": now_us,
            "change_kind": f"'{change}'",
            "ttl_removal": "0",
            **{name: f"{row}.{name}" for name in COPIED},
        }
        if event == "update":
            values["claimed_us"] = f"CASE WHEN {CLAIMED} THEN NEW.last_claim_us END"
            values["claimed_attempts"] = f"CASE WHEN {CLAIMED} THEN OLD.attempts + 1 END"
        elif event == "delete":
            # The retention has passed, as when DynamoDB's TTL deletes an item.
            over = f"OLD.agenda = '{OVER}' AND OLD.due_us <= {now_us}"
            values["ttl_removal"] = f"CASE WHEN {over} THEN 1 ELSE 0 END"
        return values


# The limits and defaults of `Queue.put` that the function's text names.
LIMITS: Final[dict[str, object]] = {
    "record": RECORD,
    "note": NOTE_PREFIX,
    "queue_name": NAME_PATTERN,
    "own_ids": RESERVED_ID_PREFIX,
    "queue_ids": QUEUE_KEY_PREFIX,
    "max_id_bytes": MAX_ID_BYTES,
    "max_group_bytes": MAX_GROUP_BYTES,
    "max_priority": MAX_PRIORITY,
    "max_seconds": MAX_SECONDS,
    "max_epoch_seconds": MAX_EPOCH_SECONDS,
    "max_trace_bytes": MAX_TRACE_CONTEXT_BYTES,
    "max_payload_bytes": MAX_PAYLOAD_BYTES,
    "max_depth": MAX_JSON_DEPTH,
    "max_float": sys.float_info.max,
    "max_digits": sys.int_info.default_max_str_digits,
    "max_quoted": MAX_QUOTED_CHARS,
    "traceparent": f"^({TRACEPARENT.pattern})( |$)",
    "min_value": SMALLEST_VALUE,
    "max_value": LARGEST_VALUE,
    "default_value": DEFAULT_VALUE,
    "min_cost": SMALLEST_COST,
    "max_cost": LARGEST_COST,
    "default_cost": DEFAULT_COST,
    "step": Decay.STEP.value,
    "linear": Decay.LINEAR.value,
    "by_value": Order.VALUE.value,
    "by_deadline": Order.DEADLINE.value,
    "bands": BANDS_PER_DOUBLING,
    "band_offset": BAND_OFFSET,
    "age_digits": AGE_DIGITS,
    "age_offset": AGE_OFFSET,
    "never_us": int(NEVER * 1e6),
    "remembered_chars": REMEMBERED_PUTS * ENTRY_CHARS,
    "max_age_seconds": QueueConfig().max_age_seconds,
    "retention_seconds": QueueConfig().retention_seconds,
    # The library also takes "after".
    "bad_conflict": "on_conflict: the function takes 'ignore' or 'update'",
}
# Arguments that break one rule of `Queue.put`, by the name of the message in the function's text.
BROKEN: Final[dict[str, dict[str, Any]]] = {
    "empty_id": {"task_id": ""},
    "own_id": {"task_id": RESERVED_ID_PREFIX},
    "queue_id": {"task_id": QUEUE_KEY_PREFIX},
    "long_id": {"task_id": "x" * (MAX_ID_BYTES + 1)},
    "odd_priority": {"priority": 0.5},
    "low_priority": {"priority": -1},
    "high_priority": {"priority": MAX_PRIORITY + 1},
    "no_delay": {"delay_seconds": None},
    "infinite_delay": {"delay_seconds": inf},
    "low_delay": {"delay_seconds": -1},
    "high_delay": {"delay_seconds": 2 * MAX_SECONDS},
    "infinite_max_age": {"max_age_seconds": inf},
    "low_max_age": {"max_age_seconds": 0},
    "long_max_age": {"max_age_seconds": 2 * MAX_SECONDS},
    "empty_group": {"group": ""},
    "long_group": {"group": "x" * (MAX_GROUP_BYTES + 1)},
    "empty_kind": {"kind": ""},
    "long_kind": {"kind": "x" * (MAX_GROUP_BYTES + 1)},
    "infinite_value": {"value": inf},
    "low_value": {"value": 0},
    "high_value": {"value": 2 * LARGEST_VALUE},
    "bad_decay": {"decay": "x"},
    "infinite_cost": {"cost": inf},
    "low_cost": {"cost": 0},
    "high_cost": {"cost": 2 * LARGEST_COST},
    "infinite_at": {"at": inf},
    "low_at": {"at": -1},
    "high_at": {"at": 2 * MAX_EPOCH_SECONDS},
    "late_at": {"at": 2 * MAX_SECONDS},
    "two_times": {"at": 1, "delay_seconds": 1},
    "bad_traceparent": {"trace_context": "x"},
    "bad_tracestate": {"trace_context": f"00-{'1' * 32}-{'1' * 16}-01 \0"},
    "deep_payload": {"payload": json.loads("[" * (MAX_JSON_DEPTH + 1) + "]" * (MAX_JSON_DEPTH + 1))},
}
# What depends on the arguments in a message: their size, and the queue's limit.
OWN: Final = re.compile(r"\d+(?= bytes)|(?<=queue's )[\d.]+")
_OPEN: Final = re.compile(r"\{([a-z]\w*)\}")
# The texts or comments of the functions of a name beside a table, on PostgreSQL in its quoted schema.
FUNCTIONS: Final = {
    "postgresql": sa.text(
        "SELECT prosrc FROM pg_proc JOIN pg_namespace ON pg_namespace.oid = pronamespace "
        "WHERE proname = :of_name AND quote_ident(nspname) || '.' = :of_place"
    ),
    "mariadb": sa.text(
        "SELECT routine_comment FROM information_schema.routines "
        "WHERE routine_schema = DATABASE() AND routine_name = :of_name AND '' = :of_place"
    ),
}
# In them, before the version of a function of freshq.
MARK: Final = "-- freshq "
VERSION: Final = re.compile(f"{MARK}[0-9a-f]+")
# Arguments in the JSON object that MariaDB's function takes, its texts, and those that may not contain NUL.
IN_OBJECT: Final = (
    *("task_id", "priority", "delay_seconds", "at", "max_age_seconds", "group", "kind", "value", "decay"),
    *("trace_context", "on_conflict", "cost"),
)
NULS: Final = {"id": "task_id", "group": "group", "kind": "kind"}
TEXTS_IN_OBJECT: Final = ("task_id", "group", "kind", "decay", "trace_context", "on_conflict")


def refusal(arguments: dict[str, Any]) -> str:
    """Return how `Queue.put` refuses arguments, with %s for what depends on them, and without their values.

    Args:
        arguments: Of a put, or the name of a queue.
    """
    try:
        if "name" in arguments:
            checked_options(arguments)
        Lifecycle(QueueConfig()).created(parse_new_task(arguments), 0.0, 0.0)
    except ValueError as error:
        return OWN.sub("%s", str(error).partition(", got ")[0], count=1)
    msg = f"a put would accept {arguments}"
    raise AssertionError(msg)


def literal(value: object, dialect: str = "postgresql") -> str:
    """Return a text or a number in the SQL of PostgreSQL or MariaDB."""
    if not isinstance(value, str):
        return repr(value)
    quoted = "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
    return f"E{quoted}" if "\\" in value and dialect == "postgresql" else quoted


class PutFunction:
    """The function by which SQL puts tasks: `freshq_put`, or `freshq_put_TABLE` if the table is not `tasks`.

    It is in the schema of the table, and names schemas, because a caller's search path may differ.

    Attributes:
        name: Its name.
    """

    def __init__(self, schema: Schema, dialect: sa.Dialect, place: str, database: str = "") -> None:
        """Name the tables.

        Args:
            schema: The tables.
            dialect: The dialect of their database.
            place: The prefix of the names of tables: their schema.
            database: The database of the tables, for MariaDB.
        """
        self._place = place
        self._dialect = "postgresql" if dialect.name == "postgresql" else "mariadb"
        self._parts = parts_of(f"put.{self._dialect}.sql")
        table = schema.tasks.name
        self.name = "freshq_put" if table == "tasks" else f"freshq_put_{table}"
        quoted = dialect.identifier_preparer.quote
        self._names = {
            "function": place + quoted(self.name),
            "tasks": place + quoted(table),
            "records": place + quoted(schema.records.name),
            # MariaDB takes the caller's database for the table in `ROW TYPE OF` unless it is named, and the
            # function's database for every other table.
            "row_type": f"{quoted(database)}.{quoted(table)}" if database else quoted(table),
            "columns": ", ".join(NEW_COLUMNS),
            "values": ", ".join(f"task.{name}" for name in NEW_COLUMNS),
            "assigned": ", ".join(f"{name} = task.{name}" for name in NEW_COLUMNS),
            "cleared": ", ".join(f"{name} = NULL" for name in SET_LATER),
        }
        values = LIMITS | {name: refusal(arguments) for name, arguments in BROKEN.items()}
        values |= {"channel": channel_of(table), "announcement": announcement(ANY_SENDER, "%s")}
        values["bad_queue"] = refusal({"name": ""}).replace("name", "queue", 1)
        values["large_payload"] = refusal({"payload": "x" * MAX_PAYLOAD_BYTES})
        if self._dialect == "mariadb":
            values |= self._of_mariadb()
        self._names |= {name: literal(value, self._dialect) for name, value in values.items()}

    def _of_mariadb(self) -> dict[str, object]:
        """Return what only MariaDB's text names: its regular expressions, and checks of the JSON object."""
        of_types: dict[str, dict[str, Any]] = {
            "no_text": {"task_id": 5},
            "no_whole": {"priority": 0.5},
            "no_number": {"delay_seconds": None},
        }
        fields = ",".join(IN_OBJECT)
        return {
            **{name: refusal(arguments).partition(": ")[2] for name, arguments in of_types.items()},
            **{f"nul_{name}": refusal({field: "\0"}) for name, field in NULS.items()},
            "fields": fields,
            "texts": ",".join(TEXTS_IN_OBJECT),
            "unknown": f"unknown field; use one of {fields.replace(',', ', ')}",
            "json": self._parts["json"],
            "string": self._parts["string"],
            "large": self._parts["large"].replace("{string}", self._parts["string"]),
            # There, $ is also before a line feed at the end.
            "queue_name": NAME_PATTERN.removesuffix("$") + "\\z",
            "traceparent": f"^({TRACEPARENT.pattern})( |\\z)",
        }

    def texts(self) -> list[str]:
        """Return the statements that create it."""
        each = [self._parts["put"]]
        if "put_json" in self._parts:
            each += [self._parts["put_json"].replace("{json}", kind) for kind in ("json", "jsonb")]
        filled = [
            _filled(_filled(text, {"parameters": self._parts.get("parameters", "")}), self._names)
            for text in each
        ]
        version = blake2b("".join(filled).encode(), digest_size=8).hexdigest()
        return [text.replace("{version}", f"{MARK}{version}") for text in filled]

    def create(self, connection: sa.Connection) -> None:
        """Create it, or replace one of another version. Without the right to, or beside another one, warn."""
        texts = self.texts()
        if self._is_there(connection, texts):
            return
        try:
            with connection.begin_nested() if self._dialect == "postgresql" else _strict(connection):
                for text in texts:
                    connection.exec_driver_sql(text, execution_options={"no_parameters": True})
        except DBAPIError as error:
            if code_of(error.orig, self._dialect) not in NO_FUNCTION:
                raise
            reason = " ".join(str(error.orig).split())
            logger.warning(
                "function %s: not created (%.300s); only SQL that puts tasks needs it", self.name, reason
            )

    def _is_there(self, connection: sa.Connection, texts: list[str]) -> bool:
        """Return whether the functions are up to date, or an application's, which stay."""
        found = self._found(connection)
        if None in found:
            logger.warning("function %s: an application has one of this name; freshq's is missing", self.name)
            return True
        return found == [_version_of(text) for text in texts]

    def _found(self, connection: sa.Connection) -> list[str | None]:
        """Return the versions of the functions of this name; None for an application's."""
        names = {"of_name": self.name, "of_place": self._place}
        return [
            _version_of(text) for text in connection.execute(FUNCTIONS[self._dialect], names).scalars().all()
        ]

    def is_outdated(self, connection: sa.Connection) -> bool:
        """Return whether the function is of another version of freshq."""
        return bool(set(self._found(connection)) - {None, _version_of(self.texts()[0])})


def _version_of(text: str) -> str | None:
    found = VERSION.search(text)
    return None if found is None else found[0]


@contextmanager
def _strict(connection: sa.Connection) -> Iterator[None]:
    """In this block, let MariaDB keep functions with the SQL mode that they need."""
    connection.exec_driver_sql("SET @freshq_sql_mode = @@sql_mode, sql_mode = 'STRICT_ALL_TABLES'")
    try:
        yield
    finally:
        connection.exec_driver_sql("SET sql_mode = @freshq_sql_mode")


def _filled(text: str, names: Mapping[str, str]) -> str:
    """Fill in names in braces; leave those that are not given."""
    return _OPEN.sub(lambda found: names.get(found[1], found[0]), text)


def put_function(connection: sa.Connection, schema: Schema) -> PutFunction | None:
    """Return the function of tables that exist; None for a database without it."""
    dialect: Any = connection.dialect
    if dialect.name != "postgresql" and not getattr(dialect, "is_mariadb", False):
        return None
    database = "" if dialect.name == "postgresql" else connection.scalar(sa.text("SELECT DATABASE()"))
    return PutFunction(schema, dialect, place_in(connection, schema.tasks.name), str(database))


def create_put_function(connection: sa.Connection, schema: Schema) -> None:
    """Create the function by which SQL puts tasks, on PostgreSQL for the owner of the table."""
    name = connection.dialect.identifier_preparer.format_table(schema.tasks)
    is_postgresql = connection.dialect.name == "postgresql"
    if is_postgresql and connection.execute(PARAMETERS, {"of_table": name}).scalar() is None:
        return
    function = put_function(connection, schema)
    if function is not None:
        function.create(connection)


@dataclass(frozen=True, slots=True)
class Migration:
    """One step from a version of the schema to the next.

    Attributes:
        version: Version of the schema after the step.
        name: A short description.
        apply: Applies the step. It must accept work that is already done: MariaDB commits each change of a
            table immediately, so an interrupted step is applied again.
    """

    version: int
    name: str
    apply: Callable[[sa.Connection, Schema], None]


def create_missing(connection: sa.Connection, tables: Iterable[sa.Table]) -> None:
    """Create the tables and the indexes that are missing: MariaDB keeps a table whose index was not made."""
    for table in tables:
        table.create(connection, checkfirst=True)
        for index in sorted(table.indexes, key=lambda each: str(each.name)):
            index.create(connection, checkfirst=True)


MIGRATIONS: Final = (
    Migration(1, "create the tables", lambda session, of: create_missing(session, of.metadata.sorted_tables)),
)


def migrate(database: Database, schema: Schema, migrations: Sequence[Migration] = MIGRATIONS) -> list[str]:
    """Migrate the tables to the newest version.

    Args:
        database: The database.
        schema: The tables.
        migrations: All migrations, in order.

    Returns:
        The names of the migrations that were applied.

    Raises:
        StoreError: If a migration failed, the tables are newer than this program, or an application's own
            table has one of the names. Then nothing was changed.
    """
    with alone(database, schema.migrations.name):
        return database.transaction(lambda connection: apply_missing(connection, schema, migrations))


def apply_missing(connection: sa.Connection, schema: Schema, migrations: Sequence[Migration]) -> list[str]:
    """Apply the migrations that the tables lack, in the transaction of a connection; return their names.

    Raises:
        StoreError: If the tables are newer than this program, or a table of an application has one of the
            names.
    """
    lock_changes(connection, schema.migrations.name)
    check_owned(connection, [schema.migrations])
    reached = reached_version(connection, schema)
    is_new = reached is None
    reached = reached or 0
    if reached > migrations[-1].version:
        msg = (
            f"table {schema.tasks.name!r}: version {reached} is newer than this program knows; update freshq"
        )
        raise StoreError(msg)
    missing = [migration for migration in migrations if migration.version > reached]
    if missing:
        check_owned(connection, schema.metadata.sorted_tables)
    if is_new:
        schema.migrations.create(connection)
    for migration in missing:
        with answer_within(connection, None):  # indexing a large table takes long
            migration.apply(connection, schema)
        connection.execute(
            sa.insert(schema.migrations).values(version=migration.version, name=migration.name)
        )
    set_storage(connection, schema.tasks)
    create_put_function(connection, schema)
    return [migration.name for migration in missing]


def set_storage(connection: sa.Connection, tasks: sa.Table) -> None:
    """Set the storage parameters that PostgreSQL's table of tasks lacks; keep those that it has."""
    if connection.dialect.name != "postgresql":
        return
    name = connection.dialect.identifier_preparer.format_table(tasks)
    found = connection.execute(PARAMETERS, {"of_table": name}).scalar()
    if found is None:
        return
    own = {parameter.partition("=")[0] for parameter in found}
    missing = [f"{parameter} = {value}" for parameter, value in STORAGE.items() if parameter not in own]
    if missing:
        connection.execute(sa.text(f"ALTER TABLE {name} SET ({', '.join(missing)})"))


def reached_version(connection: sa.Connection, schema: Schema) -> int | None:
    """Return the version that the tables have; None if there are none."""
    if not sa.inspect(connection).has_table(schema.migrations.name):
        return None
    newest = sa.select(sa.func.coalesce(sa.func.max(schema.migrations.c.version), 0))
    version: int = connection.execute(newest).scalar_one()
    return version


def lock_changes(connection: sa.Connection, name: str) -> None:
    """Keep other processes from migrating the same PostgreSQL tables until the transaction ends."""
    if connection.dialect.name == "postgresql":
        lock = zlib.crc32(name.encode())
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(lock)))


@contextmanager
def alone(database: Database, name: str) -> Iterator[None]:
    """Keep other processes from migrating the same MariaDB or MySQL tables at the same time.

    On the other databases the migrating transaction holds the lock; see `lock_changes`.
    """
    if database.dialect not in ("mysql", "mariadb"):
        yield
        return
    with database.translating(), database.engine.connect() as connection:
        if connection.execute(sa.select(sa.func.get_lock(name, LOCK_SECONDS))).scalar_one() != 1:
            msg = f"{name}: another process has been migrating it for {LOCK_SECONDS} s; try again"
            raise StoreError(msg)
        try:
            yield
        finally:
            with suppress(SQLAlchemyError):  # a lost connection has released it
                connection.execute(sa.select(sa.func.release_lock(name)))
