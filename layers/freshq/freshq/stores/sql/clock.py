"""The database's clock: leases and due times must not depend on the clocks of the processes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

import sqlalchemy as sa

from freshq.errors import StoreError
from freshq.stores.clocks import MachineClock, TimeRange, steady_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

# Clocks drift by up to 50 ppm: 1.5 ms in this time.
MEASURE_EVERY_SECONDS: Final = 30.0
# A short round trip gives a good measurement: the shortest of these readings counts.
READINGS: Final = 3
# Drift, and two readings of one clock one after the other, stay below this.
MARGIN_SECONDS: Final = 0.1
NOW: Final = {
    "postgresql": "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint",
    "mysql": "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)",
    "mariadb": "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)",
}


class DatabaseClock:
    """The database's time: this process's monotonic clock plus a measured offset.

    Thread-safe. While the database does not answer, the last offset is used.
    """

    def __init__(
        self,
        read: Callable[[], float],
        monotonic: Callable[[], float] = steady_seconds,
        measure_every_seconds: float = MEASURE_EVERY_SECONDS,
    ) -> None:
        """Measure at the first call.

        Args:
            read: Returns the database's time in seconds since the epoch.
            monotonic: Returns a time in seconds that never goes back.
            measure_every_seconds: Time between measurements.
        """
        self._read = read
        self._monotonic = monotonic
        self._measure_every_seconds = measure_every_seconds
        self._lock = threading.Lock()
        self._offset: float | None = None
        self._error_seconds = 0.0
        self._measure_at = 0.0

    def __call__(self) -> float:
        """Return the database's time in seconds since the epoch.

        Raises:
            StoreError: If the offset was never measured and the database does not answer.
        """
        offset = self._offset
        if offset is None or self._monotonic() >= self._measure_at:
            with self._lock:
                if self._offset is None or self._monotonic() >= self._measure_at:
                    self._measure()
                offset = self._offset
        return self._monotonic() + (offset or 0.0)

    def range(self) -> TimeRange:
        """Return between which times the database's clock is now.

        Raises:
            StoreError: As the call.
        """
        return TimeRange.around(self(), self._error_seconds)

    def _measure(self) -> None:
        try:
            readings = [self._reading() for _ in range(READINGS)]
        except StoreError:
            if self._offset is None:
                raise
        else:
            round_trip, self._offset = min(readings)
            self._error_seconds = round_trip / 2 + MARGIN_SECONDS
        self._measure_at = self._monotonic() + self._measure_every_seconds

    def _reading(self) -> tuple[float, float]:
        """Return the round trip of one reading, and the offset that it shows, in seconds."""
        before = self._monotonic()
        there = self._read()
        after = self._monotonic()
        return after - before, there - (before + after) / 2


class SqliteClock(MachineClock):
    """The clock of SQLite: that of the machine, which all its processes share, without its jumps."""

    def range(self) -> TimeRange:
        """Return between which times the clock is now."""
        return TimeRange.around(self(), MARGIN_SECONDS)


def database_clock(dialect: str, read_scalar: Callable[[sa.Executable], Any]) -> DatabaseClock | SqliteClock:
    """Return the clock of a database.

    Args:
        dialect: Name of its dialect.
        read_scalar: Returns the only value of a SELECT.
    """
    if dialect == "sqlite":
        return SqliteClock()
    statement = sa.text(NOW[dialect])
    return DatabaseClock(lambda: int(read_scalar(statement)) / 1e6)
