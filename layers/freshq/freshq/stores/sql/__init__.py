"""The store in a relational database: SQLite, PostgreSQL, MariaDB or MySQL."""

from freshq.stores.sql.engine import ConnectionLimits, connection_limits_for
from freshq.stores.sql.store import SqlStore, open_store

__all__ = ["ConnectionLimits", "SqlStore", "connection_limits_for", "open_store"]
