"""The public names of `freshq` and `freshq_pipeline`: each is loaded when it is first used."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from types import ModuleType

import pytest

import freshq
import freshq_pipeline
from tests.support.public_names import declared

each_package = pytest.mark.parametrize("package", [freshq, freshq_pipeline])


@each_package
def test_type_checkers_and_the_interpreter_see_the_same_names(package: ModuleType) -> None:
    assert sorted(declared(package)) == sorted(package.__all__)
    assert {name: import_module(module) for name, module in declared(package).items()} == {
        name: import_module(getattr(package, name).__module__) for name in package.__all__
    }


@each_package
def test_every_public_name_can_be_loaded(package: ModuleType) -> None:
    missing = [name for name in package.__all__ if getattr(package, name).__name__ != name]

    assert missing == []
    assert set(package.__all__) <= set(dir(package))


@each_package
def test_a_name_that_is_not_public_is_an_attribute_error(package: ModuleType) -> None:
    assert not hasattr(package, "no_such_name")


@pytest.mark.parametrize(("package", "loaded"), [("freshq", []), ("freshq_pipeline", ["freshq.errors"])])
def test_importing_the_package_loads_no_module_of_it(package: str, loaded: list[str]) -> None:
    starts = ("freshq.", "freshq_pipeline.")
    program = f"import sys, {package}; print([name for name in sys.modules if name.startswith({starts})])"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert run.stdout.strip() == str(loaded)


def test_every_verb_of_a_queue_is_a_coroutine_of_an_async_queue() -> None:
    """Add a line for each new verb to `AsyncQueue` or `AsyncAttachedQueue`."""
    # What asks no store, or is for the worker, which uses the queue itself.
    not_verbs = {"uniform", "store", "lifecycle", "telemetry"}
    properties = {"name", "order", "lease_seconds", "max_age_seconds", "codec"}
    for queue, async_queue in [
        (freshq.Queue, freshq.AsyncQueue),
        (freshq.AttachedQueue, freshq.AsyncAttachedQueue),
    ]:
        names = {name for name in dir(queue) if not name.startswith("_")} - not_verbs
        assert {"put", "claim", "complete"} <= names
        assert [name for name in sorted(names) if not hasattr(async_queue, name)] == []
        ways = {"memory", "sql", "dynamodb", "transaction"}
        verbs = [getattr(async_queue, name) for name in names - properties - ways]
        assert [verb.__name__ for verb in verbs if not inspect.iscoroutinefunction(verb)] == []
