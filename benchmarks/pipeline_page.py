"""Sections of docs/contributing/pipeline.md, and the ratios that the aims judge."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any, Final

from benchmarks.figures import read
from benchmarks.render import Sections, sections

if TYPE_CHECKING:
    from collections.abc import Mapping

# The load and the cluster to extrapolate to. EMR Serverless gives a worker 4 vCPU by default:
# https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/jobs-spark.html
LARGEST_EVENTS: Final = 2_000_000_000
NODES: Final = 100
CORES_A_NODE: Final = 4


def pipeline_page() -> Sections:
    """Return the sections of docs/contributing/pipeline.md."""
    return sections(
        "pipeline", read=read, time_ratio=time_ratio, tables_ratio=tables_ratio, scale=_scale(), NODES=NODES,
        CORES_A_NODE=CORES_A_NODE,
    )  # fmt: skip


def time_ratio(found: Mapping[str, Any], kind: str) -> float:
    """Return the pipeline's time, `warm` or `cold`, as a multiple of DuckDB's."""
    ours, theirs = found[f"spark_{kind}_seconds"], found["duckdb_seconds"]
    return float(median(ours) / median(theirs)) if kind == "warm" else float(ours / theirs)


def stream_growth(found: Mapping[str, Any]) -> float:
    """Return the cost of a batch after most hours of a stream, as a multiple of its cost after the fewest."""
    first, *_, last = map(median, found["stream_batch_processor_seconds"].values())
    return float(last / first)


def tables_ratio(found: Mapping[str, Any], kind: str) -> float:
    """Return the time after silver, `warm` or `cold`, as a multiple of DuckDB's whole time."""
    after_read = sum(
        seconds for name, seconds in found[f"spark_{kind}_parts_seconds"].items() if name != "read"
    )
    theirs = found["duckdb_seconds"]
    return float(after_read / (median(theirs) if kind == "warm" else theirs))


def _scale() -> dict[str, float]:
    """Return the costs of an event on a cluster, and of the largest load."""
    result = read("pipeline_scale")
    least, *_, most = result["figures"]["runs"]
    more = {name: most[name] - least[name] for name in ("events", "executor_processor_seconds", "shuffle_mb")}
    shuffle_bytes = more["shuffle_mb"] / more["events"] * 1e6
    whole_us = most["seconds"] * result["machine"]["cores"] / most["events"] * 1e6
    return {
        "executors_us": more["executor_processor_seconds"] / more["events"] * 1e6,
        "shuffle_bytes": shuffle_bytes,
        "whole_us": whole_us,
        "processor_hours": whole_us * LARGEST_EVENTS / 1e6 / 3600,
        "shuffle_gb": shuffle_bytes * LARGEST_EVENTS / 1e9,
    }
