"""Forward tasks from one queue to another, or copy them as they are, for restores and moves of queues."""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from freshq.errors import (
    FreshqError,
    LeaseLost,
    NotFound,
    Overloaded,
    PutIncomplete,
    RefusedError,
    Throttled,
    Unreachable,
)
from freshq.model.answers import PutOutcome, Receipt
from freshq.model.checks import checked_count, checked_seconds
from freshq.model.fields import plain_token
from freshq.model.lifecycle import new_token
from freshq.model.task import LIVE, TaskStatus, changed
from freshq.policy.retry import Backoff, equal_jitter
from freshq.queue.attached import AttachedQueue
from freshq.queue.base import blocking_queue
from freshq.queue.core import core_of
from freshq.queue.stopping import StopRequest
from freshq.stores.base import Conflict, Guard

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from freshq.model.answers import Claim
    from freshq.model.task import Task
    from freshq.queue.asyncio import AsyncQueue
    from freshq.queue.base import BaseQueue
    from freshq.queue.stopping import Until

BACKOFF: Final = Backoff(base_seconds=1.0, cap_seconds=300.0)
# The oldest suspects are forgotten beyond this number.
MAX_SUSPECTS: Final = 10_000
logger = logging.getLogger(__name__)
DEFAULT_BATCH: Final = 100
# If a relay dies between putting a task and settling it at the source, the task is put again after this
# time, as a duplicate at the destination.
LEASE_SECONDS: Final = 60.0
# Between batches while the destination fails or is overloaded.
DESTINATION_BACKOFF: Final = Backoff(base_seconds=1.0, cap_seconds=30.0)
# Number of suspects to put per batch, each alone; other suspects wait for the next batch.
MAX_ALONE: Final = 10
# Errors unrelated to the task.
TRANSIENT: Final = (Overloaded, Throttled, Unreachable)
SAME_IDS: Final = (
    "destination: it is the source, or a queue of the source's table, where the ids of its tasks are taken; "
    "relay to another table, or to a queue of another name"
)
# Tasks that are copied at a time.
COPIED_AT_ONCE: Final = 100
# Errors of the store, not of a single task: the copy ends, and can be repeated.
OF_STORE: Final = (Throttled, Unreachable)
# A task of the source, and the error of the destination; None if it arrived.
Tried: TypeAlias = "tuple[Claim, Exception | None]"


class Suspects:
    """Counts the failures of a task while the destination accepted other tasks of its batch, or later ones.

    The first failure proves nothing: the destination may have recovered in between, or another task may have
    failed the whole batch. So a suspect is put alone; from its second failure on, it waits longer each time
    and holds up no other task.
    """

    def __init__(self) -> None:
        # By task, its failures, and how many tasks had arrived at the last one; the latest last.
        self._failures: dict[str, tuple[int, int]] = {}

    def __contains__(self, task_id: str) -> bool:
        """Return whether the destination failed for a task before."""
        return task_id in self._failures

    def add(self, task_id: str, arrived: int) -> None:
        """Count a failure of a task, when `arrived` tasks in all had arrived."""
        self._failures[task_id] = (self._failures.pop(task_id, (0, 0))[0] + 1, arrived)
        while len(self._failures) > MAX_SUSPECTS:
            self.clear(next(iter(self._failures)))

    def arrived_before(self, task_id: str) -> float:
        """Return how many tasks had arrived when a task last failed; infinite if it is no suspect."""
        return self._failures.get(task_id, (0, inf))[1]

    def delay_seconds(self, task_id: str) -> float:
        """Return the upper bound of the delay before the next try; 0 before the second failure."""
        failures, _arrived = self._failures.get(task_id, (0, 0))
        return BACKOFF.delay_seconds(failures - 1, 1.0) if failures > 1 else 0.0

    def clear(self, task_id: str) -> None:
        """Forget a task."""
        self._failures.pop(task_id, None)


class SameIds(ValueError):
    """The destination already has the tasks of the source under their ids, so it cannot accept any."""

    def __init__(self) -> None:
        """Say what to do."""
        super().__init__(SAME_IDS)


def check_apart(source: BaseQueue, destination: BaseQueue) -> None:
    """Refuse a destination that has the tasks of the source.

    Raises:
        SameIds: If it is the source, or in its table.
    """
    place = core_of(source).store.place
    if source is destination or (place is not None and place == core_of(destination).store.place):
        raise SameIds


class Relay:
    """Claims tasks from a source, puts them to a destination under the same ids, and settles them.

    Delivery is at least once: a task is settled at the source once the destination has it. After a crash it
    is put again, as a duplicate, while the destination keeps its id: the destination's retention must be
    longer than the lease.

    A failure or overload of the destination spends no attempt: the tasks return to the source, and `run`
    backs off. A task that the destination refuses spends an attempt, with backoff, until it is a dead letter
    of the source; the rest of its batch moves on. So does a task for which the destination fails repeatedly
    while it takes other tasks: see `Suspects`.

    Attributes:
        duplicates: Number of arrived tasks whose id the destination already knew. An earlier relay
            put them, or another program; the destination kept its own tasks.

    Examples:
        >>> from freshq.feeds import Relay
        >>> outbox = Queue.memory(name="outbox")
        >>> receipt = outbox.put("work", task_id="b")
        >>> Relay(outbox, queue).move()
        1
    """

    def __init__(
        self,
        source: BaseQueue | AsyncQueue,
        destination: BaseQueue | AsyncQueue,
        *,
        batch: int = DEFAULT_BATCH,
        lease_seconds: float = LEASE_SECONDS,
        poll_seconds: float = 1.0,
        idle_exit_seconds: float | None = None,
    ) -> None:
        """Prepare a relay; `run` starts it.

        Args:
            source: The outbox. An AsyncQueue stands for the queue that it uses.
            destination: Where its tasks go.
            batch: Maximum number of tasks to move at a time.
            lease_seconds: Maximum time for a batch.
            poll_seconds: Pause after finding the source empty.
            idle_exit_seconds: End after this time without a task to claim; None: never. A relay whose
                destination fails is not idle.

        Raises:
            ValueError: If an argument is wrong, or the destination is the source.
        """
        self._source = blocking_queue(source, "source")
        self._destination = blocking_queue(destination, "destination")
        check_apart(self._source, self._destination)
        self._batch = checked_count("batch", batch, at_most=1000)
        self._lease_seconds = checked_seconds("lease_seconds", lease_seconds, above_zero=True)
        self._poll_seconds = checked_seconds("poll_seconds", poll_seconds, above_zero=True)
        self._idle_exit_seconds = inf
        if idle_exit_seconds is not None:
            self._idle_exit_seconds = checked_seconds("idle_exit_seconds", idle_exit_seconds)
        self.duplicates = 0
        self._failed_batches = self._arrived = 0
        self._stop = StopRequest()
        self._suspects = Suspects()

    def move(self) -> int:
        """Move one batch; return how many tasks were claimed, including those not moved.

        Raises:
            SameIds: If the destination turned out to be the source; its tasks are back in it.
            StoreError: If the source did not answer.
        """
        tried = self._tried(self._source.claim(self._batch, lease_seconds=self._lease_seconds))
        if tried and all(_failed(error) for _claim, error in tried) and self._may_be_the_tasks(tried):
            tried = self._probed(tried)
        arrived_before = self._arrived
        self._note(tried)
        for claim, error in tried:
            self._settle(claim, error, arrived_before)
        for _claim, error in tried:
            if isinstance(error, SameIds):
                raise error
        return len(tried)

    def _may_be_the_tasks(self, tried: Sequence[Tried]) -> bool:
        return self._failed_batches > 0 or any(
            claim.task.task_id in self._suspects for claim, _error in tried
        )

    def _probed(self, tried: list[Tried]) -> list[Tried]:
        """Put one task alone, to tell a failing destination from a task that fails its batch."""
        if len(tried) == 1:
            return tried + self._tried(self._source.claim(1, lease_seconds=self._lease_seconds))
        claim, _error = tried.pop(self._failed_batches % len(tried))  # a different task each time
        return [*tried, (claim, self._put([claim])[0])]

    def _tried(self, claims: Sequence[Claim]) -> list[Tried]:
        """Put tasks to the destination, the suspects each alone; return the error of each."""
        # The newest task was claimed first; it must be put last to be the newest at the destination.
        claims = sorted(claims, key=lambda claim: claim.task.created)
        suspects = [claim for claim in claims if claim.task.task_id in self._suspects]
        others = [claim for claim in claims if claim.task.task_id not in self._suspects]
        tried = list(zip(others, self._put(others), strict=True)) if others else []
        for claim in suspects[:MAX_ALONE]:
            tried.append((claim, self._put([claim])[0]))
        for claim in suspects[MAX_ALONE:]:
            self._return(claim)
        return tried

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
        return [self._receipt_error(*pair) for pair in zip(claims, receipts, strict=True)]

    def _receipt_error(self, claim: Claim, receipt: object) -> Exception | None:
        if isinstance(receipt, Receipt):
            if receipt.outcome is not PutOutcome.DUPLICATE:
                return None
            error = self._collision(claim)
            self.duplicates += error is None
            return error
        return receipt if isinstance(receipt, Exception) else None

    def _collision(self, claim: Claim) -> Exception | None:
        """Return why a duplicate is not the task put by an earlier relay; None if it is that task."""
        try:
            found = core_of(self._destination).store.get(claim.task.task_id)
        except FreshqError as error:
            return error
        if found is None:
            return None  # it was over, and its retention has just passed
        if plain_token(found.lease_token) == claim.token:
            return SameIds()
        if found.queue != self._destination.name:
            return RefusedError(f"its id is taken by a task of queue {found.queue!r} of the same table")
        return None

    def _put_halves(self, claims: Sequence[Claim]) -> list[Exception | None]:
        """Split a batch that was refused because of one task into halves, until that task is alone."""
        middle = len(claims) // 2
        errors = self._put(claims[:middle])
        failure = next((error for error in errors if _failed(error)), None)
        if failure is not None:
            return errors + [failure] * (len(claims) - middle)
        return errors + self._put(claims[middle:])

    def _note(self, tried: Sequence[Tried]) -> None:
        """Count the tasks that arrived, and the batches in a row that the destination failed to take."""
        errors = [error for _claim, error in tried]
        self._arrived += errors.count(None)
        failures = [error for error in errors if _failed(error)]
        if not failures:
            self._failed_batches = 0
            return
        # If some tasks arrived, the shortest pause is enough. Suspects need no pause: they have their delay.
        new = any(_failed(error) and claim.task.task_id not in self._suspects for claim, error in tried)
        before = 0 if None in errors else self._failed_batches
        self._failed_batches = before + 1 if new else 0
        logger.warning(
            "%d of %d tasks return to the source, the destination did not take them: %s",
            len(failures),
            len(errors),
            failures[0],
        )

    def _new(self, claim: Claim) -> dict[str, Any]:
        """Return the arguments to put a task, with the remainder of its max age."""
        task = claim.task
        left_seconds = None
        if task.deadline is not None:
            longest_seconds = self._destination.admin.config.stale_after_seconds
            left_seconds = min(max(1e-6, task.deadline - self._source.admin.now()), longest_seconds)
        return {
            "payload": task.payload,
            "task_id": task.task_id,
            "priority": task.priority,
            "group": task.group,
            "kind": task.kind,
            "value": task.value,
            "decay": task.decay,
            "cost": task.cost,
            "trace_context": task.trace_context,
            "parent": task.parent_id and {"task_id": task.parent_id, "root_id": task.root_id},
            "max_age_seconds": left_seconds,
        }

    def _settle(self, claim: Claim, error: Exception | None, arrived_before: int) -> None:
        try:
            if error is None:
                self._suspects.clear(claim.task.task_id)
                self._source.complete(claim)
            elif isinstance(error, SameIds):
                self._return(claim)
            elif not _failed(error):
                self._retry(claim, error, None)
            else:
                self._put_off(claim, error, arrived_before)
        except LeaseLost:
            logger.warning("task %s was claimed by another relay", claim.task.task_id)

    def _put_off(self, claim: Claim, error: Exception, arrived_before: int) -> None:
        """Return a task that the destination failed to accept; spend an attempt if it accepts other tasks."""
        task_id = claim.task.task_id
        takes_others = self._arrived > min(arrived_before, self._suspects.arrived_before(task_id))
        if takes_others or task_id in self._suspects:
            self._suspects.add(task_id, self._arrived)
        delay_seconds = self._suspects.delay_seconds(task_id) * self._jitter()
        if takes_others and delay_seconds and not isinstance(error, TRANSIENT):
            self._retry(claim, error, delay_seconds)
        else:
            self._return(claim, delay_seconds)

    def _return(self, claim: Claim, delay_seconds: float = 0) -> None:
        try:
            self._source.release(claim, delay_seconds=delay_seconds)
        except LeaseLost:
            logger.warning("task %s was claimed by another relay", claim.task.task_id)

    def _retry(self, claim: Claim, error: Exception, delay_seconds: float | None) -> None:
        """Spend an attempt of a task that the destination does not accept."""
        task_id = claim.task.task_id
        logger.warning("task %s was refused by the destination: %s", task_id, error)
        if (
            self._source.retry(claim, error=str(error), delay_seconds=delay_seconds).status
            is TaskStatus.FAILURE
        ):
            logger.error("task %s is a dead letter of queue %s: %s", task_id, self._source.name, error)
            self._suspects.clear(task_id)

    def _jitter(self) -> float:
        return equal_jitter(core_of(self._source).uniform())

    def stop(self) -> None:
        """Stop moving tasks: `run` returns after the current batch, and later calls return immediately.

        Any thread and any signal handler may call it.
        """
        self._stop.make()

    def run(self, until: Until = None) -> int:
        """Move tasks until stopped; return how many arrived at the destination.

        Args:
            until: A condition, checked before each batch and at least every second, or a time in seconds
                since the epoch by the source's clock. None: until `stop`. `idle_exit_seconds` also ends it.

        Raises:
            SameIds: As for `move`.
            StoreError: If the source did not answer.
        """
        ends = self._stop.condition(until, self._source.admin.now)
        before, last_work = self._arrived, time.monotonic()
        is_over = ends()
        while not is_over:
            batch, pause_seconds = self.move(), self._poll_seconds
            if batch:
                last_work, pause_seconds = time.monotonic(), self._backoff_seconds()
            elif time.monotonic() - last_work >= self._idle_exit_seconds:
                break
            is_over = self._stop.wait(pause_seconds, ends)
        return self._arrived - before

    def _backoff_seconds(self) -> float:
        """Return the pause before the next batch; 0 unless the destination fails or is overloaded."""
        if not self._failed_batches:
            return 0.0
        return DESTINATION_BACKOFF.delay_seconds(self._failed_batches, self._jitter())


def _failed(error: Exception | None) -> bool:
    """Return whether the destination failed or is overloaded, rather than refused the task."""
    refused = isinstance(error, RefusedError | ValueError) and not isinstance(error, Overloaded)
    return error is not None and not refused


@dataclass(slots=True)
class CopyReport:
    """The tasks of a source, by their fate in the copy.

    Attributes:
        copied: By status in the source. A TAKEN task waits again in the destination, where no worker runs.
        present: Tasks that the destination already has in the same state as the source.
        skipped: By reason: tasks that were asked for and are not in the destination in the same state.
        skipped_ids: Their ids, by reason.
        left: By status: tasks that were not asked for.
    """

    copied: Counter[TaskStatus] = field(default_factory=Counter)
    present: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    skipped_ids: dict[str, list[str]] = field(default_factory=dict)
    left: Counter[TaskStatus] = field(default_factory=Counter)

    def skip(self, task_id: str, reason: str) -> None:
        """Count a task that is skipped for a reason, and keep its id."""
        self.skipped[reason] += 1
        self.skipped_ids.setdefault(reason, []).append(task_id)


class TaskCopy:
    """Copies whole tasks: id, payload, place in the line, attempts, times, result and error.

    Each task is put on condition that the destination has no task with its id, or an ended one that may be
    replaced. A copy that is interrupted can be repeated: tasks that have arrived are then already present.
    """

    def __init__(
        self,
        source: BaseQueue | AsyncQueue,
        destination: BaseQueue | AsyncQueue,
        *,
        only: Collection[TaskStatus] = tuple(TaskStatus),
        over: Collection[TaskStatus] = (),
    ) -> None:
        """Prepare a copy.

        Args:
            source: The queue to read. An AsyncQueue stands for the queue that it uses.
            destination: The queue to put the tasks into, which has a table.
            only: The states to copy.
            over: States of tasks of the destination that a copy of the same id may replace; ended ones.

        Raises:
            ValueError: If an argument is wrong, the destination is the source, or one is an attached table.
        """
        ours, theirs = blocking_queue(source, "source"), blocking_queue(destination, "destination")
        for name, queue in (("source", ours), ("destination", theirs)):
            if isinstance(queue, AttachedQueue):
                msg = f"{name}: is an attached table, whose tasks are the application's records"
                raise ValueError(msg)
        check_apart(ours, theirs)
        live = sorted({*LIVE}.intersection(over))
        if live:
            msg = f"over: a task that is {live[0]} is never replaced; cancel it first"
            raise ValueError(msg)
        self._source = core_of(ours)
        self._destination = core_of(theirs)
        self._only = frozenset(only)
        self._over = frozenset(over)
        self.report = CopyReport()

    def run(self, on_batch: Callable[[CopyReport], object] = lambda _report: None) -> CopyReport:
        """Copy every task that was asked for; return the fate of each.

        Args:
            on_batch: Called after each batch.

        Raises:
            StoreError: If a store did not answer; call again to continue.
        """
        self._destination.begin_write()
        tasks = self._asked_for()
        while batch := list(islice(tasks, COPIED_AT_ONCE)):
            self._copy(batch)
            on_batch(self.report)
        return self.report

    def _asked_for(self) -> Iterator[tuple[Task, TaskStatus]]:
        """Yield the tasks to copy, in the form for the destination, with their status in the source."""
        for task in self._source.store.scan(self._source.name):
            status = self._source.with_current_status(task).status
            if status not in self._only:
                self.report.left[status] += 1
                continue
            # Its own token: a store takes the second put with a token for a repetition of the first.
            copy = changed(task, queue=self._destination.name, request_token=new_token())
            if status is TaskStatus.TAKEN:
                copy = changed(task.successor or copy, queue=copy.queue, request_token=copy.request_token)
            if copy.status is TaskStatus.TAKEN:
                copy = changed(copy, status=TaskStatus.PENDING, lease_token=None, lease_until=None)
            yield copy, status

    def _copy(self, batch: list[tuple[Task, TaskStatus]]) -> None:
        answers = self._destination.insert([task for task, _status in batch])
        for (task, status), answer in zip(batch, answers, strict=True):
            if isinstance(answer, OF_STORE):
                raise answer
            if isinstance(answer, FreshqError):
                self.report.skip(task.task_id, str(answer).removeprefix(f"task {task.task_id!r}: "))
            elif answer is True or self._replaced(task):
                self.report.copied[status] += 1

    def _replaced(self, task: Task) -> bool:
        """Return whether a task could replace the task with its id; otherwise record why not."""
        try:
            current = self._destination.stored(task.task_id)
        except NotFound:
            self.report.skip(task.task_id, "its id is taken in another queue of the table")
            return False
        if changed(current, request_token=task.request_token) == task:
            self.report.present += 1
            return False
        status = self._destination.with_current_status(current).status
        if status not in self._over or not self._freed(current):
            self.report.skip(task.task_id, f"is {status} in the destination")
            return False
        return self._destination.insert([task])[0] is True

    def _freed(self, current: Task) -> bool:
        """Delete a task of the destination unless it has changed; return whether its id is free."""
        try:
            self._destination.store.delete(current, Guard.unchanged(current))
        except Conflict:
            return False
        return True
