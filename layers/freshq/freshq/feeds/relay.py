"""The relay: moves tasks from an outbox to another queue."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from freshq.errors import FreshqError, LeaseLost, PutIncomplete
from freshq.model.checks import checked_count, checked_seconds

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


class Relay:
    """Claims tasks from a source, puts them to a destination under the same ids, and settles them.

    Delivery is at least once: a task is settled at the source after the destination has it. After a crash it
    is put again, which is a duplicate at the destination while that keeps its id: the destination's retention
    must be longer than the lease.
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

    def move(self) -> int:
        """Move one batch; return how many tasks were claimed, including those not moved.

        A task that the destination does not accept stays in the source and is retried with backoff.

        Raises:
            StoreError: If the source did not answer.
        """
        claims = self._source.claim(self._batch, self._lease_seconds)
        if claims:
            # The newest was claimed first. It must be put last to be the newest at the destination.
            claims.sort(key=lambda claim: claim.task.created)
            for claim, error in zip(claims, self._put(claims), strict=True):
                self._settle(claim, error)
        return len(claims)

    def _put(self, claims: Sequence[Claim]) -> Sequence[Exception | None]:
        """Put tasks to the destination; return the error of each, None if the destination has it."""
        try:
            receipts: Sequence[object] = self._destination.put_many([self._new(claim) for claim in claims])
        except PutIncomplete as incomplete:
            receipts = incomplete.receipts
        except (FreshqError, ValueError) as error:
            return [error] * len(claims)
        return [receipt if isinstance(receipt, Exception) else None for receipt in receipts]

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
            else:
                logger.warning("task %s could not be moved: %s", claim.task.task_id, error)
                self._source.retry(claim, str(error))
        except LeaseLost:
            logger.warning("task %s was claimed by another relay", claim.task.task_id)

    def run(self, stop: threading.Event, *, until_empty: bool = False, poll_seconds: float = 1.0) -> int:
        """Move tasks until stopped; return how many were claimed.

        Args:
            stop: Ends it after the current batch.
            until_empty: Also end when the source has nothing to claim.
            poll_seconds: Pause after finding the source empty.

        Raises:
            StoreError: If the source did not answer.
        """
        checked_seconds("poll_seconds", poll_seconds, above_zero=True)
        moved = 0
        while not stop.is_set():
            batch = self.move()
            moved += batch
            if not batch:
                if until_empty:
                    break
                stop.wait(poll_seconds)
        return moved
