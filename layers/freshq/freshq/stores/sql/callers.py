"""Check and use the connections that callers pass to a put."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from freshq.stores.base import LentConnection

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
# Calls a function with a connection.
Runner: TypeAlias = "Callable[[Callable[[sa.Connection], T]], T]"
ACCEPTED: Final = (
    "connection: must be a Connection or Session of SQLAlchemy, or with AsyncQueue an AsyncConnection or "
    "AsyncSession"
)


def runner_of(given: Any, dialect: str) -> Runner[Any]:
    """Return how to run a function with the connection that a caller passed.

    Args:
        given: The connection, unchecked.
        dialect: Name of the dialect of the queue's database.

    Raises:
        ValueError: If it is no such connection, or one to another kind of database.
    """
    if isinstance(given, LentConnection):
        _check_class(given.connection, _async_classes())
        _check_database(given.connection, dialect)
        return given.run
    _check_class(given, (sa.Connection, *_loaded("sqlalchemy.orm", "Session", "scoped_session")))
    _check_database(given, dialect)
    return partial(_call, given)


def _call(connection: sa.Connection, work: Callable[[sa.Connection], T]) -> T:
    return work(connection)


def _check_class(connection: object, accepted: tuple[type, ...]) -> None:
    """Raise ValueError if a connection is of no accepted class."""
    if isinstance(connection, accepted):
        return
    advice = ""
    if isinstance(connection, (sa.Engine, *_loaded("sqlalchemy.ext.asyncio", "AsyncEngine"))):
        advice = "; begin a transaction: with engine.begin() as connection"
    elif isinstance(connection, _async_classes()):
        advice = "; await AsyncQueue.put(..., connection=...) instead"
    kind = type(connection)
    msg = f"{ACCEPTED}, got {kind.__module__}.{kind.__qualname__}{advice}"
    raise ValueError(msg)


def _async_classes() -> tuple[type, ...]:
    return _loaded("sqlalchemy.ext.asyncio", "AsyncConnection", "AsyncSession", "async_scoped_session")


def _loaded(module: str, *names: str) -> tuple[type, ...]:
    """Return classes of a module; none if nobody has imported it, and so nobody has an instance."""
    loaded = sys.modules.get(module)
    return () if loaded is None else tuple(getattr(loaded, name) for name in names)


def _check_database(connection: Any, dialect: str) -> None:
    """Raise ValueError if a connection is to another kind of database than the queue's."""
    try:
        bind = connection.get_bind() if hasattr(connection, "get_bind") else connection
    except SQLAlchemyError:  # the session chooses the database by the statement
        return
    there = bind.dialect.name
    if there.replace("mariadb", "mysql") != dialect.replace("mariadb", "mysql"):
        msg = (
            f"connection: is to a database of {there}, but the queue is in {dialect}; "
            "the table of the queue must be in the database of the connection"
        )
        raise ValueError(msg)
