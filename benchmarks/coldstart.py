"""Processor time of each function's cold start, against the layer as an earlier commit built it.

A start is the import of the handler, and the clients that its first invocation needs. Both builds are for
this interpreter, and no start writes bytecode, as on Lambda. Which package takes how much of the imports is
what Python's own `-X importtime` says.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import closing
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from local.deploy import PROJECT, build, runtime_folder
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import figures
from freshq import Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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


def commands_seconds(url: str, rounds: int) -> dict[str, float]:
    """Return the median processor time of each, in seconds, of runs in turns."""
    each = contenders(url)
    seconds: dict[str, list[float]] = {name: [] for name in each}
    for _ in track(range(rounds + 1), "rounds", console=Console(stderr=True)):
        for name, arguments in each.items():
            seconds[name].append(processor_seconds(arguments()))
    # The first round writes bytecode.
    return {name: round(median(runs[1:]), 3) for name, runs in seconds.items()}


def cli_main() -> None:
    """Measure, print and write the figures; fail if a command takes longer than its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="freshq-cli-") as folder:
        url = f"sqlite:///{Path(folder) / 'tasks.db'}"
        with closing(Queue.sql(url)) as queue:
            queue.create_table()
        medians = commands_seconds(url, arguments.rounds)
    table = Table("program", "processor seconds", "at most", title=f"medians of {arguments.rounds} runs")
    for name, seconds in medians.items():
        table.add_row(name, f"{seconds:.3f}", f"{LIMITS[name]:.2f}" if name in LIMITS else "")
    Console().print(table)
    report = {"rounds": arguments.rounds, "processor_seconds": medians, "at_most": LIMITS}
    figures.write("cli", report, ("boto3", "sqlalchemy", "typer"))
    if late := [name for name, seconds in LIMITS.items() if medians[name] > seconds]:
        sys.exit(f"over the limit: {', '.join(late)}")


# The last commit whose layer had no bytecode.
BEFORE: Final = "5a96011"
FUNCTIONS: Final = {
    "create_tasks": "_queue",
    "trigger": "_wakeup",
    "process_tasks": "_connections",
    "sweep": "_connections",
    "archive": "_archive",
}
# The functions' own variables are those of `sam local invoke`.
ENVIRONMENT: Final = json.loads((PROJECT / "events" / "environment" / "dev.json").read_text())[
    "Parameters"
] | {
    "AWS_ACCESS_KEY_ID": "none",
    "AWS_SECRET_ACCESS_KEY": "none",
    "AWS_DEFAULT_REGION": "eu-west-1",
    "AWS_LAMBDA_FUNCTION_NAME": "function",
    "AWS_XRAY_DAEMON_ADDRESS": "127.0.0.1:2000",
    "LAMBDA_TASK_ROOT": "/var/task",
    "POWERTOOLS_SERVICE_NAME": "freshq",
    "POWERTOOLS_METRICS_NAMESPACE": "freshq",
    "PYDANTIC_DISABLE_PLUGINS": "__all__",
}
PROGRAM: Final = """
import json, sys, time
sys.dont_write_bytecode = True
sys.path[:0] = json.loads(sys.argv[1])
began = time.process_time()
connect_at_init = lambda connect: connect()
if json.loads(sys.argv[3]):
    from freshq.aws import environment
    connect_at_init, environment.connect_at_init = environment.connect_at_init, lambda connect: None
import app
imported = time.process_time()
connect_at_init(getattr(app, sys.argv[2]))
print(json.dumps([imported - began, time.process_time() - began]))
"""


# Of a module itself, without those that it imports.
IMPORT_LINE: Final = re.compile(r"^import time: +(\d+) \| +\d+ \| +([\w.]+)$", re.MULTILINE)
STANDARD_LIBRARY: Final = "the standard library"
LEAST_SHARE: Final = 0.01


class Variant(NamedTuple):
    """What is started.

    Attributes:
        name: Heads the columns of the report.
        application: Folder of the built application.
        untraced: Value of POWERTOOLS_TRACE_DISABLED.
    """

    name: str
    application: Path
    untraced: str


def start_seconds(variant: Variant, packages: Path, function: str) -> tuple[float, float]:
    """Return the processor time of one import of the handler, and of the import and the clients."""
    imported, connected = json.loads(started(variant, packages, function).stdout.splitlines()[-1])
    return imported, connected


def import_microseconds(variant: Variant, packages: Path, function: str) -> Counter[str]:
    """Return the time that the imports of one start take, by package."""
    report = started(variant, packages, function, "-X", "importtime").stderr
    found: Counter[str] = Counter()
    for microseconds, module in IMPORT_LINE.findall(report):
        package = module.partition(".")[0]
        found[STANDARD_LIBRARY if package in sys.stdlib_module_names else package] += int(microseconds)
    return found


def started(
    variant: Variant, packages: Path, function: str, *options: str
) -> subprocess.CompletedProcess[str]:
    """Start a function once, with options of the interpreter."""
    logical_id = "".join(part.title() for part in function.split("_")) + "Function"
    layer = variant.application / "FreshqLayer" / "python"
    # Lambda's order: the function, the layer, the runtime's own packages.
    paths = [variant.application / logical_id, layer, packages]
    at_init = (layer / "freshq/aws/settings.py").exists()
    arguments = [json.dumps([str(path) for path in paths]), FUNCTIONS[function], json.dumps(at_init)]
    tracing = {"PATH": os.environ["PATH"], "POWERTOOLS_TRACE_DISABLED": variant.untraced}
    return subprocess.run(
        [sys.executable, "-I", "-S", *options, "-c", PROGRAM, *arguments],
        env=ENVIRONMENT | tracing,
        capture_output=True,
        text=True,
        check=True,
    )


def build_commit(commit: str, folder: Path) -> Path:
    """Return the application as a commit built it."""
    source = folder / "source"
    source.mkdir()
    archive = subprocess.run(
        ["git", "archive", commit],  # noqa: S607 - git on PATH
        cwd=PROJECT,
        capture_output=True,
        check=True,
    )
    subprocess.run(["tar", "-x"], cwd=source, input=archive.stdout, check=True)  # noqa: S607 - from the PATH, as everywhere
    return build(folder / "build", source).parent


def main() -> None:
    """Time the builds, interleaved, today's also without tracing, and print and write the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", default=BEFORE, help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="freshq-coldstart-") as temporary:
        folder = Path(temporary)
        (folder / "runtime").mkdir()
        packages = runtime_folder(folder / "runtime")
        now = build(PROJECT / "build" / "local").parent
        before = Variant("before", build_commit(arguments.before, folder), "false")
        variants = (before, Variant("now", now, "false"), Variant("untraced", now, "true"))
        samples: dict[tuple[str, str], list[tuple[float, float]]] = {}
        imports: Counter[str] = Counter()
        for _round in track(range(arguments.rounds), "starting", transient=True):
            for function, variant in product(FUNCTIONS, variants):
                seconds = start_seconds(variant, packages, function)
                samples.setdefault((variant.name, function), []).append(seconds)
            for function in FUNCTIONS:
                imports += import_microseconds(variants[1], packages, function)
    Console(width=110).print(report(samples))
    found = {
        "rounds": arguments.rounds,
        "before": arguments.before,
        "processor_ms": medians(samples),
        "shares_of_imports": shares(imports),
    }
    figures.write("coldstart", found, ("boto3",))


def shares(imports: Counter[str]) -> dict[str, float]:
    """Return the share of each package in the time of all imports, but for the smallest."""
    total = imports.total()
    each = {package: round(spent / total, 3) for package, spent in imports.most_common()}
    return {package: share for package, share in each.items() if share >= LEAST_SHARE}


def medians(samples: Mapping[tuple[str, str], Sequence[tuple[float, float]]]) -> dict[str, Any]:
    """Return by function and variant the median processor time in ms: of the import, and with clients."""
    return {
        function: {
            variant: [round(1000 * median(sample[part] for sample in each), 1) for part in range(2)]
            for (variant, of), each in samples.items()
            if of == function
        }
        for function in FUNCTIONS
    }


def report(samples: Mapping[tuple[str, str], Sequence[tuple[float, float]]]) -> Table:
    """Return a table of medians, from the samples of each variant and function."""
    table = Table(title="processor time of a cold start, ms; its ratio to that before")
    table.add_column("function")
    for first in ("import before", "with clients before"):
        for heading in (first, "now", "ratio", "untraced", "ratio"):
            table.add_column(heading, justify="right")
    for function in FUNCTIONS:
        cells = [function]
        for part in range(2):
            before, now, untraced = (
                1000 * median(sample[part] for sample in samples[name, function])
                for name in ("before", "now", "untraced")
            )
            cells.append(f"{before:.0f}")
            cells += [text for each in (now, untraced) for text in (f"{each:.0f}", f"{each / before:.2f}")]
        table.add_row(*cells)
    return table


if __name__ == "__main__":
    main()
