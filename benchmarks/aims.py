"""Figures beside their aims, and the causes of misses: docs/contributing/benchmarks.md."""

from __future__ import annotations

import math
import operator
import statistics
from dataclasses import dataclass
from itertools import product
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from benchmarks.costs_page import LIFE, LOADS, SHED, by_load, per_task
from benchmarks.figures import PARTS, figures_of, is_measured, read
from benchmarks.growth_page import AIM, AIM_OF_GROUPS, GROUPS, SITUATIONS
from benchmarks.growth_page import STORES as GROWTH_STORES
from benchmarks.library_pages import TRACED, WITH_CLIENTS, start_ratio
from benchmarks.overload_setting import DEADLINE_SECONDS
from benchmarks.pipeline_page import tables_ratio, time_ratio
from benchmarks.render import Block, Prose, Sections, Table, columns
from benchmarks.worker_page import AIMED, AIMS, FILES, HAND, STORES, TITLES, WORKER, ratio_rounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

# A put of 2, a claim of 2 and a completion of 1, and a tenth of a lease record with its deletion.
FLOOR_WRITE_UNITS: Final = 5.11
MOST_CONNECTIONS: Final = 10
ORDERS: Final = ("LIFO", "adaptive")
# Loads at which the share is shown alone, and from which on the least of them.
CLOSE_LOADS: Final = (1.1, 1.5)
OVERLOADED: Final = 2.0

WORKERS: Final = "tasks a second of a `Worker`, as a multiple of the other's"
GROWTH: Final = "time of a claim, as a multiple of that from the smallest queue; the highest of all sizes"
SHARES: Final = "share done in time, of what can be done"
RECOVERY: Final = "seconds after a burst until as much is done in time as before it"
_THROUGHPUT: Final = "[What bounds it](throughput.md#what-bounds-it)."
_DISTANCE: Final = "[What bounds it](throughput.md#dynamodb-at-a-distance)."
_CLOSE: Final = "Close to the capacity chance leaves slots idle that a backlog would fill."
_CLI: Final = "Most of it is the import of [packages](measurements.md#command-line)."
_COLD_START: Final = "Most of it is [imports](cold-starts.md); of these, {}."
# So many of the packages that take most of a cold start's imports are named.
NAMED_IMPORTS: Final = 4
_DUCKDB: Final = (
    "Making the tables from silver (sorts, windows, joins and sums) alone takes {:.1f} times as long as all "
    "of DuckDB's work "
    "([more](../decisions/0038-speed-beside-duckdb.md))."
)
_NIGHT: Final = (
    "Most of it is what Spark takes to start and to plan, whatever it reads "
    "([more](../decisions/0063-fixed-cost-of-a-run.md))."
)
_SMALL: Final = "Nearly all of it is Java: loading, compiling, planning ([more](pipeline.md#small-runs))."
AT_MOST: Final = ("at most", operator.le)
AT_LEAST: Final = ("at least", operator.ge)
# The heading of figures that have nothing in common.
FIGURE: Final = "figure"


@dataclass(frozen=True, slots=True)
class Finding:
    """One figure beside its aim.

    Attributes:
        what: What it is.
        found: The figure.
        relation: How it is to relate to the aim.
        aim: The aim.
        form: How both are shown.
        bound: What bounds it, if it misses the aim.
        topic: What it has in common with others: the heading of their table.
        spread: How sure it is, as shown behind it.
    """

    what: str
    found: float
    relation: tuple[str, Callable[[float, float], bool]]
    aim: float
    form: str = "{:.2f}"
    bound: str = ""
    topic: str = FIGURE
    spread: str = ""

    @property
    def is_met(self) -> bool:
        """Whether the aim is met, as exactly as it is shown."""
        found, aim = (float(self.form.format(each).replace(",", "")) for each in (self.found, self.aim))
        return self.relation[1](found, aim)

    @property
    def shown(self) -> str:
        """The figure, as it is shown."""
        return self.form.format(self.found)

    @property
    def shown_aim(self) -> str:
        """The aim, as it is shown."""
        return f"{self.relation[0]} {self.form.format(self.aim)}"

    def row(self) -> list[str]:
        """Return it as a row of a table."""
        shown = self.shown if self.is_met else f"**{self.shown}**"
        return [self.what, self.shown_aim, f"{shown}{self.spread and f' {self.spread}'}"]


def of_rounds(
    what: str,
    rounds: Sequence[float],
    relation: tuple[str, Callable[[float, float], bool]],
    aim: float,
    bound: str,
    topic: str = FIGURE,
) -> Finding:
    """Return the median of rounds as a finding, with the lowest and the highest behind it."""
    spread = f"({min(rounds):.2f} to {max(rounds):.2f})"
    return Finding(what, statistics.median(rounds), relation, aim, bound=bound, topic=topic, spread=spread)


def tables(findings: Sequence[Finding]) -> list[Block]:
    """Return a table for each topic, in the order of the findings."""
    by_topic: dict[str, list[Finding]] = {}
    for each in findings:
        by_topic.setdefault(each.topic, []).append(each)
    return [
        Table([topic, "aim", "found"], [each.row() for each in found]) for topic, found in by_topic.items()
    ]


def missed(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the findings that miss their aim: in one item those with one topic, aim and bound."""
    items: dict[tuple[str, str, str], list[Finding]] = {}
    for each in findings:
        if not each.is_met:
            apart = each.what if each.topic == FIGURE else each.topic
            items.setdefault((apart, each.shown_aim, each.bound), []).append(each)
    if not items:
        yield "Every aim above is met."
    for (apart, aim, bound), together in items.items():
        head = f"- {apart[0].upper()}{apart[1:]}"
        if together[0].topic == FIGURE:
            yield f"{head}: {together[0].shown}, where the aim is {aim}. {bound}"
        else:
            figures = "; ".join(f"{each.what} {each.shown}" for each in together)
            yield f"{head}, where the aim is {aim}: {figures}. {bound}"


def counted() -> Iterator[Finding]:
    """Yield what was counted and has an aim."""
    steps = {step["step"]: step for step in figures_of("capacity")["steps"]}
    yield Finding("calls of a task's whole life, claims of 10", steps[LIFE]["calls"], AT_MOST, 0.6)
    what = f"write units of the same life (the floor of {FLOOR_WRITE_UNITS:g} with one index, plus 2 %)"
    yield Finding(what, steps[LIFE]["write_units"], AT_MOST, FLOOR_WRITE_UNITS * 1.02)
    units = steps[SHED]["write_units"]
    yield Finding("write units of a task that is shed, its put included", units, AT_MOST, 2.0)
    for load, most_invocations in (("burst", 30), ("steady", 60)):
        one = by_load()[load]
        found = 1000 * per_task(one, "invocations")
        yield Finding(
            f"invocations for 1,000 tasks, {LOADS[load]}", found, AT_MOST, most_invocations, "{:.0f}"
        )
    yield from _connections()


def _connections() -> Iterator[Finding]:
    """Yield how many connections a Worker opens, if that was counted."""
    for store in STORES:
        rounds = [each for contenders in figures_of(FILES[1])[store].values() for each in contenders[WORKER]]
        counts = [each["connections"] for each in rounds if "connections" in each]
        if counts:
            what = f"connections of a `Worker` with 1 to 256 slots at most, {STORES[store]}"
            yield Finding(what, max(counts), AT_MOST, MOST_CONNECTIONS, "{:.0f}")


def simulated() -> Iterator[Finding]:
    """Yield what was simulated and has an aim."""
    found = figures_of("overload")
    for order in ORDERS:
        rows = {one["load"]: one for one in found["by_load"] if one["order"] == order}
        for load in CLOSE_LOADS:
            yield _share(f"{order} at {load:g} times the capacity", rows[load])
        beyond = {load: one for load, one in rows.items() if load >= OVERLOADED}
        least = min(beyond.values(), key=operator.itemgetter("mean"))
        yield _share(f"{order}, least of {min(beyond):g} to {max(beyond):g} times the capacity", least)
    for one in found["after_burst"]:
        if one["order"] in ORDERS:
            seconds = math.inf if one["recovery_seconds"] is None else one["recovery_seconds"]
            yield Finding(one["order"], seconds, AT_MOST, DEADLINE_SECONDS, "{:.0f}", topic=RECOVERY)


def _share(what: str, one: Mapping[str, float]) -> Finding:
    spread = f"± {one['half_width']:.3f}"
    return Finding(what, one["mean"], AT_LEAST, 0.97, "{:.3f}", _CLOSE, SHARES, spread)


def timed() -> Iterator[Finding]:
    """Yield what was timed and has an aim: ratios within one run, waits and processor time."""
    yield from _of_workers()
    yield from _of_growth()
    yield from _of_dynamodb()
    cli = figures_of("cli")
    for command, most in cli["at_most"].items():
        what = f"processor seconds of `{command}`"
        yield Finding(what, cli["processor_seconds"][command], AT_MOST, most, bound=_CLI)
    yield _of_cold_starts(figures_of("coldstart"))
    yield from _of_pipeline()


def _of_cold_starts(found: Mapping[str, Any]) -> Finding:
    functions = found["processor_ms"].values()
    slowest = max(start_ratio(each, TRACED, WITH_CLIENTS) for each in functions)
    what = "processor time of the slowest cold start, with bytecode / without"
    shares = sorted(found["shares_of_imports"].items(), key=operator.itemgetter(1), reverse=True)
    imports = ", ".join(f"{package} takes {100 * share:.0f} %" for package, share in shares[:NAMED_IMPORTS])
    return Finding(what, slowest, AT_MOST, 0.35, bound=_COLD_START.format(imports))


def _of_dynamodb() -> Iterator[Finding]:
    together, alone = figures_of("distance")["delays_ms"]["5"].values()
    rounds = [*map(operator.truediv, together, alone)]
    what = "DynamoDB 5 ms away, 25 slots: tasks/s with 25 writes a call, as a multiple of one write a call"
    yield of_rounds(what, rounds, AT_LEAST, 5.0, _DISTANCE)
    wait_seconds = by_load()["trickle"]["wait_p50_seconds"]
    what = f"seconds from put to claim, median, of tasks that come {LOADS['trickle']}"
    yield Finding(what, wait_seconds, AT_MOST, 1.5)


def _of_workers() -> Iterator[Finding]:
    files = {processes: figures_of(file) for processes, file in FILES.items() if is_measured(file)}
    for store, contender, processes in product(STORES, AIMS, files):
        for slots, contenders in files[processes][store].items():
            if contender in contenders and (contender == HAND or slots in AIMED):
                places = "1 slot" if slots == "1" else f"{slots} slots"
                what = f"{STORES[store]}, {places}, {TITLES[processes]}: {contender}"
                rounds = ratio_rounds(contenders, contender)
                yield of_rounds(what, rounds, AT_LEAST, AIMS[contender], _THROUGHPUT, WORKERS)


def _of_growth() -> Iterator[Finding]:
    for situation, store in product(SITUATIONS, GROWTH_STORES):
        file = f"growth_{store}"
        found = figures_of(file)["figures"] if is_measured(file) else []
        of_sizes = [each for each in found if each["situation"] == situation]
        smallest = min((each["size"] for each in of_sizes), default=0)
        ratios = [each["ratio"] for each in of_sizes if each["size"] > smallest]
        if ratios:
            title = SITUATIONS[situation]
            anchor = title.lower().replace(",", "").replace(" ", "-")
            yield Finding(
                f"{GROWTH_STORES[store]}: {title[0].lower()}{title[1:]}",
                max(ratios),
                AT_MOST,
                AIM_OF_GROUPS if situation == GROUPS else AIM,
                bound=f"[What bounds it](growth.md#{anchor}).",
                topic=GROWTH,
                spread=f"(lowest {min(ratios):.2f})",
            )


def _of_pipeline() -> Iterator[Finding]:
    what = "pipeline, 2 million events, warm: time / DuckDB's"
    found = figures_of("pipeline")
    bound = _DUCKDB.format(tables_ratio(found, "warm"))
    yield Finding(what, time_ratio(found, "warm"), AT_MOST, 3.0, bound=bound)
    if is_measured("pipeline_large"):
        what = "pipeline, 20 million events, started cold: time / DuckDB's"
        found = figures_of("pipeline_large")
        bound = _DUCKDB.format(tables_ratio(found, "cold"))
        yield Finding(what, time_ratio(found, "cold"), AT_MOST, 1.5, bound=bound)
    rounds = figures_of("pipeline_nights")["night_over_run"]["processor_seconds"]
    what = "pipeline, 2 million events: processor time of a nightly run (1 new file of 62) / of a full run"
    yield of_rounds(what, rounds, AT_MOST, 0.15, _NIGHT)
    small = figures_of("pipeline_small")
    what = "pipeline, 1,000 events: time / a bare PySpark script's"
    yield of_rounds(what, small["ratios"]["seconds"], AT_MOST, 1.6, _SMALL)
    what = "pipeline, 1,000 events: seconds from command to report"
    seconds = small["freshq_pipeline_run"]["seconds"]
    yield Finding(what, seconds, AT_MOST, 20.0, "{:.1f}", _SMALL)


def aims_page() -> Sections:
    """Return the sections of docs/contributing/benchmarks.md."""
    parts = {"counted": [*counted()], "simulated": [*simulated()], "timed": [*timed()]}
    files = {"counted": "capacity", "simulated": "overload", "timed": "worker"}
    sections: Sections = {(files[kind], kind): tables(found) for kind, found in parts.items()}
    every = [each for found in parts.values() for each in found]
    return sections | {
        ("worker", "misses"): [Prose("\n".join(missed(every)))],
        ("capacity", "parts"): [_parts()],
        ("capacity", "machines"): _machines(),
    }


def _parts() -> Table:
    return columns(
        PARTS.items(),
        {
            "part": lambda item: f"**{item[0]}**" if item[1].is_default else item[0],
            "what it finds": lambda item: item[1].what,
            "page": lambda item: f"[{PurePath(item[1].page).stem}]({_path(item[1].page)})",
            "minutes": lambda item: f"{item[1].minutes}",
        },
        texts=3,
    )


def _path(page: str) -> str:
    """Return the way to a page from the contributors' pages."""
    return page.removeprefix("contributing/") if page.startswith("contributing/") else f"../{page}"


def _machines() -> list[Block]:
    """Return where each file was measured, and a sentence about the files that there are not."""
    files = [file for part in PARTS.values() for file in part.files]
    table = columns(
        ({"file": file, **read(file)} for file in files if is_measured(file)),
        {
            "file": "{file}",
            "date": "{date}",
            "code": lambda whole: whole.get("commit", ""),
            "Python": "{machine[python]}",
            "cores": "{machine[cores]}",
            "memory": "{machine[memory_gib]} GiB",
            "load before": lambda whole: str(whole["machine"].get("load_before", "")),
            "load at the end": lambda whole: str(whole["machine"].get("load", "")),
        },
        texts=4,
    )
    missing = [file for file in files if not is_measured(file)]
    return [table, Prose(f"Not measured yet: {', '.join(missing)}.")] if missing else [table]
