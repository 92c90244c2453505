"""Look after a queue: read tasks and counts, cancel, redrive, purge, pause."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

from freshq.errors import IllegalTransition, LeaseLost, quoted
from freshq.model.answers import Claim, DeadLetterCounts, Page
from freshq.model.checks import (
    checked_count,
    checked_error,
    checked_id,
    checked_ids,
    checked_priority,
    checked_status,
)
from freshq.model.fields import plain_token
from freshq.model.task import LIVE, TaskStatus
from freshq.queue.core import Verbs
from freshq.queue.polling import EndsPoll, answer_of
from freshq.queue.reading import FirstIds, tally
from freshq.queue.shared.measures import REFUSED
from freshq.stores.base import Conflict, Guard, parse_place, place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from freshq.model.new_task import NewTask
    from freshq.model.options import QueueConfig
    from freshq.model.task import Task
    from freshq.policy.order import OrderSwitch
    from freshq.policy.pressure import Pressure
    from freshq.policy.reserve import ReserveSpans
    from freshq.queue.upkeep import Portion
    from freshq.stores.base import Stats

# Tasks that a page of TAKEN tasks may read in vain, each at a read unit; half of its limit if that is more.
MOST_IN_VAIN: Final = 5
# Tasks to redrive in one batch.
BATCH_TASKS: Final = 100


class Operating(Verbs):
    """Changes tasks by their ids; pauses and purges the queue.

    Changing a task that a worker holds takes `force`: the worker gets LeaseLost at its next verb, and its
    work so far is not undone.
    """

    def cancel(
        self, task_id: str, *, force: bool = False, dead: bool = False, error: str | None = None
    ) -> Task:
        """Cancel a PENDING task, or make it a dead letter.

        Args:
            task_id: Its id.
            force: Cancel it even if it is TAKEN.
            dead: Make it a dead letter, which `redrive` can bring back.
            error: With `dead`: why, kept with the task.

        Raises:
            ValueError: If an argument is wrong.
            NotFound: If the queue has no such task.
            IllegalTransition: If the task has ended, or is TAKEN without `force`.

        Examples:
            >>> receipt = queue.put("work", task_id="b")
            >>> queue.cancel("b").status.value
            'CANCELLED'
        """
        life = self._core.rules.lifecycle
        if dead:
            verb = partial(life.cancelled_as_dead, error=checked_error(error), force=force)
            return self._core.change(task_id, verb)
        if error is not None:
            raise ValueError("error: only for a dead letter, with dead=True")
        return self._core.change(task_id, partial(life.cancelled, force=force))

    def reprioritize(self, task_id: str, *, priority: int) -> Task:
        """Change the priority of a PENDING task; its creation time stays the same.

        Raises:
            ValueError: If the priority is not 0 to 9.
            NotFound: If the queue has no such task.
            IllegalTransition: If the task is not PENDING.

        Examples:
            >>> receipt = queue.put("work", task_id="b")
            >>> queue.reprioritize("b", priority=9).priority
            9
        """
        verb = partial(self._core.rules.lifecycle.reprioritized, priority=checked_priority(priority))
        return self._core.change(task_id, verb)

    def redrive(
        self,
        task_ids: Iterable[str] | None = None,
        *,
        limit: int | None = None,
        where: Callable[[Task], bool] | None = None,
        as_new: bool = False,
        force: bool = False,
    ) -> int:
        """Return dead letters to their lines, with their attempts reset and their creation times kept.

        Stale ones stay dead letters without `as_new`, because they could not be claimed.

        Args:
            task_ids: Redrive exactly these; all are checked before the first write. None for all.
            limit: Maximum number of dead letters to redrive; None for all. Not with `task_ids`.
            where: Redrive only the dead letters that it returns true for. Not with `task_ids`.
            as_new: As if they were put now: with a new creation time and deadline. PENDING tasks may then
                also be among `task_ids`; they keep their attempts and delay. An attached record gets its
                current position.
            force: With `task_ids` and `as_new`: take TAKEN tasks from their workers.

        Returns:
            How many were redriven.

        Raises:
            ValueError: If an argument is wrong.
            NotFound: If the queue has no task with one of `task_ids`; names the first.
            IllegalTransition: If one of `task_ids` is no dead letter, or is stale, and the arguments do not
                permit it; or its record lacks the attribute that orders the table.
        """
        ids = _checked_ids(task_ids, limit, where)
        if force and not (as_new and ids is not None):
            raise ValueError("force: only for task_ids that return as new, with as_new=True")
        core = self._core
        core.begin()
        redriven = partial(self._renewed, force=force) if as_new else core.rules.lifecycle.redriven
        if ids is not None:
            return core.change_each(ids, redriven, core.move if as_new else core.store.replace)
        return self._redrive_dead(redriven, limit, where, as_new=as_new)

    def _renewed(self, task: Task, now: float, *, force: bool) -> Task:
        return self._core.rules.lifecycle.renewed(task, now, self._core.stamp(now), force=force)

    def _redrive_dead(
        self,
        redriven: Callable[[Task, float], Task],
        limit: int | None,
        where: Callable[[Task], bool] | None,
        *,
        as_new: bool,
    ) -> int:
        """Redrive dead letters that can be claimed then, the last to die first; return how many."""
        core = self._core
        write_many = core.move_many if as_new else core.store.replace_many

        def changes() -> Iterator[tuple[Task, Guard]]:
            for task in filter(where or is_any, core.store.dead(self.name)):
                now = core.now()
                if as_new or core.rules.lifecycle.live_until(task) > now:
                    yield redriven(task, now), Guard.unchanged(task)

        fresh = changes()
        left: float = math.inf if limit is None else limit
        moved = 0
        while some := list(islice(fresh, int(min(BATCH_TASKS, left - moved)))):
            written = write_many(some)
            moved += sum(task is not None for task in written)  # other callers changed the rest first
            core.store.notifier.changed(self.name, written)
        return moved

    def purge(
        self,
        *,
        status: TaskStatus | str | None = None,
        task_ids: Iterable[str] | None = None,
        limit: int | None = None,
        where: Callable[[Task], bool] | None = None,
        confirm: str,
    ) -> int:
        """Delete tasks, including TAKEN ones. On an attached table the records stay, and become READY.

        Args:
            status: Delete only tasks with this status.
            task_ids: Delete exactly these; all are checked before the first is deleted. None for all tasks.
            limit: Maximum number of tasks to delete; None for no limit. Not with `task_ids`.
            where: Delete only tasks for which it returns true. Not with `task_ids`.
            confirm: The name of the queue.

        Returns:
            How many were deleted.

        Raises:
            ValueError: If an argument is wrong, or `confirm` is not the name of the queue; nothing was
                deleted.
            NotFound: If the queue has no task with one of `task_ids`; names the first.
            IllegalTransition: If one of `task_ids` has another status.
        """
        core = self._core
        if confirm != self.name:
            wrong = f"must be the queue's name {self.name!r}, got {quoted(confirm)}"
            msg = f"confirm: {wrong}; nothing was deleted"
            raise ValueError(msg)
        wanted, ids = checked_status(status), _checked_ids(task_ids, limit, where)
        if ids is not None:
            return self._purge_each(ids, wanted)
        if wanted is None and limit is None and where is None:
            return core.store.purge(self.name)
        found = self._found(wanted, where or is_any)
        return sum(islice((1 for task in found if self._delete_unchanged(task)), limit))

    def _found(self, wanted: TaskStatus | None, where: Callable[[Task], bool]) -> Iterator[Task]:
        """Yield the tasks with a status, or with any."""
        core = self._core
        tasks = core.store.dead(self.name) if wanted is TaskStatus.FAILURE else core.store.scan(self.name)
        for task in filter(where, tasks):
            if wanted in (None, core.with_current_status(task).status):
                yield task

    def _delete_unchanged(self, task: Task) -> bool:
        """Delete a task; return False if it changed in between."""
        try:
            self._core.store.delete(task, Guard.exact(task))
        except Conflict:
            return False
        return True

    def _purge_each(self, ids: Sequence[str], wanted: TaskStatus | None) -> int:
        """Delete tasks by their ids, if each of them may be deleted; return how many."""
        core = self._core

        def checked(task: Task, now: float) -> Task:
            status = task.status_at(now)
            if status is TaskStatus.READY or wanted not in (None, status):
                allowed = "a task of the queue" if wanted is None else wanted
                raise IllegalTransition.of_task(task.task_id, "purge", status, allowed)
            return task

        def delete(task: Task, _guard: Guard) -> Task:
            core.store.delete(task, Guard.exact(task))
            return task

        return core.change_each(ids, checked, delete)

    def pause(self) -> None:
        """Suspend claims, here immediately and in other processes within seconds. Other verbs still work.

        Examples:
            >>> queue.pause()
            >>> queue.claim()
            []
        """
        self._core.store.set_paused(self.name, paused=True)

    def resume(self) -> None:
        """Allow claims again.

        Examples:
            >>> queue.resume()
            >>> queue.paused()
            False
        """
        self._core.store.set_paused(self.name, paused=False)
        self._core.store.notifier.put(self.name)

    def paused(self) -> bool:
        """Return whether claims are suspended.

        Examples:
            >>> queue.paused()
            False
        """
        return self._core.store.paused(self.name)


def is_any(_task: Task) -> bool:
    """Return true: every task is meant."""
    return True


def _checked_ids(
    task_ids: Iterable[str] | None, limit: int | None, where: Callable[[Task], bool] | None
) -> list[str] | None:
    """Return distinct ids, in order; None if no list of ids is given.

    Raises:
        ValueError: If an argument is wrong.
    """
    if limit is not None:
        checked_count("limit", limit)
    given: object = where
    if given is not None and not callable(given):
        msg = f"where: must be a function that takes a task, got {type(given).__name__}"
        raise ValueError(msg)
    if task_ids is None:
        return None
    for name, unwanted in (("limit", limit), ("where", where)):
        if unwanted is not None:
            msg = f"{name}: not with task_ids, which says which tasks"
            raise ValueError(msg)
    return checked_ids(task_ids)


class Reading(Verbs):
    """Reads a queue without changing it."""

    def get(self, task_id: str) -> Task | None:
        """Return a task with its current status; None if the queue has no task with this id.

        Examples:
            >>> queue.get("a").status.value, queue.get("nobody")
            ('TAKEN', None)
        """
        return self._core.get(task_id)

    def wait(self, task_id: str, *, timeout_seconds: float | None = None, poll_seconds: float = 1.0) -> Task:
        """Return a task once it has ended, whoever runs it: for its status, its result or its error.

        The answer is immediate if this process settles the task, and on PostgreSQL and SQLite if another one
        does. It also polls at growing intervals, one read of the store each: the answer is late by at most a
        fifth of the wait, and by at most `poll_seconds`.

        Args:
            task_id: The task.
            timeout_seconds: Stop waiting after this time; None: never.
            poll_seconds: Longest time between two polls.

        Raises:
            ValueError: If an argument is wrong.
            NotFound: If the queue has no such task: it was never put, or its retention has passed.
            WaitTimeout: If the task is not over after `timeout_seconds`; the task is unchanged.
            StoreError: If the store did not answer.

        Examples:
            >>> done = queue.complete(claim, result=42)
            >>> queue.wait("a", timeout_seconds=10).result
            42
        """
        poll = EndsPoll(self._core, [checked_id(task_id)], timeout_seconds, poll_seconds)
        return answer_of(poll)[0]

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
            WaitTimeout: If any has not ended after `timeout_seconds`.
            StoreError: If the store did not answer.

        Examples:
            >>> done = queue.complete(claim, result=42)
            >>> {task.task_id: task.result for task in queue.wait_many(["a"], timeout_seconds=10)}
            {'a': 42}
        """
        poll = EndsPoll(self._core, task_ids, timeout_seconds, poll_seconds)
        return chain.from_iterable(iter(partial(answer_of, poll), []))

    def list(
        self, status: TaskStatus | str | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> Page:
        """Return a page of the queue's tasks, in an order that depends on the store.

        Dead letters (FAILURE) are listed latest first, at the cost of the page. DynamoDB and SQL databases
        list PENDING and TAKEN tasks through an index. All other listings read tasks of every status until
        the page is full.

        On DynamoDB a page of TAKEN tasks ends early if most tasks that it reads have ended: it may be short
        or empty, and still have a cursor.

        Args:
            status: Return only tasks with this status.
            limit: Maximum number of tasks to return.
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
        listed = self._indexed(wanted, cursor) if wanted in LIVE else None
        if listed is None:
            start_after = None if cursor is None else checked_id(cursor, "cursor")
            scanned = self._core.store.scan(self.name, start_after=start_after)
            listed = ((task, task.task_id) for task in scanned)
        return self._page(listed, wanted, limit)

    def _page(self, listed: Iterable[tuple[Task | None, str]], wanted: TaskStatus | None, limit: int) -> Page:
        """Return a page of the tasks with a status; it ends early if many tasks read have another status."""
        cursors: dict[str, str] = {}
        left = max(MOST_IN_VAIN, limit // 2)
        ended_at: str | None = None

        def found() -> Iterator[Task]:
            nonlocal left, ended_at
            for stored, place in listed:
                if stored is None:
                    left -= 1
                    if left == 0:
                        ended_at = place
                        return
                    continue
                task = self._core.with_current_status(stored)
                if wanted in (None, task.status):
                    cursors[task.task_id] = place
                    yield task

        page = Page.of(found(), limit, lambda task: cursors[task.task_id])
        return page if page.cursor is not None else replace(page, cursor=ended_at)

    def _indexed(self, wanted: TaskStatus, cursor: str | None) -> Iterator[tuple[Task | None, str]] | None:
        core = self._core
        now = core.now()
        return core.store.listed(self.name, wanted, now, now - core.rules.stale_after_seconds, cursor)

    def stats(self, *, approximate: bool = False, ids: int | None = None) -> Stats:
        """Count the tasks by status.

        Args:
            approximate: Read at most one page per shard; `Stats.bounded` then lists the counts that are
                bounds. Otherwise the counts are exact: a SQL database counts about half a million tasks a
                second, DynamoDB reads every task, at the price that `admin.exact_count_units` returns.
            ids: Number of ids per state to return as `Stats.ids`. Pending tasks come in the order of claims,
                ignoring the turns of groups (in an adaptive order: newest first), delayed tasks by due time,
                held tasks by the end of their leases, and all others latest change first. Every task is read.
                None for no ids.

        Raises:
            ValueError: If `ids` is not a number of 1 or more, or goes with `approximate`.
        """
        if ids is not None:
            checked_count("ids", ids)
            if approximate:
                raise ValueError("ids: only with exact counts; leave out approximate")
        store, now = self._core.store, self._core.begin_now()
        created_after = now - self._core.rules.stale_after_seconds
        dead = store.count_dead(self.name)
        oldest_dead_seconds = None if dead.oldest_at is None else max(0.0, now - dead.oldest_at)
        if approximate:
            stats = store.approximate_stats(self.name, now, created_after)
            bounded = {name: bound for name, bound in stats.bounded.items() if name != "failure"}
            bounded |= {"failure": "at least"} if dead.more else {}
            stats = replace(
                stats, failure=dead.number, oldest_dead_seconds=oldest_dead_seconds, bounded=bounded
            )
            return store.with_dead_rows(stats)
        self._core.rules.meter.flush(now)
        spans = self._core.rules.reserve.spans()
        counted = None if ids else store.exact_stats(self.name, now, created_after, spans)
        stats = counted or self._tallied(now, spans, ids)
        refused = Counter(store.read_counts(self.name, REFUSED))
        shed_by_reason = dict(Counter(stats.shed_by_reason) + refused)
        stats = replace(stats, oldest_dead_seconds=oldest_dead_seconds, shed_by_reason=shed_by_reason)
        return store.with_dead_rows(stats)

    def _tallied(self, now: float, spans: ReserveSpans, ids: int | None) -> Stats:
        """Count by reading every task."""
        core = self._core
        first = None if ids is None else FirstIds(ids, newest_first=not core.rules.config.order.oldest_first)
        return tally(map(core.with_own_deadline, core.store.scan(self.name)), now, spans, first)

    def pressure(self) -> Pressure:
        """Return how overloaded the queue is.

        Raises:
            StoreError: If the store did not answer.

        Examples:
            >>> queue.pressure().overloaded
            False
        """
        now = self._core.begin_now()
        return self._core.rules.meter.pressure(now, self._core.uniform())


class Admin(Verbs):
    """Verbs for operators, workers and functions, available as `Queue.admin`.

    Attributes:
        name: Name of the queue.
    """

    @property
    def config(self) -> QueueConfig:
        """The queue's options as last read; before the first verb, the options that this process named."""
        return self._core.known_config

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
        new = self._core.parse(task)
        self._core.rules.lifecycle.created(new, now=self._core.now(), created=0.0)
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
        holds = task.status is TaskStatus.TAKEN and plain_token(task.lease_token) == token
        if not holds or task.lease_until is None:
            held = "it is held under another token"
            state = task.status_at(self._core.now())
            why = held if state is TaskStatus.TAKEN else f"it is {state} now"
            raise LeaseLost.of_task(task_id, why, state)
        return Claim.of(task)

    def take_order_switches(self) -> list[OrderSwitch]:
        """Return the order switches seen by this process since the last call."""
        return self._core.rules.orders.take_switches()

    def recover(self) -> int:
        """Return tasks with expired leases to their lines, and promote delayed tasks that are due.

        A task whose lease expires in its last attempt becomes a dead letter. Tasks past their retention are
        deleted.

        Returns:
            How many tasks moved.

        Raises:
            StoreError: If the store did not answer.
        """
        self._core.begin()
        return self._core.upkeep.run()

    def upkeep(self) -> Portion:
        """Do a bounded portion of `recover`, for a background thread.

        One process at a time does the upkeep of a queue, under a lease of a few seconds.

        Returns:
            How many tasks moved, and whether more is left to do; nothing while another process does it.

        Raises:
            StoreError: If the store did not answer.
        """
        self._core.begin()
        return self._core.upkeep.run_alone()

    def take_dead_letter_counts(self) -> DeadLetterCounts:
        """Return the number of tasks that became dead letters without a failed run since the last call.

        Counts only the dead letters that `recover`, `upkeep` or claims of this process found.
        """
        return DeadLetterCounts(self._core.store.take_unreadable(), self._core.upkeep.take_exhausted())

    def exact_count_units(self) -> int | None:
        """Return about how many read units DynamoDB bills for `stats()`; None if the store bills no reads.

        DynamoDB updates the size of a table every six hours. `stats(approximate=True)` counts waiting and
        held tasks from the indexes instead.

        Raises:
            StoreError: If the store did not answer, or refuses DescribeTable.
        """
        return self._core.store.exact_count_units()

    def flush(self) -> None:
        """Write the flow counts in memory to the store. Call this before a process is frozen or ends."""
        self._core.flush()
