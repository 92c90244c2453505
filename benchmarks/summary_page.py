"""The sections of docs/benchmarks.md: the figures that a user compares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from benchmarks.costs_page import LOADS, by_load, per_task
from benchmarks.figures import figures_of
from benchmarks.overload_setting import (
    FIRST_SECONDS,
    MEASURED_DEADLINE_SECONDS,
    MEASURED_SECONDS,
    MEASURED_TASK_SECONDS,
    SERVERS,
)
from benchmarks.render import Prose, Sections, Table, columns, spread
from benchmarks.worker_page import rates

if TYPE_CHECKING:
    from collections.abc import Sequence


def summary_page() -> Sections:
    """Return the sections of docs/benchmarks.md."""
    measured = _of_application()
    return {
        ("invocations", "application"): [_logs()],
        ("overload", "application"): [
            Prose(_MEASURED.format(**measured)),
            _application(),
            Prose(_SHARES.format(**measured)),
        ],
        ("worker", "rates"): [rates("postgresql"), rates("sqlite")],
        ("passed_over", "places"): [_passed_over()],
    }


def _of_application() -> dict[str, str]:
    """Return what the application was measured with, as the text says it."""
    found = figures_of("overload")["application"]
    below = [one for one in found if one["offered"] <= 1]
    # What three tasks more or less change, where the fewest arrived.
    least = min(below, key=lambda one: one["arrived"])
    long, short = max(MEASURED_SECONDS.values()), min(MEASURED_SECONDS.values())
    return {
        "deadline": f"{MEASURED_DEADLINE_SECONDS:g}",
        "servers": str(SERVERS),
        "task": f"{MEASURED_TASK_SECONDS:g}",
        "long": f"{long:g}",
        "short": f"{short:g}",
        "first": f"{FIRST_SECONDS:g}",
        "slots": _from_to([one["slot_seconds"] for one in found], ".2f"),
        "loads": _from_to([one["machine_load"] for one in found], ".1f"),
        "least_tasks": str(least["arrived"]),
        "most_tasks": str(max(one["arrived"] for one in below)),
        "points": f"{100 * 3 * least['load'] / least['arrived']:.1f}",
    }


def _from_to(numbers: Sequence[float], form: str) -> str:
    return f"{min(numbers):{form}} to {max(numbers):{form}}"


def _logs() -> Table:
    of = by_load()
    return columns(
        LOADS.items(),
        {
            "load": "{0[1]}",
            "invocations for 1,000 tasks": lambda item: f"{1000 * per_task(of[item[0]], 'invocations'):,.0f}",
            "bytes logged a task": lambda item: f"{per_task(of[item[0]], 'log_bytes'):,.0f}",
            "write units a task": lambda item: f"{of[item[0]]['write_units'] / of[item[0]]['tasks']:.2f}",
        },
    )


def _application() -> Table:
    def seconds(which: str) -> Any:
        return lambda one: "" if one[which] is None else f"{one[which]:.2f} s"

    return columns(
        figures_of("overload")["application"],
        {
            "order": "{order}",
            "load / capacity": "{load:.2f}",
            "done in time": "{goodput:.2f}",
            "the same, simulated": "{simulated_goodput:.2f}",
            "tasks": "{done} of {arrived}",
            "wait, p50": seconds("wait_p50_seconds"),
            "wait, p99": seconds("wait_p99_seconds"),
        },
    )


def _passed_over() -> Table:
    return columns(
        passed_over_runs().items(),
        {
            "claimers": "{0[0]}",
            "claims that pass over a better task": lambda item: _spread(item[1], "share", ".0%"),
            "places, mean": lambda item: _spread(item[1], "mean_places", ".1f"),
            "places, most": lambda item: f"{max(run['most_places'] for run in item[1])}",
        },
    )


def _spread(runs: Sequence[dict[str, Any]], name: str, form: str) -> str:
    return spread([run[name] for run in runs], form)


def passed_over_runs() -> dict[int, list[dict[str, Any]]]:
    """Return the runs of `benchmarks.growth` by the number of claimers."""
    found: dict[int, list[dict[str, Any]]] = {}
    for run in figures_of("passed_over")["runs"]:
        found.setdefault(run["claimers"], []).append(run)
    return found


_MEASURED: Final = (
    "The deployed application ran on the embedded emulator, with {servers} slots, tasks of {task} s and a "
    "deadline of {deadline} s: three stacks, one for each order, side by side with the same arrivals, for "
    "{long} s up to the capacity and {short} s beyond it. The first {first} s do not count. "
    "`BatchingWindowSeconds` is 0 here: the simulator knows no worker that waits to be woken. The "
    "JavaScript prototype is simulated only."
)
_SHARES: Final = (
    "A share is of what the slots could do, given the measured time from one task to the next in a slot: "
    "{slots} s. The emulator needs part of that time, on a machine whose load average was {loads}. Beside "
    "each share is that of the simulator for the recorded arrivals. *Tasks* are those done in time, of "
    "those that arrived. Up to the capacity {least_tasks} to {most_tasks} arrived: three tasks that end "
    "after the last second can be {points} points. At both ends one more task may end than the slots do "
    "on average; a share above 1 is shown as 1. Close to the capacity a backlog needs minutes to reach "
    "the deadline, so FIFO does not fail within this time."
)
