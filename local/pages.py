"""Write the contributors' pages from the code.

    python -m local.pages architecture   # the rooms, and the functions that each verb enters
    python -m local.pages coverage       # branch coverage of the fast tests by room
    python -m local.pages picture        # a run of `freshq demo` as a picture that moves
    python -m local.pages sql            # the statements that are built in Python, in each dialect

Each verb runs under a profile function, so the architecture page names the functions that really run.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import time
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property, partial
from inspect import cleandoc
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from unittest.mock import patch

import sqlalchemy as sa
from moto import mock_aws
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from freshq import Queue
from freshq.cli.commands.demo import (
    CAPACITY_PER_SECOND,
    FATES,
    RATE_PER_SECOND,
    Plan,
    contestants,
    offered,
    wait_text,
)
from freshq.simulate.sweep import Colour
from freshq.stores.sql.migrations import CHANGES, Triggers
from freshq.stores.sql.records import RecordStatements
from freshq.stores.sql.schema import schema
from freshq.stores.sql.tasks import GUARDS, PutStatements, SettleStatements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import FrameType

    from freshq.cli.commands.demo import Standing
    from freshq.stores.sql.statements import Statements

PROJECT: Final = Path(__file__).resolve().parent.parent
FRESHQ: Final = PROJECT / "layers" / "freshq" / "freshq"
ARCHITECTURE: Final = PROJECT / "docs" / "contributing" / "architecture.md"
COVERAGE: Final = PROJECT / "docs" / "contributing" / "coverage.md"
OUT: Final = PROJECT / "build" / "coverage"
STORES: Final = {"memory": "In memory", "sqlite": "SQLite", "dynamodb": "DynamoDB"}
VERBS: Final = {"put": "A put", "claim": "A claim", "complete": "A completion"}
# Separate functions only before Python 3.12.
COMPREHENSIONS: Final = frozenset({"<listcomp>", "<setcomp>", "<dictcomp>"})
# These tasks go first, to fill caches and announce the line.
WARM_TASKS: Final = 3
# Every few seconds a verb also writes counts or reads a record, so the shortest of three rounds counts.
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
ROOMS_HEAD: Final = """# Architecture

`make architecture` writes this page from the code, and a test keeps the table of rooms and the lists for
memory and SQLite up to date.

## Rooms

A room is a folder of `layers/freshq/freshq` with one purpose. It may import only the rooms in its row;
import-linter enforces that in `make check`. Only `stores` and `matching/stores` know a database, and only
`aws` and `functions/` know Lambda. `policy`, `model` and `simulate` receive time, counters and random numbers
as arguments, so the worker, the simulator and the pipeline run the same objects.
"""
WAYS_HEAD: Final = """## The way of a verb

Follow one put, one claim and one completion through the code. Each list names the functions of freshq that
the call enters, in order of first entry and grouped by module. Three earlier tasks have warmed the caches.
"""
PACKAGE: Final = "layers/freshq/freshq/"
TESTS: Final = ("tests/unit", "tests/contract", "tests/sql")
# These take minutes and only check the simulator's results.
SLOW: Final = ("tests/unit/simulate/test_simulate_bars.py", "tests/unit/simulate/test_simulate_theory.py")
# Rooms whose coverage must not fall below the threshold.
GUARDED: Final = ("model", "policy", "queue", "stores")
THRESHOLD_PERCENT: Final = 90.0
COVERAGE_HEAD: Final = """\
# Coverage

`make coverage` writes this page: branch coverage of the fast tests (unit, contract and SQL), by room. It
fails if `model`, `policy`, `queue` or `stores` is below 90 %. The total counts lines and branches together,
as coverage.py does. It needs DynamoDB Local, PostgreSQL and MariaDB, as the tests do. The end-to-end,
template and pipeline tests are not included.

| room | lines | branches | total |
| --- | ---: | ---: | ---: |
"""
STATEMENTS: Final = ("covered_lines", "num_statements")
BRANCHES: Final = ("covered_branches", "num_branches")


@dataclass
class Way:
    """The functions of freshq that one call enters.

    Attributes:
        calls: Number of entries by module and qualified name, in order of first entry.
    """

    calls: Counter[tuple[str, str]] = field(default_factory=Counter)

    def see(self, frame: FrameType, event: str, _argument: object) -> None:
        """Count a call; the signature is `sys.setprofile`'s."""
        code = frame.f_code
        if event == "call" and code.co_name not in COMPREHENSIONS:
            file = Path(code.co_filename)
            if file.is_relative_to(FRESHQ):
                self.calls[file.relative_to(FRESHQ).as_posix(), code.co_qualname] += 1

    def counts(self) -> str:
        """Return the numbers of modules, functions and calls as a cell of a table."""
        modules = {module for module, _ in self.calls}
        return f"{len(modules)} / {len(self.calls)} / {self.calls.total()}"

    def lines(self) -> Iterator[str]:
        """Yield one list item for each run of functions in the same module."""
        for module, functions in groupby(self.calls, key=lambda key: key[0]):
            yield f"1. `{module}`: " + ", ".join(f"`{name}`" for _, name in functions)


def followed(call: Callable[[], Any]) -> tuple[Way, Any]:
    """Return the way of a call and its result."""
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
        queue.complete(queue.claim()[0], result={"ok": 1})
    shortest: dict[str, Way] = {}
    for number in range(ROUNDS):
        put, _ = followed(partial(queue.put, {"n": number}, task_id=f"task-{number}"))
        claim, claims = followed(queue.claim)
        complete, _ = followed(partial(queue.complete, claims[0], result={"ok": 1}))
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


def room_rows() -> Iterator[str]:
    """Yield the table of rooms."""
    yield "| room | what belongs there | may import |"
    yield "| --- | --- | --- |"
    order = layers()
    for place, layer in enumerate(order):
        below = ", ".join(f"`{room}`" for lower in order[place + 1 :] for room in lower)
        for room in layer:
            folder = FRESHQ / room
            inits = sorted(folder.rglob("__init__.py")) or [folder.with_suffix(".py")]
            for init in inits:
                name = init.parent.relative_to(FRESHQ).as_posix() if folder.is_dir() else room
                yield f"| `{name}` | {sentence(init)} | {below or 'nothing'} |"
    for name, (belongs, imports) in FOLDERS.items():
        yield f"| `{name}` | {belongs} | {imports} |"


def architecture_page(ways: Mapping[str, Mapping[str, Way]]) -> str:
    """Return the page."""
    table = ["| modules / functions / calls | put | claim | complete |", "| --- | ---: | ---: | ---: |"]
    table += [
        f"| {STORES[store]} | {' | '.join(way.counts() for way in of.values())} |"
        for store, of in ways.items()
    ]
    lines = [ROOMS_HEAD, *room_rows(), "", WAYS_HEAD, *table]
    for verb, title in VERBS.items():
        lines += ["", f"## {title}"]
        for store, name in STORES.items():
            lines += ["", f"### {title}: {name}", "", *ways[store][verb].lines()]
    return "\n".join(lines) + "\n"


def write_architecture() -> int:
    """Write the page; return 0."""
    ARCHITECTURE.write_text(architecture_page(all_ways()), "utf-8")
    print(f"wrote {ARCHITECTURE.relative_to(PROJECT)}")
    return 0


def measure() -> dict[str, Any]:
    """Run the fast tests under coverage.py and return its JSON report; exit if they fail."""
    OUT.mkdir(parents=True, exist_ok=True)
    report = OUT / "coverage.json"
    command = [sys.executable, "-m", "pytest", "--quiet", "--numprocesses", "2", *TESTS]
    command += [f"--ignore={path}" for path in SLOW]
    command += ["--cov", "--cov-branch", f"--cov-report=json:{report}"]
    environment = os.environ | {"COVERAGE_FILE": str(OUT / "data")}
    done = subprocess.run(command, cwd=PROJECT, env=environment, check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)
    measured: dict[str, Any] = json.loads(report.read_text("utf-8"))
    return measured


def by_room(report: Mapping[str, Any]) -> dict[str, Counter[str]]:
    """Return the counts of coverage.py's JSON report, added up by room; modules of the root are `freshq`."""
    rooms: dict[str, Counter[str]] = {}
    for path, file in report["files"].items():
        inside = path.removeprefix(PACKAGE)
        room = inside.split("/")[0] if "/" in inside else "freshq"
        counts = {name: value for name, value in file["summary"].items() if isinstance(value, int)}
        rooms.setdefault(room, Counter()).update(counts)
    return dict(sorted(rooms.items()))


def percent(counts: Mapping[str, int], *kinds: tuple[str, str]) -> float:
    """Return the covered percentage of kinds (names of covered and all); 100 if there are none."""
    covered = sum(counts[name] for name, _ in kinds)
    every = sum(counts[name] for _, name in kinds)
    return 100.0 * covered / every if every else 100.0


def coverage_rows(rooms: Mapping[str, Mapping[str, int]]) -> str:
    """Return the rows of the page in whole percent, rounded down."""
    shown = [
        [
            f"{int(percent(counts, *kinds))} %"
            for kinds in ((STATEMENTS,), (BRANCHES,), (STATEMENTS, BRANCHES))
        ]
        for counts in rooms.values()
    ]
    return "".join(f"| {room} | {' | '.join(cells)} |\n" for room, cells in zip(rooms, shown, strict=True))


def below_threshold(rooms: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return a line for each guarded room that is missing or below the threshold."""
    totals = {room: percent(rooms[room], STATEMENTS, BRANCHES) if room in rooms else 0.0 for room in GUARDED}
    return [
        f"coverage: {room} is at {total:.1f} %, below {THRESHOLD_PERCENT:g} %"
        for room, total in totals.items()
        if total < THRESHOLD_PERCENT
    ]


def write_coverage() -> int:
    """Measure, write the page, and return 1 if a guarded room is below the threshold."""
    rooms = by_room(measure())
    rows = coverage_rows(rooms)
    COVERAGE.write_text(COVERAGE_HEAD + rows, "utf-8")
    print(rows, end="")
    problems = below_threshold(rooms)
    print(*problems, sep="\n", end="", file=sys.stderr)
    return 1 if problems else 0


PICTURE: Final = PROJECT / "docs" / "demo.svg"
DEMO_SECONDS: Final = 20
# Sizes of the picture: width, height of a queue and of a row, end of the counts, start of the bars.
PICTURE_SIZE: Final = (760, 250)
PANEL_WIDTH: Final = 350
ROW_HEIGHT: Final = 26
COUNT_X: Final = 194
BAR_X: Final = 206
BAR_WIDTH: Final = PANEL_WIDTH - BAR_X
FATE_COLOURS: Final = {
    "in_time": Colour.SUCCESS,
    "late": Colour.FAILURE,
    "shed": Colour.SHED,
    "waiting": Colour.PENDING,
}
# It plays once; if readers prefer reduced motion, it shows the last frame. Its own colours fit both a light
# and a dark page.
PICTURE_STYLE: Final = """
text{{font:15px system-ui,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;fill:#e6ecf2}}
.h{{font-weight:700;font-size:17px}}.m{{fill:#9fadba;font-size:13px}}.n{{text-anchor:end}}
.s{{transform:translateY(-{end}px);animation:s {seconds}s steps({seconds})}}
@keyframes s{{from{{transform:translateY(0)}}}}
rect[class]{{animation-duration:{seconds}s;animation-timing-function:linear}}
@media (prefers-reduced-motion:reduce){{.s,rect[class]{{animation:none!important}}}}
"""


def recorded_demo(plan: Plan) -> list[tuple[Standing, ...]]:
    """Run the demonstration; return the fates of both queues' tasks at each second, and after the end."""
    both = contestants(plan).values()
    with offered(plan, both):
        began, seen = time.monotonic(), []
        for second in range(round(plan.total_seconds)):
            time.sleep(max(0.0, began + second - time.monotonic()))
            seen.append(tuple(each.standing() for each in both))
        time.sleep(max(0.0, began + plan.total_seconds - time.monotonic()))
    return [*seen, tuple(each.standing() for each in both)]


def moving_picture(plan: Plan, frames: Sequence[Sequence[Standing]]) -> str:
    """Return a recorded demonstration as an SVG that plays it once, a frame a second."""
    last = [
        f"{name}: {each.in_time:,} of {plan.tasks:,} tasks in time"
        for name, each in zip(NAMES, frames[-1], strict=True)
    ]
    style = PICTURE_STYLE.format(end=ROW_HEIGHT * (len(frames) - 1), seconds=len(frames) - 1)
    width, height = PICTURE_SIZE
    head = (
        f"Both are offered {RATE_PER_SECOND:g} tasks a second and can do {CAPACITY_PER_SECOND:g}. "
        f"A task is worth nothing after {plan.deadline_seconds:g} s."
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"',
        f'aria-label="{"; ".join(last)}">',
        f"<style>{style}</style>",
        f'<clipPath id="c"><rect x="-200" y="-18" width="200" height="{ROW_HEIGHT}"/></clipPath>',
        f'<rect width="{width}" height="{height}" rx="12" fill="#151c24"/>',
        f'<text x="20" y="32">{head}</text>',
        *_panels(plan, frames),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


NAMES: Final = ("newest first (freshq)", "first in, first out")


def _panels(plan: Plan, frames: Sequence[Sequence[Standing]]) -> Iterator[str]:
    for number, name in enumerate(NAMES):
        of_one = [frame[number] for frame in frames]
        yield f'<g transform="translate({20 + number * (PANEL_WIDTH + 20)} 72)"><text class="h">{name}</text>'
        for row, (fate, label, _colour) in enumerate(FATES):
            counts = [getattr(each, fate) for each in of_one]
            yield from _row(
                f"{'ab'[number]}{row}", label, counts, plan.tasks, 32 + row * ROW_HEIGHT, FATE_COLOURS[fate]
            )
        waits = (
            "-" if each.last_wait_seconds is None else wait_text(each.last_wait_seconds) for each in of_one
        )
        y = 44 + len(FATES) * ROW_HEIGHT
        yield f'<text class="m" y="{y}">the task done last waited</text>{_strip(waits, COUNT_X + 40, y)}</g>'


def _row(key: str, label: str, counts: Sequence[int], most: int, y: int, colour: str) -> Iterator[str]:
    """Yield the name, the count and the bar of one fate."""
    shares = [count / most for count in counts]
    steps = "".join(
        f"{100 * n / (len(shares) - 1):g}%{{transform:scaleX({share:.3f})}}" for n, share in enumerate(shares)
    )
    yield f'<text y="{y}">{label}</text>{_strip((f"{count:,}" for count in counts), COUNT_X, y)}'
    end = f"animation-name:{key};transform:scaleX({shares[-1]:.3f})"
    yield f"<style>@keyframes {key}{{{steps}}}.{key}{{{end}}}</style>"
    bar = f'<rect class="{key}" width="{BAR_WIDTH}" height="15" rx="2" fill="{colour}"/>'
    yield f'<g transform="translate({BAR_X} {y - 13})">{bar}</g>'


def _strip(texts: Iterable[str], x: int, y: int) -> str:
    """Return texts stacked vertically, one of which is visible at a time."""
    lines = "".join(f'<text class="n" y="{n * ROW_HEIGHT}">{text}</text>' for n, text in enumerate(texts))
    return f'<g transform="translate({x} {y})"><g clip-path="url(#c)"><g class="s">{lines}</g></g></g>'


def write_picture() -> int:
    """Record and write the picture; return 0."""
    plan = Plan(DEMO_SECONDS)
    PICTURE.write_text(moving_picture(plan, recorded_demo(plan)), "utf-8")
    return 0


SQL_FOLDER: Final = PROJECT / "docs" / "contributing" / "sql"
# Placeholders by name, for readers.
DIALECTS: Final[Mapping[str, sa.Dialect]] = {
    "sqlite": sqlite.dialect(paramstyle="named"),
    "postgresql": postgresql.psycopg.dialect(paramstyle="named"),  # type: ignore[no-untyped-call]
    "mariadb": mysql.pymysql.dialect(paramstyle="named", is_mariadb=True),
}
SQL_HEAD: Final = """\
-- `make sql-statements` writes this file: the tables, and the statements that are built in Python. The others
-- are text already, in the .sql files of layers/freshq/freshq/stores/sql.
"""
WIDTH: Final = 118
# SQLAlchemy begins a line with most clauses; with these it does not.
CLAUSE: Final = re.compile(
    r" (?=(?:SET|SELECT|VALUES|WHERE|AND|JOIN|ORDER BY|FOR UPDATE|RETURNING|ON CONFLICT|ON DUPLICATE)\b)"
)
SECTIONS: Final[Mapping[str, type[Statements]]] = {
    "put": PutStatements,
    "settle": SettleStatements,
    "records": RecordStatements,
}
RETURNING: Final = ("sqlite", "postgresql")
# Statements that only some databases run.
ONLY: Final[Mapping[str, tuple[str, ...]]] = {
    "replace_many": ("postgresql",),
    "finish_many": RETURNING,
}
PARAMETER: Final = re.compile(r"(?<!:):([a-z]\w*)")
EXPANDING: Final = re.compile(r"\(__\[POSTCOMPILE_(\w+)\]\)")


class Entry(NamedTuple):
    """A statement.

    Attributes:
        name: Its section, its name and its variant.
        says: The purpose of the statement.
        text: Its text, formatted.
    """

    name: str
    says: str
    text: str


def entries(dialect: str) -> Iterator[Entry]:
    """Yield the statements of a dialect: of tables, of histories' triggers, and of verbs."""
    tables = schema("tasks", dialect)
    for table in tables.metadata.sorted_tables:
        made: list[CreateTable | CreateIndex] = [CreateTable(table)]
        made += (CreateIndex(index) for index in sorted(table.indexes, key=str))
        texts = [_formatted(str(each.compile(dialect=DIALECTS[dialect]))) for each in made]
        yield Entry(f"table {table.name}", "", ";\n".join(texts))
    yield from _triggers(dialect)
    for section, of_class in SECTIONS.items():
        shown: set[str] = set()
        for entry in _of_section(section, of_class, dialect):
            # A statement is listed once, whether or not it is also prepared for the driver.
            if entry.text not in shown:
                shown.add(entry.text)
                yield entry


def _triggers(dialect: str) -> Iterator[Entry]:
    place = "public." if dialect == "postgresql" else ""
    triggers = Triggers(schema("tasks", dialect), DIALECTS[dialect], lambda _table: place)
    for event in CHANGES:
        text = ";\n".join(map(_formatted, triggers.texts(event)))
        yield Entry(f"trigger {event}", "Keep the recorded events, if the queue has a history.", text)


def _of_section(section: str, of_class: type[Statements], dialect: str) -> Iterator[Entry]:
    # Keep the statement, which can be compiled to readable text, not the driver's input.
    readable = type(of_class.__name__, (of_class,), {"prepared": lambda _self, statement, *_: statement})
    statements = readable(schema("tasks", dialect), DIALECTS[dialect])
    for name, member in vars(of_class).items():
        if not isinstance(member, cached_property) or name.startswith("_"):
            continue
        if dialect in ONLY.get(name, (dialect,)):
            for variant, statement in _variants(getattr(statements, name)):
                if isinstance(statement, sa.SelectBase | sa.Insert | sa.Update | sa.Delete | sa.TextClause):
                    title = f"{section}: {name}{variant}"
                    yield Entry(title, cleandoc(member.__doc__ or ""), _text(statement, dialect))


def _variants(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the statements of one property, each with its difference from the others."""
    if isinstance(value, dict):
        yield from ((f", {_key(key)}", statement) for key, statement in value.items())
    else:
        yield "", value


def _key(key: object) -> str:
    if key in GUARDS:
        by_lease, by_version = key
        return f"guarded by status{', lease' * by_lease}{', version' * by_version}"
    return str(key)


def _text(statement: sa.ClauseElement, dialect: str) -> str:
    """Return a statement with named parameters, and with the values that never change."""
    compiled: Any = statement.compile(dialect=DIALECTS[dialect])
    constants = {name: value for name, value in compiled.params.items() if value is not None}
    text = EXPANDING.sub(r"(:\1)", str(compiled))
    return _formatted(
        PARAMETER.sub(lambda found: repr(constants[found[1]]) if found[1] in constants else found[0], text)
    )


def _formatted(text: str) -> str:
    """Return a statement with a clause a line, indented by the parentheses around it."""
    lines: list[str] = []
    depth = 0
    for line in CLAUSE.sub("\n", text).replace("(SELECT", "(\nSELECT").splitlines():
        indent = "  " * depth
        wrapped = textwrap.wrap(
            line.strip(),
            WIDTH,
            initial_indent=indent,
            subsequent_indent=f"{indent}    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines += wrapped
        depth += line.count("(") - line.count(")")
    return "\n".join(lines)


def sql_page(dialect: str) -> str:
    """Return the file of a dialect."""
    parts = [SQL_HEAD]
    for name, says, text in entries(dialect):
        head = "\n".join(f"-- {line}".rstrip() for line in [name, *says.splitlines()])
        parts.append(f"{head}\n{text};\n")
    return "\n".join(parts)


def write_sql() -> int:
    """Write the files of statements; return 0."""
    SQL_FOLDER.mkdir(exist_ok=True)
    for dialect in DIALECTS:
        (SQL_FOLDER / f"{dialect}.sql").write_text(sql_page(dialect), "utf-8")
    return 0


if __name__ == "__main__":
    written = {
        "architecture": write_architecture,
        "coverage": write_coverage,
        "picture": write_picture,
        "sql": write_sql,
    }
    sys.exit(written[sys.argv[1]]())
