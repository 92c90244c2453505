"""The examples in docstrings print what they say; every name that a first application imports has one."""

import doctest
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import freshq
from freshq import Queue
from tests.support.public_names import ROOMS

FLAGS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
# A type for annotations, and a queue that needs a table of an application.
WITHOUT_EXAMPLE = {"OnConflict", "AttachedQueue"}
VERBS = [name for name in dir(Queue) if not name.startswith("_") and callable(getattr(Queue, name))]


def examples() -> Iterator[tuple[str, str]]:
    """Yield each public name of the library and each verb of a queue, with its docstring."""
    for package in ("freshq", "freshq.testing", *(f"freshq.{room}" for room in ROOMS)):
        module = import_module(package)
        yield from ((f"{package}.{name}", getattr(module, name).__doc__ or "") for name in dir(module))
    yield from ((f"Queue.{name}", getattr(Queue, name).__doc__ or "") for name in VERBS)


EXAMPLES = {name: text for name, text in examples() if ">>>" in text}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_it_says(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may use the names of freshq, a `queue` with the task a, and the `claim` that holds it."""
    monkeypatch.chdir(tmp_path)
    queue = Queue.memory(max_age_seconds=60)
    queue.put("work", task_id="a")
    (claim,) = queue.claim()
    names: dict[str, Any] = {each: getattr(freshq, each) for each in dir(freshq)}
    names |= {"queue": queue, "claim": claim}
    test = doctest.DocTestParser().get_doctest(EXAMPLES[name], names, name, None, 0)
    failed, _ran = doctest.DocTestRunner(optionflags=FLAGS).run(test, clear_globs=False)
    with_connections = [each for each in test.globs.values() if isinstance(each, Queue)]
    for each in with_connections:
        each.close()
    assert not failed, capsys.readouterr().out


def test_each_name_of_a_first_application_has_one() -> None:
    assert {
        f"freshq.{name}" for name in dir(freshq) if name not in WITHOUT_EXAMPLE
    } - EXAMPLES.keys() == set()


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "dynamodb"])
def test_each_verb_is_in_one(verb: str) -> None:
    assert any(f".{verb}(" in text.partition(">>>")[2] for text in EXAMPLES.values())


def test_the_site_shows_them_as_code() -> None:
    """It takes no other heading for one of examples."""
    assert [name for name, text in EXAMPLES.items() if "Examples:\n" not in text] == []
