"""`make coverage`: branch coverage of the fast tests, by room, into docs/coverage.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

PROJECT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = "layers/freshq/freshq/"
OUT: Final = PROJECT / "build" / "coverage"
PAGE: Final = PROJECT / "docs" / "coverage.md"
TESTS: Final = ("tests/unit", "tests/contract", "tests/sql")
# They take minutes, and only check what the simulator computes.
SLOW: Final = ("tests/unit/simulate/test_simulate_bars.py", "tests/unit/simulate/test_simulate_theory.py")
# Rooms whose coverage must not fall below the threshold.
GUARDED: Final = ("model", "policy", "queue", "stores")
THRESHOLD_PERCENT: Final = 90.0

HEAD: Final = """\
# Coverage

`make coverage` writes this page: branch coverage of the fast tests (unit, contract and SQL), by room. It
fails if `model`, `policy`, `queue` or `stores` is below 90 %. The total counts lines and branches together,
as coverage.py does. It needs DynamoDB Local, PostgreSQL and MariaDB, as the tests do. The end-to-end,
template and pipeline tests are not included.

| room | lines | branches | total |
| --- | ---: | ---: | ---: |
"""


def measure() -> dict[str, Any]:
    """Run the fast tests under coverage.py and return its JSON report; exit as the tests do if they fail."""
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
    """Return the covered share of some kinds, each the names of its covered and of all; 100 of none."""
    covered = sum(counts[name] for name, _ in kinds)
    every = sum(counts[name] for _, name in kinds)
    return 100.0 * covered / every if every else 100.0


LINES: Final = ("covered_lines", "num_statements")
BRANCHES: Final = ("covered_branches", "num_branches")


def table(rooms: Mapping[str, Mapping[str, int]]) -> str:
    """Return the rows of the page, in whole percent, rounded down."""
    shown = [
        [f"{int(percent(counts, *kinds))} %" for kinds in ((LINES,), (BRANCHES,), (LINES, BRANCHES))]
        for counts in rooms.values()
    ]
    return "".join(f"| {room} | {' | '.join(cells)} |\n" for room, cells in zip(rooms, shown, strict=True))


def below_threshold(rooms: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return a line for each guarded room that is missing or below the threshold."""
    totals = {room: percent(rooms[room], LINES, BRANCHES) if room in rooms else 0.0 for room in GUARDED}
    return [
        f"coverage: {room} is at {total:.1f} %, below {THRESHOLD_PERCENT:g} %"
        for room, total in totals.items()
        if total < THRESHOLD_PERCENT
    ]


def main() -> int:
    """Measure, write the page, and return 1 if a guarded room is below the threshold."""
    rooms = by_room(measure())
    rows = table(rooms)
    PAGE.write_text(HEAD + rows, "utf-8")
    print(rows, end="")
    problems = below_threshold(rooms)
    print(*problems, sep="\n", end="", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
