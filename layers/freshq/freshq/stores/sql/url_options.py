"""Reads the url of a database: its driver, and the options after "?" that are not freshq's."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError

from freshq.errors import quoted
from freshq.model.checks import without_password
from freshq.model.options import SqlOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DRIVERS: Final = {
    "sqlite": "sqlite+pysqlite",
    "postgresql": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mariadb+pymysql",
}
OWN: Final = (*SqlOptions.__annotations__, "history", "history_seconds")
# What Python's driver and SQLite itself know; they take any other name without a word.
OF_SQLITE: Final = (
    *("timeout", "isolation_level", "detect_types", "check_same_thread", "cached_statements"),
    *("uri", "mode", "modeof", "cache", "vfs", "psow", "nolock", "immutable"),
)
# Python's own driver; another one of SQLite may take more options.
PYSQLITE: Final = ("sqlite", "sqlite+pysqlite")
# The drivers' own options for what freshq sets by its limits, and the type of their values.
LIMITS: Final[Mapping[str, Callable[[str], float]]] = {"timeout": float} | dict.fromkeys(
    (
        *("connect_timeout", "read_timeout", "write_timeout", "tcp_user_timeout"),
        *("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count"),
    ),
    int,
)
# Less than this alike, a name is rather one of the database's: "dbname" is no misspelt "name".
ALIKE: Final = 0.85


def check_url_options(url: sa.URL) -> None:
    """Check that no option of a url was meant for freshq.

    Raises:
        ValueError: If one is an option of freshq or nearly so, or on SQLite unknown, or a limit and not
            a number.
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
            msg = f"url: SQLite has no option {quoted(name)}; use one of {', '.join(OF_SQLITE)}"
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
    """Return the arguments of a connection without the limits that its url sets itself: those count."""
    return {name: value for name, value in arguments.items() if name not in url.query.keys() & LIMITS.keys()}


def _meant(name: str) -> str | None:
    """Return the option of freshq that a name is a part, or nearly the whole, of; None if there is none."""
    if name in LIMITS:
        return None
    name = name.lower().replace("-", "_")
    if name in OF_SQLITE:
        return None
    longer = (own for own in OWN if own == name or own.startswith(f"{name}_"))
    return next(longer, next(iter(get_close_matches(name, OWN, 1, ALIKE)), None))


def parsed_url(url: str | sa.URL) -> sa.URL:
    """Return an address with its driver.

    Raises:
        ValueError: If it is malformed, or the store does not support the database.
    """
    try:
        parsed = sa.make_url(url)
    except (ArgumentError, TypeError, AttributeError, ValueError):
        given = without_password(str(url))
        msg = f"url: must look like sqlite:///tasks.db or postgresql://user@host:5432/name, got {given!r:.80}"
        raise ValueError(msg) from None
    name = parsed.get_backend_name()
    if name not in DRIVERS:
        also = "; postgres:// is not a scheme, write postgresql://" if name == "postgres" else ""
        msg = f"url: {name!r} is not supported; use one of {', '.join(DRIVERS)}{also}"
        raise ValueError(msg)
    check_url_options(parsed)
    if "@" in (parsed.host or ""):
        raise ValueError("url: the host contains '@'; write %40 for an '@' in the user or password")
    if "+" not in parsed.drivername:
        parsed = parsed.set(drivername=DRIVERS[name])
    if name == "sqlite" and parsed.database in (None, "", ":memory:"):
        msg = f"url: {without_password(str(url))!r} names no file; use sqlite:///tasks.db, or Queue.memory()"
        raise ValueError(msg)
    return parsed
