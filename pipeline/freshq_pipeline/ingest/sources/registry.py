"""The reader of each format."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from freshq_pipeline.ingest.sources import export, landed, streams
from freshq_pipeline.ingest.sources.json_lines import (
    irregular_files,
    parsed,
    read_lines,
    read_records,
)
from freshq_pipeline.schemas import EXPORT, LANDED, STREAMS, Format
from freshq_pipeline.storage.addresses import normalized

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class _Source:
    """Schema of a record, its conversion to an event, and the pattern of names that are not in the schema."""

    schema: str
    canonical: Callable[[DataFrame], DataFrame]
    unknown_name: str | None = None


_SOURCES: Final = {
    Format.LANDED: _Source(LANDED, landed.canonical, landed.UNKNOWN_NAME),
    Format.STREAMS: _Source(STREAMS, streams.canonical),
    Format.KINESIS: _Source(STREAMS, streams.canonical),
    Format.EXPORT: _Source(EXPORT, export.canonical),
}


def canonical(lines: DataFrame, form: Format) -> DataFrame:
    """Return the canonical events of lines with `problem`, and all columns of the lines.

    Args:
        lines: Has `value`, the text.
        form: Format of the lines.
    """
    source = _SOURCES[form]
    return source.canonical(parsed(lines, source.schema))


def canonical_files(
    spark: SparkSession, files: Sequence[str], form: Format, *, scan: bool = True
) -> DataFrame:
    """Return the canonical events of files with `problem` and `file`.

    Args:
        spark: The session.
        files: Addresses of the files.
        form: Format of the files.
        scan: Whether to look first which files need all their lines split. That takes a job of its own, and
            saves more than half the time of reading the others.
    """
    if not scan:
        return canonical(read_lines(spark, files), form).drop("value")
    source = _SOURCES[form]
    known = {normalized(file): file for file in files}
    # Spark returns file names URL-encoded.
    found = irregular_files(spark, files, source.unknown_name)
    split = [known[normalized(unquote(file))] for file in found]
    whole = sorted(set(files) - set(split))
    events = []
    if whole:
        events.append(source.canonical(read_records(spark, whole, source.schema)))
    if split:
        events.append(canonical(read_lines(spark, split), form).drop("value"))
    return events[0] if len(events) == 1 else events[0].unionByName(events[1])
