"""Processor time of commands, and of each function's cold start.

A cold start is the import of the handler and of the clients that its first invocation needs, with and without
the layer's bytecode. The build is for this interpreter, and no start writes bytecode, as on Lambda. `-X
importtime` of Python attributes the time to packages.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import closing
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from local.emulator import PROJECT, build, runtime_folder

from benchmarks import figures
from benchmarks.figures import in_turns
from freshq import Queue

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Limits of commands in processor seconds.
LIMITS: Final = {"freshq --help": 0.35, "freshq put": 0.5, "freshq claim": 0.5, "freshq complete": 0.5}


def processor_seconds(arguments: list[str]) -> float:
    """Return the processor time of a program, including the system's."""
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL) as program:
        _, status, used = os.wait4(program.pid, 0)
        program.returncode = os.waitstatus_to_exitcode(status)
    if program.returncode:
        raise subprocess.CalledProcessError(program.returncode, arguments)
    return used.ru_utime + used.ru_stime


def contenders(queue: Queue, url: str) -> dict[str, Callable[[], float]]:
    """Return the measurements of commands on a queue, and of the packages that they import."""
    python, freshq = [sys.executable, "-c"], [sys.executable, "-m", "freshq.cli"]

    def claim() -> float:
        queue.put("work")
        return processor_seconds([*freshq, "claim", "--queue", url])

    def done() -> float:
        queue.put("work")
        (held,) = queue.claim()
        words = ["complete", held.task.task_id, "--token", held.token, "--queue", url]
        return processor_seconds([*freshq, *words])

    found: dict[str, Callable[[], float]] = {
        "freshq --help": partial(processor_seconds, [*freshq, "--help"]),
        "freshq put": partial(processor_seconds, [*freshq, "put", "1", "--queue", url]),
        "freshq claim": claim,
        "freshq complete": done,
    }
    imports = [f"import {package}" for package in ("boto3", "sqlalchemy", "typer")]
    return found | {each: partial(processor_seconds, [*python, each]) for each in imports}


def commands(rounds: int = 11) -> None:
    """Measure commands, and exit with an error if one exceeds its limit."""
    with tempfile.TemporaryDirectory(prefix="freshq-cli-") as folder:
        url = f"sqlite:///{Path(folder) / 'tasks.db'}"
        with closing(Queue.sql(url)) as queue:
            queue.create_table()
            found = in_turns(contenders(queue, url), rounds + 1)
    # The first round writes bytecode.
    medians = {name: round(median(seconds[1:]), 3) for name, seconds in found.items()}
    figures.write("cli", {"rounds": rounds, "processor_seconds": medians, "at_most": LIMITS})
    if late := [name for name, seconds in LIMITS.items() if medians[name] > seconds]:
        sys.exit(f"over the limit: {', '.join(late)}")


FUNCTIONS: Final = {
    "create_tasks": "_connections",
    "trigger": "_wakeup",
    "process_tasks": "_connections",
    "sweep": "_connections",
    "archive": "_archive",
}
# The functions' own variables are the ones that `sam local invoke` sets.
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
from freshq.aws import environment
connect_at_init, environment.connect_at_init = environment.connect_at_init, lambda connect: None
import app
imported = time.process_time()
connect_at_init(getattr(app, sys.argv[2]))
print(json.dumps([imported - began, time.process_time() - began]))
"""
# The time of a module itself, without the modules that it imports.
IMPORT_LINE: Final = re.compile(r"^import time: +(\d+) \| +\d+ \| +([\w.]+)$", re.MULTILINE)
STANDARD_LIBRARY: Final = "the standard library"
LEAST_SHARE: Final = 0.01


class Variant(NamedTuple):
    """A build of the application, and the value of POWERTOOLS_TRACE_DISABLED."""

    application: Path
    untraced: str


def started(
    variant: Variant, packages: Path, function: str, *options: str
) -> subprocess.CompletedProcess[str]:
    """Start a function once with options of the interpreter."""
    logical_id = "".join(part.title() for part in function.split("_")) + "Function"
    layer = variant.application / "FreshqLayer" / "python"
    # Lambda's order: the function, the layer, the runtime's own packages.
    paths = [variant.application / logical_id, layer, packages]
    arguments = [json.dumps([str(path) for path in paths]), FUNCTIONS[function]]
    tracing = {"PATH": os.environ["PATH"], "POWERTOOLS_TRACE_DISABLED": variant.untraced}
    return subprocess.run(
        [sys.executable, "-I", "-S", *options, "-c", PROGRAM, *arguments],
        env=ENVIRONMENT | tracing,
        capture_output=True,
        text=True,
        check=True,
    )


def start_seconds(variant: Variant, packages: Path, function: str) -> list[float]:
    """Return the processor time of one import of the handler, and of the import and the clients."""
    seconds: list[float] = json.loads(started(variant, packages, function).stdout.splitlines()[-1])
    return seconds


def import_microseconds(variant: Variant, packages: Path, function: str) -> Counter[str]:
    """Return the time of the imports of one start by package."""
    report = started(variant, packages, function, "-X", "importtime").stderr
    found: Counter[str] = Counter()
    for microseconds, module in IMPORT_LINE.findall(report):
        package = module.partition(".")[0]
        found[STANDARD_LIBRARY if package in sys.stdlib_module_names else package] += int(microseconds)
    return found


def main(rounds: int = 15) -> None:
    """Measure cold starts without bytecode and with it, traced and untraced."""
    with tempfile.TemporaryDirectory(prefix="freshq-coldstart-") as temporary:
        folder = Path(temporary)
        (folder / "runtime").mkdir()
        packages = runtime_folder(folder / "runtime")
        now = build(PROJECT / "build" / "local").parent
        shutil.copytree(now, folder / "before", ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
        variants = {
            "before": Variant(folder / "before", "false"),
            "now": Variant(now, "false"),
            "untraced": Variant(now, "true"),
        }
        found = in_turns(
            {
                (function, name): partial(start_seconds, variant, packages, function)
                for function, (name, variant) in product(FUNCTIONS, variants.items())
            },
            rounds,
        )
        imports: Counter[str] = Counter()
        for _, function in product(range(rounds), FUNCTIONS):
            imports += import_microseconds(variants["now"], packages, function)
    medians = {
        function: {
            name: [round(1000 * median(part), 1) for part in zip(*found[function, name], strict=True)]
            for name in variants
        }
        for function in FUNCTIONS
    }
    report = {"rounds": rounds, "processor_ms": medians}
    figures.write("coldstart", report | {"shares_of_imports": shares(imports)})


def shares(imports: Mapping[str, int]) -> dict[str, float]:
    """Return each package's share in the time of all imports, without the smallest."""
    total = sum(imports.values())
    each = {package: round(spent / total, 3) for package, spent in Counter(imports).most_common()}
    return {package: share for package, share in each.items() if share >= LEAST_SHARE}
