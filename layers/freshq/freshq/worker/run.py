"""Run one task, and find out how it ended."""

from __future__ import annotations

import importlib
import inspect
import threading
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from typing_extensions import override

from freshq.errors import quoted
from freshq.model.codec import JSON, Codec
from freshq.model.task import RunHandle, Task, give_handle
from freshq.model.telemetry import guarded
from freshq.worker.report import RUNNING

if TYPE_CHECKING:
    import asyncio
    from types import ModuleType

    from freshq.errors import LeaseLost
    from freshq.model.answers import Claim
    from freshq.model.task import Progress
    from freshq.model.telemetry import RunScope, Telemetry
    from freshq.queue.base import BaseQueue
    from freshq.stores.base import Connection
    from freshq.worker.report import Outcome

# Takes a task; returns any JSON value, or raises Retry, Reject or Busy.
Runner: TypeAlias = Callable[[Task], Any]
# Takes also the SQLAlchemy connection of the transaction that holds the task.
TransactionRunner: TypeAlias = "Callable[[Task, Connection], Any]"
T = TypeVar("T")
# Between two writes of the progress of one run, besides the renewals of its lease.
PROGRESS_SECONDS: Final = 5.0

# Where this package and Python's own modules are: an error names the line of the application that led there.
NOT_OF_APPLICATIONS: Final = (Path(__file__).parents[1], Path(traceback.__file__).parent)


def load_object(argument: str, name: str, advice: str, *, what: str, example: str) -> Any:
    """Import what a name such as ``orders.runner:run`` refers to.

    Args:
        argument: What the name was given as, for errors.
        name: The module, and the name in it.
        advice: What to do if there is no such module, for the error.
        what: What it should be, such as "function", for the error.
        example: A name of the right form, for the error.

    Raises:
        ValueError: One line that names the wrong part and what to do.
    """
    module_name, separator, object_name = name.partition(":")
    if not separator or not module_name or not object_name:
        msg = f"{argument}: {quoted(name)} is not of the form 'module:{what}', such as {example!r}"
        raise ValueError(msg)
    if module_name.endswith(".py") or "/" in module_name:
        own = f"{Path(module_name).stem}:{object_name}"
        msg = f"{argument}: {quoted(module_name)} is a file, not a module; write {own!r}, from its folder"
        raise ValueError(msg)
    module = _imported(argument, module_name, advice)
    if not hasattr(module, object_name):
        near = get_close_matches(object_name, vars(module), 1)
        hint = f"; is it {near[0]!r}?" if near else ""
        msg = f"{argument}: module {quoted(module_name)} has no {what} {object_name!r}{hint}"
        raise ValueError(msg)
    return getattr(module, object_name)


def _imported(argument: str, name: str, advice: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        is_absent = isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}.")
        msg = f"{argument}: module {quoted(name)} cannot be imported ({error})"
        raise ValueError(f"{msg}; {advice}" if is_absent and advice else msg) from error
    except Exception as error:
        msg = f"{argument}: module {quoted(name)} failed when imported, {_origin(error)}"
        raise ValueError(msg) from error


def _origin(error: Exception) -> str:
    """Return where in the application and how a module failed, on one line."""
    frames = traceback.extract_tb(error.__traceback__)
    last = next((frame for frame in reversed(frames) if _is_of_application(frame.filename)), frames[-1])
    file, line = last.filename, last.lineno
    if isinstance(error, SyntaxError):
        file, line = error.filename or file, error.lineno
    return f"{file}, line {line}: {type(error).__name__}: {error}"


def _is_of_application(file: str) -> bool:
    is_frozen = file.startswith("<frozen ")
    return not is_frozen and not any(folder in Path(file).parents for folder in NOT_OF_APPLICATIONS)


class CoroutineRunner(ABC):
    """A runner that runs some tasks in coroutines: while they wait, they need no thread.

    Attributes:
        codec: Encodes what it returns.
    """

    codec: Codec = JSON

    @abstractmethod
    def __call__(self, task: Task) -> Any:
        """Run a task to its end, in this thread."""

    @abstractmethod
    def has_coroutine(self, task: Task) -> bool:
        """Return whether a coroutine runs a task, not a thread."""

    @abstractmethod
    def start(self, task: Task, loop: asyncio.AbstractEventLoop | None = None) -> Future[Any] | None:
        """Start the coroutine that runs a task.

        Args:
            task: The task.
            loop: A loop that runs in another thread; None for the runner's own.

        Returns:
            The future of its result; None if the task needs a thread, and nothing was started.
        """


def codec_of(queue: BaseQueue, runner: object) -> Codec:
    """Return the codec for the results of a runner: its own, if it has one, or that of the queue.

    Raises:
        ValueError: If the queue has one, and handlers could not read what it encodes.
    """
    given = getattr(runner, "codec", None)
    own = given if isinstance(given, Codec) else queue.codec
    if own is JSON and queue.codec is not JSON:
        name = type(queue.codec).__name__
        msg = f"codec: the queue has {name}, and its handlers have none; pass the same to Handlers(codec=...)"
        raise ValueError(msg)
    return own


def load_runner(name: str, advice: str = "") -> Runner:
    """Import the function that a name such as ``orders.runner:run`` refers to.

    Args:
        name: The module and the function.
        advice: What to do if there is no such module, for the error.

    Raises:
        ValueError: One line that names the wrong part and what to do.
    """
    runner = load_object("runner", name, advice, what="function", example="orders.runner:run")
    if not callable(runner):
        module_name, _, object_name = name.partition(":")
        problem = f"has a {type(runner).__name__}, not a function, as {object_name!r}"
        msg = f"runner: module {quoted(module_name)} {problem}"
        raise ValueError(msg)
    found: Runner = runner
    return found


def checked_runner(runner: object, *, transaction: bool = False) -> Runner:
    """Return a runner that a worker can call.

    Args:
        runner: What was given.
        transaction: Whether it is called with a connection besides the task.

    Raises:
        ValueError: If it is not callable, cannot take its arguments, or is `async def`, whose coroutine
            nobody would await.
    """
    takes = "a task and a connection" if transaction else "a task"
    if not callable(runner):
        msg = f"runner: must be a function that takes {takes}, got {type(runner).__name__}"
        raise ValueError(msg)
    if is_async(runner) or is_async_generator(runner):
        msg = "runner: is an async function; register it with freshq.Handlers, or pass one that is not async"
        raise ValueError(msg)
    try:
        signature = inspect.signature(runner)
    except (TypeError, ValueError):  # some functions in C have none
        return runner
    try:
        signature.bind(*(object(), object())[: 1 + transaction])
    except TypeError as error:
        msg = f"runner: must take {takes}, but its arguments are {signature} ({error})"
        raise ValueError(msg) from None
    return runner


def is_async(function: Any) -> bool:
    """Return whether a call makes a coroutine."""
    # An object with an async `__call__` is not a coroutine function itself.
    return any(inspect.iscoroutinefunction(each) for each in (function, function.__call__))


def is_async_generator(function: Any) -> bool:
    """Return whether a call makes an asynchronous generator."""
    return any(inspect.isasyncgenfunction(each) for each in (function, function.__call__))


def instrumented(runner: Callable[..., Any], telemetry: Telemetry) -> Callable[..., Any]:
    """Return a runner that does the same, and whose runs are known to the log and to telemetry.

    Args:
        runner: Takes a task, and perhaps a connection.
        telemetry: Receives each run; what it raises is only logged.
    """
    telemetry = guarded(telemetry)
    if isinstance(runner, CoroutineRunner):
        return InstrumentedCoroutines(runner, telemetry)
    return partial(_run, runner, telemetry)


def _run(runner: Callable[..., Any], telemetry: Telemetry, task: Task, *connection: object) -> Any:
    scope = telemetry.run(task)
    token = RUNNING.set(scope)
    try:
        with scope.current():
            result = runner(task, *connection)
    except BaseException as error:
        scope.end(error)
        raise
    finally:
        RUNNING.reset(token)
    scope.end(None)
    return result


class InstrumentedCoroutines(CoroutineRunner):
    """A `CoroutineRunner` whose runs are known to the log and to telemetry, in threads and in coroutines."""

    def __init__(self, runner: CoroutineRunner, telemetry: Telemetry) -> None:
        self.codec = runner.codec
        self._runner = runner
        self._telemetry = telemetry

    @override
    def __call__(self, task: Task) -> Any:
        return _run(self._runner, self._telemetry, task)

    @override
    def has_coroutine(self, task: Task) -> bool:
        return self._runner.has_coroutine(task)

    @override
    def start(self, task: Task, loop: asyncio.AbstractEventLoop | None = None) -> Future[Any] | None:
        if not self._runner.has_coroutine(task):
            return None
        scope = self._telemetry.run(task)
        token = RUNNING.set(scope)
        try:
            with scope.current():  # the coroutine begins with a copy of the context of this thread
                answer = self._runner.start(task, loop)
        except BaseException as error:
            scope.end(error)
            raise
        finally:
            RUNNING.reset(token)
        if answer is not None:
            answer.add_done_callback(partial(_end, scope))
        return answer


def _end(scope: RunScope, answer: Future[Any]) -> None:
    cancelled = answer.cancelled()
    scope.end(CancelledRun("the run was cancelled") if cancelled else answer.exception())


class CancelledRun(Exception):
    """A coroutine was cancelled: the lease of its task is lost, or the worker ends at once."""


@dataclass(frozen=True, slots=True)
class StartedCoroutine:
    """A coroutine that runs a task.

    Attributes:
        answer: The future of its result.
        started: When it was started, by the monotonic clock.
    """

    answer: Future[Any]
    started: float


@dataclass(eq=False, slots=True)
class TaskRun:
    """One run of a task.

    Attributes:
        claim: The claim, with the lease as last extended.
        started: When the run started, in seconds by the queue's clock.
        only_settles: Whether its function does not run, as it has returned or not begun, and a settlement is
            on its way.
        succeeded: Whether it has, and its slot may be free before it is settled.
        unsettled: Whether the store has not answered its settlement.
        handle: What the function that runs the task shares with the worker.
        stored: The report that the store has.
        stored_at: When it was last written, by the queue's clock.
        acknowledged: Whether it was settled before it started, and so has no lease.
        ended: How it ended, or the error that ended it; None until then.
        coroutine: What runs the task without a thread; None if a thread does.
    """

    claim: Claim
    started: float
    handle: RunHandle = field(default_factory=RunHandle)
    stored: Progress | None = None
    stored_at: float = -inf
    only_settles: bool = False
    succeeded: bool = False
    unsettled: bool = False
    acknowledged: bool = False
    ended: Outcome | BaseException | None = None
    coroutine: StartedCoroutine | None = None

    def __post_init__(self) -> None:
        """Let the function that runs the task report on it."""
        give_handle(self.claim.task, self.handle)

    def acknowledge(self) -> None:
        """Note that it is settled and may start now."""
        self.acknowledged = True  # before the others: see `lose`
        self.only_settles = self.unsettled = False

    def extended(self, claim: Claim) -> None:
        """Go on with a claim whose lease is longer."""
        give_handle(claim.task, self.handle)
        self.claim = claim

    def await_coroutine(self, coroutine: StartedCoroutine) -> None:
        """Note what runs the task; cancel it if the run was cancelled while it was started."""
        self.coroutine = coroutine
        if self.handle.why_cancelled is not None:
            coroutine.answer.cancel()

    def cancel(self, why: str) -> None:
        """Ask the run to stop: its function sees `task.cancelled`, and a coroutine is cancelled."""
        self.handle.why_cancelled = why
        if self.coroutine is not None:
            self.coroutine.answer.cancel()

    def lose(self, lost: LeaseLost) -> None:
        """Note that the claim no longer holds the task, and ask its function to stop.

        If no function runs under the lease, the reason may be that the run's own settlement was stored. What
        became of that, its answer will say.
        """
        if not self.only_settles and not self.acknowledged:
            self.handle.lost = lost
            self.cancel(f"its task is {lost.status or 'deleted'} now")

    @property
    def is_held(self) -> bool:
        """Whether it has a lease, as far as is known."""
        return not self.acknowledged and self.handle.lost is None

    def has_news(self, now: float) -> bool:
        """Return whether there is a report to store, and the last one was stored long enough ago."""
        reported = self.handle.reported
        return reported is not None and reported != self.stored and now - self.stored_at >= PROGRESS_SECONDS

    def claim_to_settle(self) -> Claim:
        """Return the claim with the last report, which its settlement stores."""
        reported = self.handle.reported
        if reported is None:
            return self.claim
        task = replace(self.claim.task, progress_fraction=reported.fraction, progress_step=reported.step)
        return replace(self.claim, task=task)


class TaskRuns:
    """The runs that have not ended. Thread-safe: the claim loop, lease renewal and the crew share it."""

    def __init__(self, on_end: Callable[[], None]) -> None:
        """Begin without runs.

        Args:
            on_end: Called when slots are freed and when a run ends, from any thread.
        """
        self._on_end = on_end
        self._lock = threading.Lock()
        # In the order in which they began.
        self._running: dict[TaskRun, None] = {}
        self._overrunning: dict[TaskRun, None] = {}
        self._ended: list[TaskRun] = []
        self._succeeded: list[TaskRun] = []

    @property
    def running(self) -> list[TaskRun]:
        """The runs within their time limit, and those that returned, until they are settled."""
        with self._lock:
            return list(self._running)

    @property
    def overrunning(self) -> list[TaskRun]:
        """The runs past their time limit whose functions have not returned."""
        with self._lock:
            return list(self._overrunning)

    def occupied(self, slots: int) -> int:
        """Return how many slots are occupied.

        A run that has succeeded frees its slot before it is settled: meanwhile another task is claimed. But
        no more of them wait for their settlement than there are slots, and none whose settlement failed.

        Args:
            slots: How many there are.
        """
        with self._lock:
            settling = sum(run.succeeded and not run.unsettled for run in self._running)
            return len(self._running) - min(settling, slots)

    def settles(self, run: TaskRun, *, frees_slot: bool = False) -> None:
        """Note that a settlement of a run is on its way, and that its function does not run.

        Args:
            run: The run. If it was past its time limit it no longer is: it is waited for until it is settled.
            frees_slot: Whether `free_succeeded` is to free its slot before it is settled.
        """
        with self._lock:
            run.only_settles = True
            if run in self._overrunning:
                del self._overrunning[run]
                self._running[run] = None
            if frees_slot:
                self._succeeded.append(run)

    def free_succeeded(self) -> None:
        """Free the slots of all runs that have succeeded, together."""
        with self._lock:
            over, self._succeeded = self._succeeded, []
            for run in over:
                run.succeeded = True
        if over:
            self._on_end()

    def begin(self, claim: Claim, now: float) -> TaskRun:
        """Return a new run."""
        run = TaskRun(claim, now)
        with self._lock:
            self._running[run] = None
        return run

    def end(self, run: TaskRun, ended: Outcome | BaseException) -> None:
        """Note how a run ended, or the error that ended it."""
        with self._lock:
            run.ended = ended
            self._ended.append(run)
        self._on_end()

    def abandon(self, run: TaskRun) -> bool:
        """Free the slot of a run past its time limit; return False if its function has just returned."""
        with self._lock:
            if run.only_settles or run.ended is not None or run not in self._running:
                return False
            del self._running[run]
            self._overrunning[run] = None
            return True

    def take_ended(self) -> list[TaskRun]:
        """Remove the runs that ended, and return them."""
        with self._lock:
            ended, self._ended = self._ended, []
            for run in ended:
                self._running.pop(run, None)
                self._overrunning.pop(run, None)
        return ended


def in_thread(name: str, function: Callable[[], T], ended: Future[T] | None = None) -> Future[T]:
    """Call a function in a new daemon thread, which does not keep the process alive if it never returns."""
    future = Future() if ended is None else ended

    def call() -> None:
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - raised where the future is read
            future.set_exception(error)
        else:
            future.set_result(result)

    try:
        threading.Thread(target=call, name=name, daemon=True).start()
    except RuntimeError as error:  # the system has no thread left: whoever waits for this one must know
        future.set_exception(error)
    return future


class SerialCalls(Generic[T]):
    """Calls a function for each item, one after the other, in a thread that ends when there are no more."""

    def __init__(self, name: str, function: Callable[[T], None]) -> None:
        """Begin without items.

        Args:
            name: The thread's name.
            function: What to call; it raises nothing.
        """
        self._name = name
        self._function = function
        self._lock = threading.Lock()
        self._items: deque[T] = deque()
        self._is_working = False

    def add(self, item: T) -> None:
        """Have the function called for an item; here and now, if the system has no thread left."""
        with self._lock:
            self._items.append(item)
            if self._is_working:
                return
            self._is_working = True
        thread = in_thread(self._name, self._work)
        if thread.done() and thread.exception() is not None:
            self._work()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._items:
                    self._is_working = False
                    return
                item = self._items.popleft()
            self._function(item)
