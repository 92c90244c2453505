"""The queue: every verb of the contract, for any store."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from freshq.checks import (
    checked_count,
    checked_error,
    checked_id,
    checked_priority,
    checked_result,
    checked_seconds,
    checked_status,
)
from freshq.errors import (
    FreshqError,
    IllegalTransition,
    LeaseLost,
    LostRace,
    PutIncomplete,
    StoreError,
    TableMissing,
    TaskNotFound,
)
from freshq.lifecycle import Lifecycle, new_token
from freshq.lines import LineOrders, LineTurns
from freshq.new_task import NewTask, parse_new_task
from freshq.options import QueueOptions, parse_options
from freshq.policy.order import Order
from freshq.policy.shedding import ShedReason
from freshq.shared.admission import BacklogKeeper, Doorkeeper, Gauge
from freshq.shared.codel import LineCodel
from freshq.shared.flow import REFUSED, FlowMeter
from freshq.shared.reserve import SharedReserve
from freshq.stores.base import ClaimRequest, ConflictError, Guard, Page, Stats
from freshq.stores.transactional import end_together, putter, transactional, wait_for
from freshq.tally import tally
from freshq.task import Task, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime
    from typing import Self, Unpack

    from sqlalchemy import Connection
    from types_boto3_dynamodb import DynamoDBClient

    from freshq.attached import AttachedQueue
    from freshq.policy.order import OrderSwitch
    from freshq.policy.pressure import Pressure
    from freshq.stores.base import Store
    from freshq.stores.conflicts import OnConflict
    from freshq.stores.transactional import Putter, Work

logger = logging.getLogger(__name__)

# A verb that reads before it writes starts again so often when the task changes in between.
MAX_READ_WRITE_TRIES: Final = 10
# Far more than a process can start at once; the record of what it holds must stay within one item.
MAX_CLAIM: Final = 1000
# Of claims that CoDel gave up; each finds the next head of the line.
MAX_CODEL_ROUNDS: Final = 50


class PutOutcome(StrEnum):
    """What a put did."""

    CREATED = "CREATED"
    DUPLICATE = "DUPLICATE"
    UPDATED = "UPDATED"


@dataclass(frozen=True, slots=True)
class Receipt:
    """The answer to a put.

    Attributes:
        task_id: Id of the task.
        outcome: CREATED; DUPLICATE if the id was taken, and nothing was changed; or UPDATED if the task
            of this id was to be updated.
    """

    task_id: str
    outcome: PutOutcome


@dataclass(frozen=True, slots=True)
class Claim:
    """A task held under a lease.

    Attributes:
        task: The task as it was when it was claimed.
        token: Proves who holds it; every settling verb is conditional on it.
        lease_until: Until when it is held, in seconds since the epoch.
    """

    task: Task
    token: str
    lease_until: float

    @property
    def redelivered(self) -> bool:
        """Whether the task was tried before, since it was put, updated or redriven."""
        return self.task.attempts > 1


class Queue:
    """A queue of tasks that lose value with age.

    Thread-safe. A wrong argument raises ValueError before any write; a store that does not answer
    raises StoreError, and never looks like an empty queue.
    """

    def __init__(self, store: Store, **options: Unpack[QueueOptions]) -> None:
        """Use a store.

        Args:
            store: Home of the tasks.
            **options: See `freshq.options.QueueConfig`.

        Raises:
            ValueError: If an option is wrong.
        """
        self._config = parse_options(options)
        self._lifecycle = Lifecycle(self._config)
        self._store = store
        rules = self._config.rules()
        self._orders = LineOrders(rules.order, rules.deadline_seconds)
        self._turns = LineTurns()
        self._reserve = SharedReserve(store, self.name, rules)
        self._codel = LineCodel(rules)
        self._meter = FlowMeter(store, self.name, rules.deadline_seconds, self.now())
        self._gauge = Gauge(store, self.name, rules, self._meter)
        self._door = Doorkeeper(self._gauge, rules, self.uniform)
        self._backlog = BacklogKeeper(store, self.name, rules, self._lifecycle, self._meter)
        self._stamp_lock = threading.Lock()
        self._last_created_us = 0

    @classmethod
    def memory(cls, **options: Unpack[QueueOptions]) -> Self:
        """Return a queue in this process's memory, for tests and trials."""
        from freshq.stores.memory import MemoryStore  # noqa: PLC0415 - only the store in use is loaded

        return cls(MemoryStore(), **options)

    @overload
    @classmethod
    def dynamodb(
        cls,
        table: str,
        client: DynamoDBClient | None = None,
        *,
        shards: int = 1,
        attach: Literal[False] = False,
        key: None = None,
        **options: Unpack[QueueOptions],
    ) -> Self: ...

    @overload
    @classmethod
    def dynamodb(
        cls,
        table: str,
        client: DynamoDBClient | None = None,
        *,
        shards: int = 1,
        attach: Literal[True],
        key: str,
        **options: Unpack[QueueOptions],
    ) -> AttachedQueue: ...

    @classmethod
    def dynamodb(
        cls,
        table: str,
        client: DynamoDBClient | None = None,
        *,
        shards: int = 1,
        attach: bool = False,
        key: str | None = None,
        **options: Unpack[QueueOptions],
    ) -> Self | AttachedQueue:
        """Return a queue on a DynamoDB table.

        Args:
            table: Name of the table.
            client: A low-level boto3 client; None for one from the environment.
            shards: Partitions of the index of claimable tasks. One keeps strict order; N lift the
                write limit N-fold, and a claim merges the newest of each. An attached table has as
                many as it was attached with; more than one must be that number.
            attach: Whether the tasks are records of an application's table, to which `freshq attach`
                was applied. Then order and shards default to what it was attached with, and no record
                is stale by age.
            key: The hash key of such a table.
            **options: See `freshq.options.QueueConfig`.

        Raises:
            ValueError: If an argument is wrong, or does not agree with how the table was attached.
            TableMissing: If a table that is to be attached is not.
        """
        if attach:
            from freshq.attached import open_dynamodb  # noqa: PLC0415 - it derives from this class

            return open_dynamodb(table, client, key, shards, options)
        if key is not None:
            raise ValueError("key: only with attach=True; a table of freshq's own has the key taskId")
        from freshq.stores.dynamodb import DynamoDBStore  # noqa: PLC0415 - only the store in use is loaded

        return cls(DynamoDBStore(table, client, shards=shards), **options)

    @classmethod
    def sql(cls, url: str, table: str = "tasks", **options: Unpack[QueueOptions]) -> Self:
        """Return a queue in a relational database: SQLite, PostgreSQL, MariaDB or MySQL.

        Args:
            url: Where the database is: `sqlite:///tasks.db`, `postgresql://user@host/name` or
                `mariadb://user@host/name`.
            table: Name of the table of tasks; the names of the others begin with it.
            **options: See `freshq.options.QueueConfig`. Unless a clock is given, the time is the
                database's.
        """
        from freshq.stores.sql import SqlStore  # noqa: PLC0415 - only the store in use is loaded

        store = SqlStore(url, table, queue=options.get("name", "default"))
        options.setdefault("clock", store.clock)
        return cls(store, **options)

    @property
    def name(self) -> str:
        """Name of the queue."""
        return self._config.name

    @property
    def store(self) -> Store:
        """Home of the tasks, for what else the queue's processes share."""
        return self._store

    @property
    def lease_seconds(self) -> float:
        """How long a claim is held unless it says otherwise."""
        return self._config.lease_seconds

    def now(self) -> float:
        """Return the time of the queue's clock, in seconds since the epoch, to the microsecond."""
        return round(self._config.clock(), 6)

    def uniform(self) -> float:
        """Return a random number from [0, 1), for jitter."""
        return self._config.rng.random()

    def create_table(self) -> None:
        """Make what the store needs, unless it is there; return once it can be used."""
        self._store.create_table()

    # --- tasks in

    def put(
        self,
        payload: Any,  # noqa: ANN401 - any JSON value
        task_id: str | None = None,
        priority: int = 0,
        delay_seconds: float = 0,
        max_age_seconds: float | None = None,
        group: str | None = None,
        *,
        at: datetime | float | None = None,
        on_conflict: OnConflict | None = None,
        connection: Connection | None = None,
    ) -> Receipt:
        """Add a task.

        Args:
            payload: The work: any JSON value.
            task_id: The caller's id; None for a UUID. An id that the table still knows is a duplicate.
            priority: 0 to 9, higher first.
            delay_seconds: Not claimable before so many seconds from now.
            max_age_seconds: Stale so many seconds from now; at most the queue's max age.
            group: Tenant or key.
            at: Not claimable before this time: with a time zone, or in seconds since the epoch; instead
                of `delay_seconds`.
            on_conflict: What to do if a task of this id is waiting or in work: "ignore" the new one, or
                "update" the old one, which takes it from its holder. With either, the id of a task that
                is over is free. Not on an attached table.
            connection: Put it in the transaction of this connection: if that is rolled back, nothing was
                put. Only in a SQL database.

        Raises:
            ValueError: If an argument is wrong; nothing was written.
            Overloaded: If the door, or the bound on the backlog, refused it; nothing was written.
            StoreError: If the store did not take it.
        """
        arguments = {
            "payload": payload,
            "task_id": task_id,
            "priority": priority,
            "delay_seconds": delay_seconds,
            "max_age_seconds": max_age_seconds,
            "group": group,
            "at": at,
        }
        how = self._putter(on_conflict, connection)
        return self._put([self._created(parse_new_task(arguments))], how)[0]

    def put_many(
        self,
        tasks: Iterable[Mapping[str, Any] | NewTask],
        *,
        on_conflict: OnConflict | None = None,
        connection: Connection | None = None,
    ) -> list[Receipt]:
        """Add several tasks, each given as the arguments of `put`; the others hold for all of them.

        Returns:
            One receipt a task, in order.

        Raises:
            ValueError: If any task is wrong; nothing was written.
            PutIncomplete: If some were refused, or the store took only some of them.
        """
        try:
            numbered = enumerate(tasks)
        except TypeError as error:
            msg = f"tasks: must be a list of tasks, got {tasks!r}"
            raise ValueError(msg) from error
        places = [(f"tasks[{index}].", task) for index, task in numbered]
        how = self._putter(on_conflict, connection)
        return self._put([self._created(parse_new_task(task, where), where) for where, task in places], how)

    def check(self, task: Mapping[str, Any] | NewTask) -> NewTask:
        """Return the task if this queue would take it, without writing anything.

        Raises:
            ValueError: One line that names the field and what is allowed.
        """
        new = parse_new_task(task)
        self._lifecycle.created(new, now=self.now(), created=0.0)
        return new

    def _created(self, new: NewTask, where: str = "") -> Task:
        return self._lifecycle.created(new, self.now(), self._stamp(), where)

    def _putter(self, on_conflict: OnConflict | None, connection: Connection | None) -> Putter:
        return putter(self._store, on_conflict, connection)

    def _put(self, tasks: list[Task], putter: Putter) -> list[Receipt]:
        now = self.now()
        outcomes: dict[int, Receipt | FreshqError] = {}
        admitted = self._admitted(tasks, now, outcomes)
        added = putter([tasks[index] for index in admitted]) if admitted else []
        for index, result in zip(admitted, added, strict=True):
            if isinstance(result, FreshqError):
                outcomes[index] = result
            else:
                outcomes[index] = Receipt(tasks[index].task_id, PutOutcome(result))
        self._meter.offered(now, len(tasks))
        self._make_way(sum(result == PutOutcome.CREATED for result in added), now)
        return _receipts([outcomes[index] for index in range(len(tasks))])

    def _admitted(
        self, tasks: Sequence[Task], now: float, outcomes: dict[int, Receipt | FreshqError]
    ) -> Sequence[int]:
        """Return which tasks are let in, noting the refusals among the outcomes."""
        refusals = [self._door.refusal(task, now) for task in tasks]
        inside = [index for index, refusal in enumerate(refusals) if refusal is None]
        full = self._backlog.refusals([tasks[index] for index in inside], now)
        for index, refusal in [*enumerate(refusals), *zip(inside, full, strict=True)]:
            if refusal is not None:
                outcomes[index] = refusal
                self._meter.refused(now, ShedReason(refusal.reason), 1)
        return [index for index in inside if index not in outcomes]

    def _make_way(self, created: int, now: float) -> None:
        """Let the oldest give way to what was put; the tasks are in, so a failure is not theirs."""
        try:
            self._backlog.admitted(created, now)
        except StoreError:
            logger.warning("the backlog of queue %r was not bounded this time", self.name, exc_info=True)

    def _stamp(self) -> float:
        """Return a creation time that no other task of this producer has."""
        with self._stamp_lock:
            self._last_created_us = max(round(self._config.clock() * 1e6), self._last_created_us + 1)
            return self._last_created_us / 1e6

    # --- tasks out

    def claim(self, limit: int = 1, lease_seconds: float | None = None) -> list[Claim]:
        """Take tasks to work on, in the queue's order.

        When fewer tasks wait than were asked for, what is due (delays that are over, leases that
        ran out) is brought in first.

        Args:
            limit: How many at the most: as many as can be started now.
            lease_seconds: How long they are held; None for the queue's own.

        Returns:
            The claims; empty if nothing is claimable or the queue is paused.

        Raises:
            StoreError: If the store did not answer; what it had given before that is returned instead,
                and the next call fails.
        """
        checked_count("limit", limit, at_most=MAX_CLAIM)
        if lease_seconds is None:
            lease_seconds = self._config.lease_seconds
        checked_seconds("lease_seconds", lease_seconds, above_zero=True)
        if self._store.paused(self.name):
            return []
        claims = self._claim(limit, lease_seconds)
        if len(claims) < limit:
            try:
                if self.recover():
                    claims += self._claim(limit - len(claims), lease_seconds)
            except StoreError:
                if not claims:
                    raise
                logger.warning("claimed only %d of %d tasks", len(claims), limit, exc_info=True)
        return claims

    def _claim(self, limit: int, lease_seconds: float) -> list[Claim]:
        """Take tasks, giving up those that CoDel does not let through, for a bounded number of rounds."""
        kept: list[Claim] = []
        for _ in range(MAX_CODEL_ROUNDS):
            try:
                claims = self._take(limit - len(kept), lease_seconds)
            except StoreError:
                if not kept:
                    raise
                logger.warning("claimed only %d of %d tasks", len(kept), limit, exc_info=True)
                break
            doomed = [claim for claim in claims if self._codel.sheds(claim.task, claim.task.updated)]
            kept += [claim for claim in claims if claim not in doomed]
            if not doomed:
                break
            for claim in doomed:
                self._give_up(claim, ShedReason.CODEL)
        return kept

    def _give_up(self, claim: Claim, reason: ShedReason) -> None:
        """Settle a claim as shed; if that fails, the task comes back when its lease runs out."""
        now = self.now()
        try:
            self._settle(claim, self._lifecycle.given_up(_held(claim), now, reason))
        except (LeaseLost, StoreError):
            logger.warning("task %s was not given up", claim.task.task_id, exc_info=True)
        else:
            self._meter.turned_away(now, 1)

    def poll(
        self, limit: int = 1, timeout_seconds: float | None = None, poll_seconds: float = 3.0
    ) -> list[Claim]:
        """Claim tasks, waiting until there are some; at the next due time it looks at once.

        Args:
            limit: How many at the most.
            timeout_seconds: Give up after so long; None: never.
            poll_seconds: Look at least so often for what other processes put.

        Returns:
            The claims; empty if the time was over.
        """
        checked_seconds("poll_seconds", poll_seconds, above_zero=True)
        if timeout_seconds is not None:
            checked_seconds("timeout_seconds", timeout_seconds)
        return wait_for(lambda: self.claim(limit), self, timeout_seconds, poll_seconds)

    @contextmanager
    def transaction(self) -> Iterator[Work | None]:
        """Hold the next task in a transaction of the database: its lock is the row's.

        What the block writes through the connection, and that the task is done, are committed together.
        An exception undoes the block's writes and is recorded as a failed attempt; then it is raised
        again, but for Retry, Reject and Busy, which say how the attempt ended. When the process dies,
        the task waits as before, and the attempt is not counted. Only in a SQL database.

        Yields:
            The task and the connection; None if nothing is claimable or the queue is paused.
        """
        store = transactional(self._store, "transaction")
        if self._store.paused(self.name):
            yield None
            return
        with store.hold(lambda: self._request(1, self.lease_seconds), self) as work:
            yield work
        if work is not None and work.settled is not None:
            self._served(Claim(work.task, "", 0.0), work.settled)

    @property
    def lifecycle(self) -> Lifecycle:
        """What each verb makes of a task of this queue."""
        return self._lifecycle

    @property
    def max_age_seconds(self) -> float:
        """How old a task of this queue may become."""
        return self._config.max_age_seconds

    def _take(self, limit: int, lease_seconds: float) -> list[Claim]:
        request = self._request(limit, lease_seconds)
        tasks = self._store.claim(request)
        reserve_seconds = request.deadline_after - request.now
        self._note_passed_over(request, reserve_seconds, short=len(tasks) < limit)
        return [Claim(task, task.lease_token or "", request.lease_until) for task in tasks]

    def _request(self, limit: int, lease_seconds: float) -> ClaimRequest:
        now = self.now()
        lease_until = round(now + lease_seconds, 6)
        reserve_seconds = self._reserve.seconds(now)
        return ClaimRequest(
            queue=self.name,
            orders=self._orders,
            turns=self._turns,
            limit=limit,
            now=now,
            created_after=now - self._config.max_age_seconds + reserve_seconds,
            deadline_after=now + reserve_seconds,
            lease_until=lease_until,
            # Past the lease and past every deadline that a claimed task can have.
            expires=self._lifecycle.expires(max(lease_until, now + self._config.max_age_seconds)),
            tokens=[f"{self._config.worker_name}:{new_token()}" for _ in range(limit)],
        )

    def _note_passed_over(self, request: ClaimRequest, reserve_seconds: float, *, short: bool) -> None:
        """Take note of live tasks that this claim would have taken but for the reserve.

        Oldest first they come before all others; else only a claim that found too little tells.
        """
        if not self._reserve.note_due(request.now, reserve_seconds):
            return
        if short or self._config.order is Order.FIFO:
            oldest = self._store.oldest(self.name, request.created_after - reserve_seconds)
            if oldest is not None and (short or oldest <= request.created_after):
                self._reserve.passed_over(request.now, reserve_seconds)

    def take_order_switches(self) -> list[OrderSwitch]:
        """Return the times that an adaptive order turned round since the last call, by this process."""
        return self._orders.take_switches()

    def held(self, task_id: str, token: str) -> Claim:
        """Return the claim that holds a task, for a holder that kept only its id and token.

        Args:
            task_id: The task.
            token: `Claim.token` of what `claim` returned, perhaps to another process.

        Raises:
            TaskNotFound: If there is no such task.
            LeaseLost: If it is not held under this token.
        """
        task = self._stored(task_id)
        if task.status is not TaskStatus.TAKEN or task.lease_token != token or task.lease_until is None:
            held = "it is held under another token"
            state = task.status_at(self.now())
            raise LeaseLost(task_id, held if state is TaskStatus.TAKEN else f"it is {state} now")
        return Claim(task, token, task.lease_until)

    def complete(self, claim: Claim, result: Any = None) -> Task:  # noqa: ANN401 - any JSON value
        """Settle a claim as SUCCESS.

        Args:
            claim: What `claim` returned.
            result: Any JSON value to keep with the task.

        Raises:
            LeaseLost: If the claim no longer holds its task.
            ValueError: If the result is not JSON, or too large to be kept.
        """
        result = checked_result(result, _held(claim).payload)
        done = self._settle(claim, self._lifecycle.completed(_held(claim), self.now(), result))
        return self._served(claim, done)

    def complete_many(
        self,
        claims: Sequence[Claim],
        results: Sequence[Any] | None = None,
    ) -> list[Task | LeaseLost]:
        """Settle claims as SUCCESS; in a SQL database by one statement where there are no results.

        Args:
            claims: What `claim` returned.
            results: A JSON value to keep with each task, None for none.

        Returns:
            For each claim, in order: its task, or the error if it no longer holds it.

        Raises:
            ValueError: If a result is wrong; nothing was settled.
        """
        results = [None] * len(claims) if results is None else results
        if len(results) != len(claims):
            msg = f"results: must be as many as the claims, {len(claims)}, got {len(results)}"
            raise ValueError(msg)
        now = self.now()
        held = [_held(claim) for claim in claims]
        # What one statement writes has one version; one lease at a time, as its own retry is told by it.
        versions = {claim.token: new_token() for claim in claims}
        kept = [checked_result(result, task.payload) for task, result in zip(held, results, strict=True)]
        ended = [
            replace(self._lifecycle.completed(task, now, result), request_token=versions[claim.token])
            for claim, task, result in zip(claims, held, kept, strict=True)
        ]
        together = end_together(self._store, ended, [claim.token for claim in claims])
        return [
            self._served(claim, task)
            if (task.task_id, claim.token) in together
            else self._settled_or_lost(claim, task)
            for claim, task in zip(claims, ended, strict=True)
        ]

    def _settled_or_lost(self, claim: Claim, task: Task) -> Task | LeaseLost:
        try:
            return self._served(claim, self._settle(claim, task))
        except LeaseLost as lost:
            return lost

    def fail(self, claim: Claim, error: str | None = None) -> Task:
        """Settle a claim as FAILURE, a dead letter, whatever attempts are left.

        Raises:
            LeaseLost: If the claim no longer holds its task.
        """
        failed = self._lifecycle.failed(_held(claim), self.now(), checked_error(error))
        return self._served(claim, self._settle(claim, failed))

    def _served(self, claim: Claim, done: Task) -> Task:
        """Count a task that was done, well or not, and how long it took."""
        self._meter.served(done.updated, in_time=done.updated <= done.deadline)
        self._reserve.observe(max(0.0, done.updated - claim.task.updated))
        return done

    def retry(self, claim: Claim, error: str | None = None, delay_seconds: float | None = None) -> Task:
        """Give a task back to be tried again later, or make it a dead letter after its last attempt.

        Args:
            claim: What `claim` returned.
            error: Why it failed.
            delay_seconds: Not claimable before so many seconds; None: exponential backoff, full jitter.

        Raises:
            LeaseLost: If the claim no longer holds its task.
        """
        if delay_seconds is not None:
            checked_seconds("delay_seconds", delay_seconds)
        error = checked_error(error)
        changed = self._lifecycle.retried(_held(claim), self.now(), error, delay_seconds, self.uniform())
        return self._settle(claim, changed)

    def is_last_attempt(self, claim: Claim) -> bool:
        """Return whether a task that fails now is a dead letter in any case."""
        return claim.task.attempts >= self._config.max_attempts

    def release(self, claim: Claim) -> Task:
        """Give a task back untried: claimable at once, the attempt not counted.

        Raises:
            LeaseLost: If the claim no longer holds its task.
        """
        return self._settle(claim, self._lifecycle.released(_held(claim), self.now()))

    def extend(self, claim: Claim, lease_seconds: float) -> Claim:
        """Hold a task for `lease_seconds` from now.

        Returns:
            The claim with its new end; the token stays.

        Raises:
            LeaseLost: If the claim no longer holds its task.
        """
        checked_seconds("lease_seconds", lease_seconds, above_zero=True)
        lease_until = round(self.now() + lease_seconds, 6)
        task = self._settle(claim, self._lifecycle.extended(_held(claim), self.now(), lease_until))
        return Claim(task, claim.token, lease_until)

    def _settle(self, claim: Claim, changed: Task) -> Task:
        try:
            return self._store.replace(changed, Guard(TaskStatus.TAKEN, lease_token=claim.token))
        except ConflictError as conflict:
            now = conflict.current
            why = f"it is {now.status_at(self.now())} now" if now is not None else "it was deleted"
            raise LeaseLost(claim.task.task_id, why) from None

    # --- upkeep

    def recover(self) -> int:
        """Bring back tasks whose lease ran out, and bring in delayed ones whose time has come.

        A task whose last attempt ran out becomes a dead letter.

        Returns:
            How many tasks were moved.
        """
        moved = 0
        while due := self._store.due(self.name, self.now()):
            before = moved
            for task in due:
                moved += self._recover(task)
            if moved == before:
                break  # others move the same tasks, or the index lags: the next call sees what is left
        return moved

    def _recover(self, task: Task) -> int:
        verb = self._lifecycle.recovered if task.status is TaskStatus.TAKEN else self._lifecycle.promoted
        try:
            self._store.replace(verb(task, self.now()), Guard(task.status, request_token=task.request_token))
        except ConflictError:
            return 0
        return 1

    def cancel(self, task_id: str) -> Task:
        """Cancel a waiting task.

        Raises:
            TaskNotFound: If there is no such task.
            IllegalTransition: If it does not wait.
        """
        return self._change(task_id, self._lifecycle.cancelled)

    def touch(self, task_id: str) -> Task:
        """Make a waiting task new: created now, with the max age it was put with.

        Raises:
            TaskNotFound: If there is no such task.
            IllegalTransition: If it does not wait, or is stale.
        """
        return self._change(task_id, lambda task, now: self._lifecycle.touched(task, now, self._stamp()))

    def reprioritize(self, task_id: str, priority: int) -> Task:
        """Change the priority of a waiting task; its place in time stays.

        Raises:
            ValueError: If the priority is not 0 to 9.
            TaskNotFound: If there is no such task.
            IllegalTransition: If it does not wait, or is stale.
        """
        checked_priority(priority)
        return self._change(task_id, lambda task, now: self._lifecycle.reprioritized(task, now, priority))

    def redrive(self, limit: int | None = None, task_id: str | None = None) -> int:
        """Bring dead letters back, with no attempts counted and their place in time kept.

        Dead letters past their deadline stay where they are: nobody would claim them.

        Args:
            limit: How many at the most; None for all.
            task_id: Only this one.

        Returns:
            How many were brought back.

        Raises:
            TaskNotFound: If `task_id` names no task.
            IllegalTransition: If the task it names is no dead letter, or is past its deadline.
        """
        if limit is not None:
            checked_count("limit", limit)
        if task_id is not None:
            self._change(task_id, self._lifecycle.redriven)
            return 1
        brought_back = 0
        for task in self._store.scan(self.name):
            if brought_back == limit:
                break
            if task.status is TaskStatus.FAILURE and task.deadline > self.now():
                brought_back += self._redrive_if_still_dead(task.task_id)
        return brought_back

    def _redrive_if_still_dead(self, task_id: str) -> int:
        try:
            self._change(task_id, self._lifecycle.redriven)
        except (TaskNotFound, IllegalTransition):
            return 0  # somebody else changed it first: not ours to count
        return 1

    def discard(self, limit: int | None = None, task_id: str | None = None) -> int:
        """Delete dead letters, and nothing else.

        Args:
            limit: How many at the most; None for all.
            task_id: Only this one.

        Returns:
            How many were deleted.

        Raises:
            TaskNotFound: If `task_id` names no task.
            IllegalTransition: If the task it names is no dead letter.
        """
        if limit is not None:
            checked_count("limit", limit)
        if task_id is not None:
            task = self._stored(task_id)
            if not self._discard(task):
                state = (self.get(task_id) or task).status
                raise IllegalTransition(task_id, "discard", state, TaskStatus.FAILURE)
            return 1
        dead = (task for task in self._store.scan(self.name) if task.status is TaskStatus.FAILURE)
        discarded = 0
        for task in dead:
            if discarded == limit:
                break
            discarded += self._discard(task)
        return discarded

    def _discard(self, task: Task) -> bool:
        """Delete a dead letter; return False if it is none, or is none any more."""
        try:
            self._store.delete(task, Guard(TaskStatus.FAILURE, request_token=task.request_token))
        except ConflictError:
            return False
        return True

    def _change(self, task_id: str, verb: Callable[[Task, float], Task]) -> Task:
        """Read a task, compute its next version, and write it unless it changed in between."""
        for _ in range(MAX_READ_WRITE_TRIES):
            task = self._stored(task_id)
            guard = Guard(task.status, request_token=task.request_token)
            try:
                return self._store.replace(verb(task, self.now()), guard)
            except ConflictError:
                continue
        raise LostRace(task_id, MAX_READ_WRITE_TRIES)

    # --- looking

    def get(self, task_id: str) -> Task | None:
        """Return a task as it is now, None if the queue has none of this id."""
        try:
            return self._seen(self._stored(task_id))
        except TaskNotFound:
            return None

    def contains(self, task_id: str) -> bool:
        """Return whether a task of this id is waiting or in work."""
        task = self.get(task_id)
        return task is not None and task.status in (TaskStatus.PENDING, TaskStatus.TAKEN)

    def _stored(self, task_id: str) -> Task:
        task = self._store.get(checked_id(task_id))
        if task is None or task.queue != self.name:
            raise TaskNotFound(task_id, self.name)
        return task

    def _seen(self, task: Task) -> Task:
        return replace(task, status=task.status_at(self.now()))

    def list(
        self, status: TaskStatus | str | None = None, limit: int = 100, cursor: str | None = None
    ) -> Page:
        """Return part of the queue's tasks, in an order of the store's own.

        Args:
            status: Only tasks in this state.
            limit: How many at the most.
            cursor: `cursor` of the page before; None to start.
        """
        wanted = checked_status(status)
        checked_count("limit", limit)
        if cursor is not None:
            checked_id(cursor, "cursor")
        found: list[Task] = []
        for task in map(self._seen, self._store.scan(self.name, start_after=cursor)):
            if wanted in (None, task.status):
                if len(found) == limit:
                    return Page(tuple(found), found[-1].task_id)
                found.append(task)
        return Page(tuple(found), None)

    def stats(self, *, approximate: bool = False) -> Stats:
        """Count the tasks by state.

        Args:
            approximate: Read at most a page per shard whatever the backlog; `Stats.bounded` says what
                each count is then. Otherwise the counts are exact, and every task is read.
        """
        now = self.now()
        if approximate:
            return self._store.approximate_stats(self.name, now, now - self._config.max_age_seconds)
        self._meter.flush(now)
        stats = tally(self._store.scan(self.name), now, self._reserve.spans())
        refused = self._store.read_counts(self.name, REFUSED)
        return replace(stats, shed_by_reason=dict(Counter(stats.shed_by_reason) + Counter(refused)))

    def pressure(self) -> Pressure:
        """Return how hard the queue is pressed: offered and served rate, and what that means for a task.

        Raises:
            StoreError: If the store did not answer.
        """
        return self._gauge.pressure(self.now(), self.uniform())

    def flush(self) -> None:
        """Write what was counted and not written yet; before a process is frozen or ends."""
        self._meter.flush(self.now())

    # --- the queue as a whole

    def purge(self, confirm: str) -> int:
        """Delete every task of the queue, those in work included.

        Args:
            confirm: The queue's name.

        Returns:
            How many were deleted.
        """
        if confirm != self.name:
            msg = f"confirm: must be the queue's name {self.name!r}, got {confirm!r}; nothing was deleted"
            raise ValueError(msg)
        return self._store.purge(self.name)

    def pause(self) -> None:
        """Suspend claims, here at once and elsewhere within seconds; puts and settling go on."""
        self._store.set_paused(self.name, paused=True)

    def resume(self) -> None:
        """Allow claims again."""
        self._store.set_paused(self.name, paused=False)

    @property
    def paused(self) -> bool:
        """Whether claims are suspended."""
        return self._store.paused(self.name)

    def close(self) -> None:
        """Give back what is held for this process; claims that are still held stay safe."""
        self.flush()
        self._store.close()


def _receipts(outcomes: list[Receipt | FreshqError]) -> list[Receipt]:
    """Return the receipts of a put.

    Raises:
        FreshqError: If a task has none: its own error where it is the only task, or where nothing at
            all was written since there is no table; else PutIncomplete.
    """
    errors = [outcome for outcome in outcomes if isinstance(outcome, FreshqError)]
    if errors:
        nothing_written = len(outcomes) == 1 or isinstance(errors[0], TableMissing)
        raise errors[0] if nothing_written else PutIncomplete(list(outcomes))
    return [outcome for outcome in outcomes if isinstance(outcome, Receipt)]


def _held(claim: object) -> Task:
    """Return the task as its holder knows it."""
    if not isinstance(claim, Claim):
        msg = f"claim: must be what claim() returned, got {type(claim).__name__}"
        raise ValueError(msg)  # noqa: TRY004 - a wrong argument is a ValueError throughout
    return replace(claim.task, status=TaskStatus.TAKEN)
