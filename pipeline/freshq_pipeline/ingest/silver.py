"""New files to silver: canonical events in Parquet, and everything else counted and put aside."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Observation
from pyspark.sql import functions as F

from freshq_pipeline.errors import BadInput
from freshq_pipeline.ingest.inputs import Damaged, damaged_files
from freshq_pipeline.ingest.sources.problems import FUTURE, NO_TASK
from freshq_pipeline.ingest.sources.registry import canonical, canonical_files
from freshq_pipeline.schemas import EVENT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from freshq_pipeline.schemas import Format
    from freshq_pipeline.storage.folder import Folder

SALVAGE: Final = "salvage"
# Of silver no row is ever looked for: statistics, and a dictionary of what hardly repeats, would take
# two fifths of the time of writing it.
_HARDLY_REPEATED: Final = (
    "event_id", "sequence", "task_id", "lease", "changed_us", "created_us", "deadline_us", "lease_until_us",
)  # fmt: skip
_SILVER: Final = {
    "parquet.column.statistics.enabled": "false",
    "parquet.size.statistics.enabled": "false",
    **{f"parquet.enable.dictionary#{name}": "false" for name in _HARDLY_REPEATED},
}


@dataclass(slots=True)
class Ingested:
    """What came of some files.

    Attributes:
        records: How many were read, usable or not.
        accepted: How many are events of tasks, duplicates included.
        no_task: How many are about other items.
        reasons: How many were quarantined, by reason.
    """

    records: int = 0
    accepted: int = 0
    no_task: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    @property
    def quarantined(self) -> int:
        """How many were quarantined."""
        return sum(self.reasons.values())


def ingest(
    spark: SparkSession, events: Folder, paths: list[str], form: Format, out: Folder, run_id: str,
    max_reject_ratio: float,
) -> Ingested:  # fmt: skip
    """Write the events of some files as the silver part of a run.

    Args:
        spark: The session.
        events: Where the files are.
        paths: Which.
        form: How they are written.
        out: Where silver and quarantine are.
        run_id: Name of the part.
        max_reject_ratio: Share of the records that may be unusable.

    Raises:
        BadInput: If more are, or if a newer version of freshq wrote them.
    """
    salvage = f"{SALVAGE}/{run_id}"
    try:
        found, spoilt, damaged = _write(spark, events, paths, form, out, run_id)
        lines = _numbered(spark, spoilt)
        rejects = canonical(lines, form).where(F.col("problem") != NO_TASK)
        originals = {out.at(one.salvaged): events.at(one.path) for one in damaged}
        found.reasons = (
            _quarantine(rejects, damaged, originals, events, out, run_id) if spoilt or damaged else {}
        )
    finally:
        out.delete(salvage)
    # A file that ends too early counts as one record that could not be read.
    found.records += len(damaged)
    _judge(found, out, run_id, max_reject_ratio)
    return found


def write_silver(events: DataFrame, target: str) -> None:
    """Write canonical events as a part of silver.

    Args:
        events: With the columns of `EVENT`, and perhaps others.
        target: Address of the part; what is there already is replaced.
    """
    events.select(*EVENT).write.options(**_SILVER).mode("overwrite").parquet(target)


def _write(
    spark: SparkSession, events: Folder, paths: list[str], form: Format, out: Folder, run_id: str
) -> tuple[Ingested, list[str], list[Damaged]]:
    """Write what is usable; return the counts, the files with other records, and the damaged files."""
    addresses = [events.at(path) for path in paths]
    try:
        return *_accept(spark, addresses, form, out.at(f"silver/{run_id}")), []
    except (PySparkException, Py4JJavaError) as error:
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
    seen = Observation()
    problem = F.col("problem")
    foreign = problem == NO_TASK
    rows = canonical_files(spark, files, form).observe(
        seen,
        F.count(F.lit(1)).alias("records"),
        F.count_if(problem.isNull()).alias("accepted"),
        F.count_if(foreign).alias("no_task"),
        F.collect_set(F.when(~foreign, F.col("file"))).alias("spoilt"),
    )
    write_silver(rows.where(problem.isNull()), target)
    told: dict[str, Any] = seen.get
    counts = Ingested(told["records"], told["accepted"], told["no_task"])
    return counts, sorted(told["spoilt"])


def _numbered(spark: SparkSession, files: list[str]) -> DataFrame:
    """Return the lines of files with their numbers, which takes reading each in one piece."""
    whole = spark.read.text(files, wholetext=True) if files else spark.createDataFrame([], "value string")
    name = F.col("_metadata.file_path") if files else F.lit(None).cast("string")
    lines = F.posexplode(F.split("value", "\r?\n"))
    return whole.select(name.alias("file"), lines.alias("place", "value")).select(
        "file", (F.col("place") + 1).alias("line"), "value"
    )


def _quarantine(
    rejects: DataFrame,
    damaged: list[Damaged],
    originals: dict[str, str],
    events: Folder,
    out: Folder,
    run_id: str,
) -> dict[str, int]:
    """Put aside what cannot be used, with file and line, and return how many by reason."""
    names = {_plain(written): original for written, original in originals.items()}
    target = f"quarantine/{run_id}"
    kept = rejects.select("file", "line", F.col("problem").alias("reason"), F.col("value").alias("text"))
    for written, original in names.items():
        salvaged = F.regexp_replace("file", "^file:/+", "/") == written
        kept = kept.withColumn("file", F.when(salvaged, F.lit(original)).otherwise(F.col("file")))
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


def _plain(address: str) -> str:
    return address.removeprefix("file://")


def _judge(found: Ingested, out: Folder, run_id: str, max_reject_ratio: float) -> None:
    """Refuse what is too broken to tell anything, or written by a newer version."""
    aside = out.at(f"quarantine/{run_id}")
    if future := found.reasons.get(FUTURE):
        msg = (
            f"events: {future} of {found.records} records have a newer schema version than this freshq knows"
        )
        msg += f"; upgrade it (see {aside})"
        raise BadInput(msg)
    if found.quarantined > max_reject_ratio * found.records:
        worst = max(found.reasons, key=lambda reason: found.reasons[reason])
        msg = (
            f"events: {found.quarantined} of {found.records} records cannot be used, most for: {worst}; "
            f"more than max-reject-ratio {max_reject_ratio:g} allows. Is the format right? See {aside}"
        )
        raise BadInput(msg)
