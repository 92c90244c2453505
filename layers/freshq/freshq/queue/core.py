"""The shared state of the verbs of one queue: its options, its store, its policies."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias, cast, get_args

from freshq.errors import LeaseLost, LostRace, NotFound, Overloaded, RefusedError, quoted
from freshq.model.checks import checked_id
from freshq.model.codec import JSON, WORKER_SEPARATOR, encoded
from freshq.model.fields import plain_token
from freshq.model.lifecycle import SERVED, Lifecycle, Stamps, held_task, new_token
from freshq.model.new_task import parse_new_task
from freshq.model.storable_options import QueueRules, StoredOptions
from freshq.model.task import LIVE, TaskStatus, handle_of
from freshq.model.telemetry import SettleSpan, observed, observer_of, telemetries
from freshq.policy.retry import QUEUES, is_last_attempt, until_committed
from freshq.policy.value import PLANS
from freshq.queue.limits import GroupLimits
from freshq.queue.lines import LineBook, OpenLines
from freshq.queue.shared.admission import AdmissionControl, BacklogBound, LineCodel
from freshq.queue.shared.later import Later
from freshq.queue.shared.measures import FlowMeter, SharedReserve
from freshq.queue.shared.options import SharedOptions
from freshq.queue.upkeep import Upkeep
from freshq.stores.base import Conflict, Guard, OnConflict
from freshq.stores.lines import ClaimRequest, LevelSchedulers, LineOrders, NewPlan, ServiceMeter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from freshq.model.answers import Claim
    from freshq.model.lifecycle import Settlement
    from freshq.model.new_task import NewTask, Parent
    from freshq.model.options import QueueConfig
    from freshq.model.task import Progress, Task
    from freshq.model.telemetry import Telemetry
    from freshq.policy.order import Order
    from freshq.policy.retry import AttemptLimit
    from freshq.policy.shedding import ShedReason
    from freshq.stores.base import CallersConnection, PutResult, Store, Transactions

logger = logging.getLogger(__name__)
# Puts tasks into the store; returns for each, in order: whether it was new, the outcome, or the error.
Write: TypeAlias = "Callable[[Sequence[Task]], Sequence[bool | PutResult]]"
# Attempts of a read-change-commit before LostRace is raised.
MAX_READ_WRITE_TRIES: Final = 10


def transactions_of(store: Store, what: str) -> Transactions:
    """Return the transactional verbs of a store.

    Args:
        store: The store.
        what: The argument or verb that needs transactions.

    Raises:
        ValueError: If the store has no transactions.
    """
    if store.transactions is None:
        msg = f"{what}: needs a queue in a SQL database (Queue.sql), this one is in {type(store).__name__}"
        raise ValueError(msg)
    return store.transactions


@dataclass(frozen=True, slots=True)
class Rules:
    """The options that a queue follows, and the objects that apply them; replaced whole when they change.

    Attributes:
        config: The options.
        stale_after_seconds: Age at which a task is stale.
        lifecycle: Returns the next version of a task under each verb.
        orders: Decides which end of each line is served.
        reserve: Time that must be left before the deadline for a task to be claimed.
        codel: Decides which claimed tasks to shed because they waited too long; None to shed none.
        meter: Counts the flow, and measures the pressure on the queue.
        admission: Rejects puts under load; None to reject none.
        backlog: Bounds the number of waiting tasks; None for no bound.
    """

    config: QueueConfig
    stale_after_seconds: float
    lifecycle: Lifecycle
    orders: LineOrders
    reserve: SharedReserve
    codel: LineCodel | None
    meter: FlowMeter
    admission: AdmissionControl | None
    backlog: BacklogBound | None


class _Unread:
    """Stands in for the rules of a queue: the first use of them reads the options."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def __getattr__(self, attribute: str) -> Any:
        rules: object = self._core.rules
        if rules is self:
            self._core.options.follow()
        return getattr(self._core.rules, attribute)


class _Closed:
    """Stands in for the parts of a closed queue: any use raises RefusedError."""

    def __init__(self, queue: str) -> None:
        self._queue = queue

    def __repr__(self) -> str:
        return "closed"

    def __call__(self) -> NoReturn:
        self._refuse()

    def __getattr__(self, _attribute: str) -> NoReturn:
        self._refuse()

    def _refuse(self) -> NoReturn:
        msg = f"queue {self._queue!r}: closed; open it again"
        raise RefusedError(msg)


class Core:
    """One queue in one process. Thread-safe.

    Stand-ins take the place of rules that were not read yet, and of the parts of a closed queue. So the verbs
    of an open queue need no checks.

    Attributes:
        store: Home of the tasks.
        name: Its name.
        options: The options that the process named, and the stored ones.
        known_config: The options that are known without a call to the store.
        rules: The options that it follows, and the objects that apply them.
        schedulers: Decide which line of each level is served next.
        service: Learns what serves the tasks, for the order by value.
        book: The lines that this process knows.
        open_lines: The lines of groups that have room, if there are limits and many lines.
        limits: Keeps the limits of groups and kinds.
        telemetries: Receive every verb.
        observer: All of them, but their own errors are only logged. None if there are none.
        settle: Stores how a claim ends, and returns the settled task; raises LeaseLost if the claim no longer
            holds it.
        codec: Turns payloads and results into JSON values.
        kinds: The kinds of messages that it accepts; None: any.
        encode: Encodes a payload or a result, given with its name for errors, as the JSON value to store;
            None if the check of the value does so.
        parse: Checks the arguments of a put, given with a prefix for field names in errors.
        stamps: Gives out creation times.
        upkeep: Brings in due tasks, and tidies up.
        later: Makes the writes that verbs must defer while their caller's transaction is open.
        warned_of_slow_claim_at: When a claim last warned that it was too slow for its leases.
    """

    def __init__(self, store: Store, config: QueueConfig) -> None:
        self.store = store
        self.name = config.name
        self._own_telemetry = config.telemetry
        self.telemetries: tuple[Telemetry, ...] = ()
        self.observer: Telemetry | None = None
        self.settle: Callable[[Settlement], Task] = self._settle
        observed(self)
        self.codec = config.codec
        self.encode = None if config.codec is JSON else partial(encoded, config.codec)
        self.kinds = config.kinds
        takes_any = self.encode is None and config.kinds is None
        self.parse: Callable[..., NewTask] = parse_new_task if takes_any else self._parsed
        self.schedulers = LevelSchedulers()
        self.service = ServiceMeter()
        self.book = LineBook(self.schedulers)
        self.open_lines = OpenLines(self.book)
        self.later = Later(self.name, self.catch_up)
        self.warned_of_slow_claim_at = -inf
        given = "clock" in config.model_fields_set
        self._clock = config.clock if given else store.clock
        self.stamps = Stamps(self._clock)
        self.limits = GroupLimits(
            store, self.name, lambda: self.rules.config.groups, self.now, lambda: claim_request(self, 1)
        )
        self.upkeep = Upkeep(store, self.name, lambda: self.rules.lifecycle, self.now, self._note_upkeep)
        self.options = SharedOptions(
            store, config, self._defaults(), self._storable(), self._follow, self.now
        )
        self.known_config = self.options.named
        self.rules = cast("Rules", _Unread(self))

    def observe(self) -> None:
        """Report verbs to the queue's own telemetry, and to that of all queues of this process."""
        self.telemetries = telemetries(self._own_telemetry)
        self.observer = observer = observer_of(self.telemetries)
        self.settle = self._settle if observer is None else partial(self._settle_observed, observer)

    def _note_shed(self, reason: ShedReason, tasks: int) -> None:
        if self.observer is not None:
            self.observer.shed(self.name, reason, tasks)

    def _defaults(self) -> Mapping[str, Any]:
        """Return the defaults of this queue that differ from other queues' defaults."""
        return {}

    def _storable(self) -> Iterable[str]:
        """Return the names of the options that can be stored with this queue."""
        return (QueueRules if self.store.shards is None else StoredOptions).model_fields

    def _follow(self, config: QueueConfig) -> None:
        """Follow these options from now on.

        Raises:
            ValueError: If this queue cannot have these options; nothing changed.
        """
        rules, lifecycle = config.rules(), Lifecycle(config)
        self.flush()
        meter = FlowMeter(self.store, self.name, rules, self.later, self._note_shed)
        admission = backlog = None
        if rules.admission is not None:
            admission = AdmissionControl(meter, rules.admission, rules.deadline_seconds, self.uniform)
        if rules.backlog is not None:
            limits, seconds_of = (rules.backlog, rules.deadline_seconds), self.schedulers.seconds_of
            backlog = BacklogBound(self.store, self.name, *limits, lifecycle, meter, seconds_of)
        self.schedulers.follow(rules.groups)
        self.known_config = config
        self.rules = Rules(
            config=config,
            stale_after_seconds=config.stale_after_seconds,
            lifecycle=lifecycle,
            orders=LineOrders(rules.order, rules.deadline_seconds),
            reserve=SharedReserve(self.store, self.name, rules),
            codel=None if rules.codel is None else LineCodel(partial(rules.codel.for_line, rules.order)),
            meter=meter,
            admission=admission,
            backlog=backlog,
        )

    @property
    def lifecycle(self) -> Lifecycle:
        """Returns the next version of a task under each verb, for the store's transactions."""
        return self.rules.lifecycle

    def begin(self) -> None:
        """Begin a verb: follow changed options, if the last check is several seconds old.

        Raises:
            ValueError: At the first verb: if the process named options that differ from the stored ones.
            StoreError: At the first verb: if the store did not answer.
        """
        if time.monotonic() >= self.options.check_at:
            self._follow_options()

    def _follow_options(self) -> None:
        if self.later.is_beside and isinstance(self.rules, Rules):
            self.later.leave()
            self.options.check()
        else:
            self.options.follow()

    def begin_now(self) -> float:
        """As `begin`; return the time as `now` does."""
        if time.monotonic() >= self.options.check_at:
            self._follow_options()
        return round(self._clock() * 1e6) / 1e6

    def begin_write(self) -> float:
        """Begin a verb that puts or claims: the options of a new queue are stored first. Return the time.

        Raises:
            ValueError: As for `begin`.
            StoreError: Also if the store did not store them.
        """
        if time.monotonic() >= self.options.check_at:
            self.options.follow()
        if not self.options.is_settled:
            self.options.settle()
        return round(self._clock() * 1e6) / 1e6

    def begin_beside(self, connection: CallersConnection) -> float:
        """Begin a put in this transaction, in which this thread is: it also has the options of a new queue.

        Raises:
            ValueError: As for `begin`.
            StoreError: As for `begin`.
        """
        now = self.begin_now()
        if not self.options.is_settled:
            self.options.note(connection, now)
        return now

    @contextmanager
    def inside(self, connection: CallersConnection) -> Iterator[None]:
        """In this block, let this thread touch only memory and the transaction of this connection.

        Other writes are deferred until the caller's transaction ends.

        Raises:
            ValueError: If the store cannot use the connection.
        """
        with self.later.beside(), transactions_of(self.store, "connection").inside(connection):
            yield

    def _note_upkeep(self, dead: Sequence[Task], now: float) -> None:
        """Count the stale tasks that upkeep found, and report tasks whose last lease had expired."""
        self.rules.meter.note_expired(now)
        if dead and self.observer is not None:
            self.observer.exhausted(dead)

    def catch_up(self) -> None:
        """Make the writes that verbs deferred during their callers' transactions.

        Raises:
            StoreError: If the store did not answer, or a transaction holds a lock. Nothing is lost.
        """
        with self.store.aside():
            self.rules.meter.write(self.now())
        self.begin()

    @property
    def time_order(self) -> Order | None:
        """The order of every line by creation time; None if lines have no such order, or differ."""
        order = self.rules.config.order
        return None if order.switches or order.plans else order

    def now(self) -> float:
        """Return the time of the queue's clock, in seconds since the epoch, to the microsecond.

        Raises:
            StoreError: If the clock is the store's, was never read, and the store does not answer.
        """
        return round(self._clock() * 1e6) / 1e6  # a fifth of the time of `round(..., 6)`

    def uniform(self) -> float:
        """Return a random number from [0, 1), for jitter."""
        return self.known_config.rng.random()

    def flush(self) -> None:
        """Write the flow counts in memory to the store."""
        # Without counts, do not read the clock: a database's clock would open a connection.
        if isinstance(self.rules, Rules) and not self.rules.meter.is_unused:
            self.rules.meter.flush(self.now())

    def release(self) -> None:
        """Write the flow counts, and close the connections of this process; the next verb opens new ones."""
        try:
            self.later.stop()
            self.flush()
        finally:
            self.store.close()

    def close(self) -> None:
        """Release the connections permanently: any later use, except another `close`, raises RefusedError."""
        if isinstance(self.store, _Closed):
            return
        try:
            self.release()
        finally:
            closed: Any = _Closed(self.name)
            self.store = self.options = self.rules = self._clock = closed

    def is_last_attempt(self, claim: Claim, max_attempts: AttemptLimit = QUEUES) -> bool:
        """Return whether a retry would make the task a dead letter.

        Args:
            claim: The claim of the attempt.
            max_attempts: The limit of its handler, which replaces the queue's.
        """
        limit = self.rules.config.max_attempts if max_attempts == QUEUES else max_attempts
        return is_last_attempt(claim.task.attempts, limit)

    def bring_in_due(self) -> int:
        """Do a small portion of upkeep, as a claim does; return how many tasks it moved."""
        return self.upkeep.portion_in_claim().moved

    def stamp(self, now: float) -> float:
        """Return a creation time that is unique for this producer, given the current time."""
        return self.stamps.take(now, 1)[0]

    def _parsed(self, task: Mapping[str, Any] | NewTask, where: str = "") -> NewTask:
        """Encode and check the arguments of a put; a `NewTask` from `Admin.check` is encoded already."""
        if self.encode is not None and isinstance(task, Mapping) and "payload" in task:
            task = {**task, "payload": self.encode(task["payload"], f"{where}payload")}
        return self.checked(parse_new_task(task, where), where)

    def checked(self, new: NewTask, where: str = "") -> NewTask:
        """Check that this queue accepts the arguments of a put; return them.

        Args:
            new: The arguments.
            where: Prefix for field names in errors.

        Raises:
            ValueError: If it does not.
        """
        if self.kinds is not None:
            try:
                self.kinds.check(new.kind, new.payload)
            except ValueError as error:
                msg = f"{where}{error}"
                raise ValueError(msg) from None
        return new

    def checked_write(self, on_conflict: OnConflict | None, connection: CallersConnection | None) -> Write:
        """Return the function that puts tasks into the store.

        Args:
            on_conflict: What to do with a live task of the same id; None: a put with a known id is a
                duplicate.
            connection: The caller's transaction, in which this thread is; None: commit each call.

        Raises:
            ValueError: If an argument is wrong, or not supported by the store.
        """
        if on_conflict not in (None, *get_args(OnConflict)):
            msg = f"on_conflict: must be 'ignore', 'update', 'after' or None, got {quoted(on_conflict)}"
            raise ValueError(msg)
        if connection is not None:
            return transactions_of(self.store, "connection").put(on_conflict)
        return self.insert if on_conflict is None else partial(self._put_over, on_conflict=on_conflict)

    def insert(self, tasks: Sequence[Task]) -> Sequence[bool | PutResult]:
        """Put tasks whose ids are free, and wake their waiters."""
        answers = self.store.insert(tasks)
        self.store.notifier.put(self.name)
        return answers

    def _put_over(self, tasks: Sequence[Task], on_conflict: OnConflict) -> Sequence[bool | PutResult]:
        outcomes = self.store.put_over(tasks, on_conflict)
        self.store.notifier.put(self.name)
        return outcomes

    def stored(self, task_id: str) -> Task:
        """Return a task with its stored status.

        Raises:
            NotFound: If the queue has no task with this id.
        """
        task = self.store.get(checked_id(task_id))
        if task is None or task.queue != self.name:
            raise NotFound.of_task(task_id, self.name)
        return task

    def found(self, task_id: str) -> Task:
        """Return a task with its current status.

        Raises:
            NotFound: If the queue has no task with this id.
        """
        return self.with_current_status(self.stored(task_id))

    def get(self, task_id: str) -> Task | None:
        """Return a task with its current status; None if the queue has no task with this id."""
        try:
            return self.found(task_id)
        except NotFound:
            return None

    def with_current_status(self, task: Task) -> Task:
        """Return a stored task from this queue's point of view, with its current status."""
        task = self.with_own_deadline(task)
        return replace(task, status=task.status_at(self.now()))

    def with_own_deadline(self, task: Task) -> Task:
        """Return a waiting task with a deadline no later than this queue's max age allows.

        Its producer may have a longer max age. Claims of this queue go by the age, and never take the task
        after that.
        """
        deadline = self.rules.lifecycle.live_until(task)
        if task.status is not TaskStatus.PENDING or deadline == task.stale_at:
            return task
        return replace(task, deadline=deadline)

    def change(
        self,
        task_id: str,
        verb: Callable[[Task, float], Task],
        write: Callable[[Task, Guard], Task] | None = None,
    ) -> Task:
        """Read a task, compute its next version, and write it unless the task changed in between.

        Args:
            task_id: Its id.
            verb: Returns the next version of a task at a time.
            write: Writes it under a guard; None for the store's `replace`.

        Raises:
            NotFound: If the queue has no task with this id.
            LostRace: If it changed in between at each try.
        """

        def attempt() -> Task:
            task = self.stored(task_id)
            version = verb(task, self.now())
            written = store(version, Guard.unchanged(task))
            return self._changed_successor(task, version, verb, store) or written

        store = write or self.store.replace
        try:
            changed = until_committed(attempt, Conflict, MAX_READ_WRITE_TRIES)
        except Conflict:
            raise LostRace.of_task(task_id, MAX_READ_WRITE_TRIES) from None
        self.store.notifier.changed(self.name, [changed])
        return changed

    def change_each(
        self,
        task_ids: Sequence[str],
        verb: Callable[[Task, float], Task],
        write: Callable[[Task, Guard], Task],
    ) -> int:
        """Change tasks as `change` does, unless the verb does not apply to one of them; return how many.

        Raises:
            NotFound: If the queue has no task with one of the ids; nothing was changed.
            LostRace: As for `change`.
        """
        now = self.now()
        changes = [(task, verb(task, now)) for task in map(self.stored, task_ids)]
        for task, version in changes:
            try:
                write(version, Guard.unchanged(task))
            except Conflict:
                self.change(task.task_id, verb, write)
            else:
                self._changed_successor(task, version, verb, write)
        self.store.notifier.changed(self.name, [version for _task, version in changes])
        return len(changes)

    def _changed_successor(
        self,
        task: Task,
        version: Task,
        verb: Callable[[Task, float], Task],
        write: Callable[[Task, Guard], Task],
    ) -> Task | None:
        """Apply a verb that ended a running task to the one that took its place, unless that is stale.

        Args:
            task: The task that was read.
            version: Its version that was written; the same task, if it was deleted with its successor.
            verb: As in `change`.
            write: As in `change`.

        Returns:
            The task that took its place; None if nothing waited behind the task, or it was deleted.
        """
        if task.successor_record is None or version is task:
            return None
        entered = self.with_current_status(self.stored(task.task_id))
        return self.change(task.task_id, verb, write) if entered.status in LIVE else entered

    def move(self, task: Task, guard: Guard) -> Task:
        """Write a task that is moved in time.

        Raises:
            Conflict: If the guard does not hold.
        """
        return self.store.replace(task, guard)

    def move_many(self, changes: Sequence[tuple[Task, Guard]]) -> list[Task | None]:
        """Write tasks that are moved in time; return the stored tasks, None for each that was not written."""
        return self.store.replace_many(changes)

    def _settle(self, settlement: Settlement) -> Task:
        claim, now = settlement.claim, self.begin_now()
        changed = settlement.next_version(self.rules.lifecycle, now, self.uniform)
        try:
            settled = self.store.replace(changed, Guard(TaskStatus.TAKEN, lease_token=claim.token))
        except Conflict as conflict:
            raise self.lease_lost(claim, conflict.current) from None
        self.store.notifier.changed(self.name, [settled])
        ended = self.ended(claim, settled, is_served=settlement.verb in SERVED)
        if self.limits.units_due:
            self.limits.correct_units()
        return ended

    def _settle_observed(self, observer: Telemetry, settlement: Settlement) -> Task:
        span = SettleSpan(self.name, [(settlement.claim.task, settlement.verb)])
        with observer.settle(span):
            task = self._settle(settlement)
            span.answers = [task]
        return task

    def extend(self, claim: Claim, now: float, lease_until: float, progress: Progress | None = None) -> Task:
        """Extend the lease of a claim, unless it already ends later; store its progress.

        The write is conditional on the version that was read: another thread may have extended the lease
        for longer.

        Raises:
            LeaseLost: If the claim no longer holds the task.
            LostRace: If other threads extended the lease at each try.
        """
        held = held_task(claim)
        for _ in range(MAX_READ_WRITE_TRIES):
            guard = Guard(TaskStatus.TAKEN, lease_token=claim.token, request_token=held.request_token)
            try:
                extended = self.store.replace(
                    self.rules.lifecycle.extended(held, now, lease_until, progress), guard
                )
            except Conflict as conflict:
                current = conflict.current
                held_by = None if current is None else plain_token(current.lease_token)
                if current is None or held_by != claim.token:
                    raise self.lease_lost(claim, current) from None
                held = current
            else:
                self.limits.extended([extended], now)
                if self.limits.lapsed(held):
                    raise self.lease_lost(claim, self._released(extended, claim.token))
                return extended
        raise LostRace.of_task(claim.task.task_id, MAX_READ_WRITE_TRIES)

    def lease_lost(self, claim: Claim, current: Task | None) -> LeaseLost:
        """Return the error of a claim that no longer holds its task, which is now `current`."""
        if current is None:
            return LeaseLost.of_task(claim.task.task_id, "it was deleted")
        status = current.status_at(self.now())
        return LeaseLost.of_task(claim.task.task_id, f"it is {status} now", status)

    def _released(self, held: Task, token: str) -> Task | None:
        try:
            released = self.rules.lifecycle.released(held, self.now())
            released = self.store.replace(released, Guard.held(token))
        except Conflict as conflict:
            return conflict.current
        finally:
            self.limits.lost(held)
        self.store.notifier.changed(self.name, [released])
        return released

    def ended(self, claim: Claim, settled: Task, *, is_served: bool) -> Task:
        """Count the end of an attempt, and the time that it took; return the settled task.

        Args:
            claim: The claim.
            settled: Its task in its stored version.
            is_served: Whether the task was done.
        """
        task = claim.task  # of a claim that was extended, `updated` is when it was
        took_seconds = max(0.0, settled.updated - (task.last_claim_at or task.updated))
        handle = handle_of(task)
        own_seconds = took_seconds if handle is None else took_seconds / handle.shared_by
        groups, units = self.rules.config.groups, 0.0
        if groups.has_limits or groups.share == "units":
            units = self.limits.ended(task, settled)
        self.schedulers.settled(task, own_seconds, units)
        if self.rules.config.order.plans:
            self.service.ended(task, own_seconds)
        in_time = None
        if settled.status is TaskStatus.PENDING:
            self.upkeep.delayed()
        if is_served:
            in_time = settled.deadline is None or settled.updated <= settled.deadline
        self.rules.meter.ended(settled.updated, settled, own_seconds, in_time=in_time)
        if is_served:  # each task of a batch waits for the whole call
            self.rules.reserve.observe(took_seconds, task.kind, settled.updated)
        return settled

    def late_child(self, parent: Parent, task: Task, now: float) -> Overloaded | None:
        """Return why a new task cannot be done by its parent's deadline; None if it can, or there is none."""
        if parent.deadline is None:
            return None
        left_seconds = task.stale_at - max(now, task.not_before or now)
        needed_seconds = self.rules.reserve.needed_seconds(task.kind, now)
        if left_seconds > needed_seconds:
            return None
        return Overloaded.of_late_child(task.task_id, left_seconds, needed_seconds)


def claim_request(
    core: Core, limit: int, lease_seconds: float | None = None, longest_wait_seconds: float = inf
) -> ClaimRequest:
    """Return the request of a claim, without the limits of groups.

    Args:
        core: The queue.
        limit: Maximum number of claims.
        lease_seconds: Length of the leases; None for the queue's default.
        longest_wait_seconds: Pass over tasks that waited longer.
    """
    rules, config = core.rules, core.rules.config
    fixed_seconds, plan = rules.reserve.fixed_seconds, PLANS.get(config.order)
    return ClaimRequest(
        queue=core.name,
        orders=rules.orders,
        schedulers=core.schedulers,
        groups=config.groups,
        limit=limit,
        token=config.worker_name + WORKER_SEPARATOR + new_token(),
        clock=core.now,
        lease_seconds=config.lease_seconds if lease_seconds is None else lease_seconds,
        max_age_seconds=rules.stale_after_seconds,
        reserve_seconds=rules.reserve.seconds(core.now) if fixed_seconds is None else fixed_seconds,
        retention_seconds=config.retention_seconds,
        longest_wait_seconds=longest_wait_seconds,
        plan=None if plan is None else NewPlan(plan, core.service.slots(limit), core.service),
    )


class Verbs:
    """Base class of the verbs of a queue."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.name: str = core.name

    def __repr__(self) -> str:
        """Return the class, the name of the queue and its tables, without secrets."""
        return f"{type(self).__name__}({self.name!r}, {self._core.store})"


def core_of(queue: Verbs) -> Core:
    """Return the state that the verbs of a queue share; applications have no use for it."""
    return queue._core  # noqa: SLF001 - freshq's one way past the public verbs
