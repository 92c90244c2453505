"""The sections of docs/costs.md: units and calls, dollars, and what a rate of tasks needs."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any, Final

from benchmarks import bills
from benchmarks.bills import ALONE, LIFE, LIFE_SINGLE, LOADS, SHED, by_load, per_task, rough
from benchmarks.figures import figures_of
from benchmarks.render import Block, Prose, Sections, Table, across, columns
from freshq.stores.dynamodb.queries import LARGER_PAGES_KEYS, LOOKAHEAD_KEYS, MAX_PAGES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.bills import Bill, Constants, Needs

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
    capacity, prices = figures_of("capacity"), tomllib.loads(bills.PRICES.read_text("utf-8"))
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
    of_loads = [
        bills.bill(counted[load], reads[READS[load]], prices, *bills.archive_buffer()) for load in LOADS
    ]
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
    month, often = (bills.month_tasks(each["rate_per_second"]) for each in (alone, steady))
    still = bills.standing(counted.values(), bills.alarm_metrics(), prices).total
    units = {kind: units / alone["tasks"] for kind, units in alone["write_units_of"].items()}
    return {
        "idle": idle_seconds,
        "waiting": idle_seconds * bills.second_dollars(alone, prices),
        "writes": bills.write_dollars(alone, prices) - bills.write_dollars(steady, prices),
        "worth": bills.pass_seconds(of_loads[0], of_loads[1], alone, prices),
        "units": alone["write_units"] / alone["tasks"],
        "parts": ", ".join(f"{ITEMS[kind]} {each:.2f}" for kind, each in units.items()),
        "month": round(month, -4),
        "still": still,
        "on_top": still / month * bills.MILLION,
        "on_top_often": still / often * bills.MILLION,
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
        sqs = bills.sqs_bill(counted[one.load], prices)
        former = bills.FORMER_WRITE_UNITS[one.load] * prices["dynamodb"]["write_units_million"]
        rows += [
            [f"{load}: freshq", *(f"{each:.2f}" for each in ours), f"**{sum(ours):.2f}**"],
            [f"{load}: SQS", *(f"{each:.2f}" for each in sqs.dollars.values()), "", f"**{sqs.total:.2f}**"],
            [f"{load}: the JavaScript prototype", f"{former:.2f}", "", "", ""],
        ]
    return Table(["load and queue", "requests or units", "Lambda", "SNS", "**together**"], rows)


def _standing(entries: Sequence[Mapping[str, Any]], prices: Mapping[str, Any]) -> Prose:
    watched = bills.alarm_metrics()
    still = bills.standing(entries, watched, prices)
    return Prose(
        f"""Without a task, a stack costs {still.total:.2f} dollars a month, nearly all of it for being
        watched: {bills.reported(entries)} metrics at {prices["metrics"]["metric_month"]:.2f} each, in
        proportion to the hours in which they are reported, {watched} metrics of alarms at
        {prices["metrics"]["alarm_month"]:.2f} each, and {bills.MONTH_SECONDS // bills.SWEEP_SECONDS:,} runs
        of the sweep for {still.sweeps:.2f} together."""
    )


def scale_sections() -> Sections:
    """Return the sections about rates."""
    known, quotas = bills.constants(), tomllib.loads(bills.QUOTAS.read_text("utf-8"))
    needs = [bills.needs(rate, known) for rate in bills.RATES_PER_SECOND]
    return {
        ("pipeline_large", "scale"): [_assumed(known), _needs(needs)],
        ("capacity", "quotas"): _quotas(needs, quotas),
    }


def _assumed(known: Constants) -> Prose:
    return Prose(
        f"""Runs take {bills.RUN_SECONDS:g} s here, and a worker has {bills.SLOTS} slots; with other runs the
        number of passes and their cost change in proportion. The pipeline took {known.spark_seconds:.0f} s
        for {known.events:,} events on {known.spark_cores} cores, started cold; the table assumes that more
        cores share the work evenly. Nobody has run {bills.RATES_PER_SECOND[-1]:,} tasks a second."""
    )


def _needs(needs: Sequence[Needs]) -> Table:
    rows = {
        f"passes (`WorkerPasses`) of {bills.SLOTS} slots (`Concurrency`)": ("passes", "{:,}".format),
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
    passes, slots = (int(bills.default(name)) for name in ("WorkerPasses", "Concurrency"))
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
