"""The sections of docs/contributing/throughput.md and floor.md, and the names of what their parts measure."""

from __future__ import annotations

import statistics
from itertools import product
from operator import truediv
from typing import TYPE_CHECKING, Any, Final

from benchmarks.figures import figures_of, is_measured, read
from benchmarks.library_pages import measured_with
from benchmarks.render import Block, Prose, Sections, Table, across, columns, spread

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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


def throughput_page() -> Sections:
    """Return the sections of docs/contributing/throughput.md."""
    sections: Sections = {
        (file, STORES[store]): _tables(read(file), store)
        for file in FILES.values()
        if is_measured(file)
        for store in STORES
    }
    return sections | {
        ("lone", "lone task"): _lone(figures_of("lone")),
        ("distance", "distance"): _distance(read("distance")),
        ("worker", "bounds"): [_bounds(figures_of("worker"))],
    }


def rates(store: str, slots: Sequence[str] = AIMED) -> Table:
    """Return the tasks a second of each contender in one process, for the users' page."""
    contenders = _by_contender(figures_of(FILES[1])[store], slots)
    return across(f"{STORES[store]}, tasks a second", contenders, _rates, _slots)


def _by_contender(figures: Mapping[str, Any], slots: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the rounds of each contender by slots."""
    found: dict[str, dict[str, Any]] = {}
    for number in slots:
        for name, rounds in figures[number].items():
            found.setdefault(name, {})[number] = rounds
    return found


def _slots(number: str) -> str:
    return f"{number} slot{'s' * (number != '1')}"


def _rates(rounds: Sequence[Mapping[str, float]]) -> str:
    return spread([each["tasks_per_second"] for each in rounds], ",.0f")


def _tables(result: Mapping[str, Any], store: str) -> list[Block]:
    report, machine = result["figures"], result["machine"]
    figures = report[store]
    contenders = _by_contender(figures, figures)
    text = f"""{report["rounds"]} rounds, load average {machine["load"]} at the end, the benchmark's own
        included; freshq on Python {machine["python"]}, the others on {report["peers_python"]}.
        {measured_with(report, contenders)}"""
    ratios = [
        [name, str(AIMS.get(name, "")), *(ratio_cell(each, name, number) for number, each in figures.items())]
        for name in contenders
        if name != WORKER
    ]
    counted = [
        [title, name, *(_median(rounds.get(number), what) for number in figures)]
        for (what, title), (name, rounds) in product(COUNTED.items(), contenders.items())
        if any(what in each[0] for each in rounds.values())
    ]
    slots = [*map(_slots, figures)]
    return [
        Prose(text),
        across("tasks a second, median (lowest to highest)", contenders, _rates, _slots),
        Table(["rate of a `Worker`, as a multiple of", "aim", *slots], ratios),
        Table(["figure, median", "contender", *slots], counted, texts=2),
    ]


def _median(rounds: Sequence[Mapping[str, float]] | None, what: str) -> str:
    return f"{statistics.median(each[what] for each in rounds):,.0f}" if rounds and what in rounds[0] else ""


def ratio_rounds(contenders: Mapping[str, Any], name: str) -> list[float]:
    """Return a Worker's tasks a second as a multiple of a contender's, in each round."""
    pairs = zip(contenders[WORKER], contenders[name], strict=True)
    return [worker["tasks_per_second"] / other["tasks_per_second"] for worker, other in pairs]


def ratio_cell(contenders: Mapping[str, Any], name: str, slots: str) -> str:
    """Return the ratio of a Worker to a contender; bold if it misses its aim."""
    if name not in contenders:
        return ""
    found = ratio_rounds(contenders, name)
    misses = (name == HAND or slots in AIMED) and statistics.median(found) < AIMS.get(name, 0)
    return f"**{spread(found, '.2f')}**" if misses else spread(found, ".2f")


def _lone(found: Mapping[str, Any]) -> list[Block]:
    text = f"""`make bench PARTS=lone` puts {len(found["stores"]["sqlite"]["run_ms"])} tasks, one at a time,
        to an idle `Worker` with {found["slots"]} slots that looks for tasks every {found["poll_ms"]:g} ms
        (by default every half second); half of that is waiting for its next look."""

    def shown(numbers: Sequence[float]) -> str:
        return f"{statistics.median(numbers):.1f} ({statistics.quantiles(numbers, n=10)[-1]:.1f})"

    table = columns(
        found["stores"].items(),
        {
            "ms from the put, median (9 in 10 are below)": lambda item: STORES[item[0]],
            "until it runs": lambda item: shown(item[1]["run_ms"]),
            "until it is settled": lambda item: shown(item[1]["settled_ms"]),
        },
    )
    return [Prose(text), table]


def _distance(result: Mapping[str, Any]) -> list[Block]:
    figures = result["figures"]
    together, alone = figures["delays_ms"]["0"]
    table = columns(
        ({"delay": delay, **rates} for delay, rates in figures["delays_ms"].items()),
        {
            "tasks a second, delay of each answer": "{delay} ms",
            together: lambda row: spread(row[together], ",.0f"),
            alone: lambda row: spread(row[alone], ",.0f"),
            "ratio": lambda row: spread([*map(truediv, row[together], row[alone])], ".1f"),
        },
    )
    near = 1000 / statistics.median(figures["delays_ms"]["0"][together])
    worker, server = (
        statistics.median(figures[name]["0"][together])
        for name in ("worker_processor_ms", "server_processor_ms")
    )
    left = 1000 / (AIM_FAR * statistics.median(figures["delays_ms"]["5"][alone]))
    text = f"""{figures["rounds"]} rounds in turns, {figures["slots"]} slots, load average
        {result["machine"]["load"]}. The aim is {AIM_FAR:g} times at 5 ms. Without any delay, a task in
        batches takes {near:.1f} ms, of which the worker's processor takes {worker:.1f} and the server's
        {server:.1f}, on the same two cores; {AIM_FAR:g} times would leave {left:.1f} ms."""
    return [table, Prose(text)]


def _bounds(figures: Mapping[str, Any]) -> Prose:
    def of(store: str, slots: str, contender: str, what: str = "processor_us_per_task") -> float:
        return float(statistics.median(each[what] for each in figures[store][slots][contender]))

    text = f"""With 8 slots, calls carry eight tasks at most, so each task bears more of the cost of a call.
        In SQLite it takes {of("sqlite", "8", WORKER):.0f} µs of processor time, with 32 slots
        {of("sqlite", "32", WORKER):.0f}, by hand {of("sqlite", "8", HAND):.0f}; and one process of Python
        has one second of processor time a second. Claims of eight instead of ten add a twentieth to the time
        by hand, the worker's records of each run a fifth, and handing tasks to threads the rest
        ([measured](../decisions/0068-the-loop-claims.md))."""
    if "huey" in figures["sqlite"]["8"]:
        text += f" huey takes {of('sqlite', '8', 'huey'):.0f} µs for its single write."
    if "procrastinate" in figures["postgresql"]["8"]:
        theirs = of("postgresql", "8", "procrastinate", "tasks_per_second")
        taken = 8000 / of("postgresql", "8", WORKER, "tasks_per_second")
        text += f""" procrastinate runs {theirs:,.0f} tasks a second in 8 slots. Ten times that would leave
        {8000 / (AIMS["procrastinate"] * theirs):.1f} ms for a claim and a settlement of eight tasks, each
        with its commit; they take {taken:.1f} ms."""
    return Prose(text)


VERBS: Final = ("put", "put_many(500)", "claim(1)", "claim(10)", "complete", "settle_many(10)")
# The most that a verb may take, as a multiple of its floor.
FLOOR_AIMS: Final = dict(zip(VERBS, (2.0, 2.8, 2.0, 2.5, 2.0, 2.5), strict=True))


def floor_page() -> Sections:
    """Return the section of docs/contributing/floor.md."""
    if not is_measured("floor"):
        return {("floor", "ratios"): [Prose("Not measured yet.")]}
    result = read("floor")
    found, machine = result["figures"], result["machine"]
    text = f"""Minimum of {found["rounds"]} rounds in turns, {found["tasks"]:,} tasks each, on Python
        {machine["python"]}; load average before: {machine["load_before"]}. Bold ratios miss the aim."""
    rows = [
        {"database": database, "verb": verb, **each, "ratio": _floor_ratio(verb, each)}
        for database, verbs in found["databases"].items()
        for verb, each in verbs.items()
    ]
    table = columns(
        rows,
        {
            "database": "{database}",
            "verb": "{verb}",
            "freshq, µs a task": "{freshq_us:.1f}",
            "floor, µs a task": "{floor_us:.1f}",
            "ratio": "{ratio}",
            "aim, at most": lambda row: f"{FLOOR_AIMS[row['verb']]:.1f}",
        },
        texts=2,
    )
    return {("floor", "ratios"): [Prose(text), table]}


def _floor_ratio(verb: str, each: Mapping[str, Any]) -> str:
    ratio = f"{each['freshq_us'] / each['floor_us']:.2f}"
    return f"**{ratio}**" if float(ratio) > FLOOR_AIMS[verb] else ratio
