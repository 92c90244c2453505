"""Compare a database with what freshq's tables need: columns, indexes, triggers, rights, and safe commits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.schema import CreateIndex

from freshq.stores.base import Finding, Health
from freshq.stores.sql.failures import RightsMissing
from freshq.stores.sql.migrations import Triggers, put_function

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from freshq.stores.sql.database import Database
    from freshq.stores.sql.schema import Schema


class SafeSetting(NamedTuple):
    """A setting that decides whether committed tasks survive.

    Attributes:
        name: Its name.
        safe: Its safe values, the best first.
        loss: The damage that another value may cause.
    """

    name: str
    safe: tuple[str, ...]
    loss: str


_LOST: Final = "the server may lose acknowledged puts when it crashes"
_TORN: Final = "may damage the tables beyond repair"
_INNODB: Final = (
    SafeSetting("innodb_flush_log_at_trx_commit", ("1", "3"), _LOST),
    SafeSetting("innodb_doublewrite", ("ON", "1", "fast", "FAST"), f"a loss of power {_TORN}"),
    SafeSetting(
        "innodb_flush_method",
        ("", "fsync", "O_DIRECT", "O_DIRECT_NO_FSYNC", "O_DSYNC", "unbuffered", "async_unbuffered", "normal"),
        _LOST,
    ),
)
DURABLE: Final[Mapping[str, tuple[SafeSetting, ...]]] = {
    "postgresql": (
        SafeSetting("fsync", ("on",), f"a loss of power loses acknowledged puts, and {_TORN}"),
        SafeSetting("full_page_writes", ("on",), f"a loss of power {_TORN}"),
        SafeSetting("synchronous_commit", ("on", "local", "remote_write", "remote_apply"), _LOST),
    ),
    "mysql": _INNODB,
    "mariadb": _INNODB,
    # NORMAL undoes the last commits after a loss of power; the option durable=False chooses it.
    "sqlite": (
        SafeSetting("synchronous", ("2", "3"), "a loss of power may undo acknowledged puts"),
        SafeSetting("journal_mode", ("wal", "delete", "truncate", "persist"), f"a crash {_TORN}"),
    ),
}
_VALUES: Final = {
    "postgresql": "SELECT name, setting FROM pg_settings WHERE name IN :names",
    "mysql": "SHOW VARIABLES WHERE variable_name IN :names",
    "mariadb": "SHOW VARIABLES WHERE variable_name IN :names",
}
# Tables whose content a crash empties, or whose engine has no transactions.
_KINDS: Final = {
    "postgresql": "SELECT relname FROM pg_class WHERE oid IN (SELECT to_regclass(name) FROM "
    "unnest(CAST(:names AS text[])) AS name) AND relpersistence = 'u'",
    "mysql": "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE() "
    "AND table_name IN :names AND engine NOT IN ('InnoDB', 'ROCKSDB', 'ndbcluster')",
}
# Roles with settings of their own: producers that use them commit under these settings.
_ROLES: Final = (
    "SELECT coalesce(rolname, 'all roles') FROM pg_db_role_setting "
    "LEFT JOIN pg_roles ON pg_roles.oid = setrole "
    "LEFT JOIN pg_database ON pg_database.oid = setdatabase "
    "WHERE coalesce(datname, current_database()) = current_database() "
    "AND setconfig && ARRAY['synchronous_commit=off', 'synchronous_commit=false', 'synchronous_commit=0']"
)
_INVALID: Final = (
    "SELECT pg_class.relname FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid "
    "WHERE indrelid = to_regclass(:table) AND NOT indisvalid"
)


def durability(database: Database, schema: Schema, settings: tuple[SafeSetting, ...]) -> Iterator[Finding]:
    """Look whether commits survive a crash of the server, and a loss of power."""
    values = _values(database, settings)
    safe = True
    for setting in settings:
        value = values.get(setting.name)
        if value is not None and value not in setting.safe:
            safe = False
            text = f"{setting.name}={value}: {setting.loss}"
            yield Finding(Health.WARNING, "durability", text, f"set {setting.name}={setting.safe[0]}")
    for text, action in _kinds(database, schema):
        safe = False
        yield Finding(Health.WARNING, "durability", text, action)
    if safe:
        text = ", ".join(f"{name}={value}" for name, value in values.items() if value)
        yield Finding(Health.OK, "durability", text)


def _values(database: Database, settings: tuple[SafeSetting, ...]) -> dict[str, str]:
    names = [setting.name for setting in settings]
    if database.dialect == "sqlite":
        return {name: str(database.rows(sa.text(f"PRAGMA {name}"), {})[0][0]) for name in names}
    query = sa.text(_VALUES[database.dialect]).bindparams(sa.bindparam("names", expanding=True))
    found = dict(map(tuple, database.rows(query, {"names": names})))
    return {name: str(found[name]) for name in names if name in found}


def _kinds(database: Database, schema: Schema) -> Iterator[tuple[str, str]]:
    """Yield what is unsafe about the tables themselves, and about other roles; and the remedies."""
    names = [table.name for table in schema.metadata.sorted_tables]
    if database.dialect == "sqlite":
        return
    if database.dialect == "postgresql":
        for (name,) in database.rows(sa.text(_KINDS["postgresql"]), {"names": names}):
            yield f"table {name} is UNLOGGED: a crash empties it", f"ALTER TABLE {name} SET LOGGED"
        for (role,) in database.rows(sa.text(_ROLES), {}):
            reset = f"reset it: ALTER ROLE {role} RESET synchronous_commit, or ALTER DATABASE"
            yield f"synchronous_commit is off for {role}: {_LOST}", reset
        return
    query = sa.text(_KINDS["mysql"]).bindparams(sa.bindparam("names", expanding=True))
    for (name,) in database.rows(query, {"names": names}):
        yield f"table {name} is in an engine without transactions", f"ALTER TABLE {name} ENGINE=InnoDB"


def structure(database: Database, schema: Schema) -> Iterator[Finding]:
    """Compare the tables with their newest version: columns, keys, indexes, and the triggers of a history."""
    problems = list(database.read(lambda connection: [*_problems(connection, schema)]))
    yield from problems
    if not problems:
        yield Finding(Health.OK, "schema", "columns, indexes and triggers are there")


def _problems(connection: sa.Connection, schema: Schema) -> Iterator[Finding]:
    inspector = sa.inspect(connection)
    for table in schema.metadata.sorted_tables:
        if not inspector.has_table(table.name):
            text = f"table {table.name} does not exist"
            yield Finding(Health.WRONG, "schema", text, "restore it from a backup")
            continue
        columns = {column["name"] for column in inspector.get_columns(table.name)}
        for column in table.columns:
            if column.name not in columns:
                text = f"table {table.name} lacks the column {column.name}"
                yield Finding(Health.WRONG, "schema", text, "restore the table from a backup")
        key = inspector.get_pk_constraint(table.name)["constrained_columns"]
        if key != [column.name for column in table.primary_key]:
            text = f"the primary key of {table.name} is ({', '.join(key)})"
            yield Finding(Health.WRONG, "schema", text, "restore the table from a backup")
        yield from _of_indexes(connection, inspector, table)
    yield from _of_triggers(connection, schema)
    if inspector.has_table(schema.tasks.name):
        yield from _of_function(connection, schema)


def _of_indexes(connection: sa.Connection, inspector: sa.Inspector, table: sa.Table) -> Iterator[Finding]:
    found = {index["name"]: index["column_names"] for index in inspector.get_indexes(table.name)}
    invalid: set[str] = set()
    if connection.dialect.name == "postgresql":
        invalid = set(connection.execute(sa.text(_INVALID), {"table": table.name}).scalars())
    for index in sorted(table.indexes, key=lambda each: str(each.name)):
        create = " ".join(str(CreateIndex(index).compile(dialect=connection.dialect)).split())
        if index.name not in found:
            text = f"table {table.name} lacks the index {index.name}"
            yield Finding(Health.WRONG, "schema", text, f"run: {create}")
        elif found[index.name] != [column.name for column in index.columns] or index.name in invalid:
            text = f"the index {index.name} of {table.name} is invalid, or has other columns"
            yield Finding(Health.WRONG, "schema", text, f"drop it, and run: {create}")


def _of_triggers(connection: sa.Connection, schema: Schema) -> Iterator[Finding]:
    if not sa.inspect(connection).has_table(schema.histories.name):
        return
    kept = connection.execute(sa.select(sa.func.count()).select_from(schema.histories)).scalar()
    missing = Triggers.of(schema, connection).missing(connection) if kept else []
    if missing:
        text = f"the history misses changes: no trigger {', '.join(missing)}"
        yield Finding(Health.WRONG, "schema", text, "freshq table create with ?history=on in the address")


def _of_function(connection: sa.Connection, schema: Schema) -> Iterator[Finding]:
    function = put_function(connection, schema)
    if function is not None and function.is_outdated(connection):
        text = f"the function {function.name} is of another version of freshq"
        yield Finding(Health.WARNING, "schema", text, "freshq table create with the address of the queue")


def rights(database: Database, schema: Schema) -> Iterator[Finding]:
    """Look whether the user may do what workers do. The statements find no row, so they change nothing."""
    if database.dialect == "sqlite":
        return
    missing = [
        f"{verb} on {table.name}"
        for table in (schema.tasks, schema.records, schema.counts)
        for verb, statement in _harmless(table).items()
        if not _may(database, statement)
    ]
    if missing:
        text = f"the user lacks {', '.join(missing)}"
        yield Finding(Health.WARNING, "rights", text, "see docs/sql.md, Rights")
    else:
        yield Finding(Health.OK, "rights", "the user may put, claim and settle")


def _harmless(table: sa.Table) -> dict[str, sa.Executable]:
    nothing, column = sa.literal_column("1") == sa.literal_column("0"), next(iter(table.columns))
    return {
        "SELECT": sa.select(column).where(nothing),
        "INSERT": sa.insert(table).from_select(
            [each.name for each in table.columns], sa.select(table).where(nothing)
        ),
        "UPDATE": sa.update(table).where(nothing).values({column.name: column}),
        "DELETE": sa.delete(table).where(nothing),
    }


def _may(database: Database, statement: sa.Executable) -> bool:
    def attempt(connection: sa.Connection) -> Any:
        return connection.execute(statement).close()

    try:
        database.read(attempt)
    except RightsMissing:
        return False
    return True
