"""The history of a queue in a relational database: triggers write it, upkeep deletes it by age."""

from freshq.stores.sql.history.keeper import SqlHistory
from freshq.stores.sql.history.options import history_seconds_for

__all__ = ["SqlHistory", "history_seconds_for"]
