"""`freshq relay` forwards tasks from an outbox, `copy` copies tasks, `archive replay-stream` repeats."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import parse_qsl, urlsplit

import typer

from freshq.addresses import FORMS, open_queue
from freshq.cli.command import AsJson, Group, PlainCommand
from freshq.cli.errors import ExitStatus, print_error
from freshq.cli.output import Output, counted
from freshq.cli.process import ControlChannel, end_process, run_until_told
from freshq.cli.stacks import Stack, client_of, failures
from freshq.errors import RefusedError, StoreError, Unreachable, needs, printable, quoted
from freshq.feeds.relay import DEFAULT_BATCH, Relay, TaskCopy
from freshq.model.task import TaskStatus

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

    from freshq.aws.archive import Archive
    from freshq.feeds.relay import CopyReport
    from freshq.queue.base import BaseQueue

Source = Annotated[str, typer.Option("--from", help=f"Address of the outbox: {FORMS}.")]
Destination = Annotated[str, typer.Option("--to", help="Address of the destination, in the same form.")]
Batch = Annotated[int, typer.Option(min=1, max=1000, help="Number of tasks per batch.")]
CopySource = Annotated[str, typer.Option("--from", help=f"Address of the queue to copy: {FORMS}.")]
Only = Annotated[
    str | None,
    typer.Option(
        metavar="STATES",
        help=f"States of the tasks to copy: some of {', '.join(TaskStatus).lower()}, separated by commas.",
        show_default="all",
    ),
]
Over = Annotated[
    str | None,
    typer.Option(
        metavar="STATES",
        help="Replace tasks of the destination that have the same id and one of these states.",
        show_default="none",
    ),
]
IdleExitSeconds = Annotated[
    float | None, typer.Option(help="End after this time without a task to move. By default, never.")
]


def relay(
    source: Source,
    destination: Destination,
    batch: Batch = DEFAULT_BATCH,
    idle_exit_seconds: IdleExitSeconds = None,
    as_json: AsJson = False,
) -> None:
    """Forward tasks to another queue.

    Forwards each task at least once; ids are kept, so repeats are ignored. Runs until SIGTERM or Ctrl-C: the
    first lets the batch finish, the second ends the command immediately. It can be killed at any point, and
    several can
    run at the same time.
    """
    # By default every waiting task moves, whatever its max age.
    has_own = "max_age_seconds" in dict(parse_qsl(urlsplit(source).query))
    outlives: dict[str, Any] = {} if has_own else {"max_age_seconds": None, "override": True}
    with (
        closing(_open("--from", source, **outlives)) as outbox,
        closing(_open("--to", destination)) as target,
    ):
        control = ControlChannel()
        control.follow_signals()
        moves = Relay(outbox, target, batch=batch, idle_exit_seconds=idle_exit_seconds)
        ended = run_until_told("freshq-relay", moves.run, control, moves.stop)
        if not ended.done():
            typer.echo(
                "ended immediately; tasks that it held are claimable once their leases expire", err=True
            )
            end_process(ExitStatus.UNFINISHED, control)
        moved = ended.result()
    twice = f", {moves.duplicates:,} of them there already" if moves.duplicates else ""
    values = {"relayed": moved, "duplicates": moves.duplicates}
    Output(as_json=as_json).answer(values, f"{counted(moved, 'task')} relayed{twice}")


def copy(
    source: CopySource,
    destination: Destination,
    only: Only = None,
    over: Over = None,
    as_json: AsJson = False,
) -> None:
    """Copy tasks unchanged to another queue, on any store.

    Keeps ids, places in the line, attempts, times, results and errors; running tasks wait again in the copy.
    Tasks already in the destination are not changed, except by --over. Can be repeated after an
    interruption. Names the tasks that were skipped, ten for each reason and with --json all, and exits with
    status 1 if there are any.
    """
    states = tuple(TaskStatus) if only is None else _states("only", only)
    with (
        closing(_open("--from", source)) as original,
        closing(_open("--to", destination)) as target,
    ):
        copies = TaskCopy(original, target, only=states, over=() if over is None else _states("over", over))
        report = copies.run(_show_progress if sys.stderr.isatty() else lambda _report: None)
    Output(as_json=as_json).answer(_values(report), *_copied_lines(report))
    if report.skipped:
        raise typer.Exit(ExitStatus.REFUSED)


def _states(option: str, text: str) -> tuple[TaskStatus, ...]:
    """Parse names of states, separated by commas.

    Raises:
        ValueError: If one is unknown.
    """
    names = [name.strip().upper() for name in text.split(",")]
    unknown = [name for name in names if name not in TaskStatus.__members__]
    if unknown:
        known = ", ".join(TaskStatus).lower()
        msg = f"{option}: {quoted(unknown[0].lower())} is no state; use some of {known}, separated by commas"
        raise ValueError(msg)
    return tuple(TaskStatus(name) for name in names)


def _show_progress(report: CopyReport) -> None:
    typer.echo(f"\r{report.copied.total():,} copied", nl=False, err=True)


# Ids of skipped tasks that are printed for each reason.
MOST_IDS: Final = 10


def _values(report: CopyReport) -> dict[str, object]:
    return {
        "copied": {**report.copied},
        "present": report.present,
        "skipped": {**report.skipped},
        "left": {**report.left},
        **({"skipped_ids": report.skipped_ids} if report.skipped else {}),
    }


def _copied_lines(report: CopyReport) -> Iterator[str]:
    yield f"{counted(report.copied.total(), 'task')} copied{_by_state(report.copied)}"
    if report.present:
        yield f"{report.present:,} there already"
    for reason, number in report.skipped.most_common():
        ids = report.skipped_ids[reason]
        more = f" and {number - MOST_IDS:,} more, all in --json" if number > MOST_IDS else ""
        yield f"{number:,} skipped: {reason}: {', '.join(map(printable, ids[:MOST_IDS]))}{more}"
    if report.left:
        yield f"{report.left.total():,} left in the source, not asked for{_by_state(report.left)}"


def _by_state(counts: Counter[TaskStatus]) -> str:
    return f": {', '.join(f'{number:,} {state}' for state, number in counts.items())}" if counts else ""


def _open(option: str, address: str, **named: Any) -> BaseQueue:
    """Open a queue; name the option of a wrong address in its error."""
    try:
        return open_queue(address, **named)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


archive = typer.Typer(cls=Group, help="The archive of a stack.", no_args_is_help=True)
OfStack = Annotated[str, typer.Option("--stack", help="A deployed stack with an archive.")]
# The output that names the delivery stream of an archive.
DELIVERY_STREAM: Final = "ArchiveDeliveryStreamName"
# An open shard never ends: it is read up to the present, or until this many pages in a row were empty.
EMPTY_PAGES: Final = 10


@archive.callback()
def _archive() -> None:
    """Keep the group although it has one command."""


@archive.command("replay-stream", cls=PlainCommand)
def replay_stream(stack: OfStack, as_json: AsJson = False) -> None:
    """Archive again what the stream of the table still has, the changes of the last day.

    For an archive that was off, broken or not connected. Changes that it has already arrive twice, and the
    pipeline drops them. Can be repeated. Exits with status 1 if changes were not archived, or could not be
    read.
    """
    found = Stack.describe(stack)
    if DELIVERY_STREAM not in found.outputs:
        msg = f"stack: {stack!r} has no archive; deploy the present template with Archive=on"
        raise RefusedError(msg)
    with needs("aws"):
        from freshq.aws.archive import Archive
    table, key = found.outputs["QueueTableName"], found.parameters.get("attach_key") or None
    try:
        firehose, streams, dynamodb = map(client_of, ("firehose", "dynamodbstreams", "dynamodb"))
        target = Archive(firehose, found.outputs[DELIVERY_STREAM], key=key, table=table)
        arns = [_stream_of(dynamodb, table), *filter(None, [found.parameters.get("match_stream_arn")])]
        delivered, unreadable = _replay(target, streams, arns)
    except failures() as error:
        msg = f"stack {stack!r}: not replayed to the end ({error}); repeat the command"
        raise Unreachable(msg) from error
    for why in unreadable:
        print_error(f"record could not be read: {why}")
    answer = {"delivered": delivered, "unreadable": len(unreadable)}
    Output(as_json=as_json).answer(answer, f"{counted(delivered, 'change')} sent to the archive")
    if unreadable:
        raise typer.Exit(ExitStatus.REFUSED)


def _stream_of(dynamodb: Any, table: str) -> str:
    with needs("aws"):
        from freshq.stores.dynamodb.schema import described_table
    described = described_table(dynamodb, table)
    if "LatestStreamArn" not in described:
        msg = f"table {quoted(table)}: has no stream, so nothing can be replayed"
        raise RefusedError(msg)
    return str(described["LatestStreamArn"])


def _replay(target: Archive, streams: Any, arns: list[str]) -> tuple[int, list[str]]:
    """Send what streams have to an archive; return the number of changes, and why records were unreadable.

    Raises:
        StoreError: If Firehose rejects records after all retries.
    """
    delivered, unreadable = 0, list[str]()
    for arn in arns:
        for page in stream_pages(streams, arn):
            sent = target.deliver(page, lambda: float("inf"))
            delivered += sent.delivered
            unreadable += sent.unreadable
            if sent.failed_from is not None:
                msg = f"{sent.error}, after {counted(delivered, 'change')}; repeat the command"
                raise StoreError(msg)
    return delivered, unreadable


def stream_pages(streams: Any, arn: str) -> Iterator[list[dict[str, Any]]]:
    """Yield the records of a stream of DynamoDB up to now, in order within each shard, with the ARN.

    Args:
        streams: A client of DynamoDB Streams.
        arn: The stream.
    """
    began = time.time()
    for shard in _shards(streams, arn):
        where = {"StreamArn": arn, "ShardId": shard, "ShardIteratorType": "TRIM_HORIZON"}
        iterator, empty = streams.get_shard_iterator(**where)["ShardIterator"], 0
        while iterator and empty < EMPTY_PAGES:
            page = streams.get_records(ShardIterator=iterator)
            iterator, records = page.get("NextShardIterator"), page.get("Records") or []
            empty = 0 if records else empty + 1
            if records:
                yield [record | {"eventSourceARN": arn} for record in records]
                written = records[-1]["dynamodb"].get("ApproximateCreationDateTime")
                if written is not None and written.timestamp() > began:
                    break


def _shards(streams: Any, arn: str) -> Iterator[str]:
    """Yield the ids of the shards of a stream."""
    start: dict[str, str] = {}
    while True:
        page = streams.describe_stream(StreamArn=arn, **start).get("StreamDescription") or {}
        yield from (shard["ShardId"] for shard in page.get("Shards") or [])
        if not page.get("LastEvaluatedShardId"):
            return
        start = {"ExclusiveStartShardId": page["LastEvaluatedShardId"]}
