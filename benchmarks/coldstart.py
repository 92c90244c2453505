"""Processor time of each function's cold start, against the layer as an earlier commit built it.

A start is the import of the handler, and the clients that its first invocation needs. Both builds are for
this interpreter, and no start writes bytecode, as on Lambda.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from local.deploy import PROJECT, build
from rich.console import Console
from rich.progress import track
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# The last commit whose layer had no bytecode.
BEFORE: Final = "5a96011"
FUNCTIONS: Final = {
    "create_tasks": "_queue",
    "trigger": "_wakeup",
    "process_tasks": "_connections",
    "sweep": "_connections",
    "archive": "_archive",
}
# What Lambda's own runtime has, with bytecode.
RUNTIME_PACKAGES: Final = ("boto3", "botocore", "s3transfer", "dateutil", "six.py", "urllib3", "jmespath")
TOPIC_ARN: Final = "arn:aws:sns:eu-west-1:123456789012:Topic"
ENVIRONMENT: Final = {
    "AWS_ACCESS_KEY_ID": "none",
    "AWS_SECRET_ACCESS_KEY": "none",
    "AWS_DEFAULT_REGION": "eu-west-1",
    "AWS_LAMBDA_FUNCTION_NAME": "function",
    "AWS_XRAY_DAEMON_ADDRESS": "127.0.0.1:2000",
    "LAMBDA_TASK_ROOT": "/var/task",
    "POWERTOOLS_SERVICE_NAME": "freshq",
    "POWERTOOLS_METRICS_NAMESPACE": "freshq",
    "PYDANTIC_DISABLE_PLUGINS": "__all__",
    "FRESHQ_TABLE": "QueueTable",
    "FRESHQ_TRIGGER_TOPIC_ARN": TOPIC_ARN,
    "FRESHQ_PROCESS_TASKS_TOPIC_ARN": TOPIC_ARN,
    "FRESHQ_KILL_SWITCH_PARAMETER": "/freshq/kill-switch",
    "FRESHQ_DELIVERY_STREAM": "Archive",
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


def start_seconds(application: Path, packages: Path, function: str) -> tuple[float, float]:
    """Return the processor time of one import of the handler, and of the import and the clients."""
    logical_id = "".join(part.title() for part in function.split("_")) + "Function"
    # Lambda's order: the function, the layer, the runtime's own packages.
    paths = [application / logical_id, application / "FreshqLayer" / "python", packages]
    at_init = (application / "FreshqLayer/python/freshq/aws/environment.py").exists()
    arguments = [json.dumps([str(path) for path in paths]), FUNCTIONS[function], json.dumps(at_init)]
    done = subprocess.run(  # noqa: S603 - this interpreter, without its site-packages
        [sys.executable, "-I", "-S", "-c", PROGRAM, *arguments],
        env=ENVIRONMENT | {"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    imported, connected = json.loads(done.stdout.splitlines()[-1])
    return imported, connected


def runtime_packages(folder: Path) -> Path:
    """Return a folder with what Lambda's runtime has, and nothing else of this environment."""
    installed = Path(sysconfig.get_paths()["purelib"])
    folder.mkdir()
    for package in RUNTIME_PACKAGES:
        (folder / package).symlink_to(installed / package)
    return folder


def build_commit(commit: str, folder: Path) -> Path:
    """Return the application as a commit built it."""
    source = folder / "source"
    source.mkdir()
    archive = subprocess.run(  # noqa: S603 - git, with a commit of this repository
        ["git", "archive", commit],  # noqa: S607 - git on PATH
        cwd=PROJECT,
        capture_output=True,
        check=True,
    )
    subprocess.run(["tar", "-x"], cwd=source, input=archive.stdout, check=True)  # noqa: S607
    return build(folder / "build", source).parent


def main() -> None:
    """Time both builds, interleaved, and print medians and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", default=BEFORE, help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="freshq-coldstart-") as temporary:
        folder = Path(temporary)
        packages = runtime_packages(folder / "runtime")
        builds = [build_commit(arguments.before, folder), build(PROJECT / "build" / "local").parent]
        samples: dict[tuple[int, str], list[tuple[float, float]]] = {}
        for _round in track(range(arguments.rounds), "starting", transient=True):
            for function, (number, application) in product(FUNCTIONS, enumerate(builds)):
                seconds = start_seconds(application, packages, function)
                samples.setdefault((number, function), []).append(seconds)
    Console().print(report(samples))


def report(samples: Mapping[tuple[int, str], Sequence[tuple[float, float]]]) -> Table:
    """Return a table of medians, from the samples of each build and function."""
    table = Table(title="processor time of a cold start, ms")
    for heading in ("function", "import before", "now", "ratio", "with clients before", "now", "ratio"):
        table.add_column(heading, justify="left" if heading == "function" else "right")
    for function in FUNCTIONS:
        cells = [function]
        for part in range(2):
            before, now = (
                1000 * median(sample[part] for sample in samples[number, function]) for number in range(2)
            )
            cells += [f"{before:.0f}", f"{now:.0f}", f"{now / before:.2f}"]
        table.add_row(*cells)
    return table


if __name__ == "__main__":
    main()
