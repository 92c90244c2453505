"""Sections of docs/contributing/growth.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from benchmarks.costs_page import most_passed_over
from benchmarks.figures import figures_of
from benchmarks.render import Prose, Sections, Table, bold, columns
from freshq.stores.dynamodb.queries import LARGER_PAGES_KEYS, MAX_PAGES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STORES: Final = {
    "memory": "memory",
    "sqlite": "SQLite",
    "postgresql": "PostgreSQL",
    "dynamodb": "DynamoDB Local",
}
SITUATIONS: Final = ("waiting", "beside stale, LIFO", "beside stale, FIFO", "beside finished", "groups")
GROUPS: Final = "groups"
AIM: Final = 1.2
AIM_OF_GROUPS: Final = 2.0


def growth_page() -> Sections:
    """Return the sections of docs/contributing/growth.md."""
    report = {store: figures_of(f"growth_{store}") for store in STORES}
    sections = growth_sections(report, figures_of("capacity"))
    sections["horizon", "pages"] = [horizon_table(figures_of("horizon"))]
    return sections


def horizon_table(found: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of claims while a snapshot is open.

    Args:
        found: Figures of the part `horizon`.
    """
    return columns(
        found,
        {
            "queue": "{queue}",
            "tasks finished": "{finished:,}",
            "pages of a claim": "{pages:,.0f}",
            "pages of a process's first claim": "{first:,}",
        },
    )


def growth_sections(report: Mapping[str, Any], capacity: Mapping[str, Any]) -> Sections:
    """Return the sections.

    Args:
        report: Figures of the part `growth` by store.
        capacity: Figures of the part `capacity`.
    """
    figures = [figure for store in STORES for figure in report.get(store, {}).get("figures", ())]
    of_equal = ratios_of_equal_work(figures)
    sections: Sections = {("growth_memory", "aim"): [_aim(of_equal)]} if of_equal else {}
    for situation in SITUATIONS:
        found = [figure for figure in figures if figure["situation"] == situation]
        if found:
            sections["growth_dynamodb", situation.replace(",", "")] = [_table(found)]
    bound = f"""On DynamoDB a claim reads up to {MAX_PAGES} pages, the largest with {LARGER_PAGES_KEYS[-1]:,}
        keys: at most {capacity["behind_stale"][-1]["read_units"]:g} read units ([Costs](../costs.md)). Beside
        30,000 stale tasks, the first claims of a process skip up to {most_passed_over():,} each and come up
        short; later claims continue there and soon cost the same as beside 1,000 tasks."""
    sections["capacity", "bound"] = [Prose(bound)]
    if shards := report.get("dynamodb", {}).get("shards"):
        sections["growth_dynamodb", "shards"] = [_shards(shards)]
    return sections


def _aim(of_equal: Sequence[float]) -> Prose:
    return Prose(
        f"""The aim is {AIM:g}, and {AIM_OF_GROUPS:g} for groups; bold ratios miss it. In memory and on SQL,
        claims of equal work gave ratios from {min(of_equal):.2f} to {max(of_equal):.2f}, which is the noise
        of the machine."""
    )


def ratios_of_equal_work(figures: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the ratios, which are noise, of claims that did the same work as at the smallest size.

    On DynamoDB the counted claims are not the timed claims, so equal counts say nothing.
    """
    smallest: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    same: list[float] = []
    timed = (each for each in figures if each["store"] != "dynamodb")
    for figure in sorted(timed, key=lambda each: each["size"]):
        key = (figure["store"], figure["situation"], figure["limit"])
        first = smallest.setdefault(key, figure)
        if first is not figure and (first["amounts"], first["short"]) == (figure["amounts"], figure["short"]):
            same.append(figure["ratio"])
    return same


def misses(figure: Mapping[str, Any]) -> bool:
    """Return whether a ratio, rounded as shown, misses its aim."""
    aim = AIM_OF_GROUPS if figure["situation"] == GROUPS else AIM
    return round(float(figure["ratio"]), 2) > aim


def _table(figures: Sequence[Mapping[str, Any]]) -> Table:
    ordered = sorted(figures, key=lambda each: ([*STORES].index(each["store"]), each["limit"], each["size"]))
    return columns(
        ordered,
        {
            "store": lambda figure: STORES[figure["store"]],
            "cost of one claim": _amounts,
            "claim of": "{limit}",
            GROUPS if figures[0]["situation"] == GROUPS else "tasks": "{size:,}",
            "time / smallest size": _ratio,
            "short claims": _short,
        },
        texts=2,
    )


def _ratio(figure: Mapping[str, Any]) -> str:
    ratio = bold(f"{figure['ratio']:.2f}", when=misses(figure))
    quartiles = figure.get("ratio_quartiles")
    if not quartiles or quartiles[0] == quartiles[1]:  # the smallest size, compared with itself
        return ratio
    return f"{ratio} ({quartiles[0]:.2f} to {quartiles[1]:.2f})"


def _short(figure: Mapping[str, Any]) -> str:
    found = f", {figure['found']:.1f} tasks on average" if figure["short"] and "found" in figure else ""
    return f"{figure['short']:.0%}{found}"


def _amounts(figure: Mapping[str, Any]) -> str:
    names = {"steps": "instructions"} if figure["store"] == "memory" else {}
    return ", ".join(f"{names.get(name, name)} {amount:,g}" for name, amount in figure["amounts"].items())


def _shards(shards: Sequence[Mapping[str, Any]]) -> Table:
    return columns(
        shards,
        {
            "shards": "{shards}",
            "write units a second": lambda figure: f"{1000 * figure['shards']:,}",
            "claims that skip a newer task": "{share:.0%}",
            "positions, mean": "{mean_places:.1f}",
            "calls": "{amounts[calls]:g}",
            "read units": "{amounts[read units]:g}",
        },
    )
