"""What the demonstration shows, computed from the history of its tasks. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import quantiles
from typing import TYPE_CHECKING, Final

from freshq import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from freshq import Task

# A task that entered the index less than this before a claim need not have been visible to it.
INDEX_LAG_SECONDS: Final = 1.0


# The states of a task, not those of an application's record that is in no queue.
OUTSIDE = (TaskStatus.UNDER_CONSTRUCTION, TaskStatus.READY)
FATES = tuple(status for status in TaskStatus if status not in OUTSIDE)


@dataclass(frozen=True, slots=True)
class Run:
    """One claim of a task.

    Attributes:
        taken: When it was claimed, in seconds.
        counted: Whether it was an attempt; a task given back untried was not run.
    """

    taken: float
    counted: bool


@dataclass(frozen=True, slots=True)
class Life:
    """A task from its put to its end.

    Attributes:
        task_id: Its id.
        created: When it was put, in seconds.
        deadline: From when on it was stale.
        runs: Its claims, in order.
        fate: How it stood at the end.
        ended: When it reached its fate: settled, or stale; None while it waits or runs.
    """

    task_id: str
    created: float
    deadline: float
    runs: tuple[Run, ...]
    fate: TaskStatus
    ended: float | None

    @property
    def wait_seconds(self) -> float | None:
        """Time from the put to the first claim; None if it was never claimed."""
        return self.runs[0].taken - self.created if self.runs else None

    def claimable_at(self, moment: float) -> bool:
        """Return whether it waited at a moment, put long enough before to be visible."""
        until = self.runs[0].taken if self.runs else self.deadline
        return self.created + INDEX_LAG_SECONDS <= moment < min(until, self.deadline)


def life_of(versions: Sequence[Task], now: float) -> Life:
    """Return the life of a task from its versions, oldest first.

    Args:
        versions: At least the first one.
        now: The time to say its fate at, in seconds.
    """
    runs: list[Run] = []
    for version, following in zip(versions, [*versions[1:], None], strict=True):
        if version.status is TaskStatus.TAKEN and (not runs or runs[-1].taken != version.updated):
            released = following is not None and following.attempts < version.attempts
            runs.append(Run(version.updated, counted=not released))
    first, last = versions[0], versions[-1]
    fate = last.status_at(now)
    ended = None
    if fate is TaskStatus.SHED:
        ended = last.deadline
    elif fate not in (TaskStatus.PENDING, TaskStatus.TAKEN):
        ended = last.updated
    return Life(first.task_id, first.created, last.deadline, tuple(runs), fate, ended)


def lives_of(versions: Mapping[str, Sequence[Task]], now: float) -> list[Life]:
    """Return the lives of all tasks, by creation time."""
    return sorted((life_of(of_task, now) for of_task in versions.values()), key=lambda life: life.created)


def count_fates(lives: Iterable[Life]) -> dict[str, int]:
    """Return how many tasks ended in which way."""
    counts = Counter(life.fate for life in lives)
    return {status.value.lower(): counts[status] for status in FATES}


def duplicates_run(lives: Iterable[Life]) -> int:
    """Return how many attempts there were beyond the first of each task."""
    return sum(max(0, sum(run.counted for run in life.runs) - 1) for life in lives)


def newest_first_ratio(lives: Sequence[Life]) -> float | None:
    """Return the share of claims at which no task that was newer by more than the index's lag waited."""
    claims = [(run.taken, life) for life in lives for run in life.runs]
    if not claims:
        return None
    in_order = sum(
        not any(
            other.created > life.created + INDEX_LAG_SECONDS and other.claimable_at(taken) for other in lives
        )
        for taken, life in claims
    )
    return in_order / len(claims)


def percentile(values: Sequence[float], percent: int) -> float | None:
    """Return a percentile by linear interpolation; None of no values."""
    if not values:
        return None
    if len(values) == 1:
        return values[0]
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def waits_of_done(lives: Iterable[Life]) -> list[float]:
    """Return how long the tasks that succeeded had waited, in seconds."""
    return [
        life.wait_seconds
        for life in lives
        if life.fate is TaskStatus.SUCCESS and life.wait_seconds is not None
    ]


def goodput_per_second(lives: Iterable[Life], start: float, end: float) -> float:
    """Return the successes a second between two moments."""
    done = sum(
        life.fate is TaskStatus.SUCCESS and life.ended is not None and start <= life.ended < end
        for life in lives
    )
    return done / (end - start)
