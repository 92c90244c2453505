"""All schemas. Times are whole microseconds inside the pipeline, and values whole millionths: sums are exact.

The published tables have fractional milliseconds, seconds and values.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

# The newest schema version of landed events that this version reads.
LANDED_VERSION: Final = 1


class Format(StrEnum):
    """Format of the recorded changes."""

    LANDED = "landed"
    STREAMS = "streams"
    KINESIS = "kinesis"
    EXPORT = "export"


# The canonical event: one change of one task, independent of the format.
# SNAPSHOT is a state without the changes that led to it, from an export.
EVENT: Final[dict[str, str]] = {
    "event_id": "string",
    "task_id": "string",
    "change": "string",  # INSERT, MODIFY, REMOVE, SNAPSHOT
    "sequence": "string",  # zero-padded, so that text order is numeric order; null from Kinesis
    "stream_us": "bigint",
    "changed_us": "bigint",  # time of the change; for removals the stream's time
    "status": "string",  # after the change; for removals before it
    "queue": "string",
    "task_group": "string",
    "kind": "string",
    "parent_id": "string",
    "root_id": "string",
    "value_millionths": "bigint",  # null if the task was put without a value
    "decay": "string",  # null or step: the value does not fall
    "priority": "int",
    "attempts": "int",
    "created_us": "bigint",  # for a delayed put, when it is due
    "put_us": "bigint",
    "deadline_us": "bigint",
    "lease_until_us": "bigint",
    "not_before_us": "bigint",
    "lease": "string",
    "worker": "string",
    "shed_reason": "string",
    "ttl_removal": "boolean",
    "unknown_fields": "map<string,string>",  # values as JSON, null in raw formats; null if there are none
}

LANDED: Final = (
    "schema_version int, event_id string, sequence string, change string, stream_ms double, "
    "ttl_removal boolean, task_id string, queue string, status string, group string, kind string, "
    "parent string, root string, value double, decay string, cost double, "
    "shed_reason string, updated_ms double, created_ms double, put_ms double, deadline_ms double, "
    "lease_until_ms double, not_before_ms double, priority int, attempts int, lease string, worker string, "
    "expires_s bigint, _broken string"
)

_TEXT: Final = "struct<S:string>"
# A map, because the names of other attributes are counted. Numbers are text, but JSON numbers from some
# emulators; a string column reads both.
_IMAGE: Final = "map<string,struct<S:string,N:string>>"

# Both casings of the identity: GetRecords capitalizes what Lambda and Pipes write in lower case.
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

# The value that was put, and what became of it: `decayed` while a task waited that was done in time.
VALUES: Final = (
    "value_put", "value_delivered", "value_decayed", "value_late", "value_failure", "value_shed",
    "value_cancelled", "value_open",
)  # fmt: skip
OUTCOMES: Final = ("success", "failure", "cancelled", "shed", "pending", "taken")

# The percentiles of waits by name, as shares of the waits.
WAIT_PERCENTILES: Final = {"wait_p50_seconds": 0.5, "wait_p90_seconds": 0.9, "wait_p99_seconds": 0.99}

# The published tables.
TABLES: Final[dict[str, dict[str, str]]] = {
    "tasks": {
        "task_id": "string",
        "life": "int",  # 1, or more if the id was used again
        "queue": "string",
        "task_group": "string",
        "kind": "string",
        "parent_id": "string",
        "root_id": "string",  # null unless a run put the task with `parent`
        "priority": "int",
        "value": "double",  # null if the task was put without a value; then it counts as 1
        "decay": "string",
        "put_ms": "double",
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
        "value_delivered": "double",  # null while the task is not over
        "problems": "array<string>",
    },
    "minutes": {
        "minute_ms": "bigint",
        "queue": "string",
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
    "chains": {
        "queue": "string",
        "root_id": "string",
        "life": "int",  # of the root; null if the queue has no record of it
        "created_ms": "double",  # of its first task
        "deadline_ms": "double",  # of the root
        "ended_ms": "double",  # null while a task is not over
        "hops": "int",
        "tasks": "bigint",
        "wait_seconds": "double",
        "run_seconds": "double",
        "outcome": "string",  # of OUTCOMES, without taken
        "shed_hop": "int",  # the first hop of which a task was shed
        "in_time": "boolean",
        "by_hop": "array<struct<hop:int,tasks:bigint,wait_seconds:double,run_seconds:double,shed:bigint>>",
    },
    "ledger": {
        "queue": "string",
        "day": "string",  # of creation, UTC; null for the total of the queue
        "created": "bigint",
        **dict.fromkeys(OUTCOMES, "bigint"),
        "difference": "bigint",  # created minus all fates
        "violations": "bigint",
        "valued": "bigint",  # tasks put with a value or a decay
        **dict.fromkeys(VALUES, "double"),
        "value_difference": "double",  # the value put minus what became of it
    },
    "violations": {
        "task_id": "string",
        "life": "int",
        "queue": "string",
        "day": "string",
        "problem": "string",
    },
    "groups": {
        "queue": "string",
        "task_group": "string",
        "offered": "bigint",
        "succeeded": "bigint",
        "in_time": "bigint",
        "shed": "bigint",
        "run_seconds": "double",
        "offer_share": "double",
        "service_share": "double",
        "time_share": "double",  # of the runs
        "shed_share": "double",
        "jain_index": "double",  # of the successes; the same in every row of a queue
        "jain_index_of_demand": "double",  # of the successes per offer; also the same in every row
    },
    "kinds": {
        "queue": "string",
        "kind": "string",
        "offered": "bigint",
        "in_time": "bigint",
        "shed": "bigint",
        "value_offered": "double",
        "value_delivered": "double",
        "value_lost": "double",  # decayed, late, failed or shed
        "value_share": "double",  # delivered of what was offered
    },
    "workers": {
        "queue": "string",
        "worker": "string",
        "claims": "bigint",
        "settles": "bigint",
        "lease_losses": "bigint",
    },
}

# Tables with a folder for each day and queue. A task belongs to the day of its creation, a chain to the day
# of its first task.
BY_DAY: Final = ("tasks", "minutes", "chains")

# Totals of each day, from which totals over all days are computed. A row has only the columns of its `kind`.
TOTALS: Final[dict[str, str]] = {
    "kind": "string",  # fates, kinds, waits, workers, violations, open
    "day": "string",
    "queue": "string",
    "task_group": "string",
    "task_kind": "string",
    "tasks": "bigint",
    "created": "bigint",
    **dict.fromkeys(OUTCOMES, "bigint"),
    "in_time": "bigint",
    "run_us": "bigint",
    "violations": "bigint",
    "inversions": "bigint",
    "valued": "bigint",
    **dict.fromkeys(VALUES, "decimal(38,0)"),  # millionths, whose sums may exceed 64 bits
    "worker": "string",
    "claims": "bigint",
    "settles": "bigint",
    "lease_losses": "bigint",
    "class": "int",  # of waits, with their number, the shortest and the longest
    "count": "bigint",
    "shortest_us": "bigint",
    "longest_us": "bigint",
    "task_id": "string",
    "life": "int",  # of violations
    "problem": "string",
    "created_us": "bigint",  # of violations and open tasks; of workers the start of the hour
    "status": "string",  # of open tasks: their last steps
    "priority": "int",
    "changed_us": "bigint",
    "not_before_us": "bigint",
}


def ddl(columns: dict[str, str]) -> str:
    """Return a schema in Spark's DDL."""
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())
