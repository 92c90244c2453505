"""`freshq recording`: save the load that a queue had, to be simulated under other settings."""

from __future__ import annotations

import gzip
import io
import json
import os
from contextlib import closing, contextmanager
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

import typer

from freshq.cli.addresses import open_queue
from freshq.cli.command import is_given
from freshq.cli.errors import print_error
from freshq.cli.output import counted, json_text
from freshq.cli.stacks import Stack
from freshq.errors import RefusedError, needs
from freshq.queue.core import core_of
from freshq.simulate.recording import PARQUET, Recorder, parsed_events

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

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
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
# The delivery stream's prefix in the template, and the output that names the bucket.
PREFIX: Final = "events/"
BUCKET: Final = "ArchiveBucketName"
GZIP_LEVEL: Final = 4
GZIP_MAGIC: Final = b"\x1f\x8b"
# Rows of Parquet that are written together.
ROWS: Final = 50_000


class OutFormat(StrEnum):
    """Format of a recording."""

    JSONL = "jsonl"
    PARQUET = "parquet"


Format = Annotated[
    OutFormat | None, typer.Option("--out-format", help="By default, by the name of the file.")
]


def recording(
    context: typer.Context,
    out: Out,
    queue: Queue = None,
    stack: OfStack = None,
    events: Events = None,
    name: Name = None,
    out_format: Format = None,
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
    with _source(queue, stack, events, recorder) as found, _writer(out, out_format) as write:
        broken = _record(found, recorder, write)
    if broken:
        print_error(f"{counted(broken, 'damaged event')} left out")
    _answer(out, recorder, broken, as_json=as_json)


def _record(
    events: Iterable[Mapping[str, Any] | None],
    recorder: Recorder,
    write: Callable[[Mapping[str, Any]], object],
) -> int:
    """Write the tasks of some events; return the number of damaged events."""
    broken = 0
    for event in events:
        broken += event is None
        for line in () if event is None else recorder.add(event):
            write(line)
    for line in recorder.rest():
        write(line)
    if not recorder.tasks:
        where = "" if recorder.queue is None else f" of queue {recorder.queue!r}"
        msg = f"events: none tells of a task{where} that was put; nothing was written"
        raise RefusedError(msg)
    return broken


def _answer(out: Path, recorder: Recorder, broken: int, *, as_json: bool) -> None:
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
                raise ValueError("queue: needs one in a SQL database; of a stack, give --stack or --events")
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
    own = stack.outputs.get("QueueName") or stack.parameters.get("queue_name", "default")
    recorder.record(recorder.queue or own)
    with needs("aws"):
        import boto3

        from freshq.stores.dynamodb.calls import own_region
    client = boto3.client("s3", own_region())
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=stack.outputs[BUCKET], Prefix=PREFIX)
    # Keys are listed in order, and begin with the hour.
    for entry in (entry for page in pages for entry in page.get("Contents", [])):
        body = client.get_object(Bucket=stack.outputs[BUCKET], Key=entry["Key"])["Body"]
        raw: Any = body  # botocore's types have another `readinto`
        yield from parsed_events(_text_of(io.BufferedReader(raw)))


def _text_of(body: io.BufferedReader) -> Iterator[str]:
    """Yield the lines of a file, which may be compressed."""
    compressed = body.peek(len(GZIP_MAGIC))[: len(GZIP_MAGIC)] == GZIP_MAGIC
    with gzip.GzipFile(fileobj=body) if compressed else body as lines:
        for line in lines:
            yield line.decode("utf-8", "replace")


@contextmanager
def _writer(out: Path, out_format: OutFormat | None) -> Iterator[Callable[[Mapping[str, Any]], object]]:
    """Yield a function that writes a line; the file appears when the block ends without an error."""
    if not out.parent.is_dir():
        msg = f"out: there is no folder {str(out.parent)!r}"
        raise ValueError(msg)
    parquet = out_format is OutFormat.PARQUET or (out_format is None and out.suffix == PARQUET)
    draft = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        if parquet:
            with _ParquetFile(draft) as file:
                yield file.write
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


class _ParquetFile:
    """A Parquet file, written by groups of rows."""

    def __init__(self, file: Path) -> None:
        with needs("pipeline"):
            import pyarrow as pa
            import pyarrow.parquet as pq
        numbers = {
            "at_seconds": pa.float64(),
            "service_seconds": pa.float64(),
            "deadline_seconds": pa.float64(),
        }
        texts = dict.fromkeys(("group", "kind", "parent"), pa.string())
        self._schema = pa.schema({**numbers, "level": pa.int8(), **texts, "version": pa.int8()})
        self._table = pa.Table
        self._file = pq.ParquetWriter(file, self._schema, compression="zstd")
        self._rows: list[Mapping[str, Any]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()
        self._file.close()

    def write(self, line: Mapping[str, Any]) -> None:
        self._rows.append(line)
        if len(self._rows) >= ROWS:
            self._flush()

    def _flush(self) -> None:
        self._file.write_table(self._table.from_pylist(self._rows, self._schema))
        self._rows.clear()
