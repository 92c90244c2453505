"""Write sound files of landed events to silver with Arrow: small inputs here, large ones in Spark.

A file is sound if each of its lines is one usable event without unknown fields. Arrow reads such files in a
fraction of the time that Spark takes. All other files are left to Spark, which reports the problem of each
line. Both make the same events of a sound file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json

from freshq.policy.value import LARGEST_VALUE
from freshq_pipeline.ingest.groups import GROUP_BYTES, Group, in_groups
from freshq_pipeline.ingest.inflation import GZIP_SUFFIX, Damage, Unbounded, blocks, reading
from freshq_pipeline.ingest.sources import (
    CHANGES,
    HIVE_NULL,
    LANDED_TIMES,
    MAX_AHEAD_US,
    MAX_BEHIND_US,
    MAX_QUEUE_BYTES,
    REQUIRED,
    SAME_IN_LANDED,
    SEQUENCE_DIGITS,
    STATUSES,
)
from freshq_pipeline.schemas import EVENT, LANDED, LANDED_VERSION
from freshq_pipeline.storage.arrow import arrow_schema
from freshq_pipeline.storage.days import DAY_US, latest
from freshq_pipeline.storage.state import silver_path
from freshq_pipeline.storage.table_files import PARQUET

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from pyspark.sql import SparkSession

    from freshq_pipeline.storage.folder import Folder


BROKEN: Final = "_broken"
EVENT_SCHEMA: Final = arrow_schema(EVENT)
_RECORD: Final = arrow_schema(
    {
        name: kind
        for name, _, kind in (column.partition(" ") for column in LANDED.split(", "))
        if name != BROKEN
    }
)
_PARSE: Final = json.ParseOptions(explicit_schema=_RECORD, unexpected_field_behavior="error")
_MILLISECONDS: Final = (*LANDED_TIMES, "updated")
# Larger numbers are not exact in microseconds, and may overflow in Spark.
_MAX_MS: Final = 2.0**53 / 1000
# Spark's parser rejects longer numbers.
MAX_NUMBER_CHARACTERS: Final = 1000
_NEWLINE, _OPENING, _CLOSING = b"\n{}"
_LONG_NUMBER: Final = re.compile(rb"[-+.eE\d]{%d}" % MAX_NUMBER_CHARACTERS)


def canonical_block(block: bytes) -> pa.Table | None:
    """Return the canonical events of a block of whole lines; None unless each line is one usable event."""
    text = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(text[:-1] == _NEWLINE)
    if not _is_sound(block, text, ends):
        return None
    reading = json.ReadOptions(use_threads=False, block_size=len(block) + 1)
    try:
        records = json.read_json(pa.BufferReader(block), reading, _PARSE)
    except pa.ArrowInvalid:
        return None
    # Arrow accepts any whitespace, or none, between records.
    if len(records) != len(ends) + 1 or not _are_in_range(records):
        return None
    events = _event_columns(records)
    if not _are_usable(records, events):
        return None
    return pa.table([events[name] for name in EVENT], schema=EVENT_SCHEMA)


def _is_sound(block: bytes, text: NDArray[np.uint8], ends: NDArray[np.intp]) -> bool:
    """Return whether Arrow can read a block safely: every line starts and ends like an object.

    Arrow crashes on a block that begins with a null.

    Args:
        block: The block.
        text: Its bytes.
        ends: Positions of the newlines between its lines.
    """
    objects = block.startswith(b"{") and block.removesuffix(b"\n").endswith(b"}")
    if not objects or b"\r" in block or not _is_utf8(block):
        return False
    if (text[ends - 1] != _CLOSING).any() or (text[ends + 1] != _OPENING).any():
        return False
    longest: int = np.diff(ends, prepend=-1, append=len(block)).max()
    return longest <= MAX_NUMBER_CHARACTERS or _LONG_NUMBER.search(block) is None


def _is_utf8(block: bytes) -> bool:
    if block.isascii():
        return True
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True


def _are_in_range(records: pa.Table) -> bool:
    """Return whether times are from 1970 on and exact in microseconds, and values in range; NaN is not."""
    within = [
        pc.and_(pc.greater_equal(time, 0), pc.less(time, _MAX_MS))
        for time in (records[f"{name}_ms"] for name in _MILLISECONDS)
    ]
    value = records["value"]
    within.append(pc.and_(pc.greater(value, 0), pc.less_equal(value, LARGEST_VALUE)))
    return all(pc.all(one).as_py() is not False for one in within)


def _event_columns(records: pa.Table) -> dict[str, pa.ChunkedArray]:
    """Return the columns of the canonical events, equal to those of `sources.from_landed`."""
    times = {f"{name}_us": _whole(records[f"{name}_ms"], 1e3) for name in LANDED_TIMES}
    removed = pc.fill_null(pc.equal(records["change"], "REMOVE"), False)  # noqa: FBT003 - the value
    padded = pc.utf8_lpad(records["sequence"], SEQUENCE_DIGITS, "0")
    return (
        times
        | {name: records[name] for name in SAME_IN_LANDED}
        | {
            "sequence": pc.utf8_slice_codeunits(padded, 0, SEQUENCE_DIGITS),
            "changed_us": pc.if_else(removed, times["stream_us"], _whole(records["updated_ms"], 1e3)),
            "task_group": records["group"],
            "parent_id": records["parent"],
            "root_id": records["root"],
            "value_millionths": _whole(records["value"], 1e6),
            "priority": pc.fill_null(records["priority"], 0),
            "attempts": pc.fill_null(records["attempts"], 0),
            "ttl_removal": pc.fill_null(records["ttl_removal"], False),  # noqa: FBT003 - the value
            "unknown_fields": pa.nulls(len(records), EVENT_SCHEMA.field("unknown_fields").type),
        }
    )


def _whole(numbers: pa.ChunkedArray, units: float) -> pa.ChunkedArray:
    """Return numbers in whole units, rounded like `sources.micros` and `sources.millionths`."""
    return pc.floor(pc.add(pc.multiply(numbers, units), 0.5)).cast(pa.int64())


def _are_usable(records: pa.Table, events: dict[str, pa.ChunkedArray]) -> bool:
    """Return whether no event has a problem; a null comparison counts as a problem."""
    ahead_us = pc.subtract(events["changed_us"], events["stream_us"])
    usable = (
        *(pc.is_valid(events[name]) for name in REQUIRED),
        pc.less_equal(records["schema_version"], LANDED_VERSION),
        pc.and_(pc.greater_equal(ahead_us, -MAX_BEHIND_US), pc.less_equal(ahead_us, MAX_AHEAD_US)),
        pc.is_in(events["status"], pa.array(STATUSES)),
        pc.is_in(events["change"], pa.array(CHANGES)),
        pc.fill_null(_is_nameable(events["queue"]), True),  # noqa: FBT003 - the value
        pc.fill_null(pc.greater(events["value_millionths"], 0), True),  # noqa: FBT003 - the value
    )
    every = reduce(pc.and_kleene, usable)
    return pc.all(every, skip_nulls=False).as_py() is True


def _is_nameable(queue: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return which queues have names that `sources` keeps."""
    fits = pc.less_equal(pc.binary_length(queue), MAX_QUEUE_BYTES)
    return pc.and_(fits, pc.invert(pc.is_in(queue, pa.array(["", HIVE_NULL]))))


# Limit for events in memory, which have about 250 bytes each, before they are written to silver.
HELD_BYTES: Final = 64 << 20
# Events arrive roughly in order of time, so most groups of this size cover an hour or two, and a run reads
# only the groups of its hours.
ROW_GROUP_ROWS: Final = 1 << 14
# With several groups per core, no core is idle for long at the end.
GROUPS_PER_CORE: Final = 2
# Columns whose values repeat. Dictionaries of other columns would take longer to write.
REPEATED: Final = (
    "change", "stream_us", "status", "queue", "task_group", "kind", "decay", "priority", "attempts", "worker",
    "shed_reason", "ttl_removal",
)  # fmt: skip


@dataclass(slots=True)
class Sound:
    """The events of sound files.

    Attributes:
        digests: Digest of each file, by path.
        events: Number of events; each is one record.
        last_us: Time of the last event; None if there is none.
        silver: Files of silver that hold the events.
    """

    digests: dict[str, str] = field(default_factory=dict)
    events: int = 0
    last_us: int | None = None
    silver: list[str] = field(default_factory=list)

    def add(self, other: Sound) -> None:
        """Add the events of other files."""
        self.digests |= other.digests
        self.events += other.events
        self.last_us = latest(self.last_us, other.last_us)
        self.silver += other.silver


def write_sound(
    spark: SparkSession, events: Folder, sizes_bytes: Mapping[str, int], out: Folder, part: str
) -> Sound:
    """Write the events of all sound files among some files to a part of silver.

    Args:
        spark: The session.
        events: Folder with the files.
        sizes_bytes: Size of each file, by path.
        out: The output folder.
        part: Name of the part.
    """
    # Spark splits large uncompressed files among its workers.
    chosen = {
        path: size for path, size in sizes_bytes.items() if size <= GROUP_BYTES or path.endswith(GZIP_SUFFIX)
    }
    every = Sound()
    written = in_groups(spark, chosen, partial(_written, events, out, part)) if chosen else []
    for sound in written:
        every.add(sound)
    # A failed attempt of a Spark task may have left files that no other attempt replaced.
    left = {file.path for file in out.files(f"silver/{part}")} - set(every.silver)
    out.delete_files(left)
    return every


def _written(events: Folder, out: Folder, part: str, group: Group) -> Sound:
    """Write the events of the sound files in a group. A second attempt writes the same files."""
    number, files = group
    shared = _Silver(out, part, f"{number}")
    for place, (path, size_bytes) in enumerate(sorted(files)):
        own = _Silver(out, part, f"{number}-{place}")
        try:
            digest = _read(own, events, path, size_bytes)
        except _Unsound:
            own.discard()
            continue
        if own.sound.events:
            own.sound.digests[path] = digest
            shared.take(own)
    shared.flush()
    return shared.sound


def join_silver(out: Folder, paths: Sequence[str], part: str) -> None:
    """Write the events of files of silver as another part, in the same order."""
    joined = _Silver(out, part, "0")
    batches = out.scan(paths, EVENT_SCHEMA, EVENT_SCHEMA.names).to_batches()
    joined.hold(pa.Table.from_batches([batch]) for batch in batches)
    joined.flush()


class _Unsound(Exception):
    """The file cannot be read here, or one of its lines is not an event."""


def _read(silver: _Silver, events: Folder, path: str, size_bytes: int) -> str:
    """Add the canonical events of a file; return its digest.

    Raises:
        _Unsound: If the file must be read by Spark.
    """
    try:
        with reading(events, path, size_bytes) as file:
            for block in blocks(file.chunks()):
                found = canonical_block(block)
                if found is None:
                    raise _Unsound
                silver.add(found)
            return file.digest()
    except (Unbounded, Damage, OSError) as error:
        raise _Unsound from error


class _Silver:
    """Collects events in memory, up to `HELD_BYTES`, and writes them to silver."""

    def __init__(self, out: Folder, part: str, name: str) -> None:
        """Start without events.

        Args:
            out: The output folder.
            part: Name of the part of silver.
            name: Prefix of the names of files.
        """
        self._out, self._part, self._name = out, part, name
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        self._files = 0
        self.sound = Sound()

    def add(self, events: pa.Table) -> None:
        """Add events."""
        self.sound.add(Sound(events=len(events), last_us=pc.max(events["changed_us"]).as_py()))
        self.hold([events])

    def take(self, other: _Silver) -> None:
        """Take over the events of another collector, written or not."""
        self.sound.add(other.sound)
        self.hold(other._held)

    def hold(self, events: Iterable[pa.Table]) -> None:
        """Add events that are counted already."""
        for table in events:
            self._held.append(table)
            self._held_bytes += table.nbytes
        if self._held_bytes > HELD_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the events in memory."""
        if not self._held:
            return
        held = pa.concat_tables(self._held)
        self._held, self._held_bytes = [], 0
        for day, events in _by_day(held):
            path = f"{silver_path(self._part, day)}/{self._name}-{self._files}{PARQUET}"
            batches = events.combine_chunks().to_batches(max_chunksize=ROW_GROUP_ROWS)
            self._out.write_parquet(
                path, batches, EVENT_SCHEMA, use_dictionary=list(REPEATED), write_statistics=["created_us"]
            )
            self.sound.silver.append(path)
        self._files += 1

    def discard(self) -> None:
        """Delete the files that were written."""
        self._out.delete_files(self.sound.silver)


def _by_day(events: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield each day of creation, by number, with its events."""
    days = pc.divide(events["created_us"], DAY_US)
    found: Sequence[int] = sorted(pc.unique(days).to_pylist())
    for day in found:
        yield day, events if len(found) == 1 else events.filter(pc.equal(days, day))
