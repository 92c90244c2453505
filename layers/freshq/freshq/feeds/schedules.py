"""Recurring tasks: by a cron expression in a time zone, or at an interval.

Ticks are instants, each after the one before. So no tick fires twice when the clocks go back, and none is
lost when they go forward.
"""

from __future__ import annotations

import hashlib
import logging
import math
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from freshq.errors import StoreError, needs
from freshq.model.checks import checked_count, checked_seconds
from freshq.queue.shared.records import change_record

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from freshq.queue.base import BaseQueue

logger = logging.getLogger(__name__)

# Number of missed ticks that fire late; older ones are skipped and logged.
DEFAULT_CATCH_UP: Final = 1
# Maximum number of missed ticks to process at a time.
MAX_MISSED: Final = 10_000
LONGEST_SLEEP_SECONDS: Final = 60.0


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
            msg = f"expression: {self.expression!r} is not a cron expression ({error})"
            raise ValueError(msg) from error
        return moments

    def ticks(self, after: float) -> Iterator[float]:
        """Yield the ticks after a time, in order, in seconds since the epoch."""
        last = after
        for moment in self._moments(datetime.fromtimestamp(after, self._tzinfo())):
            instant = moment.timestamp()
            if instant > last:
                yield instant
                last = instant


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
            msg = f"seconds: must be 0.001 or more, got {self.seconds!r}"
            raise ValueError(msg)

    def ticks(self, after: float) -> Iterator[float]:
        """Yield the ticks after a time, in order, in seconds since the epoch."""
        number = math.floor(after / self.seconds)
        while True:
            number += 1
            instant = round(number * self.seconds, 6)
            if instant > after:
                yield instant


@dataclass(frozen=True)
class Schedule:
    """A task that recurs.

    Attributes:
        name: Unique among the schedules of the queue, and never to be reused: it is part of task ids.
        when: When it fires.
        payload: Returns the payload for a tick, given its instant.
        arguments: Other arguments of the put.
        catch_up: Number of missed ticks that fire late: the latest ones.
    """

    name: str
    when: Cron | Every
    payload: Callable[[datetime], Any]
    arguments: Mapping[str, Any]
    catch_up: int = DEFAULT_CATCH_UP

    @classmethod
    def of(
        cls,
        name: str,
        when: Cron | Every,
        payload: object,
        *,
        catch_up: int = DEFAULT_CATCH_UP,
        **arguments: Any,  # noqa: ANN401 - the arguments of put
    ) -> Schedule:
        """Return a schedule.

        Args:
            name: Its name.
            when: When it fires.
            payload: The payload: any JSON value, or a function that returns one, given the instant of the
                tick in UTC.
            catch_up: Number of missed ticks that fire late.
            **arguments: Other arguments of the put, such as `priority` and `group`.

        Raises:
            ValueError: If an argument is wrong.
        """
        if not isinstance(name, str) or not name:
            msg = f"name: must be a non-empty text, got {name!r}"
            raise ValueError(msg)
        checked_count("catch_up", catch_up, at_most=MAX_MISSED)
        work = payload if callable(payload) else (lambda _instant: payload)
        return cls(name, when, work, arguments, catch_up)

    @property
    def record_name(self) -> str:
        """Name of the shared record of the high-water mark."""
        return f"schedule#{hashlib.sha256(self.name.encode()).hexdigest()[:32]}"

    def task_id(self, tick: float) -> str:
        """Return the task id for a tick, the same on every node."""
        return f"{self.name}@{datetime.fromtimestamp(tick, UTC).isoformat()}"


class Scheduler:
    """Puts a task for each tick of its schedules. Any number of nodes may run one.

    A tick fires once: its task id is the same on every node, and the store keeps the high-water mark of each
    schedule, so that a slow node does not fire a tick again whose task is gone.
    """

    def __init__(self, queue: BaseQueue, schedules: Sequence[Schedule]) -> None:
        """Prepare the schedules; the first `fire` starts them.

        Args:
            queue: Where the tasks go; its clock decides.
            schedules: The schedules, with unique names.

        Raises:
            ValueError: If two have the same name.
        """
        names = [schedule.name for schedule in schedules]
        for name in names:
            if names.count(name) > 1:
                msg = f"schedules: two are named {name!r}; use unique names"
                raise ValueError(msg)
        self._queue = queue
        self._schedules = schedules

    def fire(self) -> int:
        """Put the tasks of the ticks since the last call on any node.

        A new schedule starts now.

        Returns:
            How many tasks this call put.

        Raises:
            StoreError: If the store did not answer; the next call fires the rest.
        """
        return sum(self._fire(schedule) for schedule in self._schedules)

    def _fire(self, schedule: Schedule) -> int:
        now = self._queue.now()
        last = self._high_water_mark(schedule)
        if last is None:
            self._advance_mark(schedule, now)
            return 0
        due = takewhile(lambda tick: tick <= now, schedule.when.ticks(last))
        missed = list(islice(due, MAX_MISSED))
        for dropped in missed[: -schedule.catch_up]:
            logger.warning("schedule %s: skipped missed tick %s", schedule.name, schedule.task_id(dropped))
        fired = 0
        for tick in missed[-schedule.catch_up :]:
            fired += self._put(schedule, tick)
            self._advance_mark(schedule, tick)  # last: after a crash the same id is put again
        return fired

    def _put(self, schedule: Schedule, tick: float) -> int:
        payload = schedule.payload(datetime.fromtimestamp(tick, UTC))
        receipt = self._queue.put(payload, task_id=schedule.task_id(tick), **schedule.arguments)
        return int(receipt.outcome == "CREATED")

    def _high_water_mark(self, schedule: Schedule) -> float | None:
        record = self._queue.store.read_record(self._queue.name, schedule.record_name)
        return None if record is None else float(record.values["last"])

    def _advance_mark(self, schedule: Schedule, tick: float) -> None:
        def later(values: Mapping[str, Any]) -> Mapping[str, Any] | None:
            return {"last": tick} if values.get("last", -math.inf) < tick else None

        if not change_record(self._queue.store, self._queue.name, schedule.record_name, later):
            msg = f"schedule {schedule.name!r}: its high-water mark changed at each try to write it"
            raise StoreError(msg)

    def next_tick(self) -> float | None:
        """Return the next tick of any schedule, in seconds since the epoch; None without schedules."""
        now = self._queue.now()
        coming = (next(schedule.when.ticks(now), None) for schedule in self._schedules)
        return min((tick for tick in coming if tick is not None), default=None)

    def run(self, stop: threading.Event) -> None:
        """Fire ticks until stopped. Errors of the store are logged, and the ticks are fired later."""
        while not stop.is_set():
            try:
                self.fire()
                tick = self.next_tick()
                wait_seconds = LONGEST_SLEEP_SECONDS if tick is None else tick - self._queue.now()
            except StoreError:
                logger.warning(
                    "queue %s: could not fire schedules; retrying", self._queue.name, exc_info=True
                )
                wait_seconds = 1.0
            stop.wait(min(LONGEST_SLEEP_SECONDS, max(0.001, wait_seconds)))
