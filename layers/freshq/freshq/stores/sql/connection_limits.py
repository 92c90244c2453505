"""How long a call may take, and how many connections a process may open."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

from freshq.model.checks import checked_count, checked_seconds

# The lease for which the default timeouts are made, and how short they become for shorter ones: less would
# fail calls that are only slow.
LEASE_SECONDS: Final = 60.0
MIN_TIMEOUT_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
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
            msg = f"durable: must be True or False (in an address, on or off), got {durable!r:.60}"
            raise ValueError(msg)


def connection_limits_for(lease_seconds: object, **given: Any) -> ConnectionLimits:  # noqa: ANN401 - checked by ConnectionLimits
    """Return the limits of the connections of a queue.

    Args:
        lease_seconds: Length of its leases, not checked yet. The default timeouts are shortened in
            proportion if it is less than `LEASE_SECONDS`.
        **given: Values of `ConnectionLimits`; None for the default of a timeout.

    Raises:
        ValueError: If a value is wrong.
    """
    part = 1.0
    if isinstance(lease_seconds, int | float) and 0 < lease_seconds < LEASE_SECONDS:
        part = lease_seconds / LEASE_SECONDS
    values = {name: value for name, value in given.items() if value is not None}
    for name in (field.name for field in fields(ConnectionLimits) if field.name.endswith("_seconds")):
        values.setdefault(name, max(MIN_TIMEOUT_SECONDS, part * getattr(ConnectionLimits(), name)))
    return ConnectionLimits(**values)
