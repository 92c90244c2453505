"""Recurring tasks: by a cron expression in a time zone, or at an interval.

Ticks are instants: a schedule is asked for the next instant after the last one, so an hour that the
clocks repeat fires nothing twice, and one that they skip loses nothing for good.
"""

from __future__ import annotations

import hashlib
import logging
import math
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from itertools import islice
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

# What was missed is fired late up to so many ticks; older ones are dropped and logged.
DEFAULT_CATCH_UP: Final = 1
# However many ticks were missed, no more are looked at than these many in one go.
MAX_MISSED: Final = 10_000
LONGEST_SLEEP_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Cron:
    """Fires at the times that a cron expression names, in a time zone.

    A time that the clocks skip in spring fires as soon as they have; one that they repeat in autumn
    fires once. Expressions with `*` in the hour or the minute follow real time.

    Attributes:
        expression: Five fields, as crontab(5) of Debian takes them.
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
            msg = f"zone: {self.zone!r:.60} is no time zone; use a name such as Europe/Berlin"
            raise ValueError(msg) from error

    def _moments(self, start: datetime) -> Iterator[datetime]:
        """Return the moments after `start` that the expression names.

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
        """Yield the instants after a time, in seconds since the epoch, in order."""
        last = after
        for moment in self._moments(datetime.fromtimestamp(after, self._tzinfo())):
            instant = moment.timestamp()
            if instant > last:
                yield instant
                last = instant


@dataclass(frozen=True)
class Every:
    """Fires at the multiples of an interval since the epoch: the same instants on every machine.

    Attributes:
        seconds: The interval.
    """

    seconds: float

    def __post_init__(self) -> None:
        """Check the interval.

        Raises:
            ValueError: If it is not at least a millisecond.
        """
        checked_seconds("seconds", self.seconds, above_zero=True)
        if self.seconds < 1e-3:  # noqa: PLR2004 - said in the message
            msg = f"seconds: must be 0.001 or more, got {self.seconds!r}"
            raise ValueError(msg)

    def ticks(self, after: float) -> Iterator[float]:
        """Yield the instants after a time, in seconds since the epoch, in order."""
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
        name: Names it among the schedules of the queue, for ever: it is part of the tasks' ids.
        when: When it fires.
        payload: Returns the work of a tick, given its instant.
        arguments: Further arguments of the put.
        catch_up: How many missed ticks are fired late, the latest ones.
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
            payload: The work: any JSON value, or a function of the tick's instant (in UTC) that returns
                one.
            catch_up: How many missed ticks are fired late.
            **arguments: Further arguments of the put, such as `priority` and `group`.

        Raises:
            ValueError: If an argument is wrong.
        """
        if not isinstance(name, str) or not name:
            msg = f"name: must be a text that is not empty, got {name!r}"
            raise ValueError(msg)
        checked_count("catch_up", catch_up, at_most=MAX_MISSED)
        work = payload if callable(payload) else (lambda _instant: payload)
        return cls(name, when, work, arguments, catch_up)

    @property
    def record(self) -> str:
        """Name of the record that says which tick was fired last."""
        return f"schedule#{hashlib.sha256(self.name.encode()).hexdigest()[:32]}"

    def task_id(self, tick: float) -> str:
        """Return the id of the task of a tick: the same on every node."""
        return f"{self.name}@{datetime.fromtimestamp(tick, UTC).isoformat()}"


class Scheduler:
    """Puts the tasks of schedules as their ticks come; run one on as many nodes as you like.

    One task a tick: its id is the tick's, and the queue keeps a durable mark of the last tick that was
    fired, so that a tick whose task is long gone is not fired again by a node that lags behind.
    """

    def __init__(self, queue: BaseQueue, schedules: Sequence[Schedule]) -> None:
        """Schedule nothing before the first call.

        Args:
            queue: Where the tasks go; its clock decides.
            schedules: The schedules, by different names.

        Raises:
            ValueError: If two have the same name.
        """
        names = [schedule.name for schedule in schedules]
        for name in names:
            if names.count(name) > 1:
                msg = f"schedules: two are named {name!r}; each needs a name of its own"
                raise ValueError(msg)
        self._queue = queue
        self._schedules = schedules

    def fire(self) -> int:
        """Put the tasks of the ticks that have come since the last call, on this node or another.

        A schedule that was never seen before starts now.

        Returns:
            How many tasks this call put.

        Raises:
            StoreError: If the store did not answer; the rest is fired by the next call.
        """
        return sum(self._fire(schedule) for schedule in self._schedules)

    def _fire(self, schedule: Schedule) -> int:
        now = self._queue.now()
        last = self._last(schedule)
        if last is None:
            self._mark(schedule, now)
            return 0
        missed = list(islice(_until(schedule.when.ticks(last), now), MAX_MISSED))
        for dropped in missed[: -schedule.catch_up]:
            logger.warning("schedule %s: tick %s was missed", schedule.name, schedule.task_id(dropped))
        fired = 0
        for tick in missed[-schedule.catch_up :]:
            fired += self._put(schedule, tick)
            self._mark(schedule, tick)  # only now: a crash before it puts the same id again
        return fired

    def _put(self, schedule: Schedule, tick: float) -> int:
        payload = schedule.payload(datetime.fromtimestamp(tick, UTC))
        receipt = self._queue.put(payload, task_id=schedule.task_id(tick), **schedule.arguments)
        return int(receipt.outcome == "CREATED")

    def _last(self, schedule: Schedule) -> float | None:
        record = self._queue.store.read_record(self._queue.name, schedule.record)
        return None if record is None else float(record.values["last"])

    def _mark(self, schedule: Schedule, tick: float) -> None:
        def later(values: Mapping[str, Any]) -> Mapping[str, Any] | None:
            return {"last": tick} if values.get("last", -math.inf) < tick else None

        if not change_record(self._queue.store, self._queue.name, schedule.record, later):
            msg = f"schedule {schedule.name!r}: its record changed at each try to write it"
            raise StoreError(msg)

    def next_tick(self) -> float | None:
        """Return when the next tick of any schedule comes, in seconds; None if there is no schedule."""
        now = self._queue.now()
        coming = (next(schedule.when.ticks(now), None) for schedule in self._schedules)
        return min((tick for tick in coming if tick is not None), default=None)

    def run(self, stop: threading.Event) -> None:
        """Fire ticks as they come, until told to stop; an error of the store is logged, and tried again."""
        while not stop.is_set():
            try:
                self.fire()
                tick = self.next_tick()
                wait_seconds = LONGEST_SLEEP_SECONDS if tick is None else tick - self._queue.now()
            except StoreError:
                logger.warning("queue %s: its schedules wait", self._queue.name, exc_info=True)
                wait_seconds = 1.0
            stop.wait(min(LONGEST_SLEEP_SECONDS, max(0.001, wait_seconds)))


def _until(ticks: Iterator[float], now: float) -> Iterator[float]:
    for tick in ticks:
        if tick > now:
            return
        yield tick
