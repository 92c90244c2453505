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
    least, *_, most = read("pipeline_scale")["figures"]["runs"]
    large = read("pipeline_large")
    events = most["events"] - least["events"]
    executors_us = (most["executor_processor_seconds"] - least["executor_processor_seconds"]) / events * 1e6
    shuffle_bytes = (most["shuffle_mb"] - least["shuffle_mb"]) / events * 1e6
    whole_us = 1e6 * large["figures"]["spark_cold_seconds"] / large["figures"]["events"]
    whole_us *= large["machine"]["cores"]
    return {
        "executors_us": executors_us,
        "shuffle_bytes": shuffle_bytes,
        "whole_us": whole_us,
        "processor_hours": (executors_us + whole_us) * LARGEST_EVENTS / 1e6 / 3600,
        "shuffle_gb": shuffle_bytes * LARGEST_EVENTS / 1e9,
        # Of 100 million events on this machine.
        "hours": most["seconds"] * 1e8 / most["events"] / 3600,
    }
