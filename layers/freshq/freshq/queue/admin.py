"""Look after a queue: read tasks and counts, cancel, redrive, purge, pause."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from freshq.errors import IllegalTransition, LeaseLost, quoted
from freshq.model.answers import Claim, DeadLetterCounts, Page
from freshq.model.checks import checked_count, checked_error, checked_id, checked_priority, checked_status
from freshq.model.task import LIVE, TaskStatus
from freshq.queue.core import Verbs
from freshq.queue.polling import answer_of, poll_for_ends
from freshq.queue.put import parsed
from freshq.queue.shared.measures import REFUSED
from freshq.stores.base import Conflict, Guard, parse_place, place_of
from freshq.stores.tally import FirstIds, tally

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from freshq.model.new_task import NewTask
    from freshq.model.options import QueueConfig
    from freshq.model.task import Task
    from freshq.policy.order import OrderSwitch
    from freshq.policy.pressure import Pressure
    from freshq.queue.core import Core
    from freshq.queue.upkeep import Portion
    from freshq.stores.base import Stats

# Dead letters to redrive in one batch.
BATCH_TASKS: Final = 100


class Tending(Verbs):
    """Changes tasks by their ids; pauses and purges the queue.

    Changing a task that a worker holds takes `force`: the worker gets LeaseLost at its next verb, and its
    work so far is not undone.
    """

    def cancel(self, task_id: str, *, force: bool = False) -> Task:
        """Cancel a PENDING task.

        Args:
            task_id: Its id.
            force: Cancel it even if it is TAKEN.

        Raises:
            NotFound: If the queue has no such task.
            IllegalTransition: If the task is over, or TAKEN without `force`.
        """
        return self._core.change(task_id, partial(self._core.lifecycle.cancelled, force=force))

    def bury(self, task_id: str, error: str | None = None, *, force: bool = False) -> Task:
        """Make a PENDING task a dead letter.

        Args:
            task_id: Its id.
            error: Why.
            force: Bury it even if it is TAKEN.

        Raises:
            NotFound: If the queue has no such task.
            IllegalTransition: If the task is over, or TAKEN without `force`.
        """
        verb = partial(self._core.lifecycle.buried, error=checked_error(error), force=force)
        return self._core.change(task_id, verb)

    def restore(self, task_id: str, *, force: bool = False) -> Task:
        """Return a dead letter or a PENDING task to its line as if it were put now.

        Its creation time, deadline and attempts are reset, and it is no longer delayed. So it goes to the
        back of a FIFO line, and to the front of a LIFO line. `redrive` and `release` keep the position. In a
        table attached with an order of its own, it gets the position of the record's current value.

        Args:
            task_id: Its id.
            force: Restore it even if it is TAKEN.

        Raises:
            NotFound: If the queue has no such task.
            IllegalTransition: If the task is neither a dead letter nor PENDING, or TAKEN without `force`;
                or its record lacks the attribute that orders the table.
        """
        core, restored = self._core, self._core.lifecycle.restored
        return core.change(
            task_id, lambda task, now: restored(task, now, core.stamp(now), force=force), core.move
        )

    def touch(self, task_id: str) -> Task:
        """Set the creation time of a PENDING task to now; its max age stays the same.

        A delayed put that is not due keeps its times: it becomes the newest of its line when it is due.
        In a table attached with an order of its own, a record gets the position of its current value.

        Raises:
            NotFound: If the queue has no such task.
            IllegalTransition: If the task is not PENDING, or its record lacks the attribute that orders the
                table.
        """
        core, touched = self._core, self._core.lifecycle.touched
        return core.change(task_id, lambda task, now: touched(task, now, core.stamp(now)), core.move)

    def reprioritize(self, task_id: str, priority: int) -> Task:
        """Change the priority of a PENDING task; its creation time stays the same.

        Raises:
            ValueError: If the priority is not 0 to 9.
            NotFound: If the queue has no such task.
            IllegalTransition: If the task is not PENDING.
        """
        verb = partial(self._core.lifecycle.reprioritized, priority=checked_priority(priority))
        return self._core.change(task_id, verb)

    def redrive(self, limit: int | None = None, task_id: str | None = None) -> int:
        """Return dead letters to their lines, with their attempts reset and their creation times kept.

        Dead letters past their deadline, or older than this queue's max age, stay dead letters, because they
        could not be claimed.

        Args:
            limit: Most dead letters to redrive; None for all.
            task_id: Redrive only this one.

        Returns:
            How many were redriven.

        Raises:
            NotFound: If the queue has no task `task_id`.
            IllegalTransition: If the task `task_id` is no dead letter, or is stale.
        """
        if limit is not None:
            checked_count("limit", limit)
        if task_id is not None:
            self._core.change(task_id, self._core.lifecycle.redriven)
            return 1
        live_until = self._core.lifecycle.live_until
        live = (task for task in self._core.store.dead(self.name) if live_until(task) > self._core.now())
        redriven = 0
        while limit is None or redriven < limit:
            some = list(islice(live, BATCH_TASKS if limit is None else min(BATCH_TASKS, limit - redriven)))
            if not some:
                break
            redriven += self._redrive_if_still_dead(some)
        return redriven

    def _redrive_if_still_dead(self, tasks: Sequence[Task]) -> int:
        """Redrive dead letters unless another process changes them first; return how many."""
        now = self._core.now()
        changes = [
            (self._core.lifecycle.redriven(task, now), Guard.unchanged(task))
            for task in tasks
            if self._core.lifecycle.live_until(task) > now
        ]
        return sum(task is not None for task in self._core.store.replace_many(changes))

    def discard(self, limit: int | None = None, task_id: str | None = None) -> int:
        """Delete dead letters. On an attached table the records stay, and become READY.

        Args:
            limit: Most dead letters to delete; None for all.
            task_id: Delete only this one.

        Returns:
            How many were deleted.

        Raises:
            NotFound: If the queue has no task `task_id`.
            IllegalTransition: If the task `task_id` is no dead letter.
        """
        if limit is not None:
            checked_count("limit", limit)
        if task_id is not None:
            task = self._core.stored(task_id)
            if not self._discard(task):
                state = (self._core.get(task_id) or task).status
                raise IllegalTransition.of_task(task_id, "discard", state, TaskStatus.FAILURE)
            return 1
        dead = self._core.store.dead(self.name)
        return sum(islice((1 for task in dead if self._discard(task)), limit))

    def _discard(self, task: Task) -> bool:
        """Delete a dead letter; return False if it is not a dead letter."""
        try:
            self._core.store.delete(task, Guard(TaskStatus.FAILURE, request_token=task.request_token))
        except Conflict:
            return False
        return True

    def purge(self, confirm: str) -> int:
        """Delete all tasks, including TAKEN ones. On an attached table the records stay, and become READY.

        Args:
            confirm: The name of the queue.

        Returns:
            How many were deleted.

        Raises:
            ValueError: If `confirm` is not the name of the queue; nothing was deleted.
        """
        if confirm != self.name:
            msg = (
                f"confirm: must be the queue's name {self.name!r}, got {quoted(confirm)}; nothing was deleted"
            )
            raise ValueError(msg)
        return self._core.store.purge(self.name)

    def pause(self) -> None:
        """Suspend claims, here immediately and in other processes within seconds. Other verbs still work."""
        self._core.store.set_paused(self.name, paused=True)

    def resume(self) -> None:
        """Allow claims again."""
        self._core.store.set_paused(self.name, paused=False)

    @property
    def paused(self) -> bool:
        """Whether claims are suspended."""
        return self._core.store.paused(self.name)


class Reading(Verbs):
    """Reads a queue without changing it."""

    def get(self, task_id: str) -> Task | None:
        """Return a task with its current status; None if the queue has no task with this id."""
        return self._core.get(task_id)

    def find(self, task_id: str) -> Task:
        """Return a task with its current status.

        Raises:
            NotFound: If the queue has no task with this id; on an attached table the error says whether
                the record exists.
        """
        return self._core.with_current_status(self._core.stored(task_id))

    def contains(self, task_id: str) -> bool:
        """Return whether the task with this id is PENDING or TAKEN."""
        task = self.get(task_id)
        return task is not None and task.status in LIVE

    def wait(self, task_id: str, *, timeout_seconds: float | None = None, poll_seconds: float = 1.0) -> Task:
        """Return a task once it is over, whoever runs it: for its status, its result or its error.

        Polls the task at growing intervals: the answer is late by at most a fifth of the wait, and by at most
        `poll_seconds`. Each poll is one read of the store.

        Args:
            task_id: The task.
            timeout_seconds: Stop waiting after this time; None: never.
            poll_seconds: Longest time between two polls.

        Raises:
            ValueError: If an argument is wrong.
            NotFound: If the queue has no such task: it was never put, or its retention has passed.
            WaitTimeout: If the task is not over after `timeout_seconds`; the task is unchanged.
            StoreError: If the store did not answer.
        """
        poll = poll_for_ends(self._core.found, [checked_id(task_id)], timeout_seconds, poll_seconds)
        return answer_of(poll, self._core.store)[0]

    def wait_many(
        self, task_ids: Iterable[str], *, timeout_seconds: float | None = None, poll_seconds: float = 1.0
    ) -> Iterator[Task]:
        """Yield tasks as they end, in the order of their ends.

        Args:
            task_ids: The tasks.
            timeout_seconds: As in `wait`, for all tasks together.
            poll_seconds: As in `wait`; a poll reads every task that has not ended.

        Raises:
            ValueError: If an argument is wrong.
            NotFound: If the queue has no task with one of the ids.
            WaitTimeout: If some are not over after `timeout_seconds`.
            StoreError: If the store did not answer.
        """
        poll = poll_for_ends(self._core.found, task_ids, timeout_seconds, poll_seconds)
        return chain.from_iterable(iter(partial(answer_of, poll, self._core.store), []))

    def list(
        self, status: TaskStatus | str | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> Page:
        """Return a page of the queue's tasks, in an order that depends on the store.

        Dead letters (FAILURE) are listed latest first, at the cost of the page. Other listings read tasks of
        every status until the page is full.

        Args:
            status: Return only tasks with this status.
            limit: Most tasks to return.
            cursor: `cursor` of the previous page; None for the first page.

        Raises:
            ValueError: If an argument is wrong.
        """
        wanted = checked_status(status)
        checked_count("limit", limit)
        if wanted is TaskStatus.FAILURE:
            after = None if cursor is None else parse_place(cursor)
            dead = self._core.store.dead(self.name, after)
            return Page.of(dead, limit, lambda task: place_of(task).cursor)
        if cursor is not None:
            checked_id(cursor, "cursor")
        tasks = map(self._core.with_current_status, self._core.store.scan(self.name, start_after=cursor))
        found = (task for task in tasks if wanted in (None, task.status))
        return Page.of(found, limit, lambda task: task.task_id)

    def stats(self, *, approximate: bool = False, ids: int | None = None) -> Stats:
        """Count the tasks by status.

        Args:
            approximate: Read at most one page per shard; `Stats.bounded` then says which counts are
                bounds. Otherwise every task is read, and the counts are exact.
            ids: Number of ids per state to return as `Stats.ids`. Pending tasks come in the order of claims,
                ignoring the turns of groups (in an adaptive order: newest first), delayed tasks by due time,
                held tasks by the end of their leases, and all others latest change first. None for no ids.

        Raises:
            ValueError: If `ids` is not a number of 1 or more, or goes with `approximate`.
        """
        if ids is not None:
            checked_count("ids", ids)
            if approximate:
                raise ValueError("ids: only with exact counts; leave out approximate")
        now = self._core.now()
        if approximate:
            return self._core.store.approximate_stats(self.name, now, now - self._core.config.max_age_seconds)
        self._core.meter.flush(now)
        first = None if ids is None else FirstIds(ids, newest_first=not self._core.config.order.oldest_first)
        tasks = map(self._core.with_own_deadline, self._core.store.scan(self.name))
        stats = tally(tasks, now, self._core.reserve.spans(), first)
        refused = self._core.store.read_counts(self.name, REFUSED)
        return replace(stats, shed_by_reason=dict(Counter(stats.shed_by_reason) + Counter(refused)))

    def pressure(self) -> Pressure:
        """Return how overloaded the queue is.

        Raises:
            StoreError: If the store did not answer.
        """
        return self._core.meter.pressure(self._core.now(), self._core.uniform())


class Admin(Verbs):
    """Verbs for operators, workers and functions; `Queue.admin` has them.

    Attributes:
        name: Name of the queue.
        config: The queue's options.
    """

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        self.config: QueueConfig = core.config

    def now(self) -> float:
        """Return the time of the queue's clock, in seconds since the epoch, to the microsecond.

        Raises:
            StoreError: If the clock is the store's, was never read, and the store does not answer.
        """
        return self._core.now()

    def check(self, task: Mapping[str, Any] | NewTask) -> NewTask:
        """Validate the arguments of a put without writing anything.

        Raises:
            ValueError: One line that names the first wrong field and what is allowed.
        """
        new = parsed(self._core, task, "")
        self._core.lifecycle.created(new, now=self._core.now(), created=0.0)
        return new

    def held(self, task_id: str, token: str) -> Claim:
        """Return the claim that holds a task, for a holder that kept only its id and token.

        Args:
            task_id: The task.
            token: `Claim.token`, perhaps from another process.

        Raises:
            NotFound: If the queue has no such task.
            LeaseLost: If the task is not held under this token.
        """
        task = self._core.stored(task_id)
        if task.status is not TaskStatus.TAKEN or task.lease_token != token or task.lease_until is None:
            held = "it is held under another token"
            state = task.status_at(self._core.now())
            why = held if state is TaskStatus.TAKEN else f"it is {state} now"
            raise LeaseLost.of_task(task_id, why, state)
        return Claim.of(task)

    def take_order_switches(self) -> list[OrderSwitch]:
        """Return the order switches seen by this process since the last call."""
        return self._core.orders.take_switches()

    def recover(self) -> int:
        """Return tasks with expired leases to their lines, and promote delayed tasks that are due.

        A task whose lease expires in its last attempt becomes a dead letter. Tasks past their retention are
        deleted.

        Returns:
            How many tasks moved.

        Raises:
            StoreError: If the store did not answer.
        """
        return self._core.upkeep.run()

    def upkeep(self) -> Portion:
        """Do a bounded portion of `recover`, for a background thread.

        One process at a time does the upkeep of a queue, under a lease of a few seconds.

        Returns:
            How many tasks moved, and whether there is more to do; nothing while another process does it.

        Raises:
            StoreError: If the store did not answer.
        """
        return self._core.upkeep.run_alone()

    def take_dead_letter_counts(self) -> DeadLetterCounts:
        """Return how many tasks became dead letters since the last call without a run that failed them.

        Counts only the dead letters that `recover`, `upkeep` or claims of this process found.
        """
        return DeadLetterCounts(self._core.store.take_quarantined(), self._core.upkeep.take_exhausted())

    def index_dead(self) -> int:
        """Add dead letters that an earlier version of freshq left out to the index of dead letters.

        Listings and `redrive` find them there. Needed once, and only on DynamoDB; reads the whole table. It
        may be interrupted and repeated while the queue is in use.

        Returns:
            How many dead letters were added.

        Raises:
            StoreError: If the store did not answer. The dead letters added before that stay in the index.
        """
        return self._core.store.index_dead(self.name)

    def flush(self) -> None:
        """Write the flow counts in memory to the store. Call this before a process is frozen or ends."""
        self._core.flush()
