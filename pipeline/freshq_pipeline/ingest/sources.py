"""Convert the records of each format to canonical events: DataFrame to DataFrame.

Raw streams and exports hold images of items; landed events hold fields. An event with a `problem` is
unusable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from freshq.model.fields import MARK_CHARS, NEVER, SUCCESSOR_MARK
from freshq.policy.value import LARGEST_VALUE
from freshq_pipeline.schemas import EVENT, EXPORT, LANDED, LANDED_VERSION, STREAMS, Format

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession


# The problem of records of the queue's own items or of foreign items, which are not errors.
NO_TASK: Final = "no task"
BROKEN: Final = "not a JSON record"
FUTURE: Final = "future schema version"
OTHER_TABLE: Final = "record of another table"
STATUSES: Final = ("PENDING", "TAKEN", "SUCCESS", "FAILURE", "CANCELLED", "SHED")
CHANGES: Final = ("INSERT", "MODIFY", "REMOVE", "SNAPSHOT")
# A clock that is further ahead of the stream's is wrong. It would move the end of the recording, and so count
# all waiting tasks as shed.
MAX_AHEAD_US: Final = 86_400_000_000
AHEAD: Final = "changed more than a day after it was recorded"
# A clock that was never set may start in 1970, and a task that waited since then would have a row in
# `minutes` for each minute. Shorter times may be real: an application may change a record long after its task
# ended.
MAX_BEHIND_US: Final = 10 * 365 * 86_400_000_000
BEHIND: Final = "changed more than ten years before it was recorded"
# Tables have a folder for each queue. Hive's name for a folder of nulls is no name for a queue there.
HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
# A folder's name has at most 255 bytes, and Spark may write a character as three.
MAX_QUEUE_BYTES: Final = 80
_KEPT_CHARACTERS: Final = 20
_DIGEST_DIGITS: Final = 16
# From this year on, the nanoseconds of pandas and Arrow overflow.
FIRST_YEAR_TOO_LATE: Final = 2262
MAX_TIME_US: Final = 9_214_646_400_000_000
# Times that are only bounds, and their value if they are too late to ever come.
_BOUNDS: Final = {"deadline_us": None, "lease_until_us": MAX_TIME_US - 1, "not_before_us": MAX_TIME_US - 1}
MOST_MILLIONTHS: Final = int(LARGEST_VALUE * 1e6)
REQUIRED: Final = ("event_id", "task_id", "changed_us", "stream_us", "created_us")
# Names of the times in landed events, without their unit, and of the fields that need no conversion.
LANDED_TIMES: Final = ("stream", "created", "put", "deadline", "lease_until", "not_before")
SAME_IN_LANDED: Final = (
    "event_id", "task_id", "change", "status", "queue", "kind", "decay", "lease", "worker", "shed_reason",
)  # fmt: skip
# Leading zeros make texts sort as numbers.
SEQUENCE_DIGITS: Final = 40


def _with_event(rows: DataFrame, event: dict[str, Column], *problems: tuple[Column, str]) -> DataFrame:
    """Replace the parsed record `r` in each row by the columns of its event, and `problem`.

    Args:
        rows: Rows with `r`.
        event: Columns of the event by name.
        problems: Conditions under which a record of the format is unusable, each with its reason.
    """
    event = event | _in_range(event) | {"queue": _nameable(event["queue"])}
    conditions = ((F.col("r._broken").isNotNull(), BROKEN), *problems, *_unusable(event))
    problem = F.coalesce(*(F.when(condition, F.lit(text)) for condition, text in conditions))
    kept = (name for name in rows.columns if name != "r")
    columns = (event[name].cast(kind).alias(name) for name, kind in EVENT.items())
    return rows.select(*kept, *columns, problem.alias("problem"))


def _nameable(queue: Column) -> Column:
    """Return the name of a queue, or, if no folder can have it, its beginning and a digest.

    freshq's own names have at most 64 letters, digits and signs; other programs may have written others.
    """
    digest = F.substring(F.sha2(queue, 256), 1, _DIGEST_DIGITS)
    escaped = F.concat(F.substring(queue, 1, _KEPT_CHARACTERS), F.lit("%"), digest)
    unfit = queue.isin("", HIVE_NULL) | (F.octet_length(queue) > MAX_QUEUE_BYTES)
    return F.when(unfit, escaped).otherwise(queue)


def _in_range(event: dict[str, Column]) -> dict[str, Column]:
    """Return the bounds of an event, without values that are too late to ever come."""
    return {
        name: F.when(event[name] >= MAX_TIME_US, F.lit(last)).otherwise(event[name])
        for name, last in _BOUNDS.items()
    }


def _unusable(event: dict[str, Column]) -> list[tuple[Column, str]]:
    """Return the conditions under which an event is unusable, each with its reason."""
    missing = [(event[name].isNull(), f"no {name.removesuffix('_us')}") for name in REQUIRED]
    times = {name.removesuffix("_us"): event[name] for name in EVENT if name.endswith("_us")}
    return [
        *missing,
        *((time < 0, f"{name} before 1970") for name, time in times.items()),
        *((time >= MAX_TIME_US, f"{name} in {FIRST_YEAR_TOO_LATE} or later") for name, time in times.items()),
        (event["value_millionths"] <= 0, "value not above 0"),
        (event["value_millionths"] > MOST_MILLIONTHS, f"value above {LARGEST_VALUE:g}"),
        (event["changed_us"] > event["stream_us"] + MAX_AHEAD_US, AHEAD),
        (event["changed_us"] < event["stream_us"] - MAX_BEHIND_US, BEHIND),
        (~F.coalesce(event["status"].isin(*STATUSES), F.lit(False)), "unknown status"),
        (~F.coalesce(event["change"].isin(*CHANGES), F.lit(False)), "unknown change"),
    ]


CORRUPT: Final = {"columnNameOfCorruptRecord": "_broken"}


def read_records(spark: SparkSession, files: Sequence[str], form: Format) -> DataFrame:
    """Return the canonical events, with `problem` and `file`, of files with one record per line.

    Spark's JSON reader parses bytes, which takes half as long as decoding them first.
    """
    source = _SOURCES[form]
    rows = spark.read.schema(source.schema).options(**CORRUPT, lineSep="\n").json(list(files))
    named = rows.select(F.col("_metadata.file_path").alias("file"), F.struct(*rows.columns).alias("r"))
    return source.canonical(named)


def read_copies(spark: SparkSession, copies: Sequence[str], form: Format) -> DataFrame:
    """Return the canonical events of copies, with `problem`, `line`, `file` and `value`, the text."""
    parts = F.split("value", "\t", 3)
    rows = spark.read.text(list(copies), lineSep="\n")
    lines = rows.select(
        parts[0].cast("int").alias("line"), F.url_decode(parts[1]).alias("file"), parts[2].alias("value")
    )
    return canonical(lines, form)


def micros(milliseconds: Column) -> Column:
    """Return milliseconds as whole microseconds."""
    # Adding a half and rounding down is exact for times within centuries of now, and faster than round().
    exact = F.floor(milliseconds * 1000 + 0.5).cast("bigint")
    return F.when(~F.isnan(milliseconds), exact)


def millionths(value: Column) -> Column:
    """Return a value as whole millionths; 0, which no task may have, if it is not a number."""
    return F.when(F.isnan(value), F.lit(0)).otherwise(F.floor(value * 1_000_000 + 0.5).cast("bigint"))


_TIMES: Final = {
    "created_us": "taskCreated",
    "put_us": "putAt",
    "deadline_us": "deadline",
    "lease_until_us": "leaseUntil",
    "not_before_us": "notBefore",
}
LEASE_DIGITS: Final = 16
MARK: Final = rf"(?s)\{SUCCESSOR_MARK}.{{{MARK_CHARS - 1}}}\z"
# All attributes of a task, as `freshq.stores.dynamodb.items.encode` names them.
OWN: Final = (
    "attemptRecord", "attempts", "deadAt", "deadline", "decay", "dueAt", "dueShard", "error",
    "firstClaimAt", "firstDue", "lastClaimAt", "leaseToken", "leaseUntil", "lineClass", "notBefore",
    "parentId", "payload", "pendingShard", "priority", "progressFraction", "progressStep", "putAt",
    "putToken", "requestToken", "result", "rootId", "shedReason", "successorRecord", "taskCreated",
    "taskCost", "taskGroup", "taskId", "taskKind", "taskQueue", "taskStatus", "taskUpdated", "taskValue",
    "traceContext", "ttl",
)  # fmt: skip


def _text(image: Column, attribute: str) -> Column:
    """Return a string attribute."""
    return image[attribute]["S"]


def _number(image: Column, attribute: str, kind: str) -> Column:
    """Return a number attribute; null if it is not a number."""
    return image[attribute]["N"].try_cast(kind)


def is_task(image: Column) -> Column:
    """Return whether an image shows a task: only tasks have a status."""
    return F.coalesce(_text(image, "taskStatus").isNotNull(), F.lit(False))


def from_image(image: Column) -> dict[str, Column]:
    """Return the columns of an event that come from an image, by name."""
    # Without the mark of a successor, which comes and changes while the lease stays: see `plain_token`.
    token = F.regexp_replace(_text(image, "leaseToken"), MARK, "")
    names_worker = token.contains(":")
    times = {name: micros(_number(image, attribute, "double")) for name, attribute in _TIMES.items()}
    never_stale = times["deadline_us"] >= int(NEVER * 1e6)
    times["deadline_us"] = F.when(~never_stale, times["deadline_us"])
    return times | {
        "status": _text(image, "taskStatus"),
        "queue": _text(image, "taskQueue"),
        "task_group": _text(image, "taskGroup"),
        "kind": _text(image, "taskKind"),
        "parent_id": _text(image, "parentId"),
        "root_id": _text(image, "rootId"),
        "value_millionths": millionths(_number(image, "taskValue", "double")),
        "decay": _text(image, "decay"),
        "shed_reason": _text(image, "shedReason"),
        "priority": F.coalesce(_number(image, "priority", "int"), F.lit(0)),
        "attempts": F.coalesce(_number(image, "attempts", "int"), F.lit(0)),
        # A digest, as in landed events: anyone with the token can settle the task.
        "lease": F.substring(F.sha2(token, 256), 1, LEASE_DIGITS),
        "unknown_fields": _unknown_names(image),
        "worker": F.when(names_worker, F.regexp_extract(token, "^(.+):[^:]*$", 1)),
    }


def _unknown_names(image: Column) -> Column:
    """Return the names of other attributes, with null values; null if there are none.

    The application's attributes may be secret, so their values are dropped.
    """
    names = F.array_except(F.map_keys(image), F.array(*map(F.lit, OWN)))
    nothing = F.array_repeat(F.lit(None).cast("string"), F.size(names))
    return F.when(F.size(names) > 0, F.map_from_arrays(names, nothing))


# All fields of a landed event.
_KNOWN: Final = tuple(column.split()[0] for column in LANDED.split(", "))


def _unknown_fields() -> Column:
    """Return the unknown fields of the record in `value`; null if there are none."""
    every = F.from_json("value", "map<string,string>")
    unknown = F.map_filter(every, lambda name, _value: ~name.isin(*_KNOWN))
    return F.when(F.size(unknown) > 0, unknown)


def from_landed(rows: DataFrame) -> DataFrame:
    """Return the canonical events of landed events, with `problem`, in place of `r`.

    Args:
        rows: Rows with `r`, the parsed record, and `value`, its text, if it may have unknown fields.
    """
    field = {name: F.col(f"r.{name}") for name in rows.select("r.*").columns}
    times = {f"{name}_us": micros(field[f"{name}_ms"]) for name in LANDED_TIMES}
    removed = field["change"] == "REMOVE"
    event = times | {name: field[name] for name in SAME_IN_LANDED}
    event |= {
        "sequence": F.lpad(field["sequence"], SEQUENCE_DIGITS, "0"),
        "changed_us": F.when(removed, times["stream_us"]).otherwise(micros(field["updated_ms"])),
        "task_group": field["group"],
        "parent_id": field["parent"],
        "root_id": field["root"],
        "value_millionths": millionths(field["value"]),
        "priority": F.coalesce(field["priority"], F.lit(0)),
        "attempts": F.coalesce(field["attempts"], F.lit(0)),
        "ttl_removal": F.coalesce(field["ttl_removal"], F.lit(False)),
        "unknown_fields": _unknown_fields() if "value" in rows.columns else F.lit(None),
    }
    version = field["schema_version"]
    return _with_event(
        rows, event, (version.isNull(), "no schema_version"), (version > LANDED_VERSION, FUTURE)
    )


TTL_PRINCIPAL: Final = "dynamodb.amazonaws.com"
# Epoch times of this century have 10 digits in seconds, 13 in milliseconds, 16 in microseconds.
MAX_SECONDS: Final = 1e11
MAX_MILLISECONDS: Final = 1e14


def from_streams(rows: DataFrame) -> DataFrame:
    """Return the canonical events of stream records, with `problem`, in place of `r`."""
    change = F.col("r.dynamodb")
    before, after = change["OldImage"], change["NewImage"]
    was, lives = is_task(before), is_task(after)
    # A record that moves to another queue is new there.
    stayed = was & _text(before, "taskQueue").eqNullSafe(_text(after, "taskQueue"))
    image = F.when(lives, after).otherwise(before)
    stream_us = epoch_us(
        change["ApproximateCreationDateTime"], change["ApproximateCreationDateTimePrecision"]
    )
    changed_us = micros(_number(after, "taskUpdated", "double"))
    event = from_image(image) | {
        "event_id": F.col("r.eventID"),
        "task_id": _id_in_key(F.coalesce(change["Keys"]["taskId"]["S"], _text(image, "taskId"))),
        "change": F.when(~lives, F.lit("REMOVE")).when(stayed, F.lit("MODIFY")).otherwise(F.lit("INSERT")),
        "sequence": F.lpad(change["SequenceNumber"], SEQUENCE_DIGITS, "0"),
        "stream_us": stream_us,
        "changed_us": F.when(lives, changed_us).otherwise(stream_us),
        "ttl_removal": _removed_by_ttl(F.col("r.userIdentity")),
    }
    return _with_event(
        rows,
        event,
        (change.isNull() | F.col("r.eventName").isNull(), "not a change record"),
        (change["Keys"]["taskId"]["S"].isNull(), OTHER_TABLE),
        (~was & ~lives, NO_TASK),
    )


def _id_in_key(key: Column) -> Column:
    """Return the id of a task; the keys of all queues except `default` have the queue in front of it."""
    return F.regexp_replace(key, r"^freshq:[^#]*#", "")


def epoch_us(time: Column, precision: Column) -> Column:
    """Return the stream's time of a change in microseconds.

    DynamoDB Streams write whole seconds, Kinesis milliseconds or microseconds. If a record does not state its
    precision, the magnitude decides.
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


def from_export(rows: DataFrame) -> DataFrame:
    """Return the canonical events of exported items, with `problem`, in place of `r`.

    Exports have no event ids, so the id is a digest of the state.
    """
    after = F.coalesce(F.col("r.NewImage"), F.col("r.Item"))
    before = F.col("r.OldImage")
    lives = is_task(after)
    image = F.when(lives, after).otherwise(before)
    task_id = _id_in_key(F.coalesce(F.col("r.Keys")["taskId"]["S"], _text(image, "taskId")))
    # Some exports write {"N": "1746..."} and some a number; both contain the digits.
    digits = F.regexp_extract(F.col("r.Metadata")["WriteTimestampMicros"], r"(\d{12,})", 1)
    updated_us = micros(_number(after, "taskUpdated", "double"))
    written_us = F.coalesce(digits.try_cast("bigint"), updated_us)
    event = from_image(image)
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
    return _with_event(
        rows,
        event,
        (nothing, "not an exported item"),
        (F.coalesce(task_id, _text(after, "taskId")).isNull(), OTHER_TABLE),
        (~lives & ~is_task(before), NO_TASK),
    )


@dataclass(frozen=True, slots=True)
class _Source:
    """The schema of a format's records, and their conversion."""

    schema: str
    canonical: Callable[[DataFrame], DataFrame]


_SOURCES: Final = {
    Format.LANDED: _Source(LANDED, from_landed),
    Format.STREAMS: _Source(STREAMS, from_streams),
    Format.KINESIS: _Source(STREAMS, from_streams),
    Format.EXPORT: _Source(EXPORT, from_export),
}


def canonical(lines: DataFrame, form: Format) -> DataFrame:
    """Return the canonical events of records, with `problem` and all columns of the records.

    Args:
        lines: Rows with `value`, the text of a record.
        form: Format of the records.
    """
    source = _SOURCES[form]
    parsed = F.from_json("value", source.schema, CORRUPT)  # `_broken` is the text of invalid JSON
    return source.canonical(lines.select(*lines.columns, parsed.alias("r")))
