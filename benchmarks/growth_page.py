"""The page of docs/growth.md, made from the results of `benchmarks.growth`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

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
        "This many tasks that are past a deadline of their own, newer than the 1,000 that can be claimed.",
    ),
    "beside stale, FIFO": (
        "Stale tasks, oldest first",
        "This many tasks that are past a deadline of their own, older than the 1,000 that can be claimed.",
    ),
    "beside finished": ("Finished tasks", "This many tasks that are done, beside 1,000 that wait."),
    "groups": ("Groups", "A thousand tasks that wait in this many groups, or one in each if there are more."),
}
INTRODUCTION: Final = """# Growth

What a claim costs beside more tasks, as `make bench PARTS=growth` measured it. The script writes this page
from the files `growth_*.json` in `benchmarks/results`.

The sizes took turns. Time is the ratio to the claim from the smallest size in the same turn, the median over
all turns: so a busy machine, as this one was, changes it little. The aim is 1.2, and 2 for groups. Where a
ratio misses it, the section says what bounds it.

The counts do not depend on the machine. They are means of a few claims after those that were timed: calls and
capacity units on DynamoDB Local; statements, rows read and pages read by PostgreSQL; statements and steps of
its virtual machine by SQLite; instructions of Python in memory. *Short* is the share of the claims that found
fewer tasks than they asked for: what a claim cannot pass within its bound it leaves to the next one or to
upkeep, which did not run here.
"""
OWN_STALE: Final = """What misses the aim here is bounded, and does not grow further:

- On SQL a claim looks at 1,000 rows of a line, takes 500 stale tasks out of it by one statement, looks once
  more, and does a small portion of upkeep. A thousand stale tasks are within the first look, which is the
  smallest size; any more take the whole bound. Such a claim is short. A worker's upkeep takes out a thousand
  at a time without a pause, and the sweep does too; it did not run here.
- On DynamoDB a claim reads up to four pages, the largest with 8,000 keys: at most 170 read units. The first
  claims of a process beside 30,000 stale tasks pass over up to 17,000 each and are short. Later ones go on
  where those found nothing but stale tasks. The next few still read a large page; from then on a claim costs
  what it costs beside 1,000 tasks, which is what was counted here."""
GROUPS: Final = """On DynamoDB a claim of ten takes from ten groups where there are as many, by a query
for each. That is what groups add to its calls, and why its time beside 100 groups misses the aim of 2. One
call writes its tasks in either case."""
NOTES: Final = {
    "beside stale, LIFO": OWN_STALE,
    "beside stale, FIFO": "The bounds are those of the section before.",
    "groups": GROUPS,
}
SHARDS: Final = """## Shards

On DynamoDB each shard of a line takes about 1,000 write units a second. A claim merges the newest tasks of
all shards, so one claimer departs from the order no more than with one shard. Here 4 claimers drained 150
tasks, one at a time. Calls and units are of a claim of 10.

| shards | write units a second | claims that passed over a better task | places, mean | calls | read units |
| ---: | ---: | ---: | ---: | ---: | ---: |
"""


def page(report: Mapping[str, Any]) -> str:
    """Return the page.

    Args:
        report: By store, what `benchmarks.growth` measured.
    """
    figures = [figure for store in STORES for figure in report.get(store, {}).get("figures", ())]
    parts = [INTRODUCTION]
    for situation, (title, text) in SITUATIONS.items():
        found = [figure for figure in figures if figure["situation"] == situation]
        if found:
            parts.append(f"## {title}\n\n{text}\n\n" + "\n".join(_table(found)) + "\n")
            parts += [f"{NOTES[situation]}\n"] if situation in NOTES else []
    shards = report.get("dynamodb", {}).get("shards")
    if shards:
        parts.append(SHARDS + "\n".join(map(_shard_row, shards)) + "\n")
    parts.append("\n".join(_plans(figures)) + "\n")
    return "\n".join(parts)


def _table(figures: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    sizes = "groups" if figures[0]["situation"] == "groups" else "tasks"
    yield f"| store | claim of | {sizes} | time, ratio | short | a claim costs |"
    yield "| --- | ---: | ---: | ---: | ---: | --- |"
    for figure in sorted(
        figures, key=lambda each: ([*STORES].index(each["store"]), each["limit"], each["size"])
    ):
        amounts = ", ".join(f"{name} {amount:,g}" for name, amount in figure["amounts"].items())
        yield (
            f"| {STORES[figure['store']]} | {figure['limit']} | {figure['size']:,} | {figure['ratio']:.2f} "
            f"| {figure['short']:.0%} | {amounts} |"
        )


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
