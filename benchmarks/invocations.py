"""Invocations and log bytes of the deployed application's functions at three loads.

The application runs on the embedded emulator, which waits for batching windows as Lambda does. Invocations
are the START lines in the functions' logs; a log line counts its bytes and the 26 that CloudWatch Logs bills
for each line.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections import Counter
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import boto3
from botocore.config import Config
from local.emulator import STACK, Emulator, build, demonstration, deploy
from local.facts import lives_of, percentile, read_changes, versions_by_task

from benchmarks import figures
from freshq import Queue
from freshq.aws.pass_options import configure_stack
from freshq.model.fields import RESERVED_ID_PREFIX
from freshq.model.pass_options import PassOptions
from freshq.stores.dynamodb.items import is_task
from freshq.stores.dynamodb.passes import WorkerPasses

if TYPE_CHECKING:
    from collections.abc import Iterable

    from local.facts import Change

BUILD: Final = Path("build/local")
FUNCTIONS: Final = ("CreateTasks", "Trigger", "ProcessTasks", "Sweep", "Archive")
# CloudWatch Logs, "PutLogEvents": each event is billed with 26 bytes besides its text.
OVERHEAD_BYTES: Final = 26
_DURATION: Final = re.compile(r"REPORT RequestId: \S+\tDuration: ([0-9.]+) ms")
MAX_AGE_SECONDS: Final = 600
SLOTS: Final = 25
TASK_SECONDS: Final = 0.01
PARAMETERS: Final[dict[str, str | int]] = {
    "Archive": "on",
    "Tracing": "off",
    **demonstration(SLOTS, TASK_SECONDS),
}
OPTIONS: Final[dict[str, Any]] = {"max_age_seconds": MAX_AGE_SECONDS, "concurrency": SLOTS}
PATIENCE_SECONDS: Final = 300
# From the end of a pass to its last line in the log.
LOG_SECONDS: Final = 2
# Parameters of the stack, and options of its passes, on which a bill depends.
PARAMETERS_RECORDED: Final = ("Archive", "BatchingWindowSeconds", "MemorySize")
OPTIONS_RECORDED: Final = ("concurrency", "idle_exit_seconds", "log_sample_ratio", "worker_passes")
# Tasks offered a second, and for how many seconds.
LOADS: Final = {"trickle": (0.25, 80), "steady": (24, 40), "burst": (1000, 1)}
Entry = dict[str, Any]


def counted(emulator: Emulator, name: str, window_seconds: int) -> Entry:
    """Deploy the application, offer a load, wait until it is done, and return the counts.

    Write units are counted from the table's changes, so refused writes are missing.
    """
    outputs = deploy(emulator, build(BUILD), PARAMETERS | {"BatchingWindowSeconds": window_seconds})
    table, client = outputs["QueueTableName"], boto3.client("dynamodb", **emulator.connection)
    configure_stack(Queue.dynamodb(table, client), **OPTIONS)
    _wait_until_done(emulator, outputs, _offer(emulator, outputs, *LOADS[name]))
    lines = {function: list(_log(emulator, outputs, function)) for function in FUNCTIONS}
    streams = boto3.client("dynamodbstreams", **emulator.connection)
    changes = list(read_changes(streams, outputs["QueueTableName"]))
    lives = lives_of(versions_by_task(changes), time.time())
    waits = [life.wait_seconds for life in lives if life.wait_seconds is not None]
    return {
        "load": name,
        "rate_per_second": LOADS[name][0],
        "window_seconds": window_seconds,
        "date": figures.today(),
        "commit": figures.commit(),
        "parameters": _parameters(emulator),
        "tasks": len(lives),
        **counted_logs(lines),
        "write_units": sum(change.write_units() for change in changes),
        "write_units_of": units_by_kind(changes),
        "wait_p50_seconds": round(percentile(waits, 50) or 0.0, 2),
    }


def counted_logs(lines: dict[str, list[str]]) -> Entry:
    """Return invocations, run times, billed bytes and metrics (each set of dimensions once) of the logs."""
    each = lines.items()
    return {
        "invocations": {name: sum(line.startswith("START RequestId") for line in of) for name, of in each},
        "run_seconds": {name: round(sum(map(_run_seconds, of)), 2) for name, of in each},
        "log_bytes": {name: sum(len(line.encode()) + OVERHEAD_BYTES for line in of) for name, of in each},
        "metrics": len(set().union(*(reported_metrics(line) for _name, of in each for line in of))),
    }


def _parameters(emulator: Emulator) -> dict[str, Any]:
    """Return the parameters and options on which a bill depends."""
    client = boto3.client("cloudformation", **emulator.connection)
    (stack,) = client.describe_stacks(StackName=STACK)["Stacks"]
    values = {each["ParameterKey"]: each["ParameterValue"] for each in stack["Parameters"]}
    options = PassOptions(concurrency=SLOTS).model_dump(include=set(OPTIONS_RECORDED))
    return {name: values[name] for name in PARAMETERS_RECORDED} | options | {"task_seconds": TASK_SECONDS}


def units_by_kind(changes: Iterable[Change]) -> dict[str, int]:
    """Return the write units of changes by kind of item (tasks, or freshq's own items), largest first."""
    units: Counter[str] = Counter()
    for change in changes:
        item = change.new or change.old or {}
        own = item["taskId"]["S"].removeprefix(RESERVED_ID_PREFIX).partition("#")[0]
        units["tasks" if is_task(item) else own] += change.write_units()
    return dict(units.most_common())


def reported_metrics(line: str) -> set[tuple[Any, ...]]:
    """Return namespace, dimensions and name of each metric in a line of CloudWatch's embedded metric format.

    CloudWatch bills each combination as a metric.
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


def _offer(emulator: Emulator, outputs: dict[str, str], rate_per_second: float, seconds: float) -> int:
    """Let CreateTasks offer a load; return the number of tasks that it put."""
    patient = Config(read_timeout=PATIENCE_SECONDS, retries={"total_max_attempts": 1})
    functions = boto3.client("lambda", config=patient, **emulator.connection)
    event = {"rate_per_second": rate_per_second, "duration_seconds": seconds}
    response = functions.invoke(FunctionName=outputs["CreateTasksFunctionName"], Payload=json.dumps(event))
    answer = json.loads(response["Payload"].read())
    if response.get("FunctionError"):
        msg = f"CreateTasks failed: {answer}"
        raise SystemExit(msg)
    return int(answer["created"])


def _wait_until_done(emulator: Emulator, outputs: dict[str, str], tasks: int) -> None:
    """Wait until all tasks are done and no pass is running, because a pass logs at its end."""
    table, client = outputs["QueueTableName"], boto3.client("dynamodb", **emulator.connection)
    queue = Queue.dynamodb(table, client)
    passes = WorkerPasses(table, queue.name, client)
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


def _run_seconds(line: str) -> float:
    """Return the duration in a REPORT line, 0 for any other."""
    found = _DURATION.match(line)
    return float(found[1]) / 1000 if found else 0.0


def main(loads: str = ",".join(LOADS), windows: str = "1,0") -> None:
    """Measure loads with batching windows in seconds, each on its own emulator and stack.

    Results replace earlier ones of the same load and window; other results stay in the file.
    """
    for window, name in product(figures.numbers(windows), loads.split(",")):
        with (
            tempfile.TemporaryDirectory(prefix="freshq-invocations-") as folder,
            Emulator(Path(folder) / "emulator.log") as emulator,
        ):
            figures.write("invocations", merged(_kept(), [counted(emulator, name, window)]))


def _kept() -> list[Entry]:
    """Return the earlier results."""
    return figures.figures_of("invocations") if figures.is_measured("invocations") else []


def merged(kept: Iterable[Entry], results: Iterable[Entry]) -> list[Entry]:
    """Return the entries of the file: new ones replace entries of the same load and window."""
    return [*{(one["load"], one["window_seconds"]): one for one in (*kept, *results)}.values()]
