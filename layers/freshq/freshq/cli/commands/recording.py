"""`freshq recording` saves a load; `freshq advise` and `freshq replay` serve it under other settings."""

from __future__ import annotations

import gzip
import io
import json
import os
from contextlib import closing, contextmanager
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from freshq.addresses import open_queue
from freshq.cli.command import AsJson, is_given
from freshq.cli.errors import ExitStatus, print_error
from freshq.cli.output import counted, json_text
from freshq.cli.stacks import BUCKET, EVENTS, Stack, archived
from freshq.errors import RefusedError, needs
from freshq.queue.core import core_of
from freshq.simulate.advice import ENOUGH, Objective, Settings, Threshold, limit_for, read_settings
from freshq.simulate.advice import advise as advice_on
from freshq.simulate.advice import outages as outages_of
from freshq.simulate.advice import replay as replayed
from freshq.simulate.engine import check_servers
from freshq.simulate.load import PARQUET, Recorder, parsed_events, read_recording
from freshq.simulate.stress import Clients
from freshq.simulate.sweep import check_plot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from freshq.simulate.advice import Advice, Compared, Interval, Outage
    from freshq.simulate.load import Recording


Queue = Annotated[
    str | None,
    typer.Option(
        envvar="FRESHQ_QUEUE", metavar="URL", help="A queue in a SQL database that keeps a history."
    ),
]
OfStack = Annotated[str | None, typer.Option("--stack", help="A deployed stack with an archive.")]
Events = Annotated[
    Path | None, typer.Option(help="A folder of landed events, as `freshq-pipeline pull` writes them.")
]
Name = Annotated[str | None, typer.Option(help="Name of the queue in its table, stack or folder.")]
Out = Annotated[Path, typer.Option(help="The file to write: FILE.jsonl, FILE.jsonl.gz or FILE.parquet.")]
GZIP_LEVEL: Final = 4
GZIP_MAGIC: Final = b"\x1f\x8b"
# Rows of Parquet that are written together.
ROWS: Final = 50_000


def recording(
    context: typer.Context,
    out: Out,
    queue: Queue = None,
    stack: OfStack = None,
    events: Events = None,
    name: Name = None,
    as_json: AsJson = False,
) -> None:
    """Save the load of a queue, to simulate it.

    Writes when each task arrived, how long it ran and when it was stale, with its group, level and kind,
    without ids and payloads: from the history of a SQL queue, or the archive of a stack.
    """
    if (events is not None or stack is not None) and not is_given(context, "queue"):
        queue = None
    if sum(source is not None for source in (queue, stack, events)) != 1:
        raise ValueError("queue: give one of --queue URL, --stack NAME and --events FOLDER")
    recorder = Recorder(name)
    with _source(queue, stack, events, recorder) as found, _writer(out) as write:
        broken = _record(found, recorder, write)
    if broken:
        print_error(f"{counted(broken, 'damaged event')} left out")
    _tell_recorded(out, recorder, broken, as_json=as_json)


def _record(
    events: Iterable[Mapping[str, Any] | None],
    recorder: Recorder,
    write: Callable[[Mapping[str, Any]], object],
) -> int:
    """Write the tasks of the given events; return the number of damaged events."""
    broken = 0
    for event in events:
        broken += event is None
        for line in () if event is None else recorder.add(event):
            write(line)
    for line in recorder.rest():
        write(line)
    if not recorder.tasks:
        where = "" if recorder.queue is None else f" of queue {recorder.queue!r}"
        msg = f"events: no event shows a put of a task{where}; nothing was written"
        raise RefusedError(msg)
    return broken


def _tell_recorded(out: Path, recorder: Recorder, broken: int, *, as_json: bool) -> None:
    answer = {
        "out": str(out),
        "tasks": recorder.tasks,
        "without_service_seconds": recorder.unknown,
        "left_out": recorder.left_out,
        "damaged_events": broken,
    }
    if as_json:
        typer.echo(json_text(answer))
        return
    said = f"{counted(recorder.tasks, 'task')} written to {out}"
    if recorder.unknown:
        said += f"; {recorder.unknown:,} of them never ran to their end, so their service times will be drawn"
    if recorder.left_out:
        said += f"; {recorder.left_out:,} left out: put earlier, cancelled or deleted"
    typer.echo(f"{said}.")


@contextmanager
def _source(
    queue: str | None, stack: str | None, events: Path | None, recorder: Recorder
) -> Iterator[Iterable[Mapping[str, Any] | None]]:
    """Open the events of a source; set the queue to record, if the source has one."""
    if events is not None:
        yield _events_of_folder(events)
    elif stack is not None:
        yield _events_of_stack(Stack.describe(stack), recorder)
    else:
        with closing(open_queue(str(queue), recorder.queue)) as opened:
            history = core_of(opened).store.history
            if history is None:
                raise ValueError("queue: must be in a SQL database; for a stack, give --stack or --events")
            kept = history.kept(opened.name)
            if kept is None:
                msg = f"queue: {opened.name!r} keeps no history; run `{history.command}` with ?history=on"
                raise RefusedError(msg)
            history.add_batches(opened.name)
            last = (history.kept(opened.name) or kept).last_batch
            batches = range(kept.first_batch, last + 1)
            yield chain.from_iterable(history.events(opened.name, batch) for batch in batches)


def _events_of_folder(folder: Path) -> Iterator[Mapping[str, Any] | None]:
    files = sorted(
        path for path in folder.rglob("*") if path.is_file() and not path.name.startswith((".", "_"))
    )
    if not files:
        msg = f"events: {str(folder)!r} is no folder with files of events"
        raise ValueError(msg)
    for file in files:
        if file.name.endswith((".jsonl", ".json", ".gz", ".ndjson")) or not file.suffix:
            with file.open("rb") as body:
                yield from parsed_events(_text_of(body))


def _events_of_stack(stack: Stack, recorder: Recorder) -> Iterator[Mapping[str, Any] | None]:
    if BUCKET not in stack.outputs:
        msg = f"stack: {stack.name!r} has no archive; deploy it with --parameter-overrides Archive=on"
        raise RefusedError(msg)
    recorder.record(recorder.queue or stack.queue_name)
    for client, key in archived(stack.outputs[BUCKET], EVENTS):
        body = client.get_object(Bucket=stack.outputs[BUCKET], Key=key)["Body"]
        yield from parsed_events(_text_of(io.BufferedReader(body)))


def _text_of(body: io.BufferedReader) -> Iterator[str]:
    """Yield the lines of a file, which may be compressed."""
    compressed = body.peek(len(GZIP_MAGIC))[: len(GZIP_MAGIC)] == GZIP_MAGIC
    with gzip.GzipFile(fileobj=body) if compressed else body as lines:
        for line in lines:
            yield line.decode("utf-8", "replace")


@contextmanager
def _writer(out: Path) -> Iterator[Callable[[Mapping[str, Any]], object]]:
    """Yield a function that writes a line; the file appears when the block ends without an error."""
    if not out.parent.is_dir():
        msg = f"out: there is no folder {str(out.parent)!r}"
        raise ValueError(msg)
    draft = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        if out.suffix == PARQUET:
            with _parquet(draft) as write:
                yield write
        else:
            with draft.open("wb") as raw, _compressed(raw, out) as body:
                yield lambda line: body.write(json.dumps(line, separators=(",", ":")) + "\n")
        draft.replace(out)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def _compressed(raw: Any, out: Path) -> Iterator[io.TextIOWrapper]:
    if out.suffix != ".gz":
        with io.TextIOWrapper(raw, "utf-8") as text:
            yield text
        return
    with gzip.GzipFile(out.name, "wb", GZIP_LEVEL, raw) as packed, io.TextIOWrapper(packed, "utf-8") as text:
        yield text


@contextmanager
def _parquet(file: Path) -> Iterator[Callable[[Mapping[str, Any]], object]]:
    """Yield a function that writes a line into a Parquet file, by groups of rows."""
    with needs("pipeline"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    numbers = dict.fromkeys(("at_seconds", "service_seconds", "deadline_seconds", "value"), pa.float64())
    texts = dict.fromkeys(("group", "kind", "parent", "decay"), pa.string())
    schema = pa.schema({**numbers, "level": pa.int8(), **texts, "version": pa.int8()})
    rows: list[Mapping[str, Any]] = []

    def flush() -> None:
        writer.write_table(pa.Table.from_pylist(rows, schema))
        rows.clear()

    def write(line: Mapping[str, Any]) -> None:
        rows.append(line)
        if len(rows) >= ROWS:
            flush()

    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        yield write
        flush()


Load = Annotated[
    Path, typer.Argument(metavar="RECORDING", help="The recorded load, as `freshq recording` saves it.")
]
Servers = Annotated[
    int | None,
    typer.Option(help="Number of tasks that can run at a time. Needed unless --settings names it."),
]
OfQueue = Annotated[
    str | None,
    typer.Option("--queue", envvar="FRESHQ_QUEUE", metavar="URL", help="Read today's settings from a queue."),
]
OfName = Annotated[str | None, typer.Option("--name", help="Name of that queue in its table.")]
ObjectiveText = Annotated[
    str | None,
    typer.Option(
        "--objective",
        help="in-time: the share of tasks done by their deadline; value: of their value, the share that is "
        "delivered (without values, a task loses worth evenly until its deadline); or a share and a time, "
        "such as '0.99@2s for level 9'. By default value if the recording has values, else in-time.",
    ),
]
Today = Annotated[
    Path | None,
    typer.Option("--settings", help="Today's settings, FILE.toml, instead of a queue's."),
]
WithOutage = Annotated[
    bool, typer.Option("--outage", help="Also say which outage tips each order over, if clients try again.")
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--client-timeout", help="Seconds after which a client tries again; by default the deadline."
    ),
]
Retries = Annotated[int, typer.Option("--client-retries", help="How often a client tries again.")]
Plot = Annotated[Path | None, typer.Option(help="Draw all settings: FILE.png, FILE.svg or FILE.html.")]
WithTable = Annotated[bool, typer.Option("--table", help="Also print a table of all settings.")]
Seed = Annotated[int, typer.Option(help="Seed of the random numbers.")]
Now = Annotated[Path, typer.Option("--settings", help="The present settings, FILE.toml.")]
New = Annotated[Path, typer.Option("--against", help="The new settings, FILE.toml.")]
FailIf = Annotated[
    str | None,
    typer.Option(
        help="Fail if the change is below this: in_time<-1% or value<-0.5%. By default value<-1% if the "
        "recording has values, else in_time<-1%."
    ),
]
TODAY: Final = "today's settings"


def advise(
    context: typer.Context,
    load: Load,
    servers: Servers = None,
    objective: ObjectiveText = None,
    settings: Today = None,
    queue: OfQueue = None,
    name: OfName = None,
    outage: WithOutage = False,
    client_timeout: Timeout = None,
    client_retries: Retries = 3,
    plot: Plot = None,
    table: WithTable = False,
    seed: Seed = 1,
    as_json: AsJson = False,
) -> None:
    """Recommend settings for a recorded load.

    Simulates orders, reserves, bounds, the admission limit and max ages on the recording and on resamples of
    it, and recommends only what is better than today's settings beyond doubt.
    """
    if plot is not None:
        check_plot(plot)
    goal = None if objective is None else Objective.parse(objective)
    if settings is not None and not is_given(context, "queue"):
        queue = None
    today = _todays(settings, queue, name)
    recording = read_recording(load)
    today, goal = _with_servers(today, servers), goal or Objective.of(recording)
    found = advice_on(recording, today, goal, seed)
    tipped: list[Outage] = []
    if outage:
        tipped = outages_of(
            recording, today, _clients(recording, today, client_timeout, client_retries), seed
        )
    if plot is not None:
        _draw(found, plot)
    _tell_advice(found, goal, tipped, table=table, as_json=as_json)
    if settings is None and queue is None:
        typer.echo("compared with the options of a new queue; name yours by --queue or --settings", err=True)


def _clients(recording: Recording, today: Settings, timeout: float | None, retries: int) -> Clients:
    """Return clients that try again, by default after the deadline.

    Raises:
        ValueError: If there is no deadline.
    """
    timeout_seconds = timeout or today.age_seconds(recording.max_age_seconds)
    if timeout_seconds is None:
        raise ValueError("client_timeout: give one, because no task of the recording has a deadline")
    return Clients(timeout_seconds, retries)


def _todays(settings: Path | None, queue: str | None, name: str | None) -> Settings:
    """Return the settings in a file or of a queue; without either, the options of a new queue.

    Raises:
        ValueError: If both are given, or the file is wrong.
        StoreError: If the queue's store did not answer.
    """
    if settings is not None and queue is not None:
        raise ValueError("settings: give --settings or --queue, not both")
    if settings is not None:
        return read_settings(settings)
    if queue is None:
        if name is not None:
            raise ValueError("name: names a queue of --queue, which is missing")
        return Settings()
    with closing(open_queue(queue, name)) as opened:
        core_of(opened).begin()
        return Settings.of_queue(opened.admin.config)


def _with_servers(today: Settings, servers: int | None) -> Settings:
    """Return settings with a number of servers.

    Raises:
        ValueError: If no number is known, or it is wrong.
    """
    if servers is not None:
        check_servers(servers)
        return today.changed(servers=servers)
    if "servers" not in today.model_fields_set:
        raise ValueError(
            "servers: not known; give --servers, the number of tasks that your workers run at a time together"
        )
    return today


def _tell_advice(
    found: Advice, goal: Objective, tipped: Sequence[Outage], *, table: bool, as_json: bool
) -> None:
    lines = [_what(found, goal), _how_sure(found), _servers(found, goal)]
    if as_json:
        answer = asdict(found) | {
            "settings": found.best.change,
            "no_difference": not found.best.change,
            "objective": goal.text,
            "servers": found.settings.servers,
            "answer": lines,
            "command": command_of(found.best.change),
            "stack_command": command_of(found.best.change, "--stack NAME"),
            "outages": [asdict(each) for each in tipped],
        }
        typer.echo(json_text(answer))
        return
    for line in [*lines, *map(_outage_line, tipped)]:
        typer.echo(line)
    if table:
        _print_table(found.compared)


def command_of(change: Mapping[str, str], where: str = "") -> str | None:
    """Return the command that stores changed settings; None if nothing changes."""
    flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in change.items())
    return " ".join(filter(None, ("freshq configure", where, flags))) if change else None


def _named(change: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in change.items()) or TODAY


def _points(interval: Interval) -> str:
    low, high = 100 * interval.low, 100 * interval.high
    return f"{100 * interval.estimate:+.2f} points (95% interval {low:+.2f} to {high:+.2f})"


def _what(found: Advice, goal: Objective) -> str:
    kept = "of the tasks' worth is kept" if found.today_in_time_share is None else "of the value is delivered"
    kinds = {"in-time": "of the tasks are done in time", "value": kept}
    what = kinds.get(goal.text, f"count as done within {goal.seconds:g} s" if goal.seconds else "")
    if goal.share is not None:
        what = f"of {'the' if goal.level is None else f'the level {goal.level}'} tasks {what}"
    today = f"{found.today_share:.1%}"
    if not found.best.change:
        return f"No difference: keep today's settings, with which {today} {what}{_in_time(found.best)}."
    said = f"Set {_named(found.best.change)}: {found.best.share:.1%} {what}, instead of {today}"
    return f"{said}{_in_time(found.best, found.today_in_time_share)}."


def _in_time(compared: Compared, instead_of: float | None = None) -> str:
    """Return the share of tasks in time, for settings judged by value; otherwise an empty text."""
    if compared.in_time_share is None:
        return ""
    today = "" if instead_of is None else f" instead of {instead_of:.1%}"
    return f" (of the tasks, {compared.in_time_share:.1%}{today} are in time)"


def _how_sure(found: Advice) -> str:
    alike = "; ".join(map(_named, found.alike))
    same = f"No difference to {alike}." if alike else "All other settings are worse."
    if found.best.change:
        return f"That is {_points(found.best.gain)}. {same}"
    next_best = next((each for each in found.compared if each.change), None)
    gain = (
        ""
        if next_best is None
        else f"The next best, {_named(next_best.change)}, brings {_points(next_best.gain)}. "
    )
    return gain + same


def _servers(found: Advice, goal: Objective) -> str:
    servers = found.settings.servers
    said = f"{servers + 1} servers instead of {servers} bring {_points(found.next_server)}; "
    share = ENOUGH if goal.share is None else goal.share
    said += "no number up to 16 times as many" if found.enough_servers is None else f"{found.enough_servers}"
    said += f" reach{'es' if found.enough_servers in {1, None} else ''} {share:.0%}."
    if found.drawn:
        said += f" Service times of {found.drawn:,} of {found.tasks:,} tasks, which never ran, were drawn."
    command = command_of(found.best.change)
    return said if command is None else f"{said} {command}"


def _outage_line(outage: Outage) -> str:
    if outage.longest_seconds is None or outage.recovery_seconds is None:
        back = "it does not recover after any outage that was tried"
    else:
        back = f"after {outage.longest_seconds:.3g} s it takes {outage.recovery_seconds:.3g} s to come back"
    if outage.tips_over_seconds is None:
        return f"{outage.order}: no outage that was tried tips it over; {back}."
    return f"{outage.order}: an outage of {outage.tips_over_seconds:.3g} s tips it over; {back}."


def _print_table(compared: Sequence[Compared]) -> None:
    table = Table(box=SIMPLE_HEAD, padding=0)
    by_value = compared[0].in_time_share is not None
    shares = ("value", "in time") if by_value else ("share",)
    for name in ("settings", *shares, "change", "95% interval"):
        table.add_column(name, justify="left" if name == "settings" else "right")
    for each in compared:
        low, high = 100 * each.gain.low, 100 * each.gain.high
        found = [f"{share:.2%}" for share in (each.share, each.in_time_share) if share is not None]
        gain = (f"{100 * each.gain.estimate:+.2f}", f"{low:+.2f} to {high:+.2f}")
        table.add_row(_named(each.change), *found, *gain)
    Console().print(table)


def _draw(found: Advice, file: Path) -> None:
    """Draw the gain of each setting, with its interval."""
    import altair as alt

    rows = [
        {"settings": _named(each.change), **{name: 100 * value for name, value in asdict(each.gain).items()}}
        for each in found.compared
    ]
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        y=alt.Y(
            "settings:N", sort=[row["settings"] for row in rows], title=None, axis=alt.Axis(labelLimit=400)
        )
    )
    title = "change of the share, in percentage points"
    chart = alt.layer(
        base.mark_rule(strokeWidth=2, color="#0072B2").encode(x=alt.X("low:Q", title=title), x2="high:Q"),
        base.mark_point(filled=True, size=60, color="#0072B2", opacity=1).encode(
            x=alt.X("estimate:Q", title=title)
        ),
    ).properties(title=f"Beside today's settings: {found.today_share:.1%}", width=420)
    chart.save(str(file), scale_factor=2, inline=file.suffix == ".html")
    typer.echo(f"plotted: {file}", err=True)


def replay(
    load: Load,
    settings: Now,
    against: New,
    fail_if: FailIf = None,
    seed: Seed = 1,
    as_json: AsJson = False,
) -> None:
    """Fail if new settings serve a load worse.

    Simulates both settings on the recording and on resamples of it. Exits with 1 if the change in percentage
    points is below the threshold, and either below zero beyond doubt or twice as large.
    """
    threshold = None if fail_if is None else Threshold.parse(fail_if)
    now, new = read_settings(settings), read_settings(against)
    for file, read in ((settings, now), (against, new)):
        if "servers" not in read.model_fields_set:
            typer.echo(f"{file}: names no servers; {read.servers} are assumed", err=True)
    recording = read_recording(load)
    found = replayed(recording, now, new, threshold or Threshold.parse(limit_for(recording)), seed)
    answer: dict[str, Any] = asdict(found)
    typer.echo(json_text(answer) if as_json else f"{'worse' if found.fails else 'no worse'}: {found}")
    if found.fails:
        raise typer.Exit(ExitStatus.REFUSED)
