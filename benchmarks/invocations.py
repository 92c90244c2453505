"""How often the deployed application's functions are invoked, and what they log, at three loads.

The application runs on the embedded emulator, which waits for batching windows as Lambda does. Every load has
an emulator and a stack of its own. Invocations are the START lines in the functions' logs; a log line counts
its bytes and the 26 that CloudWatch Logs adds to each for what it bills.

    python -m benchmarks.invocations [--loads NAME,...] [--windows SECONDS,...]

The figures go to benchmarks/results/invocations.json after each load; those of other loads and windows there
stay, with the day, the commit and the parameters of their stack.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import boto3
from botocore.config import Config
from local.deploy import STACK, build, deploy
from local.emulator import Emulator
from local.facts import lives_of, percentile, read_changes, versions_by_task
from rich.console import Console
from rich.table import Table

from benchmarks import figures
from freshq import Queue
from freshq.model.new_task import RESERVED_ID_PREFIX
from freshq.stores.dynamodb.items import is_task
from freshq.stores.dynamodb.passes import WorkerPasses

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from local.facts import Change, Life

BUILD: Final = Path("build/local")
FUNCTIONS: Final = ("CreateTasks", "Trigger", "ProcessTasks", "Sweep", "Archive")
# CloudWatch Logs, "PutLogEvents": each event is billed with 26 bytes besides its text.
OVERHEAD_BYTES: Final = 26
_DURATION: Final = re.compile(r"REPORT RequestId: \S+\tDuration: ([0-9.]+) ms")
MAX_AGE_SECONDS: Final = 600
# The template's own default, which the demonstration and the tests replace.
LOG_SAMPLE_RATIO: Final = 0.1
PARAMETERS: Final[dict[str, str | int]] = {
    "MaxAgeSeconds": MAX_AGE_SECONDS,
    "Concurrency": 25,
    "DemoCapacity": 25,
    "DemoTaskSeconds": "0.01",
    "Archive": "on",
    "LogSampleRatio": str(LOG_SAMPLE_RATIO),
}
PATIENCE_SECONDS: Final = 300
# From the end of a pass to its last line in the log.
LOG_SECONDS: Final = 2
# The template's default, and none.
WINDOWS_SECONDS: Final = (1, 0)
# What a bill depends on, of the stack's parameters.
RECORDED: Final = (*PARAMETERS, "BatchingWindowSeconds", "IdleExitSeconds", "MemorySize", "WorkerPasses")
TASKS_ITEMS: Final = "tasks"
EMULATED_BY: Final = ("ministack",)


@dataclass(frozen=True, slots=True)
class Load:
    """What is offered: so many tasks a second, for so long."""

    rate_per_second: float
    seconds: float


LOADS: Final = {
    "trickle": Load(rate_per_second=0.25, seconds=80),
    "steady": Load(rate_per_second=24, seconds=40),
    "burst": Load(rate_per_second=1000, seconds=1),
}


@dataclass(frozen=True, slots=True)
class Counted:
    """What a load cost.

    Attributes:
        load: Name of the load.
        rate_per_second: Tasks offered a second.
        window_seconds: The batching window.
        date: The day.
        commit: That of the code.
        parameters: Those of the stack's parameters on which a bill depends.
        tasks: Tasks that were done.
        seconds: From the first put to the last success.
        invocations: Invocations by function.
        run_seconds: Time for which each function ran.
        log_bytes: Bytes of log by function, as they are billed.
        write_units: Write units of all items, from the table's changes: what was refused is in none.
        write_units_of: The same by what the items are: tasks, or the kind of freshq's own items.
        metrics: Metrics that the functions reported, each with its dimensions, once.
        wait_p50_seconds: Median time from put to claim.
    """

    load: str
    rate_per_second: float
    window_seconds: int
    date: str
    commit: str
    parameters: dict[str, str]
    tasks: int
    seconds: float
    invocations: dict[str, int]
    run_seconds: dict[str, float]
    log_bytes: dict[str, int]
    write_units: int
    write_units_of: dict[str, int]
    metrics: int
    wait_p50_seconds: float


def counted(emulator: Emulator, name: str, window_seconds: int) -> Counted:
    """Deploy the application, offer a load, wait until it is done, and count."""
    values = PARAMETERS | {"BatchingWindowSeconds": window_seconds}
    outputs = deploy(emulator, build(BUILD), values)
    _wait_until_done(emulator, outputs, _offer(emulator, outputs, LOADS[name]))
    lines = {function: list(_log(emulator, outputs, function)) for function in FUNCTIONS}
    streams = boto3.client("dynamodbstreams", **emulator.connection)
    changes = list(read_changes(streams, outputs["QueueTableName"]))
    lives = lives_of(versions_by_task(changes), time.time())
    return Counted(
        load=name,
        rate_per_second=LOADS[name].rate_per_second,
        window_seconds=window_seconds,
        date=figures.today(),
        commit=figures.commit(),
        parameters=_parameters(emulator),
        tasks=len(lives),
        seconds=_served_seconds(lives),
        invocations={function: sum(map(_is_start, of)) for function, of in lines.items()},
        run_seconds={function: round(sum(map(_run_seconds, of)), 2) for function, of in lines.items()},
        log_bytes={function: sum(map(_billed_bytes, of)) for function, of in lines.items()},
        write_units=sum(change.write_units() for change in changes),
        write_units_of=units_by_kind(changes),
        metrics=len(set().union(*(reported_metrics(line) for of in lines.values() for line in of))),
        wait_p50_seconds=_median_wait_seconds(lives),
    )


def _parameters(emulator: Emulator) -> dict[str, str]:
    """Return what the stack was deployed with."""
    client = boto3.client("cloudformation", **emulator.connection)
    (stack,) = client.describe_stacks(StackName=STACK)["Stacks"]
    values = {each["ParameterKey"]: each["ParameterValue"] for each in stack["Parameters"]}
    return {name: values[name] for name in RECORDED}


def units_by_kind(changes: Iterable[Change]) -> dict[str, int]:
    """Return the write units of changes by what the items are, most first."""
    units: Counter[str] = Counter()
    for change in changes:
        item = change.new or change.old or {}
        own = item["taskId"]["S"].removeprefix(RESERVED_ID_PREFIX).partition("#")[0]
        units[TASKS_ITEMS if is_task(item) else own] += change.write_units()
    return dict(units.most_common())


def reported_metrics(line: str) -> set[tuple[Any, ...]]:
    """Return the metrics in a line of a log, if it has some: namespace, dimensions and name of each.

    CloudWatch bills each of these as a metric of its own (its embedded metric format).
    """
    if not line.startswith("{") or '"_aws"' not in line:
        return set()
    values = json.loads(line)
    return {
        (directive["Namespace"], *((name, values[name]) for name in dimensions), metric["Name"])
        for directive in values["_aws"]["CloudWatchMetrics"]
        for dimensions in directive["Dimensions"]
        for metric in directive["Metrics"]
    }


def _served_seconds(lives: Sequence[Life]) -> float:
    return round(max(life.ended for life in lives if life.ended is not None) - lives[0].created, 1)


def _median_wait_seconds(lives: Sequence[Life]) -> float:
    waits = [life.wait_seconds for life in lives if life.wait_seconds is not None]
    return round(percentile(waits, 50) or 0.0, 2)


def _offer(emulator: Emulator, outputs: dict[str, str], load: Load) -> int:
    """Let CreateTasks offer a load; return how many tasks it put."""
    patient = Config(read_timeout=PATIENCE_SECONDS, retries={"total_max_attempts": 1})
    functions = boto3.client("lambda", config=patient, **emulator.connection)
    event = {"rate_per_second": load.rate_per_second, "duration_seconds": load.seconds}
    response = functions.invoke(FunctionName=outputs["CreateTasksFunctionName"], Payload=json.dumps(event))
    answer = json.loads(response["Payload"].read())
    if response.get("FunctionError"):
        msg = f"CreateTasks failed: {answer}"
        raise SystemExit(msg)
    return int(answer["created"])


def _wait_until_done(emulator: Emulator, outputs: dict[str, str], tasks: int) -> None:
    """Wait until all tasks are done and no pass is under way: its log comes at its end."""
    table, client = outputs["QueueTableName"], boto3.client("dynamodb", **emulator.connection)
    queue = Queue.dynamodb(table, client, max_age_seconds=MAX_AGE_SECONDS)
    passes = WorkerPasses(table, queue.name, 1, client)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while queue.stats().success < tasks or passes.all_taken():
        if time.monotonic() > deadline:
            msg = f"after {PATIENCE_SECONDS} s: {queue.stats()}"
            raise SystemExit(msg)
        time.sleep(1)
    time.sleep(LOG_SECONDS)


def _log(emulator: Emulator, outputs: dict[str, str], function: str) -> Iterable[str]:
    logs = boto3.client("logs", **emulator.connection)
    for page in logs.get_paginator("filter_log_events").paginate(
        logGroupName=outputs[f"{function}LogGroupName"]
    ):
        for event in page["events"]:
            yield event["message"]


def _is_start(line: str) -> bool:
    return line.startswith("START RequestId")


def _billed_bytes(line: str) -> int:
    return len(line.encode()) + OVERHEAD_BYTES


def _run_seconds(line: str) -> float:
    """Return the duration in a REPORT line, 0 for any other."""
    found = _DURATION.match(line)
    return float(found[1]) / 1000 if found else 0.0


def table(results: Iterable[Counted]) -> Table:
    """Return the figures as a table, per 1,000 tasks."""
    shown = Table(
        "load", "window", "wait", "create", "trigger", "process", "sweep", "archive", "all", "log",
        title="Invocations per 1,000 tasks; window and median wait in seconds; bytes of log a task",
    )  # fmt: skip
    for column in shown.columns[1:]:
        column.justify = "right"
    for one in results:
        per_thousand = {name: number * 1000 / one.tasks for name, number in one.invocations.items()}
        shown.add_row(
            one.load,
            str(one.window_seconds),
            f"{one.wait_p50_seconds:.2f}",
            *(f"{per_thousand[name]:.0f}" for name in FUNCTIONS),
            f"{sum(per_thousand.values()):.0f}",
            f"{sum(one.log_bytes.values()) / one.tasks:,.0f}",
        )
    return shown


def main() -> None:
    """Count, print the figures and write them."""
    parser = argparse.ArgumentParser(description="Invocations and log bytes of the deployed application.")
    parser.add_argument("--loads", default=",".join(LOADS), help="names, separated by commas")
    parser.add_argument(
        "--windows", default=",".join(map(str, WINDOWS_SECONDS)), help="batching windows in seconds"
    )
    arguments = parser.parse_args()
    windows = map(int, arguments.windows.split(","))
    results = []
    for window, name in product(windows, arguments.loads.split(",")):
        with (
            tempfile.TemporaryDirectory(prefix="freshq-invocations-") as folder,
            Emulator(Path(folder) / "emulator.log") as emulator,
        ):
            results.append(counted(emulator, name, window))
        figures.write("invocations", merged(_kept(), results), EMULATED_BY)
    Console().print(table(results))


def _kept() -> list[dict[str, Any]]:
    """Return what was counted before."""
    return figures.figures_of("invocations") if figures.is_measured("invocations") else []


def merged(kept: Iterable[dict[str, Any]], results: Iterable[Counted]) -> list[dict[str, Any]]:
    """Return the entries of the file: new ones replace those of the same load and window."""
    entries = {(one["load"], one["window_seconds"]): one for one in kept}
    entries |= {(one.load, one.window_seconds): asdict(one) for one in results}
    return [*entries.values()]


if __name__ == "__main__":
    main()
