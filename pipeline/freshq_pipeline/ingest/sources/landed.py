"""Landed events, as `freshq.aws.landing.landed_event` writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from freshq_pipeline.ingest.sources import problems
from freshq_pipeline.ingest.sources.json_lines import micros
from freshq_pipeline.schemas import LANDED_VERSION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def canonical(rows: DataFrame) -> DataFrame:
    """Return canonical events with `problem`, and all columns of the input but `r`.

    Args:
        rows: Has `r`, the parsed record.
    """
    field = {name: F.col(f"r.{name}") for name in rows.select("r.*").columns}
    times = {
        name: micros(field[f"{name.removesuffix('_us')}_ms"])
        for name in ("stream_us", "created_us", "deadline_us", "lease_until_us", "not_before_us")
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
        "priority": F.coalesce(field["priority"], F.lit(0)),
        "attempts": F.coalesce(field["attempts"], F.lit(0)),
        "lease": field["lease"],
        "worker": field["worker"],
        "shed_reason": field["shed_reason"],
        "ttl_removal": F.coalesce(field["ttl_removal"], F.lit(False)),
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
