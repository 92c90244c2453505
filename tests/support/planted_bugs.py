"""Bugs that the schedules must find: guards of the code, each taken out as somebody would by hand.

A guard is named by the function or the constant that has it, with the text to replace. So a test fails if the
code no longer has the text; then find the guard in the new code.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, Final
from unittest import mock

from freshq.model.task import Task, TaskStatus
from freshq.queue.polling import Interval
from freshq.stores.base import Conflict, Guard
from freshq.stores.dynamodb.batches import Batches
from freshq.stores.memory import MemoryStore
from freshq.stores.notifier import Signal
from freshq.stores.sql import statements
from tests.support.interleaving import Found, explore
from tests.support.scenarios import SCENARIOS, WORLDS


@contextmanager
def edited(place: str, old: str, new: str) -> Iterator[None]:
    """Replace a text in the source of a function, or in a constant, for the block.

    Args:
        place: A module, a colon, and the names that lead to the function or the constant.
        old: The text; it must be there once.
        new: What replaces it.
    """
    module_name, _, path = place.partition(":")
    module = import_module(module_name)
    owner: Any = module
    *outer, name = path.split(".")
    for each in outer:
        owner = getattr(owner, each)
    found = vars(owner)[name]
    if isinstance(found, str):
        assert found.count(old) == 1, (place, old)
        changed: Any = found.replace(old, new)
    else:
        function = next(
            (getattr(found, name) for name in ("func", "fget", "__func__") if hasattr(found, name)), found
        )
        source = textwrap.dedent(inspect.getsource(inspect.unwrap(function)))
        # Mutation testing decorates each function, so that a variant of it is called instead.
        source = "".join(
            line for line in source.splitlines(keepends=True) if not line.startswith("@_mutmut_")
        )
        assert source.count(old) == 1, (place, old)
        names: dict[str, Any] = {}
        code = compile("from __future__ import annotations\n" + source.replace(old, new), place, "exec")
        exec(code, vars(module), names)
        changed = names[name]
        if isinstance(changed, cached_property):
            changed.__set_name__(owner, name)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(owner, name, changed))
        for other in [each for each in sys.modules.values() if each.__name__.startswith("freshq.")]:
            if other is not module and owner is module and vars(other).get(name) is found:
                stack.enter_context(mock.patch.object(other, name, changed))
        # Statements of SQL are built once.
        stack.enter_context(mock.patch.object(statements, "_SHARED", {}))
        yield


@dataclass(frozen=True)
class Planted:
    """A bug.

    Attributes:
        world: The store on which schedules look for it.
        scenario: The scenario.
        place: The edited text, in the form of `edited`; or, with a dot instead of the colon, the replaced
            object.
        old: The text that is replaced; or the value that replaces.
        new: What replaces the text; empty for a value.
        seed: A schedule that finds it. A change of the code may move it to another one.
    """

    world: str
    scenario: str
    place: str
    old: Any
    new: str = ""
    seed: int = 0

    @contextmanager
    def in_the_code(self) -> Iterator[None]:
        """Plant the bug for the block."""
        if ":" in self.place:
            with edited(self.place, self.old, self.new):
                yield
        else:
            with mock.patch(self.place, self.old):
                yield

    def found(self, seeds: Sequence[int]) -> Found | None:
        """Return the first of some schedules that finds it."""
        with self.in_the_code():
            return explore(SCENARIOS[self.scenario](WORLDS[self.world]), seeds)


class Unversioned(Guard):
    """A guard of a holder that compares no version."""

    def __init__(
        self, status: TaskStatus, lease_token: str | None = None, request_token: str | None = None
    ) -> None:
        super().__init__(status, lease_token, None if lease_token else request_token)


class Forgetful(Interval):
    """A wait for changes after the look."""

    def __init__(self, seconds: float, signal: Signal, _seen: int) -> None:
        super().__init__(seconds, signal, signal.count)


class Careless(Guard):
    """A guard that compares the status only."""

    def __init__(self, status: TaskStatus, *_: object, **__: object) -> None:
        super().__init__(status)


def by_attempt(store: MemoryStore, task: Task, guard: Guard) -> Task:
    """Compare the attempts of a task instead of the token."""
    current = store.get(task.task_id)
    # A release takes its own attempt back.
    if guard.lease_token is not None and current and current.attempts - task.attempts not in (0, 1):
        raise Conflict(current)
    return REPLACE(store, task, Guard(guard.status, request_token=guard.request_token))


def over_what_others_wrote(store: Any, queue: str, name: str, change: Callable[[Any], Any]) -> bool:
    """Change a shared record whoever changed it since it was read."""
    record = store.read_record(queue, name)
    values = change({} if record is None else record.values)
    while values is not None:
        record = store.read_record(queue, name)
        if store.write_record(queue, name, values, None if record is None else record.version):
            break
    return True


def as_if_all_were_carried_out(batches: Batches, statements: list[Any]) -> list[Any]:
    """Treat a settlement that was not carried out as stored."""
    return [
        {"Item": {"taskId": {"S": "any"}}}
        if response.get("Error", {}).get("Code") == "TransactionConflict"
        and '"endedToken" = ?' in sent["Statement"]
        else response
        for sent, response in zip(statements, SEND(batches, statements), strict=True)
    ]


REPLACE, SEND = MemoryStore.replace, Batches._send
PLANTED: Final[dict[str, Planted]] = {
    "a lost guard": Planted("dynamodb", "workers", "freshq.queue.core.Guard", Careless, seed=17),
    "a fence by attempt": Planted(
        "memory", "workers", "freshq.stores.memory.MemoryStore.replace", by_attempt, seed=82
    ),
    "an extension without a version": Planted(
        "memory", "extensions", "freshq.queue.core.Guard", Unversioned, seed=1
    ),
    "a sweep that trusts an old read": Planted(
        "memory", "workers", "freshq.queue.upkeep.Guard", Careless, seed=227
    ),
    "a limit counted twice": Planted(
        *("dynamodb", "limits", "freshq.queue.shared.limits.change_record", over_what_others_wrote), seed=25
    ),
    "a closing that forgets a put": Planted(
        *("dynamodb", "groups", "freshq.stores.dynamodb.line_records.LineClosings._put_closing"),
        lambda *_: None,
        seed=29,
    ),
    "a batch that takes a partial answer for success": Planted(
        *("dynamodb", "batches", "freshq.stores.dynamodb.batches.Batches._send"),
        as_if_all_were_carried_out,
        seed=43,
    ),
    "a successor that ends with the task before it": Planted(
        *("memory", "puts after", "freshq.model.task:followed_by"),
        *("{SUCCESSOR_MARK}{successor.request_token}", ""),
        seed=0,
    ),
    "a successor that an older one replaces": Planted(
        *("dynamodb", "puts after", "freshq.model.task:followed_by"),
        *("{successor.request_token}", "{'0' * 32}"),
        seed=0,
    ),
    "a lost wake": Planted("memory", "waits", "freshq.queue.polling.Interval", Forgetful, seed=0),
    # Defects of the code that such schedules found.
    "a lease record that the sweep moved while the reply was lost": Planted(
        "dynamodb", "limits", "freshq.stores.dynamodb.leases.ConditionFailed", KeyError, seed=751
    ),
    "an extension after the end of its lease": Planted(
        "dynamodb", "limits", "freshq.queue.limits.GroupLimits.lapsed", lambda *_: False, seed=28
    ),
    "a repeated claim that looks like the one before it": Planted(
        "sqlite", "replies", "freshq.stores.sql.lines.new_token", lambda: "the same", seed=37
    ),
}
