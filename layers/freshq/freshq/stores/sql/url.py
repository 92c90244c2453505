"""The address of a database, and the limits of its connections."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError

from freshq.errors import ENCODED, quoted, quoted_address
from freshq.model.checks import checked_count, checked_seconds
from freshq.model.options import SqlOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# The lease that the default timeouts suit, and their minimum for shorter leases, below which merely slow
# calls would fail.
LEASE_SECONDS: Final = 60.0
MIN_TIMEOUT_SECONDS: Final = 2.0
# Longest time between two looks for tasks where other processes cannot wake this one.
POLL_SECONDS: Final = 1.0
DRIVERS: Final = {
    "sqlite": "sqlite+pysqlite",
    "postgresql": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
}
OWN: Final = (*SqlOptions.__annotations__, "history", "history_seconds")
# Options known to Python's driver and SQLite, which silently ignore any other name.
OF_SQLITE: Final = (
    *("timeout", "isolation_level", "detect_types", "check_same_thread", "cached_statements"),
    *("uri", "mode", "modeof", "cache", "vfs", "psow", "nolock", "immutable"),
)
# Python's own driver; other SQLite drivers may take more options.
PYSQLITE: Final = ("sqlite", "sqlite+pysqlite")
# The drivers' own options for limits that freshq sets, and the types of their values.
LIMITS: Final[Mapping[str, Callable[[str], float]]] = {"timeout": float} | dict.fromkeys(
    (
        *("connect_timeout", "read_timeout", "write_timeout", "tcp_user_timeout"),
        *("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count"),
    ),
    int,
)
# PostgreSQL's own form for several servers, each a host name or an IPv6 address in brackets, then perhaps a
# port. They come after the last @.
_SERVER: Final = r"(?:\[[^]/?]+\]|[^][:,/?@]+)(?::\d+)?"
SEVERAL_HOSTS: Final = re.compile(
    rf"(postgresql(?:\+\w+)?://(?:[^/?]*@)?)({_SERVER}(?:,{_SERVER})+)((?:[/?].*)?)"
)
QUESTION_MARK: Final = "in the name of a file, write %3F for '?'"
# The scheme, the user and the password, as SQLAlchemy finds them.
BEFORE_HOST: Final = re.compile(r"[\w+]+://(?:[^:/]*(?::[^@]*)?@)?")
HOST_AND_PORT: Final = re.compile(r"(\[.*?\]|[^:,]+)(?::(\d+))?")
PRIMARY: Final[Mapping[str, str]] = {"target_session_attrs": "read-write"}
# Below this similarity, a name counts as the database's own: "dbname" is no misspelt "name".
ALIKE: Final = 0.85


def place_of(url: sa.URL) -> tuple[object, ...]:
    """Return the location of a database; urls with equal locations name the same tables.

    The location includes the user and the options, because they may select a PostgreSQL schema.
    """
    if url.get_backend_name() == "sqlite":
        return ("sqlite", os.path.realpath(url.database or ""))
    name = url.get_backend_name().replace("mariadb", "mysql")
    host, port = _server(url, name)
    return (name, host.lower(), port, url.database, url.username, tuple(sorted(url.query.items())))


def _server(url: sa.URL, name: str) -> tuple[str, str]:
    """Return the host and the port of a server; if the url lacks one, return the driver's default.

    PostgreSQL's driver reads them from the environment, and without a host there uses a local socket.
    """
    if name == "postgresql":
        host, port = os.environ.get("PGHOST", ""), os.environ.get("PGPORT") or "5432"
    else:
        host, port = "localhost", "3306"
    return url.host or host, str(url.port or port)


def shown(url: sa.URL, table: str) -> str:
    """Return an address for people, without the password and without options, which may be secrets."""
    plain = sa.URL.create(url.get_backend_name(), url.username, None, url.host, url.port, url.database)
    return f"{plain.render_as_string()}#{table}"


def file_of(url: sa.URL) -> str | None:
    """Return the absolute path of a SQLite database; None for a server, or if SQLite interprets the name.

    SQLAlchemy makes the path absolute when it opens an engine, so a later change of the working directory has
    no effect.
    """
    file = url.database or ""
    is_path = url.get_backend_name() == "sqlite" and not file.startswith((":", "file:"))
    return os.path.abspath(file) if file and is_path else None  # noqa: PTH100 - exactly as SQLAlchemy does


def is_missing(file: str) -> bool:
    """Return whether a file is certainly missing; if permissions hide the answer, leave it to SQLite."""
    try:
        Path(file).stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last: a path with a NUL
        return True
    except OSError:
        return False
    return False


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of the connections of one process.

    A call makes no further attempt once `answer_timeout_seconds` have passed, so it ends within twice that
    time plus the time to connect. With the default values that is well within the default lease.

    Attributes:
        connect_timeout_seconds: Maximum wait for a connection. PostgreSQL's driver counts whole
            seconds, and at least 2.
        answer_timeout_seconds: Maximum wait for the answer to a statement, and for a free connection.
        lock_timeout_seconds: Maximum wait of a statement for a lock.
        max_connections: Maximum number of connections.
        durable: Whether SQLite waits for the disk at each commit. If not, a power failure may undo the last
            commits, but does not corrupt the file.
    """

    connect_timeout_seconds: float = 5.0
    answer_timeout_seconds: float = 15.0
    lock_timeout_seconds: float = 5.0
    max_connections: int = 10
    durable: bool = True

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: If a value is wrong.
        """
        for name in (field.name for field in fields(self) if field.name.endswith("_seconds")):
            checked_seconds(name, getattr(self, name), above_zero=True)
        checked_count("max_connections", self.max_connections)
        durable: Any = self.durable
        if durable not in (True, False):
            msg = f"durable: must be True or False (in an address, on or off), got {durable!r:.60}"
            raise ValueError(msg)


def connection_limits_for(lease_seconds: object, **given: Any) -> ConnectionLimits:
    """Return the limits of the connections of a queue.

    Args:
        lease_seconds: Length of the queue's leases, unchecked. Below `LEASE_SECONDS` the default timeouts
            shrink in proportion.
        **given: Values of `ConnectionLimits`; None for the default of a timeout.

    Raises:
        ValueError: If a value is wrong.
    """
    part = 1.0
    if isinstance(lease_seconds, int | float) and 0 < lease_seconds < LEASE_SECONDS:
        part = lease_seconds / LEASE_SECONDS
    values = {name: value for name, value in given.items() if value is not None}
    for name in (field.name for field in fields(ConnectionLimits) if field.name.endswith("_seconds")):
        values.setdefault(name, max(MIN_TIMEOUT_SECONDS, part * getattr(ConnectionLimits(), name)))
    return ConnectionLimits(**values)


def check_url_options(url: sa.URL) -> None:
    """Check that a url has no option meant for freshq.

    Raises:
        ValueError: If an option is freshq's or nearly so, is unknown to SQLite, or is a limit but not a
            number.
    """
    for name, value in url.query.items():
        if name in OWN:
            msg = (
                f"url: {name} is an option of freshq, not of the database; pass it as an argument, {name}=..."
            )
            raise ValueError(msg)
        if (meant := _meant(name)) is not None:
            msg = f"url: {quoted(name)} is not an option of the database; did you mean freshq's {meant}?"
            raise ValueError(msg)
        if url.drivername in PYSQLITE and name not in OF_SQLITE:
            known = ", ".join(OF_SQLITE)
            msg = f"url: SQLite has no option {quoted(name)}; use one of {known}; {QUESTION_MARK}"
            raise ValueError(msg)
        if name in LIMITS:
            _check_limit(name, value)


def _check_limit(name: str, value: object) -> None:
    kind = LIMITS[name]
    try:
        kind(str(value))
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        msg = f"url: {name} must be {wanted}, got {quoted(value)}"
        raise ValueError(msg) from None


def left_to_freshq(url: sa.URL, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a connection without the limits that its url sets, which take precedence."""
    return {name: value for name, value in arguments.items() if name not in url.query.keys() & LIMITS.keys()}


def _meant(name: str) -> str | None:
    """Return the option of freshq that a name abbreviates or misspells; None if there is none."""
    if name in LIMITS:
        return None
    name = name.lower().replace("-", "_")
    if name in OF_SQLITE:
        return None
    longer = (own for own in OWN if own == name or own.startswith(f"{name}_"))
    return next(longer, next(iter(get_close_matches(name, OWN, 1, ALIKE)), None))


def _check_query(url: str) -> None:
    """Raise if a part of the options is none: SQLAlchemy would leave it out without a word."""
    start = BEFORE_HOST.match(url)
    _, _, query = url[start.end() if start else 0 :].partition("?")
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        if not name or not value:
            msg = f"url: the part after '?' must look like NAME=VALUE&NAME=VALUE; {ENCODED}; {QUESTION_MARK}"
            raise ValueError(msg)


def _with_hosts_apart(url: str) -> str:
    """Return a url with several hosts of PostgreSQL in a form that SQLAlchemy takes; other urls unchanged."""
    found = SEVERAL_HOSTS.fullmatch(url)
    if found is None:
        return url
    before, servers, after = found.groups()
    path, mark, query = after.partition("?")
    places = HOST_AND_PORT.findall(servers)
    hosts = ",".join(host.strip("[]") for host, _port in places)
    ports = ",".join(port or "5432" for _host, port in places)
    return f"{before}{path or '/'}?host={hosts}&port={ports}{mark and '&'}{query}"


def _to_primary(url: sa.URL) -> sa.URL:
    """Let a url with several hosts of PostgreSQL choose the primary, unless it says otherwise."""
    hosts = url.query.get("host", url.host or "")
    if url.get_backend_name() != "postgresql" or "," not in (
        hosts if isinstance(hosts, str) else ",".join(hosts)
    ):
        return url
    # Without it the driver takes any server that answers.
    return url.update_query_dict(PRIMARY | url.query)


def _parsed_parts(url: str | sa.URL) -> sa.URL:
    if isinstance(url, str):
        _check_query(url)
        url = _with_hosts_apart(url)
    try:
        parsed = sa.make_url(url)
    except (ArgumentError, TypeError, AttributeError, ValueError):
        must = "url: must look like sqlite:///tasks.db or postgresql://user@host:5432/name"
        msg = f"{must}, got {quoted_address(str(url))}{f'; {ENCODED}' if '@' in str(url) else ''}"
        raise ValueError(msg) from None
    if parsed.drivername == "postgres":  # as hosting platforms write it
        parsed = parsed.set(drivername="postgresql")
    return parsed


def parsed_url(url: str | sa.URL) -> sa.URL:
    """Parse an address and add its driver.

    Raises:
        ValueError: If it is malformed, or the store does not support the database.
    """
    parsed = _parsed_parts(url)
    name = parsed.get_backend_name()
    if name not in DRIVERS:
        msg = f"url: {name!r} is not supported; use one of {', '.join(DRIVERS)}"
        raise ValueError(msg)
    check_url_options(parsed)
    if "@" in (parsed.host or ""):
        msg = f"url: the host contains '@'; {ENCODED}"
        raise ValueError(msg)
    if "+" not in parsed.drivername:
        parsed = parsed.set(drivername=DRIVERS[name])
    if name == "sqlite" and parsed.database in (None, "", ":memory:"):
        msg = f"url: {quoted_address(str(url))} names no file; use sqlite:///tasks.db, or Queue.memory()"
        raise ValueError(msg)
    return _to_primary(parsed)


DEFAULT: Final = ConnectionLimits()
