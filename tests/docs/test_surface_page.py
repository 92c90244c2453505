"""The public surface is small, the same everywhere, and on one page."""

import inspect
from importlib import import_module
from typing import Any

import pytest
from local.reference import COMMANDS, ROOMS, SURFACE, commands_page, surface_page

import freshq
from freshq import AsyncQueue, AttachedQueue, MatchQueue, Queue, errors
from freshq.matching import AsyncMatchQueue
from freshq.queue import AsyncAttachedQueue

CONSTRUCTORS = {"memory", "sql", "dynamodb"}


def public(owner: type) -> dict[str, Any]:
    """Return the public methods of a class."""
    return {name: getattr(owner, name) for name in dir(owner) if not name.startswith("_")}


def arguments(verb: Any) -> list[inspect.Parameter]:
    """Return the parameters of a verb besides self."""
    return [each for each in inspect.signature(verb).parameters.values() if each.name != "self"]


def test_the_pages_are_up_to_date() -> None:
    assert SURFACE.read_text("utf-8") == surface_page(), "run make options"
    assert COMMANDS.read_text("utf-8") == commands_page(), "run make options"


def test_there_are_few_names() -> None:
    assert len(dir(freshq)) <= 28
    assert len(public(Queue)) <= 30
    assert len([name for name in dir(errors) if name[0].isupper()]) <= 15
    for room in ROOMS:
        assert len(dir(import_module(f"freshq.{room}"))) <= 14, room


@pytest.mark.parametrize("owner", [Queue, AttachedQueue, MatchQueue])
def test_after_the_first_argument_all_are_named(owner: type) -> None:
    for name, verb in public(owner).items():
        if name not in CONSTRUCTORS:
            rest = arguments(verb)[1:]
            assert all(each.kind in (each.KEYWORD_ONLY, each.VAR_KEYWORD) for each in rest), name


@pytest.mark.parametrize(
    ("owner", "twin"),
    [(Queue, AsyncQueue), (AttachedQueue, AsyncAttachedQueue), (MatchQueue, AsyncMatchQueue)],
)
def test_a_twin_has_the_same_verbs_with_the_same_arguments(owner: type, twin: type) -> None:
    verbs, awaited = public(owner), public(twin)
    assert verbs.keys() - CONSTRUCTORS == awaited.keys() - CONSTRUCTORS
    for name in verbs.keys() - CONSTRUCTORS:
        assert list(map(str, arguments(verbs[name]))) == list(map(str, arguments(awaited[name]))), name
