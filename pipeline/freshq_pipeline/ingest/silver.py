"""New files to silver: canonical events in Parquet. Unusable records are counted and quarantined."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import Observation
from pyspark.sql import functions as F

from freshq_pipeline.errors import BadInput
from freshq_pipeline.ingest.inputs import Damaged, damaged_files
from freshq_pipeline.ingest.sources.problems import FUTURE, NO_TASK
from freshq_pipeline.ingest.sources.registry import canonical, canonical_files
from freshq_pipeline.schemas import EVENT
from freshq_pipeline.spark.failures import SPARK_ERRORS
from freshq_pipeline.storage.addresses import normalized

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from freshq_pipeline.schemas import Format
    from freshq_pipeline.storage.folder import Folder

SALVAGE: Final = "salvage"
# Silver is only read in full. Statistics, and dictionaries of columns whose values rarely repeat, would take
# two fifths of the time to write it.
_MOSTLY_DISTINCT: Final = (
    "event_id", "sequence", "task_id", "lease", "changed_us", "created_us", "deadline_us", "lease_until_us",
)  # fmt: skip
_SILVER: Final = {
    "parquet.column.statistics.enabled": "false",
    "parquet.size.statistics.enabled": "false",
    **{f"parquet.enable.dictionary#{name}": "false" for name in _MOSTLY_DISTINCT},
}


@dataclass(slots=True)
class Ingested:
    """Counts of the records of some files.

    Attributes:
        records: All records, usable or not.
        accepted: Events of tasks, duplicates included.
        no_task: Records of other items of the table.
        reasons: Quarantined records by reason.
    """

    records: int = 0
    accepted: int = 0
    no_task: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def quarantined(self) -> int:
        """All quarantined records."""
        return sum(self.reasons.values())


def ingest(
    spark: SparkSession, events: Folder, paths: list[str], form: Format, out: Folder, run_id: str,
    max_reject_ratio: float,
) -> Ingested:  # fmt: skip
    """Write the events of some files as the silver part of a run.

    Args:
        spark: The session.
        events: Folder with the files.
        paths: Paths of the files.
        form: Format of the files.
        out: Folder for silver and quarantine.
        run_id: Name of the part.
        max_reject_ratio: Share of the records that may be unusable.

    Raises:
        BadInput: If too many records are unusable, or a newer version of freshq wrote them.
    """
    salvage = f"{SALVAGE}/{run_id}"
    try:
        found, bad_files, damaged = _write(spark, events, paths, form, out, run_id)
        if bad_files or damaged:
            rejects = canonical(_numbered(spark, bad_files), form).where(F.col("problem") != NO_TASK)
            found.reasons = _quarantine(rejects, damaged, events, out, run_id)
    finally:
        out.delete(salvage)
    # The missing end of a truncated file counts as one record.
    found.records += len(damaged)
    _check(found, out.at(f"quarantine/{run_id}"), max_reject_ratio)
    return found


def write_silver(events: DataFrame, target: str) -> None:
    """Write canonical events as a part of silver.

    Args:
        events: Has the columns of `EVENT`, and perhaps others.
        target: Address of the part; existing content is replaced.
    """
    events.select(*EVENT).write.options(**_SILVER).mode("overwrite").parquet(target)


def _write(
    spark: SparkSession, events: Folder, paths: list[str], form: Format, out: Folder, run_id: str
) -> tuple[Ingested, list[str], list[Damaged]]:
    """Write the usable events; return the counts, the files with unusable records, and the damaged files."""
    addresses = [events.at(path) for path in paths]
    try:
        return *_accept(spark, addresses, form, out.at(f"silver/{run_id}")), []
    except SPARK_ERRORS as error:
        if "FAILED_READ_FILE" not in str(error):
            raise
        damaged = damaged_files(events, paths, out, f"{SALVAGE}/{run_id}")
        if not damaged:
            raise
    bad = {one.path for one in damaged}
    addresses = [events.at(path) for path in paths if path not in bad]
    addresses += [out.at(one.salvaged) for one in damaged]
    return *_accept(spark, addresses, form, out.at(f"silver/{run_id}")), damaged


def _accept(spark: SparkSession, files: list[str], form: Format, target: str) -> tuple[Ingested, list[str]]:
    """Write the usable events; return the counts, and the files with unusable records."""
    observation = Observation()
    problem = F.col("problem")
    foreign = problem == NO_TASK
    rows = canonical_files(spark, files, form).observe(
        observation,
        F.count(F.lit(1)).alias("records"),
        F.count_if(problem.isNull()).alias("accepted"),
        F.count_if(foreign).alias("no_task"),
        F.collect_set(F.when(~foreign, F.col("file"))).alias("bad_files"),
    )
    write_silver(rows.where(problem.isNull()), target)
    seen: dict[str, Any] = observation.get
    return Ingested(seen["records"], seen["accepted"], seen["no_task"]), sorted(seen["bad_files"])


def _numbered(spark: SparkSession, files: list[str]) -> DataFrame:
    """Return the lines of files with line numbers; each file is read as a whole."""
    whole = spark.read.text(files, wholetext=True) if files else spark.createDataFrame([], "value string")
    name = F.col("_metadata.file_path") if files else F.lit(None).cast("string")
    lines = F.posexplode(F.split("value", "\r?\n"))
    return whole.select(name.alias("file"), lines.alias("place", "value")).select(
        "file", (F.col("place") + 1).alias("line"), "value"
    )


def _quarantine(
    rejects: DataFrame, damaged: list[Damaged], events: Folder, out: Folder, run_id: str
) -> dict[str, int]:
    """Write unusable records with file and line, and return their number by reason."""
    target = f"quarantine/{run_id}"
    kept = rejects.select("file", "line", F.col("problem").alias("reason"), F.col("value").alias("text"))
    for one in damaged:  # name the original, not the salvaged part of it
        spelling = F.regexp_replace(F.regexp_replace("file", "^file:", ""), "/+", "/")
        salvaged = spelling == normalized(out.at(one.salvaged))
        kept = kept.withColumn("file", F.when(salvaged, events.at(one.path)).otherwise(F.col("file")))
    kept.write.mode("overwrite").json(out.at(target))
    by_reason = Counter(
        {row["problem"]: row["count"] for row in rejects.groupBy("problem").count().collect()}
    )
    by_reason.update(one.problem for one in damaged)
    if damaged:
        notes = [
            {"file": events.at(one.path), "line": one.lines + 1, "reason": one.problem, "text": None}
            for one in damaged
        ]
        out.write(f"{target}/damaged.json", "".join(json.dumps(note) + "\n" for note in notes))
    return dict(by_reason)


def _check(found: Ingested, quarantine: str, max_reject_ratio: float) -> None:
    """Raise BadInput if too many records are unusable, or a newer version of freshq wrote them."""
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
