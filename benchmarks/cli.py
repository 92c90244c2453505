"""Processor time of commands of `freshq`, beside the imports of packages that it is made of."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import figures
from freshq import Queue

if TYPE_CHECKING:
    from collections.abc import Callable

# The most that a command may take, in processor seconds.
LIMITS: Final = {"freshq --help": 0.35, "freshq put": 0.5, "freshq claim": 0.5, "freshq done": 0.5}


def processor_seconds(arguments: list[str]) -> float:
    """Return the processor time of a program, that of the system included."""
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL) as program:
        _, status, used = os.wait4(program.pid, 0)
        program.returncode = os.waitstatus_to_exitcode(status)
    if program.returncode:
        raise subprocess.CalledProcessError(program.returncode, arguments)
    return used.ru_utime + used.ru_stime


def contenders(url: str) -> dict[str, Callable[[], list[str]]]:
    """Return by name what makes the arguments of the next run; commands work on the queue of a URL."""
    freshq = [sys.executable, "-m", "freshq.cli"]

    def filled() -> list[str]:
        with closing(Queue.sql(url)) as queue:
            queue.put("work")
        return [*freshq, "claim", "--queue", url]

    def held() -> list[str]:
        with closing(Queue.sql(url)) as queue:
            queue.put("work")
            (claim,) = queue.claim()
        return [*freshq, "done", claim.task.task_id, "--token", claim.token, "--queue", url]

    return {
        "freshq --help": lambda: [*freshq, "--help"],
        "freshq put": lambda: [*freshq, "put", "1", "--queue", url],
        "freshq claim": filled,
        "freshq done": held,
        "import boto3": lambda: [sys.executable, "-c", "import boto3"],
        "import sqlalchemy": lambda: [sys.executable, "-c", "import sqlalchemy"],
        "import typer": lambda: [sys.executable, "-c", "import typer"],
        "import nothing": lambda: [sys.executable, "-c", ""],
    }


def measure(url: str, rounds: int) -> dict[str, float]:
    """Return the median processor time of each, in seconds, of runs in turns."""
    each = contenders(url)
    seconds: dict[str, list[float]] = {name: [] for name in each}
    for _ in track(range(rounds + 1), "rounds", console=Console(stderr=True)):
        for name, arguments in each.items():
            seconds[name].append(processor_seconds(arguments()))
    # The first round writes bytecode.
    return {name: round(median(runs[1:]), 3) for name, runs in seconds.items()}


def main() -> None:
    """Measure, print and write the figures; fail if a command takes longer than its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="freshq-cli-") as folder:
        url = f"sqlite:///{Path(folder) / 'tasks.db'}"
        with closing(Queue.sql(url)) as queue:
            queue.create_table()
        medians = measure(url, arguments.rounds)
    table = Table("program", "processor seconds", "at most", title=f"medians of {arguments.rounds} runs")
    for name, seconds in medians.items():
        table.add_row(name, f"{seconds:.3f}", f"{LIMITS[name]:.2f}" if name in LIMITS else "")
    Console().print(table)
    report = {"rounds": arguments.rounds, "processor_seconds": medians, "at_most": LIMITS}
    figures.write("cli", report, ("boto3", "sqlalchemy", "typer"))
    if late := [name for name, seconds in LIMITS.items() if medians[name] > seconds]:
        sys.exit(f"over the limit: {', '.join(late)}")


if __name__ == "__main__":
    main()
