"""The base of the parts that make up the SQL store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from freshq.stores.base import Store
from freshq.stores.sql.rows import line_key, microseconds

if TYPE_CHECKING:
    from freshq.stores.lines import Line
    from freshq.stores.sql.database import Database
    from freshq.stores.sql.schema import Schema


class Part(Store):
    """A part of the SQL store: it implements some of the methods of `Store`.

    Attributes:
        database: Runs the statements.
        schema: The tables.
        queue: The queue whose tasks `get` returns; None: of any queue of the table.
    """

    def __init__(self, database: Database, schema: Schema, queue: str | None = None) -> None:
        self.database = database
        self.schema = schema
        self.queue = queue


def live_in_line(queue: str, line: Line, created_after: float, deadline_after: float) -> dict[str, Any]:
    """Return the parameters of `Statements.live_in_line`."""
    return {
        "of_queue": queue,
        "of_line": line_key(*line),
        "created_after_us": microseconds(created_after),
        "deadline_after_us": microseconds(deadline_after),
    }
