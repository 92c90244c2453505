"""`make demo`: deploy to the embedded emulator, overload the queue, and show what became of every task."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import boto3
from botocore.config import Config
from rich.console import Console
from rich.live import Live
from rich.table import Table

from freshq import Order, Queue
from freshq.aws.wakeup import Ring
from local.demo_dashboard import dashboard_beside
from local.deploy import PROJECT, DeployError, build, deploy
from local.emulator import Emulator, EmulatorError, stop_on_signals
from local.facts import (
    busy_machine_sentence,
    count_fates,
    done_in_time,
    duplicates_run,
    goodput_per_second,
    lives_of,
    newest_first_ratio,
    percentile,
    waits_of_done,
)
from local.forecast import first_in_first_out, served_in_time
from local.history import read_changes, versions_by_task
from local.live_view import live_view
from local.pipeline_run import (
    PipelineRunError,
    compare_with_pipeline,
    count_tasks_changes,
    fetch_archive,
    run_pipeline,
)
from local.plot import Demonstration, draw

if TYPE_CHECKING:
    from collections.abc import Sequence

    from local.facts import Life
    from local.forecast import Service
    from local.history import Change

# What it makes goes elsewhere if this variable says so; tests leave alone what a user has made.
FOLDER_VARIABLE: Final = "FRESHQ_DEMO_FOLDER"
FOLDER: Final = Path(os.environ.get(FOLDER_VARIABLE) or PROJECT / "build" / "demo").absolute()
EVENTS: Final = FOLDER / "events"
TABLES: Final = FOLDER / "pipeline"
LOAD_SECONDS: Final = 30
OVERLOAD: Final = 3
MAX_AGE_SECONDS: Final = 8
CAPACITY: Final = 4
TASK_SECONDS: Final = 0.5
CAPACITY_PER_SECOND: Final = CAPACITY / TASK_SECONDS
RATE_PER_SECOND: Final = OVERLOAD * CAPACITY_PER_SECOND
# One max age after the load ends, every task is served or stale; the rest is a margin for slow machines.
DRAIN_SECONDS: Final = MAX_AGE_SECONDS + 45
FRAME_SECONDS: Final = 0.5
WARM_UP_SECONDS: Final = 60
# While one process of a function ends its work, its successor starts.
PROCESSES: Final = 2
PARAMETERS: Final[dict[str, str | int]] = {
    "MaxAgeSeconds": MAX_AGE_SECONDS,
    "Concurrency": CAPACITY,
    "DemoCapacity": CAPACITY,
    "DemoTaskSeconds": str(TASK_SECONDS),
    "PassSeconds": 15,
    "SettleSeconds": 5,
    "Archive": "on",
}
# The exit status of a command that Ctrl-C ended, by convention of the shells.
INTERRUPTED_STATUS: Final = 130
# The functions that a ring starts, one after the other.
RUNG: Final = ("Trigger", "ProcessTasks")
FUNCTIONS: Final = ("CreateTasks", "Trigger", "ProcessTasks", "Sweep", "Archive")


@dataclass
class OfferedLoad:
    """The load, which a background invocation of CreateTasks offers.

    Attributes:
        emulator: Where the function is.
        function: Name of CreateTasks.
        answer: The answer of CreateTasks.
        error: Why CreateTasks failed; None if it did not.
        started: When the load started, in seconds since the epoch.
    """

    emulator: Emulator
    function: str
    answer: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    started: float = 0.0

    def offer(self) -> threading.Thread:
        """Start the load, and return the thread that waits for its end."""
        self.started = time.time()
        thread = threading.Thread(target=self._invoke, daemon=True)
        thread.start()
        return thread

    def _invoke(self) -> None:
        event = {"rate_per_second": RATE_PER_SECOND, "duration_seconds": LOAD_SECONDS}
        config = Config(read_timeout=LOAD_SECONDS * 3, retries={"total_max_attempts": 1})
        client = boto3.client("lambda", config=config, **self.emulator.connection)
        response = client.invoke(FunctionName=self.function, Payload=json.dumps(event))
        body = json.loads(response["Payload"].read())
        if response.get("FunctionError"):
            self.error = json.dumps(body)
        else:
            self.answer = body


class DemoError(RuntimeError):
    """The demonstration failed; the message says at what."""


def main() -> int:
    """Run the demonstration; return the exit status."""
    console = Console()
    try:
        with stop_on_signals():
            _demonstrate(console)
    except KeyboardInterrupt:
        console.print("stopped; no process is left running")
        return INTERRUPTED_STATUS
    except (DemoError, DeployError, EmulatorError, PipelineRunError) as error:
        console.out(f"demo failed: {error}", style="red", highlight=False)
        return 1
    return 0


def _demonstrate(console: Console) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with console.status("building the application (sam build)"):
        template = build(PROJECT / "build" / "local")
    with Emulator(FOLDER / "emulator.log") as emulator:
        with console.status("deploying template.yaml to the embedded emulator (sam deploy)"):
            outputs = deploy(emulator, template, PARAMETERS)
        console.out(
            f"offering {RATE_PER_SECOND:g} tasks a second for {LOAD_SECONDS} s to a downstream that can do "
            f"{CAPACITY_PER_SECOND:g} a second; tasks are stale after {MAX_AGE_SECONDS} s"
        )
        queue = Queue.dynamodb(
            outputs["QueueTableName"],
            boto3.client("dynamodb", **emulator.connection),
            max_age_seconds=MAX_AGE_SECONDS,
        )
        _warm_up(emulator, outputs)
        load = OfferedLoad(emulator, outputs["CreateTasksFunctionName"])
        with dashboard_beside(queue) as address:
            if address is not None:
                console.out(f"dashboard, while tasks are left: {address}", highlight=False)
            _watch(console, queue, load)
        ended = time.time()
        changes = list(
            read_changes(boto3.client("dynamodbstreams", **emulator.connection), outputs["QueueTableName"])
        )
        invocations = _invocations(emulator, outputs)
        with console.status("waiting until the archive is complete"):
            fetch_archive(emulator, outputs["ArchiveBucketName"], count_tasks_changes(changes), EVENTS)
    summary = _report(console, load, changes, ended, invocations)
    with console.status("running the data pipeline over the archived events (Spark)"):
        facts = run_pipeline(EVENTS, TABLES, as_of_ms=round(ended * 1000))
    console.out(TABLES / "report.html", highlight=False)
    compare_with_pipeline(summary, facts)


def _warm_up(emulator: Emulator, outputs: dict[str, str]) -> None:
    """Ring for an empty queue, so that the load finds as many processes as regular traffic keeps."""
    client = boto3.client("lambda", config=Config(read_timeout=WARM_UP_SECONDS), **emulator.connection)
    event = json.dumps(
        {"Records": [{"EventSource": "aws:sns", "Sns": {"Message": Ring(reason="manual").model_dump_json()}}]}
    )

    def start(function: str) -> None:
        response = client.invoke(FunctionName=outputs[f"{function}FunctionName"], Payload=event)
        if response.get("FunctionError"):
            msg = f"{function} does not start: {response['Payload'].read().decode()}; see {emulator.log}"
            raise DemoError(msg)

    with ThreadPoolExecutor(PROCESSES * len(RUNG)) as pool:
        list(pool.map(start, RUNG * PROCESSES))


def _watch(console: Console, queue: Queue, load: OfferedLoad) -> None:
    """Offer the load and show the queue until nothing is left to serve."""
    thread = load.offer()
    give_up_at = time.monotonic() + LOAD_SECONDS + DRAIN_SECONDS
    with Live(console=console, refresh_per_second=4, transient=False) as live:
        while True:
            stats = queue.stats()
            live.update(live_view(stats, time.time() - load.started, LOAD_SECONDS, MAX_AGE_SECONDS))
            if not thread.is_alive() and stats.pending + stats.delayed + stats.taken == 0:
                break
            if time.monotonic() > give_up_at:
                msg = f"tasks are still left after {LOAD_SECONDS + DRAIN_SECONDS} s: {stats}"
                raise DemoError(msg)
            time.sleep(FRAME_SECONDS)
    if load.error is not None:
        msg = f"CreateTasks failed: {load.error}"
        raise DemoError(msg)


def _invocations(emulator: Emulator, outputs: dict[str, str]) -> dict[str, int]:
    """Count the invocations of each function by the START lines in its log."""
    client = boto3.client("logs", **emulator.connection)
    pages = client.get_paginator("filter_log_events")
    return {
        function: sum(
            event["message"].startswith("START RequestId")
            for page in pages.paginate(logGroupName=outputs[f"{function}LogGroupName"])
            for event in page["events"]
        )
        for function in FUNCTIONS
    }


def summarize(
    load: OfferedLoad,
    lives: Sequence[Life],
    fifo: Sequence[Service],
    changes: Sequence[Change],
    invocations: dict[str, int],
) -> dict[str, Any]:
    """Return the figures of the demonstration."""
    fates = count_fates(lives)
    start = lives[0].created
    waits = waits_of_done(lives)
    write_units = sum(change.write_units() for change in changes)
    return {
        "created": load.answer["created"],
        **fates,
        "duplicates_run": duplicates_run(lives),
        "newest_first_ratio": newest_first_ratio(lives),
        "wait_p50_seconds": percentile(waits, 50),
        "wait_p99_seconds": percentile(waits, 99),
        "goodput_per_second": goodput_per_second(lives, start, start + LOAD_SECONDS),
        "done_in_time": done_in_time(lives),
        "done_in_time_simulated": served_in_time(lives, CAPACITY, LOAD_SECONDS, Order.LIFO),
        "done_in_time_fifo_simulated": sum(service.in_time for service in fifo),
        "capacity_per_second": CAPACITY_PER_SECOND,
        "write_units_per_success": write_units / fates["success"] if fates["success"] else None,
        "lambda_invocations": sum(invocations.values()),
        "lambda_invocations_by_function": invocations,
        "load_seconds": LOAD_SECONDS,
        "max_age_seconds": MAX_AGE_SECONDS,
        "offered_per_second": RATE_PER_SECOND,
    }


def _report(
    console: Console, load: OfferedLoad, changes: list[Change], now: float, invocations: dict[str, int]
) -> dict[str, Any]:
    lives = lives_of(versions_by_task(changes), now)
    if not lives:
        raise DemoError("the change stream contains no task; see the emulator's log")
    fifo = first_in_first_out(lives, CAPACITY, LOAD_SECONDS)
    summary = summarize(load, lives, fifo, changes, invocations)
    (FOLDER / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", "utf-8")
    picture = FOLDER / "picture.png"
    subtitle = (
        f"{RATE_PER_SECOND:g} tasks/s offered for {LOAD_SECONDS} s, "
        f"{CAPACITY_PER_SECOND:g}/s can be served, of no use after {MAX_AGE_SECONDS} s"
    )
    draw(Demonstration(lives, fifo, LOAD_SECONDS, MAX_AGE_SECONDS, CAPACITY_PER_SECOND), subtitle, picture)
    console.print()
    console.print(_table(summary))
    console.out(
        f"freshq did {summary['done_in_time']} tasks in time; first in, first out would have done "
        f"{summary['done_in_time_fifo_simulated']}.",
        highlight=False,
    )
    sentence = busy_machine_sentence(summary["goodput_per_second"], CAPACITY_PER_SECOND)
    if sentence is not None:
        console.out(sentence, style="yellow", highlight=False)
    for file in (picture, FOLDER / "summary.json"):
        console.out(file, highlight=False)
    _check(summary, lives)
    return summary


def _table(summary: dict[str, Any]) -> Table:
    table = Table("", "", title="What became of the tasks", show_header=False)
    table.columns[1].justify = "right"
    hidden = {"lambda_invocations_by_function", "load_seconds", "max_age_seconds", "offered_per_second"}
    for name, value in summary.items():
        if name in hidden:
            continue
        shown = "-" if value is None else f"{value:,.3f}" if isinstance(value, float) else f"{value:,}"
        table.add_row(name.replace("_", " "), shown)
        if name == "taken":
            table.add_section()
    return table


def _check(summary: dict[str, Any], lives: Sequence[Life]) -> None:
    """Check that every created task has one fate.

    Raises:
        DemoError: The numbers differ.
    """
    fates = sum(count_fates(lives).values())
    if fates != summary["created"]:
        msg = f"{summary['created']} tasks were created, but {fates} are accounted for"
        raise DemoError(msg)


if __name__ == "__main__":
    sys.exit(main())
