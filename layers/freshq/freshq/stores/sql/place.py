"""Where a database is, however its url is written."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import sqlalchemy as sa

DEFAULT_PORTS: Final = {"postgresql": 5432, "mysql": 3306}


def place_of(url: sa.URL) -> tuple[object, ...]:
    """Return where a database is: two urls with equal answers mean the same tables.

    The user and the options are part of it, because they may choose the schema of PostgreSQL.
    """
    if url.get_backend_name() == "sqlite":
        return ("sqlite", os.path.realpath(url.database or ""))
    name = url.get_backend_name().replace("mariadb", "mysql")
    port = url.port or DEFAULT_PORTS[name]
    return (name, (url.host or "localhost").lower(), port, url.database, url.username, url.query)
