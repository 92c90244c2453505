"""The versions of the schema, applied in order, each once, by one process at a time."""

from __future__ import annotations

import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import sqlalchemy as sa

from freshq.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from freshq.stores.sql.database import Database
    from freshq.stores.sql.schema import Schema

LOCK_SECONDS: Final = 60


@dataclass(frozen=True, slots=True)
class Migration:
    """One step from a version of the schema to the next.

    Attributes:
        version: The version it leads to.
        name: What it does.
        apply: Does it. MariaDB commits each change of a table at once, so a step that was interrupted
            is applied again: it must find its own work done.
    """

    version: int
    name: str
    apply: Callable[[sa.Connection, Schema], None]


def _create(connection: sa.Connection, schema: Schema) -> None:
    schema.metadata.create_all(connection, checkfirst=True)


def _vacuum_often(connection: sa.Connection, schema: Schema) -> None:
    """Have PostgreSQL clean up after a share of the churn that fits a queue, not a ledger."""
    if connection.dialect.name == "postgresql":
        name = connection.dialect.identifier_preparer.format_table(schema.tasks)
        settings = "autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000"
        connection.execute(sa.text(f"ALTER TABLE {name} SET ({settings})"))


MIGRATIONS: Final = (
    Migration(1, "create the tables", _create),
    Migration(2, "vacuum the tasks often", _vacuum_often),
)


def migrate(database: Database, schema: Schema, migrations: Sequence[Migration] = MIGRATIONS) -> list[str]:
    """Bring the tables to the newest version.

    Args:
        database: Where they are.
        schema: What they are to be.
        migrations: Every version there is, in order.

    Returns:
        The names of the migrations that were applied: none if there was nothing to do.

    Raises:
        StoreError: If it was not done; also if the tables are of a newer version than this program.
    """
    with _alone(database, schema.migrations.name):
        return database.transaction(lambda connection, _again: _apply(connection, schema, migrations))


def _apply(connection: sa.Connection, schema: Schema, migrations: Sequence[Migration]) -> list[str]:
    if connection.dialect.name == "postgresql":
        lock = zlib.crc32(schema.migrations.name.encode())
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(lock)))
    schema.migrations.create(connection, checkfirst=True)
    version = schema.migrations.c.version
    reached = connection.execute(sa.select(sa.func.coalesce(sa.func.max(version), 0))).scalar_one()
    if reached > migrations[-1].version:
        msg = (
            f"table {schema.tasks.name!r}: of version {reached}, newer than this program knows; update freshq"
        )
        raise StoreError(msg)
    missing = [migration for migration in migrations if migration.version > reached]
    for migration in missing:
        migration.apply(connection, schema)
        connection.execute(
            sa.insert(schema.migrations).values(version=migration.version, name=migration.name)
        )
    return [migration.name for migration in missing]


@contextmanager
def _alone(database: Database, name: str) -> Iterator[None]:
    """Keep other processes from migrating the same tables on MariaDB or MySQL, until all is committed.

    On the other databases a table can be changed in a transaction, which holds the lock itself.
    """
    if database.dialect not in ("mysql", "mariadb"):
        yield
        return
    with database.engine.connect() as connection:
        if connection.execute(sa.select(sa.func.get_lock(name, LOCK_SECONDS))).scalar_one() != 1:
            msg = f"{name}: another process has been migrating it for {LOCK_SECONDS} s; try again"
            raise StoreError(msg)
        try:
            yield
        finally:
            connection.execute(sa.select(sa.func.release_lock(name)))
