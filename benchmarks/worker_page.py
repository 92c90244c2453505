"""The page of docs/throughput.md, made from the results of `benchmarks.worker`."""

from __future__ import annotations

import statistics
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from benchmarks.sections import paragraph, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

HAND: Final = "claims of ten by hand"
WORKER: Final = "Worker"
# The file of results, by the number of processes.
FILES: Final = {1: "worker", 2: "worker_two"}
# Where the aims beside other queues are; that beside claims by hand is everywhere.
AIMED: Final = ("8", "32")
# What else there is of a figure, by its name in the file.
COUNTED: Final = {
    "processor_us_per_task": "processor time of a task, µs",
    "connections": "connections at most",
    "tasks": "tasks",
}
# What batches are to reach of single writes at a distance of 5 ms.
AIM_FAR: Final = 5.0
TITLES: Final = {1: "one process", 2: "two processes"}
STORES: Final = {"postgresql": "PostgreSQL", "sqlite": "SQLite"}
# What a Worker is to reach of each contender's tasks a second, at which concurrency.
AIMS: Final = {HAND: 0.8, "oban": 2.0, "procrastinate": 10.0, "huey": 2.0}
INTRODUCTION: Final = """# Throughput

What a `Worker` gets through in a SQL database, as `make bench PARTS=worker` measured it beside claims and
completions of ten by hand (`claim(10)`, `complete_many`, in one thread) and beside the workers of other
queues. The script writes this page from `worker.json` and `worker_two.json` in `benchmarks/results`.

Handlers are empty and payloads have 1 KB. PostgreSQL waits for the disk at each commit. On SQLite nobody
does: freshq with `durable=False`, litequeue by default, huey by a pragma of ours. Each contender works for
about a second or more, so the numbers of tasks differ. A figure counts from the first run to the last; of
freshq, until all is settled. The contenders of a table took turns on {cores} cores, in an order that moved on
by one in each round. Compare the figures of one table, and trust the ratios more: a ratio compares two
figures of the same round. Aims beside other queues are for 8 and 32 slots; a ratio that misses its aim is
bold.

With two processes, each has as many slots as the column says. Claims by hand have no slots: they are
measured once more in each column. litequeue has no worker: a loop takes one message after the other. huey
deletes a task as it hands it out, so a crash loses it; freshq writes once more when the task has ended.
freshq ran on Python {python}, the others on {peers_python}.

taskiq is not in these tables: its brokers for PostgreSQL run only what is sent while a worker listens.
[asyncio](asyncio.md) measures one of them, taskiq-postgres, in that way.
{celery}"""
CELERY: Final = """
Celery ran on its SQLAlchemy broker, which it calls experimental. With Redis or RabbitMQ, which were not
available here, it should be faster; we did not measure it.
"""
BOUNDS: Final = """## What bounds it

With one slot, a `Worker` claims one task by each call, and settles it by another, as it must; claims of ten
share both. While it settles one, it claims the next, so that one round trip counts and not two. In SQLite
such a call takes less time than a task's way from the thread that claims to the one that runs, and back;
huey, whose workers claim for themselves, gets through more there.

With 8 slots, calls carry eight tasks at most, so each task bears more of what a call costs. In SQLite it
takes {worker_8:.0f} µs of processor time, with 32 slots {worker_32:.0f}, by hand {hand:.0f}; and one
process of Python has one second of processor time a second. Claims of eight instead of ten add a twentieth
to those by hand, what a worker keeps of each run a fifth, and handing tasks to threads the rest
([measured](decisions/0068-the-loop-claims.md)). huey takes {huey_8:.0f} µs for its single write.

procrastinate runs {procrastinate:,.0f} tasks a second in 8 slots. Ten times that would leave {aim_ms:.1f}
ms for a claim and a settlement of eight tasks, each with its commit; they take {taken_ms:.1f} ms.

From 32 slots on, a claim and a settlement carry as many tasks as ended during the calls before, and what is
left is the time that Python and the database take for each task. In SQLite a claim and a settlement cannot
run at the same time; in PostgreSQL they do. Two processes and the server share the cores of this machine,
and SQLite lets one process write at a time.

The processor time is that of the contender's processes, without the server's; it changes less with the load
of the machine than the rates do. Where the rounds differ widely, a ratio says only who is faster. [Why it
settles together](decisions/0052-settled-together.md), and [why no other thread
claims](decisions/0068-the-loop-claims.md).
"""


FAR: Final = """## DynamoDB at a distance

One worker with {slots} slots on DynamoDB Local, behind a proxy that holds back every answer: with claims
and settlements of 25 writes a call, and beside an endpoint that takes one write a call. `make bench
PARTS=distance` measures it ({rounds} rounds in turns, load average {load}).

{table}

The aim was 5 times at 5 ms. Without any delay, a task in batches takes {near_ms:.1f} ms, of which the
worker's processor takes {worker_ms:.1f} and the server's {server_ms:.1f}, on the same two cores; 5 times
would leave {left_ms:.1f} ms. The further away the table is, the more the batches save.
"""


def page(
    results: Mapping[int, Mapping[str, Any]], lone: Mapping[str, Any], distance: Mapping[str, Any]
) -> str:
    """Return the page.

    Args:
        results: What `benchmarks.worker` wrote, by the number of processes.
        lone: What `benchmarks.lone` wrote.
        distance: What `benchmarks.distance` wrote.
    """
    introduction = INTRODUCTION.format(
        cores=results[1]["machine"]["cores"],
        python=results[1]["machine"]["python"],
        peers_python=results[1]["figures"]["peers_python"],
        celery=CELERY
        if any("celery" in each["figures"]["postgresql"]["8"] for each in results.values())
        else "",
    )
    tables = [
        "\n".join(_section(store, processes, result)) + "\n"
        for store in STORES
        for processes, result in results.items()
    ]
    figures = distance["figures"]
    far_table = "\n".join(_far_table(figures["delays_ms"]))
    far = FAR.format(
        slots=figures["slots"],
        rounds=figures["rounds"],
        load=distance["machine"]["load"],
        table=far_table,
        **_far_bounds(figures),
    )
    bounds = BOUNDS.format(**_bounds(results[1]["figures"]))
    alone = "\n".join(_lone(lone))
    return "\n".join([_folded(introduction), *tables, alone, _folded(far), _folded(bounds)])


def _lone(result: Mapping[str, Any]) -> Iterator[str]:
    found = result["figures"]
    tasks = len(found["stores"]["sqlite"]["run_ms"])
    yield "## A lone task"
    yield ""
    yield from paragraph(
        f"An idle `Worker` with {found['slots']} slots looks for tasks every {found['poll_ms']:g} ms here; "
        "half of that is waiting for its next look. By default it looks every half second. `make bench "
        f"PARTS=lone` puts {tasks} tasks, one at a time."
    )
    yield ""
    rows = [
        [STORES[store], *(_quantiles(each[what]) for what in ("run_ms", "settled_ms"))]
        for store, each in found["stores"].items()
    ]
    yield from table(
        ["ms from the put, median (9 in 10 are below)", "until it runs", "until it is settled"], rows
    )
    yield ""


def _quantiles(numbers: Sequence[float]) -> str:
    return f"{statistics.median(numbers):.1f} ({statistics.quantiles(numbers, n=10)[-1]:.1f})"


def _folded(text: str) -> str:
    """Return a text whose paragraphs are as wide as the page, whatever figures they got."""
    parts = text.strip("\n").split("\n\n")
    folded = [part if part.startswith(("#", "|")) else "\n".join(paragraph(part)) for part in parts]
    return "\n\n".join(folded) + "\n"


def _bounds(figures: Mapping[str, Any]) -> dict[str, float]:
    """Return what the section on bounds says, of one process."""

    def of(store: str, concurrency: str, contender: str, what: str = "processor_us_per_task") -> float:
        return float(statistics.median(each[what] for each in figures[store][concurrency][contender]))

    slots, rate = 8, "tasks_per_second"
    procrastinate = of("postgresql", "8", "procrastinate", rate)
    return {
        "worker_8": of("sqlite", "8", WORKER),
        "worker_32": of("sqlite", "32", WORKER),
        "hand": of("sqlite", "8", HAND),
        "huey_8": of("sqlite", "8", "huey"),
        "procrastinate": procrastinate,
        "aim_ms": 1000 * slots / (AIMS["procrastinate"] * procrastinate),
        "taken_ms": 1000 * slots / of("postgresql", "8", WORKER, rate),
    }


def _far_bounds(figures: Mapping[str, Any]) -> dict[str, float]:
    """Return what the section on distance says of batches without a delay, in ms for each task."""
    together, alone = figures["delays_ms"]["0"]
    near = figures["delays_ms"]["0"][together]
    by_five = figures["delays_ms"]["5"][alone]
    return {
        "near_ms": 1000 / statistics.median(near),
        "worker_ms": statistics.median(figures["worker_processor_ms"]["0"][together]),
        "server_ms": statistics.median(figures["server_processor_ms"]["0"][together]),
        "left_ms": 1000 / (AIM_FAR * statistics.median(by_five)),
    }


def ratio_rounds(contenders: Mapping[str, Any], name: str) -> list[float]:
    """Return how many times a contender's tasks a second a Worker gets through, in each round."""
    pairs = zip(contenders[WORKER], contenders[name], strict=True)
    return [worker["tasks_per_second"] / other["tasks_per_second"] for worker, other in pairs]


def _far_table(delays_ms: Mapping[str, Mapping[str, Sequence[float]]]) -> Iterator[str]:
    ways = list(next(iter(delays_ms.values())))
    yield f"| tasks a second, delay of each answer | {' | '.join(ways)} | ratio |"
    yield "| --- |" + " ---: |" * (len(ways) + 1)
    for delay_ms, figures in delays_ms.items():
        cells = [_range(figures[way], ",.0f") for way in ways]
        together, alone = (figures[way] for way in ways)
        times = [one / other for one, other in zip(together, alone, strict=True)]
        yield f"| {delay_ms} ms | {' | '.join(cells)} | {_range(times, '.1f')} |"


def _section(store: str, processes: int, result: Mapping[str, Any]) -> Iterator[str]:
    report, machine = result["figures"], result["machine"]
    yield f"## {STORES[store]}, {TITLES[processes]}"
    yield ""
    peers = {name for contenders in report[store].values() for name in contenders}
    versions = ", ".join(
        f"{name} {number}" for name, number in report.get("versions", {}).items() if name in peers
    )
    missing = ", ".join(report["missing"])
    yield from paragraph(
        f"{report['rounds']} rounds, load average {machine['load']} at the end, the benchmark's own included."
        + (f" Versions: {versions}." if versions else "")
        + (f" Not installed, so not measured: {missing}." if missing else "")
    )
    yield ""
    yield from _tables(report[store])


def _tables(figures: Mapping[str, Any]) -> Iterator[str]:
    contenders = list(dict.fromkeys(name for measured in figures.values() for name in measured))
    slots = [f"{number} {'slot' if number == '1' else 'slots'}" for number in figures]
    rates = [[name, *_cells(figures, name, _rates)] for name in contenders]
    yield from table(["tasks a second, median (lowest to highest)", *slots], rates)
    yield ""
    ratios = [[name, str(AIMS.get(name, "")), *_ratio_cells(figures, name)] for name in contenders]
    head = ["rate of a `Worker`, as a multiple of", "aim", *slots]
    yield from table(head, [row for row in ratios if row[0] != WORKER])
    yield ""
    yield from table(["figure, median", "contender", *slots], list(_counted(figures, contenders)))


def _counted(figures: Mapping[str, Any], contenders: Sequence[str]) -> Iterator[list[str]]:
    """Yield a row for each figure that a contender has besides its rate."""
    for (what, title), name in product(COUNTED.items(), contenders):
        cells = _cells(figures, name, partial(_median, name=what))
        if any(cells):
            yield [title, name, *cells]


def _cells(
    figures: Mapping[str, Any], name: str, shown: Callable[[Sequence[Mapping[str, float]]], str]
) -> list[str]:
    """Return what is shown of a contender's rounds in each column; empty where it has none."""
    return [shown(each[name]) if name in each else "" for each in figures.values()]


def _ratio_cells(figures: Mapping[str, Any], name: str) -> list[str]:
    return [_cell(each, name, concurrency) for concurrency, each in figures.items()]


def _cell(contenders: Mapping[str, Any], name: str, concurrency: str) -> str:
    """Return the ratio of a Worker to a contender; bold if it misses its aim."""
    if name not in contenders:
        return ""
    found = ratio_rounds(contenders, name)
    misses = (name == HAND or concurrency in AIMED) and statistics.median(found) < AIMS.get(name, 0)
    return f"**{_range(found, '.2f')}**" if misses else _range(found, ".2f")


def _rates(rounds: Sequence[Mapping[str, float]]) -> str:
    return _range([each["tasks_per_second"] for each in rounds], ",.0f")


def _median(rounds: Sequence[Mapping[str, float]], name: str) -> str:
    """Return the median of a figure; empty if the rounds do not have it."""
    return f"{statistics.median(each[name] for each in rounds):,.0f}" if name in rounds[0] else ""


def _range(numbers: Sequence[float], form: str) -> str:
    return f"{statistics.median(numbers):{form}} ({min(numbers):{form}} to {max(numbers):{form}})"
