"""The page docs/dollars.md. Nothing is measured here, so a test can hold the page to the files."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any, Final

from benchmarks import dollars, stack
from benchmarks.costs_page import ALONE, LIFE, LIFE_SINGLE
from benchmarks.dollars import FOR_TASKS, LOADS, PRICES, WINDOW_SECONDS
from benchmarks.figures import figures_of
from benchmarks.sections import paragraph, table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.dollars import Bill

# Which step of benchmarks.capacity has the reads of a load. At 24 a second a claim finds one task or a few:
# those of single claims are the most that it can be.
READS: Final = {"trickle": ALONE, "steady": LIFE_SINGLE, "burst": LIFE}
# What the page says are the template's defaults; a test compares them.
DEFAULTS: Final = (
    "BatchingWindowSeconds",
    "IdleExitSeconds",
    "LogSampleRatio",
    "MemorySize",
    "WorkerPasses",
)
# AWS Lambda Developer Guide, "Configure Lambda function memory".
MB_OF_A_CORE: Final = 1769
# What the items are that freshq keeps for itself, by the kind in their ids.
ITEMS: Final = {
    "tasks": "the tasks",
    "pass": "pass slots",
    "lease": "lease records",
    "counts": "flow counts",
    "record": "shared records",
    "control": "the control record",
    "line": "line records",
}
HEAD: Final = ["load", *("DynamoDB", "Lambda", "SNS", "logs", "Firehose", "S3"), "**all**"]


def current() -> str:
    """Return the page as the files make it now."""
    prices = tomllib.loads(PRICES.read_text("utf-8"))
    return page(figures_of("invocations"), figures_of("capacity"), prices)


def bills(counted: Mapping[str, Any], capacity: Mapping[str, Any], prices: Mapping[str, Any]) -> list[Bill]:
    """Return the bill of each load.

    Args:
        counted: What `benchmarks.invocations` counted, by load.
        capacity: The figures of `benchmarks.capacity`.
        prices: The price table.
    """
    reads = {step["step"]: step["read_units"] for step in capacity["steps"]}
    buffer = stack.archive_buffer()
    return [dollars.bill(counted[load], reads[READS[load]], prices, *buffer) for load in LOADS]


def page(entries: Sequence[Mapping[str, Any]], capacity: Mapping[str, Any], prices: Mapping[str, Any]) -> str:
    """Return the page.

    Args:
        entries: What `benchmarks.invocations` counted.
        capacity: The figures of `benchmarks.capacity`.
        prices: The price table.
    """
    counted, at_once = (
        {one["load"]: one for one in entries if one["window_seconds"] == window}
        for window in (WINDOW_SECONDS, 0)
    )
    of_loads = bills(counted, capacity, prices)
    steps = {step["step"]: step for step in capacity["steps"]}
    parts = [
        "# Dollars",
        _wrapped(_HEAD, as_of=prices["as_of"]),
        _wrapped(_SETTING, **_setting(counted)),
        _table([*HEAD, "invocations per 1,000 tasks", "median wait, put to claim"], _rows(of_loads, counted)),
        _wrapped(_BURST, **counted["burst"]),
        _wrapped(_NOT_ON_IT, **_setting(counted)),
        "## Tasks that come alone",
        _wrapped(_ALONE, **_alone(of_loads, counted, prices)),
        _wrapped(_UNITS, **_units(counted["trickle"], steps[ALONE]["write_units"])),
        "## The batching window",
        _wrapped(_WINDOW, **counted["steady"]["parameters"]),
        _table(_WINDOW_HEAD, [row for load in LOADS for row in _windows(counted[load], at_once[load])]),
        _wrapped(_AT_ONCE, **at_once["steady"]),
        "## Beside others",
        _table(_BESIDE_HEAD, _beside(of_loads, counted, prices)),
        _wrapped(_BESIDE, empty=prices["sqs"]["empty_receives_minute"]),
        "## A month of standing still",
        _wrapped(_STANDING, **_standing([*counted.values()], prices)),
    ]
    return "\n\n".join(parts) + "\n"


def _wrapped(text: str, **values: Any) -> str:
    return "\n".join(paragraph(" ".join(text.split()).format(**values)))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(table(head, rows))


def _per_thousand(counted: Mapping[str, Any]) -> str:
    return f"{sum(counted['invocations'][name] for name in FOR_TASKS) * 1000 / counted['tasks']:,.0f}"


def _rows(of_loads: Sequence[Bill], counted: Mapping[str, Any]) -> list[list[str]]:
    return [
        [
            LOADS[one.load],
            *(f"{figure:.2f}" for figure in one.dollars.values()),
            f"**{one.total:.2f}**",
            _per_thousand(counted[one.load]),
            f"{counted[one.load]['wait_p50_seconds']:.1f} s",
        ]
        for one in of_loads
    ]


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


def _alone(
    of_loads: Sequence[Bill],
    counted: Mapping[str, Any],
    prices: Mapping[str, Any],
) -> dict[str, Any]:
    alone, steady = counted["trickle"], counted["steady"]
    idle_seconds = float(alone["parameters"]["IdleExitSeconds"])
    month, often = (dollars.month_tasks(each["rate_per_second"]) for each in (alone, steady))
    still = dollars.standing(counted.values(), stack.alarm_metrics(), prices).total
    return {
        "idle": idle_seconds,
        "waiting": idle_seconds * dollars.second_dollars(alone, prices),
        "writes": dollars.write_dollars(alone, prices) - dollars.write_dollars(steady, prices),
        "worth": dollars.pass_seconds(of_loads[0], of_loads[1], alone, prices),
        "month": round(month, -4),
        "still": still,
        "on_top": still / month * dollars.MILLION,
        "on_top_often": still / often * dollars.MILLION,
    }


def _units(counted: Mapping[str, Any], alone: float) -> dict[str, Any]:
    each = {kind: units / counted["tasks"] for kind, units in counted["write_units_of"].items()}
    return {
        "units": counted["write_units"] / counted["tasks"],
        "alone": alone,
        "parts": ", ".join(f"{ITEMS[kind]} {units:.2f}" for kind, units in each.items()),
    }


_WINDOW_HEAD: Final = ["load", "window", "invocations per 1,000 tasks", "median wait, put to claim"]


def _windows(*entries: Mapping[str, Any]) -> list[list[str]]:
    return [
        [
            LOADS[one["load"]],
            f"{one['window_seconds']} s",
            _per_thousand(one),
            f"{one['wait_p50_seconds']:.2f} s",
        ]
        for one in entries
    ]


_BESIDE_HEAD: Final = ["load and queue", "requests or units", "Lambda", "SNS", "**together**"]


def _beside(
    of_loads: Sequence[Bill], counted: Mapping[str, Any], prices: Mapping[str, Any]
) -> list[list[str]]:
    rows = []
    for one in of_loads:
        load, ours = LOADS[one.load], [one.dollars[name] for name in ("DynamoDB", "Lambda", "SNS")]
        sqs = dollars.sqs_bill(counted[one.load], prices)
        former = dollars.FORMER_WRITE_UNITS[one.load] * prices["dynamodb"]["write_units_million"]
        rows += [
            [f"{load}: freshq", *(f"{each:.2f}" for each in ours), f"**{sum(ours):.2f}**"],
            [f"{load}: SQS", *(f"{each:.2f}" for each in sqs.dollars.values()), "", f"**{sqs.total:.2f}**"],
            [f"{load}: the system before freshq", f"{former:.2f}", "", "", ""],
        ]
    return rows


def _standing(entries: Sequence[Mapping[str, Any]], prices: Mapping[str, Any]) -> dict[str, Any]:
    alarm_metrics = stack.alarm_metrics()
    still = dollars.standing(entries, alarm_metrics, prices)
    return {
        **prices["metrics"],
        "runs": dollars.MONTH_SECONDS // dollars.SWEEP_SECONDS,
        "sweeps": still.sweeps,
        "reported": dollars.reported(entries),
        "watched": alarm_metrics,
        "total": still.total,
    }


_HEAD: Final = """
What a million tasks cost on AWS, in US dollars. `make bench` writes this page from counted figures and
the prices of {as_of} in `benchmarks/prices.toml`, without free tiers."""
_SETTING: Final = """
`make bench PARTS=invocations` counted the write units of every item, the invocations, the time that
functions ran and the bytes that they logged, on the embedded emulator, for tasks under 1 KB whose run
takes {task_ms:g} ms. Read units are those of [Costs](costs.md). Memory of {MemorySize} MB, a batching
window of {BatchingWindowSeconds} s, a wait of {IdleExitSeconds} s before a worker ends, and the lines of
one task in {sampled} in the log are the template's defaults; `Concurrency` of {Concurrency} and the
archive are not: we set them. The emulator has no batches of writes ([decision
58](decisions/0058-batched-writes.md)), so each write was a call."""
_BURST: Final = """
The wait in the burst is the emulator's: it took {seconds:.0f} s to serve the {tasks:,} tasks. Counted
figures depend a little on the machine, too: where it is slower, fewer passes serve the same tasks."""
_NOT_ON_IT: Final = """
Each put and each run of {task_ms:g} ms is on the bill; the function that puts is not, and the sweep is
below. Runs were timed on this machine: on Lambda, that memory has {cores:.2f} of a core, so the
processor's part of Lambda's column may be three times as much. Waiting, most of it where tasks come
alone, takes the same time. Lambda reads the stream without charge. Storage, KMS, Parameter Store and
X-Ray are not on the bill, nor are cold starts, which Lambda has billed since August 2025."""
_ALONE: Final = """
A task that comes alone wakes a worker for itself, whose pass waits {idle:g} s for another task before it
ends (`IdleExitSeconds`): {waiting:.2f} dollars of the bill. Its pass slot and its lease record take
another {writes:.2f} of write units. Without the wait more tasks would need a pass of their own, each of
which costs as much as {worth:.1f} s of waiting. One task every four seconds makes {month:,.0f} tasks a
month. The stack's own {still:.2f} dollars a month ([below](#a-month-of-standing-still)) come on top:
{on_top:.2f} dollars a million at that rate, {on_top_often:.2f} at 24 a second."""
_UNITS: Final = """
Each of these tasks took {units:.2f} write units: {parts}. [Costs](costs.md) counts {alone:.2f} for the
same life step by step, without the sweep and with the benchmark's own clock."""
_WINDOW: Final = """
`BatchingWindowSeconds` is how long Trigger waits for more new tasks before it rings. The default of
{BatchingWindowSeconds} s saves invocations where tasks keep coming, because the worker under way takes
them anyway; only a task that finds no worker waits for it."""
_AT_ONCE: Final = """
Without a window at {rate_per_second:g} a second, the emulator was asked for {invocations[ProcessTasks]}
workers before the first had started, and took {seconds:.0f} s for the tasks: that wait is its own. Lambda
starts them sooner, and may invoke Trigger more often: up to four times a second for each shard."""
_BESIDE: Final = """
`together` is the sum of requests to SQS or units of DynamoDB, of invocations and of the time that
functions run. It leaves out logs and the archive, which we did not count for the others. For SQS we
computed what Lambda reads from it: one message a request and an invocation where they come alone, beside
connections that ask an empty queue {empty} times a minute, and ten otherwise; each run as long as
freshq's, and no time for the function around it. Of the system that freshq descends from we know the
write units alone: at best, and in the burst those under backlog, where it claims tasks that it then has
to return. SQS is cheaper than any queue in a table. It serves the oldest first, cannot take a waiting
task back, and serves stale work until its retention ends: under overload you pay it to do the wrong
tasks."""
_STANDING: Final = """
The sweep runs {runs:,} times, for {sweeps:.2f} dollars. CloudWatch takes {metric_month:.2f} dollars a
month for each metric, in proportion to the hours in which it is reported: this stack reported {reported}.
It takes {alarm_month:.2f} for each metric that an alarm watches, {watched} of them. So a stack costs
{total:.2f} dollars a month beside its tasks, nearly all of it for being watched."""
