"""The reference of the documentation: it has every public name, with an example that `tests/docs` runs."""

import ast
import re
import tomllib
from importlib import import_module
from pathlib import Path

import freshq
import freshq.errors
import freshq.testing
import freshq_pipeline
from tests.support.public_names import ROOMS

PROJECT = Path(__file__).parents[3]
DOCS = PROJECT / "docs"
PAGES = sorted((DOCS / "reference").glob("*.md"))


# Types for annotations, which an application neither makes nor reads; the tables of options name the options.
ONLY_FOR_ANNOTATIONS = {
    "freshq.OnConflict",
    "freshq.matching.MatchHistories",
    "freshq.matching.MatchQueueOptions",
    "freshq.matching.MatchStore",
    "freshq.queue.BaseQueue",
    "freshq.queue.QueueConfig",
    "freshq.queue.QueueOptions",
    "freshq.queue.SqlOptions",
    "freshq.stores.Store",
    "freshq.worker.PutOptions",
    "freshq.worker.Runner",
    "freshq.worker.TransactionRunner",
    "freshq.worker.WorkerOptions",
}
# Few applications meet them.
WITHOUT_EXAMPLE = {
    "freshq.matching.AsyncMatchAdmin",
    "freshq.matching.MatchAdmin",
    "freshq.model.Kinds",
    "freshq.model.Verb",
    "freshq.policy.OrderSwitch",
    "freshq.queue.Admin",
    "freshq.queue.AsyncAdmin",
    "freshq.queue.AsyncHeldTask",
    "freshq.queue.AsyncRecords",
    "freshq.stores.DeadLetterCounts",
    "freshq.queue.Portion",
    "freshq.queue.Records",
    "freshq.stores.HeldTask",
    "freshq.telemetry.ClaimSpan",
    "freshq.telemetry.RunScope",
    "freshq.telemetry.SettleSpan",
    "freshq.worker.WorkerStatus",
}


def public(module: str, name: str) -> str:
    """Return the full name that a page uses: the root's, if the root has it."""
    return f"freshq.{name}" if module != "freshq_pipeline" and name in dir(freshq) else f"{module}.{name}"


def public_names() -> set[str]:
    """Return the full names of all that an application may import, without the errors, which have a table."""
    rooms = [import_module(f"freshq.{room}") for room in ROOMS if room != "errors"]
    modules = [freshq, freshq.testing, freshq_pipeline, *rooms]
    every = {public(module.__name__, name) for module in modules for name in dir(module)}
    return every - {f"freshq.{name}" for name in dir(freshq.errors)} - ONLY_FOR_ANNOTATIONS


def test_every_public_name_is_on_a_page() -> None:
    text = "\n".join(page.read_text("utf-8") for page in PAGES)
    named = set(re.findall(r"^::: (\S+)$", text, re.MULTILINE))

    assert named == public_names() | {"freshq.errors"}


def test_every_public_name_has_an_example() -> None:
    used = set[str]()
    for page in PAGES:
        for code in re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE):
            found = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
            used |= {public(str(node.module), name.name) for node in found for name in node.names}

    assert public_names() - used == WITHOUT_EXAMPLE


def test_users_import_from_the_root_and_the_rooms() -> None:
    """The example with made-up people takes them from the command."""
    places = [*(f"freshq.{room}" for room in (*ROOMS, "testing")), "freshq_pipeline", "freshq.cli.people"]
    places += ["freshq.contrib.django", "freshq.contrib.django.tasks"]
    files = [PROJECT / "README.md", *DOCS.glob("*.md"), *PAGES, *(PROJECT / "examples").rglob("*.py")]
    text = "\n".join(file.read_text("utf-8") for file in files)
    modules = set(re.findall(r"^ *(?:from|import) (freshq[\w.]*)", text, re.MULTILINE))

    assert len(modules) > 10
    assert modules - {"freshq", *places} == set()


def test_every_error_is_on_its_page() -> None:
    page = (DOCS / "reference" / "errors.md").read_text("utf-8")

    assert [name for name in dir(freshq.errors) if not re.search(rf"\b{name}\b", page)] == []


def test_the_install_section_has_every_extra() -> None:
    extras = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]
    shown = re.findall(r"^\| `(\w+)` \|", (DOCS / "index.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(shown) == sorted(extras)
