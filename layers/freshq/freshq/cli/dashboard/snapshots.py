"""A snapshot of a queue: all that the dashboard shows, at a bounded cost whatever the backlog."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from freshq.cli.dashboard.marks import READ_TASKS, marks_of
from freshq.cli.dashboard.rates import ShedRate, WaitSamples
from freshq.cli.dashboard.survey import Surveyor
from freshq.cli.dashboard.task_views import dead_letter_row, lease_row
from freshq.model.task import TaskStatus
from freshq.policy.flow import flow_window_seconds
from freshq.queue.shared.flow import REFUSED

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from freshq.cli.dashboard.marks import Marks
    from freshq.cli.dashboard.rates import Waits
    from freshq.cli.dashboard.survey import Survey
    from freshq.model.task import Task
    from freshq.policy.pressure import Pressure
    from freshq.queue.base import BaseQueue
    from freshq.stores.base import Stats

# Held tasks that are read, and how many of them are shown.
READ_LEASES: Final = 500
SHOWN_LEASES: Final = 50
SHOWN_GROUPS: Final = 12
SHOWN_DEAD_LETTERS: Final = 20
# From this max age on, the picture ends at the oldest task instead: the deadline is too far away to see.
MAX_HORIZON_SECONDS: Final = 7 * 86_400.0
MIN_HORIZON_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A queue at one moment.

    Attributes:
        at: Time of the queue in seconds since the epoch.
        paused: Whether claims are suspended.
        stats: Approximate counts by state.
        pressure: Rates, and the chance of a new task to be served in time.
        shed_per_second: Estimated rate of what ends unserved; None if it is not known.
        marks: The waiting tasks as the picture shows them.
        horizon_seconds: The greatest age that the picture has.
        waiting_by_group: Number of waiting tasks by group, of those read.
        held: Tasks under a lease, the first to end first.
        waits: How long tasks waited for their claim.
        survey: All tasks by fate.
        dead_letters: The latest dead letters, the last first, and when each is stale to claims.
        turned_away: Number of puts that admission control rejected, by reason.
    """

    at: float
    paused: bool
    stats: Stats
    pressure: Pressure
    shed_per_second: float | None
    marks: Marks
    horizon_seconds: float
    waiting_by_group: Mapping[str | None, int]
    held: Sequence[Task]
    waits: Waits
    survey: Survey
    dead_letters: Sequence[tuple[Task, float]]
    turned_away: Mapping[str, int]

    def as_json(self) -> dict[str, Any]:
        """Return the snapshot as the page reads it, without any payload, result or token."""
        return {
            "at_ms": round(self.at * 1000),
            "paused": self.paused,
            "stats": asdict(self.stats),
            "rates": self.rates(),
            "probability_in_time": self.pressure.probability_in_time,
            "overloaded": self.pressure.overloaded,
            "marks": asdict(self.marks),
            "horizon_seconds": self.horizon_seconds,
            "groups": self._groups(),
            "leases": [lease_row(task, self.at) for task in self.held[:SHOWN_LEASES]],
            "leases_read": len(self.held),
            "waits": asdict(self.waits),
            "survey": self._survey(),
            "dead_letters": [dead_letter_row(task, until, self.at) for task, until in self.dead_letters],
        }

    def rates(self) -> dict[str, float | None]:
        """Return the rates, in tasks per second."""
        return {
            "offered": self.pressure.offered_per_second,
            "served": self.pressure.served_per_second,
            "shed": self.shed_per_second,
        }

    def _groups(self) -> dict[str, Any]:
        held = Counter(task.group for task in self.held)
        waiting = Counter(self.waiting_by_group)
        groups = sorted({*waiting, *held}, key=lambda group: (-waiting[group], -held[group], str(group)))
        return {
            "rows": [
                {"group": group, "waiting": waiting[group], "held": held[group]}
                for group in groups[:SHOWN_GROUPS]
            ],
            "left_out": max(0, len(groups) - SHOWN_GROUPS),
        }

    def _survey(self) -> dict[str, Any]:
        survey = self.survey
        return {
            "tasks": survey.tasks,
            "complete": survey.complete,
            "by_status": survey.by_status,
            "by_reason": dict(Counter(survey.by_reason) + Counter(self.turned_away)),
            "turned_away": sum(self.turned_away.values()),
        }


class Watcher:
    """Takes snapshots of a queue. Not thread-safe: one at a time."""

    def __init__(self, queue: BaseQueue) -> None:
        self._queue = queue
        self._shed_rate = ShedRate(flow_window_seconds(queue.max_age_seconds))
        self._waits = WaitSamples()
        self._surveyor = Surveyor(queue)

    def restart_survey(self) -> None:
        """Restart the survey of all tasks, after a change."""
        self._surveyor.restart()

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the queue.

        Raises:
            StoreError: If the store did not answer.
        """
        queue, store, name = self._queue, self._queue.store, self._queue.name
        now = queue.now()
        stats, pressure = queue.stats(approximate=True), queue.pressure()
        found = store.newest_created(name, now, now - queue.max_age_seconds, READ_TASKS)
        created = {group: times for group, times in found.items() if times}
        held = store.leased(name, READ_LEASES)
        letters = queue.list(TaskStatus.FAILURE, SHOWN_DEAD_LETTERS)
        horizon_seconds = horizon(queue.max_age_seconds, stats.oldest_pending_seconds)
        return Snapshot(
            at=now,
            paused=queue.paused,
            stats=stats,
            pressure=pressure,
            shed_per_second=self._shed_rate.per_second(now, stats, pressure),
            marks=marks_of(created, stats.pending, now, horizon_seconds),
            horizon_seconds=horizon_seconds,
            waiting_by_group={group: len(times) for group, times in created.items()},
            held=held,
            waits=self._waits.add(now, held),
            survey=self._surveyor.survey(),
            dead_letters=[(task, queue.lifecycle.live_until(task)) for task in letters],
            turned_away=store.read_counts(name, REFUSED),
        )


def has_deadline(max_age_seconds: float) -> bool:
    """Return whether the deadline is near enough to be a line in the picture."""
    return max_age_seconds <= MAX_HORIZON_SECONDS


def horizon(max_age_seconds: float, oldest_seconds: float | None) -> float:
    """Return the greatest age in the picture, in seconds: the max age, or else well above the oldest task."""
    if has_deadline(max_age_seconds):
        return max_age_seconds
    horizon_seconds = MIN_HORIZON_SECONDS
    while horizon_seconds < (oldest_seconds or 0.0):
        horizon_seconds *= 2
    return horizon_seconds
