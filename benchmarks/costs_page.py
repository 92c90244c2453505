"""Sections of docs/costs.md: units and calls, dollars, and the needs of a rate of tasks."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from math import ceil, floor, log10
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from local.emulator import template_source

from benchmarks.figures import figures_of, read
from benchmarks.render import Sections, sections
from freshq.model.pass_options import PassOptions
from freshq.stores.dynamodb.queries import LARGER_PAGES_KEYS, LOOKAHEAD_KEYS, MAX_PAGES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PRICES: Final = Path("benchmarks/prices.toml")
# Default of template.yaml; a test compares the two.
WINDOW_SECONDS: Final = 1
MB_PER_GB: Final = 1024
MILLION: Final = 1_000_000
GB: Final = 1_000_000_000
MONTH_SECONDS: Final = 30 * 24 * 3600
SWEEP_SECONDS: Final = 60
# Functions that a task invokes; the producer is the reader's own.
FOR_TASKS: Final = ("Trigger", "ProcessTasks", "Archive")
# Put, claim and completion are events of about 415 bytes; Firehose bills records of 5 KB.
EVENTS_PER_TASK: Final = 3
EVENTS_PER_PACK: Final = 12
PACK_BYTES: Final = 5_000
LOADS: Final = {
    "trickle": "one every four seconds",
    "steady": "24 a second",
    "burst": "1,000 at once",
}
# Messages in a request of SQS, and in an invocation: one if they arrive alone, otherwise the maximum, which
# favours SQS.
SQS_BATCH: Final = {"trickle": 1, "steady": 10, "burst": 10}
# Write units that the JavaScript prototype needs for a task: at best, and under backlog.
FORMER_WRITE_UNITS: Final = {"trickle": 8, "steady": 8, "burst": 22}
# Steps of the part `capacity` from which bills and aims are computed.
LIFE: Final = "whole life, claims of 10"
LIFE_SINGLE: Final = "whole life, claims of 1"
ALONE: Final = "whole life of a task that comes alone, its pass included"
SHED: Final = "shed by the queue's max age, put included"
# Conditions of the alarms of a stack in an account with an archive and no other option.
USUAL: Final = frozenset({None, "InAccount", "HasArchive", "HasSilenceAlarm", "HasShedRatioCeiling"})
QUOTAS: Final = Path("benchmarks/quotas.toml")
RATES_PER_SECOND: Final = (10, 1_000, 100_000)
# Readers replace these by their own figures.
RUN_SECONDS: Final = 1.0
SLOTS: Final = 25
# Every item enters the index of claimable tasks and leaves it.
INDEX_UNITS_PER_TASK: Final = 2
PARTITION_UNITS: Final = 1_000
# Trigger and Archive read the stream.
READERS: Final = ("Trigger", "Archive")
DAY_SECONDS: Final = 86_400
HOUR_SECONDS: Final = 3_600
DIGITS: Final = 2


@cache
def template() -> dict[str, Any]:
    """Return the template with its loops written out."""
    return template_source()


def default(parameter: str) -> str:
    """Return the default of a parameter of the template, or of an option of the passes."""
    if option := PassOptions.model_fields.get(parameter):
        return str(option.default)
    return str(template()["Parameters"][parameter]["Default"])


def alarm_metrics() -> int:
    """Return the number of metrics that the usual alarms watch, by which CloudWatch bills alarms."""
    alarms = (
        resource["Properties"]
        for resource in template()["Resources"].values()
        if resource["Type"] == "AWS::CloudWatch::Alarm" and resource.get("Condition") in USUAL
    )
    return sum(sum("MetricStat" in each for each in alarm.get("Metrics", [])) or 1 for alarm in alarms)


def archive_buffer() -> tuple[int, int]:
    """Return the seconds and the bytes after which Firehose writes an object."""
    properties = template()["Resources"]["ArchiveDelivery"]["Properties"]
    hints = properties["ExtendedS3DestinationConfiguration"]["BufferingHints"]
    return hints["IntervalInSeconds"], hints["SizeInMBs"] * 2**20


@dataclass(frozen=True, slots=True)
class Bill:
    """Cost of a million tasks at one load in US dollars, by service."""

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
        buffer_seconds: Seconds after which Firehose writes an object.
        buffer_bytes: Bytes after which it does.
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
    """Return the cost of the write units of a million tasks."""
    return float(counted["write_units"] / counted["tasks"] * prices["dynamodb"]["write_units_million"])


def lambda_dollars(counted: Mapping[str, Any], function: str, prices: Mapping[str, Any]) -> float:
    """Return the cost of one function for a million tasks."""
    invocations, seconds = (
        counted[kind][function] / counted["tasks"] for kind in ("invocations", "run_seconds")
    )
    return float(
        invocations * prices["lambda"]["requests_million"] + seconds * second_dollars(counted, prices)
    )


def by_load(window_seconds: int = WINDOW_SECONDS) -> dict[str, Any]:
    """Return the application's counts by load with a batching window, by default the template's."""
    return {one["load"]: one for one in figures_of("invocations") if one["window_seconds"] == window_seconds}


def per_task(counted: Mapping[str, Any], kind: str) -> float:
    """Return the invocations, or the log bytes, of a task."""
    return float(sum(counted[kind][name] for name in FOR_TASKS) / counted["tasks"])


def second_dollars(counted: Mapping[str, Any], prices: Mapping[str, Any]) -> float:
    """Return the cost of a million seconds of a function."""
    memory_gb = int(counted["parameters"]["MemorySize"]) / MB_PER_GB
    return float(prices["lambda"]["gb_seconds_million"] * memory_gb)


def sqs_bill(counted: Mapping[str, Any], prices: Mapping[str, Any]) -> Bill:
    """Return the computed cost of SQS and Lambda for a million of the same tasks.

    Each message is sent, received and deleted. Lambda also polls while the queue is empty.
    """
    load, sqs = counted["load"], prices["sqs"]
    batch = SQS_BATCH[load]
    seconds = float(counted["parameters"]["task_seconds"])
    # With one message in four seconds, nearly every poll finds the queue empty.
    empty = sqs["empty_receives_minute"] / 60 / counted["rate_per_second"] if batch == 1 else 0.0
    return Bill(
        load,
        {
            "SQS": (3 / batch + empty) * sqs["requests_million"],
            "Lambda": prices["lambda"]["requests_million"] / batch
            + seconds * second_dollars(counted, prices),
        },
    )


def standing(
    counted: Iterable[Mapping[str, Any]], alarm_metrics: int, prices: Mapping[str, Any]
) -> dict[str, float]:
    """Return the cost of a month without a put, in US dollars: of the sweep, of metrics and of alarms.

    Args:
        counted: Entries of the results of `benchmarks.invocations`, among them one with a sweep.
        alarm_metrics: Number of metrics that the alarms watch.
        prices: The price table.
    """
    entries = [*counted]
    sweeps = sum(one["invocations"]["Sweep"] for one in entries)
    run_seconds, log_bytes = (
        sum(one[kind]["Sweep"] for one in entries) / sweeps for kind in ("run_seconds", "log_bytes")
    )
    each = prices["lambda"]["requests_million"] + run_seconds * second_dollars(entries[0], prices)
    each += log_bytes * MILLION / GB * prices["logs"]["gigabyte"]
    return {
        "sweeps": MONTH_SECONDS / SWEEP_SECONDS / MILLION * each,
        "metrics": reported(entries) * prices["metrics"]["metric_month"],
        "alarms": alarm_metrics * prices["metrics"]["alarm_month"],
    }


def reported(counted: Iterable[Mapping[str, Any]]) -> int:
    """Return the largest number of metrics that a stack reported."""
    return int(max(one["metrics"] for one in counted))


def constants() -> dict[str, float]:
    """Return the results of other benchmarks on which the needs of a rate depend."""
    prices = tomllib.loads(PRICES.read_text("utf-8"))
    units = {step["step"]: step for step in figures_of("capacity")["steps"]}[LIFE]
    steady = by_load()["steady"]
    steady_bill = bill(steady, units["read_units"], prices, *archive_buffer())
    worker_second_dollars = second_dollars(steady, prices) / MILLION
    seconds = sum(steady["run_seconds"][name] / steady["invocations"][name] for name in READERS)
    pipeline = read("pipeline_large")
    large = pipeline["figures"]
    return {
        "write_units": units["write_units"],
        "read_units": units["read_units"],
        # Dollars of a million tasks, without Lambda.
        "others_dollars": steady_bill.total - steady_bill.dollars["Lambda"],
        "worker_second_dollars": worker_second_dollars,
        # The price of one invocation of Trigger and one of Archive.
        "reader_dollars": seconds * worker_second_dollars
        + len(READERS) * prices["lambda"]["requests_million"] / MILLION,
        # Uncompressed.
        "event_bytes": large["json_mb"] * MILLION / large["events"],
        "events": large["events"],
        "spark_seconds": large["spark_cold_seconds"],
        "spark_cores": pipeline["machine"]["cores"],
        "shards": tomllib.loads(QUOTAS.read_text("utf-8"))["shards"]["limit"],
    }


def needs(rate_per_second: int, known: Mapping[str, float]) -> dict[str, Any]:
    """Return the needs of a rate of tasks put and completed a second.

    `used` is the use of each quota in quotas.toml. `partitions` is the least number of partitions of the
    table, and of shards of its stream.
    """
    write_units = rate_per_second * known["write_units"]
    partitions = ceil(write_units / PARTITION_UNITS)
    shards = ceil(rate_per_second * INDEX_UNITS_PER_TASK / PARTITION_UNITS)
    passes = ceil(rate_per_second * RUN_SECONDS / SLOTS)
    # Every shard of the stream invokes Trigger once a window; Archive about as often.
    rings_per_second = min(rate_per_second, partitions / WINDOW_SECONDS)
    events_per_second = rate_per_second * EVENTS_PER_TASK
    core_seconds_per_event = known["spark_cores"] * known["spark_seconds"] / known["events"]
    functions = passes * known["worker_second_dollars"] + rings_per_second * known["reader_dollars"]
    return {
        "rate_per_second": rate_per_second,
        "read_units": rate_per_second * known["read_units"],
        "used": {
            "index_write_units": rate_per_second * INDEX_UNITS_PER_TASK,
            "shards": shards,
            "table_write_units": write_units,
            "kill_switch_reads": rings_per_second,
            "concurrency": passes + len(READERS) * partitions,
            "archive_megabytes": events_per_second * known["event_bytes"] / MILLION,
        },
        "passes": passes,
        "partitions": partitions,
        "queues": ceil(shards / known["shards"]),
        # For a day's events in an hour.
        "spark_cores": ceil(events_per_second * DAY_SECONDS * core_seconds_per_event / HOUR_SECONDS),
        "dollars_day": DAY_SECONDS * (rate_per_second * known["others_dollars"] / MILLION + functions),
    }


def rough(figure: float) -> str:
    """Return a figure with two significant digits, which is the precision of the constants."""
    rounded = round(figure, DIGITS - 1 - floor(log10(figure)))
    decimals = max(0, DIGITS - 1 - floor(log10(rounded)))
    return f"{rounded:,.{decimals}f}"


# Tasks of a claim behind stale ones in the part `capacity`.
CLAIM: Final = 10
# The step of the part `capacity` with the reads of each load. At 24 a second single claims are the upper
# bound.
READS: Final = {"trickle": ALONE, "steady": LIFE_SINGLE, "burst": LIFE}
# AWS Lambda Developer Guide, "Configure Lambda function memory".
MB_OF_A_CORE: Final = 1769
# Steps on the users' page; docs/contributing/measurements.md has all.
SHOWN_STEPS: Final = (
    LIFE,
    LIFE_SINGLE,
    ALONE,
    SHED,
    "put, 10 in one call of `put_many`",
    "put into a group that nothing waits in",
    "claim of 10, lease record included",
    "claim of 1",
    "claim from an empty queue",
    "complete, one by one",
    "fail: the task, and its entry among the dead letters",
    "retry, one by one, wait, promote and claim again",
    "recover an orphan, 10 of one dead worker",
    "cancel",
    "approximate stats, 2,000 tasks waiting",
)


def costs_page() -> Sections:
    """Return the sections of docs/costs.md."""
    capacity = figures_of("capacity")
    steps = {step["step"]: step for step in capacity["steps"]}
    quotas = tomllib.loads(QUOTAS.read_text("utf-8"))
    needed = needs(RATES_PER_SECOND[-1], constants())
    binding = [
        (quota["limit"] / needed["used"][name] * needed["rate_per_second"], quota)
        for name, quota in quotas.items()
    ]
    some, most = capacity["behind_stale"]
    of_capacity = sections(
        "costs", shown=[steps[name] for name in SHOWN_STEPS], some=some, most=most, rough=rough,
        entries=entries_per_half_unit(capacity), MAX_PAGES=MAX_PAGES, most_passed_over=most_passed_over(),
        binding=sorted(binding, key=itemgetter(0)), passes=int(default("worker_passes")),
        slots=int(default("concurrency")),
    )  # fmt: skip
    return of_capacity | bill_sections(by_load(), by_load(0), tomllib.loads(PRICES.read_text("utf-8")))


def entries_per_half_unit(capacity: Mapping[str, Any]) -> int:
    """Return the number of entries of the status index that a query reads for half a read unit."""
    some = capacity["behind_stale"][0]
    return round(float(some["stale"]) / (2 * float(some["read_units"])))


def most_passed_over() -> int:
    """Return the largest number of stale tasks that a claim of ten can skip, in thousands."""
    pages = (*LARGER_PAGES_KEYS, *[LARGER_PAGES_KEYS[-1]] * MAX_PAGES)[: MAX_PAGES - 1]
    return int(round(CLAIM + LOOKAHEAD_KEYS + sum(pages), -3))


def bill_sections(
    counted: Mapping[str, Any], at_once: Mapping[str, Any], prices: Mapping[str, Any]
) -> Sections:
    """Return the sections about dollars.

    Args:
        counted: The application's counts by load, with the template's batching window.
        at_once: The same counts without a window.
        prices: The price table.

    Raises:
        ValueError: If the loads were counted with different parameters.
    """
    given = [one["parameters"] for one in counted.values()]
    if any(each != given[0] for each in given):
        msg = f"the loads were counted with different parameters: {given}; measure them together"
        raise ValueError(msg)
    reads = {step["step"]: step["read_units"] for step in figures_of("capacity")["steps"]}
    bills = [bill(counted[load], reads[READS[load]], prices, *archive_buffer()) for load in LOADS]
    alarms, entries = alarm_metrics(), counted.values()
    return sections(
        "bills", given=given[0], prices=prices, bills=bills, counted=counted, at_once=at_once, alarms=alarms,
        still=standing(entries, alarms, prices), metrics=reported(entries), per_task=per_task,
        second_dollars=second_dollars, write_dollars=write_dollars, sqs_bill=sqs_bill, LOADS=LOADS,
        FORMER_WRITE_UNITS=FORMER_WRITE_UNITS, MB_OF_A_CORE=MB_OF_A_CORE,
        sweeps_a_month=MONTH_SECONDS // SWEEP_SECONDS,
    )  # fmt: skip
