"""The function that runs tasks: import it, check it, and make its runs known."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import contextmanager
from contextvars import copy_context
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import SimpleNamespace, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Literal,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from typing_extensions import override

from freshq.errors import quoted
from freshq.model.answers import error_text, raised_in_run
from freshq.model.codec import JSON, Codec
from freshq.model.task import Task, changed
from freshq.model.telemetry import RunScope, guarded
from freshq.stores.held import continue_from
from freshq.worker.report import RUNNING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Hashable, Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from contextlib import AbstractContextManager
    from types import ModuleType

    from freshq.model.answers import Busy
    from freshq.model.telemetry import Telemetry
    from freshq.policy.batching import BatchRule
    from freshq.queue.base import BaseQueue
    from freshq.stores.base import Connection

# Takes a task; returns any JSON value, or raises Retry, Reject or Busy.
Runner: TypeAlias = Callable[[Task], Any]
# Takes also the SQLAlchemy connection of the transaction that holds the task.
TransactionRunner: TypeAlias = "Callable[[Task, Connection], Any]"

NEEDS_TRANSACTION: Final = "takes the connection of a transaction; run it by a worker with `transaction`"
NO_GENERATOR: Final = "whose body would never run; return a value, do not yield"
# Name of the context variable of the module `decimal`.
DECIMAL_CONTEXT: Final = "decimal_context"
# Folders of this package and of Python: an error names the application's line that led there.
NOT_OF_APPLICATIONS: Final = (Path(__file__).parents[1], Path(traceback.__file__).parent)


def load_object(argument: str, name: str, advice: str, *, what: str, example: str) -> Any:
    """Import the object that a name such as ``orders.runner:run`` refers to.

    Args:
        argument: The argument that gave the name, for errors.
        name: The module, and the name in it.
        advice: The remedy if the module does not exist, for the error.
        what: The expected kind of object, such as "function", for the error.
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
    _check_not_hidden(argument, module_name)
    module = _imported(argument, module_name, advice)
    if not hasattr(module, object_name):
        near = get_close_matches(object_name, vars(module), 1)
        hint = f"; is it {near[0]!r}?" if near else ""
        msg = f"{argument}: module {quoted(module_name)} has no {what} {object_name!r}{hint}"
        raise ValueError(msg)
    return getattr(module, object_name)


def _check_not_hidden(argument: str, module_name: str) -> None:
    """Refuse a module of the application that has the name of a module of Python.

    Either Python has loaded its own already, or all libraries would get the application's.
    """
    root = module_name.partition(".")[0]
    if root not in sys.stdlib_module_names:
        return
    for folder in map(Path, sys.path):
        found = next((path for path in (folder / f"{root}.py", folder / root) if path.exists()), None)
        if found is not None and _is_of_application(str(found.resolve())):
            msg = f"{argument}: {found.resolve()} has the name of Python's own module {root!r}; rename it"
            raise ValueError(msg)


def _imported(argument: str, name: str, advice: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        is_absent = isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}.")
        msg = f"{argument}: module {quoted(name)} cannot be imported ({error_text(error)})"
        raise ValueError(f"{msg}; {advice}" if is_absent and advice else msg + _hint()) from error
    except Exception as error:
        msg = f"{argument}: module {quoted(name)} failed when imported, {_origin(error)}"
        raise ValueError(msg + _hint()) from error


def _hint() -> str:
    """Return the remedy if a file of the current folder hides a module of Python; else an empty text."""
    found = sorted(path for path in Path.cwd().glob("*.py") if path.stem in sys.stdlib_module_names)
    return f"; {found[0]} has the name of Python's own module {found[0].stem!r}: rename it" if found else ""


def _origin(error: Exception) -> str:
    """Return one line that says where and how a module of the application failed."""
    frames = traceback.extract_tb(error.__traceback__)
    last = next((frame for frame in reversed(frames) if _is_of_application(frame.filename)), frames[-1])
    file, line = last.filename, last.lineno
    if isinstance(error, SyntaxError):
        file, line = error.filename or file, error.lineno
    return f"{file}, line {line}: {type(error).__name__}: {error_text(error)}"


def _is_of_application(file: str) -> bool:
    is_frozen = file.startswith("<frozen ")
    return not is_frozen and not any(folder in Path(file).parents for folder in NOT_OF_APPLICATIONS)


class CoroutineRunner(ABC):
    """A runner that runs some tasks in coroutines: while they wait, they need no thread.

    Attributes:
        codec: Encodes its results.
    """

    codec: Codec = JSON

    @property
    def kinds(self) -> list[str] | None:
        """The kinds of the tasks that it runs; None for any."""
        return None

    @property
    def connected_kinds(self) -> list[str]:
        """The kinds whose functions take the connection of the transaction that holds their task."""
        return []

    @abstractmethod
    def __call__(self, task: Task) -> Any:
        """Run a task to its end, in this thread."""

    def unknown_kind(self, task: Task) -> Busy | None:  # noqa: ARG002
        """Return why other workers should run a task; None if this runner should."""
        return None

    def note_rules(self, task: Task) -> None:  # noqa: B027 - most have no rules
        """Note with the run of a task, before it begins, which attempts may follow if it fails."""

    def has_coroutine(self, task: Task) -> bool:  # noqa: ARG002
        """Return whether a coroutine runs a task, not a thread."""
        return False

    def start(
        self,
        task: Task,  # noqa: ARG002
        loop: asyncio.AbstractEventLoop | None = None,  # noqa: ARG002
    ) -> Future[Any] | None:
        """Start the coroutine that runs a task.

        Args:
            task: The task.
            loop: A loop that runs in another thread; None for the runner's own.

        Returns:
            The future of its result; None if the task needs a thread, so that nothing was started.
        """
        return None

    @property
    def batch_rules(self) -> Mapping[str, BatchRule]:
        """By kind: how its tasks share calls. Tasks of other kinds share none."""
        return {}

    def batch_key(self, task: Task) -> Hashable:  # noqa: ARG002
        """Return the key of a task: only tasks of one kind and with equal keys share calls.

        Raises:
            Exception: Any exception of the application, which ends the attempt of the task.
        """
        return None

    def run_batch(self, tasks: Sequence[Task]) -> Sequence[Any]:
        """Run tasks of one kind and one key in one call, in this thread.

        Returns:
            For each task its result, or the exception that ends its attempt.

        Raises:
            Exception: What ends the attempt of each task.
        """
        return [self(task) for task in tasks]

    def start_batch(
        self,
        tasks: Sequence[Task],  # noqa: ARG002
        loop: asyncio.AbstractEventLoop | None = None,  # noqa: ARG002
    ) -> Future[Any] | None:
        """Start the coroutine of `run_batch`, as `start` does of a task."""
        return None


class FunctionRunner(CoroutineRunner):
    """Runs every task by one function, in a thread."""

    def __init__(self, function: Runner) -> None:
        """Call a function of a task."""
        self._function = function

    @override
    def __call__(self, task: Task) -> Any:
        return self._function(task)


class DelegatingRunner(CoroutineRunner):
    """A runner that does something around the runs of another one. Subclasses say what, in threads or not."""

    def __init__(self, runner: Runner) -> None:
        """Run tasks by a runner, or by a function of a task."""
        self._runner = runner if isinstance(runner, CoroutineRunner) else FunctionRunner(runner)
        self.codec = self._runner.codec

    @property
    @override
    def kinds(self) -> list[str] | None:
        return self._runner.kinds

    @property
    @override
    def connected_kinds(self) -> list[str]:
        return self._runner.connected_kinds

    @override
    def unknown_kind(self, task: Task) -> Busy | None:
        return self._runner.unknown_kind(task)

    @override
    def note_rules(self, task: Task) -> None:
        self._runner.note_rules(task)

    @property
    @override
    def batch_rules(self) -> Mapping[str, BatchRule]:
        return self._runner.batch_rules

    @override
    def batch_key(self, task: Task) -> Hashable:
        return self._runner.batch_key(task)


def codec_of(queue: BaseQueue, runner: object) -> Codec:
    """Return the codec for the results of a runner: its own if it has one, or the queue's.

    Raises:
        ValueError: If the queue has a codec, and the handlers could not decode its payloads.
    """
    given = getattr(runner, "codec", None)
    own = given if isinstance(given, Codec) else queue.admin.config.codec
    if own is JSON and queue.admin.config.codec is not JSON:
        name = type(queue.admin.config.codec).__name__
        msg = f"codec: the queue has {name}, and its handlers have none; pass the same to Handlers(codec=...)"
        raise ValueError(msg)
    return own


def imported(module: str, name: str) -> Any:
    """Return a global variable of a module, which is imported if need be."""
    return getattr(importlib.import_module(module), name)


def load_runner(name: str, advice: str = "") -> Runner:
    """Import the function that a name such as ``orders.runner:run`` refers to.

    Args:
        name: The module and the function.
        advice: The remedy if the module does not exist, for the error.

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
    """Check that a worker can call a runner; return it.

    Args:
        runner: The argument.
        transaction: Whether it is called with a connection besides the task.

    Raises:
        ValueError: If it is not callable, is a class or a generator, cannot take its arguments, or is
            `async def`, whose coroutine nobody would await; or if its handlers need a transaction, or cannot
            run in one.
    """
    if isinstance(runner, CoroutineRunner):
        check_handlers(runner, transaction=transaction)
    takes = "a task and a connection" if transaction else "a task"
    if not callable(runner):
        msg = f"runner: must be a function that takes {takes}, got {type(runner).__name__}"
        raise ValueError(msg)
    if is_class(runner):
        msg = f"runner: must be a function that takes {takes}, got the class {runner!r}"
        raise ValueError(msg + "; pass an instance with __call__, or one of its methods")
    if is_generator(runner):
        msg = f"runner: is a generator, {NO_GENERATOR}"
        raise ValueError(msg)
    if is_async(runner):
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
    if problem := misses_task(runner, list(signature.parameters.values())):
        msg = f"runner: {problem}"
        raise ValueError(msg)
    return runner


def check_handlers(runner: CoroutineRunner, *, transaction: bool) -> None:
    """Check that handlers can run under a lease, or in a transaction.

    Raises:
        ValueError: If one cannot.
    """
    if transaction and runner.batch_rules:
        msg = f"transaction: not with batch handlers, such as the one of {quoted(min(runner.batch_rules))}: "
        raise ValueError(msg + "each task has a transaction of its own")
    if runner.connected_kinds and not transaction:
        msg = f"handler of {quoted(runner.connected_kinds[0])}: {NEEDS_TRANSACTION}"
        raise ValueError(msg)


def misses_task(function: Callable[..., Any], parameters: Sequence[inspect.Parameter]) -> str | None:
    """Return why the parameters of a function cannot begin with the task; None if they can.

    Args:
        function: The function.
        parameters: Its parameters that the worker fills, at least one.
    """
    first, *others = parameters
    name = getattr(function, "__name__", type(function).__name__)
    if first.name in ("self", "cls") and inspect.isfunction(function):
        return f"{name} is a method without its object; register a method of an instance, such as shop.{name}"
    if not fits_task(readable_hint(function, first)):
        payload = f"{first.name}: {_written(first.annotation)}"
        given = "the payload is task.payload" if others else f"write def {name}(task: Task, {payload})"
        return f"the first parameter gets the task, but {name} takes {payload} there; {given}"
    payload_hint = readable_hint(function, others[0]) if others else Any
    if Task in (payload_hint, get_origin(payload_hint)):
        return f"the second parameter gets the payload, but {name} takes the task there; take the task first"
    return None


def _written(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def readable_hint(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """Return the type of a parameter; `Any` if its annotation names imports for type checkers only."""
    try:
        return hint(function, parameter.name, parameter.annotation)
    except Exception:  # noqa: BLE001 - evaluating an annotation may raise anything
        return Any


def fits_task(annotation: Any) -> bool:
    """Return whether a parameter of a type may be given a task; True if that cannot be known."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return fits_task(annotation.__origin__)
    if origin in (Union, UnionType):
        return any(map(fits_task, get_args(annotation)))
    if annotation is Any or origin is Literal:
        return annotation is Any
    cls = annotation if origin is None else origin
    if not isinstance(cls, type):  # a type variable, an alias
        return not hasattr(cls, "__supertype__") or fits_task(cls.__supertype__)
    return getattr(cls, "_is_protocol", False) or issubclass(Task, cls) or issubclass(cls, Task)


def hint(function: Callable[..., Any], name: str, annotation: Any) -> Any:
    """Return the type that one annotation of a function means, `Any` if there is none.

    Other annotations may name imports for type checkers only.

    Raises:
        Exception: Any, if it cannot be read.
    """
    has_none = annotation is inspect.Parameter.empty
    only = SimpleNamespace(__annotations__={} if has_none else {name: annotation})
    hints = get_type_hints(only, _globals_of(function), include_extras=True)
    return hints.get(name, Any)


def _globals_of(function: Any) -> dict[str, Any]:
    """Return the names that the annotations of a function, of a partial, or of an object refer to."""
    while isinstance(function, partial):
        function = function.func
    if not hasattr(function, "__globals__") and not hasattr(function, "__wrapped__"):
        function = function.__call__
    found: dict[str, Any] = getattr(inspect.unwrap(function), "__globals__", {})
    return found


def is_class(function: object) -> bool:
    """Return whether a call would only create an instance; Python's types, such as str, are functions."""
    return isinstance(function, type) and function.__module__ != "builtins"


def is_async(function: Any) -> bool:
    """Return whether a call makes a coroutine."""
    # An object with an async `__call__` is not a coroutine function itself.
    return any(inspect.iscoroutinefunction(each) for each in (function, function.__call__))


def is_async_generator(function: Any) -> bool:
    """Return whether a call makes an asynchronous generator."""
    return any(inspect.isasyncgenfunction(each) for each in (function, function.__call__))


def is_generator(function: Any) -> bool:
    """Return whether a call makes a generator, asynchronous or not."""
    return is_async_generator(function) or any(
        inspect.isgeneratorfunction(each) for each in (function, function.__call__)
    )


def instrumented(runner: Callable[..., Any], telemetry: Telemetry) -> Callable[..., Any]:
    """Return a runner that does the same, and reports its runs to the log and to telemetry.

    Each run has a context of its own, copied from the context of this call: what one task sets in context
    variables, or in the context of `decimal`, no other task sees.

    Args:
        runner: Takes a task, and possibly a connection.
        telemetry: Receives each run; its own errors are only logged.
    """
    telemetry, contexts = guarded(telemetry), RunContexts()
    if isinstance(runner, CoroutineRunner):
        return InstrumentedCoroutines(runner, telemetry, contexts)
    return partial(_run, runner, telemetry, contexts)


class RunContexts:
    """Gives each run its own copy of the context in which this object was made."""

    def __init__(self) -> None:
        self._base = base = copy_context()
        # Its value can be changed in place, so that copies of the context would share the changes.
        self._decimal = next((variable for variable in base if variable.name == DECIMAL_CONTEXT), None)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in a new context."""
        context = self._base.copy()
        if self._decimal is not None:
            context.run(self._decimal.set, self._base[self._decimal].copy())
        # The run must know the transaction that holds its task, to be refused what would wait for it.
        context.run(continue_from, copy_context())
        return context.run(function, *arguments)


def _run(
    runner: Callable[..., Any], telemetry: Telemetry, contexts: RunContexts, task: Task, *connection: object
) -> Any:
    # The run belongs to the trace of its task, not to a trace in which the worker was started.
    return contexts.run(_run_in, telemetry.run(task), runner, task, *connection)


def _run_in(scope: RunScope, runner: Callable[..., Any], task: Task, *connection: object) -> Any:
    with _current(scope):
        result = runner(task, *connection)
    scope.end(None)
    return result


@contextmanager
def _current(scope: RunScope) -> Iterator[None]:
    """Make a run current in the block; end it if the block raises."""
    token = RUNNING.set(scope)
    try:
        with scope.current():
            yield
    except BaseException as error:
        scope.end(error)
        raise
    finally:
        RUNNING.reset(token)


class InstrumentedCoroutines(DelegatingRunner):
    """A `CoroutineRunner` whose runs are known to the log and to telemetry, in threads and in coroutines."""

    def __init__(self, runner: CoroutineRunner, telemetry: Telemetry, contexts: RunContexts) -> None:
        super().__init__(runner)
        self._contexts = contexts
        self._telemetry = telemetry

    @override
    def __call__(self, task: Task, *connection: object) -> Any:
        return _run(self._runner, self._telemetry, self._contexts, task, *connection)

    @override
    def has_coroutine(self, task: Task) -> bool:
        return self._runner.has_coroutine(task)

    @override
    def start(self, task: Task, loop: asyncio.AbstractEventLoop | None = None) -> Future[Any] | None:
        if not self._runner.has_coroutine(task):
            return None
        start = partial(self._runner.start, task, loop)
        answer: Future[Any] | None = self._contexts.run(_started, self._telemetry.run(task), start)
        return answer

    @override
    def run_batch(self, tasks: Sequence[Task]) -> Sequence[Any]:
        scope, run = self._scope(tasks), partial(self._runner.run_batch, tasks)
        answers: Sequence[Any] = self._contexts.run(_run_batch_in, scope, run)
        return answers

    @override
    def start_batch(
        self, tasks: Sequence[Task], loop: asyncio.AbstractEventLoop | None = None
    ) -> Future[Any] | None:
        if not self._runner.has_coroutine(tasks[0]):
            return None
        start = partial(self._runner.start_batch, tasks, loop)
        answer: Future[Any] | None = self._contexts.run(_started, self._scope(tasks), start)
        return answer

    def _scope(self, tasks: Sequence[Task]) -> BatchScope:
        return BatchScope(list(map(self._telemetry.run, tasks)))


class BatchScope(RunScope):
    """The runs of a batch: each has a span of its own. The call belongs to the first one.

    Attributes:
        task: The first task, under the ids of all, for the log.
    """

    def __init__(self, scopes: Sequence[RunScope]) -> None:
        """Begin with the scope of each task, at least one."""
        self._scopes = scopes
        super().__init__(changed(scopes[0].task, task_id=", ".join(scope.task.task_id for scope in scopes)))

    @property
    @override
    def trace_id(self) -> str | None:
        return self._scopes[0].trace_id

    @override
    def current(self) -> AbstractContextManager[object]:
        return self._scopes[0].current()

    @override
    def elsewhere(self) -> Callable[[], AbstractContextManager[object]] | None:
        return self._scopes[0].elsewhere()

    @override
    def end(self, error: BaseException | None) -> None:
        self.end_each([error] * len(self._scopes))

    def end_each(self, answers: Sequence[Any]) -> None:
        """End each run with its result or its exception."""
        for scope, answer in zip(self._scopes, answers, strict=True):
            scope.end(answer if isinstance(answer, BaseException) else None)


def _run_batch_in(scope: BatchScope, run: Callable[[], Sequence[Any]]) -> Sequence[Any]:
    with _current(scope):
        answers = run()
    scope.end_each(answers)
    return answers


def _started(scope: RunScope, start: Callable[[], Future[Any] | None]) -> Future[Any] | None:
    with _current(scope):  # the coroutine starts with a copy of this context
        answer = start()
    if answer is not None:
        answer.add_done_callback(partial(_end, scope))
    return answer


def _end(scope: RunScope, answer: Future[Any]) -> None:
    if answer.cancelled():
        scope.end(CancelledRun("the run was cancelled"))
        return
    error = answer.exception()
    if error is None and isinstance(scope, BatchScope):
        scope.end_each(answer.result())
    else:
        scope.end(None if error is None else raised_in_run(error))


class CancelledRun(Exception):
    """A coroutine was cancelled: the lease of its task is lost, or the worker was stopped immediately."""
