"""The application that a project installs."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from django.apps import AppConfig
from django.db.migrations.loader import MigrationLoader
from django.db.models.signals import post_migrate
from typing_extensions import override

from freshq.contrib.django import Project, forget_queue
from freshq.contrib.django.migrations import make_tables

if TYPE_CHECKING:
    from collections.abc import Callable


class FreshqConfig(AppConfig):
    """freshq, for `INSTALLED_APPS`.

    Django copies and deletes the databases of tests, and empties the tables of managed models. This does the
    same for the tables of the queue, and lets go of the database first.
    """

    name = "freshq.contrib.django"
    label = "freshq"
    verbose_name = "freshq"

    @override
    def ready(self) -> None:
        """Take part in what Django does to the queue's database."""
        post_migrate.connect(_make_without_migrations, sender=self)
        connection = Project.of_settings().connection
        for name in ("clone_test_db", "destroy_test_db"):
            setattr(connection.creation, name, _without_sessions(getattr(connection.creation, name)))
        # On the class, because each thread has its own connection.
        introspection: Any = type(connection.introspection)
        introspection.django_table_names = _with_own_tables(introspection.django_table_names)


def _without_sessions(work: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function such that it closes the queue first: PostgreSQL deletes no database in use."""

    @wraps(work)
    def call(*args: Any, **kwargs: Any) -> Any:
        forget_queue()
        return work(*args, **kwargs)

    return call


def _with_own_tables(work: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """Return the method such that `flush` empties the tables of the queue, too."""

    @wraps(work)
    def names(introspection: Any, *args: Any, **kwargs: Any) -> list[str]:
        from freshq.stores.sql.schema import schema  # noqa: PLC0415 - loading a project needs no SQL

        found, project = work(introspection, *args, **kwargs), Project.of_settings()
        if introspection.connection.alias != project.database:
            return found
        tables = schema(project.table, project.dialect)
        # The history comes last: its triggers record the deletion of tasks.
        own = (tables.tasks, tables.records, tables.counts, tables.history)
        # A test that changes the applications loads them again; then `work` has these names already.
        there = {*introspection.table_names()} - {*found}
        return [*found, *(table.name for table in own if table.name in there)]

    return names


def _make_without_migrations(*, using: str, **given: Any) -> None:
    """Make the tables after a `migrate` without migrations."""
    project = Project.of_settings()
    is_migrated = MigrationLoader.migrations_module("freshq")[0] is not None
    if using == project.database and "plan" in given and not is_migrated:  # `flush` has no plan
        make_tables(project)
