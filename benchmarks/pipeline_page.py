"""Sections of docs/contributing/pipeline.md, and the ratios that the aims judge."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any, Final

from benchmarks.figures import read
from benchmarks.render import Block, Prose, Sections, Table, columns, spread

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PARTS: Final = {
    "read": "read: parse, check, write silver",
    "steps": "steps: shuffle by task, sort, drop copies, keep",
    "tasks": "tasks, with inversions",
    "minutes and others": "minutes and all other tables",
}
COMMAND: Final = "the pipeline, cold: the command, with Java's start and the report"
DUCKDB: Final = "DuckDB, all tables, made and written, two threads, 4 GB"
INVERSIONS: Final = "- of which inversions"


def pipeline_page() -> Sections:
    """Return the sections of docs/contributing/pipeline.md."""
    return {
        ("pipeline", "two million"): _two_million(read("pipeline")),
        ("pipeline", "growth"): [_growth(read("pipeline")["figures"])],
        ("pipeline_large", "twenty million"): _twenty_million(read("pipeline_large")),
        ("pipeline_nights", "nights"): _nights(read("pipeline_nights")),
        ("pipeline_scale", "scale"): _scale(read("pipeline_scale")),
        ("pipeline_small", "small runs"): _small(read("pipeline_small")),
    }


def time_ratio(found: Mapping[str, Any], kind: str) -> float:
    """Return the pipeline's time, `warm` or `cold`, as a multiple of DuckDB's."""
    ours, theirs = found[f"spark_{kind}_seconds"], found["duckdb_seconds"]
    return float(median(ours) / median(theirs)) if kind == "warm" else float(ours / theirs)


def tables_ratio(found: Mapping[str, Any], kind: str) -> float:
    """Return the time after silver, `warm` or `cold`, as a multiple of DuckDB's whole time."""
    after_read = sum(
        seconds for name, seconds in found[f"spark_{kind}_parts_seconds"].items() if name != "read"
    )
    theirs = found["duckdb_seconds"]
    return float(after_read / (median(theirs) if kind == "warm" else theirs))


def _load(result: Mapping[str, Any]) -> str:
    return (
        "load average {load_before} before and {load} at the end, its own included, on {cores} cores".format(
            **result["machine"]
        )
    )


def _head(found: Mapping[str, Any]) -> str:
    text = "{events:,} events, {json_mb:,} MB of JSON in {gzip_mb:,} MB of gzip, {files} files"
    return text.format(**found)


def _differ(found: Mapping[str, Any]) -> str:
    return f"Of the tables of {found['tasks']:,} tasks, {found['rows_that_differ'] or 'no'} rows differ."


def _parts(found: Mapping[str, Any], kind: str, form: str) -> list[list[str]]:
    """Return the rows of the pipeline's parts, `warm` or `cold`."""
    seconds = found[f"spark_{kind}_parts_seconds"]
    return [[f"- {title}", f"{seconds[name]:{form}}"] for name, title in PARTS.items()]


def _two_million(result: Mapping[str, Any]) -> list[Block]:
    found = result["figures"]
    each = "{0:.1f}, {1:.1f}".format
    rows = [
        ["the pipeline, warm, two runs (parts: the last run)", each(*found["spark_warm_seconds"])],
        *_parts(found, "warm", ".1f"),
        [COMMAND, f"{found['spark_cold_seconds']:.1f}"],
        ["- the report alone", f"{found['spark_report_seconds']:.1f}"],
        [DUCKDB, each(*found["duckdb_seconds"])],
        [INVERSIONS, each(*found["duckdb_inversions_seconds"])],
    ]
    text = f"""Warm, the pipeline takes {time_ratio(found, "warm"):.1f} times as long as DuckDB
    ({_load(result)});
        making the tables from silver alone takes {tables_ratio(found, "warm"):.1f} times as long as all of
        DuckDB's work. {_differ(found)}"""
    return [Table([_head(found), "seconds"], rows), Prose(text)]


def _growth(found: Mapping[str, Any]) -> Prose:
    each = sorted((int(events), rate) for events, rate in found["spark_warm_seconds_per_million"].items())
    sizes, seconds = [f"{size / 1e6:.1f}" for size, _ in each], [f"{rate}" for _, rate in each]
    return Prose(
        f"""Warm, in one session, {_listed(sizes)} million events took {_listed(seconds)} seconds per million.
        Java used up to {found["spark_peak_rss_mib"]:,} MiB. In the stage with the most work, the slowest task
        took {found["spark_slowest_over_median_task"]:.1f} times as long as the median, despite the group with
        half of all tasks."""
    )


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _twenty_million(result: Mapping[str, Any]) -> list[Block]:
    found = result["figures"]
    rows = [
        [COMMAND, f"{found['spark_cold_seconds']:.0f}"],
        *_parts(found, "cold", ".0f"),
        [DUCKDB, f"{found['duckdb_seconds']:.0f}"],
        [INVERSIONS, f"{found['duckdb_inversions_seconds']:.0f}"],
    ]
    text = f"""Started cold, the pipeline takes {time_ratio(found, "cold"):.1f} times as long as DuckDB
        ({_load(result)}). {_differ(found)}"""
    return [Table([f"{_head(found)}, once", "seconds"], rows), Prose(text)]


def _nights(result: Mapping[str, Any]) -> list[Block]:
    found = result["figures"]
    whole, ratios = found["run_over_62_days"], found["night_over_run"]
    runs = {
        f"a run over {whole['days']} days, {whole['events']:,} events": whole,
        "the night of its last day": found["night_of_day_62"],
    } | {
        f"a night after {days} days, {each['events'] // each['days']:,} events a day": each
        for days, each in found["nights_after_days"].items()
    }
    table = columns(
        ({"title": title, **each} for title, each in runs.items()),
        {
            "": "{title}",
            "days computed": "{days_computed}",
            "files of tables": "{files_of_tables_written}",
            "processor seconds": "{processor_seconds:.1f}",
            "seconds": "{seconds:.0f}",
        },
    )
    text = f"""At {whole["events"]:,} events a night costs {median(ratios["processor_seconds"]):.0%} of the
        processor time of a run over all days, and takes {median(ratios["seconds"]):.0%} of its time
        ({found["turns"]} turns; {_load(result)}: counts and processor time say more than times)."""
    return [table, Prose(text)]


# The load and the cluster to extrapolate to. EMR Serverless gives a worker 4 vCPU by default:
# https://docs.aws.amazon.com/emr/latest/EMR-Serverless-UserGuide/jobs-spark.html
LARGEST_EVENTS: Final = 2_000_000_000
NODES: Final = 100
CORES_A_NODE: Final = 4


def _scale(result: Mapping[str, Any]) -> list[Block]:
    runs = result["figures"]["runs"]
    table = columns(
        runs,
        {
            "events": "{events:,}",
            "days": "{days}",
            "stages": "{stages}",
            "executors' Java, processor seconds": "{executor_processor_seconds:.0f}",
            "shuffle, MB": "{shuffle_mb:.0f}",
            "spill, MB": "{spill_mb:.0f}",
            "driver's Java, MiB": "{driver_java_mib:,}",
            "driver's Python, MiB": "{driver_python_mib:,}",
            "files in folders by day": "{files_by_day} in {folders_by_day}",
        },
    )
    least, most = runs[0], runs[-1]
    events = most["events"] - least["events"]
    each_us = (most["executor_processor_seconds"] - least["executor_processor_seconds"]) / events * 1e6
    each_bytes = (most["shuffle_mb"] - least["shuffle_mb"]) / events * 1e6
    large = read("pipeline_large")
    whole_us = 1e6 * large["figures"]["spark_cold_seconds"] / large["figures"]["events"]
    whole_us *= large["machine"]["cores"]
    seconds = (each_us + whole_us) * LARGEST_EVENTS / 1e6
    hours = most["seconds"] * 1e8 / most["events"] / 3600
    text = f"""From the first to the last row, an event costs {each_us:.0f} microseconds of Java on the
        executors and {each_bytes:.0f} bytes of shuffle. Python's workers, which read files and compare
        claims, are not in it; the run over 20 million events above took {whole_us:.0f} microseconds an
        event on all cores, everything included. If an event costs both together, 2 billion take
        {seconds / 3600:.0f} processor hours, or {seconds / NODES / CORES_A_NODE / 60:.0f} minutes on
        {NODES} nodes of {CORES_A_NODE} cores (a worker of EMR Serverless by default), and shuffle
        {each_bytes * LARGEST_EVENTS / 1e9:.0f} GB. This assumes equal skew and leaves out the network
        and the bucket, which were not measured ({_load(result)}). 100 million events were not run: at
        the rate of the last row, and with as much load, they would take {hours:.0f} hours here."""
    return [table, Prose(text)]


def _small(result: Mapping[str, Any]) -> list[Block]:
    found = result["figures"]
    first, second = found["first_runs"]
    rows = {
        "the bare script, as Spark is by default": found["bare_script"],
        "`freshq-pipeline run`, from command to report": found["freshq_pipeline_run"],
        "the first run ever, without an archive of classes": first,
        "the second run, which makes the archive": second,
    }
    table = columns(
        rows.items(),
        {
            f"{found['events']:,} events in {found['files']} files": "{0[0]}",
            "seconds": "{0[1][seconds]:.1f}",
            "processor seconds": "{0[1][processor_seconds]:.1f}",
        },
    )
    seconds, busy = (spread(found["ratios"][name], ".2f") for name in ("seconds", "processor_seconds"))
    text = f"""The first two rows are medians of {found["turns"]} turns. The command takes {seconds} times as
        long as the script within a turn, and {busy} times its processor time: medians, and the range
        ({_load(result)})."""
    return [table, Prose(text)]
