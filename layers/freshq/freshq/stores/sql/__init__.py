"""The store in a relational database: SQLite, PostgreSQL, MariaDB or MySQL."""

from freshq.stores.sql.connecting import Connecting
from freshq.stores.sql.store import SqlStore

__all__ = ["Connecting", "SqlStore"]
