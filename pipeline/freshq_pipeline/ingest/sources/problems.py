"""Reasons why a record is unusable."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from freshq_pipeline.schemas import EVENT

# Not an error: the table also holds the queue's own records, and may hold other items.
NO_TASK: Final = "no task"
BROKEN: Final = "not a JSON record"
FUTURE: Final = "future schema version"
OTHER_TABLE: Final = "record of another table"
STATUSES: Final = ("PENDING", "TAKEN", "SUCCESS", "FAILURE", "CANCELLED", "SHED")
CHANGES: Final = ("INSERT", "MODIFY", "REMOVE", "SNAPSHOT")
# A worker's clock that is further ahead of the stream's is wrong, and would move the end of the recording:
# whatever waits would count as shed.
MAX_AHEAD_US: Final = 86_400_000_000
AHEAD: Final = "changed more than a day after it was recorded"
# A clock that was never set may begin in 1970. A task that waited since then would have a row of `minutes`
# for each minute. A shorter time may be true: an application may change a record long after its task ended.
MAX_BEHIND_US: Final = 10 * 365 * 86_400_000_000
BEHIND: Final = "changed more than ten years before it was recorded"
REQUIRED: Final = ("event_id", "task_id", "changed_us", "stream_us", "created_us")


def first_problem(*conditions: tuple[Column, str]) -> Column:
    """Return the text of the first true condition, null if all are false."""
    return F.coalesce(*(F.when(condition, F.lit(text)) for condition, text in conditions))


def unusable(event: dict[str, Column]) -> list[tuple[Column, str]]:
    """Return the conditions under which a canonical event is unusable, each with its reason.

    Args:
        event: Columns of the event by name.
    """
    missing = [(event[name].isNull(), f"no {name.removesuffix('_us')}") for name in REQUIRED]
    return [
        *missing,
        (event["changed_us"] > event["stream_us"] + MAX_AHEAD_US, AHEAD),
        (event["changed_us"] < event["stream_us"] - MAX_BEHIND_US, BEHIND),
        (~F.coalesce(event["status"].isin(*STATUSES), F.lit(False)), "unknown status"),
        (~F.coalesce(event["change"].isin(*CHANGES), F.lit(False)), "unknown change"),
    ]


def in_order(event: dict[str, Column]) -> list[Column]:
    """Return the columns of a canonical event, in the types and order of the schema."""
    return [event[name].cast(kind).alias(name) for name, kind in EVENT.items()]
