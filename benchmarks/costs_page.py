"""The sections of docs/costs.md: units and calls, dollars, and what a rate of tasks needs."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from math import ceil, floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from samtranslator.yaml_helper import yaml_parse

from benchmarks.figures import figures_of, read
from benchmarks.render import Block, Prose, Sections, Table, across, columns
from freshq.stores.dynamodb.queries import LARGER_PAGES_KEYS, LOOKAHEAD_KEYS, MAX_PAGES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PRICES: Final = Path("benchmarks/prices.toml")
# The window that template.yaml has by default; a test compares the two.
WINDOW_SECONDS: Final = 1
MB_PER_GB: Final = 1024
MILLION: Final = 1_000_000
GB: Final = 1_000_000_000
MONTH_SECONDS: Final = 30 * 24 * 3600
SWEEP_SECONDS: Final = 60
# Of the application's functions, those that a task causes; the producer is the reader's own.
FOR_TASKS: Final = ("Trigger", "ProcessTasks", "Archive")
# A put, a claim and a completion, each an event of about 415 bytes; Firehose bills packs of 5 KB.
EVENTS_PER_TASK: Final = 3
EVENTS_PER_PACK: Final = 12
PACK_BYTES: Final = 5_000
LOADS: Final = {
    "trickle": "one every four seconds",
    "steady": "24 a second",
    "burst": "1,000 at once",
}
# How many messages SQS sends, receives and deletes in a request, and Lambda takes in one invocation: one
# where they come alone, else the most, which is the best for SQS.
SQS_BATCH: Final = {"trickle": 1, "steady": 10, "burst": 10}
# What the system that freshq descends from needs for a task: write units at best, and under backlog.
FORMER_WRITE_UNITS: Final = {"trickle": 8, "steady": 8, "burst": 22}
# Steps of the part `capacity` that bills and aims are computed from.
LIFE: Final = "whole life, claims of 10"
LIFE_SINGLE: Final = "whole life, claims of 1"
ALONE: Final = "whole life of a task that comes alone, its pass included"
SHED: Final = "shed by the queue's max age, put included"
TEMPLATE: Final = Path("template.yaml")
# Of the alarms' conditions, those that are true of a stack in an account that has the archive, and no more.
USUAL: Final = frozenset({None, "InAccount", "HasArchive"})
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


@cache
def template() -> dict[str, Any]:
    """Return the template."""
    parsed: dict[str, Any] = yaml_parse(TEMPLATE.read_text("utf-8"))
    return parsed


def default(parameter: str) -> str:
    """Return the default of a parameter, as CloudFormation shows it."""
    return str(template()["Parameters"][parameter]["Default"])


def alarm_metrics() -> int:
    """Return how many metrics the usual alarms watch: CloudWatch bills an alarm by these."""
    alarms = (
        resource["Properties"]
        for resource in template()["Resources"].values()
        if resource["Type"] == "AWS::CloudWatch::Alarm" and resource.get("Condition") in USUAL
    )
    return sum(sum("MetricStat" in each for each in alarm.get("Metrics", [])) or 1 for alarm in alarms)


def archive_buffer() -> tuple[int, int]:
    """Return after how many seconds, and how many bytes, Firehose writes an object."""
    properties = template()["Resources"]["ArchiveDelivery"]["Properties"]
    hints = properties["ExtendedS3DestinationConfiguration"]["BufferingHints"]
    return hints["IntervalInSeconds"], hints["SizeInMBs"] * 2**20


@dataclass(frozen=True, slots=True)
class Bill:
    """What a million tasks cost at one load, in US dollars, by service."""

    load: str
    dollars: Mapping[str, float]

    @property
    def total(self) -> float:
        """The sum."""
        return sum(self.dollars.values())


def bill(
    counted: Mapping[str, Any],
    read_units: float,
    prices: Mapping[str, Any],
    buffer_seconds: float,
    buffer_bytes: float,
) -> Bill:
    """Return the bill for a million tasks.

    Args:
        counted: One entry of the results of `benchmarks.invocations`.
        read_units: Read units per task.
        prices: The price table.
        buffer_seconds: After how long Firehose writes an object.
        buffer_bytes: After how much.
    """
    tasks = counted["tasks"]
    rings = counted["invocations"]["ProcessTasks"] / tasks
    log_bytes = sum(counted["log_bytes"][name] for name in FOR_TASKS) / tasks
    archived_bytes = EVENTS_PER_TASK / EVENTS_PER_PACK * PACK_BYTES * MILLION
    objects = max(MILLION / counted["rate_per_second"] / buffer_seconds, archived_bytes / buffer_bytes)
    return Bill(
        counted["load"],
        {
            "DynamoDB": write_dollars(counted, prices)
            + read_units * prices["dynamodb"]["read_units_million"],
            "Lambda": sum(lambda_dollars(counted, name, prices) for name in FOR_TASKS),
            "SNS": rings * prices["sns"]["publishes_million"],
            "logs": log_bytes * MILLION / GB * prices["logs"]["gigabyte"],
            "Firehose": archived_bytes / GB * prices["firehose"]["gigabyte"],
            "S3": objects / 1000 * prices["s3"]["puts_thousand"],
        },
    )


def write_dollars(counted: Mapping[str, Any], prices: Mapping[str, Any]) -> float:
    """Return what the write units of a million tasks cost."""
    return float(counted["write_units"] / counted["tasks"] * prices["dynamodb"]["write_units_million"])


def lambda_dollars(counted: Mapping[str, Any], function: str, prices: Mapping[str, Any]) -> float:
    """Return what one function costs for a million tasks."""
    invocations, seconds = (
        counted[kind][function] / counted["tasks"] for kind in ("invocations", "run_seconds")
    )
    return float(
        invocations * prices["lambda"]["requests_million"] + seconds * second_dollars(counted, prices)
    )


def by_load(window_seconds: int = WINDOW_SECONDS) -> dict[str, Any]:
    """Return the application's counts by load, with one batching window; by default the template's."""
    return {one["load"]: one for one in figures_of("invocations") if one["window_seconds"] == window_seconds}


def per_task(counted: Mapping[str, Any], kind: str) -> float:
    """Return the invocations, or the log bytes, that a task causes."""
    return float(sum(counted[kind][name] for name in FOR_TASKS) / counted["tasks"])


def second_dollars(counted: Mapping[str, Any], prices: Mapping[str, Any]) -> float:
    """Return what a million seconds of a function cost."""
    memory_gb = int(counted["parameters"]["MemorySize"]) / MB_PER_GB
    return float(prices["lambda"]["gb_seconds_million"] * memory_gb)


def pass_seconds(alone: Bill, steady: Bill, counted: Mapping[str, Any], prices: Mapping[str, Any]) -> float:
    """Return what a pass of its own costs a task, beside its waiting, in seconds of waiting.

    Args:
        alone: The bill where each task has a pass of its own.
        steady: The bill where many share one.
        counted: What was counted of the first.
        prices: The price table.
    """
    idle_seconds = float(counted["parameters"]["IdleExitSeconds"])
    return (alone.total - steady.total) / second_dollars(counted, prices) - idle_seconds


def sqs_bill(counted: Mapping[str, Any], prices: Mapping[str, Any]) -> Bill:
    """Return what SQS and Lambda cost for a million of the same tasks: computed, nothing was counted.

    Each message is sent, received and deleted. While none is there, Lambda's connections still ask.
    """
    load, sqs = counted["load"], prices["sqs"]
    batch = SQS_BATCH[load]
    seconds = float(counted["parameters"]["DemoTaskSeconds"])
    # Beside one message in four seconds the connections find the queue empty nearly always.
    empty = sqs["empty_receives_minute"] / 60 / counted["rate_per_second"] if batch == 1 else 0.0
    return Bill(
        load,
        {
            "SQS": (3 / batch + empty) * sqs["requests_million"],
            "Lambda": prices["lambda"]["requests_million"] / batch
            + seconds * second_dollars(counted, prices),
        },
    )


def month_tasks(rate_per_second: float) -> float:
    """Return how many tasks a month has, of 30 days."""
    return rate_per_second * MONTH_SECONDS


@dataclass(frozen=True, slots=True)
class Standing:
    """What a stack costs in a month without a task, in US dollars.

    Attributes:
        sweeps: The sweep's runs.
        metrics: The metrics that it reported, by how many they are.
        alarms: Its alarms.
    """

    sweeps: float
    metrics: float
    alarms: float

    @property
    def total(self) -> float:
        """The sum."""
        return self.sweeps + self.metrics + self.alarms


def standing(counted: Iterable[Mapping[str, Any]], alarm_metrics: int, prices: Mapping[str, Any]) -> Standing:
    """Return what a month costs in which nothing is put.

    Args:
        counted: Entries of the results of `benchmarks.invocations`, among them one with a sweep.
        alarm_metrics: Metrics that the alarms watch.
        prices: The price table.
    """
    entries = [*counted]
    sweeps = sum(one["invocations"]["Sweep"] for one in entries)
    run_seconds, log_bytes = (
        sum(one[kind]["Sweep"] for one in entries) / sweeps for kind in ("run_seconds", "log_bytes")
    )
    each = prices["lambda"]["requests_million"] + run_seconds * second_dollars(entries[0], prices)
    each += log_bytes * MILLION / GB * prices["logs"]["gigabyte"]
    return Standing(
        sweeps=MONTH_SECONDS / SWEEP_SECONDS / MILLION * each,
        metrics=reported(entries) * prices["metrics"]["metric_month"],
        alarms=alarm_metrics * prices["metrics"]["alarm_month"],
    )


def reported(counted: Iterable[Mapping[str, Any]]) -> int:
    """Return how many metrics a stack reported at most."""
    return int(max(one["metrics"] for one in counted))


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
    steady = by_load()["steady"]
    steady_bill = bill(steady, units["read_units"], prices, *archive_buffer())
    a_second = second_dollars(steady, prices) / MILLION
    seconds = sum(steady["run_seconds"][name] / steady["invocations"][name] for name in READERS)
    pipeline = read("pipeline_large")
    large = pipeline["figures"]
    return Constants(
        write_units=units["write_units"],
        read_units=units["read_units"],
        others_dollars=steady_bill.total - steady_bill.dollars["Lambda"],
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


def rough(figure: float) -> str:
    """Return a figure with the two digits that count, as the constants have no more."""
    rounded = round(figure, DIGITS - 1 - floor(log10(figure)))
    decimals = max(0, DIGITS - 1 - floor(log10(rounded)))
    return f"{rounded:,.{decimals}f}"


# Two thirds are shed in `make demo`, which offers three times the capacity.
SHED_PER_SUCCESS: Final = 2
STATS_WAITING: Final = 2000
# Tasks of a claim behind stale ones, as in the part `capacity`.
CLAIM: Final = 10
# The step of the part `capacity` that has the reads of each load. At 24 a second single claims are the
# upper bound.
READS: Final = {"trickle": ALONE, "steady": LIFE_SINGLE, "burst": LIFE}
# The page names these defaults of the template; a test compares them.
DEFAULTS: Final = (
    "BatchingWindowSeconds",
    "IdleExitSeconds",
    "LogSampleRatio",
    "MemorySize",
    "WorkerPasses",
)
# AWS Lambda Developer Guide, "Configure Lambda function memory".
MB_OF_A_CORE: Final = 1769
# The items that freshq keeps for itself, by the kind in their ids.
ITEMS: Final = {
    "tasks": "the tasks",
    "pass": "pass slots",
    "lease": "lease records",
    "counts": "flow counts",
    "record": "shared records",
    "control": "the control record",
    "line": "line records",
}


def costs_page() -> Sections:
    """Return the sections of docs/costs.md."""
    capacity, prices = figures_of("capacity"), tomllib.loads(PRICES.read_text("utf-8"))
    groups = [each for each in figures_of("growth_dynamodb")["figures"] if each["situation"] == "groups"]
    return (
        capacity_sections(capacity, groups) | bill_sections(by_load(), by_load(0), prices) | scale_sections()
    )


def capacity_sections(capacity: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> Sections:
    """Return the sections about units and calls."""
    steps = {step["step"]: step for step in capacity["steps"]}
    some, most = capacity["behind_stale"]
    units = "{write_units:.2f}", "{read_units:.2f}", "{calls:.2f}"
    head = ("step, per task", "write units", "read units", "calls")
    stale = f"""A claim passes over tasks stale by their own max age within its query: at most {MAX_PAGES}
        pages for each line and shard, or about {most_passed_over():,} tasks. The next claim of the process
        goes on from there. DynamoDB bills half a read unit for about {entries_per_half_unit(capacity)} of
        them: a claim behind {some["stale"]:,} stale tasks costs {some["read_units"]:g} read units, and one
        that reads all its pages {most["read_units"]:g}."""
    calls: dict[str, dict[int, float]] = {}
    writes = {(each["limit"], each["size"]): each["amounts"]["write units"] for each in groups}
    for each in sorted(groups, key=lambda each: (each["limit"], each["size"])):
        calls.setdefault(str(each["limit"]), {})[each["size"]] = each["amounts"]["calls"]
    text = f"""Each group that a claim takes from adds about one query. Beside 10,000 groups each task is the
        last of its group, so a claim also deletes the records of the groups that it empties:
        {writes[max(writes)]:.0f} write units for ten tasks instead of
        {writes[min(key for key in writes if key[0] == CLAIM)]:.0f}."""
    stats = steps[f"approximate stats, {STATS_WAITING:,} tasks waiting"]["read_units"]
    with_shed = steps[LIFE]["write_units"] + SHED_PER_SUCCESS * steps[SHED]["write_units"]
    shares = f"""Approximate stats beside {STATS_WAITING:,} waiting tasks cost {stats:g} read units. If two
        thirds of the tasks are shed, as in `make demo`, each success also pays for the puts of the shed
        tasks: about {with_shed:.1f} write units."""
    table = columns(capacity["steps"], dict(zip(head, ("{step}", *units), strict=True)))
    by_groups = across("claim of", calls, ".1f", lambda size: f"{size:,} group{'s' * (size > 1)}")
    return {
        ("capacity", "steps"): [table],
        ("capacity", "stale"): [Prose(stale)],
        ("growth_dynamodb", "groups"): [by_groups, Prose(text)],
        ("capacity", "shares"): [Prose(shares)],
    }


def entries_per_half_unit(capacity: Mapping[str, Any]) -> int:
    """Return how many entries of the status index a query reads for half a read unit."""
    some = capacity["behind_stale"][0]
    return round(float(some["stale"]) / (2 * float(some["read_units"])))


def most_passed_over() -> int:
    """Return how many stale tasks a claim of ten passes over at most: all on its pages, in thousands."""
    pages = (*LARGER_PAGES_KEYS, *[LARGER_PAGES_KEYS[-1]] * MAX_PAGES)[: MAX_PAGES - 1]
    return int(round(CLAIM + LOOKAHEAD_KEYS + sum(pages), -3))


def bill_sections(
    counted: Mapping[str, Any], at_once: Mapping[str, Any], prices: Mapping[str, Any]
) -> Sections:
    """Return the sections about dollars.

    Args:
        counted: The application's counts by load, with the template's batching window.
        at_once: The same without a window.
        prices: The price table.

    Raises:
        ValueError: If the loads were counted with different parameters.
    """
    reads = {step["step"]: step["read_units"] for step in figures_of("capacity")["steps"]}
    of_loads = [bill(counted[load], reads[READS[load]], prices, *archive_buffer()) for load in LOADS]
    return {
        ("invocations", "setting"): [Prose(_SETTING.format(as_of=prices["as_of"], **_setting(counted)))],
        ("invocations", "dollars"): [_dollars(of_loads, counted)],
        ("invocations", "alone"): [Prose(_ALONE.format(**_alone(of_loads, counted, prices)))],
        ("invocations", "window"): [_windows(counted, at_once)],
        ("invocations", "beside others"): [_beside(of_loads, counted, prices)],
        ("invocations", "standing still"): [_standing([*counted.values()], prices)],
    }


def _setting(counted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of the stacks, which must be the same."""
    given = [one["parameters"] for one in counted.values()]
    if any(each != given[0] for each in given):
        msg = f"the loads were counted with different parameters: {given}; measure them together"
        raise ValueError(msg)
    return {
        **given[0],
        "sampled": round(1 / float(given[0]["LogSampleRatio"])),
        "cores": int(given[0]["MemorySize"]) / MB_OF_A_CORE,
        "task_ms": 1000 * float(given[0]["DemoTaskSeconds"]),
    }


def _dollars(of_loads: Sequence[Bill], counted: Mapping[str, Any]) -> Table:
    head = [
        "load",
        *of_loads[0].dollars,
        "**all**",
        "invocations per 1,000 tasks",
        "wait from put to claim, p50",
    ]
    rows = [
        [
            LOADS[one.load],
            *(f"{figure:.2f}" for figure in one.dollars.values()),
            f"**{one.total:.2f}**",
            f"{1000 * per_task(counted[one.load], 'invocations'):,.0f}",
            f"{counted[one.load]['wait_p50_seconds']:.1f} s",
        ]
        for one in of_loads
    ]
    return Table(head, rows)


def _alone(of_loads: Sequence[Bill], counted: Mapping[str, Any], prices: Mapping[str, Any]) -> dict[str, Any]:
    alone, steady = counted["trickle"], counted["steady"]
    idle_seconds = float(alone["parameters"]["IdleExitSeconds"])
    month, often = (month_tasks(each["rate_per_second"]) for each in (alone, steady))
    still = standing(counted.values(), alarm_metrics(), prices).total
    units = {kind: units / alone["tasks"] for kind, units in alone["write_units_of"].items()}
    return {
        "idle": idle_seconds,
        "waiting": idle_seconds * second_dollars(alone, prices),
        "writes": write_dollars(alone, prices) - write_dollars(steady, prices),
        "worth": pass_seconds(of_loads[0], of_loads[1], alone, prices),
        "units": alone["write_units"] / alone["tasks"],
        "parts": ", ".join(f"{ITEMS[kind]} {each:.2f}" for kind, each in units.items()),
        "month": round(month, -4),
        "still": still,
        "on_top": still / month * MILLION,
        "on_top_often": still / often * MILLION,
    }


def _windows(*counts: Mapping[str, Any]) -> Table:
    return columns(
        (of_window[load] for load in LOADS for of_window in counts),
        {
            "load": lambda one: LOADS[one["load"]],
            "window": "{window_seconds} s",
            "invocations per 1,000 tasks": lambda one: f"{1000 * per_task(one, 'invocations'):,.0f}",
            "wait from put to claim, p50": "{wait_p50_seconds:.2f} s",
        },
    )


def _beside(of_loads: Sequence[Bill], counted: Mapping[str, Any], prices: Mapping[str, Any]) -> Table:
    rows = []
    for one in of_loads:
        load, ours = LOADS[one.load], [one.dollars[name] for name in ("DynamoDB", "Lambda", "SNS")]
        sqs = sqs_bill(counted[one.load], prices)
        former = FORMER_WRITE_UNITS[one.load] * prices["dynamodb"]["write_units_million"]
        rows += [
            [f"{load}: freshq", *(f"{each:.2f}" for each in ours), f"**{sum(ours):.2f}**"],
            [f"{load}: SQS", *(f"{each:.2f}" for each in sqs.dollars.values()), "", f"**{sqs.total:.2f}**"],
            [f"{load}: the JavaScript prototype", f"{former:.2f}", "", "", ""],
        ]
    return Table(["load and queue", "requests or units", "Lambda", "SNS", "**together**"], rows)


def _standing(entries: Sequence[Mapping[str, Any]], prices: Mapping[str, Any]) -> Prose:
    watched = alarm_metrics()
    still = standing(entries, watched, prices)
    return Prose(
        f"""Without a task, a stack costs {still.total:.2f} dollars a month, nearly all of it for being
        watched: {reported(entries)} metrics at {prices["metrics"]["metric_month"]:.2f} each, in
        proportion to the hours in which they are reported, {watched} metrics of alarms at
        {prices["metrics"]["alarm_month"]:.2f} each, and {MONTH_SECONDS // SWEEP_SECONDS:,} runs
        of the sweep for {still.sweeps:.2f} together."""
    )


def scale_sections() -> Sections:
    """Return the sections about rates."""
    known, quotas = constants(), tomllib.loads(QUOTAS.read_text("utf-8"))
    found = [needs(rate, known) for rate in RATES_PER_SECOND]
    return {
        ("pipeline_large", "scale"): [_assumed(known), _needs(found)],
        ("capacity", "quotas"): _quotas(found, quotas),
    }


def _assumed(known: Constants) -> Prose:
    return Prose(
        f"""Runs take {RUN_SECONDS:g} s here, and a worker has {SLOTS} slots; with other runs the
        number of passes and their cost change in proportion. The pipeline took {known.spark_seconds:.0f} s
        for {known.events:,} events on {known.spark_cores} cores, started cold; the table assumes that more
        cores share the work evenly. Nobody has run {RATES_PER_SECOND[-1]:,} tasks a second."""
    )


def _needs(needs: Sequence[Needs]) -> Table:
    rows = {
        f"passes (`WorkerPasses`) of {SLOTS} slots (`Concurrency`)": ("passes", "{:,}".format),
        "partitions of the table, and shards of its stream": ("partitions", "{:,}".format),
        "read units a second": ("read_units", rough),
        "queues to split the work over": ("queues", "{:,}".format),
        "cores that run the pipeline over a day in an hour": ("spark_cores", "{:,}".format),
        "dollars a day": ("dollars_day", rough),
    }
    cells = [[text, *(form(getattr(one, name)) for one in needs)] for text, (name, form) in rows.items()]
    return Table(["tasks a second", *(f"{one.rate_per_second:,}" for one in needs)], cells)


def _quotas(needs: Sequence[Needs], quotas: Mapping[str, Any]) -> list[Block]:
    most = needs[-1]
    binds_at = {name: quotas[name]["limit"] / most.used[name] * most.rate_per_second for name in quotas}
    rows = [
        [quota["what"], f"{quota['limit']:,}", *(_against(one.used[name], quota["limit"]) for one in needs)]
        for name, quota in quotas.items()
    ]
    head = ["tasks a second", "default quota", *(f"{one.rate_per_second:,}" for one in needs)]
    remedies = "\n".join(
        f"- From about {rough(binds_at[name])} tasks a second, {quotas[name]['what']}: "
        f"{quotas[name]['remedy']}. ({quotas[name]['source']}.)"
        for name in sorted(quotas, key=binds_at.__getitem__)
    )
    passes, slots = (int(default(name)) for name in ("WorkerPasses", "Concurrency"))
    defaults = f"""Below {rough(min(binds_at.values()))} tasks a second no quota binds. But a stack with its
        defaults (`WorkerPasses` {passes}, `Concurrency` {slots}) runs {passes * slots} tasks at a time:
        raise them to match your downstream."""
    return [Table(head, rows), Prose(remedies), Prose(defaults)]


def _against(used: float, limit: float) -> str:
    """Return the use of a quota, bold if it is more than the quota."""
    shown = f"{used:,.0f}" if used >= 1 else f"{used:.2f}"
    return f"**{shown}**" if used > limit else shown


_SETTING: Final = """Prices are those of {as_of} in `benchmarks/prices.toml`, without free tiers. Tasks are
under 1 KB and run for {task_ms:g} ms. Memory of {MemorySize} MB, a batching window of
{BatchingWindowSeconds} s, a wait of {IdleExitSeconds} s before a worker ends, and log lines of one task in
{sampled} are the template's defaults; `Concurrency` of {Concurrency} and the archive are not. Runs were
timed on this machine. On Lambda that memory has {cores:.2f} of a core, so the processor's part of Lambda's
column may be three times as much."""
_ALONE: Final = """A task that comes alone wakes a worker for itself, whose pass waits {idle:g} s for another
task before it ends (`IdleExitSeconds`): {waiting:.2f} dollars of the bill. Its pass slot and its lease
record take another {writes:.2f} of write units: each task took {units:.2f} units ({parts}). Without the wait
more tasks would need a pass of their own, each of which costs as much as {worth:.1f} s of waiting. One task
every four seconds makes {month:,.0f} tasks a month. The stack's own {still:.2f} dollars a month
([below](#a-month-without-tasks)) add {on_top:.2f} dollars a million at that rate, and {on_top_often:.2f} at
24 a second."""
