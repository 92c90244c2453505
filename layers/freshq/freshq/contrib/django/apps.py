"""The application that a project installs."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

from django.apps import AppConfig
from django.db import transaction
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
        post_migrate.connect(_follow, sender=self)
        creation = Project.of_settings().connection.creation
        for name in ("clone_test_db", "destroy_test_db"):
            setattr(creation, name, _without_sessions(getattr(creation, name)))


def _without_sessions(work: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function such that it closes the queue first: PostgreSQL deletes no database in use."""

    @wraps(work)
    def call(*args: Any, **kwargs: Any) -> Any:
        forget_queue()
        return work(*args, **kwargs)

    return call


def _follow(*, using: str, **given: Any) -> None:
    """Empty the tables after `flush`, and make them after a `migrate` without migrations."""
    project = Project.of_settings()
    if using != project.database:
        return
    if "plan" not in given:  # `flush` sends this signal without one
        _empty(project)
    elif MigrationLoader.migrations_module("freshq")[0] is None:
        make_tables(project)


def _empty(project: Project) -> None:
    from freshq.stores.sql.schema import schema  # noqa: PLC0415 - loading a project needs no SQL

    tables = schema(project.table, project.dialect)
    there = project.connection.introspection.table_names()
    with transaction.atomic(using=project.database), project.connection.cursor() as cursor:
        # The history comes last: its triggers record the deleted tasks.
        for table in (tables.tasks, tables.records, tables.counts, tables.history):
            if table.name in there:
                cursor.execute(f"DELETE FROM {project.connection.ops.quote_name(table.name)}")  # noqa: S608 - a checked name
