"""Canonical events of sound blocks of landed events, made by Arrow.

`landed` makes the same events with Spark, which understands everything. Arrow takes a fraction of the time,
but only makes events of blocks in which each line is one usable event without unknown fields.
"""

from __future__ import annotations

import re
from functools import reduce
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json

from freshq_pipeline.ingest.sources.problems import CHANGES, MAX_AHEAD_US, MAX_BEHIND_US, REQUIRED, STATUSES
from freshq_pipeline.schemas import EVENT, LANDED, LANDED_VERSION
from freshq_pipeline.storage.arrow_schema import arrow_schema

BROKEN: Final = "_broken"
SCHEMA: Final = arrow_schema(EVENT)
_RECORD: Final = arrow_schema(
    {
        name: kind
        for name, _, kind in (column.partition(" ") for column in LANDED.split(", "))
        if name != BROKEN
    }
)
_PARSE: Final = json.ParseOptions(explicit_schema=_RECORD, unexpected_field_behavior="error")
_TIMES: Final = ("stream", "created", "put", "deadline", "lease_until", "not_before")
_MILLISECONDS: Final = (*_TIMES, "updated")
# Of greater numbers, microseconds are not exact, and Spark may report an overflow.
_MAX_MS: Final = 2.0**53 / 1000
# The first instant of the year 10000, whose folder Spark names in another way.
_MAX_CREATED_US: Final = 253_402_300_800_000_000
_SEQUENCE_DIGITS: Final = 40
# Spark's parser refuses longer numbers.
MAX_NUMBER_CHARACTERS: Final = 1000
_LONG_NUMBER: Final = re.compile(rb"[-+.eE\d]{%d}" % MAX_NUMBER_CHARACTERS)


def canonical_block(block: bytes) -> pa.Table | None:
    """Return the canonical events of a block; None if not each of its lines is one usable event.

    Args:
        block: Whole lines, at least one of them.
    """
    lines = block.count(b"\n") + (not block.endswith(b"\n"))
    if not _is_sound(block, lines):
        return None
    reading = json.ReadOptions(use_threads=False, block_size=len(block) + 1)
    try:
        records = json.read_json(pa.BufferReader(block), reading, _PARSE)
    except pa.ArrowInvalid:
        return None
    # Arrow takes any whitespace, or nothing, for the end of a record.
    if len(records) != lines or not _are_in_range(records):
        return None
    events = _events(records)
    return pa.table([events[name] for name in EVENT], schema=SCHEMA) if _are_usable(records, events) else None


def _is_sound(block: bytes, lines: int) -> bool:
    """Return whether every line begins and ends as an object, so that Arrow can be asked.

    Arrow crashes on a block that begins with a null.
    """
    objects = block.startswith(b"{") and block.removesuffix(b"\n").endswith(b"}")
    if not objects or block.count(b"}\n{") != lines - 1 or b"\r" in block:
        return False
    return _is_utf8(block) and not _has_long_number(block)


def _is_utf8(block: bytes) -> bool:
    if block.isascii():
        return True
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True


def _has_long_number(block: bytes) -> bool:
    longest = max(map(len, block.split(b"\n")))
    return longest > MAX_NUMBER_CHARACTERS and _LONG_NUMBER.search(block) is not None


def _are_in_range(records: pa.Table) -> bool:
    """Return whether all times are numbers of which microseconds are exact; NaN is none."""
    times = (records[f"{name}_ms"] for name in _MILLISECONDS)
    return all(pc.all(pc.less(pc.abs(time), _MAX_MS)).as_py() is not False for time in times)


def _events(records: pa.Table) -> dict[str, pa.ChunkedArray]:
    """Return the columns of the canonical events by name, as `landed.canonical` computes them."""
    times = {f"{name}_us": _micros(records[f"{name}_ms"]) for name in _TIMES}
    removed = pc.fill_null(pc.equal(records["change"], "REMOVE"), False)  # noqa: FBT003 - the value
    padded = pc.utf8_lpad(records["sequence"], _SEQUENCE_DIGITS, "0")
    own = ("event_id", "task_id", "change", "status", "queue", "kind", "lease", "worker", "shed_reason")
    return (
        times
        | {name: records[name] for name in own}
        | {
            "sequence": pc.utf8_slice_codeunits(padded, 0, _SEQUENCE_DIGITS),
            "changed_us": pc.if_else(removed, times["stream_us"], _micros(records["updated_ms"])),
            "task_group": records["group"],
            "priority": pc.fill_null(records["priority"], 0),
            "attempts": pc.fill_null(records["attempts"], 0),
            "ttl_removal": pc.fill_null(records["ttl_removal"], False),  # noqa: FBT003 - the value
            "unknown_fields": pa.nulls(len(records), SCHEMA.field("unknown_fields").type),
        }
    )


def _micros(milliseconds: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return milliseconds as whole microseconds, as `json_lines.micros` does."""
    return pc.floor(pc.add(pc.multiply(milliseconds, 1000.0), 0.5)).cast(pa.int64())


def _are_usable(records: pa.Table, events: dict[str, pa.ChunkedArray]) -> bool:
    """Return whether no event has a problem; a null comparison is one."""
    ahead_us = pc.subtract(events["changed_us"], events["stream_us"])
    usable = (
        *(pc.is_valid(events[name]) for name in REQUIRED),
        pc.less_equal(records["schema_version"], LANDED_VERSION),
        pc.and_(pc.greater_equal(ahead_us, -MAX_BEHIND_US), pc.less_equal(ahead_us, MAX_AHEAD_US)),
        pc.is_in(events["status"], pa.array(STATUSES)),
        pc.is_in(events["change"], pa.array(CHANGES)),
        pc.and_(pc.greater_equal(events["created_us"], 0), pc.less(events["created_us"], _MAX_CREATED_US)),
    )
    every = reduce(pc.and_kleene, usable)
    return pc.all(every, skip_nulls=False).as_py() is True
