"""Columns, conditions and database differences shared by the statements of all parts.

Each part of the store keeps its statements in a class beside the code that runs them, one property per
statement, built once for all stores on the same tables. Parameters of conditions begin with `of_`, so that
they cannot clash with columns.
"""

from __future__ import annotations

import re
from functools import cache, cached_property, partial
from importlib import import_module
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, Self, cast
from weakref import WeakValueDictionary

import sqlalchemy as sa

from freshq.model.fields import NEVER
from freshq.policy.value import DEFAULT_VALUE
from freshq.stores.base import Store
from freshq.stores.sql.database import PreparedStatement
from freshq.stores.sql.horizon import Horizon
from freshq.stores.sql.listening import PostgresNotifier
from freshq.stores.sql.rows import COLUMNS, STALE, microseconds
from freshq.stores.sql.schema import NO_BATCH
from freshq.stores.sql.url import place_of
from freshq.stores.sql.watching import TableNotifier

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from freshq.stores.base import Guard
    from freshq.stores.sql.database import Database
    from freshq.stores.sql.schema import Schema

TAKEN: Final[sa.ColumnElement[str]] = sa.literal_column("'TAKEN'")
# Dialects that share another dialect's INSERT.
INSERT_OF: Final = {"mariadb": "mysql"}
MYSQL: Final = ("mysql", "mariadb")
# In a file of statements: the head of each, what it leaves open, its parameters, and those that are lists.
HEAD: Final = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
COMMENT: Final = re.compile(r"^--.*\n", re.MULTILINE)
OPEN: Final = re.compile(r"\{(\w+)\}")
PARAMETER: Final = re.compile(r":(\w+)")
LIST: Final = re.compile(r"\bIN :(\w+)")
JSON_LIST: Final = re.compile(r"\bJSON_TABLE\(:(\w+)")
Conditions = tuple[sa.ColumnElement[bool], ...]
_SHARED: Final[WeakValueDictionary[tuple[object, ...], Statements]] = WeakValueDictionary()


class Statements:
    """Columns and conditions of statements on the tables of one store, in one dialect."""

    def __init__(self, schema: Schema, dialect: sa.Dialect) -> None:
        """Store the arguments; each statement is built at its first use.

        Args:
            schema: The tables.
            dialect: The dialect of SQLite, PostgreSQL, MySQL or MariaDB.
        """
        self.schema = schema
        self.tasks = schema.tasks
        self.dialect = dialect
        self.is_mysql = dialect.name in MYSQL
        # MariaDB has no UPDATE ... RETURNING.
        self.has_returning = not self.is_mysql

    @classmethod
    def shared(cls, schema: Schema, dialect: sa.Dialect) -> Self:
        """Return the statements shared by all stores on the same tables, while any of them is in use.

        Args:
            schema: The tables.
            dialect: As above. The SQL depends on the server's version, so each engine has its own statements;
                all SQLite files of a process share one version.
        """
        key = (cls, schema, type(dialect) if dialect.name == "sqlite" else dialect)
        found = _SHARED.get(key)
        return cast("Self", found or _SHARED.setdefault(key, cls(schema, dialect)))

    def prepared(self, statement: sa.Executable, columns: Sequence[str] | None = None) -> PreparedStatement:
        """Return a statement compiled for the driver; with `columns`, it takes tuples of their values."""
        return PreparedStatement(statement, self.dialect, columns)

    @cached_property
    def this_task(self) -> Conditions:
        """The task has the id `of_task_id` in the queue `of_queue`."""
        tasks = self.tasks.c
        return (tasks.task_id == sa.bindparam("of_task_id"), tasks.queue == sa.bindparam("of_queue"))

    def unindexed(self, column: sa.ColumnElement[Any]) -> sa.ColumnElement[Any]:
        """Return the value of a column of text in a form by which PostgreSQL does not search.

        It has no index for this form. By the column itself, it may read the whole index of the agenda.
        """
        is_postgresql = self.dialect.name == "postgresql"
        return column.concat(sa.literal_column("''")) if is_postgresql else column


class SqlPart(Store):
    """Base of the parts of the SQL store, each of which implements some methods of `Store`.

    Attributes:
        database: Runs the statements.
        schema: The tables.
        queue: The queue whose tasks `get` returns; None for any queue of the table.
        sql: The statements.
        horizon: The ranges to skip while an old snapshot is open.
    """

    counts_groups = True

    def __init__(self, database: Database, schema: Schema, queue: str | None = None) -> None:
        self.database = database
        self.schema = schema
        self.queue = queue
        name = database.engine.dialect.identifier_preparer.format_table(schema.tasks)
        self.horizon = Horizon(database, name)
        place = (repr(place_of(database.engine.url)), schema.tasks.name)
        self.sql = TextStatements.shared(schema, database.engine.dialect)
        kind = PostgresNotifier if database.dialect == "postgresql" else TableNotifier
        self.notifier = kind(place, database, schema.tasks.name)

    def rows(self, name: str, where: Mapping[str, Any]) -> Sequence[sa.Row[Any]]:
        """Return the rows that the statement of a name selects."""
        return self.database.rows(self.sql.statement(name), where)

    def row(self, name: str, where: Mapping[str, Any]) -> sa.Row[Any] | None:
        """Return the only row that the statement of a name selects; None if there is none."""
        return self.database.row(self.sql.statement(name), where)

    def leave_lines(self, queue: str, now: float, limit: int) -> int:
        """Remove up to `limit` stale tasks from their lines, and note their deadlines; return how many.

        Raises:
            StoreError: If the database failed.
        """
        where = self.horizon.past(queue, STALE, now)
        looks_first = self.database.dialect != "postgresql"
        if looks_first and not self.rows("any_past", where):
            return 0
        if self.sql.has_returning:
            rows = self.database.execute(self.sql.ready("leave_lines"), where | {"page": limit}).rows
            deadlines_us = [row[0] for row in rows]
            if len(deadlines_us) < limit:
                self.horizon.none_past(where)
        else:
            deadlines_us = self.database.transaction(partial(self._leave, where, limit))
        self.expired.note(queue, [deadline_us / 1e6 for deadline_us in deadlines_us])
        return len(deadlines_us)

    def _leave(self, where: Mapping[str, Any], limit: int, connection: sa.Connection) -> list[int]:
        """Remove the first stale tasks from their lines, on MariaDB and MySQL; return their deadlines."""
        found = connection.execute(self.sql.statement("stale"), {**where, **page_of(limit)}).all()
        if found:
            ids = sorted(row.task_id for row in found)
            connection.execute(self.sql.statement("leave_lines"), {**where, "of_ids": ids})
        return [row.deadline_us for row in found]


def page_of(rows: int) -> dict[str, int]:
    """Return the parameters of a page, which skips the locked tasks of up to nine other such pages."""
    return {"page": rows, "looked": 10 * rows}


def dialect_insert(table: sa.Table, dialect: sa.Dialect) -> Any:
    """Return an INSERT with the clauses of a dialect; import only this dialect, because imports are slow."""
    module = import_module(f"sqlalchemy.dialects.{INSERT_OF.get(dialect.name, dialect.name)}")
    return module.insert(table)


def insert_or_ignore(table: sa.Table, dialect: sa.Dialect) -> Any:
    """Return an INSERT that skips rows whose key is taken, and reports every other error."""
    insert = dialect_insert(table, dialect)
    if dialect.name in ("sqlite", "postgresql"):
        return insert.on_conflict_do_nothing()
    key = next(iter(table.primary_key))
    # INSERT IGNORE would also truncate overlong values.
    return insert.on_duplicate_key_update({key.name: key})


def guard_parameters(guard: Guard) -> dict[str, str]:
    """Return the parameters of a guard's conditions."""
    parameters = {
        "of_status": guard.status.value,
        "of_lease_token": guard.lease_token,
        "of_request_token": guard.request_token,
    }
    return {name: value for name, value in parameters.items() if value is not None}


def in_time(queue: str, now: float, created_after: float) -> dict[str, Any]:
    """Return the parameters that select the live tasks of a line."""
    return {
        "of_queue": queue,
        "created_after_us": microseconds(created_after),
        "deadline_after_us": microseconds(now),
    }


def parts_of(file: str) -> dict[str, str]:
    """Return the parts of a file of this folder by name, without their comments."""
    _says, *parts = HEAD.split(files(__package__).joinpath(file).read_text("utf-8"))
    return {name: COMMENT.sub("", text).strip() for name, text in zip(parts[::2], parts[1::2], strict=True)}


class TextStatements(Statements):
    """The statements whose source is text, in the .sql files beside this module.

    Attributes:
        texts: The statements by name, and what they share.
        statement: Returns a statement by its name; and, if there are two, whether the newest task of a line
            is first.
        ready: As `statement`, compiled for the driver.
    """

    def __init__(self, schema: Schema, dialect: sa.Dialect) -> None:
        super().__init__(schema, dialect)
        # Read now: while a process has no file descriptor left, a statement must need none.
        self.texts = self._read()
        self.statement = cache(self._statement)
        self.ready = cache(self._ready)

    def _read(self) -> dict[str, str]:
        dialect = "mariadb" if self.is_mysql else self.dialect.name
        quoted = self.dialect.identifier_preparer.format_table
        tables = ("tasks", "records", "counts", "history", "histories")
        texts = {name: quoted(getattr(self.schema, name)) for name in tables}
        texts["columns"] = ", ".join(map(self._selected, COLUMNS))
        numbers = {"never_us": NEVER * 1e6, "default_value": DEFAULT_VALUE * 1e6, "no_batch": NO_BATCH}
        texts |= {name: str(round(number)) for name, number in numbers.items()}
        own = [f"tasks.{dialect}.sql"] if self.is_mysql else []
        for file in ("claim.sql", f"claim.{dialect}.sql", "counts.sql", "tasks.sql", "records.sql", *own):
            texts |= parts_of(file)
        return texts

    def _selected(self, name: str) -> str:
        # SQLite stores any bytes as text, and bytes that are not UTF-8 would break the whole result.
        is_cast = name == "payload" and self.dialect.name == "sqlite"
        return f"CAST({name} AS BLOB) AS {name}" if is_cast else name

    def text(self, name: str, newest_first: bool = False) -> str:  # noqa: FBT001, FBT002 - a key
        """Return the text of a statement, with nothing left open."""

        def filled(found: re.Match[str]) -> str:
            if found[1] == "desc":
                return "DESC" if newest_first else ""
            return self.text(found[1], newest_first)

        return OPEN.sub(filled, self.texts[name])

    def _statement(self, name: str, newest_first: bool = False) -> sa.TextClause | sa.TextualSelect:  # noqa: FBT001, FBT002 - a key
        return self.of_text(self.text(name, newest_first))

    def of_text(self, text: str) -> sa.TextClause | sa.TextualSelect:
        """Return the statement that has a text."""
        lists, json_lists = LIST.findall(text), JSON_LIST.findall(text)
        # Values to compare with keys, which MariaDB and MySQL store as bytes.
        key = self.tasks.c.task_id.type if self.is_mysql else None

        def bind(name: str) -> sa.BindParameter[Any]:
            kind = key if name.startswith("of_") else None
            return sa.bindparam(
                name, type_=sa.JSON() if name in json_lists else kind, expanding=name in lists
            )

        statement = sa.text(text).bindparams(*map(bind, set(PARAMETER.findall(text))))
        if not text.startswith(("SELECT", "WITH")):
            return statement
        tables = (self.schema.records, self.schema.counts, self.tasks)
        return statement.columns(**{column.name: column.type for table in tables for column in table.c})

    def _ready(self, name: str, newest_first: bool = False) -> PreparedStatement:  # noqa: FBT001, FBT002 - a key
        return self.prepared(self.statement(name, newest_first))
