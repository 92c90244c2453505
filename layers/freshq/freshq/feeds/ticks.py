"""When schedules fire: at the times of a cron expression in a time zone, or at an interval.

Ticks are instants, each after the one before. So no tick fires twice when the clocks go back, and none is
lost when they go forward.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from freshq.errors import needs, quoted
from freshq.model.checks import checked_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

# Fields of an expression that Debian's cron knows; with one more, the first is the second.
FIELDS: Final = 5
# Between checks for a change of a zone's offset: no zone changes twice within it.
SEARCH_SECONDS: Final = 12 * 3600


@dataclass(frozen=True)
class Cron:
    """Fires at the times of a cron expression in a time zone.

    A time that is skipped in spring fires right after the change; one that is repeated in autumn fires once.
    Expressions with `*` in the hour or the minute follow real time.

    Attributes:
        expression: Five fields, as in Debian's crontab(5).
        zone: Name of the time zone, such as "Europe/Berlin".
    """

    expression: str
    zone: str = "UTC"

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            ValueError: If one is wrong.
            MissingExtra: If the extra `cron` is not installed.
        """
        self._tzinfo()
        self._moments(datetime.now(UTC))

    def _tzinfo(self) -> tzinfo:
        try:
            return ZoneInfo(self.zone)
        except (ZoneInfoNotFoundError, ValueError, TypeError, OSError) as error:
            msg = f"zone: {self.zone!r:.60} is not a time zone; use a name such as Europe/Berlin"
            raise ValueError(msg) from error

    def _moments(self, start: datetime) -> Iterator[datetime]:
        """Return the moments of the expression after `start`.

        Raises:
            ValueError: If it is not a cron expression.
            MissingExtra: If the package that reads it is not installed.
        """
        with needs("cron"):
            from cronsim import CronSim, CronSimError  # noqa: PLC0415 - an extra
        try:
            moments: Iterator[datetime] = CronSim(self.expression, start)
        except (CronSimError, AttributeError, TypeError) as error:
            msg = f"expression: {quoted(self.expression)} is not a cron expression ({error})"
            raise ValueError(msg) from error
        return moments

    def ticks(self, after: float) -> Iterator[float]:
        """Yield the ticks after a time, in order, in seconds since the epoch."""
        last = after
        for instant in self._real_time(after) if self._follows_real_time else self._local_time(after):
            if instant > last:
                yield instant
                last = instant

    @property
    def _follows_real_time(self) -> bool:
        """Whether the hour or the minute begins with `*`: Debian's rule, for five fields."""
        fields = self.expression.split()
        return len(fields) != FIELDS or any(field.startswith("*") for field in fields[:2])

    def _local_time(self, after: float) -> Iterator[float]:
        """Yield ticks at the local times of the expression, moved out of the hour that is skipped."""
        for moment in self._moments(datetime.fromtimestamp(after, self._tzinfo())):
            yield moment.timestamp()

    def _real_time(self, after: float) -> Iterator[float]:
        """Yield ticks whenever the local clocks match the expression.

        Between two changes of its offset from UTC, a zone needs no rules: the expression is evaluated in
        naive local time, and anew from each change on. The offset may change by less than an hour.
        """
        zone = self._tzinfo()
        start = known = after
        offset = _offset(zone, after)
        while True:
            local = datetime.fromtimestamp(start, UTC).replace(tzinfo=None) + offset
            for moment in self._moments(local):
                instant = (moment - offset).replace(tzinfo=UTC).timestamp()
                change = _first_change(zone, known, instant)
                if change is not None:
                    # One second earlier, because the change itself may be a tick.
                    start, known, offset = change - 1, change, _offset(zone, change)
                    break
                yield instant
                known = instant
            else:
                return


def _offset(zone: tzinfo, instant: float) -> timedelta:
    return datetime.fromtimestamp(instant, zone).utcoffset() or timedelta()


def _first_change(zone: tzinfo, start: float, end: float) -> float | None:
    """Return the first second in (start, end] with another offset from UTC than at `start`; None if none."""
    low, offset = math.floor(start), _offset(zone, start)
    while low < end:
        high = min(low + SEARCH_SECONDS, math.ceil(end))
        if _offset(zone, high) != offset:
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if _offset(zone, middle) == offset else (low, middle)
            return high
        low = high
    return None


@dataclass(frozen=True)
class Every:
    """Fires at the multiples of an interval since the epoch, which are the same on every machine.

    Attributes:
        seconds: The interval.
    """

    seconds: float

    def __post_init__(self) -> None:
        """Check the interval.

        Raises:
            ValueError: If it is less than a millisecond.
        """
        checked_seconds("seconds", self.seconds, above_zero=True)
        if self.seconds < 1e-3:  # noqa: PLR2004 - said in the message
            msg = f"seconds: must be 0.001 or more, got {quoted(self.seconds)}"
            raise ValueError(msg)

    def ticks(self, after: float) -> Iterator[float]:
        """Yield the ticks after a time, in order, in seconds since the epoch."""
        number = math.floor(after / self.seconds)
        while True:
            number += 1
            instant = round(number * self.seconds, 6)
            if instant > after:
                yield instant
