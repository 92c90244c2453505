"""`make architecture`: the rooms of freshq, and the way of three verbs through them, into a page.

Each verb runs under a profile function, so the page names the functions that really run.
"""

from __future__ import annotations

import ast
import os
import sys
import tempfile
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from moto import mock_aws

from freshq import Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FrameType

PROJECT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = PROJECT / "layers" / "freshq" / "freshq"
PAGE: Final = PROJECT / "docs" / "contributing" / "architecture.md"
STORES: Final = {"memory": "In memory", "sqlite": "SQLite", "dynamodb": "DynamoDB"}
VERBS: Final = {"put": "A put", "claim": "A claim", "complete": "A completion"}
# Functions of their own only before Python 3.12.
COMPREHENSIONS: Final = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>"})
# Tasks that go through first: caches are filled, and the line is announced.
WARM_TASKS: Final = 3
# Once in some seconds a verb also writes counts or reads a record, so the shortest of three rounds counts.
ROUNDS: Final = 3
FOLDERS: Final = {
    "functions/": ("The Lambda handlers: a few lines around `aws`.", "`freshq`"),
    "pipeline/freshq_pipeline/": (
        "The PySpark pipeline: facts from the change stream, replays under other policies.",
        "`freshq` (policies, simulator)",
    ),
    "local/": (
        "The emulator, the demonstration, servers and faults, and the programs behind make targets.",
        "`freshq`, `freshq_pipeline`",
    ),
    "benchmarks/": (
        "Measurements, their recorded results and the pages made from them.",
        "`freshq`, `freshq_pipeline`, `local`",
    ),
    "tests/": ("Tests in folders by room; contracts run on every store.", "everything"),
}

HEAD: Final = """# Architecture

`make architecture` writes this page from the code. A test fails if the page and the code differ.

## Rooms

Each room is a folder of `layers/freshq/freshq`. A room may import the rooms that its row names and no others;
import-linter checks that in `make check`. Only `stores` and `matching/stores` know a database, and only
`functions` and `aws` know Lambda. `policy`, `model` and `simulate` take time, counters and random numbers as
arguments, so the worker, the simulator and the pipeline run the same objects.
"""
WAYS: Final = """## The way of a verb

Each list names the functions that one call enters, in the order of their first entry and grouped by module.
Three tasks went the same way before, so caches are warm. Other packages are not counted.
"""


@dataclass
class Way:
    """The functions of freshq that one call enters.

    Attributes:
        calls: How often each is entered, by module and qualified name, in the order of first entry.
    """

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)

    def see(self, frame: FrameType, event: str, _argument: object) -> None:
        """Count a call; the signature is `sys.setprofile`'s."""
        code = frame.f_code
        if event == "call" and code.co_name not in COMPREHENSIONS:
            file = Path(code.co_filename)
            if file.is_relative_to(PACKAGE):
                self.calls[file.relative_to(PACKAGE).as_posix(), code.co_qualname] += 1

    def counts(self) -> str:
        """Return the numbers of modules, functions and calls as a cell of a table."""
        modules = {module for module, _ in self.calls}
        return f"{len(modules)} / {len(self.calls)} / {self.calls.total()}"

    def lines(self) -> Iterator[str]:
        """Yield one list item for each run of functions in the same module."""
        for module, functions in groupby(self.calls, key=lambda key: key[0]):
            yield f"1. `{module}`: " + ", ".join(f"`{name}`" for _, name in functions)


def followed(call: Callable[[], Any]) -> tuple[Way, Any]:
    """Return the way of a call, and its result."""
    way = Way()
    sys.setprofile(way.see)
    try:
        result = call()
    finally:
        sys.setprofile(None)
    return way, result


def ways_on(queue: Queue) -> dict[str, Way]:
    """Return the shortest way of each verb on a queue."""
    queue.create_table()
    for number in range(WARM_TASKS):
        queue.put({"n": number})
        queue.complete(queue.claim()[0])
    shortest: dict[str, Way] = {}
    for number in range(ROUNDS):
        put, _ = followed(partial(queue.put, {"n": number}, task_id=f"task-{number}"))
        claim, claims = followed(queue.claim)
        complete, _ = followed(partial(queue.complete, claims[0], {"ok": 1}))
        for verb, way in {"put": put, "claim": claim, "complete": complete}.items():
            shortest[verb] = min(shortest.get(verb, way), way, key=lambda each: each.calls.total())
    queue.close()
    return shortest


def all_ways() -> dict[str, dict[str, Way]]:
    """Return the way of each verb by store."""
    credentials = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "none")
    region = {"AWS_DEFAULT_REGION": "eu-west-1"}
    found = {"memory": ways_on(Queue.memory())}
    with tempfile.TemporaryDirectory() as folder:
        found["sqlite"] = ways_on(Queue.sql(f"sqlite:///{folder}/tasks.db"))
    with patch.dict(os.environ, credentials | region), mock_aws():
        found["dynamodb"] = ways_on(Queue.dynamodb("Tasks"))
    return found


def layers() -> list[list[str]]:
    """Return the rooms by layer, the highest first, as import-linter checks them."""
    config = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    contract = next(each for each in config["contracts"] if each.get("containers") == ["freshq"])
    return [layer.split(" | ") for layer in contract["layers"]]


def sentence(module: Path) -> str:
    """Return the first line of a module's docstring."""
    return (ast.get_docstring(ast.parse(module.read_text("utf-8"))) or "").split("\n")[0]


def rooms() -> Iterator[str]:
    """Yield the table of rooms."""
    yield "| room | what belongs there | may import |"
    yield "| --- | --- | --- |"
    order = layers()
    for place, layer in enumerate(order):
        below = ", ".join(f"`{room}`" for lower in order[place + 1 :] for room in lower)
        for room in layer:
            folder = PACKAGE / room
            inits = sorted(folder.rglob("__init__.py")) or [folder.with_suffix(".py")]
            for init in inits:
                name = init.parent.relative_to(PACKAGE).as_posix() if folder.is_dir() else room
                yield f"| `{name}` | {sentence(init)} | {below or 'nothing'} |"
    for name, (belongs, imports) in FOLDERS.items():
        yield f"| `{name}` | {belongs} | {imports} |"


def page(ways: Mapping[str, Mapping[str, Way]]) -> str:
    """Return the page."""
    table = ["| modules / functions / calls | put | claim | complete |", "| --- | ---: | ---: | ---: |"]
    table += [
        f"| {STORES[store]} | {' | '.join(way.counts() for way in of.values())} |"
        for store, of in ways.items()
    ]
    lines = [HEAD, *rooms(), "", WAYS, *table]
    for verb, title in VERBS.items():
        lines += ["", f"## {title}"]
        for store, name in STORES.items():
            lines += ["", f"### {title}: {name}", "", *ways[store][verb].lines()]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(all_ways()), "utf-8")
    print(f"wrote {PAGE.relative_to(PROJECT)}")


if __name__ == "__main__":
    main()
