"""Every schema in one place. Times inside the pipeline are whole microseconds, so that sums are exact.

Tables that people read have milliseconds and seconds, with a fraction.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

# The newest schema of landed events that this version understands.
LANDED_VERSION: Final = 1


class Format(StrEnum):
    """How the recorded changes are written."""

    LANDED = "landed"
    STREAMS = "streams"
    KINESIS = "kinesis"
    EXPORT = "export"


# One change of one task, whatever it was read from: the canonical event.
# SNAPSHOT is a state without the changes that led to it, as exports have it.
EVENT: Final[dict[str, str]] = {
    "event_id": "string",
    "task_id": "string",
    "change": "string",  # INSERT, MODIFY, REMOVE, SNAPSHOT
    "sequence": "string",  # padded with zeros, so that text order is number order; null from Kinesis
    "stream_us": "bigint",
    "changed_us": "bigint",  # the change's own time; of a removal the stream's
    "status": "string",  # after the change; of a removal before it
    "queue": "string",
    "task_group": "string",
    "priority": "int",
    "attempts": "int",
    "created_us": "bigint",
    "deadline_us": "bigint",
    "lease_until_us": "bigint",
    "not_before_us": "bigint",
    "lease": "string",
    "worker": "string",
    "shed_reason": "string",
    "ttl_removal": "boolean",
}

LANDED: Final = (
    "schema_version int, event_id string, sequence string, change string, stream_ms double, "
    "ttl_removal boolean, task_id string, queue string, status string, group string, shed_reason string, "
    "updated_ms double, created_ms double, deadline_ms double, lease_until_ms double, "
    "not_before_ms double, priority int, attempts int, lease string, worker string, _broken string"
)

_TEXT: Final = "struct<S:string>"
# Numbers arrive as text, and from some emulators as JSON numbers: text takes both.
_NUMBER: Final = "struct<N:string>"
_IMAGE: Final = (
    f"struct<taskId:{_TEXT},taskStatus:{_TEXT},taskQueue:{_TEXT},taskGroup:{_TEXT},shedReason:{_TEXT},"
    f"leaseToken:{_TEXT},taskCreated:{_NUMBER},taskUpdated:{_NUMBER},deadline:{_NUMBER},"
    f"leaseUntil:{_NUMBER},notBefore:{_NUMBER},priority:{_NUMBER},attempts:{_NUMBER}>"
)

# Both casings of the identity: GetRecords spells what Lambda and Pipes write in lower case.
STREAMS: Final = (
    "eventID string, eventName string, eventSourceARN string, tableName string, "
    "userIdentity struct<type:string,principalId:string,Type:string,PrincipalId:string>, "
    "dynamodb struct<ApproximateCreationDateTime:string,ApproximateCreationDateTimePrecision:string,"
    f"Keys:struct<taskId:{_TEXT}>,NewImage:{_IMAGE},OldImage:{_IMAGE},SequenceNumber:string>, "
    "_broken string"
)

EXPORT: Final = (
    f"Item {_IMAGE}, Metadata struct<WriteTimestampMicros:string>, Keys struct<taskId:{_TEXT}>, "
    f"NewImage {_IMAGE}, OldImage {_IMAGE}, _broken string"
)

OUTCOMES: Final = ("success", "failure", "cancelled", "shed", "pending", "taken")

# The published tables.
TABLES: Final[dict[str, dict[str, str]]] = {
    "tasks": {
        "task_id": "string",
        "life": "int",  # 1, and more if the id was used again after its task was deleted
        "queue": "string",
        "task_group": "string",
        "priority": "int",
        "created_ms": "double",
        "deadline_ms": "double",
        "first_taken_ms": "double",
        "finished_ms": "double",
        "removed_ms": "double",
        "attempts": "int",
        "wait_seconds": "double",
        "run_seconds": "double",
        "outcome": "string",
        "shed_reason": "string",
        "lease_losses": "int",
        "inverted": "boolean",
        "in_time": "boolean",
        "problems": "array<string>",
    },
    "minutes": {
        "minute_ms": "bigint",
        "task_group": "string",
        "offered": "bigint",
        "taken": "bigint",
        "succeeded": "bigint",
        "failed": "bigint",
        "cancelled": "bigint",
        "shed": "bigint",
        "retried": "bigint",
        "released": "bigint",
        "lease_losses": "bigint",
        "backlog": "bigint",
        "in_flight": "bigint",
        "wait_p50_seconds": "double",
        "wait_p90_seconds": "double",
        "wait_p99_seconds": "double",
        "wait_histogram": "array<struct<bucket:int,count:bigint>>",
        "oldest_pending_seconds": "double",
        "newest_pending_seconds": "double",
        "service_horizon_seconds": "double",
        "goodput": "bigint",
        "wasted_seconds": "double",
        "backlog_by_age": "array<struct<from_seconds:int,count:bigint>>",
    },
    "ledger": {
        "day": "string",  # of creation, UTC; null for the total
        "created": "bigint",
        **dict.fromkeys(OUTCOMES, "bigint"),
        "difference": "bigint",  # created less all fates
        "violations": "bigint",
    },
    "violations": {"task_id": "string", "life": "int", "day": "string", "problem": "string"},
    "groups": {
        "task_group": "string",
        "offered": "bigint",
        "succeeded": "bigint",
        "shed": "bigint",
        "offer_share": "double",
        "service_share": "double",
        "shed_share": "double",
        "jain_index": "double",  # of the successes, the same in every row
        "jain_index_of_demand": "double",  # of the successes for each offer
    },
    "workers": {
        "worker": "string",
        "claims": "bigint",
        "settles": "bigint",
        "lease_losses": "bigint",
    },
}


def ddl(columns: dict[str, str]) -> str:
    """Return a schema as Spark reads it."""
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())
