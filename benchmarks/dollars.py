"""The page docs/dollars.md: what a million tasks cost, from what other benchmarks counted and a price table.

`benchmarks.invocations` counted write units, invocations, run times and log bytes of the deployed
application, `benchmarks.capacity` the read units. Nothing is measured here, so a test can hold the page to
the files.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.costs_page import ALONE, LIFE
from benchmarks.figures import figures_of
from freshq.aws.worker_settings import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PRICES: Final = Path("benchmarks/prices.toml")
# The window that template.yaml has by default.
WINDOW_SECONDS: Final = 1
MEMORY_GB: Final = 0.5
IDLE_SECONDS: Final[float] = WorkerSettings.model_fields["idle_exit_seconds"].default
MILLION: Final = 1_000_000
GB: Final = 1_000_000_000
# Of the application's functions, those that a task causes; the producer is the reader's own.
FOR_TASKS: Final = ("Trigger", "ProcessTasks", "Archive")
# A put, a claim and a completion, each an event of about 420 bytes; Firehose bills packs of 5 KB.
EVENTS_PER_TASK: Final = 3
EVENTS_PER_PACK: Final = 12
PACK_BYTES: Final = 5_000
# Which step of benchmarks.capacity has the reads of a load: tasks that come alone, or claims of ten.
READS: Final = {
    "trickle": ALONE,
    "steady": LIFE,
    "burst": LIFE,
}
LOADS: Final = {
    "trickle": "one every four seconds",
    "steady": "24 a second",
    "burst": "1,000 at once",
}
# The emulator serves a tenth of what an account does, so waits in a burst say nothing.
EMULATOR_BOUND: Final = frozenset({"burst"})
# SQS sends, receives and deletes up to ten messages a request, and Lambda takes as many in one invocation.
SQS_BATCH: Final = 10
# What the system that freshq descends from needs for a task: write units at best, and under backlog.
FORMER_WRITE_UNITS: Final = (8, 22)


@dataclass(frozen=True, slots=True)
class Bill:
    """What a million tasks cost at one load, in US dollars, by service."""

    load: str
    dollars: Mapping[str, float]

    @property
    def total(self) -> float:
        """The sum."""
        return sum(self.dollars.values())


def bill(counted: Mapping[str, Any], read_units: float, prices: Mapping[str, Any]) -> Bill:
    """Return the bill for a million tasks.

    Args:
        counted: One entry of the results of `benchmarks.invocations`.
        read_units: Read units per task.
        prices: The price table.
    """
    tasks = counted["tasks"]
    invocations = sum(counted["invocations"][name] for name in FOR_TASKS) / tasks
    gb_seconds = sum(counted["run_seconds"][name] for name in FOR_TASKS) / tasks * MEMORY_GB
    rings = counted["invocations"]["ProcessTasks"] / tasks
    log_bytes = sum(counted["log_bytes"][name] for name in FOR_TASKS) / tasks
    archived_bytes = EVENTS_PER_TASK / EVENTS_PER_PACK * PACK_BYTES
    dynamodb, functions = prices["dynamodb"], prices["lambda"]
    write_units = counted["write_units"] / tasks
    return Bill(
        counted["load"],
        {
            "DynamoDB": write_units * dynamodb["write_units_million"]
            + read_units * dynamodb["read_units_million"],
            "Lambda": invocations * functions["requests_million"]
            + gb_seconds * functions["gb_seconds_million"],
            "SNS": rings * prices["sns"]["publishes_million"],
            "logs": log_bytes * MILLION / GB * prices["logs"]["gigabyte"],
            "archive": archived_bytes * MILLION / GB * prices["firehose"]["gigabyte"],
        },
    )


def page(invocations: Iterable[Mapping[str, Any]], capacity: Mapping[str, Any], prices: Any) -> str:  # noqa: ANN401 - TOML
    """Return the page."""
    reads = {step["step"]: step["read_units"] for step in capacity["steps"]}
    counted = {one["load"]: one for one in invocations if one["window_seconds"] == WINDOW_SECONDS}
    bills = [bill(counted[load], reads[READS[load]], prices) for load in LOADS]
    text = _HEAD.format(as_of=prices["as_of"]) + _table(bills, counted) + _NOTE
    text += _WAITING.format(
        idle=IDLE_SECONDS,
        waiting=waiting_dollars(prices) * IDLE_SECONDS,
        writes=_write_dollars(counted["trickle"], prices) - _write_dollars(counted["steady"], prices),
        worth=pass_seconds(bills[0], bills[1], prices),
    )
    former = [units * prices["dynamodb"]["write_units_million"] for units in FORMER_WRITE_UNITS]
    one_by_one = 3 * prices["sqs"]["requests_million"]
    text += _BESIDE.format(
        former_least=former[0],
        former_most=former[1],
        sqs_single=one_by_one,
        sqs_batch=one_by_one / SQS_BATCH,
        sqs_lambda=prices["lambda"]["requests_million"] / SQS_BATCH,
    )
    return text + _STANDING.format(**prices["metrics"])


def waiting_dollars(prices: Mapping[str, Any]) -> float:
    """Return what a million passes cost for each second in which they wait."""
    return float(prices["lambda"]["gb_seconds_million"]) * MEMORY_GB


def pass_seconds(alone: Bill, steady: Bill, prices: Mapping[str, Any]) -> float:
    """Return what a pass of its own costs a task, beside its waiting, in seconds of waiting.

    Args:
        alone: The bill where each task has a pass of its own.
        steady: The bill where many share one.
        prices: The price table.
    """
    return (alone.total - steady.total) / waiting_dollars(prices) - IDLE_SECONDS


def _write_dollars(counted: Mapping[str, Any], prices: Mapping[str, Any]) -> float:
    return float(counted["write_units"] / counted["tasks"] * prices["dynamodb"]["write_units_million"])


def _table(bills: Iterable[Bill], counted: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [
        "| load | DynamoDB | Lambda | SNS | logs | archive | **all** | invocations | wait |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for one in bills:
        of = counted[one.load]
        dollars = " | ".join(f"{figure:.2f}" for figure in one.dollars.values())
        per_thousand = sum(of["invocations"][name] for name in FOR_TASKS) * 1000 / of["tasks"]
        wait = "-" if one.load in EMULATOR_BOUND else f"{of['wait_p50_seconds']:.1f} s"
        lines.append(
            f"| {LOADS[one.load]} | {dollars} | **{one.total:.2f}** | {per_thousand:,.0f} | {wait} |"
        )
    return "\n".join(lines) + "\n"


_HEAD: Final = """# Dollars

What a million tasks cost on AWS, in US dollars. `make bench` writes this page from counted figures and the
prices of {as_of} in `benchmarks/prices.toml`, without free tiers.

`make bench PARTS=invocations` counted the write units of every item, the invocations, the time that functions
ran and the bytes that they logged, on the embedded emulator, for tasks under 1 KB whose run takes 10 ms.
Read units are those of [Costs](costs.md). The functions have the template's defaults: 512 MB, arm64, a
batching window of one second, and the claims and successes of every tenth task in the log. The producer
is not on the bill, nor is what your runner does.

"""
_NOTE: Final = """
Invocations are those of 1,000 tasks, and the wait is the median from put to claim; in a burst the emulator
is the limit.
"""
_WAITING: Final = """
A task that comes alone wakes a worker for itself, whose pass waits {idle:g} s for another task before it
ends (`IdleExitSeconds`): {waiting:.2f} dollars of the bill at a trickle. The pass slot and the lease record
take another {writes:.2f} of write units. Without the wait more tasks would need a pass of their own, each of
which costs as much as {worth:.1f} s of waiting. A task every four seconds makes 650,000 tasks a month.
"""
_BESIDE: Final = """
## Beside others

- The system that freshq descends from writes {former_least:.2f} dollars' worth of units for a million
  tasks at best, and {former_most:.2f} under backlog, where it claims tasks that it then has to return.
- SQS with Lambda costs {sqs_single:.2f} dollars a million for sending, receiving and deleting one by one,
  and {sqs_batch:.2f} in batches of ten, plus {sqs_lambda:.2f} for the invocations and the time that they
  run. It is cheaper than any queue in a table. It serves the oldest first, cannot take a waiting task
  back, and serves stale work until its retention ends: under overload you pay it to do the wrong tasks.
"""
_STANDING: Final = """
## A month of standing still

The sweep runs 43,200 times, for less than a dollar. CloudWatch takes {metric_month:.2f} dollars a month
for each metric that a stack reported, about thirty of them, and {alarm_month:.2f} for each alarm. So an
idle stack costs about ten dollars a month, nearly all of it for being watched.
"""


def current() -> str:
    """Return the page as the files make it now."""
    prices = tomllib.loads(PRICES.read_text("utf-8"))
    return page(figures_of("invocations"), figures_of("capacity"), prices)
