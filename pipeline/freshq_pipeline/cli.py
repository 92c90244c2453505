"""The `freshq-pipeline` command."""

from __future__ import annotations

import json
import signal
import sys
import threading
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import DownloadColumn, Progress
from rich.table import Table

from freshq.policy.order import Order
from freshq_pipeline.errors import FAILED_STATUS, VIOLATION_STATUS, BadInput, PipelineError
from freshq_pipeline.run.batch import Request, as_before, execute
from freshq_pipeline.schemas import TABLES, Format, ddl
from freshq_pipeline.spark.session import spark_session
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.state import SUMMARY

if TYPE_CHECKING:
    from collections.abc import Iterator

app = typer.Typer(
    help="What happened to every task, and what would have under another policy.",
    no_args_is_help=True,
    add_completion=False,
)

EventsOption = Annotated[str, typer.Option(help="Folder with the recorded changes, or s3://BUCKET/PREFIX.")]
OutOption = Annotated[str, typer.Option(help="Folder for tables, summary and report.")]
FormatOption = Annotated[Format, typer.Option("--format", help="How the changes are written.")]
AsOfOption = Annotated[
    int | None,
    typer.Option(help="Say outcomes at this moment, epoch milliseconds (default: the newest event)."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]
MasterOption = Annotated[str, typer.Option(envvar="FRESHQ_SPARK_MASTER", help="Where Spark runs.")]
MemoryOption = Annotated[str, typer.Option(envvar="FRESHQ_SPARK_MEMORY", help="Memory of the embedded Java.")]
RejectOption = Annotated[float, typer.Option(help="Share of the records that may be unusable.")]
KeepOption = Annotated[int, typer.Option(help="How many runs stay.")]
FullRefreshOption = Annotated[
    bool, typer.Option("--full-refresh", help="Read everything again, also what was read before.")
]
LagOption = Annotated[
    float, typer.Option(help="How long a new task need not be visible to claims, for inversions.")
]
IcebergOption = Annotated[
    str | None,
    typer.Option(metavar="CATALOG.NAMESPACE", help="Put the tables into this Iceberg catalog of Spark, too."),
]


@app.callback()
def main() -> None:
    """Tidy up also when the process is asked to end."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Print what went wrong in one line, and exit with its status."""
    try:
        yield
    except PipelineError as error:
        typer.echo(f"freshq-pipeline: {error}", err=True)
        raise typer.Exit(error.status) from error
    except OSError as error:
        typer.echo(f"freshq-pipeline: {error}", err=True)
        raise typer.Exit(FAILED_STATUS) from error


@app.command()
def run(
    events: EventsOption,
    out: OutOption,
    form: FormatOption = Format.LANDED,
    as_of: AsOfOption = None,
    as_json: JsonOption = False,
    max_reject_ratio: RejectOption = 0.2,
    keep_runs: KeepOption = 5,
    index_lag_seconds: LagOption = 0.0,
    full_refresh: FullRefreshOption = False,
    iceberg: IcebergOption = None,
    master: MasterOption = "local[*]",
    memory: MemoryOption = "2g",
) -> None:
    """Make tables, summary and report of a folder of changes; run again, it reads only what is new."""
    from freshq_pipeline.report.page import write_report  # noqa: PLC0415 - loads Pandas

    with one_line_errors():
        request = Request(
            Folder(events),
            Folder(out),
            form,
            as_of,
            index_lag_seconds,
            max_reject_ratio,
            keep_runs,
            full_refresh,
            iceberg,
        )
        summary = execute(request, partial(spark_session, master, memory))
        write_report(request.out)
    finish(summary, as_json=as_json)


@app.command()
def stream(
    events: EventsOption,
    out: OutOption,
    checkpoint: Annotated[str, typer.Option(help="Folder of the query's own progress.")],
    form: FormatOption = Format.LANDED,
    every_seconds: Annotated[
        float | None,
        typer.Option(help="Look for new files so often until stopped (default: once, and end)."),
    ] = None,
    files_per_batch: Annotated[int, typer.Option(help="Files that are read at a time.", min=1)] = 64,
    as_json: JsonOption = False,
    max_reject_ratio: RejectOption = 0.2,
    keep_runs: KeepOption = 5,
    index_lag_seconds: LagOption = 0.0,
    iceberg: IcebergOption = None,
    master: MasterOption = "local[*]",
    memory: MemoryOption = "2g",
) -> None:
    """Publish the same tables whenever files have arrived; killed and started again, it goes on."""
    from freshq_pipeline.report.page import write_report  # noqa: PLC0415 - loads Pandas
    from freshq_pipeline.run.stream import stream as follow  # noqa: PLC0415 - loads Spark

    with one_line_errors():
        if every_seconds is not None and not 0 < every_seconds < float("inf"):
            msg = f"every-seconds: must be greater than 0, got {every_seconds:g}"
            raise BadInput(msg)
        request = Request(
            Folder(events),
            Folder(out),
            form,
            None,
            index_lag_seconds,
            max_reject_ratio,
            keep_runs,
            iceberg=iceberg,
        )
        with spark_session(master, memory) as spark:
            follow(spark, request, Folder(checkpoint).uri, every_seconds, files_per_batch=files_per_batch)
        write_report(request.out)
    finish(request.out.read_json(SUMMARY), as_json=as_json)


@app.command()
def replay(
    events: EventsOption,
    out: OutOption,
    form: FormatOption = Format.LANDED,
    policies: Annotated[str, typer.Option(help="Orders of service.")] = "lifo,fifo,adaptive",
    capacity: Annotated[str, typer.Option(help="Multiples of the recorded capacity.")] = "0.5,1,2",
    deadline_seconds: Annotated[
        str | None, typer.Option(help="Ages at which tasks are stale (default: as recorded).")
    ] = None,
    recorded_policy: Annotated[Order, typer.Option(help="The order that was in force.")] = Order.LIFO,
    servers: Annotated[
        int | None, typer.Option(help="Tasks in work at a time (default: as the record shows).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the service times that are drawn.")] = 1,
    as_json: JsonOption = False,
    master: MasterOption = "local[*]",
    memory: MemoryOption = "2g",
) -> None:
    """Say what the recorded load would have come to under other policies and capacities."""
    with one_line_errors():
        from freshq_pipeline.replay import Grid, parse_numbers, parse_orders  # noqa: PLC0415 - loads Spark
        from freshq_pipeline.replay import replay as simulate  # noqa: PLC0415 - loads Spark
        from freshq_pipeline.report.page import write_report  # noqa: PLC0415 - loads Pandas

        deadlines: tuple[float | None, ...] = (None,)
        if deadline_seconds is not None:
            deadlines = parse_numbers("deadline-seconds", deadline_seconds)
        grid = Grid(
            parse_orders(policies),
            parse_numbers("capacity", capacity),
            deadlines,
            recorded_policy,
            servers,
            seed,
        )
        # What is there stays what it was made to be: at its own moment, and in its catalog.
        request = as_before(Request(Folder(events), Folder(out), form))
        with spark_session(master, memory) as spark:
            summary = execute(request, lambda: nullcontext(spark))
            tasks = spark.read.schema(ddl(TABLES["tasks"])).parquet(summary["tables"]["tasks"])
            result = simulate(spark, tasks, grid)
        request.out.write_json("replay.json", result)
        write_report(request.out)
    show_replay(result, as_json=as_json)


def show_replay(result: dict[str, Any], *, as_json: bool) -> None:
    """Print what a replay found, and say so if the check failed."""
    check = result["check"]
    if as_json:
        typer.echo(json.dumps(result))
    else:
        table = Table(
            *("policy", "capacity", "stale at, s", "in time", "late", "shed", "p99 wait, s"),
            title="what would have happened; first, as a check, what did",
        )
        for row in result["scenarios"]:
            stale = row["deadline_seconds"]
            wait = row["wait_p99_seconds"]
            counts = (row["served_in_time"], row["served_late"], sum(row["shed_by_reason"].values()))
            shown = [f"{count:,}" for count in counts] + ["-" if wait is None else f"{wait:,.2f}"]
            deadline = "as recorded" if stale is None else f"{stale:g}"
            table.add_row(row["policy"], f"{row['capacity']:g}", deadline, *shown)
        Console().print(table)
        typer.echo(result["record"]["imputation"])
    if not check["within"]:
        off = f"{check['difference_ratio']:.1%}"
        typer.echo(f"freshq-pipeline: the replay of {check['policy']} is {off} off the record", err=True)


@app.command()
def report(out: OutOption) -> None:
    """Write the report of the current run anew."""
    from freshq_pipeline.report.page import write_report as write  # noqa: PLC0415 - loads Pandas

    with one_line_errors():
        folder = Folder(out)
        write(folder)
    typer.echo(folder.at("report.html"))


@app.command()
def pull(
    stack: Annotated[str, typer.Option(help="Name of a stack that was deployed with Archive=on.")],
    out: Annotated[Path, typer.Option(help="Folder that the landed events are copied to.")],
) -> None:
    """Copy the landed events of a deployed stack here; again, it copies only what is new."""
    from freshq_pipeline.cluster.pull import bucket_of  # noqa: PLC0415 - loads boto3
    from freshq_pipeline.cluster.pull import pull as copy  # noqa: PLC0415 - loads boto3

    with one_line_errors():
        bucket = bucket_of(stack)
        with Progress(*Progress.get_default_columns(), DownloadColumn(), console=Console(stderr=True)) as bar:
            task = bar.add_task("copying", total=None)
            pulled = copy(bucket, out, progress=lambda done, of: bar.update(task, completed=done, total=of))
            bar.update(task, total=pulled.copied_bytes, completed=pulled.copied_bytes)
    typer.echo(f"{pulled.copied} files copied to {out}, {pulled.known} were there already")


@app.command()
def submit(
    stack: Annotated[str, typer.Option(help="Name of a stack of pipeline/template.yaml.")],
    events: Annotated[str | None, typer.Option(help="s3://BUCKET/PREFIX (default: the stack's).")] = None,
    out: Annotated[str | None, typer.Option(help="s3://BUCKET/PREFIX (default: the stack's).")] = None,
    form: FormatOption = Format.LANDED,
    as_of: AsOfOption = None,
    as_json: JsonOption = False,
    max_reject_ratio: RejectOption = 0.2,
    keep_runs: KeepOption = 5,
    index_lag_seconds: LagOption = 0.0,
    full_refresh: FullRefreshOption = False,
    iceberg: IcebergOption = None,
    spark_conf: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A setting of Spark; may be repeated.")
    ] = None,
    package: Annotated[Path, typer.Option(help="The folder that make pipeline-package made.")] = Path(
        "build/pipeline"
    ),
    follow: Annotated[
        str | None, typer.Option(metavar="RUN", help="Start nothing, but follow this run to its end.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Follow the run to its end.")] = True,
) -> None:
    """Run on EMR Serverless, with the exit status of `run`; Ctrl-C leaves the run going."""
    from freshq_pipeline.cluster import submit as cluster_submit  # noqa: PLC0415 - loads boto3

    wanted = {
        "--format": form.value,
        "--as-of": as_of,
        "--max-reject-ratio": max_reject_ratio,
        "--keep-runs": keep_runs,
        "--index-lag-seconds": index_lag_seconds,
        "--iceberg": iceberg,
    }
    with one_line_errors():
        # Whatever makes no sense is told now, not after some minutes by the cluster.
        here = Folder(".")
        Request(here, here, form, as_of, index_lag_seconds, max_reject_ratio, keep_runs, iceberg=iceberg)
        options = [text for name, value in wanted.items() if value is not None for text in (name, str(value))]
        options += ["--full-refresh"] if full_refresh else []
        summary = cluster_submit.submit(
            stack, events, out, options, spark_conf or [], package, run=follow, wait=wait
        )
    if summary is not None:
        finish(summary, as_json=as_json)


def finish(summary: dict[str, Any], *, as_json: bool) -> None:
    """Print a summary, and exit with the status of a broken ledger if it is."""
    if as_json:
        typer.echo(json.dumps(summary))
    else:
        show(summary)
    if summary["ledger_violations"]:
        count = summary["ledger_violations"]
        typer.echo(f"freshq-pipeline: {count} tasks break the ledger; see the table violations", err=True)
        raise typer.Exit(VIOLATION_STATUS)


def show(summary: dict[str, Any]) -> None:
    """Print the figures of a summary."""
    table = Table("figure", "value", title="what happened")
    for name, value in summary.items():
        if not isinstance(value, dict):
            text = "-" if value is None else f"{value:,.3f}" if isinstance(value, float) else str(value)
            table.add_row(name.replace("_", " "), text)
    table.columns[1].justify = "right"
    Console().print(table)
