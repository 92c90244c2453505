"""Landed events, as `freshq.aws.landing.landed_event` writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from freshq_pipeline.ingest.sources import problems
from freshq_pipeline.ingest.sources.json_lines import micros, one_of
from freshq_pipeline.schemas import LANDED, LANDED_VERSION

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


# The name of every field of a landed event.
_KNOWN: Final = tuple(column.split()[0] for column in LANDED.split(", "))
# A name that is not known, after which the value comes. It also matches names within the values of others,
# but never a part of a string: the quotation marks in it are escaped.
UNKNOWN_NAME: Final = rf'[{{,]\s*"(?!{one_of(_KNOWN)}"\s*:)[^"]*"\s*:'


def _unknown_fields() -> Column:
    """Return the fields of the record `value` that are not known, null if there are none."""
    every = F.from_json("value", "map<string,string>")
    unknown = F.map_filter(every, lambda name, _value: ~name.isin(*_KNOWN))
    return F.when(F.size(unknown) > 0, unknown)


def canonical(rows: DataFrame) -> DataFrame:
    """Return canonical events with `problem`, and all columns of the input but `r`.

    Args:
        rows: Has `r`, the parsed record, and also `value`, its text, if it may have unknown fields.
    """
    field = {name: F.col(f"r.{name}") for name in rows.select("r.*").columns}
    times = {
        name: micros(field[f"{name.removesuffix('_us')}_ms"])
        for name in ("stream_us", "created_us", "put_us", "deadline_us", "lease_until_us", "not_before_us")
    }
    removed = field["change"] == "REMOVE"
    event = times | {
        "event_id": field["event_id"],
        "task_id": field["task_id"],
        "change": field["change"],
        "sequence": F.lpad(field["sequence"], 40, "0"),
        "changed_us": F.when(removed, times["stream_us"]).otherwise(micros(field["updated_ms"])),
        "status": field["status"],
        "queue": field["queue"],
        "task_group": field["group"],
        "kind": field["kind"],
        "priority": F.coalesce(field["priority"], F.lit(0)),
        "attempts": F.coalesce(field["attempts"], F.lit(0)),
        "lease": field["lease"],
        "worker": field["worker"],
        "shed_reason": field["shed_reason"],
        "ttl_removal": F.coalesce(field["ttl_removal"], F.lit(False)),
        "unknown_fields": _unknown_fields() if "value" in rows.columns else F.lit(None),
    }
    version = field["schema_version"]
    problem = problems.first_problem(
        (field["_broken"].isNotNull(), problems.BROKEN),
        (version.isNull(), "no schema_version"),
        (version > LANDED_VERSION, problems.FUTURE),
        *problems.unusable(event),
    )
    kept = (name for name in rows.columns if name != "r")
    return rows.select(*kept, *problems.in_order(event), problem.alias("problem"))
