"""When to retry a failed task, and how to repeat a failed call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
Batch = TypeVar("Batch")
Errors: TypeAlias = "type[Exception] | tuple[type[Exception], ...]"
# Number of attempts of a task in all: None for no limit, QUEUES for the limit of its queue.
AttemptLimit: TypeAlias = "int | Literal['queue'] | None"
QUEUES: Final = "queue"
# Delays before the second, third and later attempts at work that never goes stale, and before the last one:
# the default of five attempts outlasts an outage of a day.
PATIENT_SECONDS: Final = (15.0, 240.0, 3600.0)
LAST_SECONDS: Final = 86_400.0
PATIENT_JITTER: Final = 0.25


def equal_jitter(uniform: float) -> float:
    """Return a number from [0.5, 1) for one from [0, 1): a delay of at least half of its bound.

    "Equal jitter" of the article that `Backoff` names: where full jitter could end a pause immediately.
    """
    return 0.5 + uniform / 2


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with full jitter.

    The delay is uniform over [0, min(cap, base * 2**(attempts - 1))]: "full jitter" of the AWS
    Architecture Blog, "Exponential Backoff And Jitter" (2015), which spreads retries best of the
    variants compared there.

    Attributes:
        base_seconds: Upper bound of the first delay.
        cap_seconds: Upper bound of every delay.

    Examples:
        >>> queue = Queue.memory(backoff=Backoff(base_seconds=2, cap_seconds=60))
    """

    base_seconds: float = 1.0
    cap_seconds: float = 300.0

    def delay_seconds(self, attempts: int, uniform: float) -> float:
        """Return the delay before the next attempt.

        Args:
            attempts: Attempts so far, 1 or more.
            uniform: A random number from [0, 1).
        """
        # 2**63 is past every cap in use; the bound keeps the power within a float.
        ceiling_seconds = min(self.cap_seconds, self.base_seconds * 2.0 ** min(attempts - 1, 63))
        return uniform * ceiling_seconds


@dataclass(frozen=True, slots=True)
class PatientBackoff:
    """The delays for work that never goes stale: 15 s, 4 minutes, then an hour, and a day before the last.

    No deadline limits such work, so its attempts must outlast an outage instead. Each delay is up to a
    quarter longer, at random, and never shorter: jitter spreads the tasks, and spends no attempt earlier.

    Attributes:
        max_attempts: Number of attempts in all; None for no limit, so that none is the last.
    """

    max_attempts: int | None

    def delay_seconds(self, attempts: int, uniform: float) -> float:
        """Return the delay before the next attempt.

        Args:
            attempts: Attempts so far, 1 or more.
            uniform: A random number from [0, 1).
        """
        seconds = PATIENT_SECONDS[min(attempts, len(PATIENT_SECONDS)) - 1]
        if attempts > len(PATIENT_SECONDS) and is_last_attempt(attempts + 1, self.max_attempts):
            seconds = LAST_SECONDS
        return seconds * (1 + PATIENT_JITTER * uniform)


def is_last_attempt(attempts: int, max_attempts: int | None) -> bool:
    """Return whether a task that fails in this attempt is a dead letter.

    Args:
        attempts: Number of the attempt, from 1 on.
        max_attempts: Number of attempts in all; None for no limit.
    """
    return max_attempts is not None and attempts >= max_attempts


@dataclass(frozen=True, slots=True)
class CallRetry:
    """Repeats a call that failed for a transient reason, with backoff.

    Attributes:
        max_tries: Calls in all, the first one included.
        backoff: Pauses between them.
    """

    max_tries: int
    backoff: Backoff

    def run(
        self,
        call: Callable[[], T],
        transient: Errors,
        *,
        sleep: Callable[[float], object],
        uniform: Callable[[], float],
    ) -> T:
        """Call until it succeeds, fails with another error, or was tried `max_tries` times.

        Args:
            call: The call; it must be safe to repeat.
            transient: The errors after which it is repeated.
            sleep: Waits for a number of seconds.
            uniform: Returns a random number from [0, 1).

        Raises:
            Exception: The last error of `call`.
        """
        for attempt in range(1, self.max_tries):
            try:
                return call()
            except transient:
                sleep(self.backoff.delay_seconds(attempt, uniform()))
        return call()

    def send_all(
        self,
        batch: Batch,
        send: Callable[[Batch], Batch],
        *,
        sleep: Callable[[float], object],
        uniform: Callable[[], float],
    ) -> Batch:
        """Send a batch, then the rest of it, until nothing is left or `max_tries` is reached.

        Args:
            batch: The batch.
            send: Sends a batch and returns the unsent rest.
            sleep: Waits for a number of seconds.
            uniform: Returns a random number from [0, 1).

        Returns:
            The unsent rest.
        """
        left = send(batch)
        for attempt in range(1, self.max_tries):
            if not left:
                break
            sleep(self.backoff.delay_seconds(attempt, uniform()))
            left = send(left)
        return left


def until_committed(attempt: Callable[[], T], conflict: Errors, max_tries: int) -> T:
    """Repeat a read-change-commit immediately when another writer came first.

    This is optimistic concurrency, not the retry of a failed call: each conflict means that another writer
    succeeded, so a pause would only give the next writer the chance to come first.

    Args:
        attempt: Reads, computes the change and commits it on condition that nothing changed in between.
        conflict: The errors that say that something changed.
        max_tries: Attempts in all, the first one included.

    Raises:
        Exception: The conflict of the last attempt, or any other error of `attempt`.
    """
    for _ in range(max_tries - 1):
        try:
            return attempt()
        except conflict:
            continue
    return attempt()
