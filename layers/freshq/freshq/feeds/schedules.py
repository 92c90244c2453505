"""Put tasks at the ticks of schedules."""

from __future__ import annotations

import hashlib
import logging
import math
import re
from collections import Counter, deque
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from freshq.errors import StoreError, needs, quoted
from freshq.model.checks import checked_count, checked_seconds
from freshq.model.new_task import parse_new_task
from freshq.policy.retry import Backoff
from freshq.queue.base import blocking_queue
from freshq.queue.core import core_of
from freshq.queue.shared.measures import change_record
from freshq.queue.stopping import StopRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from freshq.model.answers import Receipt
    from freshq.queue.asyncio import AsyncQueue
    from freshq.queue.base import BaseQueue
    from freshq.queue.stopping import Until

# Fields of an expression of Debian's cron; a sixth field in front stands for seconds.
FIELDS: Final = 5
CRON_NAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
DAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
# By their place from the end, the numbers of the names that a field may have.
NAMED_VALUES: Final[dict[int, dict[str, int]]] = {
    2: {name: number for number, name in enumerate(MONTHS, 1)},
    1: {name: number for number, name in enumerate(DAYS)},
}
STEPPED_RANGE: Final = re.compile(r"\b(\w+)-(\w+)/0*[1-9]\d*")
# Step of the search for a change of a zone's offset: no zone changes twice within it.
SEARCH_SECONDS: Final = 12 * 3600
logger = logging.getLogger(__name__)
# Number of missed ticks that fire late; older ones are skipped and logged.
DEFAULT_CATCH_UP: Final = 1
# Maximum number of missed ticks to look at, from the first one on; of more, only the latest.
MAX_MISSED: Final = 10_000
# First step of the search for the latest ticks.
FIRST_LOOK_BACK_SECONDS: Final = 1.0
LONGEST_SLEEP_SECONDS: Final = 60.0
# A mark further ahead is of a wrong clock, and its schedule starts anew instead of waiting for that time.
MAX_AHEAD_SECONDS: Final = 86_400.0
# Before the next try of a failed tick, or of all ticks while the store does not answer.
RETRY_BACKOFF: Final = Backoff(base_seconds=1.0, cap_seconds=LONGEST_SLEEP_SECONDS)
# The arguments of put that a schedule may set. `on_conflict` is excluded: it would free the id of a tick
# whose task has ended, and another node would fire the tick again.
ARGUMENTS: Final = (
    *("cost", "decay", "delay_seconds", "group", "kind", "max_age_seconds", "priority", "value"),
)
__all__ = ["Cron", "Every", "Schedule", "Scheduler"]


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """The progress of a schedule.

    Attributes:
        last: Its high-water mark: all ticks up to here were fired or skipped, except the failed ones.
        failed: Failed ticks up to the mark, to be tried again, in order.
    """

    last: float
    failed: tuple[float, ...] = ()


class HighWaterMarks:
    """Keeps the states of schedules in shared records of a queue."""

    def __init__(self, queue: BaseQueue) -> None:
        self._queue = queue

    def read(self, record_name: str) -> ScheduleState | None:
        """Return the state of a schedule; None if it has not started.

        Raises:
            StoreError: If the store did not answer.
        """
        record = core_of(self._queue).store.read_record(self._queue.name, record_name)
        return None if record is None else _state(record.values)

    def advance(
        self,
        record_name: str,
        passed: Collection[float] = (),
        failed: Collection[float] = (),
        *,
        anew: bool = False,
    ) -> None:
        """Note that ticks were fired or skipped, and that others failed unless another node got past them.

        Args:
            record_name: Name of the schedule's record.
            passed: The ticks that were fired or skipped.
            failed: The ticks that failed.
            anew: Whether to forget the state before.

        Raises:
            StoreError: If the store did not answer, or other nodes changed the record at each try.
        """
        gone = {*passed}

        def changed(values: Mapping[str, Any]) -> Mapping[str, Any] | None:
            before = _state({} if anew else values)
            new = [tick for tick in failed if tick > before.last]
            left = (*(tick for tick in before.failed if tick not in gone), *new)
            after = ScheduleState(max([before.last, *passed, *new]), left)
            return None if after == before else {"last": after.last, "failed": [*after.failed]}

        if not change_record(core_of(self._queue).store, self._queue.name, record_name, changed):
            msg = f"the high-water mark of {record_name!r} changed at each try to write it"
            raise StoreError(msg)


def _state(values: Mapping[str, Any]) -> ScheduleState:
    return ScheduleState(float(values.get("last", -math.inf)), tuple(map(float, values.get("failed", ()))))


class Retries:
    """The times at which this node retries the failed ticks of a schedule, each with its own backoff."""

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        # By tick, how often it failed, and when to retry it.
        self._failures: dict[float, tuple[int, float]] = {}

    @property
    def next_at(self) -> float:
        """The time of the next retry, in seconds since the epoch; infinite if there is none."""
        return min((next_at for _failures, next_at in self._failures.values()), default=math.inf)

    def is_due(self, tick: float, now: float) -> bool:
        """Return whether to try a tick now."""
        return tick not in self._failures or self._failures[tick][1] <= now

    def failed(self, tick: float, now: float) -> bool:
        """Note that a tick failed; return whether it was the first failure."""
        failures = self._failures.get(tick, (0, 0.0))[0] + 1
        self._failures[tick] = failures, now + self._backoff.delay_seconds(failures, 1.0)
        return failures == 1

    def forget(self, tick: float) -> None:
        """Note that a tick was fired."""
        self._failures.pop(tick, None)

    def keep(self, ticks: Collection[float]) -> None:
        """Forget all but these ticks."""
        self._failures = {tick: self._failures[tick] for tick in ticks if tick in self._failures}


@dataclass(frozen=True)
class Cron:
    """Fires at the times of a cron expression in a time zone.

    A time skipped in spring fires right after the change; a time repeated in autumn fires once.
    Expressions with `*` in the hour or the minute follow real time.

    Attributes:
        expression: Five fields, or a name such as `@daily`, as in Debian's crontab(5).
        zone: Name of the time zone, such as "Europe/Berlin".

    Examples:
        >>> from freshq.feeds import Cron
        >>> next(Cron("30 2 * * *", "Europe/Berlin").ticks(after=1_800_000_000))
        1800063000.0
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
            moments: Iterator[datetime] = CronSim(self._fields, start)
        except (CronSimError, ValueError, AttributeError, TypeError) as error:
            msg = f"expression: {quoted(self.expression)} is not a cron expression ({error})"
            raise ValueError(msg) from error
        return moments

    @property
    def _fields(self) -> str:
        """The expression as fields that CronSim reads as crontab(5) does."""
        expression = self.expression.strip()
        fields = CRON_NAMES.get(expression, expression).split()
        return " ".join(_without_single_ranges(field, len(fields) - n) for n, field in enumerate(fields))

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
        fields = self._fields.split()
        return len(fields) != FIELDS or any(field.startswith("*") for field in fields[:2])

    def _local_time(self, after: float) -> Iterator[float]:
        """Yield ticks at the local times of the expression, moved out of a skipped hour."""
        for moment in self._moments(datetime.fromtimestamp(after, self._tzinfo())):
            yield moment.timestamp()

    def _real_time(self, after: float) -> Iterator[float]:
        """Yield ticks whenever the local clocks match the expression.

        Between two changes of a zone's offset from UTC, the expression is evaluated in naive local time;
        evaluation restarts at each change. The offset may change by less than an hour.
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


def _without_single_ranges(field: str, place_from_end: int) -> str:
    """Return a field with `9-9/2` as 9: CronSim reads it as every second value from 9 on.

    Args:
        field: The field.
        place_from_end: 1 for the last field, and so on.
    """
    names = NAMED_VALUES.get(place_from_end, {})

    def value(text: str) -> int | str:
        return int(text) if text.isdecimal() and text.isascii() else names.get(text.upper(), text)

    return STEPPED_RANGE.sub(
        lambda found: found[1] if value(found[1]) == value(found[2]) else found[0], field
    )


def _offset(zone: tzinfo, instant: float) -> timedelta:
    return datetime.fromtimestamp(instant, zone).utcoffset() or timedelta()


def _first_change(zone: tzinfo, start: float, end: float) -> float | None:
    """Return the first second in (start, end] with another UTC offset than at `start`; None if none."""
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

    Examples:
        >>> from freshq.feeds import Every
        >>> next(Every(seconds=60).ticks(after=125))
        180
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


@dataclass(frozen=True)
class Schedule:
    """A task that recurs.

    Attributes:
        name: Unique among the schedules of the queue, and never reused: it is part of task ids.
        when: When it fires.
        payload: Returns the payload for a tick, given its instant.
        arguments: Other arguments of the put: some of `ARGUMENTS`.
        catch_up: Number of missed ticks that fire late: the latest ones.

    Examples:
        >>> from freshq.feeds import Every, Schedule
        >>> Schedule.of("prices", Every(60), {"symbols": ["ABC"]}, priority=5).name
        'prices'
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
        **arguments: Any,
    ) -> Schedule:
        """Return a schedule.

        Args:
            name: Its name.
            when: When it fires.
            payload: The payload: any JSON value, or a function that returns one, given the instant of the
                tick in UTC.
            catch_up: Number of missed ticks that fire late.
            **arguments: Other arguments of the put: some of `ARGUMENTS`.

        Raises:
            ValueError: If an argument is wrong.
        """
        if not isinstance(name, str) or not name:
            msg = f"name: must be a non-empty string, got {quoted(name)}"
            raise ValueError(msg)
        checked_count("catch_up", catch_up, at_most=MAX_MISSED)
        for argument in arguments:
            if argument not in ARGUMENTS:
                msg = f"{argument}: cannot be set for a schedule; use only {', '.join(ARGUMENTS)}"
                raise ValueError(msg)
        parse_new_task({"payload": None if callable(payload) else payload, **arguments})
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
    schedule, so that a slow node does not repeat a tick whose task is already deleted.

    Examples:
        >>> from freshq.feeds import Every, Schedule, Scheduler
        >>> Scheduler(queue, [Schedule.of("prices", Every(60), None)]).fire()  # starts the schedule
        0
    """

    def __init__(
        self,
        queue: BaseQueue | AsyncQueue,
        schedules: Sequence[Schedule],
        on_put: Callable[[Schedule, Receipt], None] = lambda _schedule, _receipt: None,
    ) -> None:
        """Prepare the schedules; the first `fire` starts them.

        Args:
            queue: Where the tasks go; its clock decides when. An AsyncQueue stands for the queue that it
                uses.
            schedules: The schedules, with unique names.
            on_put: Called after each put; DUPLICATE means that another node fired the tick.

        Raises:
            ValueError: If two have the same name, or `queue` is no queue.
        """
        self._queue = blocking_queue(queue)
        self._schedules = [*schedules]
        names = [schedule.name for schedule in self._schedules]
        for name, number in Counter(names).items():
            if number > 1:
                msg = f"schedules: two are named {quoted(name)}; use unique names"
                raise ValueError(msg)
        self._on_put = on_put
        self._marks = HighWaterMarks(self._queue)
        self._retries = {name: Retries(RETRY_BACKOFF) for name in names}
        self._stop = StopRequest()
        self._failed_rounds = 0
        # By name, when `run` looks at a schedule again: a look reads its record.
        self._looks = dict.fromkeys(names, -math.inf)
        self._quiet_until = dict.fromkeys(names, -math.inf)

    def fire(self) -> int:
        """Put the tasks of the ticks since the last call on any node.

        A new schedule starts now.

        Returns:
            Number of tasks put by this call.

        Raises:
            Exception: The first error, after every tick was tried: a StoreError, Overloaded, or the error of
                a payload function. The next call tries the failed ticks again.
        """
        fired, errors, now = 0, list[Exception](), self._queue.admin.now()
        for schedule in self._schedules:
            try:
                put, failed = self._fire(schedule, now, every=True)
            except StoreError as no_answer:
                errors.append(no_answer)
            else:
                fired += put
                errors += failed.values()
        for error in errors:
            raise error
        return fired

    def _fire(self, schedule: Schedule, now: float, *, every: bool) -> tuple[int, Mapping[float, Exception]]:
        """Fire a schedule; return how many tasks were put, and the errors by tick.

        Args:
            schedule: The schedule.
            now: Fire the ticks up to this time, in seconds since the epoch.
            every: Whether to retry failed ticks before their time.

        Raises:
            StoreError: If the store did not answer, which affects all ticks.
        """
        name, retries = schedule.record_name, self._retries[schedule.name]
        state = self._marks.read(name)
        if state is None:
            self._marks.advance(name, [now])
            return 0, {}
        if state.last > now + MAX_AHEAD_SECONDS:
            message = "schedule %s: a clock was wrong, its last tick is %.1f days ahead; it starts anew"
            logger.warning(message, schedule.name, (state.last - now) / 86_400)
            self._marks.advance(name, [now], anew=True)
            return 0, {}
        skipped, left = _skipped_and_left(schedule, state, now)
        self._skip(schedule, skipped)
        fired, errors = 0, dict[float, Exception]()
        retries.keep(left)
        for tick in [tick for tick in left if every or retries.is_due(tick, now)]:
            try:
                fired += self._put(schedule, tick)
            except StoreError:
                raise
            except Exception as error:  # noqa: BLE001 - one tick failed; fire the others
                self._note_failed(schedule, tick, error)
                errors[tick] = error
            else:
                self._marks.advance(name, [tick], errors)  # last: after a crash the same id is put again
                retries.forget(tick)
        if errors:
            self._marks.advance(name, failed=errors)
        return fired, errors

    def _skip(self, schedule: Schedule, ticks: Sequence[float]) -> None:
        if not ticks:
            return
        first, last = schedule.task_id(ticks[0]), schedule.task_id(ticks[-1])
        number = f"{len(ticks)}" if len(ticks) <= MAX_MISSED else f"more than {MAX_MISSED:,}"
        if len(ticks) == 1:
            logger.warning("schedule %s: skipped missed tick %s", schedule.name, first)
        else:  # a night of a suspended laptop may have thousands
            logger.warning(
                "schedule %s: skipped %s missed ticks, %s to %s", schedule.name, number, first, last
            )
        self._marks.advance(schedule.record_name, ticks)

    def _note_failed(self, schedule: Schedule, tick: float, error: Exception) -> None:
        if self._retries[schedule.name].failed(tick, self._queue.admin.now()):
            logger.error(
                "schedule %s: could not fire tick %s; retrying until %d newer ticks take its place",
                schedule.name,
                schedule.task_id(tick),
                schedule.catch_up,
                exc_info=error,
            )

    def _put(self, schedule: Schedule, tick: float) -> int:
        payload = schedule.payload(datetime.fromtimestamp(tick, UTC))
        receipt = self._queue.put(payload, task_id=schedule.task_id(tick), **schedule.arguments)
        self._on_put(schedule, receipt)
        return int(receipt.outcome == "CREATED")

    def next_tick(self) -> float | None:
        """Return the next tick of any schedule, in seconds since the epoch; None without schedules."""
        now = self._queue.admin.now()
        coming = (next(schedule.when.ticks(now), None) for schedule in self._schedules)
        return min((tick for tick in coming if tick is not None), default=None)

    def stop(self) -> None:
        """Fire no more; `run` returns after the current put, and immediately from then on.

        Any thread and any signal handler may call it.
        """
        self._stop.make()

    def run(self, until: Until = None) -> None:
        """Fire ticks until stopped.

        A tick that fails, because of an overloaded queue or its payload function, is retried with its own
        backoff until `catch_up` newer ticks replace it; those fire on time. While the store does not answer,
        all ticks wait. Each failed tick is logged once; ticks skipped together share a line.

        Args:
            until: A condition, checked at least every second, or a time in seconds since the epoch by the
                queue's clock. None: until `stop`.
        """
        condition = self._stop.condition(until, self._queue.admin.now)

        def ends() -> bool:
            try:
                return condition()
            except StoreError:  # retried at the next look, as for a tick
                return False

        is_over = ends()
        while not is_over:
            is_over = self._stop.wait(min(LONGEST_SLEEP_SECONDS, max(0.001, self._fire_due())), ends)

    def _fire_due(self) -> float:
        """Fire the schedules that are due and log their errors; return the seconds to wait."""
        pause = RETRY_BACKOFF.delay_seconds(self._failed_rounds + 1, 1.0)
        try:
            now = self._queue.admin.now()
            waiting = {name for name, at in self._looks.items() if now < at <= now + LONGEST_SLEEP_SECONDS}
            due = [schedule for schedule in self._schedules if schedule.name not in waiting]
            works = [self._look(schedule, now, pause) for schedule in due]
            self._failed_rounds = 0 if all(works) else self._failed_rounds + 1
            return min(self._looks.values(), default=math.inf) - self._queue.admin.now()
        except StoreError:  # a database's clock that was never read
            self._failed_rounds += 1
            logger.warning("queue %s: no schedule can fire; retrying", self._queue.name, exc_info=True)
            return pause

    def _look(self, schedule: Schedule, now: float, pause_seconds: float) -> bool:
        """Fire a schedule and set the time of its next look; return whether the store answered.

        That is at its next tick, or before: to retry, or to fire what another node could not.
        """
        name, next_tick = schedule.name, next(schedule.when.ticks(now), math.inf)
        try:
            self._fire(schedule, now, every=False)
        except StoreError:
            if now >= self._quiet_until[name]:
                logger.exception("schedule %s: could not fire; retrying", name)
                self._quiet_until[name] = next_tick
            self._looks[name] = min(next_tick, now + pause_seconds)
            return False
        self._looks[name] = min(next_tick, now + LONGEST_SLEEP_SECONDS, self._retries[name].next_at)
        return True


def _skipped_and_left(
    schedule: Schedule, state: ScheduleState, now: float
) -> tuple[list[float], list[float]]:
    """Return the ticks to skip, replaced by `catch_up` newer ones, and the ticks to fire."""
    start = min([state.last, *state.failed])
    recent = _missed_ticks(schedule, start, now)
    first = recent[-schedule.catch_up] if len(recent) >= schedule.catch_up else -math.inf
    ticks = [*state.failed, *(tick for tick in recent if tick > state.last)]
    return [tick for tick in ticks if tick < first], [tick for tick in ticks if tick >= first]


def _missed_ticks(schedule: Schedule, start: float, now: float) -> list[float]:
    """Return the ticks after `start` up to `now`; of more than `MAX_MISSED`, not those in the middle."""
    ticks = takewhile(lambda tick: tick <= now, schedule.when.ticks(start))
    missed = list(islice(ticks, MAX_MISSED + 1))
    if len(missed) <= MAX_MISSED:
        return missed
    return missed + [tick for tick in _latest_ticks(schedule, start, now) if tick > missed[-1]]


def _latest_ticks(schedule: Schedule, start: float, now: float) -> list[float]:
    """Return the last ticks up to `now`: `catch_up` of them, and the last one that they replace.

    It looks back in doubling steps, so that the number of ticks that it reads hardly depends on the downtime.

    Args:
        schedule: The schedule.
        start: Look no further back, in seconds since the epoch.
        now: Current time in seconds since the epoch.
    """
    wanted, span_seconds = schedule.catch_up + 1, FIRST_LOOK_BACK_SECONDS
    while True:
        begin = max(start, now - span_seconds)
        ticks = takewhile(lambda tick: tick <= now, schedule.when.ticks(begin))
        latest = deque(ticks, maxlen=wanted)
        if len(latest) == wanted or begin == start:
            return list(latest)
        span_seconds *= 2
