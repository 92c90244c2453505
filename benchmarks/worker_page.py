"""The page of docs/throughput.md, made from the results of `benchmarks.worker`."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any, Final

from benchmarks.sections import paragraph

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

HAND: Final = "claims of ten by hand"
WORKER: Final = "Worker"
# The file of results, by the number of processes.
FILES: Final = {1: "worker", 2: "worker_two"}
TITLES: Final = {1: "one process", 2: "two processes"}
STORES: Final = {"postgresql": "PostgreSQL", "sqlite": "SQLite"}
# What a Worker is to reach of each contender's tasks a second, at which concurrency.
AIMS: Final = {HAND: 0.8, "oban": 2.0, "procrastinate": 10.0, "huey": 2.0}
INTRODUCTION: Final = """# Throughput

What a `Worker` gets through in a SQL database, as `make bench PARTS=worker` measured it beside claims and
completions of ten by hand (`claim(10)`, `complete_many`, in one thread) and beside the workers of other
queues. The script writes this page from `worker.json` and `worker_two.json` in `benchmarks/results`.

Handlers are empty and payloads have 1 KB. The columns are slots: threads, or coroutines, of each process.
PostgreSQL waits for the disk; SQLite does not, in freshq or in the other queues. A figure counts from the
first run to the last, and of a `Worker` until all is settled. The contenders of a table took turns on {cores}
cores: compare the figures of one table, and trust the ratios more. A ratio is the median of those within each
round. litequeue has no worker: a loop takes one message after the other. Of two processes, each has the slots
of the column.

taskiq is beside coroutines, in [asyncio](asyncio.md): taskiq-postgresql hands out only what is sent while a
worker listens, so that it cannot work off what was put before.
{celery}"""
CELERY: Final = """
Celery keeps its messages in tables of SQLAlchemy, which it calls experimental: none of its other brokers was
there.
"""
BOUNDS: Final = """## What bounds it

With one slot, a `Worker` claims one task by each call, and settles it by another, as it must; claims of ten
share both. While it settles one, it claims the next, so that one round trip counts and not two. procrastinate
claims and finishes each job by calls of its own, too: so the aim of ten times is out of reach there. In
SQLite such a call takes less time than a task's way from the thread that claims to the one that runs, and
back; huey, whose workers claim for themselves, gets through more there. With 8 slots a call carries eight
tasks at most. From 32 on, a claim and a settlement carry as many tasks as ended during the calls
before, and what is left is the time that Python and the database take for each task. In SQLite a claim and a
settlement cannot run at the same time; in PostgreSQL they do. Two processes and the server share the cores of
this machine, and SQLite lets one process write at a time.

The processor time is that of the contender's processes, without the server's; it changes less with the load
of the machine than the rates do. A ratio whose figures spread widely says little more than its sign.
[Why it settles together](decisions/0052-settled-together.md), and
[why no other thread claims](decisions/0068-the-loop-claims.md)
"""


FAR: Final = """## DynamoDB at a distance

One worker with {slots} slots on DynamoDB Local, behind a proxy that holds back every answer: with claims and
settlements of 25 writes a call, and beside an endpoint that takes one write a call. `make bench
PARTS=distance` measures it ({rounds} rounds in turns, load average {load}).

{table}

The aim was 5 times at 5 ms. There DynamoDB Local's own work for each statement, on the processors that it
shares with the worker, is more than what the calls save. The further away the table is, the more they save.
"""


def page(results: Mapping[int, Mapping[str, Any]], distance: Mapping[str, Any]) -> str:
    """Return the page.

    Args:
        results: What `benchmarks.worker` wrote, by the number of processes.
        distance: What `benchmarks.distance` wrote.
    """
    introduction = INTRODUCTION.format(
        cores=results[1]["machine"]["cores"],
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
    table = "\n".join(_far_table(figures["delays_ms"]))
    far = FAR.format(
        slots=figures["slots"], rounds=figures["rounds"], load=distance["machine"]["load"], table=table
    )
    return "\n".join([introduction, *tables, far, BOUNDS])


def ratios(figures: Mapping[str, Any], contender: str) -> dict[str, float]:
    """Return by concurrency how many times a contender's tasks a second a Worker gets through."""
    found = {}
    for concurrency, contenders in figures.items():
        if contender in contenders:
            pairs = zip(contenders[WORKER], contenders[contender], strict=True)
            each = [worker["tasks_per_second"] / other["tasks_per_second"] for worker, other in pairs]
            found[concurrency] = statistics.median(each)
    return found


def _far_table(delays_ms: Mapping[str, Mapping[str, Sequence[float]]]) -> Iterator[str]:
    ways = list(next(iter(delays_ms.values())))
    yield f"| answers late by, tasks a second | {' | '.join(ways)} | times |"
    yield "| --- |" + " ---: |" * (len(ways) + 1)
    for delay_ms, figures in delays_ms.items():
        cells = [f"{statistics.median(figures[way]):,.0f}" for way in ways]
        together, alone = (figures[way] for way in ways)
        times = statistics.median(one / other for one, other in zip(together, alone, strict=True))
        yield f"| {delay_ms} ms | {' | '.join(cells)} | {times:.1f} |"


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
    slots = list(figures)
    yield f"| tasks a second, median (lowest to highest) | {' | '.join(slots)} |"
    yield "| --- |" + " ---: |" * len(slots)
    for name in contenders:
        cells = [_spread(figures[each].get(name), "tasks_per_second") for each in slots]
        yield f"| {name} | {' | '.join(cells)} |"
    yield ""
    yield f"| processor time of a task, µs, median | {' | '.join(slots)} |"
    yield "| --- |" + " ---: |" * len(slots)
    for name in contenders:
        cells = [_median(figures[each].get(name), "processor_us_per_task") for each in slots]
        yield f"| {name} | {' | '.join(cells)} |"
    yield ""
    yield from _ratio_table(figures, [name for name in contenders if name != WORKER])


def _ratio_table(figures: Mapping[str, Any], contenders: Sequence[str]) -> Iterator[str]:
    yield f"| a `Worker` gets through, times | aim | {' | '.join(figures)} |"
    yield "| --- | ---: |" + " ---: |" * len(figures)
    for name in contenders:
        found = ratios(figures, name)
        cells = [f"{found[each]:.2f}" if each in found else "" for each in figures]
        yield f"| {name} | {AIMS.get(name, '')} | {' | '.join(cells)} |"


def _median(rounds: Sequence[Mapping[str, float]] | None, name: str) -> str:
    return f"{statistics.median(each[name] for each in rounds):,.0f}" if rounds else ""


def _spread(rounds: Sequence[Mapping[str, float]] | None, name: str) -> str:
    if not rounds:
        return ""
    numbers = [each[name] for each in rounds]
    return f"{_median(rounds, name)} ({min(numbers):,.0f} to {max(numbers):,.0f})"
