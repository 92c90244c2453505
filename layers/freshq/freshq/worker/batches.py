"""Batches of a worker: the options of a handler, its answers, and the tasks that wait for others."""

from __future__ import annotations

import inspect
import time
from collections import defaultdict
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, Final

from freshq.errors import StoreError, quoted
from freshq.model.checks import checked_count, checked_seconds
from freshq.policy.batching import Batches, BatchRule, ExpectedTime, SlotUse
from freshq.queue.claim import MAX_CLAIM
from freshq.queue.core import core_of
from freshq.queue.filters import extended_together
from freshq.worker.executor import result_of
from freshq.worker.run import BatchRun
from freshq.worker.runner import CoroutineRunner, is_async

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
    from typing import TypeAlias

    from freshq.model.task import Task
    from freshq.queue.base import BaseQueue
    from freshq.worker.run import TaskRun

    # A function of the task, or the name of a field of the payload.
    BatchBy: TypeAlias = Callable[[Task[Any]], Hashable] | str

# How long a task waits for others unless its handler says so.
WITHIN_SECONDS: Final = 0.05
# The leases of a batch that filled for this time are extended before its call, which shows cancelled tasks.
CHECK_AFTER_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class BatchOptions:
    """What a handler says about its batches.

    Attributes:
        rule: How its tasks share calls.
        by: Only tasks with the same key share one; None: all.
    """

    rule: BatchRule
    by: BatchBy | None

    def check_field(self, kind: str, payload_type: Any) -> None:
        """Raise if the type of the payload has no field of that name.

        Raises:
            ValueError: If it is known to have none.
        """
        fields: Any = getattr(payload_type, "model_fields", None)
        fields = getattr(payload_type, "__dataclass_fields__", None) if fields is None else fields
        if isinstance(self.by, str) and fields is not None and self.by not in fields:
            msg = f"handler of {quoted(kind)}: batch_by: the payload has no field {quoted(self.by)}; it has "
            raise ValueError(msg + ", ".join(fields))

    def key(self, task: Task) -> Hashable:
        """Return the key of a task with its typed payload.

        Raises:
            ValueError: If the payload has no such field, or the key is not hashable.
            Exception: Any exception of the application's function.
        """
        key: Hashable = None
        if isinstance(self.by, str):
            has_items = isinstance(task.payload, dict)
            if not (self.by in task.payload if has_items else hasattr(task.payload, self.by)):
                msg = f"batch_by: the payload has no field {quoted(self.by)}"
                raise ValueError(msg)
            payload: Any = task.payload
            key = payload[self.by] if has_items else getattr(payload, self.by)
        elif self.by is not None:
            key = self.by(task)
        try:
            hash(key)
        except TypeError:
            msg = f"batch_by: keys must be hashable, such as a string, got {type(key).__name__}"
            raise ValueError(msg) from None
        return key


def checked_batch(batch: int | None, within_seconds: float | None, by: BatchBy | None) -> BatchOptions | None:
    """Return what a handler says about batches; None if it takes one task.

    Raises:
        ValueError: If an argument is wrong, or `batch` is missing beside the others.
    """
    if batch is None:
        for name, value in (("within_seconds", within_seconds), ("batch_by", by)):
            if value is not None:
                msg = f"{name}: only with batch, the number of tasks of a call"
                raise ValueError(msg)
        return None
    size = checked_count("batch", batch, MAX_CLAIM)
    seconds = WITHIN_SECONDS if within_seconds is None else checked_seconds("within_seconds", within_seconds)
    if by is not None and not (isinstance(by, str) and by) and not _takes_one(by):
        msg = "batch_by: must be a function of the task, not async, or the name of a field of the payload, "
        raise ValueError(msg + f"got {quoted(by) if isinstance(by, str) else type(by).__name__}")
    return BatchOptions(BatchRule(size, seconds), by)


def _takes_one(function: object) -> bool:
    if not callable(function) or is_async(function):
        return False
    try:
        inspect.signature(function).bind(None)
    except ValueError:  # some functions in C have no signature
        return True
    except TypeError:
        return False
    return True


class BatchInput:
    """The tasks of a call. A task whose payload does not fit is not passed to the function."""

    def __init__(
        self, kind: str, tasks: Sequence[Task], arguments_of: Callable[[Task], tuple[Any, ...]]
    ) -> None:
        """Decode the payloads.

        Args:
            kind: The kind of the tasks.
            tasks: The tasks.
            arguments_of: Returns the arguments for one task, or raises the exception that ends its attempt.
        """
        self._kind = kind
        self._count = len(tasks)
        self._errors: dict[int, Exception] = {}
        fitting = []
        for place, task in enumerate(tasks):
            try:
                fitting.append(arguments_of(task))
            except Exception as error:  # noqa: BLE001 - the answer for this task
                self._errors[place] = error
        # The lists that the function takes; none if no task fits.
        self.arguments = tuple(map(list, zip(*fitting, strict=True)))

    def answers(self, given: object) -> list[Any]:
        """Return the answer for each task.

        Args:
            given: What the function returned.

        Raises:
            ValueError: If that is not a list with one element for each task that it got.
        """
        expected = self._count - len(self._errors)
        if not isinstance(given, list) or len(given) != expected:
            got = f"a list of {len(given)}" if isinstance(given, list) else type(given).__name__
            msg = f"handler of {quoted(self._kind)}: must return a list with one result for each of its "
            raise ValueError(msg + f"{expected} tasks, in order, got {got}")
        results = iter(given)
        return [
            self._errors[place] if place in self._errors else next(results) for place in range(self._count)
        ]


def only_answer(answers: Sequence[Any]) -> Any:
    """Return the result of a batch of one task, or raise its exception."""
    (answer,) = answers
    if isinstance(answer, BaseException):
        raise answer
    return answer


def batch_rules_of(runner: object) -> Mapping[str, BatchRule]:
    """Return how the tasks of a runner share calls, by kind."""
    return runner.batch_rules if isinstance(runner, CoroutineRunner) else {}


def answers_of(runner: Any, call: BatchRun, tasks: list[Task]) -> Sequence[Any]:
    """Return the answer for each task of a batch: of its coroutine if it has one, which has ended then.

    Raises:
        Exception: What ends the attempt of each task.
    """
    if call.problem is not None:
        raise call.problem
    answers: Sequence[Any] = runner.run_batch(tasks) if call.coroutine is None else result_of(call.coroutine)
    return answers


class WaitingRuns:
    """The claimed tasks of a worker that wait for others to share a call. The claim loop owns it.

    Other threads may call only `begun`, `ended` and `lost`.
    """

    def __init__(self, queue: BaseQueue, runner: object) -> None:
        """Begin without tasks.

        Args:
            queue: The queue.
            runner: The runner.
        """
        self.rules = batch_rules_of(runner)
        self._queue = queue
        self._runner: Any = runner
        self._batches: Batches[TaskRun] = Batches()
        known = runner.kinds if isinstance(runner, CoroutineRunner) else None
        kinds = ["", *self.rules] if known is None else known
        self._use = SlotUse([self.rules.get(kind) for kind in kinds])
        self._run_times: defaultdict[str, ExpectedTime] = defaultdict(ExpectedTime)
        self._running: dict[BatchRun, ExpectedTime] = {}
        self._claim_time = ExpectedTime()

    def room(self, free: int) -> int:
        """Return how many tasks may be claimed while some slots are free."""
        return min(MAX_CLAIM, self._use.room(free, self._batches.missing)) if self.rules else free

    @property
    def left_seconds(self) -> float:
        """Time until a call is due, or a running one is about to end; infinite if neither is known."""
        now, claim_seconds = time.monotonic(), self._claim_time.likely_seconds
        ends = (call.began + times.ahead(claim_seconds)[0] for call, times in list(self._running.items()))
        return min([self._batches.due_at, *(end for end in ends if end > now)]) - now

    def ending(self) -> int:
        """Return how many running calls are about to end: for them, batches may be claimed ahead."""
        now, claim_seconds = time.monotonic(), self._claim_time.likely_seconds
        spans = (
            (now - call.began, times.ahead(claim_seconds)) for call, times in list(self._running.items())
        )
        return sum(first <= ran_seconds <= last for ran_seconds, (first, last) in spans)

    def claimed(self, seconds: float) -> None:
        """Count the time that a claim of tasks took."""
        self._claim_time.ended(seconds)

    def add(self, runs: Iterable[TaskRun]) -> list[TaskRun | BatchRun]:
        """Add claimed tasks; return what need not wait: tasks without a batch, and full batches."""
        calls: list[TaskRun | BatchRun] = []
        tasks, slots = 0, 0.0
        for run in runs:
            rule = self.rules.get(run.claim.task.kind or "")
            call = run if rule is None else self._add(run, rule)
            calls += [] if call is None else [call]
            tasks, slots = tasks + 1, slots + (1.0 if rule is None else 1 / rule.size)
        if tasks and self.rules:
            self._use.claimed(tasks, slots)
        return calls

    def _add(self, run: TaskRun, rule: BatchRule) -> BatchRun | None:
        """Add a task; return its batch if that is full, or if it can have no other task."""
        now, task = time.monotonic(), run.claim.task
        run.started_at = inf
        try:
            key = (task.kind, self._runner.batch_key(task))
            left_seconds = task.stale_at - self._queue.admin.now()
            slack_seconds = self._run_times[task.kind or ""].slack_seconds(left_seconds)
            batch = self._batches.add(key, rule, run, now, slack_seconds)  # compares keys of the application
        except BaseException as error:  # noqa: BLE001 - as in `run_to_end`: it ends the attempt of this task
            run.batch = BatchRun([run], now, problem=error)
            return run.batch
        run.batch = batch.tasks[0].batch or BatchRun(batch.tasks, batch.opened_at)
        return None if batch.missing else run.batch

    def crowded(self, calls: int) -> None:
        """Note that the last tasks take more slots than there are: claim fewer, as if each took one."""
        self._use.claimed(calls, calls)

    def take_due(self) -> list[BatchRun]:
        """Remove the batches whose calls are due, and return them."""
        return self._take(time.monotonic())

    def take_all(self) -> list[BatchRun]:
        """Remove all batches, and return them, the earliest first."""
        return self._take(inf)

    def _take(self, now: float) -> list[BatchRun]:
        calls = (batch.tasks[0].batch for batch in self._batches.take_due(now))
        return [call for call in calls if call is not None]

    def begun(self, call: BatchRun) -> None:
        """Note a call that runs."""
        self._running[call] = self._run_times[call.runs[0].claim.task.kind or ""]

    def ended(self, call: BatchRun, run_seconds: float) -> None:
        """Count the time that a call took."""
        self._running.pop(call).ended(run_seconds)

    def lost(self, call: BatchRun) -> set[TaskRun]:
        """Extend the leases of a batch that has waited, in one call of the store; return the runs without.

        So a task that was cancelled while it waited is not run.
        """
        if time.monotonic() - call.opened_at < CHECK_AFTER_SECONDS:
            return set()
        claims, seconds = [run.claim for run in call.runs], self._queue.admin.config.lease_seconds
        try:
            extended = extended_together(core_of(self._queue), claims, seconds)
        except StoreError:  # the settlements will tell
            return set()
        held = {claim.task.task_id: claim for claim in extended}
        lost: set[TaskRun] = set()
        for run in call.runs:
            claim = held.get(run.claim.task.task_id)
            if claim is None or claim.token != run.claim.token:
                lost.add(run)
            else:
                run.extended(claim)
        return lost
