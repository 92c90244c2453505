"""Share measurements among the processes of a queue: flow, and service times."""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, ClassVar, Final
from weakref import WeakValueDictionary

from freshq.errors import StoreError
from freshq.model.forks import forget_in_child, new_lock
from freshq.policy.order import Order, latest_wait
from freshq.policy.pressure import IN_TIME_OF_BAND, PUT_OF_BAND, FlowCounter, assess
from freshq.policy.reserve import (
    MOST_KEPT,
    KindTimes,
    LearnedReserve,
    QuantileSketch,
    ReserveSpans,
    SkippedTasks,
)
from freshq.policy.retry import until_committed
from freshq.policy.rules import DEFAULT_QUANTILE
from freshq.policy.shedding import ShedReason
from freshq.queue.reading import first_to_expire, oldest_created
from freshq.stores.held import is_inside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from freshq.model.task import Task
    from freshq.policy.pressure import Flow, Pressure
    from freshq.policy.rules import OverloadRules
    from freshq.queue.shared.later import Later
    from freshq.stores.base import Store

logger = logging.getLogger(__name__)
# Tries to write a record. Losing so many in a row is rare, and every caller can wait for its next write.
MAX_TRIES: Final = 8
# Writes of counts per window, whatever the traffic: every 5 s in a window of 60 s.
FLUSHES_PER_WINDOW: Final = 12
# Counts are read until the end of the next window, and kept for this time afterwards.
KEPT_SECONDS: Final = 60
REFUSED: Final = "refused"
SERVICE: Final = "service-times"
SPANS: Final = "reserve-spans"


class _RecordChanged(Exception):
    """Another process changed the record between the read and the write."""


def change_record(
    store: Store, queue: str, name: str, change: Callable[[Mapping[str, Any]], Mapping[str, Any] | None]
) -> bool:
    """Read a shared record, compute its new values, and write them unless it changed in between.

    Args:
        store: The store.
        queue: Name of the queue.
        name: Name of the record.
        change: Returns the new values, given the current ones (empty if the record does not exist), or
            None to leave the record unchanged. May be called several times.

    Returns:
        False if other processes changed the record at every try; nothing was written then.

    Raises:
        StoreError: If the store did not answer.
    """

    def attempt() -> None:
        record = store.read_record(queue, name)
        values = _changed(change, {} if record is None else record.values, name)
        if values is None:
            return
        if not store.write_record(queue, name, values, None if record is None else record.version):
            raise _RecordChanged

    try:
        until_committed(attempt, _RecordChanged, MAX_TRIES)
    except _RecordChanged:
        return False
    return True


def _changed(
    change: Callable[[Mapping[str, Any]], Mapping[str, Any] | None], values: Mapping[str, Any], name: str
) -> Mapping[str, Any] | None:
    """Return the values after a change; replace damaged values as if there were none."""
    try:
        return change(values)
    except (AttributeError, KeyError, TypeError, ValueError):
        if not values:
            raise
        logger.warning("the shared record %r was damaged and is replaced", name, exc_info=True)
        return change({})


class FlowMeter:
    """Counts tasks in memory, and adds the counts to the queue's at intervals. Thread-safe.

    A crash loses the counts since the last flush, which are only rates. The numbers of tasks in each state
    come from the tasks themselves.

    Attributes:
        counts_values: Whether it counts tasks by value, because the queue serves by it.
    """

    def __init__(
        self,
        store: Store,
        queue: str,
        rules: OverloadRules,
        later: Later | None = None,
        tell: Callable[[ShedReason, int], None] | None = None,
    ) -> None:
        """Start with nothing counted.

        Args:
            store: The store of the counts.
            queue: Name of the queue.
            rules: Its overload control. Only an admission limit needs the counts of groups.
            later: Writes the counts that are due beside a transaction; None if there are no transactions.
            tell: Receives the reason and the number of shed tasks; None if nobody needs them.
        """
        self._later = later
        self._tell_shed = tell
        self._store = store
        self._queue = queue
        self._lock = new_lock()
        self._deadline_seconds = rules.deadline_seconds
        self._counter = FlowCounter(rules.deadline_seconds)
        self._counts_groups = rules.admission is not None
        self.counts_values = rules.order is Order.VALUE
        self._flush_seconds = self._counter.window_seconds / FLUSHES_PER_WINDOW
        self._turned_away: Counter[str] = Counter()
        # When to write the counts at the latest, from the first count on.
        self._flush_at = -math.inf
        forget_in_child(self)

    def forget_parent(self) -> None:
        """Leave the counts in memory to the parent of a forked child: they would be written twice."""
        self._counter.take()
        self._turned_away = Counter()
        self._flush_at = -math.inf

    @property
    def is_unused(self) -> bool:
        """Whether nothing was counted yet."""
        return self._flush_at == -math.inf and not self._store.expired.any(self._queue)

    def offered(self, now: float, tasks: Sequence[Task]) -> None:
        """Count tasks that were put, including those turned away."""
        with self._lock:
            self._counter.offered(now, len(tasks), [task.stale_at - task.created for task in tasks])
            for task in tasks:
                if self.counts_values:
                    self._counter.valued(now, task.worth, PUT_OF_BAND)
                # `Task.has_value`, without a call: most tasks have none.
                if task.value is not None or task.decay is not None:
                    self._counter.valued_put(now, task.worth)
                if self._counts_groups:
                    self._counter.offered_by(task.group, now)
        if now >= self._flush_at:
            self._flush_or_begin(now)

    def ended(self, now: float, task: Task, work_seconds: float, *, in_time: bool | None) -> None:
        """Count an attempt that ended, and its task if it was done.

        Args:
            now: When it ended, in seconds.
            task: The task.
            work_seconds: How long a worker held the task.
            in_time: Whether it was done in time; None if it was not done.
        """
        with self._lock:
            self._counter.ended(now, work_seconds, in_time=in_time)
            if in_time is not None:
                if self._counts_groups:
                    self._counter.served_by(task.group, now, work_seconds)
                if in_time and self.counts_values:
                    self._counter.valued(now, task.worth, IN_TIME_OF_BAND)
                if task.value is not None or task.decay is not None:
                    self._counter.valued_done(now, task.worth, task.value_at(now), in_time=in_time)
        # An attempt that will be repeated is written with the next count, since it is not worth its own
        # write.
        if in_time is not None and now >= self._flush_at:
            self._flush_or_begin(now)

    def shed_early(self, now: float, reason: ShedReason, count: int) -> None:
        """Count tasks that were shed before their deadline."""
        self._tell(reason, count)
        with self._lock:
            self._counter.shed_early(now, count)
        if now >= self._flush_at:
            self._flush_or_begin(now)

    def note_expired(self, now: float) -> None:
        """Count the stale tasks that this process took out of their lines since the last call."""
        deadlines = self._store.expired.take(self._queue)
        if deadlines:
            self._tell(ShedReason.EXPIRED, len(deadlines))
            with self._lock:
                self._counter.expired(now, deadlines)
            if self._flush_at == -math.inf:
                self._flush_at = now + self._flush_seconds

    def turned_away(self, now: float, reasons: Mapping[ShedReason, int]) -> None:
        """Count puts that were rejected, by reason. A full backlog rejects tasks as it sheds those in it."""
        for reason, count in reasons.items():
            self._tell(reason, count)
        with self._lock:
            for reason, count in reasons.items():
                self._turned_away[reason.value] += count
            if full := reasons.get(ShedReason.OVERFLOW, 0) + reasons.get(ShedReason.GROUP, 0):
                self._counter.shed_early(now, full)
        if reasons and now >= self._flush_at:
            self._flush_or_begin(now)

    def _tell(self, reason: ShedReason, count: int) -> None:
        if self._tell_shed is not None and count:
            self._tell_shed(reason, count)

    def _flush_or_begin(self, now: float) -> None:
        """Write the counts; after the first count, only schedule the write."""
        if self._flush_at == -math.inf:
            self._flush_at = now + self._flush_seconds
        elif self._later is not None and self._later.is_beside:
            self._later.leave()
        else:
            self.flush(now)

    @property
    def _is_beside(self) -> bool:
        return self._later is not None and self._later.is_beside

    def flush(self, now: float) -> None:
        """Add the counts to the queue's; keep counts that cannot be written for the next time."""
        if is_inside():
            return  # the transaction may hold the lock, or the connection, that this needs
        try:
            self.write(now)
        except StoreError:
            logger.warning("queue %r: could not write the flow counts", self._queue, exc_info=True)

    def write(self, now: float) -> None:
        """Add the counts to the queue's.

        Raises:
            StoreError: If counts could not be written. They are kept for the next time.
        """
        self.note_expired(now)
        with self._lock:
            windows = self._counter.take()
            turned_away, self._turned_away = self._turned_away, Counter()
            self._flush_at = now + self._flush_seconds
        try:
            if turned_away:
                self._store.add_counts(self._queue, REFUSED, turned_away, None)
                turned_away = Counter()
            while windows:
                number = next(iter(windows))
                expires = math.ceil((number + 2) * self._counter.window_seconds) + KEPT_SECONDS
                self._store.add_counts(self._queue, _record(number), windows[number], expires)
                del windows[number]
        finally:
            with self._lock:
                self._turned_away.update(turned_away)
                for number, counts in windows.items():
                    self._counter.counts(number).update(counts)

    def flow(self, now: float) -> Flow:
        """Return the recent flow through the queue.

        Raises:
            StoreError: If the store did not answer.
        """
        return self._counter.between(now, *self._counts(now))

    def _counts(self, now: float) -> tuple[dict[str, int], dict[str, int]]:
        """Return the counts of all processes in this window and the one before."""
        if not self._is_beside:
            self.flush(now)
        number = self._counter.window(now)
        current, before = (
            Counter(self._store.read_counts(self._queue, _record(window))) for window in (number, number - 1)
        )
        if self._is_beside:  # its own counts are not written yet
            with self._lock:
                current.update(self._counter.counts(number))
                before.update(self._counter.counts(number - 1))
        return dict(current), dict(before)

    def flow_with_stale(self, now: float) -> Flow:
        """Return the flow, including expired tasks that nobody has taken out of their lines yet.

        Raises:
            StoreError: If the store did not answer.
        """
        current, before = self._counts(now)
        since = now - self._counter.window_seconds
        life_seconds = self._counter.between(now, current, before).own_seconds or self._deadline_seconds
        stale = self._store.count_stale(self._queue, since, now, life_seconds)
        return self._counter.between(now, current | {"expired": current.get("expired", 0) + stale}, before)

    def measure(self, now: float) -> tuple[Flow, float | None]:
        """Return the recent flow, and the age of the oldest live task in seconds.

        Raises:
            StoreError: If the store did not answer.
        """
        oldest_age_seconds = self._oldest_age_seconds(now)
        return self.flow(now), oldest_age_seconds

    def _oldest_age_seconds(self, now: float) -> float | None:
        oldest = oldest_created(self._store, self._queue, now, now - self._deadline_seconds)
        return None if oldest is None else now - oldest

    def pressure(self, now: float, uniform: float) -> Pressure:
        """Return how overloaded the queue is.

        Args:
            now: Current time in seconds.
            uniform: A random number from [0, 1), for the jitter.

        Raises:
            StoreError: If the store did not answer.
        """
        oldest_age_seconds = self._oldest_age_seconds(now)
        nearest = first_to_expire(self._store, self._queue, now, now - self._deadline_seconds)
        latest = latest_wait(now, None, self._deadline_seconds, nearest)
        flow = self.flow_with_stale(now)
        return assess(flow, oldest_age_seconds, self._deadline_seconds, uniform, latest)


def _record(window: int) -> str:
    return f"flow-{window}"


class ServiceTimes:
    """The service times by kind that this process saw.

    A worker and the handlers it calls may open the same queue twice, so all queues of one name and one store
    share them.

    Attributes:
        uncounted: Kind, duration in seconds and end of each task since the times were last used, at most
            `MOST_KEPT`. Most queues never use the times.
        lock: Held while the times are used.
        times: The times.
    """

    _known: ClassVar[WeakValueDictionary[tuple[object, str], ServiceTimes]] = WeakValueDictionary()

    def __init__(self) -> None:
        """Start with nothing seen."""
        self.uncounted: deque[tuple[str | None, float, float]] = deque(maxlen=MOST_KEPT)
        self.lock = new_lock()
        self.times = KindTimes()

    @classmethod
    def of(cls, store: Store, queue: str) -> ServiceTimes:
        """Return the times of a queue, the same for all that are open in this process."""
        place = store if store.place is None else store.place
        return cls._known.setdefault((place, queue), cls())


class SharedReserve:
    """The time that a task must have left to be claimed. Thread-safe.

    A fixed reserve is in the rules. All workers learn a quantile together: each adds its observed service
    times to a shared record, and continues with the times of all workers.

    Attributes:
        fixed_seconds: The reserve if it is fixed; None if it is learned.
    """

    def __init__(self, store: Store, queue: str, rules: OverloadRules) -> None:
        """Start with nothing learnt.

        Args:
            store: The store of the shared records.
            queue: Name of the queue.
            rules: How the reserve is found.
        """
        self._store = store
        self._queue = queue
        self._lock = new_lock()
        self._reserve = LearnedReserve(rules.new_reserve)
        self.fixed_seconds = None if self._reserve.learns else self._reserve.seconds
        self._skipped = SkippedTasks(rules.order)
        self._of_kinds = ServiceTimes.of(store, queue)
        self._share = rules.reserve.quantile or DEFAULT_QUANTILE

    def observe(self, service_seconds: float, kind: str | None, now: float) -> None:
        """Record how long a task of a kind took that ended at `now` (seconds)."""
        self._of_kinds.uncounted.append((kind, service_seconds, now))
        if self.fixed_seconds is None:
            with self._lock:
                self._reserve.observe(service_seconds)

    def needed_seconds(self, kind: str | None, now: float) -> float:
        """Return how long a kind's tasks take if this process knows, otherwise the reserve."""
        with self._of_kinds.lock:
            while self._of_kinds.uncounted:
                self._of_kinds.times.observe(*self._of_kinds.uncounted.popleft())
            seconds = self._of_kinds.times.seconds(kind, self._share, now)
        return seconds or self._reserve.seconds

    def seconds(self, clock: Callable[[], float]) -> float:
        """Return the reserve, after a sync with other workers if one is due; only then is the time read."""
        if self.fixed_seconds is not None:
            return self.fixed_seconds
        if (now := clock()) >= self._reserve.next_sync:
            self.sync(now)
        return self._reserve.seconds

    def sync(self, now: float) -> None:
        """Merge the service times of all processes; if the store does not answer, try at the next sync."""
        with self._lock:
            seen = self._reserve.begin_sync(now)
        merged = QuantileSketch()

        def add(values: Mapping[str, Any]) -> dict[str, Any] | None:
            nonlocal merged
            shared = {int(index): weight for index, weight in values.get("counts", {}).items()}
            merged = LearnedReserve.merged(shared, seen)
            counts = LearnedReserve.shared_counts(merged)
            return {"counts": {str(index): weight for index, weight in counts.items()}} if seen else None

        try:
            written = change_record(self._store, self._queue, SERVICE, add)
        except StoreError:
            logger.warning("queue %r: could not share service times", self._queue, exc_info=True)
            written = False
        with self._lock:
            if written:
                self._reserve.end_sync(merged)
            else:
                self._reserve.abort_sync(seen)

    def check_due(self, now: float, reserve_seconds: float, *, short: bool) -> bool:
        """Return whether to call `note_skipped` after a claim; see `SkippedTasks.check_due`."""
        return self._skipped.check_due(now, reserve_seconds, short=short)

    def note_skipped(
        self, now: float, reserve_seconds: float, oldest: float | None, created_after: float, *, short: bool
    ) -> bool:
        """Record whether a claim skipped tasks because of the reserve, and return it (`SkippedTasks.found`).

        The record shows later whether a stale task was shed by the reserve or by its age alone.
        """
        if not self._skipped.found(now, reserve_seconds, oldest, created_after, short=short):
            return False

        def extend(values: Mapping[str, Any]) -> dict[str, Any]:
            return {"spans": ReserveSpans(values.get("spans", ())).extended(now, reserve_seconds)}

        try:
            change_record(self._store, self._queue, SPANS, extend)
        except StoreError:
            logger.warning("queue %r: could not record the reserve", self._queue, exc_info=True)
        return True

    def bound(self, waiting: Iterable[tuple[float, float]]) -> None:
        """Lower the reserve for tasks with a short max age of their own; see `LearnedReserve.bound`."""
        with self._lock:
            self._reserve.bound(waiting)

    def spans(self) -> ReserveSpans:
        """Return the times at which claims skipped tasks because of the reserve.

        Raises:
            StoreError: If the store did not answer.
        """
        record = self._store.read_record(self._queue, SPANS)
        try:
            return ReserveSpans(() if record is None else record.values["spans"])
        except (KeyError, TypeError, ValueError):
            logger.warning("queue %r: the record of the reserve is damaged", self._queue)
            return ReserveSpans()
