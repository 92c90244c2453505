"""What the verbs of one queue share: its options, its store, and what this process knows of it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from freshq.errors import LeaseLost, LostRace, TaskNotFound
from freshq.model.checks import checked_id
from freshq.model.lifecycle import Lifecycle
from freshq.model.stamps import Stamps
from freshq.model.task import TaskStatus
from freshq.queue.shared.admission import AdmissionControl, PressureGauge
from freshq.queue.shared.backlog import BacklogBound
from freshq.queue.shared.codel import LineCodel
from freshq.queue.shared.flow import FlowMeter
from freshq.queue.shared.reserve import SharedReserve
from freshq.stores.base import ConflictError, Guard
from freshq.stores.lines import LineOrders, LineTurns
from freshq.stores.transactional import putter

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from freshq.model.answers import Claim
    from freshq.model.new_task import NewTask
    from freshq.model.options import QueueConfig
    from freshq.model.task import Task
    from freshq.stores.base import Store
    from freshq.stores.conflicts import OnConflict
    from freshq.stores.transactional import Putter

# A verb that reads before it writes starts again so often when the task changes in between.
MAX_READ_WRITE_TRIES: Final = 10


class Core:
    """One queue, as a process knows it. Thread-safe.

    Attributes:
        store: Home of the tasks.
        config: The queue's options.
        name: Its name.
        lifecycle: What each verb makes of a task.
        orders: Which end of each line is served.
        turns: Which line of a level is served next.
        reserve: How much time a task must have left to be claimed.
        codel: Which of the claimed tasks waited too long, if that is a rule of the queue.
        meter: Counts what is offered, served, refused.
        gauge: Tells from the counts how hard the queue is pressed.
        admission: Rejects puts by that.
        backlog: Bounds what waits.
    """

    def __init__(self, store: Store, config: QueueConfig) -> None:
        """Know nothing yet."""
        self.store = store
        self.config = config
        self.name = config.name
        self.lifecycle = Lifecycle(config)
        rules = config.rules()
        self.orders = LineOrders(rules.order, rules.deadline_seconds)
        self.turns = LineTurns()
        self.reserve = SharedReserve(store, self.name, rules)
        self.codel = LineCodel(rules)
        self.meter = FlowMeter(store, self.name, rules.deadline_seconds, self.now())
        self.gauge = PressureGauge(store, self.name, rules, self.meter)
        self.admission = AdmissionControl(self.gauge, rules, self.uniform)
        self.backlog = BacklogBound(store, self.name, rules, self.lifecycle, self.meter)
        self._stamps = Stamps(config.clock)

    def now(self) -> float:
        """Return the time of the queue's clock, in seconds since the epoch, to the microsecond."""
        return round(self.config.clock(), 6)

    def uniform(self) -> float:
        """Return a random number from [0, 1), for jitter."""
        return self.config.rng.random()

    def stamp(self) -> float:
        """Return a creation time that no other task of this producer has."""
        return self._stamps.next()

    def created(self, new: NewTask, where: str = "") -> Task:
        """Return the task that a put makes; `where` is a prefix for the name of a field in an error."""
        return self.lifecycle.created(new, self.now(), self.stamp(), where)

    def putter(self, on_conflict: OnConflict | None, connection: Connection | None) -> Putter:
        """Return what puts tasks in the way that was asked for.

        Raises:
            ValueError: If an argument is wrong, or the store cannot do it.
        """
        return putter(self.store, on_conflict, connection)

    def stored(self, task_id: str) -> Task:
        """Return a task of the queue as it is stored.

        Raises:
            TaskNotFound: If there is none of this id.
        """
        task = self.store.get(checked_id(task_id))
        if task is None or task.queue != self.name:
            raise TaskNotFound(task_id, self.name)
        return task

    def get(self, task_id: str) -> Task | None:
        """Return a task of the queue as it is now, None if there is none of this id."""
        try:
            return self.seen(self.stored(task_id))
        except TaskNotFound:
            return None

    def seen(self, task: Task) -> Task:
        """Return a task that was read as it is now."""
        return replace(task, status=task.status_at(self.now()))

    def change(self, task_id: str, verb: Callable[[Task, float], Task]) -> Task:
        """Read a task, compute its next version, and write it unless it changed in between."""
        for _ in range(MAX_READ_WRITE_TRIES):
            task = self.stored(task_id)
            guard = Guard(task.status, request_token=task.request_token)
            try:
                return self.store.replace(verb(task, self.now()), guard)
            except ConflictError:
                continue
        raise LostRace(task_id, MAX_READ_WRITE_TRIES)

    def settle(self, claim: Claim, changed: Task) -> Task:
        """Store what becomes of a claimed task.

        Raises:
            LeaseLost: If the claim no longer holds it.
        """
        try:
            return self.store.replace(changed, Guard(TaskStatus.TAKEN, lease_token=claim.token))
        except ConflictError as conflict:
            now = conflict.current
            why = f"it is {now.status_at(self.now())} now" if now is not None else "it was deleted"
            raise LeaseLost(claim.task.task_id, why) from None

    def served(self, claim: Claim, done: Task) -> Task:
        """Count a task that was done, well or not, and how long it took."""
        self.meter.served(done.updated, in_time=done.updated <= done.deadline)
        self.reserve.observe(max(0.0, done.updated - claim.task.updated))
        return done


class Verbs:
    """Verbs of a queue: all that they know is its core."""

    def __init__(self, core: Core) -> None:
        """Act on a queue."""
        self._core = core

    @property
    def name(self) -> str:
        """Name of the queue."""
        return self._core.name

    @property
    def store(self) -> Store:
        """Home of the queue, for what else its processes share."""
        return self._core.store

    def now(self) -> float:
        """Return the time of the queue's clock, in seconds since the epoch, to the microsecond."""
        return self._core.now()

    def uniform(self) -> float:
        """Return a random number from [0, 1), for jitter."""
        return self._core.uniform()

    @property
    def lifecycle(self) -> Lifecycle:
        """What each verb makes of a task of this queue."""
        return self._core.lifecycle

    @property
    def lease_seconds(self) -> float:
        """How long a claim is held unless it says otherwise."""
        return self._core.config.lease_seconds

    @property
    def max_age_seconds(self) -> float:
        """How old a task of this queue may become."""
        return self._core.config.max_age_seconds
