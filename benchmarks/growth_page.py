"""The page of docs/growth.md, made from the results of `benchmarks.growth`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from benchmarks.costs_page import most_passed_over
from freshq.stores.dynamodb.queries import LARGER_PAGES_KEYS, MAX_PAGES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

MAX_STATEMENT_CHARS: Final = 76
STORES: Final = {
    "memory": "memory",
    "sqlite": "SQLite",
    "postgresql": "PostgreSQL",
    "dynamodb": "DynamoDB Local",
}
SITUATIONS: Final = {
    "waiting": ("Tasks that wait", "A claim, newest first, from a backlog of this many tasks."),
    "beside stale, LIFO": (
        "Stale tasks, newest first",
        "Claims newest first. This many tasks past a deadline of their own stand before 1,000 that wait.",
    ),
    "beside stale, FIFO": (
        "Stale tasks, oldest first",
        "The same for claims oldest first (`fifo`), with stale tasks that are older than those that wait.",
    ),
    "beside finished": ("Finished tasks", "This many tasks that are done, beside 1,000 that wait."),
    "groups": ("Groups", "A thousand tasks that wait in this many groups, or one in each if there are more."),
}
GROUPS: Final = "groups"
AIM: Final = 1.2
AIM_OF_GROUPS: Final = 2.0
INTRODUCTION: Final = """# Growth

How the cost of a claim changes as the queue grows. `make bench PARTS=growth` measured it and writes this page
from the files `growth_*.json` in `benchmarks/results`.

The sizes took turns. Time is the ratio to the claim from the smallest size in the same turn, the median over
all turns, with its quartiles in brackets where the file has them. The aim is {aim:g}, and {aim_of_groups:g}
for groups. Ratios that miss it are bold, and the section says what bounds them.{noise}

The counts do not depend on the machine. They are means of a few claims after those that were timed: calls and
capacity units on DynamoDB Local; statements, rows read and pages read by PostgreSQL; statements and steps of
its virtual machine by SQLite; instructions of Python in memory. A claim comes up short if it finds fewer
tasks than it asked for; a claim of one then finds none. What a claim cannot pass within its bound it leaves
to the next one or to upkeep, which did not run here. No task is settled here, so on DynamoDB the lease record
names all that were claimed, and writing it takes two or three units more than on [Costs](costs.md).
"""
NOISE: Final = """ The machine did other
things meanwhile: in memory and on SQL, equal counts gave ratios from {:.2f} to {:.2f}, so a ratio between
these says nothing."""
OWN_STALE: Final = """What misses the aim here is bounded, and does not grow further:

- On SQL a claim looks at 1,000 rows of a line, takes 500 stale tasks out of it by one statement, looks once
  more, and does a small portion of upkeep. A thousand stale tasks are within the first look, which is the
  smallest size; any more take the whole bound. Such a claim is short. A worker's upkeep takes out a thousand
  at a time without a pause, and the sweep does too; it did not run here.
- On DynamoDB a claim reads up to {pages} pages, the largest with {largest:,} keys: at most {most_units:g}
  read units ([Costs](costs.md)). The first claims of a process beside 30,000 stale tasks pass over up to
  {passed:,} each and are short. Later ones go on where those found nothing but stale tasks. The next few
  still read a large page; from then on a claim costs what it costs beside 1,000 tasks, which is what was
  counted here."""
OF_GROUPS: Final = """On DynamoDB a claim of ten takes from ten groups where there are as many, by a query
for each: that is what groups add to its calls and its time. Beside 10,000 groups each task is the last of its
group: a claim also deletes the records of the groups that it empties, which are the write units it adds."""
NOTES: Final = {
    "beside stale, LIFO": OWN_STALE,
    "beside stale, FIFO": "The bounds are those of the section before.",
    GROUPS: OF_GROUPS,
}
SHARDS: Final = """## Shards

On DynamoDB each shard of a line takes about 1,000 write units a second. A claim merges the newest tasks of
all shards, so one claimer departs from the order no more than with one shard. Here 4 claimers drained 150
tasks, one at a time. Calls and units are of a claim of 10.

| shards | write units a second | claims that passed over a better task | places, mean | calls | read units |
| ---: | ---: | ---: | ---: | ---: | ---: |
"""


def page(report: Mapping[str, Any], capacity: Mapping[str, Any]) -> str:
    """Return the page.

    Args:
        report: By store, what `benchmarks.growth` measured.
        capacity: The figures of `benchmarks.capacity`.
    """
    figures = [figure for store in STORES for figure in report.get(store, {}).get("figures", ())]
    of_equal = ratios_of_equal_work(figures)
    said = NOISE.format(min(of_equal), max(of_equal)) if of_equal else ""
    parts = [INTRODUCTION.format(aim=AIM, aim_of_groups=AIM_OF_GROUPS, noise=said)]
    bounds = {
        "pages": MAX_PAGES,
        "largest": LARGER_PAGES_KEYS[-1],
        "most_units": capacity["behind_stale"][-1]["read_units"],
        "passed": most_passed_over(),
    }
    for situation, (title, text) in SITUATIONS.items():
        found = [figure for figure in figures if figure["situation"] == situation]
        if found:
            parts.append(f"## {title}\n\n{text}\n\n" + "\n".join(_table(found)) + "\n")
            parts += [f"{NOTES[situation].format(**bounds)}\n"] if situation in NOTES else []
    shards = report.get("dynamodb", {}).get("shards")
    if shards:
        parts.append(SHARDS + "\n".join(map(_shard_row, shards)) + "\n")
    parts.append("\n".join(_plans(figures)) + "\n")
    return "\n".join(parts)


def ratios_of_equal_work(figures: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the ratios of claims that did the same work as at the smallest size: what differs is noise.

    On DynamoDB the counted claims are not the timed ones, so equal counts do not tell.
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
    """Return whether a ratio misses its aim, as exactly as it is shown."""
    aim = AIM_OF_GROUPS if figure["situation"] == GROUPS else AIM
    return round(float(figure["ratio"]), 2) > aim


def _table(figures: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    sizes = GROUPS if figures[0]["situation"] == GROUPS else "tasks"
    yield (
        f"| store | claim of | {sizes} | time / smallest size | claims that came up short "
        "| cost of one claim |"
    )
    yield "| --- | ---: | ---: | ---: | ---: | --- |"
    for figure in sorted(
        figures, key=lambda each: ([*STORES].index(each["store"]), each["limit"], each["size"])
    ):
        yield (
            f"| {STORES[figure['store']]} | {figure['limit']} | {figure['size']:,} | {_ratio(figure)} "
            f"| {_short(figure)} | {_amounts(figure)} |"
        )


def _ratio(figure: Mapping[str, Any]) -> str:
    ratio = f"**{figure['ratio']:.2f}**" if misses(figure) else f"{figure['ratio']:.2f}"
    quartiles = figure.get("ratio_quartiles")
    if not quartiles or quartiles[0] == quartiles[1]:  # the smallest size, beside itself
        return ratio
    return f"{ratio} ({quartiles[0]:.2f} to {quartiles[1]:.2f})"


def _short(figure: Mapping[str, Any]) -> str:
    found = f", {figure['found']:.1f} tasks on average" if figure["short"] and "found" in figure else ""
    return f"{figure['short']:.0%}{found}"


def _amounts(figure: Mapping[str, Any]) -> str:
    names = {"steps": "instructions"} if figure["store"] == "memory" else {}
    return ", ".join(f"{names.get(name, name)} {amount:,g}" for name, amount in figure["amounts"].items())


def _shard_row(figure: Mapping[str, Any]) -> str:
    amounts = figure["amounts"]
    return (
        f"| {figure['shards']} | {1000 * figure['shards']:,} | {figure['share']:.0%} "
        f"| {figure['mean_places']:.1f} | {amounts['calls']:g} | {amounts['read units']:g} |"
    )


def _plans(figures: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the plans of the statements of a claim of 1, at the largest size, each once."""
    yield "## Query plans"
    yield ""
    yield "Of the statements of a claim of 1 at the largest size, each plan once. A statement is named by its"
    yield "beginning. Casts are left out, and times and ids are written as `…`."
    seen: set[tuple[str, str, str]] = set()
    for figure in figures:
        store = figure["store"]
        new = [item for item in figure["plans"].items() if (store, *item) not in seen]
        seen |= {(store, *item) for item in new}
        if new:
            yield f"\n### {STORES[store]}: {SITUATIONS[figure['situation']][0].lower()}"
        for statement, plan in new:
            yield f"\n`{' '.join(statement.split())[:MAX_STATEMENT_CHARS]}`\n"
            yield f"```text\n{plan}\n```"
