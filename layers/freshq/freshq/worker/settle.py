"""Settling: what a run returned or raised decides how its claim is settled."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from freshq.errors import LeaseLost, StoreError
from freshq.model.outcomes import Busy, Reject, Retry
from freshq.model.task import TaskStatus
from freshq.policy.retry import Backoff
from freshq.worker.report import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from freshq.model.answers import Claim
    from freshq.queue.base import BaseQueue
    from freshq.worker.runner import Runner

logger = logging.getLogger(__name__)

# Between tries of a settling call that the store did not carry out.
SETTLE_BACKOFF: Final = Backoff(base_seconds=0.2, cap_seconds=5.0)


@dataclass(frozen=True, slots=True)
class Settlement:
    """How to settle a claim.

    Attributes:
        settle: Settles the claim.
        error: What went wrong; None if nothing did.
        downstream_ok: False if the downstream pushed back; None if the run does not show it.
    """

    settle: Callable[[], Outcome]
    error: str | None
    downstream_ok: bool | None


def settlement_of(
    queue: BaseQueue, claim: Claim, runner: Runner, may_retry: Callable[[], bool]
) -> Settlement:
    """Run a task, and return how to settle its claim."""
    try:
        result = runner(claim.task)
    except Busy as busy:
        return Settlement(lambda: _release(queue, claim), str(busy), downstream_ok=False)
    except Reject as reject:
        error = str(reject)
        return Settlement(lambda: _fail(queue, claim, error), error, downstream_ok=None)
    except Retry as retry:
        error, delay_seconds = str(retry), retry.delay_seconds
    except Exception as unexpected:  # noqa: BLE001 - the task keeps whatever the user's code raises
        error, delay_seconds = f"{type(unexpected).__name__}: {unexpected}", None
    else:
        return Settlement(lambda: _complete(queue, claim, result), None, downstream_ok=True)
    if not queue.is_last_attempt(claim) and not may_retry():
        error += "; not retried: the retry budget is spent"
        return Settlement(lambda: _fail(queue, claim, error), error, downstream_ok=False)
    return Settlement(lambda: _retry(queue, claim, error, delay_seconds), error, downstream_ok=False)


def settle_until(
    lease_until: float, queue: BaseQueue, claim: Claim, settle: Callable[[], Outcome]
) -> Outcome:
    """Settle a claim; while the store does not answer, try again until the lease expires.

    Args:
        lease_until: When the lease expires, in seconds since the epoch.
        queue: The queue.
        claim: The claim.
        settle: Settles it.
    """
    tries = 0
    while True:
        try:
            return settle()
        except LeaseLost:
            return Outcome.LEASE_LOST
        except StoreError:
            tries += 1
            pause_seconds = SETTLE_BACKOFF.delay_seconds(tries, queue.uniform())
            if queue.now() + pause_seconds >= lease_until:
                logger.exception("task %s stays TAKEN until its lease expires", claim.task.task_id)
                return Outcome.UNSETTLED
            time.sleep(pause_seconds)


def _complete(queue: BaseQueue, claim: Claim, result: Any) -> Outcome:  # noqa: ANN401 - any JSON value
    try:
        queue.complete(claim, result)
    except ValueError as error:
        # The work is done, but its result cannot be stored. Another attempt would end the same way.
        return _fail(queue, claim, str(error))
    return Outcome.SUCCEEDED


def _fail(queue: BaseQueue, claim: Claim, error: str) -> Outcome:
    queue.fail(claim, error)
    return Outcome.FAILED


def _retry(queue: BaseQueue, claim: Claim, error: str, delay_seconds: float | None) -> Outcome:
    task = queue.retry(claim, error, delay_seconds)
    return Outcome.FAILED if task.status is TaskStatus.FAILURE else Outcome.RETRIED


def _release(queue: BaseQueue, claim: Claim) -> Outcome:
    queue.release(claim)
    return Outcome.RELEASED
