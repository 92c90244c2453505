"""Sections of docs/compare.md, overload.md, and contributing/{cold-starts,measurements}.md."""

from __future__ import annotations

from operator import truediv
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from benchmarks import overload_setting as setting
from benchmarks.costs_page import all_steps, scale_sections
from benchmarks.fair import DEADLINE
from benchmarks.figures import figures_of, read
from benchmarks.render import Block, Prose, Sections, Table, across, columns, spread
from benchmarks.worker_page import rates, wakes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SETTINGS: Final = {
    "off": "none",
    "no SDK": "`OpenTelemetry()`, no SDK",
    "SDK, not sampled": "with the SDK, no trace sampled",
    "SDK, every trace sampled": "with the SDK, every trace sampled",
}
IMPORT, WITH_CLIENTS = 0, 1
TRACED, UNTRACED = "now", "untraced"
# Packages with a smaller share of the imports are summed.
SHOWN_SHARE: Final = 0.04
SHOWN_LOADS: Final = (0.5, 0.95, 1.1, 2.0, 5.0, 10.0)
SHOWN_POLICY_LOADS: Final = (0.8, 0.95, 1.1, 2.0, 3.0, 10.0)
INTERVAL: Final = "{0[mean]:.2f} ± {0[half_width]:.2f}"
# Names in the results of the part `sql`.
PUT: Final = "freshq, put one by one"
ONE_BY_ONE: Final = "freshq, claim and complete one by one"
BY_TEN: Final = "freshq, claims of 10 and settle_many"
DURABLE: Final = ", durable"
WAYS: Final = {
    PUT: "put one by one",
    ONE_BY_ONE: "claim and complete one by one",
    BY_TEN: "claims and completions of ten",
}


def compare_page() -> Sections:
    """Return the sections of docs/compare.md."""
    return {("worker", "rates"): [rates("postgresql"), rates("sqlite")], ("wake", "latency"): wakes()}


def _of_application(found: Sequence[Mapping[str, Any]]) -> list[Block]:
    text = f"""The deployed application ran on the embedded emulator with {setting.SERVERS} slots, tasks of
        {setting.MEASURED_TASK_SECONDS:g} s and a deadline of {setting.MEASURED_DEADLINE_SECONDS:g} s: one
        stack for each order, side by side with the same arrivals, for
        {max(setting.MEASURED_SECONDS.values()):g} s up to the capacity and
        {min(setting.MEASURED_SECONDS.values()):g} s beyond it. The first {setting.FIRST_SECONDS:g} s do not
        count."""
    seconds = [one["slot_seconds"] for one in found]
    loads = [one["machine_load"] for one in found]
    notes = f"""Shares are of the capacity that follows from the measured time per task in a slot,
        {min(seconds):.2f} to {max(seconds):.2f} s; the load average of the machine was {min(loads):.1f} to
        {max(loads):.1f}. Few tasks arrive below the capacity, so a difference of a few points there is noise.
        FIFO needs minutes at the capacity before its backlog reaches the deadline."""
    return [Prose(text), _application(found), Prose(notes)]


def _application(found: Sequence[Mapping[str, Any]]) -> Table:
    def seconds(which: str) -> Any:
        return lambda one: "" if one[which] is None else f"{one[which]:.2f} s"

    return columns(
        found,
        {
            "order": "{order}",
            "load / capacity": "{load:.2f}",
            "done in time": "{goodput:.2f}",
            "simulated": "{simulated_goodput:.2f}",
            "tasks": "{done} of {arrived}",
            "wait, p50": seconds("wait_p50_seconds"),
            "wait, p99": seconds("wait_p99_seconds"),
        },
    )


def _passed_over() -> Table:
    def shown(name: str, form: str) -> Any:
        return lambda item: spread([run[name] for run in item[1]], form)

    return columns(
        passed_over_runs().items(),
        {
            "claimers": "{0[0]}",
            "claims that skip a newer task": shown("share", ".0%"),
            "positions, mean": shown("mean_places", ".1f"),
            "positions, most": lambda item: f"{max(run['most_places'] for run in item[1])}",
        },
    )


def passed_over_runs() -> dict[int, list[dict[str, Any]]]:
    """Return the runs of the part `passed-over` by number of claimers."""
    found: dict[int, list[dict[str, Any]]] = {}
    for run in figures_of("passed_over")["runs"]:
        found.setdefault(run["claimers"], []).append(run)
    return found


def cold_start_page() -> Sections:
    """Return the sections of docs/contributing/cold-starts.md."""
    result = read("coldstart")
    found, machine = result["figures"], result["machine"]
    text = f"Medians of {found['rounds']} starts in turns, Python {machine['python']}, {machine['system']}:"

    def milliseconds(variant: str, part: int) -> Any:
        return lambda item: f"{item[1][variant][part]:.0f}"

    def ratio(variant: str, part: int) -> Any:
        return lambda item: f"{start_ratio(item[1], variant, part):.2f}"

    table = columns(
        found["processor_ms"].items(),
        {
            "function": lambda item: "".join(word.title() for word in item[0].split("_")),
            "import, ms": milliseconds(TRACED, IMPORT),
            "import and clients, ms": milliseconds(TRACED, WITH_CLIENTS),
            "both with `Tracing=off`, ms": milliseconds(UNTRACED, WITH_CLIENTS),
            "import, ratio": ratio(TRACED, IMPORT),
            "import and clients, ratio": ratio(TRACED, WITH_CLIENTS),
        },
    )
    shares = {name: share for name, share in found["shares_of_imports"].items() if share >= SHOWN_SHARE}
    shares["all others"] = 1 - sum(shares.values())
    imports = columns(
        shares.items(), {"package, without its own imports": "{0[0]}", "share of the time": "{0[1]:.0%}"}
    )
    return {("coldstart", "ratios"): [Prose(text), table], ("coldstart", "imports"): [imports]}


def start_ratio(function: Mapping[str, Any], variant: str, part: int) -> float:
    """Return a function's processor time as a multiple of the time without bytecode."""
    return float(function[variant][part] / function["before"][part])


def overload_page() -> Sections:
    """Return the sections of docs/overload.md."""
    return {("overload_peers", "queues"): _beside_peers(read("overload_peers"))}


def _beside_peers(result: Mapping[str, Any]) -> list[Block]:
    found, machine = result["figures"], result["machine"]
    peers = {name: number for name, number in found["versions"].items() if number and name != "freshq"}
    text = f"""Medians of {found["seeds"]} seeds, with {found["seconds"]:g} s at each load,
        {", ".join(" ".join(peer) for peer in peers.items())}, {machine["cores"]} cores at a load average of
        {machine["load"]} (`make bench PARTS=overload-peers`):"""

    def of(scenario: str, name: str, form: str) -> Any:
        return lambda item: f"{median(run[name] for run in item[1][scenario]):{form}}"

    def share(load: str) -> Any:
        return lambda item: f"{possible_ratio(item[1][load], float(load)):.1%}"

    def wait(item: Any) -> str:
        seconds = [run["median_seconds"] for run in item[1]["3"] if run["median_seconds"] is not None]
        return f"{median(seconds):.2f} s" if seconds else ""

    def back(item: Any) -> str:
        seconds = [run["recovery_seconds"] for run in item[1]["retries"]]
        return "not within the run" if None in seconds else f"{median(seconds):.0f} s"

    table = columns(
        found["contenders"].items(),
        {
            "queue": "{0[0]}",
            **{f"at {load}": share(load) for load in ("0.5", "0.9", "1.5", "3")},
            "put to done at 3": wait,
            "wasted work at 3": of("3", "wasted", ".0%"),
            "left at 3": of("3", "left", ".0f"),
            "back after": back,
        },
    )
    return [Prose(text), table]


def possible_ratio(runs: Sequence[Mapping[str, Any]], load: float) -> float:
    """Return the share of the work done in time that is possible at a load, as the median of the runs."""
    in_time: float = median(run["in_time"] for run in runs)
    return in_time * max(1.0, load)


def measurements_page() -> Sections:
    """Return the sections of docs/contributing/measurements.md."""
    return {
        ("capacity", "all steps"): [all_steps()],
        **scale_sections(),
        **_policies(),
        ("passed_over", "places"): [_passed_over()],
        **_fair(figures_of("fair")),
        **_chains(figures_of("chains")),
        **_limits(figures_of("limits")),
        ("history", "costs"): _history(figures_of("history")),
        ("sql", "durable"): [_durable(figures_of("sql")["sqlite"])],
        ("sql", "postgresql"): _postgresql(read("sql")),
        ("asyncio", "coroutines"): _coroutines(figures_of("asyncio")),
        ("telemetry", "costs"): [_telemetry(figures_of("telemetry")["settings"])],
        ("cli", "commands"): [_commands(figures_of("cli"))],
    }


def _policies() -> Sections:
    found, simulator = figures_of("overload"), figures_of("simulator")
    after_outage = figures_of("outage")["by_load"]
    text = f"""Simulated tasks a second on one core: the fastest of {simulator["rounds"]} runs of
        {simulator["tasks"]:,} tasks, in turns (`make bench PARTS=simulator`)."""
    speeds = across(
        "policy",
        simulator["tasks_per_second"],
        lambda speed: f"{round(speed, -4):,}",
        "at {} times the capacity".format,
    )
    return {
        ("overload", "application"): _of_application(found["application"]),
        ("overload", "orders"): [_by_load(found["by_load"], "order", SHOWN_LOADS)],
        ("overload", "uneven"): [_by_load(found["by_load_uneven"], "order", SHOWN_LOADS)],
        ("overload", "burst"): _burst(found["after_burst"]),
        ("overload", "policies"): [_by_load(found["by_policy"], "policy", SHOWN_POLICY_LOADS)],
        ("overload", "tenants"): [_by_load(found["by_flood"], "tenants", SHOWN_LOADS)],
        ("outage", "shares"): [_by_load(after_outage, "order", (0.5, 0.6, 0.7, 0.8, 0.9))],
        ("simulator", "speed"): [Prose(text), speeds],
    }


def _fair(found: Mapping[str, Any]) -> Sections:
    lengths = [row for row in found["by_length"] if row["deadline"] == DEADLINE]
    short = [row for row in found["by_length"] if row["deadline"] != DEADLINE]
    cell = "{0[quiet]:.3f}, {0[flood]:.2f}"
    rules = columns(
        found["rules"],
        {
            "": "{where}",
            "time of weight 3 / of weight 1": "{ratio:.2f}",
            "victim, 40 keys below one parent": "{victim:.3f}",
            "without a parent": lambda row: str(row.get("victim_without_parent", "")),
            "most at a time, limit 4": lambda row: str(row.get("most_running", "")),
            "most starts in any second, limit 20": lambda row: str(row.get("most_starts", "")),
        },
    )
    scenarios = columns(
        found["scenarios"],
        {
            "backlog": "{scenario}",
            "wait, one line": "{line_wait:,.1f}",
            "with groups": "{groups_wait:,.1f}",
            "makespan, one line": "{line_makespan:,.0f}",
            "makespan, with groups": "{groups_makespan:,.0f}",
        },
    )
    heading = "length of the flood's tasks"
    return {
        ("fair", "lengths"): [_by_place(lengths, heading, "length", cell)],
        ("fair", "short"): [_by_place([*short, *found["bounds"]], heading, "length", cell)],
        ("fair", "rules"): [rules],
        ("fair", "scenarios"): [scenarios],
    }


def _chains(found: Mapping[str, Any]) -> Sections:
    # The short load of a worker has a few long chains more or less, so its work for chains is counted.
    of_workers = [row | {"done": row["busy"] * row["useful"] / 2} for row in found["chains"] if "busy" in row]
    rows = [*(row for row in found["chains"] if "busy" not in row), *of_workers]
    form = "{0[done]:.3f}, {0[useful]:.0%}"
    return {("chains", "chains"): [_by_place(rows, "tasks of a chain", "hops", form)]}


def _limits(found: Mapping[str, Any]) -> Sections:
    claims = columns(
        found["claims"],
        {
            "claim of one task, ms": "{where}",
            "beside 100 groups": "{few_ms:.2f}",
            "4,900 more at their limit": "{many_ms:.2f}",
            "ratio": lambda row: f"{row['many_ms'] / row['few_ms']:.2f}",
        },
    )
    return {("limits", "claims"): [claims]}


def _by_place(rows: Sequence[Mapping[str, Any]], corner: str, column: str, form: str) -> Table:
    """Return a table of rows by where they were found."""
    by_name: dict[str, dict[Any, Any]] = {}
    for row in rows:
        by_name.setdefault(row["where"], {})[row[column]] = row
    return across(corner, by_name, form.format)


def _by_load(rows: Sequence[Mapping[str, Any]], kind: str, loads: Sequence[float]) -> Table:
    by_name: dict[str, dict[float, Any]] = {row[kind]: {} for row in rows}
    for row in rows:
        if row["load"] in loads:
            by_name[row[kind]][row["load"]] = row
    return across("load / capacity", by_name, INTERVAL.format, "{:g}".format)


def _burst(rows: Sequence[Mapping[str, Any]]) -> list[Block]:
    most, within = 100 / (setting.BURST_LOAD * setting.BURST_FACTOR), 100 * setting.RECOVERED_WITHIN
    text = f"""A load of {setting.BURST_LOAD:g} of the capacity grows to {setting.BURST_FACTOR:g} times that
    for
        {setting.BURST_SECONDS:g} s, of which at most {most:g} % can be done. Share of tasks done in time by
        the moment of their put, over {len(setting.SEEDS)} seeds with 95 % intervals. Last column: seconds
        after the burst until the share of each second stays within {within:g} points of the share before the
        burst."""
    spans = list(rows[0]["spans"])
    cells = [
        [row["order"], *(INTERVAL.format(row["spans"][span]) for span in spans), recovery(row)]
        for row in rows
    ]
    return [Prose(text), Table(["order", *spans, "recovered after"], cells)]


def recovery(row: Mapping[str, Any]) -> str:
    """Return the time that an order needed to recover."""
    seconds = row["recovery_seconds"]
    return f"not within {setting.FOLLOWED_SECONDS:.0f} s" if seconds is None else f"{seconds:.0f} s"


def _history(found: Mapping[str, Any]) -> list[Block]:
    text = f"""{found["rounds"]} turns of {found["tasks"]} tasks (`make bench PARTS=history`): medians and
        quartiles of the ratios to a table without a history in the same turn. Processor time is the client's,
        so only SQLite's is shown, which runs in the client."""
    quartiles = "{1:.2f} ({0:.2f} to {2:.2f})".format
    rows = [
        [
            f"{database}, {batch} at a time",
            f"{kinds['off']['wall_us'] / 1000:.2f} ms",
            quartiles(*kinds["on"]["wall_ratios"]),
            quartiles(*kinds["of another queue"]["wall_ratios"]),
            quartiles(*kinds["on"]["processor_ratios"]) if database == "SQLite" else "",
        ]
        for database, by_batch in found["databases"].items()
        for batch, kinds in by_batch.items()
    ]
    head = [
        "put, claim and completion",
        "no history, time per task",
        "with a history, ratio",
        "history of another queue, ratio",
        "with a history, processor time, ratio",
    ]
    return [Prose(text), Table(head, rows)]


def _durable(sqlite: Mapping[str, Sequence[float]]) -> Table:
    return columns(
        [(title, sqlite[name + DURABLE], sqlite[name]) for name, title in WAYS.items()],
        {
            "SQLite, one worker, tasks a second": "{0[0]}",
            "durable": lambda row: f"{median(row[1]):,.0f}",
            "`durable=False`": lambda row: f"{median(row[2]):,.0f}",
            "ratio": lambda row: f"{median(map(truediv, row[1], row[2])):.2f}",
        },
    )


def _postgresql(result: Mapping[str, Any]) -> list[Block]:
    found, machine = result["figures"], result["machine"]
    text = f"""Medians of {found["rounds"]} rounds on {machine["cores"]} cores; load average before:
        {machine["load_before"]}."""
    rates = {name: found["postgresql"][name] for name in WAYS}
    table = across(
        "PostgreSQL, tasks a second",
        rates,
        lambda each: f"{median(each):,.0f}",
        lambda number: f"{number} worker{'s' * (number != '1')}",
    )
    return [Prose(text), table]


def _coroutines(found: Mapping[str, Any]) -> list[Block]:
    rows = [each | {"name": f"{name} {each['version']}"} for name, each in found["queues"].items()]
    text = f"""{found["puts"]:,} puts by {found["putters"]} coroutines, and {found["sleepers"]} tasks that
        sleep for {found["sleep_seconds"]:g} s, up to {found["sleepers"]} at a time. Rates and seconds are
        medians of {len(rows[0]["seconds"])} rounds in turns, with the range; the others are maxima."""
    table = columns(
        rows,
        {
            "": "{name}",
            "puts a second": "{puts_per_second:,.0f}",
            f"seconds until all {found['sleepers']} were done": "{seconds:.1f}",
            "most at once": lambda row: f"{max(row['most_sleeping'])}",
            "threads": lambda row: f"{max(row['threads'])}",
            "connections": lambda row: f"{max(row['connections'])}",
        },
    )
    return [Prose(text), table]


def _telemetry(settings: Mapping[str, Mapping[str, float]]) -> Table:
    return columns(
        [{"title": title, **settings[name]} for name, title in SETTINGS.items()],
        {
            "telemetry": "{title}",
            "put, µs": "{put_microseconds:.0f}",
            "put, ratio": "{put_ratio:.1f}",
            "claim, run, settle, µs": "{work_microseconds:.0f}",
            "its ratio": "{work_ratio:.1f}",
        },
    )


def _commands(found: Mapping[str, Any]) -> Table:
    return columns(
        [item for item in found["processor_seconds"].items() if item[0] != "import nothing"],
        {
            "command": lambda item: f"`python -c '{item[0]}'`" if "import" in item[0] else f"`{item[0]}`",
            "processor seconds": "{0[1]:.2f}",
            "at most": lambda item: f"{found['at_most'][item[0]]:.2f}" if item[0] in found["at_most"] else "",
        },
    )
