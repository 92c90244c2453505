"""Mutation testing: mutmut changes one expression of a room at a time, and the fast tests must fail.

    python -m local.mutation [ROOM ... | --today] [--sample N] [--processes N] [--report FILE]

The tests are those in memory or on SQLite, and each function must be called by one of them. mutmut cannot
change functions with a decorator or code outside functions.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

PROJECT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = PROJECT / "build" / "mutation"
PROCESS: Final = Path(__file__).with_name("mutmut_process.py")
REASONS: Final = PROJECT / "tests" / "mutation_reasons.toml"
LEAST_KILLED_RATIO: Final = 0.85
# Rooms whose tests do not yet notice as much: 77 % of 60 mutants of worker/ were killed.
LEAST_KILLED_SO_FAR: Final = {"worker": 0.7}
# A sample fails only if a room exactly at its bar would do as badly in at most one of 500 samples.
SAMPLE_RISK: Final = 0.002
UNKNOWN: Final = "No test notices it yet."
# Runs on DynamoDB, PostgreSQL or MariaDB only, or in separate processes.
NOT_MUTATED: Final = (
    "freshq/queue/attached.py",
    "freshq/stores/dynamodb/*",
    "freshq/stores/sql/listening.py",
    "freshq/stores/sql/postgresql.py",
    "freshq/worker/serving.py",
    "freshq/worker/slot_process.py",
)
# File and class. SQLAlchemy reads the names of the first one's arguments, which mutmut's wrapper hides; the
# second one's instances are made during the import, before a mutant is chosen.
UNCHANGED_CONSTRUCTORS: Final = (
    ("stores/sql/pool.py", "class StatementPool"),
    ("stores/sql/rows.py", "class Columns"),
)
# Modules that the tests import, besides the mutated code.
COPIED: Final = ("tests", "benchmarks", "docs", "local", "functions")
_UNIT: Final = (
    *(f"tests/unit/{room}" for room in ("model", "policy", "queue")),
    "tests/unit/house/test_errors.py",
    "tests/unit/stores/test_table_description.py",
    "tests/unit/worker/test_worker_poison.py",
)
# A mutant runs the tests that call the function that it changes. `run` fails if there are none.
TESTS: Final = {
    "policy": ("tests/unit/policy",),
    "model": ("tests/contract", *_UNIT),
    "queue": ("tests/contract", "tests/sql/test_store.py", "tests/sql/test_transactions.py", *_UNIT),
    "stores": (
        "tests/contract",
        *(f"tests/sql/test_{name}.py" for name in ("engine", "history", "line_window", "store")),
        *(f"tests/sql/test_{name}.py" for name in ("bounded_claims", "timeouts", "transactions", "urls")),
        *("tests/sql/test_callers_connection.py", "tests/sql/test_watching.py"),
        *(f"tests/sql/test_{name}.py" for name in ("beside_transactions", "ended_sessions", "examine")),
        *(f"tests/sql/test_{name}.py" for name in ("forks", "inside_transactions", "server_settings")),
        *("tests/unit/queue/test_opening.py", "tests/unit/queue/test_async_queue.py"),
        *(f"tests/unit/stores/test_{name}.py" for name in ("clocks", "horizon", "servers", "statements")),
    ),
    "worker": (
        *("tests/unit/worker", "tests/sql/test_transaction_worker.py", "tests/contract/test_kind.py"),
        "tests/unit/model/test_codec.py",
        "tests/contract/test_parents.py",
    ),
}
# SQLite runs the tests that need a database.
# A call of a changed function takes more frames, so the test near the recursion limit does not hold there.
IN_MEMORY: Final = (
    "-k",
    "(memory or unit or test_options or (sqlite and not contract)) and not (local or recursion_limit)",
)
# Another process reads the changed modules anew, which takes longer than tests wait here.
OTHER_PROCESS: Final = (
    "tests/sql/test_forks.py::TestInATransaction::test_a_child_that_leaves_the_block_changes_nothing"
)
WITHOUT_SERVERS: Final = ("--without-servers", f"--deselect={OTHER_PROCESS}")
# Rooms that are mutated together: they share most of their tests. With --today, these groups take turns by
# day: all tests of a group run twice before its first mutant, however small the sample is.
TOGETHER: Final = (("policy", "model", "queue"), ("stores",), ("worker",))
# The time limit of a mutant: a multiple of the time of its tests, plus a constant.
TIMEOUT_MULTIPLIER: Final = 5
TIMEOUT_CONSTANT_SECONDS: Final = 4
# Options of pytest: it notices a mutant that makes a test wait forever, or ends a thread by an error. Some
# properties take ten seconds here, and several times as long on a busy machine.
LIMITS: Final = (
    "timeout = 60",
    'filterwarnings = ["error::pytest.PytestUnhandledThreadExceptionWarning"]',
)
# Statuses of noticed mutants; a mutant that never ends also counts as noticed.
KILLED: Final = ("killed", "timeout", "segfault", "caught by type check")


@dataclass(frozen=True)
class Mutant:
    """A change and its outcome."""

    room: str
    name: str
    status: str
    change: str

    @property
    def killed(self) -> bool:
        """Whether a test noticed it."""
        return self.status in KILLED

    @property
    def function(self) -> str:
        """The function that it changes."""
        return readable(self.name.partition("__mutmut_")[0])

    @property
    def lines(self) -> tuple[str, str]:
        """The removed and the added lines."""
        lines = self.change.splitlines()[2:]
        parts = ([line[1:].strip() for line in lines if line.startswith(sign)] for sign in "-+")
        removed, added = (" ".join(part) for part in parts)
        return removed, added


def readable(function: str) -> str:
    """Return the name of a function from mutmut's form."""
    module, _, mangled = function.rpartition(".")
    return f"{module}.{mangled.removeprefix('xǁ').removeprefix('x_').replace('ǁ', '.')}"


@dataclass(frozen=True)
class Run:
    """The result of a run.

    Attributes:
        mutants: The tried mutants.
        counts: Number of all mutants by room.
        seed: Seed of the random sample.
    """

    mutants: list[Mutant]
    counts: Mapping[str, int]
    seed: int


def prepare(folder: Path, rooms: list[str]) -> None:
    """Lay the package out as mutmut expects it: at the root, next to its tests."""
    shutil.rmtree(folder, ignore_errors=True)
    unwanted = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PROJECT / "layers/freshq/freshq", folder / "freshq", ignore=unwanted)
    for name in COPIED:
        shutil.copytree(PROJECT / name, folder / name, ignore=unwanted)
    for file, name in UNCHANGED_CONSTRUCTORS:
        _leave_constructor(folder / "freshq", file, name)
    patience = "from typing import Final\n\nPATIENCE_SECONDS: Final = 20.0\n"
    (folder / "tests/support/patience.py").write_text(patience, "utf-8")
    tests = list(dict.fromkeys(test for room in rooms for test in TESTS[room]))
    settings = {
        "source_paths": ["freshq"],
        "only_mutate": [f"freshq/{room}/*" for room in rooms],
        "do_not_mutate": list(NOT_MUTATED),
        "also_copy": [name for name in COPIED if name != "tests"],
        "timeout_multiplier": TIMEOUT_MULTIPLIER,
        "timeout_constant": TIMEOUT_CONSTANT_SECONDS,
        "pytest_add_cli_args": [
            *(WITHOUT_SERVERS if {"stores", "worker"} & {*rooms} else IN_MEMORY),
            "-p",
            "no:cacheprovider",
            "-p",
            "no:unraisableexception",
            # mutmut calls pytest several times in a process: loggers keep the closed streams of the first.
            "-p",
            "no:tests.support.leak_checks",
        ],
        "pytest_add_cli_args_test_selection": tests,
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
    pytest = [
        "[tool.pytest.ini_options]",
        "addopts = \"-m 'not cluster'\"",
        'markers = ["cluster: Spark"]',
        *LIMITS,
    ]
    (folder / "pyproject.toml").write_text("\n".join(["[tool.mutmut]", *lines, *pytest, ""]), "utf-8")


def _leave_constructor(package: Path, file: str, name: str) -> None:
    """Tell mutmut to leave the constructor of a class unchanged."""
    before, start, after = (package / file).read_text("utf-8").partition(name)
    marked = after.replace(") -> None:", ") -> None:  # pragma: no mutate block", 1)
    (package / file).write_text(before + start + marked, "utf-8")


def run(folder: Path, sample: int, processes: int) -> Run:
    """Run mutmut on all mutants, or on `sample` of each room, in a number of processes.

    Raises:
        SystemExit: If it failed: a test fails without a change, or no test calls a function.
    """
    results = folder / "results.json"
    arguments = [str(sample), str(processes), str(results)]
    done = subprocess.run([sys.executable, str(PROCESS), *arguments], cwd=folder, check=False)
    if done.returncode or not results.exists():
        sys.exit("mutation: mutmut failed; see its output above")
    found = json.loads(results.read_text("utf-8"))
    if functions := ", ".join(map(readable, found.get("uncalled", ()))):
        sys.exit(f"mutation: no test calls {functions}; add one, or its module to TESTS in local/mutation.py")
    return Run([Mutant(**entry) for entry in found["mutants"]], found["counts"], found["seed"])


def rooms_of(day: date) -> list[str]:
    """Return the rooms whose turn it is on a day."""
    return list(TOGETHER[day.toordinal() % len(TOGETHER)])


def run_rooms(rooms: list[str], sample: int, processes: int) -> Run:
    """Prepare and run the mutants of rooms; rooms that share their tests run together."""
    runs = []
    for together in TOGETHER:
        chosen: list[str] = [room for room in together if room in rooms]
        if chosen:
            folder = FOLDER / "-".join(chosen)
            prepare(folder, chosen)
            runs.append(run(folder, sample, processes))
    mutants = [mutant for each in runs for mutant in each.mutants]
    return Run(mutants, {room: count for each in runs for room, count in each.counts.items()}, runs[0].seed)


class Reasons:
    """Reasons for surviving mutants."""

    def __init__(self, text: str) -> None:
        """Read them from TOML; see `REASONS`."""
        entries = tomllib.loads(text)
        self._changes = entries.get("change", [])
        self._survivors = {
            (entry["function"], entry["removed"], entry["added"]): entry["reason"]
            for entry in entries.get("survivor", [])
        }

    def all(self) -> list[str]:
        """Return each reason."""
        return [*self._survivors.values(), *(change["reason"] for change in self._changes)]

    def of(self, mutant: Mutant) -> str | None:
        """Return the reason for a surviving mutant; None if there is none."""
        removed, added = mutant.lines
        for change in self._changes:
            if added in [removed.replace(change["removed"], text) for text in change["added"]]:
                return str(change["reason"])
        return self._survivors.get((mutant.function, removed, added))


def killed_ratios(mutants: list[Mutant]) -> dict[str, float]:
    """Return the share of the mutants of each room that a test noticed."""
    tried = Counter(mutant.room for mutant in mutants)
    killed = Counter(mutant.room for mutant in mutants if mutant.killed)
    return {room: killed[room] / count for room, count in tried.items()}


def report(run: Run, known: Reasons) -> str:
    """Return the page that docs/contributing/mutation.md shows."""
    day = datetime.now(UTC).date().isoformat()
    left_out = ", ".join(f"`{name.removeprefix('freshq/')}`" for name in NOT_MUTATED)
    lines = [
        "# Mutation testing",
        "",
        "mutmut changes one expression at a time, and the tests that run in memory or on SQLite must notice.",
        "`make mutation` tries every mutant, or a random SAMPLE of each room, and writes this page. CI runs",
        "`make mutation-sample`, a few of the rooms whose turn it is that day. Both fail if no test calls",
        "one of the functions, or if",
        f"less than {LEAST_KILLED_RATIO:.0%} of the mutants of a room are killed; so far,",
        f"{LEAST_KILLED_SO_FAR['worker']:.0%} suffice in `worker/`. A sample fails only beyond chance.",
        "mutmut changes neither functions with a decorator nor code outside functions, and this leaves out",
        f"code that runs elsewhere only: {left_out},",
        "and the functions of `stores/` that only database servers need.",
        "",
        f"Run of {day}. Where fewer were tried than there are, they are a random sample, seed {run.seed}.",
        "",
        "| room | mutants | tried | killed | of these by a timeout | survived | no test | killed, % |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [_figures(run, room) for room in killed_ratios(run.mutants)]
    lines += ["", "## Survivors", "", "| function | change | reason |", "| --- | --- | --- |"]
    survivors = [mutant for mutant in run.mutants if not mutant.killed]
    lines += [_survivor(mutant, known) for mutant in sorted(survivors, key=lambda mutant: mutant.name)]
    return "\n".join([*lines, ""])


def _figures(run: Run, room: str) -> str:
    own = [mutant for mutant in run.mutants if mutant.room == room]
    status = Counter(mutant.status for mutant in own)
    killed = sum(mutant.killed for mutant in own)
    no_test = len(own) - killed - status["survived"]
    figures = (run.counts[room], len(own), killed, status["timeout"], status["survived"], no_test)
    return f"| {room} | {' | '.join(map(str, figures))} | {100 * killed / len(own):.1f} |"


def _survivor(mutant: Mutant, known: Reasons) -> str:
    removed, added = mutant.lines
    change = f"`{removed}` → `{added}`".replace("|", "\\|")
    return f"| `{mutant.function.removeprefix('freshq.')}` | {change} | {known.of(mutant) or UNKNOWN} |"


def least_killed(tried: int, ratio: float) -> int:
    """Return the number of mutants of a random sample that must be killed for a room to pass.

    Args:
        tried: Size of the sample.
        ratio: The bar of the room: the part of all its mutants that must be killed.
    """
    so_few = 0.0
    for killed in range(tried):
        so_few += math.comb(tried, killed) * ratio**killed * (1 - ratio) ** (tried - killed)
        if so_few > SAMPLE_RISK:
            return killed
    return tried


def is_weak(run: Run, room: str) -> bool:
    """Return whether too few mutants of a room were killed."""
    ratio = LEAST_KILLED_SO_FAR.get(room, LEAST_KILLED_RATIO)
    own = [mutant for mutant in run.mutants if mutant.room == room]
    killed = sum(mutant.killed for mutant in own)
    if own and len(own) < run.counts[room]:
        return killed < least_killed(len(own), ratio)
    return not own or killed < ratio * len(own)


def parse_arguments() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(prog="mutation", description=__doc__)
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"of {', '.join(TESTS)}; by default all")
    parser.add_argument("--today", action="store_true", help="the rooms whose turn is today, a third of all")
    parser.add_argument("--sample", type=int, default=0, help="mutants of each room; 0 means all")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="by default one per core")
    parser.add_argument("--report", type=Path, help="file for the page")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.rooms) - TESTS.keys()):
        parser.error(f"no room {', '.join(unknown)}; choose from {', '.join(TESTS)}")
    if arguments.today and arguments.rooms:
        parser.error("--today chooses the rooms: name none")
    return arguments


def main() -> None:
    """Run the mutants, write the page, and fail if too many survive."""
    arguments = parse_arguments()
    rooms = rooms_of(datetime.now(UTC).date()) if arguments.today else arguments.rooms or list(TESTS)
    done = run_rooms(rooms, arguments.sample, arguments.processes)
    if arguments.report:
        arguments.report.write_text(report(done, Reasons(REASONS.read_text("utf-8"))), "utf-8")
    for mutant in done.mutants:
        if not mutant.killed:
            print(mutant.status, mutant.function, *mutant.lines, sep=" | ")
    ratios = killed_ratios(done.mutants)
    print(*(f"{room}: {ratio:.1%} killed" for room, ratio in ratios.items()), sep="\n")
    if weak := [room for room in rooms if is_weak(done, room)]:
        sys.exit(f"mutation: too few mutants were killed in {', '.join(weak)}")


if __name__ == "__main__":
    main()
