"""Write the events of new files to silver; count and quarantine unusable records."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from pyspark.sql import Observation
from pyspark.sql import functions as F

from freshq_pipeline.errors import BadInput
from freshq_pipeline.ingest.inflation import MAX_INFLATION, oversized_files
from freshq_pipeline.ingest.inputs import Damaged, damaged_files, longest_line
from freshq_pipeline.ingest.sound_files import ROW_GROUP_ROWS, Sound, write_sound
from freshq_pipeline.ingest.sources import FUTURE, NO_TASK, canonical, canonical_files
from freshq_pipeline.schemas import EVENT, Format
from freshq_pipeline.spark.failures import SPARK_ERRORS
from freshq_pipeline.spark.tuning import MEDIUM_BYTES, uncompressed_bytes
from freshq_pipeline.storage.addresses import normalized
from freshq_pipeline.storage.days import latest
from freshq_pipeline.storage.results import DamagedFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import Column, DataFrame, SparkSession

    from freshq_pipeline.storage.folder import Folder

SALVAGE: Final = "salvage"
# Names of files that Spark writes begin like this; names of Arrow's files do not.
SPARK_FILE: Final = "/part-"
OUT_OF_MEMORY: Final = "OutOfMemoryError"
# Below this size, splitting all lines is faster than finding the files that need it.
SCANNED_BYTES: Final = MEDIUM_BYTES
# Number of unknown fields to count by name: records may have a different name in each event.
MAX_UNKNOWN_FIELDS: Final = 100
OVERSIZED: Final = f"gzip inflates more than {MAX_INFLATION} times"
# Runs select hours of silver by the time of creation. Other statistics, and dictionaries of columns whose
# values rarely repeat, would take two fifths of the time to write it.
_MOSTLY_DISTINCT: Final = (
    "event_id", "sequence", "task_id", "lease", "changed_us", "created_us", "put_us", "deadline_us",
    "lease_until_us",
)  # fmt: skip
_SILVER: Final = {
    "parquet.column.statistics.enabled": "false",
    "parquet.column.statistics.enabled#created_us": "true",
    "parquet.block.row.count.limit": str(ROW_GROUP_ROWS),
    "parquet.size.statistics.enabled": "false",
    **{f"parquet.enable.dictionary#{name}": "false" for name in _MOSTLY_DISTINCT},
}


COUNTS: Final = ("records", "accepted", "no_task", "with_unknown_fields", "other_unknown_fields")


@dataclass(slots=True)
class Ingested:
    """Figures of the records in the given files.

    Attributes:
        records: Number of records, usable or not.
        accepted: Number of task events, including duplicates.
        no_task: Number of records of other items of the table.
        with_unknown_fields: Number of accepted events with fields that this version does not know.
        unknown_fields: Occurrences of the most frequent unknown fields, by name.
        other_unknown_fields: Occurrences of all other unknown fields.
        reasons: Number of quarantined records by reason.
        last_us: Time of the last accepted event; None if there is none.
        damaged: Files that were not read to their end. The figures include their readable lines.
    """

    records: int = 0
    accepted: int = 0
    no_task: int = 0
    with_unknown_fields: int = 0
    unknown_fields: dict[str, int] = field(default_factory=dict)
    other_unknown_fields: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    last_us: int | None = None
    damaged: list[Damaged] = field(default_factory=list)

    def add(self, sound: Sound) -> None:
        """Add the figures of sound files."""
        self.records += sound.events
        self.accepted += sound.events
        self.last_us = latest(self.last_us, sound.last_us)

    def add_damaged(self, one: Damaged, read: Ingested) -> None:
        """Add a damaged file, given the figures of its readable lines; its unread end counts as a record."""
        read.records += 1
        read.reasons = {one.file.problem: 1}
        one.file.counts, one.file.unknown_fields = read.counts(), read.unknown_fields
        one.file.reasons = dict(read.reasons)
        self.damaged.append(one)
        for name, count in one.file.counts.items():
            setattr(self, name, getattr(self, name) + count)
        self.reasons = dict(Counter(self.reasons) + Counter(read.reasons))
        self.unknown_fields, others = most_frequent(
            Counter(self.unknown_fields) + Counter(read.unknown_fields)
        )
        self.other_unknown_fields += others
        self.last_us = latest(self.last_us, read.last_us)

    def counts(self) -> dict[str, int]:
        """Return the counts in the form of `State.counts`."""
        return {name: getattr(self, name) for name in COUNTS}

    @property
    def quarantined(self) -> int:
        """Number of quarantined records."""
        return sum(self.reasons.values())


def ingest(
    spark: SparkSession, events: Folder, sizes_bytes: dict[str, int], form: Format, out: Folder, run_id: str
) -> Ingested:
    """Write the events of the given files as the silver part of a run.

    Args:
        spark: The session.
        events: Folder with the files.
        sizes_bytes: Size of each file, by path.
        form: Format of the files.
        out: The output folder.
        run_id: Name of the part.

    Raises:
        BadInput: If Java has too little memory for a file.
    """
    sound = Sound()
    if form is Format.LANDED:
        sound = write_sound(spark, events, sizes_bytes, out, run_id)
    rest = {path: sizes_bytes[path] for path in sizes_bytes.keys() - set(sound.paths)}
    try:
        found = _by_spark(spark, events, rest, form, out, run_id)
    except SPARK_ERRORS as error:
        if OUT_OF_MEMORY not in str(error):
            raise
        raise _out_of_memory(events, rest) from error
    finally:
        out.delete(f"{SALVAGE}/{run_id}")
    found.add(sound)
    return found


def _by_spark(
    spark: SparkSession, events: Folder, sizes_bytes: dict[str, int], form: Format, out: Folder, run_id: str
) -> Ingested:
    """Write the usable events of files in any condition, and quarantine unusable records."""
    oversized = [Damaged(path, DamagedFile(OVERSIZED)) for path in oversized_files(events, sizes_bytes)]
    paths = sorted(sizes_bytes.keys() - {one.path for one in oversized})
    scan = uncompressed_bytes(sizes_bytes) > SCANNED_BYTES
    read = partial(canonical_files, spark, form=form, scan=scan)
    found, bad_files = _write(read, events, paths, out, run_id)
    for one in oversized:
        found.add_damaged(one, Ingested())
    if bad_files or found.damaged:
        rejects = canonical(_numbered(spark, bad_files), form).where(F.col("problem") != NO_TASK)
        _quarantine(rejects, found, events, out, run_id)
    return found


def _out_of_memory(events: Folder, sizes_bytes: dict[str, int]) -> BadInput:
    """Return an error that names the files that most probably exhausted Java's memory."""
    oversized = set(oversized_files(events, sizes_bytes))
    path, line_bytes = longest_line(events, sorted(sizes_bytes.keys() - oversized))
    msg = "events: Java's memory is too small for them. A line is read as a whole, and so is a file that has "
    msg += f"unusable records; the longest line, {line_bytes / 2**20:,.1f} MiB, is in {events.at(path)}, "
    largest = max(sizes_bytes, key=lambda path: uncompressed_bytes({path: sizes_bytes[path]}))
    msg += f"and the largest file is {events.at(largest)}. Split or remove them, or give more --memory"
    return BadInput(msg)


def write_silver(events: DataFrame, target: str) -> None:
    """Write canonical events to a part of silver, in a folder for each day of creation.

    Args:
        events: Events with at least the columns of `EVENT`.
        target: Address of the part; its files are kept.
    """
    day = F.date_format(F.timestamp_micros("created_us"), "yyyy-MM-dd").alias("day")
    by_day = events.select(*EVENT, day).write.options(**_SILVER).mode("append").partitionBy("day")
    by_day.parquet(target)


def _write(
    read: Callable[[list[str]], DataFrame], events: Folder, paths: list[str], out: Folder, run_id: str
) -> tuple[Ingested, list[str]]:
    """Write the usable events; return the figures, and the files with unusable records."""
    if not paths:
        return Ingested(), []
    target, addresses = out.at(f"silver/{run_id}"), [events.at(path) for path in paths]
    try:
        return _accept(read(addresses), target)
    except SPARK_ERRORS as error:
        if "FAILED_READ_FILE" not in str(error):
            raise
        damaged = damaged_files(events, paths, out, f"{SALVAGE}/{run_id}")
        if not damaged:
            raise
    _delete_first_try(out, run_id)
    sound = sorted(set(paths) - {one.path for one in damaged})
    found, bad_files = _accept(read([*map(events.at, sound)]), target) if sound else (Ingested(), [])
    for one in damaged:
        bad_files += _accept_damaged(read([out.at(str(one.salvaged))]), one, found, out, run_id)
    return found, bad_files


def _accept_damaged(events: DataFrame, one: Damaged, found: Ingested, out: Folder, run_id: str) -> list[str]:
    """Write the usable events of a damaged file, add its figures; return it if it has unusable records."""
    part = f"silver/{run_id}"
    before = {file.path for file in out.files(part)}
    lines, bad_files = _accept(events, out.at(part), is_salvage=True)
    one.silver.extend({file.path for file in out.files(part)} - before)
    found.add_damaged(one, lines)
    return bad_files


def _delete_first_try(out: Folder, run_id: str) -> None:
    """Delete Spark's output of a failed job: some committers leave files of its completed tasks."""
    out.delete_files(file.path for file in out.files(f"silver/{run_id}") if SPARK_FILE in file.path)


def _accept(events: DataFrame, target: str, *, is_salvage: bool = False) -> tuple[Ingested, list[str]]:
    """Write the usable events; return the figures, and the files with unusable records."""
    observation = Observation()
    problem = F.col("problem")
    foreign = problem == NO_TASK
    rows = events.observe(
        observation,
        F.count(F.lit(1)).alias("records"),
        F.count_if(problem.isNull()).alias("accepted"),
        F.count_if(foreign).alias("no_task"),
        F.count_if(problem.isNull() & F.col("unknown_fields").isNotNull()).alias("with_unknown_fields"),
        F.collect_set(F.when(~foreign, F.col("file"))).alias("bad_files"),
        F.max(F.when(problem.isNull(), F.col("changed_us"))).alias("last_us"),
    )
    usable = problem.isNull()
    write_silver(rows.where(usable), target)
    seen: dict[str, Any] = observation.get
    found = Ingested(seen["records"], seen["accepted"], seen["no_task"], seen["with_unknown_fields"])
    found.last_us = seen["last_us"]
    if found.with_unknown_fields:
        # Only for the lines of a damaged file has the target events of other files.
        written = events.where(usable) if is_salvage else events.sparkSession.read.parquet(target)
        found.unknown_fields, found.other_unknown_fields = _unknown_fields(written)
    # Spark returns file names URL-encoded.
    return found, sorted(map(unquote, seen["bad_files"]))


def _unknown_fields(events: DataFrame) -> tuple[dict[str, int], int]:
    """Return the occurrences of the most frequent unknown fields by name, and the sum of all others."""
    names = events.select(F.explode(F.map_keys("unknown_fields")).alias("name"))
    counts = names.groupBy("name").count()
    most = counts.orderBy(F.desc("count"), "name").limit(MAX_UNKNOWN_FIELDS).collect()
    named = {row["name"]: row["count"] for row in most}
    if len(named) < MAX_UNKNOWN_FIELDS:
        return named, 0
    total = counts.agg(F.sum("count").alias("total")).collect()[0]["total"]
    return named, total - sum(named.values())


def most_frequent(counts: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """Return the `MAX_UNKNOWN_FIELDS` highest counts by name, and the sum of all others."""
    ranked = sorted(counts.items(), key=lambda name: (-name[1], name[0]))
    return dict(ranked[:MAX_UNKNOWN_FIELDS]), sum(count for _, count in ranked[MAX_UNKNOWN_FIELDS:])


def _numbered(spark: SparkSession, files: list[str]) -> DataFrame:
    """Return the lines of files with line numbers; reads each file as a whole."""
    whole = spark.read.text(files, wholetext=True) if files else spark.createDataFrame([], "value string")
    name = _decoded(F.col("_metadata.file_path")) if files else F.lit(None).cast("string")
    lines = F.posexplode(F.split("value", "\r?\n"))
    return whole.select(name.alias("file"), lines.alias("place", "value")).select(
        "file", (F.col("place") + 1).alias("line"), "value"
    )


def _decoded(address: Column) -> Column:
    """Return the plain form of a URL-encoded address, in which a plus sign stands for itself."""
    return F.url_decode(F.replace(address, F.lit("+"), F.lit("%2B")))


def _quarantine(rejects: DataFrame, found: Ingested, events: Folder, out: Folder, run_id: str) -> None:
    """Write unusable records with file and line; add their number by reason to the figures."""
    target = f"quarantine/{run_id}"
    kept = rejects.select("file", "line", F.col("problem").alias("reason"), F.col("value").alias("text"))
    for one in found.damaged:  # name the original instead of the salvaged copy
        if one.salvaged is None:
            continue
        spelling = F.regexp_replace(F.regexp_replace("file", "^file:", ""), "/+", "/")
        salvaged = spelling == normalized(out.at(one.salvaged))
        kept = kept.withColumn("file", F.when(salvaged, events.at(one.path)).otherwise(F.col("file")))
    kept.write.mode("overwrite").json(out.at(target))
    owners = {events.at(one.path): one.file for one in found.damaged}
    owner = F.when(F.col("file").isin(*owners), F.col("file")).alias("owner")
    by_reason = Counter(found.reasons)
    for row in kept.groupBy(owner, "reason").count().collect():
        by_reason[row["reason"]] += row["count"]
        if row["owner"] is not None:
            owners[row["owner"]].reasons[row["reason"]] = row["count"]
    found.reasons = dict(by_reason)
    if found.damaged:
        notes = [
            {"file": address, "line": one.lines + 1, "reason": one.problem, "text": None}
            for address, one in owners.items()
        ]
        out.write(f"{target}/damaged.json", "".join(json.dumps(note) + "\n" for note in notes))


def check(found: Ingested, quarantine: str, max_reject_ratio: float) -> None:
    """Check that the records of new files may be published.

    Args:
        found: Figures of the files.
        quarantine: Address of the quarantined records.
        max_reject_ratio: Largest share of records that may be unusable.

    Raises:
        BadInput: If too many records are unusable, or a newer version of freshq wrote them.
    """
    if future := found.reasons.get(FUTURE):
        msg = f"events: {future} of {found.records} records have a schema version newer than this freshq; "
        msg += f"upgrade it (see {quarantine})"
        raise BadInput(msg)
    if found.quarantined > max_reject_ratio * found.records:
        worst = max(found.reasons, key=lambda reason: found.reasons[reason])
        msg = (
            f"events: {found.quarantined} of {found.records} records are unusable (most common: {worst}), "
            f"more than max-reject-ratio {max_reject_ratio:g} allows. Is the format right? See {quarantine}"
        )
        raise BadInput(msg)
