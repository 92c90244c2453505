"""The user's runner, named as ``module:function``."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

from freshq.model.task import Task

# Takes a task; returns any JSON value, or raises Retry, Reject or Busy.
Runner: TypeAlias = Callable[[Task], Any]


def load_runner(name: str) -> Runner:
    """Import the function that a name such as ``orders.runner:run`` refers to.

    Raises:
        ValueError: One line that names the wrong part and what to do.
    """
    module_name, separator, function_name = name.partition(":")
    if not separator or not module_name or not function_name:
        msg = f"runner: {name!r} is not of the form 'module:function', such as 'orders.runner:run'"
        raise ValueError(msg)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        msg = (
            f"runner: module {module_name!r} cannot be imported ({error}); "
            "add it to functions/process_tasks or to a layer"
        )
        raise ValueError(msg) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        msg = f"runner: module {module_name!r} has no function {function_name!r}"
        raise ValueError(msg)  # noqa: TRY004 - bad input is a ValueError throughout
    runner: Runner = function
    return runner


def checked_runner(runner: object) -> Runner:
    """Return a runner that a worker can call.

    Raises:
        ValueError: If it is not callable, or is `async def`, whose coroutine nobody would await.
    """
    if not callable(runner):
        msg = f"runner: must be a function that takes a task, got {type(runner).__name__}"
        raise ValueError(msg)  # noqa: TRY004 - bad input is a ValueError throughout
    # An object with an async `__call__` is not a coroutine function itself.
    if any(_is_async(each) for each in (runner, runner.__call__)):
        msg = "runner: is an async function; pass a function, such as lambda task: asyncio.run(run(task))"
        raise ValueError(msg)
    return runner


def _is_async(function: object) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
