"""Moves tasks from one queue to another: an outbox beside the data, to where the work is done."""

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
# What was put to the destination, but not yet settled at the source when the relay died, is put again
# after this time; the destination knows its id.
LEASE_SECONDS: Final = 60.0


class Relay:
    """Takes tasks from a source, puts them to a destination under the same ids, and settles them.

    At least once: a task is settled at the source only after the destination has it. Put again after a
    crash, it is a duplicate there, as long as the destination keeps the ids of what is done (its
    retention), which must be longer than a lease of the source.
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
            batch: Tasks moved at a time, at the most.
            lease_seconds: How long a batch may take.

        Raises:
            ValueError: If an argument is wrong.
        """
        self._source = source
        self._destination = destination
        self._batch = checked_count("batch", batch, at_most=1000)
        self._lease_seconds = checked_seconds("lease_seconds", lease_seconds, above_zero=True)

    def move(self) -> int:
        """Move one batch; return how many tasks the source gave, those not moved included.

        A task that the destination refuses stays in the source, to be tried again after a while.

        Raises:
            StoreError: If the source did not answer.
        """
        claims = self._source.claim(self._batch, self._lease_seconds)
        if claims:
            # The newest was claimed first, and must be put last to be the newest there too.
            claims.sort(key=lambda claim: claim.task.created)
            for claim, refusal in zip(claims, self._put(claims), strict=True):
                self._settle(claim, refusal)
        return len(claims)

    def _put(self, claims: Sequence[Claim]) -> Sequence[Exception | None]:
        """Put tasks to the destination; return for each why it did not take it, None if it has it."""
        try:
            receipts: Sequence[object] = self._destination.put_many([self._new(claim) for claim in claims])
        except PutIncomplete as incomplete:
            receipts = incomplete.receipts
        except (FreshqError, ValueError) as error:
            return [error] * len(claims)
        return [receipt if isinstance(receipt, Exception) else None for receipt in receipts]

    def _new(self, claim: Claim) -> dict[str, Any]:
        """Return the arguments of the put of a task, with what is left of its life."""
        task = claim.task
        left_seconds = max(1e-6, task.deadline - self._source.now())
        return {
            "payload": task.payload,
            "task_id": task.task_id,
            "priority": task.priority,
            "group": task.group,
            "max_age_seconds": min(left_seconds, self._destination.max_age_seconds),
        }

    def _settle(self, claim: Claim, refusal: Exception | None) -> None:
        try:
            if refusal is None:
                self._source.complete(claim)
            else:
                logger.warning("task %s was not moved: %s", claim.task.task_id, refusal)
                self._source.retry(claim, str(refusal))
        except LeaseLost:
            logger.warning("task %s was settled by another relay", claim.task.task_id)

    def run(self, stop: threading.Event, *, until_empty: bool = False, poll_seconds: float = 1.0) -> int:
        """Move tasks until told to stop; return how many the source gave.

        Args:
            stop: Ends it after the batch in work.
            until_empty: Also end when the source has nothing to claim.
            poll_seconds: Between looks at an empty source.

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
