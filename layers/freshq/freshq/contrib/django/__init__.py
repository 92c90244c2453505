"""A queue in the database of a Django project.

Add `"freshq.contrib.django"` to `INSTALLED_APPS` and run `manage.py migrate`. Then `queue` is the project's
queue: a put inside `transaction.atomic()` commits and rolls back with your rows. `manage.py freshq_work` runs
the tasks, `freshq_schedule` puts those that recur, and the admin lists them. `freshq.contrib.django.tasks`
has the backend of Django's own tasks. The setting `FRESHQ` is a dictionary, and every key may be left out:

- `DATABASE`: the alias in `DATABASES` of the database that has the queue; "default".
- `TABLE`: the name of the table of tasks; "tasks".
- `OPTIONS`: the options of the queue, as `Queue.sql` takes them, such as `{"max_age_seconds": 60}`.
- `HANDLERS`: the handlers that `freshq_work` runs, such as "shop.tasks.handlers".
- `SCHEDULES`: the list of schedules that `freshq_schedule` runs, such as "shop.tasks.schedules".
- `URL`: how freshq's own connections reach the database, if its entry in `DATABASES` cannot say it.
"""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import quote

from typing_extensions import override

from freshq.errors import needs, quoted
from freshq.model.checks import queue_name
from freshq.model.fields import DEFAULT_NAME
from freshq.model.options import QueueConfig
from freshq.queue.queue import Queue, sibling

with needs("django"):
    import django
    from django.apps import apps as registry
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation
    from django.core.signals import setting_changed
    from django.db import connections
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.models.signals import post_migrate
    from django.utils.functional import SimpleLazyObject, empty
    from django.utils.module_loading import import_string

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from freshq.model.answers import Receipt
    from freshq.model.new_task import NewTask
    from freshq.stores.base import CallersConnection, OnConflict

# Django's own options in DATABASES, which mean nothing to a driver.
_OF_DJANGO: Final = (
    *("assume_role", "isolation_level", "pool", "server_side_binding"),
    *("init_command", "sql_mode", "transaction_mode"),
)
_VENDORS: Final = ("sqlite", "postgresql", "mysql")
# Tests replace it where they must not use a database.
_ENSURE_CONNECTION: Final = BaseDatabaseWrapper.ensure_connection


@dataclass(frozen=True, slots=True)
class Project:
    """The setting `FRESHQ`.

    Attributes:
        database: The alias of the queue's database.
        table: Name of the table of tasks.
        handlers: Where the handlers are; empty if the project names none.
        schedules: Where the list of schedules is; empty if the project names none.
        url: Address of the database; empty to take it from `DATABASES`.
        options: The options of the queue.
    """

    database: str = "default"
    table: str = "tasks"
    handlers: str = ""
    schedules: str = ""
    url: str = field(default="", repr=False)
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_settings(cls) -> Project:
        """Return the settings of the project.

        Raises:
            ImproperlyConfigured: If a key or a value is wrong.
        """
        project = cls(**_checked(getattr(settings, "FRESHQ", {})))
        if project.database not in connections:
            msg = f"FRESHQ: DATABASE must be an alias in DATABASES, got {quoted(project.database)}"
            raise ImproperlyConfigured(msg)
        # Without an engine, commands that need no database run, such as collectstatic.
        if (vendor := project.connection.vendor) not in (*_VENDORS, "unknown"):
            msg = f"FRESHQ: freshq works on PostgreSQL, MariaDB, MySQL and SQLite, not on {vendor}"
            raise ImproperlyConfigured(msg)
        return project

    @property
    def connection(self) -> Any:
        """Django's connection of this thread to the database."""
        return connections[self.database]

    @property
    def is_in_transaction(self) -> bool:
        """Whether this thread is in a transaction, by `atomic()` or because it commits by hand.

        Raises:
            AssertionError: If a test of Django must not use the database.
        """
        its = self.connection
        _refuse_in_test(its)
        commits = its.settings_dict["AUTOCOMMIT"] if its.connection is None else its.autocommit
        return its.in_atomic_block or not commits

    @property
    def dialect(self) -> str:
        """The kind of the database, as freshq names it.

        Raises:
            ImproperlyConfigured: If its entry in `DATABASES` has no engine.
        """
        vendor: str = self.connection.vendor
        if vendor not in _VENDORS:
            msg = f"FRESHQ: database {quoted(self.database)} has no ENGINE in DATABASES"
            raise ImproperlyConfigured(msg)
        return "mariadb" if vendor == "mysql" and self.connection.mysql_is_mariadb else vendor

    @property
    def name(self) -> str:
        """The name of the project's queue."""
        return str(queue_name(self.options))

    def queue_names(self, *, own: bool = True) -> list[str]:
        """Return the names of the queues of Django tasks; with `own`, the project's queue comes first."""
        named = [name for each in task_backends() for name in each.get("QUEUES") or [DEFAULT_NAME]]
        return [*dict.fromkeys([self.name, *named] if own else named)]

    def options_of(self, name: str) -> dict[str, Any]:
        """Return the options of a queue: those of its backend in `TASKS`, and the others from `FRESHQ`.

        Raises:
            ImproperlyConfigured: If two backends give it different options.
        """
        backends = task_backends()
        # A backend without names takes any that no other backend names.
        naming = [each for each in backends if name in each.get("QUEUES", [DEFAULT_NAME])]
        naming = naming or [each for each in backends if each.get("QUEUES") == []]
        given = [each.get("OPTIONS", {}) for each in naming]
        if any(options != given[0] for options in given):
            msg = f"TASKS: the backends of queue {quoted(name)} must give it the same OPTIONS"
            raise ImproperlyConfigured(msg)
        return {**self.options, **(given[0] if given else {}), "name": name}

    def address(self) -> str:
        """Return the address of the database, for freshq's own connections."""
        if self.url:
            return self.url
        given = self.connection.settings_dict
        return _file_address(given) if self.dialect == "sqlite" else _server_address(given, self.dialect)


def _refuse_in_test(connection: Any) -> None:
    """Raise as Django or pytest-django does if a test must not use the database: it may be the real one."""
    is_main = threading.current_thread() is threading.main_thread()  # in others, nobody closes connections
    if BaseDatabaseWrapper.ensure_connection is _ENSURE_CONNECTION or not is_main:
        return
    with suppress(SynchronousOnlyOperation):
        connection.ensure_connection()
    if type(connection.cursor).__name__ == "_DatabaseFailure":
        connection.cursor()


def _checked(given: Any) -> dict[str, Any]:
    """Return the values of the setting `FRESHQ` by their names in `Project`.

    Raises:
        ImproperlyConfigured: If a key is unknown, or a value of the wrong type.
    """
    known = {name.upper(): name for name in Project.__dataclass_fields__}
    if not isinstance(given, dict) or not given.keys() <= known.keys():
        wrong = sorted(map(str, given.keys() - known.keys())) if isinstance(given, dict) else [given]
        msg = f"FRESHQ: must be a dictionary with some of {', '.join(known)}; got {quoted(wrong[0])}"
        raise ImproperlyConfigured(msg)
    for key, value in given.items():
        wanted = dict if key == "OPTIONS" else str
        if not isinstance(value, wanted):  # which may be a secret
            msg = f"FRESHQ: {key} must be a {wanted.__name__}, got a {type(value).__name__}"
            raise ImproperlyConfigured(msg)
    return {known[key]: value for key, value in given.items()}


def task_backends() -> list[Mapping[str, Any]]:
    """Return the entries of the setting `TASKS` whose backend is a `FreshqBackend`."""
    return [each for each in (getattr(settings, "TASKS", None) or {}).values() if _is_of_freshq(each)]


def _is_of_freshq(entry: Mapping[str, Any]) -> bool:
    try:
        backend = import_string(entry.get("BACKEND", ""))
    except ImportError:  # Django raises it where the backend is used
        return False
    return getattr(backend, "is_of_freshq", False)


def _file_address(given: Mapping[str, Any]) -> str:
    """Return the address of a database of SQLite, given its entry in DATABASES."""
    name = str(given["NAME"])
    if not name.startswith("file:"):
        return f"sqlite:///{quote(str(Path(name).resolve()))}"
    return f"sqlite:///{name}{'&' if '?' in name else '?'}uri=true"  # in tests, Django's database in memory


def _server_address(given: Mapping[str, Any], dialect: str) -> str:
    """Return the address of a database on a server, given its entry in DATABASES."""
    import sqlalchemy as sa  # noqa: PLC0415 - a project's other commands need no queue

    query = _driver_options(given["OPTIONS"])
    place = {"username": given["USER"], "password": given["PASSWORD"], "host": given["HOST"]}
    ports = str(given["PORT"] or "").split(",")
    if place["host"].startswith("/"):  # the folder of a socket, or the socket
        query["host" if dialect == "postgresql" else "unix_socket"] = place.pop("host")
    elif "," in place["host"]:  # several servers of PostgreSQL, with a port each, or one for all
        hosts = place.pop("host").split(",")
        query["host"] = [
            ":".join(filter(None, each)) for each in zip(hosts, ports * len(hosts), strict=False)
        ]
        query.setdefault("target_session_attrs", "read-write")
        ports = [""]
    place["port"] = int(ports[0] or 0)
    known = {key: value for key, value in place.items() if value}
    url = sa.URL.create(dialect, **known, database=str(given["NAME"]), query=query)
    return url.render_as_string(hide_password=False)


def _driver_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the OPTIONS of a server that its driver takes, as they stand in an address."""
    own = {key: value for key, value in given.items() if key not in _OF_DJANGO}
    if isinstance(files := own.pop("ssl", None), dict):  # MariaDB's and MySQL's
        own |= {f"ssl_{key}": value for key, value in files.items()}
    if role := given.get("assume_role"):
        escaped = re.sub(r"([\\ ])", r"\\\1", role)
        own["options"] = f"{own.get('options', '')} -c role={escaped}".strip()
    return {key: str(value) for key, value in own.items() if isinstance(value, (str, int, Path))}


class DjangoQueue(Queue):
    """A queue in the database of a Django project; `queue` is the project's.

    A put in a transaction of Django's connection is part of it. Other verbs use connections of freshq.

    Attributes:
        project: The settings.
    """

    project: Project
    _address: str
    _siblings: dict[str, DjangoQueue]

    def named(self, name: str) -> DjangoQueue:
        """Return the queue with a name in the same tables; closing this queue closes it.

        Raises:
            ImproperlyConfigured: If two backends of Django tasks give it different options.
            ValueError: If an option is wrong.
        """
        if name != self.name and name not in self._siblings:
            options = self.project.options_of(name)
            others = {key: value for key, value in options.items() if key in QueueConfig.model_fields}
            made = cast("DjangoQueue", sibling(self, **cast("Any", others)))
            made.project, made._siblings = self.project, {}  # noqa: SLF001 - of this class
            return self._siblings.setdefault(name, made)
        return self._siblings.get(name, self)

    @contextmanager
    def in_transaction(self) -> Iterator[None]:
        """In this block, let verbs of this thread use the transaction of Django's connection, if any."""
        if not self.project.is_in_transaction:
            yield
            return
        with self._core.inside(self.project.connection):
            yield

    @override
    def close(self) -> None:
        for each in self._siblings.values():
            each.close()
        super().close()

    @override
    def _put(
        self,
        places: Sequence[tuple[str, Mapping[str, Any] | NewTask]],
        on_conflict: OnConflict | None,
        connection: CallersConnection | None,
    ) -> list[Receipt]:
        if connection is None and self.project.is_in_transaction:
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
    options = cast("Any", project.options_of(project.name))
    address = project.address()
    opened = DjangoQueue.sql(address, project.table, **options)
    opened.project, opened._address, opened._siblings = project, address, {}  # noqa: SLF001 - of the class above
    return opened


_lazy: Any = SimpleLazyObject(open_queue)
queue: DjangoQueue = _lazy


def forget_queue() -> None:
    """Close the project's queue; the next use opens it again, in the database of that time."""
    if _lazy._wrapped is not empty:  # noqa: SLF001 - as Django
        queue.close()
        _lazy._wrapped = empty  # noqa: SLF001


def _forget_changed(*, setting: str, **_: object) -> None:
    """Reopen the queue after a test has changed its settings."""
    if setting in ("FRESHQ", "DATABASES", "TASKS"):
        forget_queue()


def _forget_other(**_: object) -> None:
    """Reopen the queue if its database was changed: a test may have used it before that database existed."""
    if _lazy._wrapped is not empty and queue._address != queue.project.address():  # noqa: SLF001
        forget_queue()


setting_changed.connect(_forget_changed)
post_migrate.connect(_forget_other)
