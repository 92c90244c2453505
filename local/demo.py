"""`make demo`: deploy to the embedded emulator, overload the queue, and show the fate of every task."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import altair as alt
import boto3
from botocore.config import Config
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from freshq import Order, Queue, TaskStatus
from freshq.aws.pass_options import configure_stack
from freshq.aws.wakeup import Ring
from freshq.errors import MissingExtra, needs
from freshq.simulate.sweep import Colour
from freshq.stores.dynamodb.calls import SDK_ERRORS
from freshq_pipeline.cluster.pull import pull
from local.emulator import (
    LIVE_ALIAS,
    PROJECT,
    DeployFailed,
    Emulator,
    EmulatorFailed,
    build,
    demonstration,
    deploy,
    end_group,
    stop_on_signals,
    tail,
)
from local.facts import (
    busy_machine_sentence,
    count_fates,
    done_in_time,
    duplicates_run,
    first_in_first_out,
    goodput_per_second,
    lives_of,
    newest_first_ratio,
    percentile,
    read_changes,
    served_in_time,
    versions_by_task,
    waits_of_done,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rich.console import RenderableType

    from freshq import Stats
    from local.facts import Change, Life, Service

# Tests set this variable to keep their output apart from a user's.
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
# Longer than the timeout of CreateTasks, whose answer comes when the load has ended.
ANSWER_SECONDS: Final = 150
FRAME_SECONDS: Final = 0.5
WARM_UP_SECONDS: Final = 60
# A new process of a function starts while the old one finishes.
PROCESSES: Final = 2
PARAMETERS: Final = {"Archive": "on", "Tracing": "off", **demonstration(CAPACITY, TASK_SECONDS)}
OPTIONS: Final[dict[str, Any]] = {
    "max_age_seconds": MAX_AGE_SECONDS,
    "concurrency": CAPACITY,
    "pass_seconds": 15,
    "settle_seconds": 5,
    "log_sample_ratio": 1,
}
# The exit status of a command that Ctrl-C ended, by convention of the shells.
INTERRUPTED_STATUS: Final = 130
# Functions that a ring starts in sequence.
RUNG: Final = ("Trigger", "ProcessTasks")
FUNCTIONS: Final = ("CreateTasks", "Trigger", "ProcessTasks", "Sweep", "Archive")
# An open page reads the queue this rarely, because the emulator shares the processors with the load.
EVERY_SECONDS: Final = 3.0
# The archive receives batches of the stream several seconds after the changes.
ARRIVAL_SECONDS: Final = 90.0
POLL_SECONDS: Final = 1.0
PIPELINE_SECONDS: Final = 300.0
FATES: Final = ("success", "failure", "cancelled", "shed", "pending", "taken")
IN_TIME: Final = "done in time"
LATE: Final = "done too late"
COLOURS: Final = {
    IN_TIME: Colour.SUCCESS.value,
    LATE: Colour.LATE.value,
    "shed": Colour.SHED.value,
    "failed": Colour.FAILURE.value,
    "cancelled": Colour.CANCELLED.value,
    "pending": Colour.PENDING.value,
    "taken": Colour.TAKEN.value,
}
FATE_NAMES: Final = {TaskStatus.FAILURE: "failed"}
LINE_COLOUR: Final = "#404040"
WIDTH: Final = 720
WAITS_HEIGHT: Final = 230
FATES_HEIGHT: Final = 130
TICK_SECONDS: Final = 5
PNG_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"


@dataclass
class OfferedLoad:
    """The load that a background invocation of CreateTasks offers.

    Attributes:
        emulator: The emulator of the function.
        function: ARN of the deployed version of CreateTasks.
        answer: The answer of CreateTasks.
        error: The error of CreateTasks; None if it succeeded.
        started: When the load started, in seconds since the epoch.
    """

    emulator: Emulator
    function: str
    answer: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    started: float = 0.0

    def offer(self) -> threading.Thread:
        """Start the load and return the thread that waits for its end."""
        self.started = time.time()
        thread = threading.Thread(target=self._invoke, daemon=True)
        thread.start()
        return thread

    def _invoke(self) -> None:
        event = {"rate_per_second": RATE_PER_SECOND, "duration_seconds": LOAD_SECONDS}
        config = Config(read_timeout=ANSWER_SECONDS, retries={"total_max_attempts": 1})
        client = boto3.client("lambda", config=config, **self.emulator.connection)
        try:
            response = client.invoke(FunctionName=self.function, Payload=json.dumps(event))
            body = json.loads(response["Payload"].read())
        except SDK_ERRORS as error:
            self.error = str(error)
            return
        if response.get("FunctionError"):
            self.error = json.dumps(body)
        else:
            self.answer = body


class DemoFailed(RuntimeError):
    """The demonstration failed; the message names the step."""


def main() -> int:
    """Run the demonstration; return the exit status."""
    console = Console()
    try:
        with stop_on_signals():
            _demonstrate(console)
    except KeyboardInterrupt:
        console.print("stopped; no process is left running")
        return INTERRUPTED_STATUS
    except (DemoFailed, DeployFailed, EmulatorFailed, PipelineRunFailed) as error:
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
        queue = Queue.dynamodb(outputs["QueueTableName"], boto3.client("dynamodb", **emulator.connection))
        configure_stack(queue, **OPTIONS)
        _warm_up(emulator, outputs)
        load = OfferedLoad(emulator, outputs["CreateTasksAliasArn"])
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
        name = outputs[f"{function}FunctionName"]
        response = client.invoke(FunctionName=name, Qualifier=LIVE_ALIAS, Payload=event)
        if response.get("FunctionError"):
            msg = f"{function} does not start: {response['Payload'].read().decode()}; see {emulator.log}"
            raise DemoFailed(msg)

    with ThreadPoolExecutor(PROCESSES * len(RUNG)) as pool:
        list(pool.map(start, RUNG * PROCESSES))


def _watch(console: Console, queue: Queue, load: OfferedLoad) -> None:
    """Offer the load and show the queue until nothing is left to serve."""
    thread = load.offer()
    give_up_at = None
    with Live(console=console, refresh_per_second=4, transient=False) as live:
        while True:
            # A busy machine offers the load later than planned; the time to drain begins at its end.
            if give_up_at is None and not thread.is_alive():
                give_up_at = time.monotonic() + DRAIN_SECONDS
            stats = queue.stats()
            live.update(live_view(stats, time.time() - load.started, LOAD_SECONDS, MAX_AGE_SECONDS))
            if give_up_at is not None and stats.pending + stats.delayed + stats.taken == 0:
                break
            if give_up_at is not None and time.monotonic() > give_up_at:
                left = f"tasks are still left {DRAIN_SECONDS} s after the load ended: {stats}"
                msg = f"{left}; end of {load.emulator.log}:\n{tail(load.emulator.log)}"
                raise DemoFailed(msg)
            time.sleep(FRAME_SECONDS)
    if load.error is not None:
        msg = f"CreateTasks failed: {load.error}"
        raise DemoFailed(msg)


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
        raise DemoFailed("the change stream contains no task; see the emulator's log")
    fifo = first_in_first_out(lives, CAPACITY, LOAD_SECONDS)
    summary = summarize(load, lives, fifo, changes, invocations)
    (FOLDER / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", "utf-8")
    picture = FOLDER / "picture.png"
    subtitle = (
        f"{RATE_PER_SECOND:g} tasks/s offered for {LOAD_SECONDS} s, "
        f"capacity {CAPACITY_PER_SECOND:g}/s, useless after {MAX_AGE_SECONDS} s"
    )
    draw(Demonstration(lives, fifo, LOAD_SECONDS, MAX_AGE_SECONDS, CAPACITY_PER_SECOND), subtitle, picture)
    console.print()
    console.out(
        f"{summary['done_in_time']} of {summary['created']} tasks were done in time, because the load is "
        f"{OVERLOAD} times the capacity. Next: {OVERLOAD} times the workers, or 1/{OVERLOAD} of the load.",
        highlight=False,
    )
    console.print(_table(summary))
    console.out(
        f"freshq did {summary['done_in_time']} tasks in time; FIFO would have done "
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
    table = Table("", "", title="Fate of the tasks", show_header=False)
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
        DemoFailed: The numbers differ.
    """
    fates = sum(count_fates(lives).values())
    if fates != summary["created"]:
        msg = f"{summary['created']} tasks were created, but {fates} are accounted for"
        raise DemoFailed(msg)


@contextmanager
def dashboard_beside(queue: Queue) -> Iterator[str | None]:
    """Serve a dashboard on a free port during the block; it does not read the queue until a browser opens it.

    Args:
        queue: What it shows.

    Yields:
        The address to open; None if the extra is not installed.
    """
    try:
        with needs("dashboard"):
            from freshq.cli.dashboard.app import Shown  # noqa: PLC0415 - an extra
            from freshq.cli.dashboard.server import Dashboard  # noqa: PLC0415 - an extra
    except MissingExtra:
        yield None
        return
    with Dashboard(Shown(queue, every_seconds=EVERY_SECONDS)).beside() as url:
        yield url


def _age(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f} s"


def live_view(
    stats: Stats, elapsed_seconds: float, load_seconds: float, max_age_seconds: float
) -> RenderableType:
    """Return one frame: progress of the load, the backlog and its ages, done and shed tasks."""
    phase = "offering load" if elapsed_seconds < load_seconds else "draining"
    frame = Table.grid(padding=(0, 2))
    for _ in range(2):
        frame.add_column(min_width=26)
    frame.add_row(
        f"[bold]{phase}[/bold]  {elapsed_seconds:4.0f} s",
        ProgressBar(total=load_seconds, completed=min(elapsed_seconds, load_seconds), width=40),
    )
    frame.add_row(f"backlog  [yellow]{stats.pending:5d}[/yellow]", f"in work  {stats.taken:5d}")
    frame.add_row(
        f"newest   {_age(stats.newest_pending_seconds):>7}",
        f"oldest   {_age(stats.oldest_pending_seconds):>7}  (stale from {max_age_seconds:g} s)",
    )
    frame.add_row(
        f"done     [green]{stats.success:5d}[/green]",
        f"shed     [red]{stats.shed:5d}[/red]   failed {stats.failure}",
    )
    return frame


class PipelineRunFailed(RuntimeError):
    """The pipeline failed, or its counts differ from the demonstration's."""


def count_tasks_changes(changes: Iterable[Change]) -> int:
    """Return the number of changes to tasks, which is the number of events in the archive."""
    return sum(change.task_before() is not None or change.task_after() is not None for change in changes)


def fetch_archive(emulator: Emulator, bucket: str, events: int, folder: Path) -> None:
    """Wait until all events are archived, and copy them to a folder.

    Args:
        emulator: Emulator with the bucket.
        bucket: Name of the bucket.
        events: Number of events to wait for.
        folder: Target folder, emptied first.

    Raises:
        PipelineRunFailed: If the events did not arrive in time.
    """
    shutil.rmtree(folder, ignore_errors=True)
    client = boto3.client("s3", **emulator.connection)
    deadline = time.monotonic() + ARRIVAL_SECONDS
    found = 0
    while found < events:
        if time.monotonic() > deadline:
            msg = f"{found} of {events} events were archived within {ARRIVAL_SECONDS:g} s"
            raise PipelineRunFailed(msg)
        time.sleep(POLL_SECONDS)
        pull(bucket, folder, client)
        found = len(_event_ids(folder))


def _event_ids(folder: Path) -> set[str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    lines = [line for path in files for line in path.read_text("utf-8").splitlines()]
    return {json.loads(line)["event_id"] for line in lines}


def run_pipeline(events: Path, out: Path, as_of_ms: int) -> dict[str, Any]:
    """Run the pipeline on a folder of landed events, and return its summary.

    Raises:
        PipelineRunFailed: If it failed; the message has the pipeline's error.
    """
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "freshq_pipeline", "run", "--json"]
    command += ["--events", str(events), "--out", str(out), "--as-of", str(as_of_ms)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        output, errors = process.communicate(timeout=PIPELINE_SECONDS)
    except subprocess.TimeoutExpired as error:
        msg = f"the pipeline took longer than {PIPELINE_SECONDS:g} s"
        raise PipelineRunFailed(msg) from error
    finally:
        end_group(process)  # type: ignore[arg-type]  # text instead of bytes, but it reads neither
    if process.returncode != 0:
        msg = f"the pipeline failed with status {process.returncode}: {errors.strip()[-500:]}"
        raise PipelineRunFailed(msg)
    summary: dict[str, Any] = json.loads(output)
    return summary


def compare_with_pipeline(seen: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Compare the pipeline's ledger with the counts of the demonstration.

    Raises:
        PipelineRunFailed: If they differ.
    """
    differences = [
        f"{fate}: {seen[fate]} seen, {facts[fate]} found" for fate in FATES if seen[fate] != facts[fate]
    ]
    if facts["tasks"] != seen["created"]:
        differences.append(f"created: {seen['created']} seen, {facts['tasks']} found")
    if facts["ledger_violations"]:
        differences.append(f"{facts['ledger_violations']} ledger violations")
    if differences:
        raise PipelineRunFailed("the pipeline disagrees with the demonstration: " + "; ".join(differences))


@dataclass(frozen=True, slots=True)
class Demonstration:
    """The data of the chart.

    Attributes:
        lives: All tasks, in order of their puts.
        fifo: Their simulated service by a FIFO queue without deadlines.
        load_seconds: Duration of the puts.
        max_age_seconds: Age from which a task was stale.
        capacity_per_second: Tasks per second that the downstream can serve.
    """

    lives: Sequence[Life]
    fifo: Sequence[Service]
    load_seconds: float
    max_age_seconds: float
    capacity_per_second: float

    @property
    def start(self) -> float:
        """The first put, in seconds since the epoch."""
        return self.lives[0].created

    @property
    def end_seconds(self) -> float:
        """The end of the time axis: every task is served or stale."""
        ends = [life.ended - self.start for life in self.lives if life.ended is not None]
        return max([self.load_seconds + self.max_age_seconds, *ends])


def fate_of(life: Life) -> str:
    """Return the chart's name of a task's fate."""
    if life.fate is not TaskStatus.SUCCESS:
        return FATE_NAMES.get(life.fate, life.fate.value.lower())
    return IN_TIME if life.ended is not None and life.ended <= life.deadline else LATE


def draw(shown: Demonstration, subtitle: str, file: Path) -> None:
    """Draw the chart into a file; the suffix chooses the format (png, svg, html).

    Args:
        shown: The data to draw.
        subtitle: One line below the title.
        file: Where to write.
    """
    title = alt.TitleParams(
        "Three times the load that the downstream can serve",
        subtitle=subtitle,
        anchor="start",
        fontSize=17,
        offset=12,
    )
    freshq = [(life.created - shown.start, fate_of(life)) for life in shown.lives]
    fifo = [(service.put, IN_TIME if service.in_time else LATE) for service in shown.fifo]
    present = [fate for fate in COLOURS if any(fate == found for _put, found in (*freshq, *fifo))]
    chart = alt.vconcat(
        _waits(shown, present),
        _fates(shown, freshq, present, "freshq, newest first: fate of the tasks"),
        _fates(shown, fifo, present, "FIFO (simulated): fate of the same tasks"),
        title=title,
    )
    chart.configure_view(stroke=None).configure_title(anchor="start").save(str(file), scale_factor=2)
    if file.suffix == ".png":
        file.write_bytes(recompressed(file.read_bytes()))


def recompressed(picture: bytes) -> bytes:
    """Return a PNG with the same pixels at a third of the size, because the renderer compresses for speed.

    Each chunk has a length, a kind, data, and a checksum of kind and data (PNG specification, section 5.3).
    The data of all IDAT chunks is one zlib stream.
    """
    chunks: list[tuple[bytes, bytes]] = []
    at = len(PNG_SIGNATURE)
    while at < len(picture):
        (length,) = struct.unpack_from(">I", picture, at)
        chunks.append((picture[at + 4 : at + 8], picture[at + 8 : at + 8 + length]))
        at += length + 12
    pixels = zlib.decompress(b"".join(data for kind, data in chunks if kind == b"IDAT"))
    header, end = ([chunk for chunk in chunks if chunk[0] == kind] for kind in (b"IHDR", b"IEND"))
    rest = [chunk for chunk in chunks if chunk[0] not in (b"IHDR", b"IDAT", b"IEND")]
    parts = [*header, *rest, (b"IDAT", zlib.compress(pixels, level=9)), *end]
    return PNG_SIGNATURE + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def _seconds(shown: Demonstration, field: str, title: str) -> alt.X:
    """Return the time axis shared by all panels."""
    ticks = list(range(0, int(shown.end_seconds) + 1, TICK_SECONDS))
    return alt.X(
        f"{field}:Q",
        title=title,
        scale=alt.Scale(domain=[0, shown.end_seconds], nice=False, padding=0),
        axis=alt.Axis(values=ticks, format="d", grid=False),
    )


def _waits(shown: Demonstration, present: list[str]) -> alt.LayerChart:
    freshq = [
        {"started": life.claims[0].taken - shown.start, "wait": life.wait_seconds, "fate": fate_of(life)}
        for life in shown.lives
        if life.fate is TaskStatus.SUCCESS
    ]
    fifo = [
        {
            "started": service.started,
            "wait": service.started - service.put,
            "fate": IN_TIME if service.in_time else LATE,
        }
        for service in shown.fifo
        if service.started <= shown.end_seconds
    ]
    points = [
        alt.Chart(alt.InlineData(values=rows))
        .mark_point(size=26, opacity=0.75, filled=filled, strokeWidth=1.2)
        .encode(
            x=_seconds(shown, "started", "start (s)"),
            y=alt.Y("wait:Q", title="wait (s)"),
            color=_colour(present),
        )
        for rows, filled in ((fifo, False), (freshq, True))
    ]
    names = [_label(rows, text) for rows, text in ((fifo, "first in, first out"), (freshq, "freshq"))]
    layers: alt.LayerChart = alt.LayerChart(
        layer=[
            *points,
            *names,
            *_limit(shown.max_age_seconds, "useless above this line"),
            *_load_ends(shown, text="load ends"),
        ],
        title="Wait of each task until its start",
        width=WIDTH,
        height=WAITS_HEIGHT,
    )
    return layers


def _fates(
    shown: Demonstration, puts: Iterable[tuple[float, str]], present: list[str], title: str
) -> alt.LayerChart:
    rows: list[dict[str, Any]] = [
        {"put": int(put), "next": int(put) + 1, "fate": fate, "rank": present.index(fate)}
        for put, fate in puts
    ]
    bars = (
        alt.Chart(alt.InlineData(values=rows))
        .mark_bar(stroke="white", strokeWidth=0.5)
        .encode(
            x=_seconds(shown, "put", "put (s)"),
            x2="next:Q",
            y=alt.Y("count():Q", title="tasks per second"),
            color=_colour(present),
            order=alt.Order("rank:Q"),
        )
    )
    layers: alt.LayerChart = alt.LayerChart(
        layer=[bars, *_limit(shown.capacity_per_second, "capacity"), *_load_ends(shown)],
        title=title,
        width=WIDTH,
        height=FATES_HEIGHT,
    )
    return layers


def _colour(fates: list[str]) -> alt.Color:
    """Return the colours of fates; the panels share the legend."""
    scale = alt.Scale(domain=fates, range=[COLOURS[fate] for fate in fates])
    return alt.Color(
        "fate:N", scale=scale, legend=alt.Legend(title=None, orient="bottom", symbolType="square")
    )


def _label(rows: list[dict[str, Any]], text: str) -> alt.Chart:
    """Return a label next to the middle of the given points."""
    middle = [{**rows[len(rows) // 2], "text": text}] if rows else []
    label: alt.Chart = (
        alt.Chart(alt.InlineData(values=middle))
        .mark_text(align="right", dx=-10, dy=-10, fontSize=12, fontWeight="bold", color=LINE_COLOUR)
        .encode(x="started:Q", y="wait:Q", text="text:N")
    )
    return label


def _limit(value: float, text: str) -> list[alt.Chart]:
    """Return a dashed line across a panel with its label at the right end, where panels are empty."""
    data = alt.InlineData(values=[{"limit": value, "text": text}])
    line = alt.Chart(data).mark_rule(strokeDash=[6, 4], color=LINE_COLOUR).encode(y="limit:Q")
    label = (
        alt.Chart(data)
        .mark_text(align="right", baseline="bottom", dy=-3, color=LINE_COLOUR, fontWeight="bold")
        .encode(x=alt.value(WIDTH - 4), y="limit:Q", text="text:N")
    )
    return [line, label]


def _load_ends(shown: Demonstration, text: str | None = None) -> list[alt.Chart]:
    """Return a line at the end of the load, with its label if the panel has one."""
    data = alt.InlineData(values=[{"at": shown.load_seconds, "text": text}])
    line = alt.Chart(data).mark_rule(color=LINE_COLOUR).encode(x="at:Q")
    if text is None:
        return [line]
    label = (
        alt.Chart(data)
        .mark_text(align="left", baseline="top", dx=4, color=LINE_COLOUR, fontWeight="bold")
        .encode(x="at:Q", y=alt.value(0), text="text:N")
    )
    return [line, label]


if __name__ == "__main__":
    sys.exit(main())
