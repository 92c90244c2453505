"""The store in a relational database: SQLite, PostgreSQL, MariaDB or MySQL."""

from freshq.stores.sql.connection_limits import ConnectionLimits, connection_limits_for
from freshq.stores.sql.opening import open_store
from freshq.stores.sql.store import SqlStore

__all__ = ["ConnectionLimits", "SqlStore", "connection_limits_for", "open_store"]
