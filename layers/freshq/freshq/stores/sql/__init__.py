"""The store in a relational database: SQLite, PostgreSQL, MariaDB or MySQL."""

from freshq.stores.sql.store import SqlStore, open_store
from freshq.stores.sql.url import ConnectionLimits, connection_limits_for

__all__ = ["ConnectionLimits", "SqlStore", "connection_limits_for", "open_store"]
