"""Help for an application's tests: a clock, tasks, a drained queue, a store that fails."""

from __future__ import annotations

import uuid
from collections import deque
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from typing_extensions import override

from freshq.errors import LeaseLost, Unreachable
from freshq.model.checks import checked_count, checked_seconds
from freshq.model.lifecycle import Settlement
from freshq.model.storable_options import RECORD
from freshq.model.task import RunHandle, Task, TaskStatus, give_handle, keep_clock
from freshq.model.validation import json_copy, json_text
from freshq.queue.base import blocking_queue
from freshq.queue.queue import Queue
from freshq.queue.shared.options import DISSENT
from freshq.stores.memory import MemoryStore
from freshq.worker.batches import WaitingRuns, answers_of
from freshq.worker.report import Outcome
from freshq.worker.run import BatchRun, TaskRun, runs_of
from freshq.worker.runner import checked_runner, codec_of, instrumented
from freshq.worker.settle import ends_of_batch, run_to_end, too_late_to_run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Unpack

    from freshq.errors import FreshqError
    from freshq.model.answers import Claim
    from freshq.model.codec import Codec
    from freshq.model.options import QueueOptions
    from freshq.model.task import Progress
    from freshq.queue.asyncio import AsyncQueue
    from freshq.queue.base import BaseQueue
    from freshq.stores.base import Store
    from freshq.worker.run import RunEnd
    from freshq.worker.runner import Runner

# 2026-01-01T00:00:00Z: a fixed start makes failures reproducible.
DEFAULT_START: Final = 1_767_225_600.0
MAX_RUNS: Final = 1000
MAX_AGE_SECONDS: Final = 60.0
LEASE_SECONDS: Final = 30.0
# In the message of a failed assertion.
MAX_TASKS_SHOWN: Final = 10
PAGE: Final = 100
_JSON_FIELDS: Final = frozenset({"payload", "result"})


class ManualClock:
    """A clock that moves only when a test advances it. Pass it to a queue as `clock=`.

    Attributes:
        now: The time it shows, in seconds since the epoch.

    Examples:
        >>> from freshq.testing import ManualClock
        >>> clock = ManualClock(1_800_000_000)
        >>> clock.advance(60)
        >>> clock()
        1800000060.0
    """

    def __init__(self, now: float = DEFAULT_START) -> None:
        """Show a time, in seconds since the epoch."""
        self.now = now

    def __call__(self) -> float:
        """Return the time it shows."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Move forward.

        Raises:
            ValueError: If `seconds` is negative or not a number.
        """
        self.now += checked_seconds("seconds", seconds)


@dataclass(frozen=True, slots=True)
class Fate:
    """How one run ended.

    Attributes:
        task: The task after its run, with its status, result or error.
        outcome: How it was settled.
        error: Why it did not succeed; None if it did.

    Examples:
        >>> from freshq.testing import drain
        >>> receipt = queue.put("work")
        >>> (fate,) = drain(queue, lambda task: 42)
        >>> fate.outcome.value, fate.task.result
        ('succeeded', 42)
    """

    task: Task
    outcome: Outcome
    error: str | None


def drain(queue: BaseQueue | AsyncQueue, runner: Runner, *, max_runs: int = MAX_RUNS) -> list[Fate]:
    """Run every task that is due, one after the other, and settle it as a `Worker` would.

    A batch is run when it is full, or when no other task is due. Delayed tasks, including retried ones,
    remain until the queue's clock reaches their time. The drain ends early when the runner raises `Busy`, as
    a worker would pause.

    Args:
        queue: The queue; an AsyncQueue stands for the queue that it uses.
        runner: As a `Worker` takes it.
        max_runs: Maximum number of tasks; a runner that puts new tasks could go on indefinitely.

    Returns:
        One fate for each task, in the order of their runs.

    Raises:
        ValueError: If an argument is wrong.
        AssertionError: If tasks are still due after `max_runs`.
        StoreError: If the store does not answer.

    Examples:
        >>> from freshq.testing import drain
        >>> receipt = queue.put("work")
        >>> [fate.task.result for fate in drain(queue, lambda task: task.payload.upper())]
        ['WORK']
    """
    checked_count("max_runs", max_runs)
    own = blocking_queue(queue)
    run = instrumented(checked_runner(runner), own.admin.config.telemetry)
    codec = codec_of(own, runner)
    own.admin.recover()
    return _drained(own, run, codec, max_runs)


def _drained(own: BaseQueue, run: Runner, codec: Codec, max_runs: int) -> list[Fate]:
    fates: list[Fate] = []
    waiting, calls = WaitingRuns(own, run), deque[TaskRun | BatchRun]()
    try:
        while calls or _claim(own, waiting, calls):
            runs = runs_of([calls[0]])
            if len(fates) + len(runs) > max_runs:
                msg = f"tasks are still due after {max_runs} runs; does the runner put its own task again?"
                raise AssertionError(msg)
            fates += (ended := _run(own, calls.popleft(), runs, run, codec))
            if any(fate.outcome is Outcome.RELEASED for fate in ended):
                break
    finally:
        left = runs_of([*calls, *waiting.take_all()])
        own.settle_many([Settlement.release(each.claim) for each in left])
    return fates


def _claim(queue: BaseQueue, waiting: WaitingRuns, calls: deque[TaskRun | BatchRun]) -> bool:
    """Claim due tasks until there is a call to make; return whether there is one."""
    while not calls and (claims := queue.claim(1)):
        calls.extend(waiting.add([TaskRun(claims[0], queue.admin.now())]))
    if not calls:
        calls.extend(waiting.take_all())
    return bool(calls)


def _run(
    queue: BaseQueue, call: TaskRun | BatchRun, runs: list[TaskRun], runner: Runner, codec: Codec
) -> list[Fate]:
    ends = {run: end for run in runs if (end := too_late_to_run(queue, run.claim)) is not None}
    fit = [run for run in runs if run not in ends]
    if isinstance(call, TaskRun):
        ends |= {run: run_to_end(queue, run, runner, codec, lambda: True) for run in fit}
    elif fit:
        answers = partial(answers_of, runner, call)
        ends |= zip(fit, ends_of_batch(queue, fit, answers, codec, lambda: True), strict=True)
    settled = queue.settle_many([ends[run].settlement for run in runs])
    return [_fate(queue, run.claim, ends[run], answer) for run, answer in zip(runs, settled, strict=True)]


def _fate(queue: BaseQueue, claim: Claim, end: RunEnd, answer: Task | FreshqError) -> Fate:
    # A lost lease: the runner settled or recovered the task itself.
    error = str(answer) if isinstance(answer, LeaseLost) else end.error
    outcome = end.outcome_for(answer)
    return Fate(queue.get(claim.task.task_id) or claim.task, outcome, error)


_FIELDS: Final = frozenset(field.name for field in fields(Task))


def make_task(payload: Any = None, **values: Any) -> Task:
    """Return a task as a runner receives it: claimed a moment ago, at its first attempt.

    `task.progress(...)` checks its arguments, and the task has them as `progress_fraction` and
    `progress_step`.

    Args:
        payload: The payload, as `put` takes it; the task has its stored form.
        **values: Other attributes of `Task`, such as `task_id`, `group` or `attempts`; `cancelled=True` for
            a run that should stop.

    Raises:
        ValueError: If `Task` has no such attribute, or `put` would not accept the payload.

    Examples:
        >>> from freshq.testing import make_task
        >>> make_task({"symbol": "ABC"}, kind="quote").payload
        {'symbol': 'ABC'}
    """
    why_cancelled = "the test says so" if values.pop("cancelled", False) else None
    _checked(values)
    now = values.get("created", DEFAULT_START)
    defaults: dict[str, Any] = {
        "task_id": "task",
        "queue": "default",
        "status": TaskStatus.TAKEN,
        "created": now,
        "updated": now,
        "deadline": now + MAX_AGE_SECONDS,
        "expires": int(now + 2 * MAX_AGE_SECONDS),
        "request_token": uuid.uuid4().hex,
        "attempts": 1,
        "lease_token": uuid.uuid4().hex,
        "lease_until": now + LEASE_SECONDS,
        "put_at": now,
    }
    task = Task(**{**defaults, **values, "payload": _stored("payload", payload)})
    give_handle(task, _ShownAtOnce(task, why_cancelled))
    keep_clock(task, lambda: task.updated)
    return task


class _ShownAtOnce(RunHandle):
    """Shows a report in the task itself, because no store keeps it."""

    __slots__ = ("_task",)

    def __init__(self, task: Task, why_cancelled: str | None) -> None:
        super().__init__()
        self._task, self.why_cancelled = task, why_cancelled

    @override
    def report(self, progress: Progress) -> None:
        for name, value in (("fraction", progress.fraction), ("step", progress.step)):
            object.__setattr__(self._task, f"progress_{name}", value)


def assert_put(queue: BaseQueue | AsyncQueue, **expected: Any) -> Task:
    """Check that a task with these attributes is in the queue, in any status, and return it.

    Args:
        queue: The queue; an AsyncQueue stands for the queue that it uses.
        **expected: Attributes of `Task`, such as `group`, `priority` or `task_id`; `payload` and `result` in
            the given form, such as a dataclass.

    Returns:
        The first task that matches.

    Raises:
        ValueError: If `Task` has no such attribute, or `queue` is no queue.
        AssertionError: If there is none; the message has the attributes of the tasks found.

    Examples:
        >>> from freshq.testing import assert_put
        >>> receipt = queue.put("work", group="desk-1")
        >>> assert_put(queue, group="desk-1").payload
        'work'
    """
    _checked(expected)
    for name in _JSON_FIELDS & expected.keys():
        with suppress(ValueError):  # a matcher, such as mock.ANY
            expected[name] = _stored(name, expected[name])
    seen = []
    for task in _tasks(blocking_queue(queue)):
        found = {name: getattr(task, name) for name in expected}
        if found == expected:
            return task
        seen.append(found)
    msg = f"no task with {expected} was put; {_shown(seen)}"
    raise AssertionError(msg)


def assert_nothing_put(queue: BaseQueue | AsyncQueue) -> None:
    """Check that the queue has no task.

    Raises:
        ValueError: If it is no queue.
        AssertionError: If it has one.

    Examples:
        >>> from freshq.testing import assert_nothing_put
        >>> assert_nothing_put(Queue.memory())
    """
    seen = [{"task_id": task.task_id, "payload": task.payload} for task in _tasks(blocking_queue(queue))]
    if seen:
        raise AssertionError(_shown(seen))


def _checked(values: dict[str, Any]) -> None:
    unknown = sorted(values.keys() - _FIELDS)
    if unknown:
        msg = f"{unknown[0]}: a task has no such attribute; it has {', '.join(sorted(_FIELDS))}"
        raise ValueError(msg)


def _stored(name: str, value: Any) -> Any:
    """Return a payload or a result in the form that a store returns."""
    try:
        return json_copy(json_text(value), value)
    except ValueError as error:
        msg = f"{name}: {error}"
        raise ValueError(msg) from None


def _tasks(queue: BaseQueue) -> Iterator[Task]:
    cursor: str | None = None
    while True:
        page = queue.list(limit=PAGE, cursor=cursor)
        yield from page
        cursor = page.cursor
        if cursor is None:
            return


def _shown(seen: list[dict[str, Any]]) -> str:
    if not seen:
        return "the queue has no task"
    more = f" and {len(seen) - MAX_TASKS_SHOWN} more" if len(seen) > MAX_TASKS_SHOWN else ""
    return f"the queue has {', '.join(map(str, seen[:MAX_TASKS_SHOWN]))}{more}"


# Methods without a call to the database.
OPTIONS: Final = frozenset({RECORD, DISSENT})
_LOCAL: Final = frozenset({"clock", "close", "take_unreadable"})


class FaultyStore:
    """Wraps a store, and fails calls before or after they reach it.

    A call that fails raises `Unreachable`, as when the network is gone.

    Examples:
        >>> from freshq.testing import FaultyStore
        >>> store = FaultyStore()
        >>> queue = store.queue()
        >>> with store.down():
        ...     queue.put("work")
        Traceback (most recent call last):
        freshq.errors.Unreachable: ...
    """

    def __init__(self, store: Store | None = None) -> None:
        """Wrap a store; None for a new one in memory."""
        self._store: Any = MemoryStore() if store is None else store
        self._is_down = False
        self._calls_to_fail = 0
        self._replies_to_lose = 0

    def queue(self, **options: Unpack[QueueOptions]) -> Queue:
        """Return a queue on this store, with the options of `Queue.memory`."""
        return Queue(cast("Store", self), **options)

    @contextmanager
    def down(self) -> Iterator[None]:
        """Fail every call in the block."""
        self._is_down = True
        try:
            yield
        finally:
            self._is_down = False

    def fail_next(self, calls: int = 1) -> None:
        """Fail the next calls without carrying them out."""
        self._calls_to_fail = calls

    def lose_replies(self, calls: int = 1) -> None:
        """Carry out the next calls but fail them, as if their replies were lost."""
        self._replies_to_lose = calls

    def __getattr__(self, name: str) -> Any:
        """Return the store's attribute; methods get the faults."""
        attribute = getattr(self._store, name)
        if name in _LOCAL or name.startswith("_") or not callable(attribute):
            return attribute

        def call(*args: Any, **kwargs: Any) -> Any:
            # A verb reads the stored options now and then, and stores those of a new queue: that is not the
            # call that a test counts.
            if not self._is_down and not OPTIONS.isdisjoint(each for each in args if type(each) is str):
                return attribute(*args, **kwargs)
            if self._is_down or self._take("_calls_to_fail"):
                raise Unreachable("the test made the store fail")
            answer = attribute(*args, **kwargs)
            if self._take("_replies_to_lose"):
                raise Unreachable("the test lost the store's reply")
            return answer

        return call

    def _take(self, counter: str) -> bool:
        left: int = getattr(self, counter)
        setattr(self, counter, max(0, left - 1))
        return left > 0
