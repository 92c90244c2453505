"""The figures that have an aim, from the results, and what bounds those that miss it."""

from __future__ import annotations

import operator
import statistics
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from benchmarks import deploy_page, pipeline_page
from benchmarks.costs_page import LIFE, SHED
from benchmarks.dollars import FOR_TASKS, LOADS, WINDOW_SECONDS
from benchmarks.figures import figures_of, is_measured
from benchmarks.worker_page import AIMS, FILES, STORES, ratios

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# A put of 2, a claim of 2 and a completion of 1, and a tenth of a lease record with its deletion.
FLOOR_WRITE_UNITS: Final = 5.11
AT_MOST: Final = ("at most", operator.le)
AT_LEAST: Final = ("at least", operator.ge)
# Slots at which the issue sets aims beside other queues.
AIMED_SLOTS: Final = ("8", "32")
SEVERAL: Final = {1: "", 2: ", both in two processes"}
OVERLOADED: Final = 2.0
# What FOR_TASKS leaves out.
WITHOUT: Final = ", without the producer and the sweep"
_THROUGHPUT: Final = "[What bounds it](throughput.md#what-bounds-it)."
_DISTANCE: Final = "DynamoDB Local works on the same two cores: [more](throughput.md#dynamodb-at-a-distance)."
_CLI: Final = "Most of it is the import of the packages, which [cli](cli.md) lists."
_COLD_START: Final = (
    "Most of it is [imports](deploy.md#cold-starts), of Python's own library, pydantic and botocore."
)
_DUCKDB: Final = (
    "Reading, parsing and writing silver alone take {:.1f} times as long as all of DuckDB's work "
    "([more](decisions/0038-speed-beside-duckdb.md))."
)
_NIGHT: Final = (
    "Most of it is what Spark takes to start and to plan, whatever it reads "
    "([more](decisions/0063-fixed-cost-of-a-run.md))."
)
_SMALL: Final = "Nearly all of it is Java: loading, compiling, planning ([more](pipeline.md#speed))."


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
    """

    what: str
    found: float
    relation: tuple[str, Callable[[float, float], bool]]
    aim: float
    form: str = "{:.2f}"
    bound: str = ""

    @property
    def is_met(self) -> bool:
        """Whether the aim is met, as exactly as it is shown."""
        found, aim = (float(self.form.format(each).replace(",", "")) for each in (self.found, self.aim))
        return self.relation[1](found, aim)

    def row(self) -> str:
        """Return it as a row of a table."""
        shown = self.form.format(self.found)
        aim = f"{self.relation[0]} {self.form.format(self.aim)}"
        return f"| {self.what} | {aim} | {shown if self.is_met else f'**{shown}**'} |"


def counted() -> Iterator[Finding]:
    """Yield what was counted and has an aim."""
    steps = {step["step"]: step for step in figures_of("capacity")["steps"]}
    yield Finding("calls of a task's whole life, claims of 10", steps[LIFE]["calls"], AT_MOST, 0.6)
    most = FLOOR_WRITE_UNITS * 1.02
    units = steps[LIFE]["write_units"]
    yield Finding("write units of the same: the least with one index, and 2 %", units, AT_MOST, most)
    units = steps[SHED]["write_units"]
    yield Finding("write units of a task that is shed, its put included", units, AT_MOST, 2.0)
    invocations = by_load()
    for load, most_invocations in (("burst", 30), ("steady", 60)):
        one = invocations[load]
        found = sum(one["invocations"][name] for name in FOR_TASKS) * 1000 / one["tasks"]
        yield Finding(
            f"invocations for 1,000 tasks, {LOADS[load]}{WITHOUT}", found, AT_MOST, most_invocations, "{:.0f}"
        )
    wait_seconds = invocations["trickle"]["wait_p50_seconds"]
    what = f"seconds from put to claim, median, {LOADS['trickle']}"
    yield Finding(what, wait_seconds, AT_MOST, 1.5)


def timed() -> Iterator[Finding]:
    """Yield what was timed and has an aim: ratios within one run, and processor time."""
    yield from _of_workers()
    far = figures_of("distance")["delays_ms"]["5"]
    together, alone = far.values()
    gain = statistics.median(map(operator.truediv, together, alone))
    what = "times one write a call, a `Worker` on DynamoDB 5 ms away with 25 writes a call"
    yield Finding(what, gain, AT_LEAST, 5.0, bound=_DISTANCE)
    cli = figures_of("cli")
    for command, most in cli["at_most"].items():
        what = f"processor seconds of `{command}`"
        yield Finding(what, cli["processor_seconds"][command], AT_MOST, most, bound=_CLI)
    functions = figures_of("coldstart")["processor_ms"].values()
    slowest = max(deploy_page.ratio(each, deploy_page.TRACED, deploy_page.WITH_CLIENTS) for each in functions)
    what = (
        "a cold start's processor time as a part of that without bytecode, of the function where it is most"
    )
    yield Finding(what, slowest, AT_MOST, 0.35, bound=_COLD_START)
    yield from _of_pipeline()


def _of_workers() -> Iterator[Finding]:
    files = {processes: file for processes, file in FILES.items() if is_measured(file)}
    for store, title in STORES.items():
        for contender, processes in product(AIMS, files):
            found = ratios(figures_of(files[processes])[store], contender)
            for slots in (each for each in AIMED_SLOTS if each in found):
                where = f"{slots} slots on {title}" + SEVERAL[processes]
                what = f"times {contender}, a `Worker` with {where}"
                yield Finding(what, found[slots], AT_LEAST, AIMS[contender], bound=_THROUGHPUT)


def _of_pipeline() -> Iterator[Finding]:
    what = "times DuckDB's time, the pipeline on 2 million events, warm"
    found = figures_of("pipeline")
    bound = _DUCKDB.format(pipeline_page.warm_read_ratio(found))
    yield Finding(what, pipeline_page.warm_ratio(found), AT_MOST, 3.0, "{:.1f}", bound)
    if is_measured("pipeline_large"):
        what = "times DuckDB's time, the pipeline on 20 million events, started cold"
        found = figures_of("pipeline_large")
        bound = _DUCKDB.format(pipeline_page.cold_read_ratio(found))
        yield Finding(what, pipeline_page.cold_ratio(found), AT_MOST, 1.5, "{:.1f}", bound)
    what = (
        "processor time of a night, one file of 62 that is new, as a part of a run over all, 2 million events"
    )
    yield Finding(what, pipeline_page.night_share(figures_of("pipeline_nights")), AT_MOST, 0.15, bound=_NIGHT)
    small = figures_of("pipeline_small")
    what = "times a bare PySpark script's time, the pipeline on a thousand events"
    yield Finding(what, statistics.median(small["ratios"]["seconds"]), AT_MOST, 1.6, bound=_SMALL)
    seconds = small["freshq_pipeline_run"]["seconds"]
    yield Finding("seconds of the same, from command to report", seconds, AT_MOST, 20.0, "{:.1f}", _SMALL)


def simulated() -> Iterator[Finding]:
    """Yield what was simulated and has an aim."""
    for order in ("LIFO", "adaptive"):
        shares = {
            one["load"]: one["mean"]
            for one in figures_of("overload")["by_load"]
            if one["order"] == order and one["load"] >= OVERLOADED
        }
        what = f"least share done in time, {order}, at {min(shares):g} to {max(shares):g} times the capacity"
        yield Finding(what, min(shares.values()), AT_LEAST, 0.97, "{:.3f}")


def by_load() -> Mapping[str, Any]:
    """Return what was counted of the application, with the template's batching window, by load."""
    return {one["load"]: one for one in figures_of("invocations") if one["window_seconds"] == WINDOW_SECONDS}
