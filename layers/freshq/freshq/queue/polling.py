"""Wait for claims and for ends of tasks: poll until there is an answer, with an interval after each poll.

A poll neither sleeps nor knows its callers, so that threads and coroutines wait by the same rules.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from freshq.errors import StoreError, WaitTimeout
from freshq.model.checks import checked_ids, checked_seconds
from freshq.model.task import LIVE
from freshq.queue.upkeep import RELY_SECONDS

if TYPE_CHECKING:
    from freshq.model.answers import Claims
    from freshq.model.task import Task
    from freshq.queue.core import Core
    from freshq.stores.notifier import Signal

T = TypeVar("T")

# The first interval of a wait for a task; later ones are this part of the time waited so far. So the answer
# is late by at most a fifth of the wait, and a long wait costs few polls.
FIRST_INTERVAL_SECONDS: Final = 0.01
INTERVAL_PART: Final = 0.25
# Time between two looks at all awaited tasks, as a multiple of the duration of the first one.
LOOK_REST: Final = 3.0
# Looks in a row that follow without a pause after a look that found nothing and did not search every line.
MAX_EAGER: Final = 100
# Longest time between two claims of a waiting caller.
CLAIM_SECONDS: Final = 5.0
# The same while the queue is paused: stores cache that for a second.
PAUSED_SECONDS: Final = 1.0
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Interval:
    """The pause before the next poll.

    Attributes:
        seconds: The longest time.
        signal: Ends the pause.
        seen: Its count before the poll.
    """

    seconds: float
    signal: Signal
    seen: int


# Returns the answer, or the time to wait until the next poll.
Poll: TypeAlias = Callable[[], T | Interval]


class Fetcher:
    """When to look for claimable tasks: after a change, at the next due time, and at intervals.

    Attributes:
        signal: Reports changes that this process knows of.
        seen: Its count before the last look.
        looks: How many looks have begun.
    """

    def __init__(self, core: Core, longest_seconds: float) -> None:
        """Look at once.

        Args:
            core: The queue.
            longest_seconds: Longest time between two looks.
        """
        self.signal = core.store.notifier.line(core.name)
        self.seen = 0
        self.looks = 0
        self._core = core
        self._longest_seconds = longest_seconds
        self._found_at = time.monotonic()
        # When the next task is due, and the count at which it was read.
        self._due: float | None = None
        self._due_seen = -1
        # The due time is valid until then, unless this process delays a task.
        self._rely_until = -math.inf
        self._delays = 0
        self._look_at = -math.inf
        self._began = 0.0
        # Looks in a row that found nothing, and did not search every line.
        self._eager = 0

    @property
    def is_due(self) -> bool:
        """Whether to look now."""
        return self.signal.count != self.seen or time.monotonic() >= self._look_at

    @property
    def left_seconds(self) -> float:
        """Time until the next look; infinite if it is due and waits for something else."""
        return math.inf if self._look_at == -math.inf else max(0.0, self._look_at - time.monotonic())

    def look_soon(self) -> None:
        """Make the next look due, unless every change does."""
        if not self._core.store.notifier.is_connected:
            self._look_at = -math.inf

    def begin(self) -> None:
        """Note that a look begins: changes and due times during the look make the next one due.

        Raises:
            StoreError: If the clock is the store's, and the store does not answer.
        """
        self.seen = self.signal.count
        self.looks += 1
        self._look_at = -math.inf
        self._began = self._core.now()

    def seconds(self) -> float:
        """Return the time to wait after a look that found too few tasks."""
        core, seconds = self._core, self._longest_seconds
        is_connected = core.store.notifier.is_connected
        if not is_connected:
            idle_seconds = time.monotonic() - self._found_at
            seconds = min(seconds, max(core.store.notifier.first_look_seconds, INTERVAL_PART * idle_seconds))
            seconds = min(seconds, core.store.notifier.poll_seconds)
        try:
            if core.store.paused(core.name):
                return min(seconds, PAUSED_SECONDS)
            is_known = (
                is_connected and self._due_seen == self.seen and not (self._due and self._due <= core.now())
            )
            if not is_known:
                seconds = min(seconds, self._read_due())
            return seconds if self._due is None else max(0.0, min(seconds, self._due - core.now()))
        except StoreError:
            logger.warning("queue %r: could not read when its next task is due", core.name, exc_info=True)
        return seconds

    def _read_due(self) -> float:
        """Read when the next task is due, unless the last reading is still valid.

        Returns:
            How long that reading is still valid, in seconds; infinity after a new reading.

        Raises:
            StoreError: If the store did not answer.
        """
        core, now = self._core, time.monotonic()
        is_past = (
            self._due is not None and self._due <= core.now()
        )  # without this, each look would make the next one due
        if now < self._rely_until and core.upkeep.delays == self._delays and not is_past:
            return self._rely_until - now
        self._delays = core.upkeep.delays
        self._due, self._due_seen = core.store.next_due(core.name, self._began), self.seen
        self._rely_until = now + RELY_SECONDS
        core.upkeep.rely(self._began, self._due, self._delays)
        return math.inf

    def found_few(self, found: int, *, more: bool = False, room_in_seconds: float = math.inf) -> None:
        """Note that a look found too few tasks, so that the next one is due after `seconds`.

        Args:
            found: How many it found.
            more: Whether it ended before it had searched every line.
            room_in_seconds: When a rate leaves room for a task that it held back.
        """
        if found:
            self._found_at = time.monotonic()
        seconds = 0.0 if self.goes_on(found, more=more) else min(room_in_seconds, self.seconds())
        self._look_at = time.monotonic() + seconds

    def goes_on(self, found: int, *, more: bool) -> bool:
        """Return whether to look again immediately: this look found nothing, and did not search every line.

        False after `MAX_EAGER` such looks in a row, because some bounds are the same for the next look.
        """
        self._eager = self._eager + 1 if more and not found else 0
        return 0 < self._eager <= MAX_EAGER


def answer_of(poll: Poll[T]) -> T:
    """Poll until there is an answer; between two polls this thread sleeps."""
    while isinstance(answer := poll(), Interval):
        answer.signal.wait(answer.seen, answer.seconds)
    return answer


def poll_for_claims(claim: Callable[[], Claims], core: Core, wait_seconds: float | None) -> Poll[Claims]:
    """Return a poll that claims when `Fetcher` says.

    Args:
        claim: Claims tasks; returns the claims made, perhaps none.
        core: The queue.
        wait_seconds: Give up after this time; None: never.

    Returns:
        A poll for the first claims; its answer is an empty list after the wait.

    Raises:
        ValueError: If an argument is wrong.
    """
    deadline = _end_of_wait("wait_seconds", wait_seconds)
    fetcher = Fetcher(core, CLAIM_SECONDS)

    def poll() -> Claims | Interval:
        fetcher.begin()
        if claims := claim():
            return claims
        left = deadline - time.monotonic()
        if left <= 0:
            return claims
        goes_on = fetcher.goes_on(0, more=claims.more)
        seconds = 0.0 if goes_on else min(claims.room_in_seconds, fetcher.seconds())
        return Interval(min(left, seconds), fetcher.signal, fetcher.seen)

    return poll


class EndsPoll:
    """A poll for the ends of tasks: at growing intervals, and for each end that wakes this process.

    It answers with the tasks that ended since its last answer, in the order of their ends; with an empty list
    once all have. It raises WaitTimeout, and the errors of `Core.found`.
    """

    def __init__(
        self, core: Core, task_ids: Iterable[str], timeout_seconds: float | None, poll_seconds: float
    ) -> None:
        """Look at once.

        Args:
            core: The queue.
            task_ids: The tasks.
            timeout_seconds: Give up after this time; None: never.
            poll_seconds: Longest time between two polls.

        Raises:
            ValueError: If an argument is wrong.
        """
        self._core = core
        self._left = dict.fromkeys(checked_ids(task_ids))
        self._poll_seconds = checked_seconds("poll_seconds", poll_seconds, above_zero=True)
        self._deadline = _end_of_wait("timeout_seconds", timeout_seconds)
        self._began = self._look_at = time.monotonic()
        self._signal = core.store.notifier.ends(core.name, self._left)

    def __call__(self) -> list[Task] | Interval:
        """Look once; return the tasks that ended, or the time to wait until the next look."""
        left, seen, now = self._left, self._signal.count, time.monotonic()
        told = left.keys() & self._signal.take()
        rest_seconds = min(self._look_at, self._deadline) - now
        if not told and rest_seconds > 0:
            return Interval(rest_seconds, self._signal, seen)
        tasks = [self._core.found(task_id) for task_id in told or left]
        self._look_at = time.monotonic() + LOOK_REST * (time.monotonic() - now)
        ended = _ended(tasks)
        for task in ended:
            del left[task.task_id]
        if ended or not left:
            return ended
        now = time.monotonic()
        waited = now - self._began
        if now >= self._deadline:
            raise WaitTimeout(tasks[0].task_id, tasks[0].status, waited, others=len(left) - 1)
        interval_seconds = max(FIRST_INTERVAL_SECONDS, min(INTERVAL_PART * waited, self._poll_seconds))
        return Interval(min(interval_seconds, self._deadline - now), self._signal, seen)


def _ended(tasks: Iterable[Task]) -> list[Task]:
    """Return the ended tasks, in the order of their ends."""
    over = (task for task in tasks if task.status not in LIVE)
    # Tasks that went stale ended at their deadline, without a write.
    return sorted(over, key=lambda task: task.ended_at(math.inf) or task.updated)


def _end_of_wait(name: str, seconds: float | None) -> float:
    """Check the time to wait; return the end of the wait, by the monotonic clock; infinite for None."""
    return math.inf if seconds is None else time.monotonic() + checked_seconds(name, seconds)
