"""The page docs/costs.md, from what `benchmarks.capacity` and, of groups, `benchmarks.growth` counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from benchmarks.dollars import FORMER_WRITE_UNITS
from freshq.stores.dynamodb.queries import LARGER_PAGES_KEYS, LOOKAHEAD_KEYS, MAX_PAGES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

LIFE: Final = "whole life, claims of 10"
LIFE_SINGLE: Final = "whole life, claims of 1"
ALONE: Final = "whole life of a task that comes alone, its pass included"
LIFE_ONE_BY_ONE: Final = "whole life, claims of 10, each write a call of its own"
SHED: Final = "shed by the queue's max age, put included"
BOLD: Final = frozenset({LIFE, SHED, "shed by its own, shorter max age, put included"})
# Two thirds are shed in `make demo`, which offers three times the capacity.
SHED_PER_SUCCESS: Final = 2
STATS_WAITING: Final = 2000
# Tasks of a claim behind stale ones, as in benchmarks.capacity_stale.
CLAIM: Final = 10


def page(capacity: Mapping[str, Any], growth: Sequence[Mapping[str, Any]]) -> str:
    """Return the page.

    Args:
        capacity: The figures of `benchmarks.capacity`.
        growth: Those of `benchmarks.growth` on DynamoDB.
    """
    steps = {step["step"]: step for step in capacity["steps"]}
    some, most = capacity["behind_stale"]
    groups = [each for each in growth if each["situation"] == "groups"]
    return _TEXT.format(
        steps="\n".join(_steps(capacity["steps"])),
        groups="\n".join(_groups(groups)),
        least_writes=_write_units(groups, min),
        most_writes=_write_units(groups, max),
        one_by_one=steps[LIFE_ONE_BY_ONE]["calls"],
        with_shed=steps[LIFE]["write_units"] + SHED_PER_SUCCESS * steps[SHED]["write_units"],
        former_units=FORMER_WRITE_UNITS["burst"],
        pages=MAX_PAGES,
        most_passed=most_passed_over(),
        entries=entries_per_half_unit(capacity),
        stale=some["stale"],
        stale_units=some["read_units"],
        most_units=most["read_units"],
        waiting=STATS_WAITING,
        stats_units=steps[f"approximate stats, {STATS_WAITING:,} tasks waiting"]["read_units"],
    )


def entries_per_half_unit(capacity: Mapping[str, Any]) -> int:
    """Return how many entries of the status index a query reads for half a read unit."""
    some = capacity["behind_stale"][0]
    return round(float(some["stale"]) / (2 * float(some["read_units"])))


def most_passed_over() -> int:
    """Return how many stale tasks a claim of ten passes over at most: those on its pages, in thousands."""
    pages = (*LARGER_PAGES_KEYS, *[LARGER_PAGES_KEYS[-1]] * MAX_PAGES)[: MAX_PAGES - 1]
    return int(round(CLAIM + LOOKAHEAD_KEYS + sum(pages), -3))


def _write_units(groups: Sequence[Mapping[str, Any]], size_of: Callable[[Iterable[int]], int]) -> float:
    """Return the write units of the largest claim, beside the least or the most groups."""
    size, limit = size_of(each["size"] for each in groups), max(each["limit"] for each in groups)
    (found,) = (each for each in groups if (each["size"], each["limit"]) == (size, limit))
    return float(found["amounts"]["write units"])


def _steps(steps: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| step, per task | write units | read units | calls |"
    yield "| --- | ---: | ---: | ---: |"
    for step in steps:
        name, cells = step["step"], [f"{step[kind]:.2f}" for kind in ("write_units", "read_units", "calls")]
        if name in BOLD:
            name, cells[0], cells[2] = f"**{name}**", f"**{cells[0]}**", f"**{cells[2]}**"
        yield f"| {name} | {' | '.join(cells)} |"


def _groups(figures: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    sizes = sorted({each["size"] for each in figures})
    calls = {(each["limit"], each["size"]): each["amounts"]["calls"] for each in figures}
    yield "| claim of | " + " | ".join(f"{size:,} group{'s' * (size > 1)}" for size in sizes) + " |"
    yield "| ---: |" + " ---: |" * len(sizes)
    for limit in sorted({each["limit"] for each in figures}):
        yield f"| {limit} | " + " | ".join(f"{calls[limit, size]:.1f}" for size in sizes) + " |"


_TEXT: Final = """# What it costs

`make bench PARTS=capacity` counts these on DynamoDB Local, from the ConsumedCapacity of every response, for
items under 1 KB, and writes this page. A failed condition reports no capacity and is counted as 1. Index
reads are eventually consistent, item reads strongly consistent. The figures do not depend on the machine:
every clock is the benchmark's. A worker gets through 100 tasks a second, unless the step says otherwise. At
a lower rate fewer tasks share what a process does once in some seconds.

{steps}

Tasks that are put, claimed or settled together go out 25 a call, each under its own condition ([decision
58](decisions/0058-batched-writes.md)); a worker settles together what ends within a few milliseconds. That
changes the calls, not the units, but for a read unit for each id of a `put_many` that is taken. Where an
endpoint or a role does not allow it, and on attached tables, each write is a call of its own:
{one_by_one:.1f} calls for a whole life at claims of 10. DynamoDB Local reports no capacity for the
statements of such calls; their units are those of the same writes, one by one.

A whole life is put, claim and complete, plus the worker's lease record and its deletion, the control record
(read once a second), the flow counts (one write every 5 s for each process) and one last empty claim. A
task that comes alone wakes a worker for itself: the pass takes and leaves its slot, looks again until it is
idle for long enough, and counts what waits before it ends. The system that freshq descends from paid
{former_units} write units and 8.1 calls per task under backlog: it claimed tasks that it then had to return,
and lost the tasks of crashed workers.

The status index has the deadline beside its keys, about 20 bytes an entry; that costs no more write units.
A claim passes over tasks stale by their own max age within the query, at most {pages} pages for each line and
shard, or about {most_passed:,} tasks; the next claim of the process goes on from there. DynamoDB bills what
it passes over, at half a read unit for about {entries} entries: a claim behind {stale:,} stale tasks costs
{stale_units:g} read units, and one that reads all its pages {most_units:g}. That ends when upkeep, in the
process that passed over them, has shed them: 2 write units and 1 read unit each, up to 200 a portion. What is
stale by the queue's max age costs neither.

Calls of a claim beside a thousand tasks in so many groups, on average, as `make bench PARTS=growth` counts
them. They leave out the first claims of a process, which also read the control record and the line records:

{groups}

What groups add to the calls is mostly one query for each group that a claim takes from. Beside 10,000 groups,
each has one task waiting, so a claim also deletes the records of the groups that it empties:
{most_writes:.0f} write units for ten tasks instead of {least_writes:.0f}. An empty claim after the groups are
done makes 2 to 4 calls, and at most 10 if the processes that did them died.

Approximate stats look into at most 64 levels and groups. If there are more, `bounded` says which figures
are bounds. They count what waits by reading its entries: {stats_units:g} read units beside {waiting:,} tasks.

If two thirds are shed, as in `make demo`, each success also pays for the puts of the shed tasks: about
{with_shed:.1f} write units.
"""
