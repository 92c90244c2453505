"""DynamoDB exports to S3, full or incremental: states of items, without the changes between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from freshq_pipeline.ingest.sources import images, problems
from freshq_pipeline.ingest.sources.json_lines import micros

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def canonical(rows: DataFrame) -> DataFrame:
    """Return canonical events with `problem`, and all columns of the input but `r`.

    An export has no event ids, so the id is a digest of the state.

    Args:
        rows: Has `r`, the parsed record.
    """
    after = F.coalesce(F.col("r.NewImage"), F.col("r.Item"))
    before = F.col("r.OldImage")
    lives = images.is_task(after)
    image = F.when(lives, after).otherwise(before)
    task_id = F.coalesce(F.col("r.Keys")["taskId"]["S"], images.text(image, "taskId"))
    # Some exports have {"N": "1746..."} here and some a number; both have the digits.
    digits = F.regexp_extract(F.col("r.Metadata")["WriteTimestampMicros"], r"(\d{12,})", 1)
    updated_us = micros(images.number(after, "taskUpdated", "double"))
    written_us = F.coalesce(digits.try_cast("bigint"), updated_us)
    event = images.from_image(image)
    event |= {
        "task_id": task_id,
        "change": F.when(lives, F.lit("SNAPSHOT")).otherwise(F.lit("REMOVE")),
        "sequence": F.lit(None).cast("string"),
        "stream_us": written_us,
        "changed_us": F.when(lives, updated_us).otherwise(written_us),
        "ttl_removal": F.lit(False),
    }
    parts = [F.coalesce(event[name].cast("string"), F.lit("")) for name in ("changed_us", "status", "change")]
    event["event_id"] = F.concat(F.lit("export:"), F.sha2(F.concat_ws("|", task_id, *parts), 256))
    nothing = F.col("r.Item").isNull() & F.col("r.Keys").isNull() & F.col("r.NewImage").isNull()
    problem = problems.first_problem(
        (F.col("r._broken").isNotNull(), problems.BROKEN),
        (nothing, "not an exported item"),
        (F.coalesce(task_id, images.text(after, "taskId")).isNull(), problems.OTHER_TABLE),
        (~lives & ~images.is_task(before), problems.NO_TASK),
        *problems.unusable(event),
    )
    kept = (name for name in rows.columns if name != "r")
    return rows.select(*kept, *problems.in_order(event), problem.alias("problem"))
