"""The public names of `freshq`, its rooms and `freshq_pipeline`: each is loaded when it is first used."""

import ast
import inspect
from importlib import import_module
from pathlib import Path

import pytest

from freshq.queue import AsyncAttachedQueue, AsyncQueue, AttachedQueue, Queue
from tests.support.programs import python
from tests.support.public_names import ROOMS, exported, signatures

MOST_NAMES = {"freshq": 27, "freshq.errors": 21}
MOST_NAMES_OF_A_ROOM = 14
LAZY = [
    "freshq",
    *(f"freshq.{room}" for room in ROOMS if room != "errors"),
    "freshq.simulate",
    "freshq.testing",
    "freshq_pipeline",
]
# An application passes these on, and calls none of their methods.
OPAQUE = {"MatchHistories", "MatchStore", "Store"}
# Names that only freshq calls, with objects that only it makes.
INTERNAL = {
    "AsyncAdmin.__init__",
    "AsyncHeldTask.__init__",
    "AsyncMatchAdmin.__init__",
    "AsyncRecords.__init__",
    "AttachedQueue.__init__",
    "BacklogLimit.eviction",
    "CodelRule.for_line",
    "ConcurrencyLimit.initial",
    "ConcurrencyLimit.moved",
    "AdmissionLimit.share_per_second",
    "Handler.__init__",
    "Handlers.batch_rules",
    "Handlers.on",
    "MatchAdmin.__init__",
    "QueueConfig.rules",
    "Records.__init__",
    "Settlement.next_version",
    "SharedBucket.filled",
    "SharedBucket.full",
    "SharedBucket.lease",
    "Verbs.__init__",
}

each_package = pytest.mark.parametrize("package", LAZY)


@each_package
def test_every_public_name_can_be_loaded_and_is_shown(package: str) -> None:
    module = import_module(package)

    assert [name for name in module.__all__ if not hasattr(module, name)] == []
    assert dir(module) == module.__all__
    assert not hasattr(module, "no_such_name")


@each_package
def test_type_checkers_and_the_interpreter_see_the_same_names(package: str) -> None:
    module = import_module(package)
    stub = Path(str(module.__file__)).with_suffix(".pyi").read_text("utf-8")
    imports = [node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom)]

    assert sorted(alias.name for node in imports for alias in node.names) == module.__all__


@each_package
def test_importing_a_package_loads_none_of_its_modules(package: str) -> None:
    program = f"import sys, {package}; print([name for name in sys.modules if name.startswith('freshq')])"
    run = python("-c", program)

    assert set(ast.literal_eval(run.stdout)) == {"freshq", "freshq._exports", package}


def test_the_root_and_the_rooms_have_few_names() -> None:
    counts = dict.fromkeys(("freshq", *(f"freshq.{room}" for room in ROOMS)), 0)
    for name in exported():
        counts[name.rpartition(".")[0]] += 1

    limits = {package: MOST_NAMES.get(package, MOST_NAMES_OF_A_ROOM) for package in counts}
    assert {package: count for package, count in counts.items() if not 0 < count <= limits[package]} == {}


def test_every_class_in_a_public_signature_can_be_imported() -> None:
    public = {each for each in exported().values() if inspect.isclass(each)}
    missing = {
        f"{signature.owner.__name__}.{signature.name}": hidden
        for each in public
        if each.__name__ not in OPAQUE
        for signature in signatures(each)
        if (hidden := signature.classes() - public)
    }

    assert {name: hidden for name, hidden in missing.items() if name not in INTERNAL} == {}
    assert len(missing) == len(INTERNAL), "INTERNAL has a name too many"


def test_every_verb_of_a_queue_is_a_coroutine_of_an_async_queue() -> None:
    """Add a line for each new verb to `AsyncQueue` or `AsyncAttachedQueue`."""
    # Names that call no store, or serve the worker, which uses the queue itself.
    not_verbs = {"uniform", "store", "lifecycle", "telemetry"}
    properties = {"name", "order", "lease_seconds", "max_age_seconds", "codec"}
    for queue, async_queue in [
        (Queue, AsyncQueue),
        (AttachedQueue, AsyncAttachedQueue),
    ]:
        names = {name for name in dir(queue) if not name.startswith("_")} - not_verbs
        assert {"put", "claim", "complete"} <= names
        assert [name for name in sorted(names) if not hasattr(async_queue, name)] == []
        ways = {"memory", "sql", "dynamodb", "transaction", "wait_many"}
        verbs = [getattr(async_queue, name) for name in names - properties - ways]
        assert [verb.__name__ for verb in verbs if not inspect.iscoroutinefunction(verb)] == []
