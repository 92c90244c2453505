"""The figures of the demonstration, computed from the history of its tasks. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import quantiles
from typing import TYPE_CHECKING, Final

from freshq import TaskStatus
from freshq.model.task import LIVE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from freshq import Task

# Claims need not see tasks that entered the index less than this before.
INDEX_LAG_SECONDS: Final = 1.0
# The share of the capacity that two idle cores reach: 0.88 measured, less a margin.
CALM_GOODPUT_SHARE: Final = 0.7
# States of an application's record in no queue; tasks never have them.
UNQUEUED: Final = (TaskStatus.UNDER_CONSTRUCTION, TaskStatus.READY)
FATES: Final = tuple(status for status in TaskStatus if status not in UNQUEUED)


@dataclass(frozen=True, slots=True)
class TaskClaim:
    """One claim of a task.

    Attributes:
        taken: When, in seconds since the epoch.
        counted: Whether it counts as an attempt; a released task was not run.
    """

    taken: float
    counted: bool


@dataclass(frozen=True, slots=True)
class Life:
    """A task from its put to its end.

    Attributes:
        task_id: The task.
        created: When it was put, in seconds since the epoch.
        deadline: From when it was stale, in seconds since the epoch.
        claims: Its claims, in order.
        fate: Its last state.
        ended: When it was settled or went stale, in seconds since the epoch; None if it waits or runs.
    """

    task_id: str
    created: float
    deadline: float
    claims: tuple[TaskClaim, ...]
    fate: TaskStatus
    ended: float | None

    @property
    def wait_seconds(self) -> float | None:
        """Time from the put to the first claim; None if it was never claimed."""
        return self.claims[0].taken - self.created if self.claims else None

    def claimable_at(self, moment: float) -> bool:
        """Return whether it waited at a moment (seconds since the epoch) and a claim could see it."""
        until = self.claims[0].taken if self.claims else self.deadline
        return self.created + INDEX_LAG_SECONDS <= moment < min(until, self.deadline)


def life_of(versions: Sequence[Task], now: float) -> Life:
    """Return the life of a task from its versions, oldest first.

    Args:
        versions: At least one.
        now: When to judge its fate, in seconds since the epoch.
    """
    claims: list[TaskClaim] = []
    for version, following in zip(versions, [*versions[1:], None], strict=True):
        if version.status is TaskStatus.TAKEN and (not claims or claims[-1].taken != version.updated):
            released = following is not None and following.attempts < version.attempts
            claims.append(TaskClaim(version.updated, counted=not released))
    first, last = versions[0], versions[-1]
    fate = last.status_at(now)
    ended = None
    if fate is TaskStatus.SHED:
        ended = last.deadline
    elif fate not in LIVE:
        ended = last.updated
    return Life(first.task_id, first.created, last.deadline, tuple(claims), fate, ended)


def lives_of(versions: Mapping[str, Sequence[Task]], now: float) -> list[Life]:
    """Return the lives of all tasks, ordered by creation time."""
    return sorted((life_of(of_task, now) for of_task in versions.values()), key=lambda life: life.created)


def count_fates(lives: Iterable[Life]) -> dict[str, int]:
    """Count the tasks by fate."""
    counts = Counter(life.fate for life in lives)
    return {status.value.lower(): counts[status] for status in FATES}


def duplicates_run(lives: Iterable[Life]) -> int:
    """Count the attempts beyond the first of each task."""
    return sum(max(0, sum(claim.counted for claim in life.claims) - 1) for life in lives)


def newest_first_ratio(lives: Sequence[Life]) -> float | None:
    """Return the share of claims without an inversion, allowing for the index's lag; None without claims."""
    claims = [(claim.taken, life) for life in lives for claim in life.claims]
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
    """Return a percentile by linear interpolation; None if there are no values."""
    if not values:
        return None
    if len(values) == 1:
        return values[0]
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def waits_of_done(lives: Iterable[Life]) -> list[float]:
    """Return the waits of the tasks that succeeded, in seconds."""
    return [
        life.wait_seconds
        for life in lives
        if life.fate is TaskStatus.SUCCESS and life.wait_seconds is not None
    ]


def done_in_time(lives: Iterable[Life]) -> int:
    """Return how many tasks succeeded by their deadline."""
    return sum(
        life.fate is TaskStatus.SUCCESS and life.ended is not None and life.ended <= life.deadline
        for life in lives
    )


def goodput_per_second(lives: Iterable[Life], start: float, end: float) -> float:
    """Return successes per second between two instants (seconds since the epoch)."""
    done = sum(
        life.fate is TaskStatus.SUCCESS and life.ended is not None and start <= life.ended < end
        for life in lives
    )
    return done / (end - start)


def busy_machine_sentence(goodput_per_second: float, capacity_per_second: float) -> str | None:
    """Say that the machine, and not the queue, kept the goodput low; None where it did not.

    The queue is overloaded throughout, so each gap between two runs of a slot is time that the
    emulator took.
    """
    share = goodput_per_second / capacity_per_second
    if share >= CALM_GOODPUT_SHARE:
        return None
    return (
        f"This machine was too busy to show what the queue can do: {goodput_per_second:.1f} of "
        f"{capacity_per_second:g} tasks a second were done in time ({share:.0%}; at least "
        f"{CALM_GOODPUT_SHARE:.0%} on two idle cores). Every count above is right; run it again on an "
        "idle machine."
    )
