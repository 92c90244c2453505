"""The sections of the pages asyncio, cli, deploy, overload and telemetry."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from benchmarks.figures import figures_of, read
from benchmarks.overload_setting import (
    BURST_FACTOR,
    BURST_LOAD,
    BURST_SECONDS,
    FOLLOWED_SECONDS,
    RECOVERED_WITHIN,
    SEEDS,
)
from benchmarks.render import Prose, Sections, Table, across, columns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SETTINGS: Final = {
    "off": "none",
    "no SDK": "`OpenTelemetry()`, no SDK",
    "SDK, not sampled": "with the SDK, no trace sampled",
    "SDK, every trace sampled": "with the SDK, every trace sampled",
}
# The package that each queue is measured with.
QUEUES: Final = {
    "freshq": "freshq",
    "procrastinate": "procrastinate {}",
    "taskiq": "taskiq, taskiq-postgres {}",
}
IMPORT, WITH_CLIENTS = 0, 1
TRACED, UNTRACED = "now", "untraced"
# Packages with a smaller share of the imports are summed.
SHOWN_SHARE: Final = 0.04
SHOWN_LOADS: Final = (0.5, 0.95, 1.1, 2.0, 5.0, 10.0)
SHOWN_POLICY_LOADS: Final = (0.8, 0.95, 1.1, 2.0, 3.0, 10.0)
INTERVAL: Final = "{0[mean]:.2f} ± {0[half_width]:.2f}"


def asyncio_sections() -> Sections:
    """Return the section about event loops."""
    found = figures_of("asyncio")
    rows = [each | {"name": QUEUES[name].format(each["version"])} for name, each in found["queues"].items()]
    text = f"""{found["puts"]:,} puts by {found["putters"]} coroutines, and {found["sleepers"]} tasks that
        sleep for {found["sleep_seconds"]:g} s, up to {found["sleepers"]} at a time. The first two columns
        are the median, the lowest and the highest of {len(rows[0]["seconds"])} rounds in turns; the others
        are the maximum of all rounds:"""
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
    return {("asyncio", "coroutines"): [Prose(text), table]}


def cli_sections() -> Sections:
    """Return the section about commands."""
    found = figures_of("cli")
    rows = [
        [
            f"`python -c '{name}'`" if name.startswith("import ") else f"`{name}`",
            f"{seconds:.2f}",
            f"{found['at_most'][name]:.2f}" if name in found["at_most"] else "",
        ]
        for name, seconds in found["processor_seconds"].items()
        if name != "import nothing"
    ]
    return {("cli", "commands"): [Table(["command", "processor seconds", "at most"], rows)]}


def telemetry_sections() -> Sections:
    """Return the section about telemetry."""
    settings = figures_of("telemetry")["settings"]
    rows = [[title, settings[name]] for name, title in SETTINGS.items()]
    cells = [
        [
            title,
            *(
                cell
                for part in ("put", "work")
                for cell in (f"{each[f'{part}_microseconds']:.0f}", f"{each[f'{part}_ratio']:.1f}")
            ),
        ]
        for title, each in rows
    ]
    head = ["telemetry", "put, µs", "ratio", "claim, run, settle, µs", "ratio"]
    return {("telemetry", "costs"): [Table(head, cells)]}


def deploy_page() -> Sections:
    """Return the sections of docs/deploy.md."""
    result = read("coldstart")
    found, machine = result["figures"], result["machine"]
    text = f"Medians of {found['rounds']} starts in turns, Python {machine['python']}, {machine['system']}:"
    table = columns(
        found["processor_ms"].items(),
        {
            "function": lambda item: "".join(word.title() for word in item[0].split("_")),
            "import": lambda item: f"{start_ratio(item[1], TRACED, IMPORT):.2f}",
            "import and clients": lambda item: f"{start_ratio(item[1], TRACED, WITH_CLIENTS):.2f}",
            "the same with `Tracing=off`": lambda item: f"{start_ratio(item[1], UNTRACED, WITH_CLIENTS):.2f}",
        },
    )
    shares = {name: share for name, share in found["shares_of_imports"].items() if share >= SHOWN_SHARE}
    shares["all others"] = 1 - sum(shares.values())
    head = "of the time that imports take, without what a package imports itself"
    imports = columns(shares.items(), {head: "{0[0]}", "share": "{0[1]:.0%}"})
    return {("coldstart", "ratios"): [Prose(text), table], ("coldstart", "imports"): [imports]}


def start_ratio(function: Mapping[str, Any], variant: str, part: int) -> float:
    """Return a function's processor time as a multiple of the time before it had bytecode."""
    return float(function[variant][part] / function["before"][part])


def overload_page() -> Sections:
    """Return the section of docs/overload.md."""
    return {("overload", "orders"): [_by_load(figures_of("overload")["by_load"], "order", SHOWN_LOADS)]}


def policy_sections() -> Sections:
    """Return what else was simulated, and how fast."""
    found, simulator = figures_of("overload"), figures_of("simulator")
    text = f"""Simulated tasks a second on one core, as `make bench PARTS=simulator` measures them: the
        fastest of {simulator["rounds"]} runs of {simulator["tasks"]:,} tasks, in turns."""
    speeds = across(
        "policy",
        simulator["tasks_per_second"],
        lambda speed: f"{round(speed, -4):,}",
        "at {} times the capacity".format,
    )
    return {
        ("overload", "uneven"): [_by_load(found["by_load_uneven"], "order", SHOWN_LOADS)],
        ("overload", "burst"): _burst(found["after_burst"]),
        ("overload", "policies"): [_by_load(found["by_policy"], "policy", SHOWN_POLICY_LOADS)],
        ("overload", "tenants"): [_by_load(found["by_flood"], "tenants", SHOWN_LOADS)],
        ("simulator", "speed"): [Prose(text), speeds],
    }


def _by_load(rows: Sequence[Mapping[str, Any]], kind: str, loads: Sequence[float]) -> Table:
    by_name: dict[str, dict[float, Any]] = {row[kind]: {} for row in rows}
    for row in rows:
        if row["load"] in loads:
            by_name[row[kind]][row["load"]] = row
    return across("load / capacity", by_name, INTERVAL.format, "{:g}".format)


def _burst(rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    most, within = 100 / (BURST_LOAD * BURST_FACTOR), 100 * RECOVERED_WITHIN
    text = f"""A load of {BURST_LOAD:g} of the capacity grows to {BURST_FACTOR:g} times that for
        {BURST_SECONDS:g} s: then at most {most:g} % can be done. The table shows the share of tasks done in
        time by the moment of their put, over {len(SEEDS)} seeds with 95 % intervals. Last column: seconds
        after the burst until the share of each second stays within {within:g} points of the share before the
        burst."""
    spans = list(rows[0]["spans"])
    cells = [
        [row["order"], *(INTERVAL.format(row["spans"][span]) for span in spans), recovery(row)]
        for row in rows
    ]
    return [Prose(text), Table(["order", *spans, "recovered after"], cells)]


def recovery(row: Mapping[str, Any]) -> str:
    """Return how long an order needed to recover."""
    seconds = row["recovery_seconds"]
    return f"not within {FOLLOWED_SECONDS:.0f} s" if seconds is None else f"{seconds:.0f} s"
