"""How long a call may take, and how many connections a process may open."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from freshq.model.checks import checked_count, checked_seconds


@dataclass(frozen=True, slots=True)
class Connecting:
    """The limits of the connections of one process.

    A call begins no further try once `answer_timeout_seconds` have passed, so it ends within twice that
    time plus the time to connect. With the default values that is well within the default lease.

    Attributes:
        connect_timeout_seconds: How long to wait for a connection. PostgreSQL's driver counts whole
            seconds, and at least 2.
        answer_timeout_seconds: How long to wait for the answer to a statement, and for a free connection.
        lock_timeout_seconds: How long a statement waits for a lock.
        max_connections: Maximum number of connections.
        durable: Whether SQLite waits for the disk at each commit. Without it a loss of power may undo the
            last commits; the file stays sound.
    """

    connect_timeout_seconds: float = 5.0
    answer_timeout_seconds: float = 15.0
    lock_timeout_seconds: float = 5.0
    max_connections: int = 10
    durable: bool = True

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: If a value is wrong.
        """
        for name in (field.name for field in fields(self) if field.name.endswith("_seconds")):
            checked_seconds(name, getattr(self, name), above_zero=True)
        checked_count("max_connections", self.max_connections)
        durable: Any = self.durable
        if durable not in (True, False):
            msg = f"durable: must be True or False, got {durable!r:.60}"
            raise ValueError(msg)
