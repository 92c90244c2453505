"""Compute the fates of recorded tasks: from a table's change stream, simulated, and in DuckDB.

The simulator serves the same arrivals in other orders. DuckDB makes the pipeline's tables from the same
files, to be compared row by row: each table is a file of plain SQL in `duckdb_tables` over the changes of
each task (`changes.sql`), which shares only the meaning of the columns with the pipeline. It reads only valid
landed events, and determines outcomes at the newest event, without an index lag.
"""

from __future__ import annotations

import json
import time
from array import array
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import TYPE_CHECKING, Any, Final

from freshq import Order, TaskStatus
from freshq.model.task import LIVE
from freshq.policy.rules import OverloadRules
from freshq.simulate import Load, simulate_load, summarize
from freshq.stores.dynamodb.items import decode, is_task
from freshq.stores.dynamodb.schema import Names
from freshq_pipeline.schemas import BY_DAY, TABLES
from freshq_pipeline.storage.table_files import columns_with_day

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import duckdb
    from types_boto3_dynamodbstreams import DynamoDBStreamsClient

    from freshq import Task

# A claim may miss tasks that entered the index less than this before it.
INDEX_LAG_SECONDS: Final = 1.0
# Share of the capacity that two idle cores reach: 0.88 measured, less a margin.
CALM_GOODPUT_SHARE: Final = 0.7
# States of an application's record outside the queue; tasks never have them.
UNQUEUED: Final = (TaskStatus.UNDER_CONSTRUCTION, TaskStatus.READY)
# Means "no deadline": longer than any recording.
NEVER_SECONDS: Final = 1e9
# An item or attribute value in the low-level client's form.
Image = dict[str, Any]
UNIT_BYTES: Final = 1024  # a write unit covers an item of up to 1 KB (DynamoDB, service pricing)
INDEXES: Final = (("pendingShard", "taskCreated"), ("dueShard", "dueAt"))

FATES: Final = tuple(status for status in TaskStatus if status not in UNQUEUED)


@dataclass(frozen=True, slots=True)
class TaskClaim:
    """One claim of a task.

    Attributes:
        taken: Time of the claim in seconds since the epoch.
        counted: Whether it counts as an attempt; the claim of a released task does not.
    """

    taken: float
    counted: bool


@dataclass(frozen=True, slots=True)
class Life:
    """A task from its put to its end.

    Attributes:
        task_id: The task.
        created: When it was put, in seconds since the epoch.
        deadline: When it goes stale, in seconds since the epoch.
        claims: Its claims, in order.
        fate: Its last state.
        ended: When it was settled or went stale, in seconds since the epoch; None if it waits or runs.
    """

    task_id: str
    created: float
    deadline: float
    claims: tuple[TaskClaim, ...]
    fate: TaskStatus
    ended: float | None

    @property
    def wait_seconds(self) -> float | None:
        """Time from the put to the first claim; None if it was never claimed."""
        return self.claims[0].taken - self.created if self.claims else None

    @property
    def is_in_time(self) -> bool:
        """Whether it succeeded by its deadline."""
        return self.fate is TaskStatus.SUCCESS and self.ended is not None and self.ended <= self.deadline

    def claimable_at(self, moment: float) -> bool:
        """Return whether it waited, visible to claims, at a moment (seconds since the epoch)."""
        until = self.claims[0].taken if self.claims else self.deadline
        return self.created + INDEX_LAG_SECONDS <= moment < min(until, self.deadline)


def life_of(versions: Sequence[Task], now: float) -> Life:
    """Return the life of a task from its versions, oldest first.

    Args:
        versions: At least one.
        now: Time at which its fate is determined, in seconds since the epoch.
    """
    claims: list[TaskClaim] = []
    for version, following in zip(versions, [*versions[1:], None], strict=True):
        if version.status is TaskStatus.TAKEN and (not claims or claims[-1].taken != version.updated):
            released = following is not None and following.attempts < version.attempts
            claims.append(TaskClaim(version.updated, counted=not released))
    first, last = versions[0], versions[-1]
    fate = last.status_at(now)
    ended = None
    if fate is TaskStatus.SHED:
        ended = last.deadline
    elif fate not in LIVE:
        ended = last.updated
    return Life(first.task_id, first.created, last.stale_at, tuple(claims), fate, ended)


def lives_of(versions: Mapping[str, Sequence[Task]], now: float) -> list[Life]:
    """Return the lives of all tasks, ordered by creation time."""
    return sorted((life_of(of_task, now) for of_task in versions.values()), key=lambda life: life.created)


def count_fates(lives: Iterable[Life]) -> dict[str, int]:
    """Count the tasks by fate."""
    counts = Counter(life.fate for life in lives)
    return {status.value.lower(): counts[status] for status in FATES}


def duplicates_run(lives: Iterable[Life]) -> int:
    """Count the attempts beyond the first of each task."""
    return sum(max(0, sum(claim.counted for claim in life.claims) - 1) for life in lives)


def newest_first_ratio(lives: Sequence[Life]) -> float | None:
    """Return the share of claims that took the newest visible task; None without claims."""
    claims = [(claim.taken, life) for life in lives for claim in life.claims]
    if not claims:
        return None
    in_order = sum(
        not any(
            other.created > life.created + INDEX_LAG_SECONDS and other.claimable_at(taken) for other in lives
        )
        for taken, life in claims
    )
    return in_order / len(claims)


def percentile(values: Sequence[float], percent: int) -> float | None:
    """Return a percentile by linear interpolation; None if there are no values."""
    if not values:
        return None
    if len(values) == 1:
        return values[0]
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def waits_of_done(lives: Iterable[Life]) -> list[float]:
    """Return the waits of the tasks that succeeded, in seconds."""
    return [
        life.wait_seconds
        for life in lives
        if life.fate is TaskStatus.SUCCESS and life.wait_seconds is not None
    ]


def done_in_time(lives: Iterable[Life]) -> int:
    """Return the number of tasks that succeeded by their deadline."""
    return sum(life.is_in_time for life in lives)


def goodput_per_second(lives: Iterable[Life], start: float, end: float) -> float:
    """Return successes per second between two instants (seconds since the epoch)."""
    done = sum(
        life.fate is TaskStatus.SUCCESS and life.ended is not None and start <= life.ended < end
        for life in lives
    )
    return done / (end - start)


def busy_machine_sentence(goodput_per_second: float, capacity_per_second: float) -> str | None:
    """Return a sentence if the machine, not the queue, kept the goodput low; otherwise None.

    The queue is overloaded throughout, so each gap between two runs of a slot is the emulator's time.
    """
    share = goodput_per_second / capacity_per_second
    if share >= CALM_GOODPUT_SHARE:
        return None
    return (
        f"This machine was too busy to show what the queue can do: {goodput_per_second:.1f} of "
        f"{capacity_per_second:g} tasks a second were done in time ({share:.0%}; at least "
        f"{CALM_GOODPUT_SHARE:.0%} on two idle cores). Every count above is right; run it again on an "
        "idle machine."
    )


@dataclass(frozen=True, slots=True)
class Service:
    """The service of one task, in seconds from the first put.

    Attributes:
        put: When it was put.
        started: When it was started.
        in_time: Whether it ended by its deadline.
    """

    put: float
    started: float
    in_time: bool


def slot_seconds(lives: Sequence[Life], servers: int) -> float:
    """Return the time per task in a slot: its run, and the gap until the slot was taken again."""
    done = [(life.claims[-1].taken, life.ended) for life in lives if life.ended is not None and life.claims]
    taken = sorted(start for start, _end in done)
    ended = sorted(end for _start, end in done)
    # Once all servers are busy, the k-th completion frees the server for claim servers+k.
    gaps = [start - end for start, end in zip(taken[servers:], ended, strict=False)]
    return fmean(end - start for start, end in done) + (median(gaps) if gaps else 0.0)


def served_in_time(
    lives: Sequence[Life], servers: int, load_seconds: float, order: Order, priorities: Sequence[int] = b""
) -> int:
    """Return the number of recorded arrivals that the simulator completes by their deadlines.

    Args:
        lives: The recorded tasks, in order of arrival; at least one was done.
        servers: Number of tasks that run at a time.
        load_seconds: Duration of the arrivals.
        order: The order of service.
        priorities: Their priorities; empty if all are 0.
    """
    deadlines = [life.deadline for life in lives]
    load = recorded(lives, slot_seconds(lives, servers), load_seconds, deadlines, priorities)
    rules = OverloadRules(lives[0].deadline - lives[0].created, order)
    return summarize(simulate_load(load, rules, servers)).served_in_time


def first_in_first_out(lives: Sequence[Life], servers: int, load_seconds: float) -> list[Service]:
    """Return the service of each recorded arrival by a FIFO queue without deadlines."""
    never = [life.created + NEVER_SECONDS for life in lives]
    load = recorded(lives, slot_seconds(lives, servers), load_seconds, never)
    simulation = simulate_load(load, OverloadRules(NEVER_SECONDS, Order.FIFO), servers)
    start = lives[0].created
    return [
        Service(put, started, in_time=started + seconds <= life.deadline - start)
        for life, put, started, seconds in zip(
            lives, load.created, simulation.starts, load.service, strict=True
        )
    ]


def recorded(
    lives: Sequence[Life],
    occupied_seconds: float,
    load_seconds: float,
    deadlines: Sequence[float],
    priorities: Sequence[int] = b"",
    start: float | None = None,
) -> Load:
    """Return recorded arrivals as a load for the simulator.

    Args:
        lives: The recorded tasks, in order of arrival.
        occupied_seconds: The time for which each task occupies its slot.
        load_seconds: Duration of the arrivals.
        deadlines: Their deadlines, in seconds since the epoch.
        priorities: Their priorities; empty if all are 0.
        start: Time from which the load counts; by default the first arrival.
    """
    start = lives[0].created if start is None else start
    return Load(
        created=array("d", [life.created - start for life in lives]),
        service=array("d", [occupied_seconds] * len(lives)),
        deadline=array("d", [deadline - start for deadline in deadlines]),
        duration_seconds=load_seconds,
        levels=bytes(priorities),
        groups=[],
    )


@dataclass(frozen=True, slots=True)
class Change:
    """One change of an item: its images before and after; None if there is none."""

    old: Image | None
    new: Image | None

    def task_before(self) -> Task | None:
        """Return the task before the change; None if there was none or the item is not a task."""
        return decode(self.old) if self.old and is_task(self.old) else None

    def task_after(self) -> Task | None:
        """Return the task after the change; None if there is none or the item is not a task."""
        return decode(self.new) if self.new and is_task(self.new) else None

    def write_units(self) -> int:
        """Return its write units, for the item and for each index that it entered, left or moved in."""
        item_bytes = max(_size_bytes(self.old), _size_bytes(self.new))
        units = -(-item_bytes // UNIT_BYTES)
        for partition, sort in INDEXES:
            before, after = _key(self.old, partition, sort), _key(self.new, partition, sort)
            if before != after:
                units += (before is not None) + (after is not None)
        return units


def _size_bytes(image: Image | None) -> int:
    return sum(len(name) + len(str(*value.values()).encode()) for name, value in (image or {}).items())


def _key(image: Image | None, partition: str, sort: str) -> tuple[str, str] | None:
    if image is None or partition not in image:
        return None
    return image[partition]["S"], image[sort]["N"]


def read_changes(client: DynamoDBStreamsClient, table: str) -> Iterator[Change]:
    """Yield all changes that are still in the stream of a table, oldest first."""
    for stream in client.list_streams(TableName=table).get("Streams", []):
        description = client.describe_stream(StreamArn=stream["StreamArn"])["StreamDescription"]
        for shard in description.get("Shards", []):
            yield from _read_shard(client, stream["StreamArn"], shard["ShardId"])


def _read_shard(client: DynamoDBStreamsClient, stream_arn: str, shard_id: str) -> Iterator[Change]:
    iterator = client.get_shard_iterator(
        StreamArn=stream_arn, ShardId=shard_id, ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    while iterator:
        page = client.get_records(ShardIterator=iterator)
        if not page["Records"]:
            return
        for record in page["Records"]:
            images = record["dynamodb"]
            yield Change(_image(images.get("OldImage")), _image(images.get("NewImage")))
        iterator = page.get("NextShardIterator", "")


def _image(image: Any) -> Image | None:
    return Names().from_table(image) if image else None


def versions_by_task(changes: Iterable[Change]) -> dict[str, list[Task]]:
    """Return the versions of every task, oldest first."""
    versions: dict[str, list[Task]] = {}
    for change in changes:
        task = change.task_after()
        if task is not None:
            versions.setdefault(task.task_id, []).append(task)
    return versions


STATEMENTS: Final = Path(__file__).with_name("duckdb_tables")
# The published tables.
MADE: Final = ("tasks", "minutes", "chains", "ledger", "violations", "groups", "kinds", "workers")
# In the order of their dependencies.
_STATEMENTS: Final = ("changes", "inversions", "tasks", "standing", *MADE[1:])
# Columns with floating-point sums or quotients depend on the order of operations, so they are rounded. All
# other columns are compared exactly. A percentile of whole microseconds is a multiple of a hundredth of a
# microsecond, so nine decimals of a second suffice.
DECIMALS: Final = {
    "wait_p50_seconds": 9,
    "wait_p90_seconds": 9,
    "wait_p99_seconds": 9,
    "jain_index_of_demand": 12,
    "time_share": 12,
}


def make_tables(connection: duckdb.DuckDBPyConnection, files: str) -> dict[str, float]:
    """Make all tables and return the seconds of each statement by name.

    Args:
        connection: A connection to an empty database.
        files: Glob pattern of the files.
    """
    connection.execute("set variable files = $1", [files])
    seconds = {}
    for name in _STATEMENTS:
        start = time.perf_counter()
        connection.execute((STATEMENTS / f"{name}.sql").read_text())
        seconds[name] = time.perf_counter() - start
    return seconds


def write_tables(connection: duckdb.DuckDBPyConnection, out: Path) -> dict[str, str]:
    """Write all tables as Parquet and return the folder of each.

    Args:
        connection: A connection to the database with the tables.
        out: Parent of the folders.
    """
    folders = {name: out / name for name in MADE}
    for name, folder in folders.items():
        folder.mkdir(parents=True)
        connection.table(name).write_parquet(str(folder / "0.parquet"), compression="zstd")
    return {name: str(folder) for name, folder in folders.items()}


def rows_that_differ(
    connection: duckdb.DuckDBPyConnection, ours: Mapping[str, str], theirs: Mapping[str, str]
) -> dict[str, int]:
    """Return the number of rows that only one of two engines has by table, comparing all columns.

    Args:
        connection: A connection to any database.
        ours: Relations, by table.
        theirs: Folders of Parquet files, for the tables to compare.

    Raises:
        ValueError: If the columns of a table or their types differ.
    """
    off = {}
    for name, folder in theirs.items():
        one, other = ours[name], f"read_parquet('{folder}/*.parquet')"
        if _types(connection, one) != _types(connection, other):
            msg = f"columns of {name}: {_types(connection, one)} and {_types(connection, other)}"
            raise ValueError(msg)
        off[name] = differing_rows(connection, comparable(connection, one), comparable(connection, other))
    return off


def comparable(connection: duckdb.DuckDBPyConnection, relation: str) -> str:
    """Return a query for all columns of a relation, rounded as in `DECIMALS`."""
    names = connection.sql(f"from {relation}").columns
    rounded = (f"round({name}, {DECIMALS[name]}) as {name}" if name in DECIMALS else name for name in names)
    return f"select {', '.join(rounded)} from {relation}"


def differing_rows(connection: duckdb.DuckDBPyConnection, one: str, other: str) -> int:
    """Return the number of rows that only one of two queries returns."""
    row = connection.execute(
        f"select count(*) from (({one} except all {other}) union all ({other} except all {one}))"
    ).fetchone()
    return int(row[0]) if row else -1


def _types(connection: duckdb.DuckDBPyConnection, relation: str) -> dict[str, str]:
    found = connection.sql(f"from {relation}")
    return {name: str(kind) for name, kind in zip(found.columns, found.types, strict=True)}


def relations(summary: Mapping[str, Any], *, with_day: bool = False) -> dict[str, str]:
    """Return each table of the current run, as a query with its declared columns.

    Args:
        summary: Summary of the run.
        with_day: Whether tables by day also have the day, as registered tables do.
    """
    file = Path(str(summary["manifest"]).removeprefix("file://"))
    manifest, out = json.loads(file.read_text()), file.parent.parent
    return {
        name: _relation(
            name,
            [str(out / path) for path in files],
            columns_with_day(name) if with_day else TABLES[name],
        )
        for name, files in manifest["tables"].items()
    }


def _relation(name: str, files: list[str], columns: Mapping[str, str]) -> str:
    if not files:
        nothing = (f"cast(null as {_type(kind)}) as {column}" for column, kind in columns.items())
        return f"(select {', '.join(nothing)} where false)"
    partitions = "hive_partitioning = true, hive_types_autocast = false"
    options = partitions if name in BY_DAY else "hive_partitioning = false"
    listed = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
    return f"(select {', '.join(columns)} from read_parquet([{listed}], {options}))"


def _type(kind: str) -> str:
    """Return the DuckDB type of a column type of `schemas.py`."""
    if kind.startswith("array<"):
        return f"{_type(kind[len('array<') : -1])}[]"
    if kind.startswith("struct<"):
        fields = (field.split(":") for field in kind[len("struct<") : -1].split(","))
        return f"struct({', '.join(f'{name} {_type(of)}' for name, of in fields)})"
    return "varchar" if kind == "string" else kind
