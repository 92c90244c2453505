"""The store in a relational database: SQLite, PostgreSQL, MariaDB or MySQL."""

from freshq.stores.sql.connecting import Connecting, connecting_for
from freshq.stores.sql.opening import open_store
from freshq.stores.sql.store import SqlStore

__all__ = ["Connecting", "SqlStore", "connecting_for", "open_store"]
