"""The tables of overload, made from the results of `benchmarks.overload` and of the simulator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from benchmarks.overload_burst import FOLLOWED_SECONDS, RECOVERED_WITHIN, SEEDS
from benchmarks.overload_setting import BURST_FACTOR, BURST_LOAD, BURST_SECONDS
from benchmarks.sections import Name, filled, paragraph, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

SHOWN_LOADS: Final = (0.5, 0.95, 1.1, 2.0, 5.0, 10.0)
SHOWN_POLICY_LOADS: Final = (0.8, 0.95, 1.1, 2.0, 3.0, 10.0)


def page(written: str, report: Mapping[str, Any]) -> str:
    """Return docs/overload.md with the figures of `benchmarks.overload` updated.

    Raises:
        ValueError: If the page lacks the marks around the table.
    """
    return filled(written, {("overload", "orders"): _table(report["by_load"], "order", SHOWN_LOADS)})


def sections(report: Mapping[str, Any], simulator: Mapping[str, Any]) -> dict[Name, Iterable[str]]:
    """Return the other sections, from the figures of `benchmarks.overload` and `benchmarks.simulator`."""
    return {
        ("overload", "uneven"): _table(report["by_load_uneven"], "order", SHOWN_LOADS),
        ("overload", "burst"): _burst(report["after_burst"]),
        ("overload", "policies"): _table(report["by_policy"], "policy", SHOWN_POLICY_LOADS),
        ("overload", "tenants"): _table(report["by_flood"], "tenants", SHOWN_LOADS),
        ("simulator", "speed"): _speed(simulator),
    }


def _table(rows: Sequence[Mapping[str, Any]], kind: str, loads: Sequence[float]) -> list[str]:
    figures = {(row[kind], row["load"]): row for row in rows}
    return table(
        ["load / capacity", *(f"{load:g}" for load in loads)],
        [
            [name, *(_with_interval(figures[name, load]) for load in loads)]
            for name in dict.fromkeys(row[kind] for row in rows)
        ],
    )


def _burst(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    most, within = 100 / (BURST_LOAD * BURST_FACTOR), 100 * RECOVERED_WITHIN
    yield from paragraph(
        f"A load of {BURST_LOAD:g} of the capacity grows to {BURST_FACTOR:g} times that for "
        f"{BURST_SECONDS:g} s: then at most {most:g} % can be done. The table shows the share of the tasks "
        f"put in each period that was done in time, over {len(SEEDS)} seeds with 95 % intervals. Last "
        f"column: seconds after the burst until the share stays within {within:g} points of its earlier "
        "value."
    )
    yield ""
    spans = list(rows[0]["spans"])
    yield from table(
        ["order", *spans, "as before after"],
        [
            [row["order"], *(_with_interval(row["spans"][span]) for span in spans), _recovery(row)]
            for row in rows
        ],
    )


def _recovery(row: Mapping[str, Any]) -> str:
    seconds = row["recovery_seconds"]
    return f"not within {FOLLOWED_SECONDS:.0f} s" if seconds is None else f"{seconds:.0f} s"


def _with_interval(row: Mapping[str, Any]) -> str:
    return f"{row['mean']:.2f} ± {row['half_width']:.2f}"


def _speed(simulator: Mapping[str, Any]) -> Iterator[str]:
    speeds = simulator["tasks_per_second"]
    yield from paragraph(
        "Simulated tasks a second on one core, as `make bench PARTS=simulator` measures them: the fastest of "
        f"{simulator['rounds']} runs of {simulator['tasks']:,} tasks, in turns."
    )
    yield ""
    loads = next(iter(speeds.values()))
    yield from table(
        ["policy", *(f"at {load} times the capacity" for load in loads)],
        [[name, *(f"{round(speed, -4):,}" for speed in each.values())] for name, each in speeds.items()],
    )
