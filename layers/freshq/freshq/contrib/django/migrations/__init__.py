"""freshq's own migrations, run by `manage.py migrate` through Django's connection.

Each migration brings the tables to the newest version, also tables that `freshq table create` made. A version
of freshq that changes the tables adds a migration, so that `migrate` sees that there is something to do.
"""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.migrations import RunPython

from freshq.contrib.django import Project


def _migrate(_apps: object, schema_editor: Any) -> None:
    project = Project.of_settings()
    if schema_editor.connection.alias == project.database:
        make_tables(project)


def make_tables(project: Project) -> None:
    """Make the tables of a project, or bring them to the newest version."""
    from freshq.stores.sql.transactions import migrate_with  # noqa: PLC0415 - loading a project needs no SQL

    connection = project.connection
    if project.dialect == "sqlite":
        # Nobody can set it during a transaction that writes, and a put inside one may be the first to need
        # it.
        connection.cursor().execute("PRAGMA journal_mode=WAL")
    with transaction.atomic(using=connection.alias):
        migrate_with(connection.connection, project.table, project.dialect)


def to_version(version: int) -> RunPython:
    """Return the operation that brings the tables to a version, or beyond it to the newest.

    Undoing it leaves the tables in place: older versions of freshq use them.
    """
    operation = RunPython(_migrate, RunPython.noop)
    operation.version = version
    return operation
