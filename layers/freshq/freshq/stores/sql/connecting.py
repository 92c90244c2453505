"""How long a call may take, and how many connections a process may open."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, Final

LONGEST_SECONDS: Final = 86_400.0


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
            seconds = getattr(self, name)
            number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
            if not (number and isfinite(seconds) and 0 < seconds <= LONGEST_SECONDS):
                msg = f"{name}: must be more than 0 and at most {LONGEST_SECONDS:.0f}, got {seconds!r:.60}"
                raise ValueError(msg)
        count: Any = self.max_connections
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            msg = f"max_connections: must be a whole number of 1 or more, got {count!r:.60}"
            raise ValueError(msg)
        durable: Any = self.durable
        if durable not in (True, False):
            msg = f"durable: must be True or False, got {durable!r:.60}"
            raise ValueError(msg)
