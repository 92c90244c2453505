"""The `freshq-pipeline` command.

Commands import PySpark, PyArrow and boto3 when they run, so `--help` works without them.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer
from rich.console import Console
from rich.progress import Progress
from typer.core import TyperGroup
from typing_extensions import override

from freshq.errors import MissingExtra, needs
from freshq.policy.order import Order
from freshq_pipeline.cluster.commands import Command
from freshq_pipeline.errors import (
    BAD_INPUT_STATUS,
    EXTRA,
    FAILED_STATUS,
    BadInput,
    PipelineError,
    check_installed,
    complain,
    reason,
)
from freshq_pipeline.flags import FLAGS, OPTIONS, flags_of, given, with_options
from freshq_pipeline.report.ending import PACKAGES, Ending, finish_submitted, load_ahead
from freshq_pipeline.report.lineage import lineage_of
from freshq_pipeline.runs.progress import PARTS, REPLAY_PARTS, STREAM_PARTS, RunProgress
from freshq_pipeline.runs.request import Options, RunRequest
from freshq_pipeline.runs.stopping import asked_to_stop, ended_by_signals
from freshq_pipeline.schemas import Format
from freshq_pipeline.spark.java import submitted
from freshq_pipeline.spark.tuning import HUGE
from freshq_pipeline.storage.results import REPORT, published_summary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from freshq_pipeline.replays.grid import DayRange, Grid
    from freshq_pipeline.spark.tuning import Tuning

# Typer exports only one subclass of its usage errors, not their base class.
_UsageProblem: Final = cast("type[Exception]", typer.BadParameter.__bases__[0])

EventsOption = Annotated[
    str, typer.Option(help="Folder with the recorded changes; on a cluster also s3://BUCKET/PREFIX.")
]
OutOption = Annotated[
    str, typer.Option(help="Folder for tables, summary and report; on a cluster also s3://BUCKET/PREFIX.")
]
FormatOption = Annotated[Format, typer.Option(FLAGS["form"], **OPTIONS["form"])]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
LineageOption = Annotated[
    str | None,
    typer.Option(
        metavar="URL|FILE",
        help="Send OpenLineage events there (default: as OPENLINEAGE_* say).",
    ),
]


def _requested(events: str, out: str, options: Options) -> RunRequest:
    """Return the request for a run.

    Raises:
        BadInput: If this Spark cannot use an address.
    """
    from freshq_pipeline.storage.folder import Folder

    for name, address in (("events", events), ("out", out)):
        if address.startswith(("s3://", "s3a://")) and not submitted():
            msg = f"{name}: embedded Spark cannot use {address}; get the events by `freshq-pipeline pull`, "
            msg += "or run on a cluster by `freshq-pipeline submit` or spark-submit"
            raise BadInput(msg)
    return RunRequest(Folder(events), Folder(out), options)


def _check_interval(every_seconds: float | None) -> None:
    if every_seconds is not None and not 0 < every_seconds < float("inf"):
        msg = f"every-seconds: must be greater than 0, got {every_seconds:g}"
        raise BadInput(msg)


def _progress(parts: Mapping[str, str]) -> RunProgress:
    """Return the progress of a command, for standard error."""
    # spark-submit writes standard error to standard output, where a result in JSON must stay alone.
    return RunProgress(Console(stderr=True), logs=not submitted(), parts=parts)


@dataclass(frozen=True, slots=True)
class Spark:
    """The master and the memory of the embedded Spark."""

    master: str = "local[*]"
    memory: str = "2g"

    def session(self, tuning: Tuning) -> AbstractContextManager[SparkSession]:
        """Return a session with settings for the input; it starts when entered."""
        from freshq_pipeline.spark.session import spark_session

        load_ahead()
        return spark_session(self.master, self.memory, tuning)


@dataclass(frozen=True, slots=True)
class Scenarios:
    """The scenarios of a replay, as given on the command line."""

    policies: str | None = None
    capacity: str = "0.5,1,2"
    deadline_seconds: str | None = None
    recorded_policy: Order = Order.LIFO
    servers: int | None = None
    seed: int = 1
    queue: str | None = None
    since: str | None = None
    until: str | None = None

    def days(self) -> DayRange:
        """Return the days of creation of the tasks."""
        from freshq_pipeline.replays.grid import DayRange

        return DayRange(self.since, self.until)

    def grid(self) -> Grid:
        """Return the parsed scenarios."""
        from freshq_pipeline.replays.grid import Grid, parsed

        deadlines: tuple[float | None, ...] = (None,)
        if self.deadline_seconds is not None:
            deadlines = parsed("deadline-seconds", self.deadline_seconds, float, "numbers")
        orders = None
        if self.policies is not None:
            orders = parsed("policies", self.policies, Order, f"of {', '.join(Order)}")
        capacities = parsed("capacity", self.capacity, float, "numbers")
        return Grid(orders, capacities, deadlines, self.recorded_policy, self.servers, self.seed, self.queue)


# Options that a stream lacks: it has no end, and computes only changes.
NOT_OF_STREAM: Final = ("as_of_ms", "full_refresh", "since", "until")
# PyArrow reads its name when it is imported. With its default allocator, memory grows by 2 MiB per batch.
LASTING_POOL: Final = "system"
# Flags of the commands that a cluster runs.
COMMAND_FLAGS: Final = {
    Command.RUN: flags_of(Options),
    Command.STREAM: flags_of(Options, *NOT_OF_STREAM),
    Command.REPLAY: flags_of(Scenarios) | {FLAGS["form"]},
}


class PipelineErrors(TyperGroup):
    """Prints each error in one line, including wrong usage, and exits with its status or a signal's."""

    @override
    def main(self, args: Sequence[str] | None = None, *_: Any, **extra: Any) -> Any:
        """Run a command and exit with its status."""
        extra.pop("standalone_mode", None)
        try:
            with needs(EXTRA), ended_by_signals():
                ended = super().main(args, standalone_mode=False, **extra)
        except _UsageProblem as error:
            # The message is empty if no command was given and the help was printed.
            if message := cast("Any", error).format_message():
                complain(message.replace("Value error, ", ""))  # Pydantic's prefix of a reason
            sys.exit(BAD_INPUT_STATUS)
        except (PipelineError, OSError, MissingExtra) as error:
            complain(reason(error))
            sys.exit(error.status if isinstance(error, PipelineError) else FAILED_STATUS)
        sys.exit(ended if isinstance(ended, int) else 0)


app = typer.Typer(
    cls=PipelineErrors,
    help="The outcome of every task, and its outcome under another policy.",
    no_args_is_help=True,
    add_completion=False,
)


@app.command()
@with_options()
def run(
    events: EventsOption, out: OutOption, options: Options, spark: Spark, lineage: LineageOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Compute tables, summary and report from a folder of changes; later runs read only new files."""
    from freshq_pipeline.runs.batch import execute

    request = _requested(events, out, options)
    events_of = lineage_of("run", request.events, request.out, lineage)
    with _progress(PARTS) as progress:
        ending = Ending(request.out, progress.begin, events_of)
        with ending.postponed():
            ending.summary = execute(request, spark.session, progress)
        ending.report()
    ending.finish(as_json=as_json)


@app.command()
@with_options(*NOT_OF_STREAM)
def stream(
    events: EventsOption,
    out: OutOption,
    checkpoint: Annotated[str, typer.Option(help="Folder for the progress of the query.")],
    options: Options,
    spark: Spark,
    every_seconds: Annotated[
        float | None, typer.Option(help="Look for new files at this interval until stopped (default: once).")
    ] = None,
    files_per_batch: Annotated[int, typer.Option(help="Maximum number of files per batch.", min=1)] = 64,
    lineage: LineageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Publish the same tables whenever files arrive; continues after a restart.

    SIGTERM or Ctrl-C ends the stream after the batch in progress, with its usual exit status; a second signal
    ends it immediately.
    """
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", LASTING_POOL)
    from freshq_pipeline.runs.batch import plan
    from freshq_pipeline.runs.stream import stream as follow
    from freshq_pipeline.storage.folder import Folder

    _check_interval(every_seconds)
    request = _requested(events, out, options)
    request.check_beside_events("checkpoint", Folder(checkpoint))
    tuning = plan(request).tuning() if every_seconds is None else HUGE  # with Java's optimizing compiler
    with _progress(STREAM_PARTS) as progress:
        progress.begin("start", f"for a {tuning.name} input")
        events_of = lineage_of("stream", request.events, request.out, lineage)
        ending = Ending(request.out, progress.begin, events_of, of_each_batch=every_seconds is not None)
        more = every_seconds, ending.batch, files_per_batch
        with (
            ending.postponed(), spark.session(tuning) as session, progress.follow(session),
            asked_to_stop() as stop,
        ):  # fmt: skip
            follow(session, request, Folder(checkpoint).uri, *more, stop, progress.begin)
        ending.take_current()
        ending.report()
    ending.finish(as_json=as_json)


@app.command()
@with_options()
def replay(
    events: EventsOption,
    out: OutOption,
    scenarios: Scenarios,
    spark: Spark,
    form: FormatOption = Format.LANDED,
    lineage: LineageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate the load of recorded days under other policies and capacities.

    Exits with status 5 if the replay of the recorded policy deviates more than 5% from the recording.
    """
    from freshq_pipeline.replays.replaying import replay_published
    from freshq_pipeline.runs.batch import as_before, execute, plan

    grid, days = scenarios.grid(), scenarios.days()
    # A replay must not change the options of the current tables.
    request = as_before(_requested(events, out, Options(form)))
    events_of = lineage_of("replay", request.events, request.out, lineage)
    tuning = plan(request).tuning()
    with _progress(REPLAY_PARTS) as progress:
        progress.begin("start", f"for a {tuning.name} input")
        ending, result = Ending(request.out, progress.begin, events_of), None
        with ending.postponed(), spark.session(tuning) as session, progress.follow(session):
            with ending.postponed():
                ending.summary = execute(request, lambda _tuning: nullcontext(session), progress)
            progress.begin("replay")
            result = replay_published(session, request.out, grid, days)
        ending.report()
    ending.finish_replay(result, as_json=as_json)


@app.command()
def report(out: OutOption) -> None:
    """Write the report of the current run again."""
    from freshq_pipeline.storage.folder import Folder

    check_installed(*PACKAGES)
    ending = Ending(Folder(out))
    published_summary(ending.out)
    ending.report()
    for problem in ending.problems:
        raise problem
    typer.echo(ending.out.at(REPORT))


@app.command()
def contract(
    out: Annotated[
        str | None, typer.Option(help="Name the files of the tables in this output folder (default: none).")
    ] = None,
    dbt: Annotated[bool, typer.Option("--dbt", help="Print a source for dbt.")] = False,
) -> None:
    """Print the contract of the tables as YAML: names, types, units, nullability and keys."""
    from freshq_pipeline.report.contract import contract_of, contract_text, dbt_source
    from freshq_pipeline.storage.folder import Folder

    folder = None if out is None else Folder(out)
    plain = contract_text if folder is None else partial(contract_of, folder)
    typer.echo(dbt_source(folder) if dbt else plain(), nl=False)


@app.command()
def pull(
    out: Annotated[Path, typer.Option(help="Folder to copy the landed events to.")],
    stack: Annotated[
        str | None, typer.Option(help="Name of a stack that was deployed with Archive=on.")
    ] = None,
    queue: Annotated[
        str | None, typer.Option(metavar="URL", help="Address of a queue in a SQL database with history=on.")
    ] = None,
    match_queue: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Address of resources with history=on, as for freshq match."),
    ] = None,
) -> None:
    """Copy the landed events of a stack or of a SQL queue; later pulls copy only new ones."""
    if sum(source is not None for source in (stack, queue, match_queue)) != 1:
        raise BadInput("pull: give either --stack NAME or --queue URL or --match-queue URL")
    # A queue needs no boto3, a stack no SQL.
    from freshq_pipeline.cluster.pull_queue import from_address

    console = Console(stderr=True)
    with Progress(*Progress.get_default_columns(), console=console, disable=not console.is_terminal) as bar:
        if stack is not None:
            from freshq_pipeline.cluster.pull import from_stack

            said = from_stack(stack, out, bar)
        else:
            said = from_address(queue or match_queue or "", out, bar, of_matches=queue is None)
    typer.echo(said)


@app.command()
@with_options()
def submit(
    context: typer.Context,
    stack: Annotated[str, typer.Option(help="Name of a stack of pipeline/template.yaml.")],
    options: Options,
    scenarios: Scenarios,
    command: Annotated[Command, typer.Argument(help="Command to run there.")] = Command.RUN,
    events: Annotated[str | None, typer.Option(help="s3://BUCKET/PREFIX (default: the stack's).")] = None,
    out: Annotated[str | None, typer.Option(help="s3://BUCKET/PREFIX (default: the stack's).")] = None,
    spark_conf: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A setting of Spark; repeatable.")
    ] = None,
    package: Annotated[Path, typer.Option(help="Folder that make pipeline-package created.")] = Path(
        "build/pipeline"
    ),
    follow: Annotated[
        str | None, typer.Option(metavar="RUN", help="Follow this run instead of starting one.")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Follow the run to its end.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Run on EMR Serverless and exit with the status of the command there; Ctrl-C does not stop the run.

    Each command has the same options as here. A stream processes the existing files and ends.
    """
    from freshq_pipeline.cluster.commands import options_of
    from freshq_pipeline.cluster.emr import Job
    from freshq_pipeline.cluster.emr import submit as start

    if command is Command.REPLAY:
        scenarios.grid()
        scenarios.days()
    chosen = given(options, context) | given(scenarios, context)
    arguments = options_of(command, chosen, COMMAND_FLAGS[command])
    job = Job(events, out, command, arguments, spark_conf or [], package)
    ended = start(stack, job, run=follow, wait=wait)
    if ended is None:
        return
    of_replay = ended.command is Command.REPLAY
    finish_submitted(ended.result, ended.status, ended.message, of_replay=of_replay, as_json=as_json)
