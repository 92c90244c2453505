"""Put tasks: validate, ask for admission, write."""

from __future__ import annotations

import logging
from collections import Counter
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from freshq.errors import FreshqError, Overloaded, StoreError
from freshq.model.answers import PutOutcome, Receipt, receipts_of
from freshq.model.task import keep_debounced
from freshq.model.telemetry import PutSpan
from freshq.policy.shedding import ShedReason
from freshq.queue.core import Verbs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import datetime

    from freshq.model.answers import Claim
    from freshq.model.new_task import NewTask
    from freshq.model.task import Task
    from freshq.policy.value import Decay
    from freshq.queue.core import Core, Write
    from freshq.stores.base import CallersConnection, OnConflict, PutResult

logger = logging.getLogger(__name__)
# Inserts answer whether the task was new, other puts with their outcome.
OUTCOMES: Final[Mapping[bool | PutOutcome, PutOutcome]] = {
    True: PutOutcome.CREATED,
    False: PutOutcome.DUPLICATE,
    **{outcome: outcome for outcome in PutOutcome},
}


# What lets a put delay a waiting task.
DELAYING: Final = ("update", "after")
# The arguments of a put that its task has, with what counts as left out: None, or for some nothing.
LEFT_OUT: Final = dict.fromkeys(("payload", "priority", "delay_seconds"), object()) | dict.fromkeys(
    (
        *("task_id", "at", "max_age_seconds", "group", "kind"),
        *("value", "decay", "cost", "trace_context", "parent", "debounce_max_seconds"),
    )
)


class Putting(Verbs):
    """Adds tasks to a queue."""

    def put(  # noqa: D417 - one line for two
        self,
        payload: Any,
        *,
        task_id: str | None = None,
        priority: int = 0,
        delay_seconds: float = 0,
        at: datetime | float | None = None,
        max_age_seconds: float | None = None,
        group: str | None = None,
        kind: str | None = None,
        value: float | None = None,
        decay: Decay | str | None = None,
        trace_context: str | None = None,
        parent: Task | Claim | Mapping[str, Any] | None = None,
        on_conflict: OnConflict | None = None,
        debounce_max_seconds: float | None = None,
        cost: float | None = None,
        connection: CallersConnection | None = None,
    ) -> Receipt:
        """Add a task; raise Overloaded if admission control or its parent's deadline rejected it.

        Args:
            payload: The work: any JSON value.
            task_id: The caller's id; None for a UUID. An id that the table still has is a duplicate.
            priority: 0 to 9, higher first.
            delay_seconds: Delay before the task enters its line and can be claimed; its age counts from then.
            at: When it is due, instead of a delay: an aware datetime, or seconds since the epoch.
            max_age_seconds: Seconds from then until the task is stale; at most the queue's max age.
            group: Tenant or key.
            kind: The type of the message; a worker may choose its handler by it.
            value: Its value if it is done in time, and its decay, as in `NewTask`, for the order "value".
            trace_context: The trace that it belongs to, as in `NewTask`; None for the telemetry's.
            parent: The task whose run puts this one, or its `as_parent`; see `NewTask`.
            on_conflict: What to do with a live task of this id, as in `NewTask`; debounce_max_seconds, too.
            cost: The units that its run is expected to take of limits in units; None counts as 1.
            connection: Put in the transaction of this connection of SQLAlchemy, Django or a driver.
        """
        given = {name: each for name, each in locals().items() if each is not LEFT_OUT.get(name, each)}
        return self._put([("", given)], on_conflict, connection)[0]

    def put_many(
        self,
        tasks: Iterable[Mapping[str, Any] | NewTask],
        *,
        on_conflict: OnConflict | None = None,
        connection: CallersConnection | None = None,
    ) -> list[Receipt]:
        """Add several tasks.

        Args:
            tasks: Mappings of the arguments of `put`, without `connection`.
            on_conflict: As in `put`, for tasks that do not have their own.
            connection: As in `put`, for all tasks.

        Returns:
            One receipt per task, in order.

        Raises:
            ValueError: If any task is wrong; nothing was written.
            PutIncomplete: If some tasks were rejected or not written.

        Examples:
            >>> receipts = queue.put_many([{"payload": 1, "task_id": "x"}, {"payload": 2, "task_id": "y"}])
            >>> [receipt.task_id for receipt in receipts]
            ['x', 'y']
        """
        try:
            numbered = enumerate(tasks)
        except TypeError as error:
            msg = f"tasks: must be a list of mappings, got {type(tasks).__name__}"
            raise ValueError(msg) from error
        places = [(f"tasks[{index}].", task) for index, task in numbered]
        return self._put(places, on_conflict, connection)

    def _put(
        self,
        places: Sequence[tuple[str, Mapping[str, Any] | NewTask]],
        on_conflict: OnConflict | None,
        connection: CallersConnection | None,
    ) -> list[Receipt]:
        """Put tasks, each given with a prefix for field names in errors."""
        if connection is None:
            return self._put_into(places, on_conflict, None)
        with self._core.inside(connection):
            return self._put_into(places, on_conflict, connection)

    def _put_into(
        self,
        places: Sequence[tuple[str, Mapping[str, Any] | NewTask]],
        on_conflict: OnConflict | None,
        connection: CallersConnection | None,
    ) -> list[Receipt]:
        core = self._core
        write: Write = core.insert
        if on_conflict is not None or connection is not None:
            write = core.checked_write(on_conflict, connection)
        new = [core.parse(task, where) for where, task in places]
        now = self._begin(new, places, on_conflict, connection)
        stamps = core.stamps.take(now, len(new))
        tasks: list[Task] = []
        late: list[Overloaded | None] = []
        for each, created, (where, _) in zip(new, stamps, places, strict=True):
            task = core.rules.lifecycle.created(each, now, created, where)
            if each.debounce_max_seconds is not None:
                keep_debounced(task, partial(core.rules.lifecycle.debounced, each))
            tasks.append(task)
            late.append(None if each.parent is None else core.late_child(each.parent, task, now))
        own = {each.on_conflict for each in new} - {None, on_conflict}
        if own:
            write = _write_by_conflict(core, tasks, new, on_conflict, connection)
        if core.observer is None:
            return self._written(tasks, late, now, write)
        span = PutSpan(core.name, tasks)
        with core.observer.put(span):
            span.receipts = receipts = self._written(span.tasks, late, now, write)
        return receipts

    def _begin(
        self,
        new: Sequence[NewTask],
        places: Sequence[tuple[str, object]],
        on_conflict: OnConflict | None,
        connection: CallersConnection | None,
    ) -> float:
        """Return the time; the first put decides about the options, unless a task of it is wrong."""
        core = self._core
        for each, (where, _) in zip(new, places, strict=True):
            if each.debounce_max_seconds is not None and (each.on_conflict or on_conflict) not in DELAYING:
                msg = f'{where}debounce_max_seconds: needs on_conflict="update" or "after"'
                raise ValueError(msg)
        now = core.begin_now()
        if core.options.is_settled:
            return now
        for each, (where, _) in zip(new, places, strict=True):
            core.rules.lifecycle.created(each, now, now, where)
        return core.begin_write() if connection is None else core.begin_beside(connection)

    def _written(
        self, tasks: Sequence[Task], late: list[Overloaded | None], now: float, write: Write
    ) -> list[Receipt]:
        """Write tasks, leaving out tasks that are too late; return the receipts."""
        rules = self._core.rules
        if rules.admission is not None or rules.backlog is not None or any(late):
            answers = self._admitted(tasks, late, now, write)
        else:
            answers = _answers(tasks, write)
            rules.meter.offered(now, tasks)
        for task in tasks:
            if task.not_before is not None:
                self._core.upkeep.delayed()
        receipts = [answer for answer in answers if isinstance(answer, Receipt)]
        if len(receipts) < len(tasks):
            receipts = receipts_of(answers, [task.task_id for task in tasks])
        return receipts

    def _admitted(
        self, tasks: Sequence[Task], late: list[Overloaded | None], now: float, write: Write
    ) -> list[Receipt | FreshqError]:
        """Write the tasks that the rules admit; return the receipt or the error of each task."""
        rejections = self._rejections(tasks, late, now)
        admitted = [task for task, rejection in zip(tasks, rejections, strict=True) if rejection is None]
        answers = _answers(admitted, write)
        self._core.rules.meter.offered(now, tasks)
        self._make_room(answers, now)
        written = iter(answers)
        return [rejection or next(written) for rejection in rejections]

    def _rejections(
        self, tasks: Sequence[Task], late: list[Overloaded | None], now: float
    ) -> list[Overloaded | None]:
        """Return the rejection of each task, None if it is admitted; count the rejections."""
        rules = self._core.rules
        rejections = late if rules.admission is None else rules.admission.rejections(tasks, late, now)
        if rules.backlog is not None:
            left = [index for index, rejection in enumerate(rejections) if rejection is None]
            by_backlog = rules.backlog.rejections([tasks[index] for index in left], now)
            for index, rejection in zip(left, by_backlog, strict=True):
                rejections[index] = rejection
        reasons = Counter(ShedReason(rejection.reason) for rejection in rejections if rejection is not None)
        rules.meter.turned_away(now, reasons)
        return rejections

    def _make_room(self, answers: Sequence[Receipt | FreshqError], now: float) -> None:
        """Shed tasks beyond the backlog's limit; the new tasks are written, so an error is only logged."""
        backlog = self._core.rules.backlog
        if backlog is None:
            return
        created = sum(isinstance(each, Receipt) and each.outcome is PutOutcome.CREATED for each in answers)
        try:
            backlog.make_room(created, now, alone=self._core.later.is_beside)
        except StoreError:
            if self._core.later.is_beside:  # the transaction of the caller cannot be committed any more
                raise
            logger.warning("queue %r: could not enforce the backlog limit", self.name, exc_info=True)


def _write_by_conflict(
    core: Core,
    tasks: Sequence[Task],
    new: Sequence[NewTask],
    default: OnConflict | None,
    connection: CallersConnection | None,
) -> Write:
    """Return a function that puts each task, or some of the tasks, by the write of its `on_conflict`."""
    pairs = zip(tasks, new, strict=True)
    of_task = {task.request_token: each.on_conflict or default for task, each in pairs}
    writes = {conflict: core.checked_write(conflict, connection) for conflict in set(of_task.values())}
    return partial(_write_each, writes, of_task)


def _write_each(
    writes: Mapping[OnConflict | None, Write],
    on_conflict: Mapping[str, OnConflict | None],
    tasks: Sequence[Task],
) -> list[bool | PutResult]:
    """Put each task by the write of its `on_conflict`, in as few calls as possible.

    Args:
        writes: The write of each `on_conflict`.
        on_conflict: The `on_conflict` of each task, by its request token.
        tasks: The tasks.

    Raises:
        StoreError: If the first call failed, so that nothing was written.
    """
    answers: dict[str, bool | PutResult] = {}
    failure: StoreError | None = None
    ordered = list(tasks)
    if len({task.task_id for task in tasks}) == len(tasks):  # otherwise their order matters
        ordered.sort(key=lambda task: on_conflict[task.request_token] or "")
    for conflict, run in groupby(ordered, key=lambda task: on_conflict[task.request_token]):
        some = list(run)
        try:
            results: Sequence[bool | PutResult] = [failure] * len(some) if failure else writes[conflict](some)
        except StoreError as error:
            if not answers:
                raise
            failure, results = error, [error] * len(some)
        answers |= {task.request_token: result for task, result in zip(some, results, strict=True)}
    return [answers[task.request_token] for task in tasks]


def _answers(tasks: Sequence[Task], write: Write) -> list[Receipt | FreshqError]:
    results = write(tasks) if tasks else []
    return [
        result if isinstance(result, FreshqError) else Receipt(task.task_id, OUTCOMES[result])
        for task, result in zip(tasks, results, strict=True)
    ]
