"""The figures within docs/pipeline.md, made from the results of the parts that measure the pipeline."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any, Final

from benchmarks.sections import filled, paragraph, table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PARTS: Final = {
    "read": "read: parse, check, write silver",
    "steps": "steps: shuffle by task, sort, drop copies, keep",
    "tasks": "tasks, with inversions",
    "minutes and others": "minutes and all other tables",
}
COMMAND: Final = "the pipeline, cold: the command, with Java's start and the report"
DUCKDB: Final = "DuckDB, all tables, made and written, two threads, 4 GB"
INVERSIONS: Final = "- of which inversions"
MILLION: Final = 1e6


def page(written: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page with its figures updated.

    Args:
        written: The page.
        results: By the name of its file, what each part wrote.
    """
    return filled(
        written,
        {
            ("pipeline", "two million"): _two_million(results["pipeline"]),
            ("pipeline", "growth"): _growth(results["pipeline"]["figures"]),
            ("pipeline_large", "twenty million"): _twenty_million(results.get("pipeline_large")),
            ("pipeline_nights", "nights"): _nights(results["pipeline_nights"]),
            ("pipeline_small", "small runs"): _small(results["pipeline_small"]),
        },
    )


def warm_ratio(found: Mapping[str, Any]) -> float:
    """Return how many times as long as DuckDB the pipeline takes, warm."""
    return float(median(found["spark_warm_seconds"]) / median(found["duckdb_seconds"]))


def cold_ratio(found: Mapping[str, Any]) -> float:
    """Return how many times as long as DuckDB the command takes, started cold."""
    return float(found["spark_cold_seconds"] / found["duckdb_seconds"])


def warm_tables_ratio(found: Mapping[str, Any]) -> float:
    """Return how many times as long as DuckDB takes for all the pipeline takes after silver, warm."""
    return _after_read(found["spark_warm_parts_seconds"]) / float(median(found["duckdb_seconds"]))


def cold_tables_ratio(found: Mapping[str, Any]) -> float:
    """Return the same of the command, started cold."""
    return _after_read(found["spark_cold_parts_seconds"]) / float(found["duckdb_seconds"])


def _after_read(parts_seconds: Mapping[str, float]) -> float:
    return sum(seconds for name, seconds in parts_seconds.items() if name != "read")


def _load(result: Mapping[str, Any]) -> str:
    machine = result["machine"]
    return (
        f"load average {machine['load_before']} before and {machine['load']} at the end, its own "
        "included, on "
        f"{machine['cores']} cores"
    )


def _head(found: Mapping[str, Any]) -> str:
    return (
        f"{found['events']:,} events, {found['json_mb']:,} MB of JSON in {found['gzip_mb']:,} MB of gzip, "
        f"{found['files']} files"
    )


def _each(numbers: Sequence[float]) -> str:
    return ", ".join(f"{number:.1f}" for number in numbers)


def _two_million(result: Mapping[str, Any]) -> Iterator[str]:
    found = result["figures"]
    parts = found["spark_warm_parts_seconds"]
    yield from table(
        [_head(found), "seconds"],
        [
            [
                f"the pipeline, warm, {len(found['spark_warm_seconds'])} runs",
                _each(found["spark_warm_seconds"]),
            ],
            *([f"- {title}, in the last one", f"{parts[name]:.1f}"] for name, title in PARTS.items()),
            [COMMAND, f"{found['spark_cold_seconds']:.1f}"],
            ["- the report alone", f"{found['spark_report_seconds']:.1f}"],
            [DUCKDB, _each(found["duckdb_seconds"])],
            [INVERSIONS, _each(found["duckdb_inversions_seconds"])],
            ["Polars, outcome and first claim of each task", f"{found['polars_tasks_only_seconds']:.1f}"],
        ],
    )
    yield ""
    yield from paragraph(
        f"Warm, the pipeline takes {warm_ratio(found):.1f} times as long as DuckDB ({_load(result)}); "
        f"making the tables from silver alone takes {warm_tables_ratio(found):.1f} times "
        "as long as all of DuckDB's work. "
        f"Of the tables of {found['tasks']:,} tasks, {found['rows_that_differ'] or 'no'} rows differ."
    )


def _growth(found: Mapping[str, Any]) -> list[str]:
    each = sorted(
        (int(events), seconds) for events, seconds in found["spark_warm_seconds_per_million"].items()
    )
    sizes, seconds = ([f"{pair[place]}" for pair in each] for place in range(2))
    sizes = [f"{int(size) / MILLION:.1f}" for size in sizes]
    return paragraph(
        f"Warm, in one session, {_listed(sizes)} million events took {_listed(seconds)} seconds per "
        "million. "
        f"Java used up to {found['spark_peak_rss_mib']:,} MiB. In the stage with the most work, the "
        "slowest task "
        f"took {found['spark_slowest_over_median_task']:.1f} times as long as the median, despite the "
        "group with "
        "half of all tasks."
    )


def _listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"


def _twenty_million(result: Mapping[str, Any] | None) -> Iterator[str]:
    if result is None:
        yield from paragraph(
            "No file has results of 20 million events yet. [Decision 38]"
            "(decisions/0038-speed-beside-duckdb.md) has the figures of an earlier version."
        )
        return
    found = result["figures"]
    parts = found["spark_cold_parts_seconds"]
    yield from table(
        [f"{_head(found)}, once", "seconds"],
        [
            [COMMAND, f"{found['spark_cold_seconds']:.0f}"],
            *([f"- {title}", f"{parts[name]:.0f}"] for name, title in PARTS.items()),
            [DUCKDB, f"{found['duckdb_seconds']:.0f}"],
            [INVERSIONS, f"{found['duckdb_inversions_seconds']:.0f}"],
        ],
    )
    yield ""
    yield from paragraph(
        f"Started cold, the pipeline takes {cold_ratio(found):.1f} times as long as DuckDB "
        f"({_load(result)}). "
        f"Of the tables of {found['tasks']:,} tasks, {found['rows_that_differ'] or 'no'} rows differ."
    )


def _nights(result: Mapping[str, Any]) -> Iterator[str]:
    found = result["figures"]
    whole, night = found["run_over_62_days"], found["night_of_day_62"]
    rows = [
        _night_row(f"a run over {whole['days']} days, {whole['events']:,} events", whole),
        _night_row("the night of its last day", night),
    ]
    rows += [
        _night_row(f"a night after {days} days, {each['events'] // each['days']:,} events a day", each)
        for days, each in found["nights_after_days"].items()
    ]
    head = ["", "days computed", "jobs of Spark", "files of tables", "processor seconds", "seconds"]
    yield from table(head, rows)
    yield ""
    ratios = found["night_over_run"]
    turns = f"{found['turns']} turn{'s' * (found['turns'] > 1)}"
    yield from paragraph(
        f"So at {whole['events']:,} events a night costs {night_share(found):.0%} of the processor time "
        f"of a run over all days, and takes {median(ratios['seconds']):.0%} of its time ({turns}; "
        f"{_load(result)}: counts and processor time say more than times)."
    )


def night_share(found: Mapping[str, Any]) -> float:
    """Return the processor time of a night as a part of that of a run over all days."""
    return float(median(found["night_over_run"]["processor_seconds"]))


def _night_row(title: str, each: Mapping[str, Any]) -> list[str]:
    counts = [str(each.get(name, "")) for name in ("days_computed", "jobs", "files_of_tables_written")]
    return [title, *counts, f"{each['processor_seconds']:.1f}", f"{each['seconds']:.0f}"]


def _small(result: Mapping[str, Any]) -> Iterator[str]:
    found = result["figures"]
    first, second = found["first_runs"]
    rows = {
        "the bare script, as Spark is by default": found["bare_script"],
        "`freshq-pipeline run`, from command to report": found["freshq_pipeline_run"],
        "the first run ever, without an archive of classes": first,
        "the second run, which makes the archive": second,
    }
    yield from table(
        [f"{found['events']:,} events in {found['files']} files", "seconds", "processor seconds"],
        [
            [title, *(f"{each[name]:.1f}" for name in ("seconds", "processor_seconds"))]
            for title, each in rows.items()
        ],
    )
    yield ""
    times = {
        name: f"{median(each):.2f} ({min(each):.2f} to {max(each):.2f})"
        for name, each in found["ratios"].items()
    }
    yield from paragraph(
        f"The first two rows are medians of {found['turns']} turns. The command takes "
        f"{times['seconds']} times as "
        f"long as the script within a turn, and {times['processor_seconds']} times its processor "
        "time: medians, "
        f"and the range ({_load(result)})."
    )
