"""A queue in the database of a Django project.

Add `"freshq.contrib.django"` to `INSTALLED_APPS` and run `manage.py migrate`. Then `queue` is the project's
queue: a put inside `transaction.atomic()` commits and rolls back with your rows. `manage.py freshq_work` runs
the tasks, and the admin lists them. The setting `FRESHQ` is a dictionary, and every key may be left out:

- `DATABASE`: the alias in `DATABASES` of the database that has the queue; "default".
- `TABLE`: the name of the table of tasks; "tasks".
- `OPTIONS`: the options of the queue, as `Queue.sql` takes them, such as `{"max_age_seconds": 60}`.
- `HANDLERS`: the handlers that `freshq_work` runs, such as "shop.tasks.handlers".
- `URL`: how freshq's own connections reach the database, if its entry in `DATABASES` cannot say it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from typing_extensions import override

from freshq.errors import needs, quoted
from freshq.queue.queue import Queue

with needs("django"):
    import django
    from django.apps import apps as registry
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured
    from django.core.signals import setting_changed
    from django.db import connections
    from django.utils.functional import SimpleLazyObject, empty

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from freshq.model.answers import Receipt
    from freshq.model.new_task import NewTask
    from freshq.stores.base import CallersConnection, OnConflict

# Django's own options in DATABASES, which mean nothing to a driver.
_OF_DJANGO: Final = (
    *("assume_role", "isolation_level", "pool", "server_side_binding"),
    *("init_command", "sql_mode", "transaction_mode"),
)


@dataclass(frozen=True, slots=True)
class Project:
    """The setting `FRESHQ`.

    Attributes:
        database: The alias of the queue's database.
        table: Name of the table of tasks.
        handlers: Where the handlers are; empty if the project names none.
        url: Address of the database; empty to take it from `DATABASES`.
        options: The options of the queue.
    """

    database: str = "default"
    table: str = "tasks"
    handlers: str = ""
    url: str = field(default="", repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_settings(cls) -> Project:
        """Return the settings of the project.

        Raises:
            ImproperlyConfigured: If a key or a value is wrong.
        """
        given = getattr(settings, "FRESHQ", {})
        known = {name.upper(): name for name in cls.__dataclass_fields__}
        if not isinstance(given, dict) or not given.keys() <= known.keys():
            wrong = sorted(map(str, given.keys() - known.keys())) if isinstance(given, dict) else [given]
            msg = f"FRESHQ: must be a dictionary with some of {', '.join(known)}; got {quoted(wrong[0])}"
            raise ImproperlyConfigured(msg)
        project = cls(**{known[key]: value for key, value in given.items()})
        if project.database not in connections:
            msg = f"FRESHQ: DATABASE must be an alias in DATABASES, got {quoted(project.database)}"
            raise ImproperlyConfigured(msg)
        return project

    @property
    def connection(self) -> Any:
        """Django's connection of this thread to the database."""
        return connections[self.database]

    @property
    def dialect(self) -> str:
        """The kind of the database, as freshq names it.

        Raises:
            ImproperlyConfigured: If freshq has no store for it.
        """
        vendor: str = self.connection.vendor
        if vendor not in ("sqlite", "postgresql", "mysql"):
            msg = f"FRESHQ: freshq works on PostgreSQL, MariaDB, MySQL and SQLite, not on {vendor}"
            raise ImproperlyConfigured(msg)
        return "mariadb" if vendor == "mysql" and self.connection.mysql_is_mariadb else vendor

    def address(self) -> str:
        """Return the address of the database, for freshq's own connections."""
        if self.url:
            return self.url
        given = self.connection.settings_dict
        return _file_address(given) if self.dialect == "sqlite" else _server_address(given, self.dialect)


def _file_address(given: Mapping[str, Any]) -> str:
    """Return the address of a database of SQLite, given its entry in DATABASES."""
    name = str(given["NAME"])
    if not name.startswith("file:"):
        return f"sqlite:///{Path(name).resolve()}"
    return f"sqlite:///{name}{'&' if '?' in name else '?'}uri=true"  # in tests, Django's database in memory


def _server_address(given: Mapping[str, Any], dialect: str) -> str:
    """Return the address of a database on a server, given its entry in DATABASES."""
    import sqlalchemy as sa  # noqa: PLC0415 - a project's other commands need no queue

    own = {key: value for key, value in given["OPTIONS"].items() if key not in _OF_DJANGO}
    query = {key: str(value) for key, value in own.items() if isinstance(value, (str, int))}
    place = {"username": given["USER"], "password": given["PASSWORD"], "host": given["HOST"]}
    if place["host"].startswith("/"):  # the folder of a socket, or the socket
        query["host" if dialect == "postgresql" else "unix_socket"] = place.pop("host")
    place["port"] = int(given["PORT"] or 0)
    known = {key: value for key, value in place.items() if value}
    url = sa.URL.create(dialect, **known, database=str(given["NAME"]), query=query)
    return url.render_as_string(hide_password=False)


class DjangoQueue(Queue):
    """A queue in the database of a Django project; `queue` is the project's.

    A put inside `transaction.atomic()` is part of that transaction. Other verbs use connections of freshq.

    Attributes:
        project: The settings.
    """

    project: Project

    @override
    def _put(
        self,
        places: Sequence[tuple[str, Mapping[str, Any] | NewTask]],
        on_conflict: OnConflict | None,
        connection: CallersConnection | None,
    ) -> list[Receipt]:
        if connection is None and self.project.connection.in_atomic_block:
            connection = self.project.connection
        return super()._put(places, on_conflict, connection)


def open_queue() -> DjangoQueue:
    """Return the queue of the project. `freshq` opens it by `DJANGO_SETTINGS_MODULE` alone.

    Raises:
        ImproperlyConfigured: If the settings are wrong.
        ValueError: If an option of the queue is wrong.
        MissingExtra: If the extra `sql` is not installed.
    """
    if not registry.ready:
        django.setup()
    project = Project.of_settings()
    opened = DjangoQueue.sql(project.address(), project.table, **cast("Any", project.options))
    opened.project = project
    return opened


_lazy: Any = SimpleLazyObject(open_queue)
queue: Queue = _lazy


def _forget(*, setting: str, **_: object) -> None:
    """Reopen the queue after a test has changed its settings."""
    if setting in ("FRESHQ", "DATABASES") and _lazy._wrapped is not empty:  # noqa: SLF001 - as Django's own do
        queue.close()
        _lazy._wrapped = empty  # noqa: SLF001


setting_changed.connect(_forget)
