"""Add the events of new files to silver, as one part, and join small parts of a day when they are many."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from freshq_pipeline.errors import BadInput
from freshq_pipeline.gold.silver_days import count_events, earliest, silver_files, starts_us
from freshq_pipeline.ingest.silver import check, ingest, most_frequent
from freshq_pipeline.ingest.sound_files import join_silver
from freshq_pipeline.storage.days import Day, latest, number
from freshq_pipeline.storage.results import damage, damage_text
from freshq_pipeline.storage.state import ALL, silver_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from freshq_pipeline.ingest.copies import Prepared
    from freshq_pipeline.ingest.silver import Ingested
    from freshq_pipeline.runs.request import RunRequest
    from freshq_pipeline.storage.folder import Folder
    from freshq_pipeline.storage.results import DamagedFile
    from freshq_pipeline.storage.state import State

# The small parts of a day with more parts of silver are joined.
MAX_SILVER_PARTS: Final = 16


def read_new_files(
    spark: SparkSession, request: RunRequest, files: Mapping[str, tuple[int, int]], state: State
) -> None:
    """Write the events of new files as a part of silver, and add their figures to the state.

    Args:
        spark: The session.
        request: The folders and options.
        files: Size and time of each file, by path.
        state: State of this run.

    Raises:
        BadInput: If the files cannot be read, too many of their records are unusable, or a file is damaged
            and `accept_damaged` is not set.
    """
    options, out = request.options, request.out
    sizes_bytes = {path: size_bytes for path, (size_bytes, _time) in files.items()}
    found = ingest(spark, request.events, sizes_bytes, options.form, out, state.run_id)
    _check_damaged(found, files, request)
    check(found, out.at(f"quarantine/{state.run_id}"), options.max_reject_ratio)
    for path in files.keys() & state.damaged.keys():
        _take_back(state, state.damaged.pop(path))
    _add_damaged(found.damaged, out, state)
    more = found.counts()
    more["too_late"] = _add_days(out, state)
    more["accepted"] -= more["too_late"]
    if not state.days and not out.exists(f"silver/{state.run_id}"):
        msg = f"events: {request.events.uri} has no readable file"
        raise BadInput(msg)
    state.starts_us = earliest(state.starts_us, starts_us(out, state.run_id))
    state.last_us = latest(state.last_us, found.last_us)
    fields = Counter(state.unknown_fields) + Counter(found.unknown_fields)
    state.unknown_fields, others = most_frequent(fields)
    more["other_unknown_fields"] += others
    state.counts = dict(Counter(state.counts) + Counter(more))
    state.reasons = dict(Counter(state.reasons) + Counter(found.reasons))
    state.files |= {path: [*seen, found.digests[path]] for path, seen in files.items()}


def _check_damaged(found: Ingested, files: Mapping[str, tuple[int, int]], request: RunRequest) -> None:
    """Raise BadInput if files are damaged and may not be published."""
    figures = damage(files, {one.path: one.damage for one in found.damaged if one.damage is not None})
    if (said := damage_text(figures)) is not None and not request.options.accept_damaged:
        msg = f"events: {said}. Copy such files again to {request.events.uri} and run again, or publish "
        msg += "without their unreadable parts by --accept-damaged"
        raise BadInput(msg)


def _add_damaged(damaged: list[Prepared], out: Folder, state: State) -> None:
    """Store damaged files with the counts that they add to the state."""
    for one in damaged:
        if (read := one.damage) is not None:
            late = [file for file in one.silver if state.is_final(_day_of(file))]
            read.counts["too_late"] = count_events(out, late)
            read.counts["accepted"] -= read.counts["too_late"]
            state.damaged[one.path] = read


def _take_back(state: State, gone: DamagedFile) -> None:
    """Subtract the figures of a damaged file that arrived again. Its events become copies of the new ones."""
    for name in ("counts", "reasons", "unknown_fields"):
        setattr(state, name, dict(Counter(getattr(state, name)) - Counter(getattr(gone, name))))


def _day_of(file: str) -> int:
    """Return the day in the path of a file of silver."""
    return number(file.split("/")[-2].removeprefix("day="))


def _add_days(out: Folder, state: State) -> int:
    """Add the days of the new part to the state; return the number of events that are too late."""
    sizes_bytes = Counter[int]()
    for file in out.files(f"silver/{state.run_id}"):
        sizes_bytes[_day_of(file.path)] += file.size_bytes
    too_late = 0
    for day, size_bytes in sizes_bytes.items():
        if state.is_final(day):
            too_late += count_events(out, silver_files(out, day, [state.run_id]))
            out.delete(silver_path(state.run_id, day))
        else:
            state.days.setdefault(day, Day()).silver[state.run_id] = size_bytes
    return too_late


def join_parts(out: Folder, state: State) -> None:
    """Join parts of silver of days that have many."""
    days = {day: known.silver for day, known in state.days.items() if len(known.silver) > MAX_SILVER_PARTS}
    if not days:
        return
    many = {day: smallest(silver) for day, silver in days.items()}
    part = f"{state.run_id}{ALL}"
    indexed = set().union(*many.values()) <= set(state.indexed)
    for day, parts in many.items():
        join_silver(out, silver_files(out, day, sorted(parts)), part)
        for one in parts:
            del days[day][one]
        days[day][part] = sum(file.size_bytes for file in out.files(silver_path(part, day)))
    if indexed:
        state.indexed = [*state.indexed, part]


def smallest(sizes_bytes: Mapping[str, int]) -> list[str]:
    """Return the parts to join: the smallest, up to a part that is larger than all smaller ones together.

    So an event is rewritten each time the size doubles, and not whenever a stream has brought more.
    """
    ordered = sorted(sizes_bytes, key=lambda part: (sizes_bytes[part], part))
    together = list(accumulate(sizes_bytes[part] for part in ordered))
    sizes = enumerate(ordered[2:], 2)
    end = next((at for at, part in sizes if sizes_bytes[part] > together[at - 1]), len(ordered))
    return ordered[:end]
