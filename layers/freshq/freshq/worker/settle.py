"""Settling: what a run returned or raised decides how its claim is settled."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from freshq.errors import LeaseLost, StoreError
from freshq.model.checks import checked_result, checked_seconds
from freshq.model.outcomes import Busy, Reject, Retry, error_text
from freshq.model.task import TaskStatus
from freshq.policy.retry import Backoff
from freshq.worker.report import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from freshq.model.answers import Claim
    from freshq.queue.base import BaseQueue
    from freshq.worker.runner import Runner
    from freshq.worker.runs import TaskRun

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
    """Run a task, and return how to settle its claim. Whatever the runner raises ends only its attempt."""
    try:
        result = runner(claim.task)
    except Busy as busy:
        return Settlement(lambda: _release(queue, claim), error_text(busy), downstream_ok=False)
    except Reject as reject:
        error = error_text(reject)
        return Settlement(lambda: _fail(queue, claim, error), error, downstream_ok=None)
    except Retry as retry:
        error, delay_seconds = _delayed(retry)
    except BaseException as unexpected:  # in a thread of a run, SystemExit and the like are the runner's own
        error, delay_seconds = f"{type(unexpected).__name__}: {error_text(unexpected)}", None
        logger.exception("the runner failed on task %s", claim.task.task_id)
    else:
        return _completed(queue, claim, result)
    if not queue.is_last_attempt(claim) and not may_retry():
        error += "; not retried: the retry budget is spent"
        return Settlement(lambda: _fail(queue, claim, error), error, downstream_ok=False)
    return Settlement(lambda: _retry(queue, claim, error, delay_seconds), error, downstream_ok=False)


@dataclass(frozen=True, slots=True)
class RanOnce:
    """How the only run of a task ended.

    Attributes:
        error: What went wrong; None if nothing did.
        downstream_ok: False if the downstream pushed back.
    """

    error: str | None
    downstream_ok: bool


def ran_once(claim: Claim, runner: Runner) -> RanOnce:
    """Run a task that is settled already: whatever the runner raises, it is not run again."""
    try:
        runner(claim.task)
    except Reject as reject:
        return RanOnce(error_text(reject), downstream_ok=True)
    except (Busy, Retry) as later:
        return RanOnce(f"{error_text(later)}; not run again", downstream_ok=False)
    except BaseException as unexpected:  # in a thread of a run, SystemExit and the like are the runner's own
        logger.exception("the runner failed on task %s", claim.task.task_id)
        return RanOnce(f"{type(unexpected).__name__}: {error_text(unexpected)}", downstream_ok=False)
    return RanOnce(None, downstream_ok=True)


def too_late_to_run(queue: BaseQueue, claim: Claim) -> Settlement | None:
    """Return how to give back a claim whose run must not start; None if it may start.

    The task returns to its line without its attempt counted: past its deadline it is shed there.
    """
    now = queue.now()
    if claim.task.deadline <= now:
        return Settlement(lambda: _give_back(queue, claim, Outcome.SHED), "the deadline passed", None)
    if claim.lease_until <= now:
        error = "the lease expired before the run started"
        return Settlement(lambda: _give_back(queue, claim, Outcome.LEASE_LOST), error, None)
    return None


def settle_until_lost(
    run: TaskRun, queue: BaseQueue, settle: Callable[[], Outcome], *, draining: Callable[[], bool]
) -> Outcome:
    """Settle a claim; while the store does not answer, try again.

    An outage may last longer than the lease: the claim still settles afterwards if nobody took the task
    in between. After the lease it stays unsettled if the worker is draining, or if the store answers other
    calls, so that a task that the store never accepts does not keep its slot.

    Args:
        run: The run; its lease may be extended meanwhile.
        queue: The queue.
        settle: Settles the claim.
        draining: Whether the worker only waits for its runs.
    """
    tries, last_try, task_id = 0, False, run.claim.task.task_id
    while True:
        try:
            return settle()
        except LeaseLost:
            return Outcome.LEASE_LOST
        except StoreError:
            run.unsettled = True
            tries += 1
            pause_seconds = SETTLE_BACKOFF.delay_seconds(tries, queue.uniform())
            over = queue.now() + pause_seconds >= run.claim.lease_until
            if over and (last_try or draining()):
                logger.exception("task %s stays TAKEN until its lease expires", task_id)
                return Outcome.UNSETTLED
            last_try = over and _answers(queue, task_id)
            if not last_try:
                time.sleep(pause_seconds)
        except Exception:
            logger.exception("task %s cannot be settled; it stays TAKEN until its lease expires", task_id)
            return Outcome.UNSETTLED


def _answers(queue: BaseQueue, task_id: str) -> bool:
    try:
        queue.get(task_id)
    except StoreError:
        return False
    except Exception:  # noqa: BLE001 - an item that cannot be decoded is an answer
        return True
    return True


def _delayed(retry: Retry) -> tuple[str, float | None]:
    """Return the reason and the delay of a retry; its delay may have been changed since it was checked."""
    error, delay_seconds = error_text(retry), getattr(retry, "delay_seconds", None)
    try:
        return error, None if delay_seconds is None else checked_seconds("delay_seconds", delay_seconds)
    except ValueError as wrong:
        return f"{error}; {wrong}", None


def _completed(queue: BaseQueue, claim: Claim, result: Any) -> Settlement:  # noqa: ANN401 - any value
    try:
        result = checked_result(result, claim.task.payload)
    except BaseException as error:  # noqa: BLE001 - the methods of the user's value
        # The work is done, but its result cannot be stored. Another attempt would end the same way.
        text = error_text(error)
        problem = text if isinstance(error, ValueError) else f"result: {type(error).__name__}: {text}"
        return Settlement(lambda: _fail(queue, claim, problem), problem, downstream_ok=True)
    return Settlement(lambda: completed(queue, claim, result), None, downstream_ok=True)


def completed(queue: BaseQueue, claim: Claim, result: Any = None) -> Outcome:  # noqa: ANN401 - any JSON value
    """Settle a claim as SUCCESS."""
    queue.complete(claim, result)
    return Outcome.SUCCEEDED


def _fail(queue: BaseQueue, claim: Claim, error: str) -> Outcome:
    queue.fail(claim, error)
    return Outcome.FAILED


def _retry(queue: BaseQueue, claim: Claim, error: str, delay_seconds: float | None) -> Outcome:
    task = queue.retry(claim, error, delay_seconds)
    return Outcome.FAILED if task.status is TaskStatus.FAILURE else Outcome.RETRIED


def _release(queue: BaseQueue, claim: Claim) -> Outcome:
    return _give_back(queue, claim, Outcome.RELEASED)


def _give_back(queue: BaseQueue, claim: Claim, outcome: Outcome) -> Outcome:
    queue.release(claim)
    return outcome
