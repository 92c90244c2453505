"""The page docs/scale.md: what 10, 1,000 and 100,000 tasks a second need, from measured constants and quotas.

Nothing is measured here, so a test can hold the page to the files.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.costs_page import LIFE
from benchmarks.dollars import PRICES, WINDOW_SECONDS, bill
from benchmarks.figures import figures_of

if TYPE_CHECKING:
    from collections.abc import Mapping

QUOTAS: Final = Path("benchmarks/quotas.toml")
RATES_PER_SECOND: Final = (10, 1_000, 100_000)
# A run of one second in each of a worker's slots: the reader's own figures take their place.
RUN_SECONDS: Final = 1.0
SLOTS: Final = 25
# An item is inserted into the index of claimable tasks, and deleted from it: docs/costs.md.
INDEX_UNITS_PER_TASK: Final = 2
PARTITION_UNITS: Final = 1_000
EVENTS_PER_TASK: Final = 3
EVENT_BYTES: Final = 420
# 20,003,779 events in 321 seconds on two cores, docs/pipeline.md.
SPARK_CORE_SECONDS_PER_MILLION: Final = 2 * 321 / 20.003779
DAY_SECONDS: Final = 86_400
HOUR_SECONDS: Final = 3_600
MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Needs:
    """What a rate of tasks needs.

    Attributes:
        rate_per_second: Tasks a second, put, run and done.
        read_units: Read units a second.
        used: What is used of each quota, by its name in quotas.toml.
        partitions: Partitions of the table, and so shards of its stream, at least.
        queues: Queues that the work must be split over.
        spark_cores: Cores that run the pipeline over a day's events in an hour.
        dollars_day: Cost of a day.
    """

    rate_per_second: int
    read_units: float
    used: Mapping[str, float]
    partitions: int
    queues: int
    spark_cores: int
    dollars_day: float


def needs(
    rate_per_second: int, units: Mapping[str, float], dollars_million: float, most_shards: int
) -> Needs:
    """Return what a rate needs.

    Args:
        rate_per_second: Tasks a second.
        units: The whole life's write_units and read_units per task.
        dollars_million: Cost of a million tasks at a steady load.
        most_shards: Index shards that one queue can have.
    """
    write_units = rate_per_second * units["write_units"]
    partitions = ceil(write_units / PARTITION_UNITS)
    shards = ceil(rate_per_second * INDEX_UNITS_PER_TASK / PARTITION_UNITS)
    workers = ceil(rate_per_second * RUN_SECONDS / SLOTS)
    # Every shard of the stream invokes Trigger once a window, and Archive about as often.
    rings_per_second = min(rate_per_second, partitions / WINDOW_SECONDS)
    events_day = rate_per_second * DAY_SECONDS * EVENTS_PER_TASK
    core_seconds = events_day / MILLION * SPARK_CORE_SECONDS_PER_MILLION
    return Needs(
        rate_per_second=rate_per_second,
        read_units=rate_per_second * units["read_units"],
        used={
            "index_write_units": rate_per_second * INDEX_UNITS_PER_TASK,
            "shards": shards,
            "table_write_units": write_units,
            "kill_switch_reads": rings_per_second,
            "concurrency": workers + partitions,
            "archive_megabytes": rate_per_second * EVENTS_PER_TASK * EVENT_BYTES / MILLION,
        },
        partitions=partitions,
        queues=ceil(shards / most_shards),
        spark_cores=ceil(core_seconds / HOUR_SECONDS),
        dollars_day=rate_per_second * DAY_SECONDS / MILLION * dollars_million,
    )


def current() -> str:
    """Return the page as the files make it now."""
    capacity = {step["step"]: step for step in figures_of("capacity")["steps"]}
    steady = next(
        one
        for one in figures_of("invocations")
        if (one["load"], one["window_seconds"]) == ("steady", WINDOW_SECONDS)
    )
    units = capacity[LIFE]
    dollars = bill(steady, units["read_units"], tomllib.loads(PRICES.read_text("utf-8"))).total
    quotas = tomllib.loads(QUOTAS.read_text("utf-8"))
    most_shards = quotas["shards"]["limit"]
    return page([needs(rate, units, dollars, most_shards) for rate in RATES_PER_SECOND], quotas)


def page(columns: list[Needs], quotas: Mapping[str, Any]) -> str:
    """Return the page."""
    head = "| tasks a second | " + " | ".join(f"{one.rate_per_second:,}" for one in columns) + " |"
    rows = [head, "| --- |" + " ---: |" * len(columns)]
    rows += [
        _row(text, [getattr(one, name) for one in columns], form)
        for name, text, form in (
            ("partitions", "partitions of the table, and shards of its stream", "{:,}"),
            ("read_units", "read units a second", "{:,.0f}"),
            ("queues", "queues to split the work over", "{:,}"),
            ("spark_cores", "cores that run the pipeline over a day in an hour", "{:,}"),
            ("dollars_day", "dollars a day", "{:,.2f}"),
        )
    ]
    binding = [
        head.replace("| tasks a second |", "| tasks a second | default quota |"),
        "| --- | ---: |" + " ---: |" * len(columns),
    ]
    for name, quota in quotas.items():
        used = [one.used[name] for one in columns]
        shown = " | ".join(_against(figure, quota["limit"]) for figure in used)
        binding.append(f"| {quota['what']} | {quota['limit']:,} | {shown} |")
    return _TEXT.format(
        run_seconds=RUN_SECONDS,
        slots=SLOTS,
        needs="\n".join(rows),
        quotas="\n".join(binding),
        remedies="\n".join(_remedies(columns, quotas)),
    )


def _row(text: str, figures: list[float], form: str) -> str:
    return f"| {text} | " + " | ".join(form.format(figure) for figure in figures) + " |"


def _against(used: float, limit: float) -> str:
    """Return what is used of a quota, bold where it is too much."""
    shown = f"{used:,.0f}" if used >= 1 else f"{used:.2f}"
    return f"**{shown}**" if used > limit else shown


def _remedies(columns: list[Needs], quotas: Mapping[str, Any]) -> list[str]:
    """Return a line for each quota, in the order in which they bind as the rate rises."""
    most = columns[-1]

    def binds_at(name: str) -> float:
        return float(quotas[name]["limit"]) / most.used[name] * most.rate_per_second

    return [
        f"{number}. From about {_rounded(binds_at(name)):,} tasks a second, {quotas[name]['what']}: "
        f"{quotas[name]['remedy']}. ({quotas[name]['source']}.)"
        for number, name in enumerate(sorted(quotas, key=binds_at), start=1)
    ]


def _rounded(rate: float) -> int:
    """Return a rate with two digits that count, as the constants have no more."""
    unit = int("1" + "0" * max(0, len(str(int(rate))) - 2))
    return int(rate // unit) * unit


_TEXT: Final = """# Scale

What 10, 1,000 and 100,000 tasks a second need, on paper: `make bench` writes this page
from the figures of [Costs](costs.md), [Dollars](dollars.md) and [Pipeline](pipeline.md) and from the quotas
in `benchmarks/quotas.toml`. Nobody has run 100,000 tasks a second. Runs take {run_seconds:g} s here, and a
worker has {slots} slots; with other runs, the number of workers changes in proportion.

## What it takes

{needs}

## Which quota binds

Figures above the default quota are bold.

{quotas}

In the order in which they bind:

{remedies}

A stream may have two readers for each shard, and Trigger and Archive are two. A third consumer of the
changes reads the archive, or a Kinesis stream of the table.

Below 500 tasks a second the downstream is the limit, not the queue. That is what freshq is for: see
[Overload](overload.md).
"""
