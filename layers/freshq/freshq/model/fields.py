"""The stored fields of a task: their names in each store and in events, and who may change them.

Rows, items, histories and the events of the archive are derived from this table. A stored field of `Task`
needs a line here, and its column in `freshq.stores.sql.schema` with a migration.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, NamedTuple

# The first instant of the year 9999, which stores keep as the deadline of a task that is never stale.
NEVER: Final = 253_370_764_800.0
# The first instant beyond the range of `datetime`: the year 10,000.
MAX_EPOCH_SECONDS: Final = 253_402_300_800.0
# Name of a queue that is opened without a name.
DEFAULT_NAME: Final = "default"
# Stores keep their own items under ids with this prefix.
RESERVED_ID_PREFIX: Final = "freshq#"
# On DynamoDB, the key of a task of a queue other than `default` is this, the name of the queue, # and the id.
# Another prefix, because an IAM policy may allow all tasks, and none of freshq's own items.
QUEUE_KEY_PREFIX: Final = "freshq:"
# A stored task remembers its put, and the puts of the tasks that it replaced, up to this many.
REMEMBERED_PUTS: Final = 3
# DynamoDB's limit for a hash key.
MAX_ID_BYTES: Final = 1024
# Between the token of a claim and the token of the put that the task has as a successor, 32 digits.
SUCCESSOR_MARK: Final = "+"
MARK_CHARS: Final = 33


class FieldType(IntEnum):
    """How the value of a field is stored.

    TEXT and WHOLE are stored unchanged. TIME is a time in seconds: SQL stores whole microseconds,
    DynamoDB milliseconds with microseconds as the fraction. REAL is a number: SQL stores whole millionths.
    JSON is stored as its text.
    """

    TEXT = 0
    WHOLE = 1
    REAL = 2
    TIME = 3
    JSON = 4


class SetBy(IntEnum):
    """Writers that may set a field: only the put, any change but the end of a held task, or any change."""

    PUT = 0
    CHANGE = 1
    END = 2


class StoredField(NamedTuple):
    """One stored field of a task.

    Attributes:
        field: Its name in `Task`.
        column: Its column in SQL.
        name: Its attribute in DynamoDB.
        kind: How its value is stored.
        set_by: Writers that may change it.
        event: Its name in events; empty if it is not in events.
        required: Whether it is set on every task.
    """

    field: str
    column: str
    name: str
    kind: FieldType
    set_by: SetBy
    event: str = ""
    required: bool = False

    @property
    def source(self) -> str:
        """The attribute of `Task` that has the value to store."""
        return _SOURCES.get(self.field, self.field)


_TEXT, _WHOLE, _REAL, _TIME, _JSON = FieldType
_PUT, _CHANGE, _END = SetBy

# The fields that are stored in another form.
_SOURCES: Final = {"deadline": "stale_at", "payload": "payload_text", "result": "result_text"}

FIELDS: Final = (
    StoredField("task_id", "task_id", "taskId", _TEXT, _PUT, "task_id", required=True),
    StoredField("queue", "queue", "taskQueue", _TEXT, _PUT, "queue", required=True),
    StoredField("status", "status", "taskStatus", _TEXT, _END, "status", required=True),
    StoredField("created", "created_us", "taskCreated", _TIME, _CHANGE, "created_ms", required=True),
    StoredField("updated", "updated_us", "taskUpdated", _TIME, _END, "updated_ms", required=True),
    StoredField("deadline", "deadline_us", "deadline", _TIME, _CHANGE, "deadline_ms", required=True),
    StoredField("expires", "expires", "ttl", _WHOLE, _END, "expires_s"),
    StoredField("request_token", "request_token", "requestToken", _TEXT, _END, required=True),
    StoredField("payload", "payload", "payload", _JSON, _PUT),
    StoredField("priority", "priority", "priority", _WHOLE, _CHANGE, "priority", required=True),
    StoredField("group", "task_group", "taskGroup", _TEXT, _PUT, "group"),
    StoredField("kind", "kind", "taskKind", _TEXT, _PUT, "kind"),
    StoredField("attempts", "attempts", "attempts", _WHOLE, _CHANGE, "attempts", required=True),
    StoredField("not_before", "not_before_us", "notBefore", _TIME, _CHANGE, "not_before_ms"),
    StoredField("lease_token", "lease_token", "leaseToken", _TEXT, _CHANGE),
    StoredField("lease_until", "lease_until_us", "leaseUntil", _TIME, _CHANGE, "lease_until_ms"),
    StoredField("error", "error", "error", _TEXT, _END),
    StoredField("result", "result", "result", _JSON, _END),
    StoredField("shed_reason", "shed_reason", "shedReason", _TEXT, _CHANGE, "shed_reason"),
    StoredField("put_at", "put_us", "putAt", _TIME, _PUT, "put_ms"),
    StoredField("first_due", "first_due_us", "firstDue", _TIME, _PUT),
    StoredField("first_claim_at", "first_claim_us", "firstClaimAt", _TIME, _CHANGE),
    StoredField("last_claim_at", "last_claim_us", "lastClaimAt", _TIME, _CHANGE),
    StoredField("dead_at", "dead_us", "deadAt", _TIME, _END),
    StoredField("progress_fraction", "progress_ppm", "progressFraction", _REAL, _END),
    StoredField("progress_step", "progress_step", "progressStep", _TEXT, _END),
    StoredField("trace_context", "trace_context", "traceContext", _TEXT, _PUT),
    StoredField("parent_id", "parent_id", "parentId", _TEXT, _PUT, "parent"),
    StoredField("root_id", "root_id", "rootId", _TEXT, _PUT, "root"),
    StoredField("value", "value_millionths", "taskValue", _REAL, _PUT, "value"),
    StoredField("decay", "decay", "decay", _TEXT, _PUT, "decay"),
    StoredField("cost", "cost_millionths", "taskCost", _REAL, _END, "cost"),
    StoredField("line_class", "line_class", "lineClass", _TEXT, _PUT),
    StoredField("attempt_record", "attempt_record", "attemptRecord", _TEXT, _END),
    StoredField("successor_record", "successor_record", "successorRecord", _TEXT, _PUT),
)
# Fields of a task that its events include, besides its holder.
EVENT_FIELDS: Final = tuple(field for field in FIELDS if field.event)


def plain_token(lease_token: str | None) -> str | None:
    """Return the token by which a claim holds a task: without the mark of a successor."""
    if lease_token is None or lease_token[-MARK_CHARS : 1 - MARK_CHARS] != SUCCESSOR_MARK:
        return lease_token
    return lease_token[:-MARK_CHARS]


def without_missing(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event without the fields that its task lacks; a task that is never stale has no deadline."""
    if (event.get("deadline_ms") or 0) >= 1000 * NEVER:
        event["deadline_ms"] = None
    return {name: value for name, value in event.items() if value is not None}
