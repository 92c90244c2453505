"""How runs end, by their results and exceptions, and the completer that settles their claims."""

from __future__ import annotations

import time
from concurrent.futures import CancelledError, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from freshq.errors import DamagedTask, LeaseLost, StoreError, Throttled, Unreachable
from freshq.model.answers import (
    Busy,
    Reject,
    Retry,
    UnknownKind,
    busy_of,
    ends_chain,
    error_text,
    traceback_text,
)
from freshq.model.checks import checked_seconds
from freshq.model.codec import JSON, encoded
from freshq.model.lifecycle import Settlement
from freshq.model.task import RunHandle, Task, give_handle, handle_of
from freshq.policy.retry import QUEUES, Backoff
from freshq.queue.core import core_of
from freshq.worker.report import Outcome, log_fields, task_logger
from freshq.worker.run import Phase, RunEnd, in_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from freshq.model.answers import Claim
    from freshq.model.codec import Codec
    from freshq.queue.base import BaseQueue
    from freshq.worker.feedback import RunFeedback
    from freshq.worker.run import TaskRun, TaskRuns
    from freshq.worker.runner import Runner

logger = task_logger(__name__)

# Errors that pass without intervention.
OUTAGES: Final = (Unreachable, Throttled)
# Between tries of a settling call that the store did not carry out; until then its run keeps its slot.
SETTLE_BACKOFF: Final = Backoff(base_seconds=0.2, cap_seconds=1.0)


def run_to_end(
    queue: BaseQueue, run: TaskRun, runner: Runner, codec: Codec, may_retry: Callable[[], bool]
) -> RunEnd:
    """Run a task, and return how it ended. Exceptions of the runner end only its attempt."""
    try:
        result = runner(run.claim.task)
    except BaseException as raised:  # noqa: BLE001 - logged; here SystemExit and the like are the runner's own
        return _ended_by(queue, run, raised, may_retry)
    return completed(run.claim_to_settle(), result, codec)


def ends_of_batch(
    queue: BaseQueue,
    runs: Sequence[TaskRun],
    call: Callable[[list[Task]], Sequence[Any]],
    codec: Codec,
    may_retry: Callable[[], bool],
) -> list[RunEnd]:
    """Run tasks in one call, and return how each ended.

    Args:
        queue: The queue.
        runs: The runs of the tasks.
        call: Returns the result of each task, or the exception that ends its attempt. If it raises an
            exception, that ends the attempt of each.
        codec: Encodes results.
        may_retry: Returns whether the retry budget allows a retry, and spends it.
    """
    for run in runs:
        run.handle.shared_by = len(runs)
    try:
        answers = call([run.claim.task for run in runs])
    except BaseException as raised:  # noqa: BLE001 - as in `run_to_end`
        answers = [raised] * len(runs)
    ends = [
        _ended_by(queue, run, answer, may_retry)
        if isinstance(answer, BaseException)
        else completed(run.claim_to_settle(), answer, codec)
        for run, answer in zip(runs, answers, strict=True)
    ]
    logged = set[int]()
    for handle in (run.handle for run in runs):  # one traceback of an exception is enough
        if id(handle.raised) in logged:
            handle.raised = None
        logged.add(id(handle.raised))
    return ends


def _ended_by(queue: BaseQueue, run: TaskRun, raised: BaseException, may_retry: Callable[[], bool]) -> RunEnd:
    """Return the end of a run by an exception of the runner."""
    claim = run.claim_to_settle()
    if isinstance(raised, Busy):
        return released(run.claim, raised)
    if isinstance(raised, Reject):
        end = _failed(claim, error_text(raised), downstream_ok=None)
        return replace(end, settlement=replace(end.settlement, traceback=_cause_text(raised)))
    if isinstance(raised, Retry):
        settlement = Settlement.retry(claim, *_delayed(raised))
        return _retried(queue, run, replace(settlement, traceback=_cause_text(raised)), may_retry)
    now = queue.admin.now()
    if ends_chain(raised, run.claim.task):
        return _shed(claim, raised, now)
    if (pushed_back := busy_of(raised, now)) is not None:
        return released(run.claim, pushed_back)
    settlement = Settlement.retry(claim, _unexpected(run, raised))
    return _retried(queue, run, replace(settlement, traceback=traceback_text(raised)), may_retry)


def _cause_text(ended: Exception) -> str | None:
    """Return the traceback of the exception from which a runner raised Retry or Reject; None without one."""
    return None if ended.__cause__ is None else traceback_text(ended.__cause__)


def _retried(queue: BaseQueue, run: TaskRun, retry: Settlement, may_retry: Callable[[], bool]) -> RunEnd:
    """Return the end of a run that failed, and may be repeated."""
    claim, error, limit = retry.claim, retry.error or "", run.handle.max_attempts
    attempts = claim.task.attempts
    if run.handle.lost is not None:  # refused in any case, and not because of the downstream
        return RunEnd(Settlement.release(claim), Outcome.RELEASED, error, downstream_ok=None)
    is_last = core_of(queue).is_last_attempt(claim, limit)
    if is_last and limit != QUEUES:
        error += f"; that was attempt {attempts} of {limit}"
    if not is_last and not may_retry():
        error += "; not retried: the retry budget is spent"
        failed = replace(Settlement.fail(claim, error), traceback=retry.traceback)
        return RunEnd(failed, Outcome.FAILED, error, downstream_ok=False)
    delay_seconds = retry.delay_seconds
    if delay_seconds is None and run.handle.backoff is not None:
        delay_seconds = run.handle.backoff.delay_seconds(attempts, core_of(queue).uniform())
    retry = replace(retry, error=error, delay_seconds=delay_seconds, max_attempts=limit)
    return RunEnd(retry, Outcome.RETRIED, error, downstream_ok=False)


def released(claim: Claim, busy: Busy) -> RunEnd:
    """Return the end of a run that was not possible now, or not here."""
    release, error = Settlement.release(claim, busy.delay_seconds), error_text(busy)
    if isinstance(busy, UnknownKind):
        return RunEnd(release, Outcome.UNKNOWN_KIND, error, downstream_ok=None)
    seconds = busy.retry_after_seconds
    return RunEnd(release, Outcome.RELEASED, error, downstream_ok=False, retry_after_seconds=seconds)


def _shed(claim: Claim, error: BaseException, now: float) -> RunEnd:
    """Return the end of a run whose child was refused for lack of time: its task waits for its deadline."""
    left_seconds = claim.task.seconds_left(now) or 0.0
    return RunEnd(Settlement.release(claim, left_seconds), Outcome.SHED, error_text(error), None)


def given_back(claim: Claim, error: str) -> RunEnd:
    """Return the end of a claim whose task must not start here. The attempt is not counted."""
    return RunEnd(Settlement.release(claim), Outcome.GIVEN_BACK, error, downstream_ok=None)


def _unexpected(run: TaskRun, error: BaseException) -> str:
    """Return an unexpected exception as text; keep it for the log unless the run was cancelled."""
    why = run.handle.why_cancelled
    if why is not None and isinstance(error, CancelledError):
        return f"the run was cancelled: {why}"
    return noted_failure(run.claim.task, error)


def noted_failure(task: Task, error: BaseException) -> str:
    """Keep an unexpected exception of a runner for the log of the run's end; return it as one line."""
    handle = handle_of(task) or RunHandle()
    handle.raised = error
    give_handle(task, handle)
    return f"{type(error).__name__}: {error_text(error)}"


def ran_once(claim: Claim, runner: Runner) -> tuple[str | None, bool]:
    """Run a task that is settled already: whatever the runner raises, it is not run again.

    Returns:
        The error, None after a success; and whether the downstream did not push back.
    """
    try:
        runner(claim.task)
    except Reject as reject:
        return error_text(reject), True
    except (Busy, Retry) as later:
        return f"{error_text(later)}; not run again", False
    except BaseException as unexpected:  # noqa: BLE001 - logged; SystemExit and the like are the runner's own
        return noted_failure(claim.task, unexpected), False
    return None, True


def too_late_to_run(queue: BaseQueue, claim: Claim) -> RunEnd | None:
    """Return how to give back a claim whose run must not start; None if it may start.

    The task returns to its line without counting the attempt; if it is past its deadline, it is shed there.
    """
    now = queue.admin.now()
    if claim.task.stale_at <= now:
        return RunEnd(Settlement.release(claim), Outcome.SHED, "the deadline passed", None)
    if claim.lease_until <= now:
        error = "the lease expired before the run started"
        return RunEnd(Settlement.release(claim), Outcome.LEASE_LOST, error, None)
    return None


def _delayed(retry: Retry) -> tuple[str, float | None]:
    """Return the reason and the delay of a retry; its delay may have been changed since it was checked."""
    error, delay_seconds = error_text(retry), getattr(retry, "delay_seconds", None)
    try:
        return error, None if delay_seconds is None else checked_seconds("delay_seconds", delay_seconds)
    except ValueError as wrong:
        return f"{error}; {wrong}", None


def completed(claim: Claim, result: Any = None, codec: Codec = JSON) -> RunEnd:
    """Return the end of a run that returned a result."""
    try:
        settlement = Settlement.complete(claim, encoded(codec, result, "result"))
    except BaseException as error:  # noqa: BLE001 - the methods of the user's value
        # The work is done, but its result cannot be stored. Another attempt would end the same way.
        text = error_text(error)
        problem = text if isinstance(error, ValueError) else f"result: {type(error).__name__}: {text}"
        return _failed(claim, problem, downstream_ok=True)
    return RunEnd(settlement, Outcome.SUCCEEDED, None, downstream_ok=True)


def _failed(claim: Claim, error: str, *, downstream_ok: bool | None) -> RunEnd:
    return RunEnd(Settlement.fail(claim, error), Outcome.FAILED, error, downstream_ok)


@dataclass(eq=False, slots=True)
class PendingSettlement:
    """A run that has ended, with a claim to settle.

    Attributes:
        run: The run; its lease may be extended in the meantime.
        end: How it ended.
        settled: Called once with the outcome, from any thread.
        is_last_try: Whether to try only once more, because the store answers other calls.
        problem: Why the last try to settle it failed.
    """

    run: TaskRun
    end: RunEnd
    settled: Callable[[Outcome], None]
    is_last_try: bool = False
    problem: Exception | None = None


class Completer:
    """Settles ended runs: several in one call, and again until the store answers. Any thread may call it."""

    def __init__(
        self, queue: BaseQueue, runs: TaskRuns, feedback: RunFeedback, is_draining: Callable[[], bool]
    ) -> None:
        """Settle nothing yet.

        Args:
            queue: The queue.
            runs: The runs that have not ended.
            feedback: Learns how claims were settled.
            is_draining: Returns whether the worker only waits for its runs.
        """
        self._queue = queue
        self._runs = runs
        self._feedback = feedback
        self._is_draining = is_draining

    def pending(self, run: TaskRun, end: RunEnd, run_seconds: float) -> PendingSettlement:
        """Return the pending settlement of a run, which calls `settled` once the store has answered."""
        settled = partial(self.settled, run, run_seconds=run_seconds, error=end.error)
        return PendingSettlement(run, end, settled)

    def settled(self, run: TaskRun, outcome: Outcome, *, run_seconds: float, error: str | None) -> None:
        """End a run whose claim was settled, or cannot be, and tell the observer."""
        if not (run.is_released and outcome is Outcome.LEASE_LOST):  # the worker released it itself
            self._feedback.settled(run.claim, outcome, run_seconds, error)
        self._runs.end(run, outcome)

    def return_to_lines(self, runs: Sequence[TaskRun], why: str) -> None:
        """Release the claims of runs that have not begun."""
        for run in runs:
            self._runs.settles(run)
        if runs:
            self.settle([self.pending(run, given_back(run.claim, why), 0.0) for run in runs])

    def settle(self, pending: Sequence[PendingSettlement]) -> None:
        """Settle runs; a separate thread retries those without an answer from the store."""
        with self._ending(pending):
            unanswered = self._settle_together(pending)
            if not unanswered:
                return
            again = in_thread("freshq-settle", partial(self._settle_again, unanswered))
            if again.done() and again.exception() is not None:  # the system has no thread left
                self._settle_again(unanswered)

    def _settle_again(self, unanswered: list[PendingSettlement]) -> None:
        with self._ending(unanswered):
            self._settle_until_lost(unanswered)

    @contextmanager
    def _ending(self, pending: Sequence[PendingSettlement]) -> Iterator[None]:
        """End runs with an unexpected error: the loop raises it."""
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - raised by the loop
            for each in pending:
                if each.run.ended is None:
                    self._runs.end(each.run, error)

    def _settle_together(self, pending: Sequence[PendingSettlement]) -> list[PendingSettlement]:
        """Settle runs in one call; return runs without an answer from the store.

        If a store that is available refuses the call, each run is settled separately, so that a run it never
        accepts does not hold up the others.
        """
        unanswered: list[PendingSettlement] = []
        for each, answer in zip(pending, self._answers(pending), strict=True):
            if isinstance(answer, Task | LeaseLost):
                if isinstance(answer, LeaseLost) and not each.run.is_released:
                    core_of(self._queue).limits.charge_apart(each.run.claim.task)
                each.settled(each.end.outcome_for(answer))
            elif isinstance(answer, OUTAGES) or (isinstance(answer, StoreError) and len(pending) == 1):
                each.run.enter(Phase.UNSETTLED)
                each.problem = answer
                unanswered.append(each)
            elif len(pending) > 1:
                unanswered += self._settle_together([each])
            else:
                task = each.run.claim.task
                message = "task %s cannot be settled; it stays TAKEN until its lease expires"
                logger.error(message, task.task_id, exc_info=answer, extra=log_fields(task))
                each.settled(Outcome.UNSETTLED)
        return unanswered

    def _answers(self, pending: Sequence[PendingSettlement]) -> Sequence[Task | Exception]:
        try:
            return self._queue.settle_many([each.end.settlement for each in pending])
        except Exception as error:  # noqa: BLE001 - the answer for each
            return [error] * len(pending)

    def _settle_until_lost(self, unanswered: Sequence[PendingSettlement]) -> None:
        """Retry settlements until the store answers.

        After an outage longer than the lease, the claim still settles if nobody took the task in between.
        Past its lease a run stays unsettled if the worker is draining, or if the store answers other calls,
        so that a task it never accepts does not block its slot.
        """
        tries = 0
        while unanswered:
            tries += 1
            pause_seconds = SETTLE_BACKOFF.delay_seconds(tries, core_of(self._queue).uniform())
            unanswered = self._worth_a_try(unanswered, self._queue.admin.now() + pause_seconds)
            if unanswered and not any(each.is_last_try for each in unanswered):
                time.sleep(pause_seconds)
            unanswered = self._settle_together(unanswered) if unanswered else []

    def _worth_a_try(self, unanswered: Sequence[PendingSettlement], try_at: float) -> list[PendingSettlement]:
        """Return the runs to settle again; give up the others."""
        draining = self._is_draining()
        late = {each for each in unanswered if each.run.claim.lease_until <= try_at}
        given_up = {each for each in late if draining or each.is_last_try}
        _give_up(given_up)
        left = late - given_up
        kept = [each for each in unanswered if each not in given_up]
        answers = self._answers_others(left)
        for each in kept:
            each.is_last_try = answers and each in left
        return kept

    def _answers_others(self, pending: Iterable[PendingSettlement]) -> bool:
        """Return whether the store answers a read of one of the tasks; False if there are none."""
        for each in pending:
            try:
                self._queue.get(each.run.claim.task.task_id)
            except DamagedTask:
                return True
            except StoreError:
                return False
            except Exception:  # noqa: BLE001 - a row that cannot be decoded is an answer
                return True
            return True
        return False

    def give_back(self, runs: Sequence[TaskRun], why: str, within_seconds: float) -> None:
        """Release the tasks of runs that go on, so that other workers can take them.

        Args:
            runs: The runs.
            why: Why, for the observer.
            within_seconds: How long to wait for the store.
        """
        for run in runs:
            run.is_released = True  # before the store knows: its end may come at any moment
        for run, answer in zip(runs, self._released(runs, within_seconds), strict=True):
            task = run.claim.task
            run.is_released = not isinstance(answer, BaseException)
            if run.is_released:
                self._feedback.given_back(run, why)
            elif not isinstance(answer, LeaseLost):  # LeaseLost: already settled or lost; nothing to report
                message = "task %s stays TAKEN until its lease expires: %s"
                logger.warning(message, task.task_id, answer, extra=log_fields(task))

    def _released(self, runs: Sequence[TaskRun], within_seconds: float) -> Sequence[object]:
        """Release the claims of runs; return the task or the error of each."""
        releases = [Settlement.release(run.claim) for run in runs]
        call = in_thread("freshq-give-back", partial(self._queue.settle_many, releases))
        is_over = bool(wait([call], within_seconds).done)
        error = call.exception() if is_over else TimeoutError(f"{within_seconds:g} s")
        return [error] * len(runs) if error else call.result()


def _give_up(given_up: Iterable[PendingSettlement]) -> None:
    for each in given_up:
        task = each.run.claim.task
        message = "task %s stays TAKEN until its lease expires"
        logger.error(message, task.task_id, exc_info=each.problem, extra=log_fields(task))
        each.settled(Outcome.UNSETTLED)
