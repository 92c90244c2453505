"""Sections of docs/contributing/throughput.md and floor.md, and names in the results of their parts."""

from __future__ import annotations

import statistics
from itertools import product
from operator import truediv
from typing import TYPE_CHECKING, Any, Final

from benchmarks.figures import figures_of, read
from benchmarks.render import Block, Prose, Sections, Table, across, bold, columns, spread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

HAND: Final = "claims of ten by hand"
WORKER: Final = "Worker"
FRESHQ: Final = "freshq"
# File of results by number of processes.
FILES: Final = {1: "worker", 2: "worker_two"}
STORES: Final = {"postgresql": "PostgreSQL", "sqlite": "SQLite"}
# Slots for which the aims beside other queues hold; the aim beside claims by hand holds for all.
AIMED: Final = ("8", "32")
# Aims of a Worker as a multiple of each contender's rate.
AIMS: Final = {HAND: 0.8, "oban": 2.0, "procrastinate": 10.0, "huey": 2.0}
# Aim of batches as a multiple of single writes, 5 ms away.
AIM_FAR: Final = 5.0
# Further figures by their name in the file.
COUNTED: Final = {
    "processor_us_per_task": "processor time of a task, µs",
    "connections": "connections at most",
}
VERBS: Final = ("put", "put_many(500)", "claim(1)", "claim(10)", "complete", "settle_many(10)")
# Largest multiples of the floor.
FLOOR_AIMS: Final = dict(zip(VERBS, (2.0, 2.8, 2.0, 2.5, 2.0, 2.5), strict=True))


def throughput_page() -> Sections:
    """Return the sections of docs/contributing/throughput.md."""
    sections: Sections = {
        (file, STORES[store]): _tables(read(file), store) for file, store in product(FILES.values(), STORES)
    }
    return sections | {
        ("wake", "latency"): wakes(),
        ("distance", "distance"): _distance(read("distance")),
        ("worker", "bounds"): [_bounds(figures_of("worker")["sqlite"])],
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
    versions = ", ".join(f"{name} {each}" for name, each in report["versions"].items() if name in contenders)
    missing = f" Not installed, so not measured: {', '.join(report['missing'])}." if report["missing"] else ""
    text = f"""{report["rounds"]} rounds, load average {machine["load"]} at the end; freshq on Python
        {machine["python"]}, the others ({versions}) on {report["peers_python"]}.{missing}"""
    ratios = [
        [name, str(AIMS.get(name, "")), *(ratio_cell(each, name, number) for number, each in figures.items())]
        for name in contenders
        if name != WORKER
    ]
    slots = [*map(_slots, figures)]
    return [
        Prose(text),
        across("tasks a second, median (lowest to highest)", contenders, _rates, _slots),
        Table(["rate of a `Worker`, as a multiple of", "aim", *slots], ratios),
        Table(["median", "contender", *slots], [*_counted(contenders, [*figures])], texts=2),
    ]


def _counted(contenders: Mapping[str, Any], slots: Sequence[str]) -> Iterator[list[str]]:
    """Yield the rows of further figures."""
    for (what, title), (name, rounds) in product(COUNTED.items(), contenders.items()):
        cells = [_median(rounds.get(number), what) for number in slots]
        if any(cells):
            yield [title, name, *cells]


def _median(rounds: Sequence[Mapping[str, float]] | None, what: str) -> str:
    return f"{statistics.median(each[what] for each in rounds):,.0f}" if rounds and what in rounds[0] else ""


def ratio_rounds(contenders: Mapping[str, Any], name: str) -> list[float]:
    """Return a Worker's rate as a multiple of a contender's, by round."""
    pairs = zip(contenders[WORKER], contenders[name], strict=True)
    return [worker["tasks_per_second"] / other["tasks_per_second"] for worker, other in pairs]


def ratio_cell(contenders: Mapping[str, Any], name: str, slots: str) -> str:
    """Return the ratio of a Worker to a contender, bold if it misses its aim."""
    if name not in contenders:
        return ""
    found = ratio_rounds(contenders, name)
    misses = (name == HAND or slots in AIMED) and statistics.median(found) < AIMS.get(name, 0)
    return bold(spread(found, ".2f"), when=misses)


def wakes() -> list[Block]:
    """Return the latencies between processes, for both pages."""
    report = read("wake")
    found, machine = report["figures"], report["machine"]
    versions = ", ".join(f"{name} {each}" for name, each in found["versions"].items())
    missing = f" Not installed, so not measured: {', '.join(found['missing'])}." if found["missing"] else ""
    text = f"""`make bench PARTS=wake` puts {found["rounds"] * found["tasks"]} single tasks, in
        {found["rounds"]} turns, for an idle worker with {found["slots"]} slots in another process. The
        contenders are on PostgreSQL unless named otherwise ({versions or "no other queue"}; they keep no
        results). Load average {machine["load_before"]} before, {machine["load"]} at the end.{missing}"""

    def shown(which: str) -> Callable[[Any], str]:
        return lambda item: _percentiles([each[which] for each in item[1] if which in each])

    idle = found["idle_per_second"]
    table = columns(
        found["contenders"].items(),
        {
            "ms, p50 / p99": "{0[0]}",
            "put to start": shown("start_ms"),
            "put to result": shown("result_ms"),
            "idle transactions a second": lambda item: f"{idle[item[0]]:.1f}" if item[0] in idle else "",
        },
    )
    return [Prose(text), table]


def _percentiles(numbers: Sequence[float]) -> str:
    if not numbers:
        return ""
    cuts = statistics.quantiles(numbers, n=100, method="inclusive")
    return f"{cuts[49]:.1f} / {cuts[98]:.1f}"


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
        {result["machine"]["load"]}. The aim is {AIM_FAR:g} times at 5 ms, which would leave {left:.1f} ms a
        task. Even without a delay a task in batches takes {near:.1f} ms: {worker:.1f} ms of the worker's
        processor time and {server:.1f} ms of the server's, on the same cores."""
    return [table, Prose(text)]


def _bounds(sqlite: Mapping[str, Any]) -> Prose:
    def of(slots: str, contender: str) -> float:
        return float(statistics.median(each["processor_us_per_task"] for each in sqlite[slots][contender]))

    huey = f", and huey {of('8', 'huey'):.0f} for its single write" if "huey" in sqlite["8"] else ""
    return Prose(
        f"""On SQLite a task takes {of("1", WORKER):.0f} µs of processor time with one slot,
        {of("8", WORKER):.0f} with 8, {of("32", WORKER):.0f} with 32, by hand {of("8", HAND):.0f}{huey}. Of
        that the worker's records of each run, and handing tasks to threads, take about a third."""
    )


def floor_page() -> Sections:
    """Return the section of docs/contributing/floor.md."""
    result = read("floor")
    found, machine = result["figures"], result["machine"]
    text = f"""Minimum of {found["rounds"]} rounds in turns, {found["tasks"]:,} tasks each, on Python
        {machine["python"]}; load average before: {machine["load_before"]}. Bold ratios miss the aim."""

    def ratio(row: Mapping[str, Any]) -> str:
        shown = f"{row['freshq_us'] / row['floor_us']:.2f}"
        return bold(shown, when=float(shown) > FLOOR_AIMS[row["verb"]])

    table = columns(
        (
            {"database": database, "verb": verb, **each}
            for database, verbs in found["databases"].items()
            for verb, each in verbs.items()
        ),
        {
            "database": "{database}",
            "verb": "{verb}",
            "freshq, µs a task": "{freshq_us:.1f}",
            "floor, µs a task": "{floor_us:.1f}",
            "ratio": ratio,
            "aim, at most": lambda row: f"{FLOOR_AIMS[row['verb']]:.1f}",
        },
        texts=2,
    )
    return {("floor", "ratios"): [Prose(text), table]}
