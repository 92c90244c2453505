"""Columns of a canonical event from the image of an item."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from freshq_pipeline.ingest.sources.json_lines import micros

_TIMES: Final = {
    "created_us": "taskCreated",
    "put_us": "putAt",
    "deadline_us": "deadline",
    "lease_until_us": "leaseUntil",
    "not_before_us": "notBefore",
}
LEASE_DIGITS: Final = 16
# The name of every attribute of a task, as `freshq.stores.dynamodb.items.encode` writes it.
OWN: Final = (
    "attempts", "deadAt", "deadline", "dueAt", "dueShard", "error", "firstClaimAt", "firstDue", "lastClaimAt",
    "leaseToken", "leaseUntil", "notBefore", "payload", "pendingShard", "priority", "progressFraction",
    "progressStep", "putAt", "putToken", "requestToken", "result", "shedReason", "taskCreated", "taskGroup",
    "taskId", "taskKind", "taskQueue", "taskStatus", "taskUpdated", "traceContext", "ttl",
)  # fmt: skip


def text(image: Column, attribute: str) -> Column:
    """Return a string attribute."""
    return image[attribute]["S"]


def number(image: Column, attribute: str, kind: str) -> Column:
    """Return a number attribute, null if it is not a number."""
    return image[attribute]["N"].try_cast(kind)


def is_task(image: Column) -> Column:
    """Return whether an image is of a task; only tasks have a status."""
    return F.coalesce(text(image, "taskStatus").isNotNull(), F.lit(False))


def from_image(image: Column) -> dict[str, Column]:
    """Return the columns by name, except the ids, the change and its time."""
    token = text(image, "leaseToken")
    names_worker = token.contains(":")
    return {name: micros(number(image, attribute, "double")) for name, attribute in _TIMES.items()} | {
        "status": text(image, "taskStatus"),
        "queue": text(image, "taskQueue"),
        "task_group": text(image, "taskGroup"),
        "kind": text(image, "taskKind"),
        "shed_reason": text(image, "shedReason"),
        "priority": F.coalesce(number(image, "priority", "int"), F.lit(0)),
        "attempts": F.coalesce(number(image, "attempts", "int"), F.lit(0)),
        # A digest, as in landed events: who has the token can settle the task.
        "lease": F.substring(F.sha2(token, 256), 1, LEASE_DIGITS),
        "unknown_fields": _unknown_names(image),
        "worker": F.when(names_worker, F.regexp_extract(token, "^(.+):[^:]*$", 1)),
    }


def _unknown_names(image: Column) -> Column:
    """Return the names of the other attributes, each without its value; null if there are none.

    The application's own attributes may be secret, so their values are not kept.
    """
    names = F.array_except(F.map_keys(image), F.array(*map(F.lit, OWN)))
    nothing = F.array_repeat(F.lit(None).cast("string"), F.size(names))
    return F.when(F.size(names) > 0, F.map_from_arrays(names, nothing))
