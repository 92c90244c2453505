"""Where a database is, however its url is written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlalchemy as sa


def place_of(url: sa.URL) -> tuple[object, ...]:
    """Return where a database is: two urls with equal answers mean the same tables.

    The user and the options are part of it, because they may choose the schema of PostgreSQL.
    """
    if url.get_backend_name() == "sqlite":
        return ("sqlite", os.path.realpath(url.database or ""))
    name = url.get_backend_name().replace("mariadb", "mysql")
    host, port = _server(url, name)
    return (name, host.lower(), port, url.database, url.username, url.query)


def _server(url: sa.URL, name: str) -> tuple[str, str]:
    """Return the host and the port of a server; where the url is silent, what its driver takes instead.

    PostgreSQL's takes them from the environment, and without a host there, a socket of this machine.
    """
    if name == "postgresql":
        host, port = os.environ.get("PGHOST", ""), os.environ.get("PGPORT") or "5432"
    else:
        host, port = "localhost", "3306"
    return url.host or host, str(url.port or port)


def file_of(url: sa.URL) -> str | None:
    """Return the path of a SQLite database from the root; None if SQLite interprets it, or for a server.

    SQLAlchemy too makes the path absolute when it opens an engine, so a later change of the folder of
    the process does not count.
    """
    file = url.database or ""
    is_path = url.get_backend_name() == "sqlite" and not file.startswith((":", "file:"))
    return os.path.abspath(file) if file and is_path else None  # noqa: PTH100 - exactly as SQLAlchemy does


def is_missing(file: str) -> bool:
    """Return whether there is certainly no such file; one that may not be looked for is left to SQLite."""
    try:
        Path(file).stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last: a path with a NUL
        return True
    except OSError:
        return False
    return False
