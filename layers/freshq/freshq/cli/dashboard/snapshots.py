"""Snapshots of a queue, as the page shows them."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from typing_extensions import override

from freshq.cli.commands.tasks import Cause, add_cause, by_frequency, cause_of
from freshq.cli.output import chance_in_time, counted, forecast_lines
from freshq.feeds.schedules import Cron, HighWaterMarks
from freshq.model.task import LIVE, TaskStatus
from freshq.policy.groups import RunningCounts
from freshq.policy.pressure import flow_window_seconds
from freshq.policy.shedding import ShedReason
from freshq.queue.core import core_of
from freshq.queue.gauges import workers_slowed
from freshq.queue.reading import ValueTally, newest_created
from freshq.queue.shared.measures import REFUSED
from freshq.simulate.forecast import Forecaster, WaitingTasks
from freshq.simulate.results import percentile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from freshq.feeds.schedules import Schedule
    from freshq.model.task import Task
    from freshq.policy.groups import GroupRules
    from freshq.policy.pressure import Pressure
    from freshq.queue.base import BaseQueue
    from freshq.stores.base import Stats

Found = TypeVar("Found")
# If larger, marks overlap and animation stutters; if smaller, each mark stands for more tasks.
MAX_MARKS: Final = 600
# Creation times read of each line for a snapshot.
READ_TASKS: Final = 5_000
# Ages in the picture's alternative as text, as shares of the max age.
AGE_SHARES: Final = (0.1, 0.25, 0.5, 0.75, 1.0)
# Knuth's multiplicative hash, of 32 bits (The Art of Computer Programming, volume 3, section 6.4).
HASH_FACTOR: Final = 2_654_435_761
HASH_BITS: Final = 32
# Waits of claims are kept for this long.
WAITS_SECONDS: Final = 60.0
LIVE_COUNTS: Final = ("pending", "delayed", "taken")
# A pass reads this many tasks at a time, this often.
PART_TASKS: Final = 1_000
EVERY_SECONDS: Final = 2.0
# Errors are written by the application, and may be long.
ERROR_CHARS: Final = 300
OVER: Final = {
    TaskStatus.SUCCESS: "done",
    TaskStatus.FAILURE: "became a dead letter",
    TaskStatus.CANCELLED: "cancelled",
    TaskStatus.SHED: "shed",
}
# Number of held tasks that are read, and how many of them are shown.
READ_LEASES: Final = 500
SHOWN_LEASES: Final = 50
SHOWN_GROUPS: Final = 12
SHOWN_DEAD_LETTERS: Final = 20
SHOWN_CAUSES: Final = 20
# From this max age on, the picture ends at the oldest task: the deadline is too far away to show.
MAX_HORIZON_SECONDS: Final = 7 * 86_400.0
MIN_HORIZON_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Marks:
    """The waiting tasks for the picture.

    Attributes:
        ages_ms: The age of each mark in whole milliseconds before the time of the snapshot, the youngest
            first.
        one_in: How many tasks a mark stands for.
        older: Waiting tasks that are older than all those read; at least, if the backlog is not counted.
        by_age: Pairs of an age in seconds and the number of the tasks read that are younger.
    """

    ages_ms: tuple[int, ...]
    one_in: int
    older: int
    by_age: tuple[tuple[float, int], ...]


def marks_of(
    created: Mapping[str | None, Sequence[float]], pending: int, now: float, horizon_seconds: float
) -> Marks:
    """Return the marks of the waiting tasks.

    Whether a task has a mark depends on its creation time alone, so that the same tasks are marked in every
    snapshot; and the number of tasks that a mark stands for is a power of two, so that it seldom changes.

    Args:
        created: Creation times by group, in seconds since the epoch.
        pending: The number of waiting tasks, as far as they are counted.
        now: Current time in seconds since the epoch.
        horizon_seconds: The greatest age that the picture has.
    """
    times = sorted(chain.from_iterable(created.values()), reverse=True)
    one_in = 1
    while len(times) > MAX_MARKS * one_in:
        one_in *= 2
    # Each rounded separately, so that the page computes the same creation time from every snapshot.
    ages_ms = tuple(
        round(now * 1000) - round(time * 1000)
        for time in times
        # The highest bits of the hash look random.
        if ((round(time * 1e6) * HASH_FACTOR % (1 << HASH_BITS)) >> (HASH_BITS // 2)) % one_in == 0
    )
    ages_seconds = [horizon_seconds * share for share in AGE_SHARES]
    by_age = tuple((age, sum(now - time < age for time in times)) for age in ages_seconds)
    return Marks(ages_ms, one_in, max(0, pending - len(times)), by_age)


class ShedRate:
    """Estimates the rate at which tasks end unserved, from the balance of the queue.

    Every offered task was served, is still live, or ended otherwise: shed, turned away, failed or cancelled.
    """

    def __init__(self, window_seconds: float) -> None:
        self._window_seconds = window_seconds
        self._live: deque[tuple[float, int]] = deque()

    def per_second(self, now: float, stats: Stats, pressure: Pressure) -> float | None:
        """Return the rate; None if it is not known yet, or there are too many live tasks to count."""
        if any(state in stats.bounded for state in ("pending", "delayed")):
            self._live.clear()
            return None
        self._live.append((now, sum(getattr(stats, state) for state in LIVE_COUNTS)))
        while len(self._live) > 1 and now - self._live[1][0] >= self._window_seconds:
            self._live.popleft()
        since, live_then = self._live[0]
        if now - since < min(1.0, self._window_seconds):
            return None
        growth = (self._live[-1][1] - live_then) / (now - since)
        return max(0.0, pressure.offered_per_second - pressure.served_per_second - growth)


@dataclass(frozen=True, slots=True)
class Waits:
    """The waits until the first claim of tasks that a snapshot found running.

    Attributes:
        tasks: How many.
        p50_seconds: The median; None without any.
        p90_seconds: The 90th percentile.
        p99_seconds: The 99th percentile.
    """

    tasks: int
    p50_seconds: float | None
    p90_seconds: float | None
    p99_seconds: float | None


class WaitSamples:
    """Collects the waits of tasks that were first claimed since the last snapshot and are still running."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()
        self._last_snapshot: float | None = None

    def add(self, now: float, held: Iterable[Task]) -> Waits:
        """Take the running tasks, and return the waits of the last minute."""
        since = now if self._last_snapshot is None else self._last_snapshot
        for task in held:
            if task.first_claim_at is not None and since < task.first_claim_at <= now:
                self._samples.append((now, max(0.0, task.first_claim_at - task.created)))
        self._last_snapshot = now
        while self._samples and now - self._samples[0][0] > WAITS_SECONDS:
            self._samples.popleft()
        waits = sorted(wait for _at, wait in self._samples)
        return Waits(len(waits), *(percentile(waits, share) for share in (0.5, 0.9, 0.99)))


def schedule_rows(queue: BaseQueue, schedules: Sequence[Schedule]) -> list[dict[str, Any]]:
    """Return a row for each schedule.

    Raises:
        StoreError: If the store did not answer.
    """
    now, high_water_marks = queue.admin.now(), HighWaterMarks(queue)
    rows = []
    for schedule in schedules:
        state = high_water_marks.read(schedule.record_name)
        when = schedule.when
        rows.append(
            {
                "name": schedule.name,
                "when": f"{when.expression} ({when.zone})"
                if isinstance(when, Cron)
                else f"every {when.seconds:g} s",
                "started": state is not None,
                "up_to": None if state is None else state.last,
                "failed": 0 if state is None else len(state.failed),
                "next": next(when.ticks(now), None),
            }
        )
    return rows


@dataclass(frozen=True, slots=True)
class Survey:
    """The result of the last complete pass over the tasks, or of the first one so far.

    Attributes:
        tasks: How many tasks it read.
        complete: Whether it read all.
        by_status: Number of tasks by status.
        by_reason: Number of shed tasks by reason.
        value: What tasks with values delivered and lost, as in `Stats`; empty if none has a value.
    """

    tasks: int
    complete: bool
    by_status: Mapping[str, int]
    by_reason: Mapping[str, int]
    value: Mapping[str, float]


class Passes(Generic[Found]):
    """Reads a queue's tasks in parts, over and over; a subclass counts them."""

    def __init__(self, queue: BaseQueue, status: TaskStatus | None = None) -> None:
        """Read nothing yet.

        Args:
            queue: The queue.
            status: The status of the tasks; None for any.
        """
        self._queue = queue
        self._status = status
        self._next_part_at = 0.0
        self._last: Found | None = None
        self._start()

    def _start(self) -> None:
        """Count from 0."""
        self._cursor: str | None = None

    def _count(self, task: Task) -> None:
        """Count a task."""
        raise NotImplementedError

    def _so_far(self, *, complete: bool) -> Found:
        """Return the counts."""
        raise NotImplementedError

    def restart(self) -> None:
        """Restart at the next snapshot: an operator changed something."""
        self._start()
        self._next_part_at = 0.0

    def survey(self) -> Found:
        """Return the result of the last complete pass, or the first so far; read the next part when due.

        Raises:
            StoreError: If the store did not answer.
        """
        now = self._queue.admin.now()
        if now >= self._next_part_at:
            self._survey_part()
            self._next_part_at = now + EVERY_SECONDS
        return self._so_far(complete=False) if self._last is None else self._last

    def _survey_part(self) -> None:
        page = self._queue.list(self._status, limit=PART_TASKS, cursor=self._cursor)
        for task in page:
            self._count(task)
        self._cursor = page.cursor
        if page.cursor is None:
            self._last = self._so_far(complete=True)
            self._start()


class Surveyor(Passes[Survey]):
    """Surveys all tasks by fate."""

    @override
    def _start(self) -> None:
        super()._start()
        self._tasks = 0
        self._statuses: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._values = ValueTally()

    @override
    def _count(self, task: Task) -> None:
        self._tasks += 1
        self._values.add(task, task.status)
        self._statuses[task.status.value] += 1
        if task.status is TaskStatus.SHED:
            self._reasons[task.shed_reason.value if task.shed_reason else ShedReason.EXPIRED.value] += 1

    @override
    def _so_far(self, *, complete: bool) -> Survey:
        statuses, reasons = dict(self._statuses), dict(self._reasons)
        return Survey(self._tasks, complete, statuses, reasons, self._values.sums)


@dataclass(frozen=True, slots=True)
class Causes:
    """The causes of dead letters found in the last complete pass, or in the first one so far.

    Attributes:
        found: The causes, the most frequent first.
        stale: Number of dead letters by cause that return to their lines only as new.
        live_until: When the last of each cause is stale, in seconds since the epoch.
        complete: Whether it read all.
    """

    found: Sequence[Cause] = ()
    stale: Mapping[tuple[str, str | None], int] = field(default_factory=dict)
    live_until: Mapping[tuple[str, str | None], float] = field(default_factory=dict)
    complete: bool = False

    def count(self, cause: tuple[str, str | None] | None) -> int:
        """Return the number of the dead letters with a cause; with None, of all."""
        return sum(one.count for one in self.found if cause in (None, (one.error, one.kind)))

    def as_json(self, now: float) -> dict[str, Any]:
        """Return the most frequent causes in the page's form."""
        stale = [self._stale_count(cause, now) for cause in self.found]
        shown = zip(self.found[:SHOWN_CAUSES], stale[:SHOWN_CAUSES], strict=True)
        return {
            "rows": [asdict(cause) | {"stale": number} for cause, number in shown],
            "left_out": max(0, len(self.found) - SHOWN_CAUSES),
            "count": self.count(None),
            "stale": sum(stale),
            "complete": self.complete,
        }

    def _stale_count(self, cause: Cause, now: float) -> int:
        """Return how many dead letters of a cause are stale; all, if the last became so after the pass."""
        key = cause.error, cause.kind
        return cause.count if self.live_until.get(key, now) <= now else self.stale.get(key, 0)


class CauseSurveyor(Passes[Causes]):
    """Counts the dead letters by cause, as `freshq dlq top` does."""

    @override
    def _start(self) -> None:
        super()._start()
        self._found: dict[tuple[str, str | None], Cause] = {}
        self._stale: Counter[tuple[str, str | None]] = Counter()
        self._live_until: dict[tuple[str, str | None], float] = {}

    @override
    def _count(self, task: Task) -> None:
        add_cause(self._found, task)
        cause, live_until = cause_of(task), core_of(self._queue).lifecycle.live_until(task)
        self._stale[cause] += live_until <= self._queue.admin.now()
        self._live_until[cause] = max(live_until, self._live_until.get(cause, live_until))

    @override
    def _so_far(self, *, complete: bool) -> Causes:
        found = by_frequency(self._found.values())
        return Causes(found, dict(self._stale), dict(self._live_until), complete)


def lease_row(task: Task, now: float) -> dict[str, Any]:
    """Return a held task as a row: `held_seconds` counts from its claim."""
    return _row(task, now) | {
        "held_seconds": max(0.0, now - (task.last_claim_at or task.updated)),
        "left_seconds": (task.lease_until or now) - now,
        **_progress(task),
    }


def dead_letter_row(task: Task, live_until: float, now: float) -> dict[str, Any]:
    """Return a dead letter as a row; a stale one could not be claimed, so it is not redriven."""
    return _row(task, now) | {
        "error": _short(task.error),
        "since_seconds": max(0.0, now - (task.dead_at or task.updated)),
        "redrivable": live_until > now,
    }


def listed_row(task: Task, now: float) -> dict[str, Any]:
    """Return a task of a list as a row."""
    return _row(task, now) | {"error": _short(task.error)}


def details(task: Task, now: float) -> dict[str, Any]:
    """Return everything about a task except payload and result, with the history that is kept."""
    return _row(task, now) | {
        "delayed": task.delayed,
        "deadline": task.deadline,
        "error": task.error,
        "shed_reason": task.shed_reason,
        "has_result": task.result is not None,
        "value": task.value,
        "decay": task.decay,
        "cost": task.cost,
        "attempt_log": [attempt._asdict() for attempt in reversed(task.attempt_log)],
        **_progress(task),
        "history": [{"at": at, "event": event} for at, event in _in_order(_history(task, now))],
    }


def contents(task: Task) -> dict[str, Any]:
    """Return the payload and the result of a task, for someone who asked for them."""
    return {"payload": task.payload, "result": task.result}


def _row(task: Task, now: float) -> dict[str, Any]:
    return {
        "task_id": task.task_id,
        "status": task.status_at(now).value,
        "group": task.group,
        "kind": task.kind,
        "priority": task.priority,
        "attempts": task.attempts,
        "age_seconds": max(0.0, now - task.created),
    }


def _progress(task: Task) -> dict[str, Any]:
    return {"progress_fraction": task.progress_fraction, "progress_step": task.progress_step}


def _in_order(events: Iterable[tuple[float, str]]) -> list[tuple[float, str]]:
    """Sort events by time. Events of the same millisecond keep their order: creation times never tie."""
    return sorted(events, key=lambda event: round(event[0], 3))


def _short(error: str | None) -> str | None:
    return error if error is None or len(error) <= ERROR_CHARS else f"{error[:ERROR_CHARS]}…"


def _history(task: Task, now: float) -> Iterator[tuple[float, str]]:
    """Yield the times that the task carries."""
    status = task.status_at(now)
    moments = [*_past(task)]
    if status in LIVE:
        moments += _ahead(task, status)
    else:
        moments.append(_end(task, status))
    yield from ((at, event) for at, event in moments if at is not None)


def _past(task: Task) -> Iterator[tuple[float | None, str]]:
    yield task.put_at, "put"
    if task.created != task.put_at:
        yield task.created, "joined its line"
    yield task.first_claim_at, "first claimed"
    if task.last_claim_at != task.first_claim_at:
        yield task.last_claim_at, "last claimed"
    if task.status is not TaskStatus.FAILURE:
        yield task.dead_at, "became a dead letter"


def _ahead(task: Task, status: TaskStatus) -> Iterator[tuple[float | None, str]]:
    if status is TaskStatus.TAKEN:
        yield task.lease_until, "lease expires"
    elif task.attempts:
        yield task.updated, f"returned to its line after {counted(task.attempts, 'attempt')}"
    if task.delayed:
        yield task.not_before, "due"
    yield task.deadline, "deadline"


def _end(task: Task, status: TaskStatus) -> tuple[float, str]:
    if status is TaskStatus.SHED and task.shed_reason is None:
        return task.stale_at, "shed: its deadline passed"
    reason = f": {task.shed_reason}" if task.shed_reason else ""
    end = OVER.get(status, status.value.lower().replace("_", " "))
    return task.updated, f"{end}{reason}, after {counted(task.attempts, 'attempt')}"


def point_of(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a snapshot for the charts; a backlog that is not counted is None."""
    stats = snapshot["stats"]
    waiting = None if stats["bounded"].get("pending") == "not counted" else stats["pending"]
    return {"at_ms": snapshot["at_ms"], **snapshot["rates"], "waiting": waiting}


class PageWatcher:
    """Takes snapshots of a queue. Not thread-safe: make one snapshot at a time.

    Attributes:
        causes: The dead letters by cause, from the last snapshot.
    """

    def __init__(self, queue: BaseQueue) -> None:
        self._queue = queue
        self._shed_rate = ShedRate(flow_window_seconds(queue.admin.config.stale_after_seconds))
        self._waits = WaitSamples()
        self._surveyor = Surveyor(queue)
        self._causes = CauseSurveyor(queue, TaskStatus.FAILURE)
        self.causes = Causes()
        self._forecaster = Forecaster()

    def restart_survey(self) -> None:
        """Restart the surveys, after a change."""
        self._surveyor.restart()
        self._causes.restart()

    def sample(self) -> dict[str, Any]:
        """Return only the values of the charts.

        Raises:
            StoreError: If the store did not answer.
        """
        now, queue = self._queue.admin.now(), self._queue
        return point_of(self._figures(now, queue.stats(approximate=True), queue.pressure()))

    def _figures(self, now: float, stats: Stats, pressure: Pressure) -> dict[str, Any]:
        """Return the counts, and the rates in tasks per second."""
        rates = {
            "offered": pressure.offered_per_second,
            "served": pressure.served_per_second,
            "shed": self._shed_rate.per_second(now, stats, pressure),
        }
        return {"at_ms": round(now * 1000), "stats": asdict(stats), "rates": rates}

    def snapshot(self) -> dict[str, Any]:
        """Return a snapshot of the queue in the page's form, without any payload, result or token.

        Raises:
            StoreError: If the store did not answer.
        """
        queue, store, name = self._queue, core_of(self._queue).store, self._queue.name
        now, config = queue.admin.now(), queue.admin.config
        stats, pressure = queue.stats(approximate=True), queue.pressure()
        found = newest_created(store, name, now, now - config.stale_after_seconds, READ_TASKS)
        created = {group: times for group, times in found.items() if times}
        held = store.leased(name, READ_LEASES)
        horizon_seconds = horizon(config.stale_after_seconds, stats.oldest_pending_seconds)
        self.causes = self._causes.survey()
        survey, refused = self._surveyor.survey(), store.read_counts(name, REFUSED)
        by_reason = dict(Counter(survey.by_reason) + Counter(refused))
        return {
            **self._figures(now, stats, pressure),
            **self._expected(now, stats, pressure, created),
            "slowed": workers_slowed(store, name, now),
            "value": {
                "offered": pressure.value_offered_per_second,
                "delivered": pressure.value_delivered_per_second,
                "lost": pressure.value_lost_ratio,
            },
            "overloaded": pressure.overloaded,
            "marks": asdict(marks_of(created, stats.pending, now, horizon_seconds)),
            "horizon_seconds": horizon_seconds,
            "groups": _group_rows(created, held, config.groups),
            "leases": [lease_row(task, now) for task in held[:SHOWN_LEASES]],
            "leases_read": len(held),
            "waits": asdict(self._waits.add(now, held)),
            "survey": asdict(survey) | {"by_reason": by_reason, "turned_away": sum(refused.values())},
            "dead_letters": self._dead_letters(now),
            "causes": self.causes.as_json(now),
        }

    def _expected(
        self, now: float, stats: Stats, pressure: Pressure, created: Mapping[str | None, Sequence[float]]
    ) -> dict[str, Any]:
        """Return the forecast, and a new task's chance; neither is known while the queue is paused."""
        waiting = WaitingTasks(stats.pending, stats.oldest_pending_seconds, lambda: chain(*created.values()))
        rules, paused = self._queue.admin.config.rules(), self._queue.paused()
        forecast = self._forecaster.forecast(now, rules, pressure, stats.taken, waiting)
        return {
            "paused": paused,
            "probability_in_time": chance_in_time(forecast, pressure, paused=paused),
            "forecast": {} if paused else forecast_lines(forecast, waiting=stats.pending > 0),
        }

    def _dead_letters(self, now: float) -> list[dict[str, Any]]:
        live_until = core_of(self._queue).lifecycle.live_until
        letters = self._queue.list(TaskStatus.FAILURE, limit=SHOWN_DEAD_LETTERS)
        return [dead_letter_row(task, live_until(task), now) for task in letters]


def _group_rows(
    created: Mapping[str | None, Sequence[float]], held_tasks: Sequence[Task], rules: GroupRules
) -> dict[str, Any]:
    """Return a row for each group: its waiting tasks, of those read, its held tasks and its limits."""
    held = Counter(task.group for task in held_tasks)
    waiting = Counter({group: len(times) for group, times in created.items()})
    groups = sorted({*waiting, *held}, key=lambda group: (-waiting[group], -held[group], str(group)))
    running = RunningCounts()
    for group, number in held.items():
        running.add(group, number)
    rows = [
        {
            "group": group,
            "waiting": waiting[group],
            "held": held[group],
            "share": held[group] / len(held_tasks) if held_tasks else None,
            "weight": rules.rule(group).weight,
            "full": running.full(group, rules),
        }
        for group in groups[:SHOWN_GROUPS]
    ]
    return {"rows": rows, "left_out": max(0, len(groups) - SHOWN_GROUPS)}


def queue_row(queue: BaseQueue) -> dict[str, Any]:
    """Return the main figures of a queue as a row.

    Raises:
        StoreError: If the store did not answer.
    """
    stats, pressure = queue.stats(approximate=True), queue.pressure()
    return {
        "name": queue.name,
        "paused": queue.paused(),
        "overloaded": pressure.overloaded,
        "stats": asdict(stats),
        "offered": pressure.offered_per_second,
        "served": pressure.served_per_second,
        "probability_in_time": pressure.probability_in_time,
    }


def has_deadline(max_age_seconds: float | None) -> bool:
    """Return whether the deadline is near enough to be a line in the picture."""
    return max_age_seconds is not None and max_age_seconds <= MAX_HORIZON_SECONDS


def horizon(max_age_seconds: float, oldest_seconds: float | None) -> float:
    """Return the greatest age in the picture, in seconds: the max age, or else well above the oldest task."""
    if has_deadline(max_age_seconds):
        return max_age_seconds
    horizon_seconds = MIN_HORIZON_SECONDS
    while horizon_seconds < (oldest_seconds or 0.0):
        horizon_seconds *= 2
    return horizon_seconds
