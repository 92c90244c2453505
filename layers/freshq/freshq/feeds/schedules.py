"""Recurring tasks: one for each tick of a schedule."""

from __future__ import annotations

import hashlib
import logging
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, Final

from freshq.errors import StoreError
from freshq.feeds.ticks import Cron, Every
from freshq.model.checks import checked_count
from freshq.model.new_task import parse_new_task
from freshq.policy.retry import Backoff
from freshq.queue.shared.records import change_record

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Mapping, Sequence

    from freshq.queue.base import BaseQueue

logger = logging.getLogger(__name__)

# Number of missed ticks that fire late; older ones are skipped and logged.
DEFAULT_CATCH_UP: Final = 1
# Maximum number of missed ticks to process at a time.
MAX_MISSED: Final = 10_000
LONGEST_SLEEP_SECONDS: Final = 60.0
# Before the next try of a schedule that failed, unless a tick comes first.
RETRY_BACKOFF: Final = Backoff(base_seconds=1.0, cap_seconds=LONGEST_SLEEP_SECONDS)
# The arguments of put that may be the same for each tick. `on_conflict` is not: it would free the id of a
# tick whose task is over, and another node would fire the tick again.
ARGUMENTS: Final = ("delay_seconds", "group", "max_age_seconds", "priority")

__all__ = ["Cron", "Every", "Schedule", "Scheduler"]


@dataclass(frozen=True)
class Schedule:
    """A task that recurs.

    Attributes:
        name: Unique among the schedules of the queue, and never to be reused: it is part of task ids.
        when: When it fires.
        payload: Returns the payload for a tick, given its instant.
        arguments: Other arguments of the put: some of `ARGUMENTS`.
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
            **arguments: Other arguments of the put: `priority`, `group`, `delay_seconds`, `max_age_seconds`.

        Raises:
            ValueError: If an argument is wrong.
        """
        if not isinstance(name, str) or not name:
            msg = f"name: must be a non-empty text, got {name!r}"
            raise ValueError(msg)
        checked_count("catch_up", catch_up, at_most=MAX_MISSED)
        for argument in arguments:
            if argument not in ARGUMENTS:
                msg = f"{argument}: cannot be set for a schedule; use only {', '.join(ARGUMENTS)}"
                raise ValueError(msg)
        parse_new_task({"payload": None, **arguments})
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
        self._failed_rounds = 0
        self._quiet_until: dict[str, float] = {}

    def fire(self) -> int:
        """Put the tasks of the ticks since the last call on any node.

        A new schedule starts now.

        Returns:
            How many tasks this call put.

        Raises:
            Exception: The first error, after each schedule had its turn: a StoreError, Overloaded, or what a
                payload function raised. The next call fires the rest.
        """
        fired, errors = self._fire_each()
        for error in errors.values():
            raise error
        return fired

    def _fire_each(self) -> tuple[int, dict[str, Exception]]:
        """Fire all schedules; return how many tasks were put, and the errors by schedule."""
        fired, errors = 0, dict[str, Exception]()
        for schedule in self._schedules:
            try:
                fired += self._fire(schedule)
            except Exception as error:  # noqa: BLE001 - one schedule's trouble; the others have their turn
                errors[schedule.name] = error
        return fired, errors

    def _fire(self, schedule: Schedule) -> int:
        now = self._queue.now()
        last = self._high_water_mark(schedule)
        if last is None:
            self._advance_mark(schedule, now)
            return 0
        due = takewhile(lambda tick: tick <= now, schedule.when.ticks(last))
        missed = list(islice(due, MAX_MISSED))
        dropped = missed[: -schedule.catch_up]
        for tick in dropped:
            logger.warning("schedule %s: skipped missed tick %s", schedule.name, schedule.task_id(tick))
        if dropped:
            self._advance_mark(schedule, dropped[-1])  # if the next one fails, they are not skipped again
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
        """Fire ticks until stopped.

        A schedule that fails, because of the store, an overloaded queue or its payload function, is tried
        again with backoff until `catch_up` newer ticks take its place. Each tick is logged once.
        """
        while not stop.is_set():
            stop.wait(min(LONGEST_SLEEP_SECONDS, max(0.001, self._fire_and_log())))

    def _fire_and_log(self) -> float:
        """Fire all schedules and log their errors; return for how many seconds to wait."""
        _, errors = self._fire_each()
        self._failed_rounds = self._failed_rounds + 1 if errors else 0
        waits = [LONGEST_SLEEP_SECONDS]
        if errors:
            waits.append(RETRY_BACKOFF.delay_seconds(self._failed_rounds, 1.0))
        try:
            now, tick = self._queue.now(), self.next_tick()
        except StoreError:  # a database's clock that was never read
            logger.warning("queue %s: no schedule can fire; retrying", self._queue.name, exc_info=True)
            return min(waits)
        self._log(errors, now)
        if tick is not None:
            waits.append(tick - now)
        return min(waits)

    def _log(self, errors: Mapping[str, Exception], now: float) -> None:
        for schedule in self._schedules:
            error = errors.get(schedule.name)
            if error is not None and now >= self._quiet_until.get(schedule.name, -math.inf):
                logger.error("schedule %s: could not fire; retrying", schedule.name, exc_info=error)
                self._quiet_until[schedule.name] = next(schedule.when.ticks(now), math.inf)
