"""Batches: the tasks that one call of a handler runs together, and when the call is due."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

T = TypeVar("T")
# Weights of the last run in the mean and the deviation of a run's time, and deviations beyond the mean that a
# run is expected to take: as for the retransmission timer of TCP (RFC 6298, section 2).
MEAN_WEIGHT: Final = 1 / 8
DEVIATION_WEIGHT: Final = 1 / 4
DEVIATIONS: Final = 4
# The part of a task's time left that is kept for its run while no run has ended yet.
UNKNOWN_RUN_PART: Final = 0.5
# The next batch is claimed as long before the expected end of a run as a claim takes, and at least this long,
# because threads start late; but at most a part of the run's time. None is claimed ahead if runs deviate by
# more than a part of their mean time.
LEAST_AHEAD_SECONDS: Final = 0.01
MAX_AHEAD_PART: Final = 0.5
MAX_DEVIATION: Final = 0.2
# A sum of earlier claims that lacks this part of a task counts it as a whole one.
ROUNDING: Final = 0.05
# The weight of earlier claims beside the last one.
EARLIER_CLAIMS: Final = 0.5


@dataclass(frozen=True, slots=True)
class BatchRule:
    """How the tasks of a kind share calls.

    Attributes:
        size: Maximum number of tasks of a call, 1 or more.
        within_seconds: Longest time for which a task waits for others, 0 or more.
    """

    size: int
    within_seconds: float


class ExpectedTime:
    """The expected time of the runs of a kind, or of claims, from those that have ended."""

    __slots__ = ("_deviation", "_mean")

    def __init__(self) -> None:
        """Start with nothing seen."""
        self._mean: float | None = None
        self._deviation = 0.0

    def ended(self, seconds: float) -> None:
        """Count the time that a run or a claim took."""
        if self._mean is None:
            self._mean, self._deviation = seconds, seconds / 2
            return
        self._deviation += DEVIATION_WEIGHT * (abs(seconds - self._mean) - self._deviation)
        self._mean += MEAN_WEIGHT * (seconds - self._mean)

    @property
    def likely_seconds(self) -> float:
        """The mean time plus the mean deviation; 0 if none has ended."""
        return 0.0 if self._mean is None else self._mean + self._deviation

    def slack_seconds(self, left_seconds: float) -> float:
        """Return how long a run can wait and still end in time; 0 if it cannot wait.

        Args:
            left_seconds: Time until the deadline of the task; infinite without one.
        """
        if self._mean is None:
            return max(0.0, left_seconds * (1 - UNKNOWN_RUN_PART))
        return max(0.0, left_seconds - self._mean - DEVIATIONS * self._deviation)

    def ahead(self, claim_seconds: float) -> tuple[float, float]:
        """Return between which times of a run the next batch may be claimed, in seconds from its start.

        Args:
            claim_seconds: How long a claim takes.
        """
        mean = self._mean
        if mean is None or self._deviation > MAX_DEVIATION * mean:
            return math.inf, math.inf
        lead_seconds = min(max(claim_seconds, LEAST_AHEAD_SECONDS), MAX_AHEAD_PART * mean)
        return mean - lead_seconds, mean + lead_seconds + DEVIATIONS * self._deviation


@dataclass(eq=False, slots=True)
class Batch(Generic[T]):
    """Tasks of one kind and one key that wait for others.

    Attributes:
        rule: How many, and how long.
        opened_at: When the first one came, in seconds.
        due_at: When the call is due, whether it is full or not.
        tasks: The tasks, in the order in which they came.
    """

    rule: BatchRule
    opened_at: float
    due_at: float = math.inf
    tasks: list[T] = field(default_factory=list)

    @property
    def missing(self) -> int:
        """How many tasks more it takes."""
        return self.rule.size - len(self.tasks)


class Batches(Generic[T]):
    """The batches that fill. A call is due when its batch is full, or when its first task can wait no longer.

    The clock of `now` is any that does not run backwards.
    """

    __slots__ = ("_filling",)

    def __init__(self) -> None:
        """Start with none."""
        self._filling: dict[Hashable, Batch[T]] = {}

    @property
    def missing(self) -> int:
        """How many tasks more they take."""
        return sum(batch.missing for batch in self._filling.values())

    @property
    def due_at(self) -> float:
        """When the next call is due, in seconds; infinite if none fills."""
        return min((batch.due_at for batch in self._filling.values()), default=math.inf)

    def add(self, key: Hashable, rule: BatchRule, task: T, now: float, slack_seconds: float) -> Batch[T]:
        """Add a task; return its batch, which no longer fills if that makes it full.

        Args:
            key: Tasks with equal keys share calls.
            rule: The rule of the key.
            task: The task.
            now: Current time in seconds.
            slack_seconds: How long it can wait and still end in time.
        """
        batch = self._filling.get(key)
        if batch is None:
            batch = self._filling[key] = Batch(rule, now)
        batch.tasks.append(task)
        batch.due_at = min(batch.due_at, now + min(rule.within_seconds, slack_seconds))
        if not batch.missing:
            del self._filling[key]
        return batch

    def take_due(self, now: float) -> list[Batch[T]]:
        """Remove the batches whose calls are due, and return them, the earliest first."""
        due = [key for key, batch in self._filling.items() if batch.due_at <= now]
        return sorted((self._filling.pop(key) for key in due), key=lambda batch: batch.due_at)


class SlotUse:
    """Estimates how many slots a claimed task takes, and so how many tasks may be claimed.

    A batch takes one slot, so a task of a batch of 32 takes 1/32 of a slot; another task takes one. The kinds
    of the tasks that come next are not known before they are claimed. They are expected to be like those of
    the last claims, and at first all kinds to be equally frequent.
    """

    __slots__ = ("_largest", "_slots", "_tasks")

    def __init__(self, rules: Iterable[BatchRule | None]) -> None:
        """Start with the rule of each kind; None for a kind without batches."""
        sizes = [1 if rule is None else rule.size for rule in rules] or [1]
        self._largest = max(sizes)
        self._tasks = 1.0
        self._slots = sum(1 / size for size in sizes) / len(sizes)

    def claimed(self, tasks: int, slots: float) -> None:
        """Count the tasks of a claim, and the slots that they take."""
        self._tasks = EARLIER_CLAIMS * self._tasks + tasks
        self._slots = EARLIER_CLAIMS * self._slots + slots

    def room(self, free: int, missing: int) -> int:
        """Return how many tasks may be claimed; some may turn out not to fit.

        Args:
            free: Slots that neither run nor fill; negative if more is claimed than fits.
            missing: Tasks that the filling batches still take.
        """
        if free < 0 or not free + missing:
            return 0
        expected = math.floor(max(free, 1) * self._tasks / self._slots + ROUNDING)
        return max(1, min(missing + free * self._largest, expected))
