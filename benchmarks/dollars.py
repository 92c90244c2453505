"""What a million tasks cost, and a month of standing still, from what was counted and a price table.

`benchmarks.invocations` counted write units, invocations, run times and log bytes of the deployed
application, `benchmarks.capacity` the read units. Nothing is measured here. `benchmarks.dollars_page` writes
docs/dollars.md from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
