"""A function that forgot the task is refused when it is registered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Annotated, Any, Literal, NewType, Protocol, TypeVar, cast

import pytest

from freshq import Handlers, Queue, Task, Worker
from freshq.testing import drain
from tests.support.refusals import refused

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForCheckers

T = TypeVar("T")
Symbol = NewType("Symbol", str)
Work = NewType("Work", Task[Any])


@dataclass
class Quote:
    symbol: str


class HasPayload(Protocol):
    payload: Any


class Shop:
    def forgets(self, payload: Quote) -> None: ...

    def swaps(self, payload: Quote, task: Task) -> None: ...

    def takes(self, task: Task) -> Any:
        return task.payload

    def __call__(self, payload: Quote) -> None: ...


def forgets(payload: Quote) -> None: ...


def with_default(payload: Quote | None = None) -> None: ...


def of_any_number(*payloads: Quote) -> None: ...


def of_dict(payload: dict[str, Any]) -> None: ...


def of_literal(payload: Literal["a"]) -> None: ...


def of_new_type(payload: Symbol) -> None: ...


def annotated(payload: Annotated[Quote, "note"]) -> None: ...


def swapped(payload: Quote, task: Task) -> None: ...


def swapped_untyped(payload: Any, task: Task) -> None: ...


def keyword_only(task: Task, *, payload: Quote) -> None: ...


async def forgets_later(payload: Quote) -> None: ...


def of_two(first: int, payload: Quote) -> None: ...


@wraps(forgets)
def wrapped(*arguments: Any) -> None:
    forgets(*arguments)


FORGETFUL: dict[str, Callable[..., Any]] = {
    "function": forgets,
    "async": forgets_later,
    "default": with_default,
    "any number": of_any_number,
    "dict": of_dict,
    "literal": of_literal,
    "new type": of_new_type,
    "annotated": annotated,
    "swapped": swapped,
    "swapped, untyped": swapped_untyped,
    "keyword only": keyword_only,
    "method": Shop().forgets,
    "method, swapped": Shop().swaps,
    "method of no object": Shop.takes,
    "object": Shop(),
    "partial": partial(of_two, 1),
    "wrapped": wrapped,
}


def with_task(task: Task) -> Any:
    return task.payload


def with_task_of(task: Task[str]) -> Any:
    return task.payload


def with_union(task: Task | None) -> Any:
    assert task is not None
    return task.payload


def with_any(task: Any) -> Any:
    return task.payload


def with_object(task: object) -> Any:
    return getattr(task, "payload")  # noqa: B009 - mypy knows no payload of an object


def with_protocol(task: HasPayload) -> Any:
    return task.payload


def with_variable(task: T) -> T:
    return getattr(task, "payload")  # type: ignore[no-any-return]  # noqa: B009 - as above


def with_new_type(task: Work) -> Any:
    return task.payload


def with_hidden_type(task: OnlyForCheckers) -> Any:
    return task.payload  # type: ignore[attr-defined]  # an annotation that cannot be read


def with_rest(*arguments: Any) -> Any:
    return arguments[0].payload


GOOD: list[Callable[..., Any]] = [
    *(with_task, with_task_of, with_union, with_any, with_object, with_protocol, with_variable),
    *(with_new_type, with_hidden_type, with_rest, Shop().takes, lambda task: task.payload),
    partial(lambda _more, task: task.payload, 1),
]


@pytest.mark.parametrize("function", FORGETFUL.values(), ids=FORGETFUL)
def test_a_handler_that_forgot_the_task_is_refused(function: Callable[..., Any]) -> None:
    with refused("handler of 'a'"):
        Handlers().on("a")(function)


@pytest.mark.parametrize("function", [forgets, of_dict, Shop().forgets, Shop(), partial(of_two, 1)])
def test_a_plain_runner_that_forgot_the_task_is_refused(function: Callable[..., Any]) -> None:
    for use in (lambda queue: Worker(queue, function), lambda queue: drain(queue, function)):
        with refused("runner"):
            use(Queue.memory())


@pytest.mark.parametrize("function", GOOD)
def test_a_function_that_may_take_the_task_is_accepted(function: Callable[..., Any]) -> None:
    handlers, queue = Handlers(), Queue.memory()
    handlers.on("a")(function)
    queue.put("work", kind="a")
    assert [fate.task.result for fate in drain(queue, handlers)] == ["work"]
    queue.put("work")
    assert [fate.task.result for fate in drain(queue, function)] == ["work"]


def test_the_refusal_shows_what_to_write() -> None:
    with pytest.raises(ValueError, match=r"write def forgets\(task: Task, payload: Quote\)"):
        Handlers().on("a")(cast("Any", forgets))
