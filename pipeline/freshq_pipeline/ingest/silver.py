"""Write the events of new files to silver; count and quarantine unusable records."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F

from freshq_pipeline.errors import BadInput, PipelineError
from freshq_pipeline.ingest.copies import Prepared, copy, prepare
from freshq_pipeline.ingest.sound_files import ROW_GROUP_ROWS, Sound, write_sound
from freshq_pipeline.ingest.sources import FUTURE, NO_TASK, read_copies, read_records
from freshq_pipeline.schemas import EVENT, Format
from freshq_pipeline.spark.failures import SPARK_ERRORS
from freshq_pipeline.spark.tuning import uncompressed_bytes
from freshq_pipeline.storage.addresses import normalized
from freshq_pipeline.storage.days import latest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from freshq_pipeline.storage.folder import Folder
    from freshq_pipeline.storage.results import DamagedFile

SALVAGE: Final = "salvage"
OUT_OF_MEMORY: Final = "OutOfMemoryError"
# Number of unknown fields to count by name: records may have a different name in each event.
MAX_UNKNOWN_FIELDS: Final = 100
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
        digests: Digest of each file, by path.
    """

    records: int = 0
    accepted: int = 0
    no_task: int = 0
    with_unknown_fields: int = 0
    unknown_fields: dict[str, int] = field(default_factory=dict)
    other_unknown_fields: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    last_us: int | None = None
    damaged: list[Prepared] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)

    def add_sound(self, sound: Sound) -> None:
        """Add the figures of sound files."""
        self.records += sound.events
        self.accepted += sound.events
        self.last_us = latest(self.last_us, sound.last_us)
        self.digests |= sound.digests

    def add(self, other: Ingested) -> None:
        """Add the figures of other files."""
        for name, count in other.counts().items():
            setattr(self, name, getattr(self, name) + count)
        self.reasons = dict(Counter(self.reasons) + Counter(other.reasons))
        fields = Counter(self.unknown_fields) + Counter(other.unknown_fields)
        self.unknown_fields, others = most_frequent(fields)
        self.other_unknown_fields += others
        self.last_us = latest(self.last_us, other.last_us)

    def add_damaged(self, one: Prepared, damage: DamagedFile, read: Ingested) -> None:
        """Add a damaged file, given the figures of its readable lines; its unread end counts as a record."""
        read.records += 1
        read.reasons = {damage.problem: 1}
        damage.counts, damage.unknown_fields = read.counts(), read.unknown_fields
        damage.reasons = dict(read.reasons)
        self.damaged.append(one)
        self.add(read)

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
    rest = {path: sizes_bytes[path] for path in sizes_bytes.keys() - sound.digests.keys()}
    try:
        found = _SparkPart(spark, events, rest, form, out, run_id).ingest() if rest else Ingested()
    except SPARK_ERRORS as error:
        if OUT_OF_MEMORY not in str(error):
            raise
        largest = max(rest, key=lambda path: uncompressed_bytes({path: rest[path]}))
        msg = f"events: Java's memory is too small for them; the largest file is {events.at(largest)}. "
        msg += "Give more --memory, or split the files"
        raise BadInput(msg) from error
    finally:
        out.delete(f"{SALVAGE}/{run_id}")
    found.add_sound(sound)
    _check_counts(found)
    return found


def _check_counts(found: Ingested) -> None:
    """Check that each record is accepted, quarantined or foreign; all figures of a run rest on that."""
    known = found.accepted + found.quarantined + found.no_task
    if known != found.records:
        msg = f"events: {found.records} records were read, but {known} were accepted, quarantined or of no "
        msg += "task; this is a fault of freshq-pipeline. Nothing was published"
        raise PipelineError(msg)


@dataclass(frozen=True, slots=True)
class _SparkPart:
    """The part of a run that Spark reads: files in any condition."""

    spark: SparkSession
    events: Folder
    sizes_bytes: dict[str, int]
    form: Format
    out: Folder
    run_id: str

    def ingest(self) -> Ingested:
        """Write the usable events, and quarantine unusable records."""
        found, copies = Ingested(), f"{SALVAGE}/{self.run_id}"
        prepared = prepare(self.spark, self.events, self.sizes_bytes, self.form, self.out, copies)
        whole = [one for one in prepared if one.damage is None]
        bad_files = self._accept(self._read(whole), found) if whole else []
        for one in prepared:
            if one.damage is not None:
                self._accept_damaged(one, one.damage, found)
        prepared += self._copied(whole, bad_files)
        if found.records > found.accepted + found.no_task:
            self._quarantine(self._copies(prepared), found)
        found.digests = {one.path: one.digest for one in prepared}
        return found

    def _copied(self, files: list[Prepared], bad_files: list[str]) -> list[Prepared]:
        """Return copies of files that were read as they are, and have unusable records."""
        if not bad_files:
            return []
        regular = {normalized(self.events.at(one.path)): one.path for one in files}
        bad = {regular[normalized(file)] for file in bad_files}
        sizes_bytes = {path: self.sizes_bytes[path] for path in bad}
        return copy(self.spark, self.events, sizes_bytes, self.out, f"{SALVAGE}/{self.run_id}")

    def _copies(self, files: list[Prepared]) -> list[str]:
        return [self.out.at(one.copy) for one in files if one.copy is not None]

    def _read(self, files: list[Prepared]) -> DataFrame:
        """Return the canonical events of files, with `problem`, `file`, and `line` where a copy is read."""
        copies = self._copies(files)
        regular = [self.events.at(one.path) for one in files if one.copy is None]
        parts = []
        if regular:
            rows = read_records(self.spark, regular, self.form)
            parts.append(rows.withColumn("line", F.lit(None).cast("int")))
        if copies:
            parts.append(read_copies(self.spark, copies, self.form).drop("value"))
        return reduce(DataFrame.unionByName, parts)

    def _accept_damaged(self, one: Prepared, damage: DamagedFile, found: Ingested) -> None:
        """Write the usable events of a damaged file, and add its figures."""
        read, part = Ingested(), f"silver/{self.run_id}"
        if one.copy is not None:
            before = {file.path for file in self.out.files(part)}
            self._accept(read_copies(self.spark, self._copies([one]), self.form), read, is_damaged=True)
            one.silver.extend({file.path for file in self.out.files(part)} - before)
        found.add_damaged(one, damage, read)

    def _accept(self, events: DataFrame, found: Ingested, *, is_damaged: bool = False) -> list[str]:
        """Write the usable events, and add the figures; return the files, read as they are, with others."""
        observation = Observation()
        problem = F.col("problem")
        foreign = problem == NO_TASK
        rows = events.observe(
            observation,
            F.count(F.lit(1)).alias("records"),
            F.count_if(problem.isNull()).alias("accepted"),
            F.count_if(foreign).alias("no_task"),
            F.count_if(problem.isNull() & F.col("unknown_fields").isNotNull()).alias("with_unknown_fields"),
            F.collect_set(F.when(~foreign & F.col("line").isNull(), F.col("file"))).alias("bad_files"),
            F.max(F.when(problem.isNull(), F.col("changed_us"))).alias("last_us"),
        )
        usable = problem.isNull()
        target = self.out.at(f"silver/{self.run_id}")
        write_silver(rows.where(usable), target)
        seen: dict[str, Any] = observation.get
        read = Ingested(seen["records"], seen["accepted"], seen["no_task"], seen["with_unknown_fields"])
        read.last_us = seen["last_us"]
        if read.with_unknown_fields:
            # Beside the events of a damaged file, the target has those of other files.
            written = events.where(usable) if is_damaged else events.sparkSession.read.parquet(target)
            read.unknown_fields, read.other_unknown_fields = _unknown_fields(written)
        found.add(read)
        # Spark returns file names URL-encoded.
        return sorted(map(unquote, seen["bad_files"]))

    def _quarantine(self, copies: list[str], found: Ingested) -> None:
        """Write unusable records with file and line; add their number by reason to the figures."""
        target = f"quarantine/{self.run_id}"
        by_reason = Counter(found.reasons)
        owners = {self.events.at(one.path): one.damage for one in found.damaged if one.damage is not None}
        if copies:
            rejects = read_copies(self.spark, copies, self.form).where(F.col("problem") != NO_TASK)
            reason, text = F.col("problem").alias("reason"), F.col("value").alias("text")
            kept = rejects.select("file", "line", reason, text)
            kept.write.mode("overwrite").json(self.out.at(target))
            owner = F.when(F.col("file").isin(*owners), F.col("file")).alias("owner")
            for row in kept.groupBy(owner, "reason").count().collect():
                by_reason[row["reason"]] += row["count"]
                if row["owner"] is not None:
                    owners[row["owner"]].reasons[row["reason"]] = row["count"]
        found.reasons = dict(by_reason)
        if owners:
            notes = [
                {"file": address, "line": one.lines + 1, "reason": one.problem, "text": None}
                for address, one in owners.items()
            ]
            self.out.write(f"{target}/damaged.json", "".join(json.dumps(note) + "\n" for note in notes))


def write_silver(events: DataFrame, target: str) -> None:
    """Write canonical events to a part of silver, in a folder for each day of creation.

    Args:
        events: Events with at least the columns of `EVENT`.
        target: Address of the part; its files are kept.
    """
    day = F.date_format(F.timestamp_micros("created_us"), "yyyy-MM-dd").alias("day")
    by_day = events.select(*EVENT, day).write.options(**_SILVER).mode("append").partitionBy("day")
    by_day.parquet(target)


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
