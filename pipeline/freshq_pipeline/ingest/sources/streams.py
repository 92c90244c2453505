"""Raw records of DynamoDB Streams or Kinesis Data Streams for DynamoDB, as Firehose writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from freshq_pipeline.ingest.sources import images, problems
from freshq_pipeline.ingest.sources.json_lines import micros

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TTL_PRINCIPAL: Final = "dynamodb.amazonaws.com"
# An epoch time of this century has 10 digits in seconds, 13 in milliseconds, 16 in microseconds.
MAX_SECONDS: Final = 1e11
MAX_MILLISECONDS: Final = 1e14


def canonical(rows: DataFrame) -> DataFrame:
    """Return canonical events with `problem`, and all columns of the input but `r`.

    Args:
        rows: Has `r`, the parsed record.
    """
    change = F.col("r.dynamodb")
    before, after = change["OldImage"], change["NewImage"]
    was, lives = images.is_task(before), images.is_task(after)
    # For a queue, a record that another one had is new.
    stayed = was & images.text(before, "taskQueue").eqNullSafe(images.text(after, "taskQueue"))
    image = F.when(lives, after).otherwise(before)
    stream_us = epoch_us(
        change["ApproximateCreationDateTime"], change["ApproximateCreationDateTimePrecision"]
    )
    changed_us = micros(images.number(after, "taskUpdated", "double"))
    event = images.from_image(image) | {
        "event_id": F.col("r.eventID"),
        "task_id": F.coalesce(change["Keys"]["taskId"]["S"], images.text(image, "taskId")),
        "change": F.when(~lives, F.lit("REMOVE")).when(stayed, F.lit("MODIFY")).otherwise(F.lit("INSERT")),
        "sequence": F.lpad(change["SequenceNumber"], 40, "0"),
        "stream_us": stream_us,
        "changed_us": F.when(lives, changed_us).otherwise(stream_us),
        "ttl_removal": _removed_by_ttl(F.col("r.userIdentity")),
    }
    problem = problems.first_problem(
        (F.col("r._broken").isNotNull(), problems.BROKEN),
        (change.isNull() | F.col("r.eventName").isNull(), "not a change record"),
        (change["Keys"]["taskId"]["S"].isNull(), problems.OTHER_TABLE),
        (~was & ~lives, problems.NO_TASK),
        *problems.unusable(event),
    )
    kept = (name for name in rows.columns if name != "r")
    return rows.select(*kept, *problems.in_order(event), problem.alias("problem"))


def epoch_us(time: Column, precision: Column) -> Column:
    """Return the stream's time of a change, in microseconds.

    DynamoDB Streams write whole seconds, Kinesis milliseconds or microseconds. Where a record does not state
    its precision, the magnitude of the number decides.
    """
    value = time.try_cast("double")
    stated = F.when(precision == "MICROSECOND", F.lit(1)).when(precision == "MILLISECOND", F.lit(1000))
    likely = (
        F.when(value < MAX_SECONDS, F.lit(1_000_000))
        .when(value < MAX_MILLISECONDS, F.lit(1000))
        .otherwise(F.lit(1))
    )
    return F.floor(value * F.coalesce(stated, likely) + 0.5).cast("bigint")


def _removed_by_ttl(identity: Column) -> Column:
    kind = F.coalesce(identity["type"], identity["Type"])
    principal = F.coalesce(identity["principalId"], identity["PrincipalId"])
    return F.coalesce((kind == "Service") & (principal == TTL_PRINCIPAL), F.lit(False))
