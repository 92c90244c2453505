"""The parameters of handlers: the task or the tasks, the payloads, and the provided arguments."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Collection, Hashable, Iterable, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar, Union, cast, get_args, get_origin

from freshq.errors import quoted
from freshq.model.task import Task
from freshq.worker.runner import (
    NO_GENERATOR,
    fits_task,
    hint,
    is_async,
    is_async_generator,
    is_class,
    is_generator,
    misses_task,
    readable_hint,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping
    from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack
    from typing import TypeAlias

    from freshq.model.codec import Codec

    Opened: TypeAlias = AbstractContextManager[Any] | AbstractAsyncContextManager[Any]

T = TypeVar("T")
# A handler takes the task, and its payload if it has a second parameter.
MAX_PARAMETERS: Final = 2
# Annotations of a parameter that gets a list.
LISTS: Final = (list, Sequence, Collection, Iterable)


@dataclass(frozen=True, slots=True)
class Provider:
    """Opens an argument of a handler for one run.

    Attributes:
        open: Returns a context of the argument.
        is_async: Whether the context is asynchronous.
    """

    open: Callable[[], Opened]
    is_async: bool

    async def enter(self, stack: AsyncExitStack) -> Any:
        """Open the argument until the stack is left; return it."""
        if self.is_async:
            return await stack.enter_async_context(cast("AbstractAsyncContextManager[Any]", self.open()))
        return stack.enter_context(cast("AbstractContextManager[Any]", self.open()))


def provider_of(provided: type, make: Callable[[], Any]) -> Provider:
    """Return the opener for arguments of a type.

    Raises:
        ValueError: If `make` is not a function without arguments.
    """
    name = getattr(provided, "__name__", provided)
    try:
        inspect.signature(make).bind()
    except TypeError:
        msg = f"provide: {name}: must be a function without arguments"
        raise ValueError(msg) from None
    if is_async_generator(make):
        return Provider(asynccontextmanager(make), is_async=True)
    if inspect.isgeneratorfunction(make):
        return Provider(contextmanager(make), is_async=False)

    @contextmanager
    def made() -> Iterator[Any]:
        yield make()

    @asynccontextmanager
    async def awaited() -> AsyncIterator[Any]:
        yield await make()

    return Provider(awaited, is_async=True) if is_async(make) else Provider(made, is_async=False)


def checked_function(kind: str, function: object) -> Callable[..., Any]:
    """Return a function.

    Raises:
        ValueError: If it is not a function, or is a generator.
    """
    if not callable(function):
        msg = f"handler of {quoted(kind)}: must be a function, got {type(function).__name__}"
        raise ValueError(msg)
    if is_class(function):
        msg = f"handler of {quoted(kind)}: must be a function, got the class {function!r}"
        raise ValueError(msg)
    if is_generator(function):
        msg = f"handler of {quoted(kind)}: is a generator, {NO_GENERATOR}"
        raise ValueError(msg)
    return function


class Signature:
    """The signature of a handler.

    Attributes:
        own: The parameters for the task and its payload; with batches, for the lists of them.
        payload_of_task: The type in the annotation `Task[...]`; None if there is none.
        connection: The parameter that gets the connection of a transaction; None if there is none.
    """

    def __init__(
        self, kind: str, function: Callable[..., Any], provided: Mapping[type, Provider], *, many: bool
    ) -> None:
        """Read the parameters of a function.

        Args:
            kind: The kind of its tasks, for errors.
            function: The function.
            provided: By type, the providers of other arguments.
            many: Whether it takes lists.

        Raises:
            ValueError: If there are neither one nor two parameters besides the provided ones.
        """
        self._name, self._function, self._many = f"handler of {quoted(kind)}", function, many
        parameters = list(inspect.signature(function).parameters.values())
        types = {each.name: _type_to_provide(function, each) for each in parameters[1:]}
        self._provided = _of_types(provided, types)
        others = {name: each for name, each in types.items() if name not in self._provided}
        self.connection = next(iter(_of_types({_connection_type(): True}, others)), None)
        filled = {*self._provided, self.connection}
        self.own = _positional([each for each in parameters if each.name not in filled])
        problem = _problem_of(function, self.own, provides=filled != {None}, many=many)
        if problem is not None:
            msg = f"{self._name}: {problem}{_unread(function, parameters[1:])}"
            raise ValueError(msg)
        try:
            of_task = self._type_of(self.own[0])
        except Exception:  # noqa: BLE001 - it may name imports for type checkers only
            of_task = None
        self.payload_of_task = get_args(of_task)[0] if get_origin(of_task) is Task else None

    def _type_of(self, parameter: inspect.Parameter) -> Any:
        annotation = hint(self._function, parameter.name, parameter.annotation)
        return element_type(annotation) if self._many else annotation

    def provided(self, *, is_async: bool) -> dict[str, Provider]:
        """Return the providers of the other arguments, by name.

        Raises:
            ValueError: If one is async and the handler is not; or if the handler takes a transaction's
                connection and is async, or takes a batch.
        """
        if self.connection is not None and (is_async or self._many):
            how = "takes a batch" if self._many else "is async, or its middleware is"
            msg = f"{self._name}: {how}, but the connection of a transaction is for one task in one thread"
            raise ValueError(msg)
        for name, provider in self._provided.items():
            if provider.is_async and not is_async:
                msg = f"{self._name}: is not async, but the provider of {name!r} is"
                raise ValueError(msg)
        return self._provided

    def payload(self) -> Any:
        """Return the type of the payload; None if it is unknown.

        Raises:
            ValueError: If its annotation cannot be read, or `Task[...]` names another type.
        """
        of_task = self.payload_of_task
        if len(self.own) == 1:
            return of_task
        try:
            annotation = self._type_of(self.own[1])
        except Exception as error:
            raise self._unreadable(error) from error
        if of_task not in (None, annotation):
            types = f"{of_task} in the task's annotation and {annotation} in the payload's"
            msg = f"{self._name}: has two types of payload, {types}"
            raise ValueError(msg)
        return annotation

    def decoder(self, payload: Any, codec: Codec) -> Callable[[Any], Any] | None:
        """Return the decoder of a type of payload; None if it is unknown.

        Raises:
            ValueError: If the type cannot be read.
        """
        try:
            return None if payload is None else codec.decoder(payload)
        except Exception as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> ValueError:
        return ValueError(f"{self._name}: the type of its payload cannot be read ({error})")


def _problem_of(
    function: Callable[..., Any], own: list[inspect.Parameter], *, provides: bool, many: bool
) -> str | None:
    """Return what is wrong with the parameters besides the provided ones; None if nothing is."""
    if own and (problem := (_misses_tasks if many else misses_task)(function, own)):
        return problem
    task, payload = ("a list of tasks", "a list of payloads") if many else ("a task", "a payload")
    if provides and len(own) != MAX_PARAMETERS:
        return f"must take {task} and {payload} before its provided arguments"
    if not 1 <= len(own) <= MAX_PARAMETERS:
        return f"must take {task}, or {task} and {payload}"
    return None


def _positional(parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    """Return the parameters if they can be passed by position, otherwise none."""
    try:
        inspect.Signature(parameters).bind(*parameters)
    except TypeError:
        return []
    return parameters


def _unread(function: Callable[..., Any], parameters: Iterable[inspect.Parameter]) -> str:
    """Return which annotation may hide what a parameter should get; empty if all can be read."""
    for each in parameters:
        try:
            hint(function, each.name, each.annotation)
        except Exception as error:  # noqa: BLE001 - evaluating an annotation may raise anything
            return f"; the annotation of {each.name!r} cannot be read ({error}): import it at run time, too"
    return ""


def _type_to_provide(function: Callable[..., Any], parameter: inspect.Parameter) -> Hashable:
    """Return the type of a parameter, by which it may be provided; None if it cannot be.

    Of `Annotated[Session, ...]` and `Session | None` that is `Session`.
    """
    try:
        annotation = hint(function, parameter.name, parameter.annotation)
    except Exception:  # noqa: BLE001 - for the payload's parameter, it is raised later
        return None
    if get_origin(annotation) is Annotated:
        annotation = annotation.__origin__
    if get_origin(annotation) in (Union, UnionType):
        others = [each for each in get_args(annotation) if each is not NoneType]
        annotation = others[0] if len(others) == 1 else annotation
    is_hashable = isinstance(annotation, Hashable)
    return annotation if is_hashable and parameter.kind is not parameter.POSITIONAL_ONLY else None


def _of_types(given: Mapping[Any, T], types: Mapping[str, Hashable]) -> dict[str, T]:
    """Return what is given for the types of parameters, by their names."""
    return {name: given[each] for name, each in types.items() if each is not None and each in given}


def _connection_type() -> Hashable:
    """Return the class of a transaction's connection; None while no annotation can name it."""
    return getattr(sys.modules.get("sqlalchemy"), "Connection", None)


def element_type(annotation: Any) -> Any:
    """Return the type of the elements of a list that an annotation means; `Any` if it does not say.

    Raises:
        ValueError: If it means no list.
    """
    found = annotation if get_origin(annotation) is None else get_origin(annotation)
    if annotation is not Any and found not in LISTS:
        msg = f"it must be a list, not {inspect.formatannotation(annotation)}"
        raise ValueError(msg)
    return get_args(annotation)[0] if get_args(annotation) else Any


def result_type(annotation: Any) -> Any:
    """Return the type of a result in the annotation of the list that a batch handler returns."""
    element = element_type(annotation)
    if get_origin(element) not in (Union, UnionType):
        return element
    outcomes = [each for each in get_args(element) if isinstance(each, type)]
    outcomes = [each for each in outcomes if issubclass(each, BaseException)]
    results = [each for each in get_args(element) if each not in outcomes]
    return Union[tuple(results)] if results else Any  # noqa: UP007 - the types are not known here


def _misses_tasks(function: Callable[..., Any], parameters: Sequence[inspect.Parameter]) -> str | None:
    """Return why the parameters of a function cannot begin with a list of tasks; None if they can."""
    if problem := misses_task(function, [each.replace(annotation=Any) for each in parameters]):
        return problem
    name = getattr(function, "__name__", type(function).__name__)
    for parameter, what in zip(parameters, ("tasks", "payloads"), strict=False):
        annotation = readable_hint(function, parameter)
        is_list = annotation is Any or (get_origin(annotation) or annotation) in LISTS
        if not is_list or (what == "tasks" and not fits_task(element_type(annotation))):
            takes = f"{name} takes {parameter.name}: {inspect.formatannotation(annotation)} there"
            return f"with batch, it gets a list of {what}, but {takes}; write def {name}(tasks: list[Task])"
    return None
