"""What became of a task: its runner is called, and what it returns or raises says how to settle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from freshq.model.outcomes import Busy, Reject, Retry
from freshq.model.task import TaskStatus
from freshq.worker.report import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from freshq.model.answers import Claim
    from freshq.queue.base import BaseQueue
    from freshq.worker.runner import Runner


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a run came to.

    Attributes:
        settle: Settles the claim.
        error: What went wrong, if anything did.
        downstream: Whether what the task called did well; None if the run says nothing about it.
    """

    settle: Callable[[], Outcome]
    error: str | None
    downstream: bool | None


def verdict_of(queue: BaseQueue, claim: Claim, runner: Runner, may_retry: Callable[[], bool]) -> Verdict:
    """Run a task, and say what came of it."""
    try:
        result = runner(claim.task)
    except Busy as busy:
        return Verdict(lambda: _released(queue, claim), str(busy), downstream=False)
    except Reject as reject:
        error = str(reject)
        return Verdict(lambda: _failed(queue, claim, error), error, downstream=None)
    except Retry as retry:
        error, delay_seconds = str(retry), retry.delay_seconds
    except Exception as unexpected:  # noqa: BLE001 - whatever the user's code raises is kept with its task
        error, delay_seconds = f"{type(unexpected).__name__}: {unexpected}", None
    else:
        return Verdict(lambda: _completed(queue, claim, result), None, downstream=True)
    if not queue.is_last_attempt(claim) and not may_retry():
        error += "; not tried again: the retry budget is spent"
        return Verdict(lambda: _failed(queue, claim, error), error, downstream=False)
    return Verdict(lambda: _retried(queue, claim, error, delay_seconds), error, downstream=False)


def _completed(queue: BaseQueue, claim: Claim, result: Any) -> Outcome:  # noqa: ANN401 - any JSON value
    try:
        queue.complete(claim, result)
    except ValueError as error:
        # The work is done, but its result cannot be kept, nor could that of another attempt.
        return _failed(queue, claim, str(error))
    return Outcome.SUCCEEDED


def _failed(queue: BaseQueue, claim: Claim, error: str) -> Outcome:
    queue.fail(claim, error)
    return Outcome.FAILED


def _retried(queue: BaseQueue, claim: Claim, error: str, delay_seconds: float | None) -> Outcome:
    task = queue.retry(claim, error, delay_seconds)
    return Outcome.FAILED if task.status is TaskStatus.FAILURE else Outcome.RETRIED


def _released(queue: BaseQueue, claim: Claim) -> Outcome:
    queue.release(claim)
    return Outcome.RELEASED
