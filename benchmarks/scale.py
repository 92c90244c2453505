"""The page docs/scale.md: what 10, 1,000 and 100,000 tasks a second need, from measured constants and quotas.

Nothing is measured here, so a test can hold the page to the files.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from math import ceil, floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks import dollars, stack
from benchmarks.costs_page import LIFE
from benchmarks.dollars import EVENTS_PER_TASK, MILLION, PRICES, WINDOW_SECONDS
from benchmarks.figures import figures_of, read
from benchmarks.sections import table

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
# Trigger and Archive read the stream.
READERS: Final = ("Trigger", "Archive")
DAY_SECONDS: Final = 86_400
HOUR_SECONDS: Final = 3_600
DIGITS: Final = 2


@dataclass(frozen=True, slots=True)
class Constants:
    """What other benchmarks counted and timed.

    Attributes:
        write_units: Of a whole life.
        read_units: The same.
        others_dollars: Cost of a million tasks without Lambda.
        worker_second_dollars: Cost of a second of a worker.
        reader_dollars: Cost of an invocation of Trigger and one of Archive.
        event_bytes: Size of an archived event before it is compressed.
        events: Events that the pipeline was timed with.
        spark_seconds: How long it took.
        spark_cores: On so many cores.
        shards: Index shards that one queue can have.
    """

    write_units: float
    read_units: float
    others_dollars: float
    worker_second_dollars: float
    reader_dollars: float
    event_bytes: float
    events: int
    spark_seconds: float
    spark_cores: int
    shards: int

    @property
    def core_seconds_per_event(self) -> float:
        """Seconds of a core that the pipeline takes for an event."""
        return self.spark_cores * self.spark_seconds / self.events


def constants() -> Constants:
    """Return what the files say now."""
    prices = tomllib.loads(PRICES.read_text("utf-8"))
    units = {step["step"]: step for step in figures_of("capacity")["steps"]}[LIFE]
    steady = next(
        one
        for one in figures_of("invocations")
        if (one["load"], one["window_seconds"]) == ("steady", WINDOW_SECONDS)
    )
    bill = dollars.bill(steady, units["read_units"], prices, *stack.archive_buffer())
    a_second = dollars.second_dollars(steady, prices) / MILLION
    seconds = sum(steady["run_seconds"][name] / steady["invocations"][name] for name in READERS)
    pipeline = read("pipeline_large")
    large = pipeline["figures"]
    return Constants(
        write_units=units["write_units"],
        read_units=units["read_units"],
        others_dollars=bill.total - bill.dollars["Lambda"],
        worker_second_dollars=a_second,
        reader_dollars=seconds * a_second + len(READERS) * prices["lambda"]["requests_million"] / MILLION,
        event_bytes=large["json_mb"] * MILLION / large["events"],
        events=large["events"],
        spark_seconds=large["spark_cold_seconds"],
        spark_cores=pipeline["machine"]["cores"],
        shards=tomllib.loads(QUOTAS.read_text("utf-8"))["shards"]["limit"],
    )


@dataclass(frozen=True, slots=True)
class Needs:
    """What a rate of tasks needs.

    Attributes:
        rate_per_second: Tasks a second, put, run and done.
        read_units: Read units a second.
        used: What is used of each quota, by its name in quotas.toml.
        passes: Worker passes at a time.
        partitions: Partitions of the table, and so shards of its stream, at least.
        queues: Queues that the work must be split over.
        spark_cores: Cores that run the pipeline over a day's events in an hour.
        dollars_day: Cost of a day.
    """

    rate_per_second: int
    read_units: float
    used: Mapping[str, float]
    passes: int
    partitions: int
    queues: int
    spark_cores: int
    dollars_day: float


def needs(rate_per_second: int, known: Constants) -> Needs:
    """Return what a rate of tasks a second needs."""
    write_units = rate_per_second * known.write_units
    partitions = ceil(write_units / PARTITION_UNITS)
    shards = ceil(rate_per_second * INDEX_UNITS_PER_TASK / PARTITION_UNITS)
    passes = ceil(rate_per_second * RUN_SECONDS / SLOTS)
    # Every shard of the stream invokes Trigger once a window, and Archive about as often.
    rings_per_second = min(rate_per_second, partitions / WINDOW_SECONDS)
    events_per_second = rate_per_second * EVENTS_PER_TASK
    core_seconds = events_per_second * DAY_SECONDS * known.core_seconds_per_event
    functions = passes * known.worker_second_dollars + rings_per_second * known.reader_dollars
    return Needs(
        rate_per_second=rate_per_second,
        read_units=rate_per_second * known.read_units,
        used={
            "index_write_units": rate_per_second * INDEX_UNITS_PER_TASK,
            "shards": shards,
            "table_write_units": write_units,
            "kill_switch_reads": rings_per_second,
            "concurrency": passes + len(READERS) * partitions,
            "archive_megabytes": events_per_second * known.event_bytes / MILLION,
        },
        passes=passes,
        partitions=partitions,
        queues=ceil(shards / known.shards),
        spark_cores=ceil(core_seconds / HOUR_SECONDS),
        dollars_day=DAY_SECONDS * (rate_per_second * known.others_dollars / MILLION + functions),
    )


def current() -> str:
    """Return the page as the files make it now."""
    known = constants()
    quotas = tomllib.loads(QUOTAS.read_text("utf-8"))
    return page([needs(rate, known) for rate in RATES_PER_SECOND], quotas, known)


def page(columns: list[Needs], quotas: Mapping[str, Any], known: Constants) -> str:
    """Return the page."""
    rates = [f"{one.rate_per_second:,}" for one in columns]
    rows = [
        [text, *(form(getattr(one, name)) for one in columns)]
        for name, text, form in (
            ("passes", f"passes (`WorkerPasses`) of {SLOTS} slots (`Concurrency`)", "{:,}".format),
            ("partitions", "partitions of the table, and shards of its stream", "{:,}".format),
            ("read_units", "read units a second", rough),
            ("queues", "queues to split the work over", "{:,}".format),
            ("spark_cores", "cores that run the pipeline over a day in an hour", "{:,}".format),
            ("dollars_day", "dollars a day", rough),
        )
    ]
    binding = [
        [quota["what"], f"{quota['limit']:,}", *(_against(one.used[name], quota["limit"]) for one in columns)]
        for name, quota in quotas.items()
    ]
    first, remedies = _remedies(columns, quotas)
    return _TEXT.format(
        run_seconds=RUN_SECONDS,
        slots=SLOTS,
        most=f"{columns[-1].rate_per_second:,}",
        known=known,
        needs="\n".join(table(["tasks a second", *rates], rows)),
        quotas="\n".join(table(["tasks a second", "default quota", *rates], binding)),
        remedies="\n".join(remedies),
        first=first,
        default_passes=stack.default("WorkerPasses"),
        default_slots=stack.default("Concurrency"),
        default_tasks=int(stack.default("WorkerPasses")) * int(stack.default("Concurrency")),
    )


def rough(figure: float) -> str:
    """Return a figure with the two digits that count, as the constants have no more."""
    rounded = round(figure, DIGITS - 1 - floor(log10(figure)))
    decimals = max(0, DIGITS - 1 - floor(log10(rounded)))
    return f"{rounded:,.{decimals}f}"


def _against(used: float, limit: float) -> str:
    """Return what is used of a quota, bold where it is too much."""
    shown = f"{used:,.0f}" if used >= 1 else f"{used:.2f}"
    return f"**{shown}**" if used > limit else shown


def _remedies(columns: list[Needs], quotas: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return from how many tasks a second the first quota binds, and a line for each in their order."""
    most = columns[-1]
    binds_at = {name: quotas[name]["limit"] / most.used[name] * most.rate_per_second for name in quotas}
    lines = [
        f"{number}. From about {rough(binds_at[name])} tasks a second, {quotas[name]['what']}: "
        f"{quotas[name]['remedy']}. ({quotas[name]['source']}.)"
        for number, name in enumerate(sorted(quotas, key=binds_at.__getitem__), start=1)
    ]
    return rough(min(binds_at.values())), lines


_TEXT: Final = """# Scale

What 10, 1,000 and 100,000 tasks a second need, on paper: `make bench` writes this page from the figures of
[Costs](costs.md), [Dollars](dollars.md) and [Pipeline](pipeline.md) and from the quotas in
`benchmarks/quotas.toml`. Nobody has run {most} tasks a second.

Runs take {run_seconds:g} s here, and a worker has {slots} slots. With other runs the number of passes changes
in proportion, and so does what they cost. The pipeline took {known.spark_seconds:.0f} s for {known.events:,}
events on {known.spark_cores} cores, started cold. The table assumes that more cores share
the work evenly.

## What it takes

{needs}

## Which quota binds

Figures above the default quota are bold.

{quotas}

In the order in which they bind:

{remedies}

A stream may have two readers for each shard, and Trigger and Archive are two. A third consumer of the
changes reads the archive, or a Kinesis stream of the table.

Below {first} tasks a second no quota binds. But with its defaults (`WorkerPasses` {default_passes},
`Concurrency` {default_slots}) a stack runs {default_tasks} tasks at a time: raise them to what the downstream
can serve. What freshq does when more work comes than that is on [Overload](overload.md).
"""
