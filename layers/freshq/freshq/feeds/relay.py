"""The relay: moves tasks from an outbox to another queue."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from freshq.errors import FreshqError, LeaseLost, Overloaded, PutIncomplete, RefusedError
from freshq.model.checks import checked_count, checked_seconds
from freshq.policy.retry import Backoff

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from freshq.model.answers import Claim
    from freshq.queue.base import BaseQueue

logger = logging.getLogger(__name__)

DEFAULT_BATCH: Final = 100
# If a relay dies between putting a task and settling it at the source, the task is put again after this
# time, and is a duplicate at the destination.
LEASE_SECONDS: Final = 60.0
# Between batches while the destination fails or is overloaded.
DESTINATION_BACKOFF: Final = Backoff(base_seconds=1.0, cap_seconds=30.0)


class Relay:
    """Claims tasks from a source, puts them to a destination under the same ids, and settles them.

    Delivery is at least once: a task is settled at the source after the destination has it. After a crash it
    is put again, which is a duplicate at the destination while that keeps its id: the destination's retention
    must be longer than the lease.

    A destination that fails or is overloaded spends no attempt: its tasks return to the source, and `run`
    backs off. A task that the destination refuses spends one, with backoff, until it is a dead letter of
    the source; the others of its batch are moved.
    """

    def __init__(
        self,
        source: BaseQueue,
        destination: BaseQueue,
        *,
        batch: int = DEFAULT_BATCH,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        """Prepare a relay.

        Args:
            source: The outbox.
            destination: Where its tasks go.
            batch: Maximum number of tasks to move at a time.
            lease_seconds: Maximum time for a batch.

        Raises:
            ValueError: If an argument is wrong.
        """
        self._source = source
        self._destination = destination
        self._batch = checked_count("batch", batch, at_most=1000)
        self._lease_seconds = checked_seconds("lease_seconds", lease_seconds, above_zero=True)
        self._failed_batches = self._arrived = 0

    def move(self) -> int:
        """Move one batch; return how many tasks were claimed, including those not moved.

        Raises:
            StoreError: If the source did not answer.
        """
        claims = self._source.claim(self._batch, self._lease_seconds)
        if not claims:
            self._failed_batches = 0
        else:
            # The newest was claimed first. It must be put last to be the newest at the destination.
            claims.sort(key=lambda claim: claim.task.created)
            errors = self._put(claims)
            self._note(errors)
            for claim, error in zip(claims, errors, strict=True):
                self._settle(claim, error)
        return len(claims)

    def _put(self, claims: Sequence[Claim]) -> list[Exception | None]:
        """Put tasks to the destination; return the error of each, None if the destination has it."""
        try:
            receipts: Sequence[object] = self._destination.put_many([self._new(claim) for claim in claims])
        except PutIncomplete as incomplete:
            receipts = incomplete.receipts
        except (FreshqError, ValueError) as error:
            if len(claims) == 1 or _failed(error):
                return [error] * len(claims)
            return self._put_halves(claims)
        return [receipt if isinstance(receipt, Exception) else None for receipt in receipts]

    def _put_halves(self, claims: Sequence[Claim]) -> list[Exception | None]:
        """Put a batch that was refused because of one of its tasks, in halves, until that task is alone."""
        middle = len(claims) // 2
        errors = self._put(claims[:middle])
        failure = next((error for error in errors if _failed(error)), None)
        if failure is not None:
            return errors + [failure] * (len(claims) - middle)
        return errors + self._put(claims[middle:])

    def _note(self, errors: Sequence[Exception | None]) -> None:
        """Count what arrived, and the batches in a row that the destination failed to take."""
        self._arrived += errors.count(None)
        failures = [error for error in errors if _failed(error)]
        if not failures:
            self._failed_batches = 0
            return
        # Where some tasks arrived, the shortest pause is enough.
        self._failed_batches = 1 if None in errors else self._failed_batches + 1
        logger.warning(
            "%d of %d tasks return to the source, the destination did not take them: %s",
            len(failures),
            len(errors),
            failures[0],
        )

    def _new(self, claim: Claim) -> dict[str, Any]:
        """Return the arguments to put a task, with the rest of its max age."""
        task = claim.task
        left_seconds = max(1e-6, task.deadline - self._source.now())
        return {
            "payload": task.payload,
            "task_id": task.task_id,
            "priority": task.priority,
            "group": task.group,
            "max_age_seconds": min(left_seconds, self._destination.max_age_seconds),
        }

    def _settle(self, claim: Claim, error: Exception | None) -> None:
        try:
            if error is None:
                self._source.complete(claim)
            elif _failed(error):
                self._source.release(claim)
            else:
                logger.warning("task %s was refused by the destination: %s", claim.task.task_id, error)
                self._source.retry(claim, str(error))
        except LeaseLost:
            logger.warning("task %s was claimed by another relay", claim.task.task_id)

    def run(self, stop: threading.Event, *, until_empty: bool = False, poll_seconds: float = 1.0) -> int:
        """Move tasks until stopped; return how many arrived at the destination.

        Args:
            stop: Ends it after the current batch.
            until_empty: Also end when the source has nothing to claim. It waits for a destination that fails.
            poll_seconds: Pause after finding the source empty.

        Raises:
            StoreError: If the source did not answer.
        """
        checked_seconds("poll_seconds", poll_seconds, above_zero=True)
        before = self._arrived
        while not stop.is_set():
            batch = self.move()
            if self._failed_batches:
                # At least half of the bound: full jitter could end the pause at once.
                jitter = 0.5 + self._source.uniform() / 2
                stop.wait(DESTINATION_BACKOFF.delay_seconds(self._failed_batches, jitter))
            elif not batch:
                if until_empty:
                    break
                stop.wait(poll_seconds)
        return self._arrived - before


def _failed(error: Exception | None) -> bool:
    """Return whether the destination failed or is overloaded, rather than refused the task."""
    refused = isinstance(error, RefusedError | ValueError) and not isinstance(error, Overloaded)
    return error is not None and not refused
