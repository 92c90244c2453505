"""The page docs/costs.md, from what `benchmarks.capacity` and, of groups, `benchmarks.growth` counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

LIFE: Final = "whole life, claims of 10"
ALONE: Final = "whole life of a task that comes alone, its pass included"
LIFE_ONE_BY_ONE: Final = "whole life, claims of 10, each write a call of its own"
SHED: Final = "shed by the queue's max age, put included"
BOLD: Final = frozenset({LIFE, SHED, "shed by its own, shorter max age, put included"})
# Two thirds are shed in `make demo`, which offers three times the capacity.
SHED_PER_SUCCESS: Final = 2


def page(capacity: Mapping[str, Any], growth: Sequence[Mapping[str, Any]]) -> str:
    """Return the page.

    Args:
        capacity: The figures of `benchmarks.capacity`.
        growth: Those of `benchmarks.growth` on DynamoDB.
    """
    steps = {step["step"]: step for step in capacity["steps"]}
    return _TEXT.format(
        steps="\n".join(_steps(capacity["steps"])),
        groups="\n".join(_groups([each for each in growth if each["situation"] == "groups"])),
        one_by_one=steps[LIFE_ONE_BY_ONE]["calls"],
        with_shed=steps[LIFE]["write_units"] + SHED_PER_SUCCESS * steps[SHED]["write_units"],
    )


def _steps(steps: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "| step, per task | WRU | RRU | calls |"
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
idle for long enough, and counts what waits before it ends. The system that freshq descends from paid 22 WRU
and 8.1 calls per task under backlog: it claimed tasks that it then had to return, and lost the tasks of
crashed workers.

The status index has the deadline beside its keys, about 20 bytes an entry; that costs no more write units.
A claim passes over tasks stale by their own max age within the query, at most four pages for each line and
shard, or about 17,000 tasks; the next claim of the process goes on from there. DynamoDB bills what it
passes over: half a read unit for about 35 entries, so 3,000 stale tasks in front cost a claim about 50 read
units until upkeep, in the process that passed over them, has shed them: 2 write units and 1 read unit each,
up to 200 a portion. What is stale by the queue's max age costs neither.

Calls of a claim beside groups that each have one task waiting, on average, as `make bench PARTS=growth`
counts them. The first claims of a process are apart, which also read the control record and the line
records:

{groups}

What groups add is mostly one query for each group that a claim takes from. An empty claim after the groups
are done makes 2 to 4 calls, and at most 10 if the processes that did them died.

Approximate stats look into at most 64 levels and groups. If there are more, `bounded` says which figures
are bounds.

If two thirds are shed, as in `make demo`, each success also pays for the puts of the shed tasks: about
{with_shed:.1f} WRU.
"""
