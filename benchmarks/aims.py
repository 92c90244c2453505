"""Aims of single figures, the list of parts and the machines: docs/contributing/benchmarks.md."""

from __future__ import annotations

import math
import operator
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from benchmarks.costs_page import LIFE, LOADS, SHED, by_load, per_task
from benchmarks.figures import PARTS, figures_of, is_measured, read
from benchmarks.library_pages import AIM_FAR, FILES, IMPORT, TRACED, WITH_CLIENTS, WORKER, start_ratio
from benchmarks.overload_setting import DEADLINE_SECONDS
from benchmarks.pipeline_page import stream_growth, tables_ratio, time_ratio
from benchmarks.render import Block, Sections, bold, sections

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

# Units of a put (2), a claim (2) and a completion (1), and a tenth of a lease record with its deletion.
FLOOR_WRITE_UNITS: Final = 5.11
MOST_CONNECTIONS: Final = 10
ORDERS: Final = ("LIFO", "adaptive")
# Loads whose share is shown alone, and the load from which on only the smallest share is shown.
CLOSE_LOADS: Final = (1.1, 1.5)
OVERLOADED: Final = 2.0
# Packages named as the largest shares of a cold start's imports.
NAMED_IMPORTS: Final = 4
DISTANCE: Final = "[server and worker share the cores](throughput.md#dynamodb-at-a-distance)"
CLOSE: Final = "near the capacity, random gaps leave slots idle that a backlog would fill"
CLI: Final = "mostly the import of [packages](measurements.md#command-line)"
DUCKDB: Final = (
    "making the tables from silver alone takes {:.1f} times all of DuckDB's work "
    "([more](../decisions/0034-arrow.md))"
)
NIGHT: Final = "mostly Spark's start and planning ([more](../decisions/0034-arrow.md))"
SMALL: Final = "nearly all of it is Java: loading, compiling, planning ([more](pipeline.md#small-runs))"


@dataclass(frozen=True, slots=True)
class Aim:
    """One figure and its aim.

    Attributes:
        what: Name of the figure.
        found: The figure, or a list of its rounds.
        aim: The aim.
        form: Format of both.
        bound: The cause of a miss.
        at_least: Whether the figure must be at least the aim, rather than at most.
        half_width: Half width of the figure's 95 % interval.
    """

    what: str
    found: float | Sequence[float]
    aim: float
    form: str = ".2f"
    bound: str = ""
    at_least: bool = False
    half_width: float | None = None

    @property
    def is_met(self) -> bool:
        """Whether the figure, rounded as shown, meets the aim."""
        found, aim = (float(f"{each:{self.form}}") for each in (self._median, self.aim))
        return found >= aim if self.at_least else found <= aim

    @property
    def _median(self) -> float:
        return self.found if isinstance(self.found, int | float) else statistics.median(self.found)

    def row(self) -> list[str]:
        """Return the row of a table."""
        shown = bold(f"{self._median:{self.form}}", when=not self.is_met)
        if not isinstance(self.found, int | float):
            shown += f" ({min(self.found):{self.form}} to {max(self.found):{self.form}})"
        elif self.half_width is not None:
            shown += f" ± {self.half_width:{self.form}}"
        relation = "at least" if self.at_least else "at most"
        return [self.what, "" if self.is_met else self.bound, f"{relation} {self.aim:{self.form}}", shown]


def aims() -> Iterator[Aim]:
    """Yield the aims of figures that no other page judges."""
    steps = {step["step"]: step for step in figures_of("capacity")["steps"]}
    yield Aim("calls of a task's whole life, claims of 10", steps[LIFE]["calls"], 0.6)
    what = f"write units of the same life (the floor of {FLOOR_WRITE_UNITS:g} with one index, plus 2 %)"
    yield Aim(what, steps[LIFE]["write_units"], FLOOR_WRITE_UNITS * 1.02)
    yield Aim("write units of a shed task, including its put", steps[SHED]["write_units"], 2.0)
    for load, most in (("burst", 30), ("steady", 60)):
        found = 1000 * per_task(by_load()[load], "invocations")
        yield Aim(f"invocations for 1,000 tasks, {LOADS[load]}", found, most, ".0f")
    waited = by_load()["trickle"]["wait_p50_seconds"]
    yield Aim(f"median seconds from put to claim, {LOADS['trickle']}", waited, 1.5)
    yield from of_overload(figures_of("overload"))
    yield from of_connections(figures_of(FILES[1])["postgresql"])
    together, alone = figures_of("distance")["delays_ms"]["5"].values()
    what = "DynamoDB 5 ms away: rate with 25 writes a call / with one write a call"
    yield Aim(what, [*map(operator.truediv, together, alone)], AIM_FAR, bound=DISTANCE, at_least=True)
    cli = figures_of("cli")
    for command, limit in cli["at_most"].items():
        yield Aim(f"processor seconds of `{command}`", cli["processor_seconds"][command], limit, bound=CLI)
    yield from of_cold_starts(figures_of("coldstart"))
    yield from of_pipeline()


def of_overload(found: Mapping[str, Any]) -> Iterator[Aim]:
    """Yield the aims of simulated orders."""

    def share(what: str, one: Mapping[str, float]) -> Aim:
        title = f"{what} times the capacity: share done in time of the possible"
        return Aim(title, one["mean"], 0.97, ".3f", CLOSE, at_least=True, half_width=one["half_width"])

    for order in ORDERS:
        rows = {one["load"]: one for one in found["by_load"] if one["order"] == order}
        for load in CLOSE_LOADS:
            yield share(f"{order} at {load:g}", rows[load])
        beyond = [one for load, one in rows.items() if load >= OVERLOADED]
        least = min(beyond, key=operator.itemgetter("mean"))
        yield share(f"{order}, least of {OVERLOADED:g} to {max(rows):g}", least)
    for one in found["after_burst"]:
        if one["order"] in ORDERS:
            seconds = math.inf if one["recovery_seconds"] is None else one["recovery_seconds"]
            yield Aim(f"{one['order']}: seconds to recover from a burst", seconds, DEADLINE_SECONDS, ".0f")


def of_connections(by_slots: Mapping[str, Any]) -> Iterator[Aim]:
    """Yield the aim of a Worker's connections if they were counted."""
    rounds = [each for contenders in by_slots.values() for each in contenders[WORKER]]
    if counts := [each["connections"] for each in rounds if "connections" in each]:
        what = "connections of a `Worker` with 1 to 256 slots, PostgreSQL"
        yield Aim(what, max(counts), MOST_CONNECTIONS, ".0f")


def of_cold_starts(found: Mapping[str, Any]) -> Iterator[Aim]:
    """Yield the aims of the slowest import of a handler, and of the slowest cold start."""
    shares = sorted(found["shares_of_imports"].items(), key=operator.itemgetter(1), reverse=True)
    imports = ", ".join(f"{package} {100 * share:.0f} %" for package, share in shares[:NAMED_IMPORTS])
    bound = f"mostly [imports](cold-starts.md): {imports}"
    starts = found["processor_ms"].values()
    seconds = max(each[TRACED][IMPORT] for each in starts) / 1000
    yield Aim("processor seconds of the slowest import of a handler", seconds, 0.20, bound=bound)
    ratio = max(start_ratio(each, TRACED, WITH_CLIENTS) for each in starts)
    what = "processor time of the slowest cold start, with / without bytecode"
    yield Aim(what, ratio, 0.35, bound=bound)


def of_pipeline() -> Iterator[Aim]:
    """Yield the aims of the pipeline."""
    for file, what, kind, aim in (
        ("pipeline", "pipeline, 2 million events, warm", "warm", 3.0),
        ("pipeline_large", "pipeline, 20 million events, started cold", "cold", 1.3),
    ):
        found = figures_of(file)
        bound = DUCKDB.format(tables_ratio(found, kind))
        yield Aim(f"{what}: time / DuckDB's", time_ratio(found, kind), aim, bound=bound)
    rounds = figures_of("pipeline_nights")["night_over_run"]["processor_seconds"]
    what = "pipeline, 2 million events: processor time of a night (1 new file of 62) / of a full run"
    yield Aim(what, rounds, 0.15, bound=NIGHT)
    found = figures_of("pipeline_increments")
    what = "pipeline, 200 more events on a day of 200,000: processor time / of a run over the day"
    yield Aim(what, found["increment_over_run"]["processor_seconds"], 0.3, bound=NIGHT)
    what = "pipeline, 200 events in a stream: processor time after 24 hours / after 1"
    yield Aim(what, stream_growth(found), 1.3)
    small = figures_of("pipeline_small")
    what = "pipeline, 1,000 events: time / a bare PySpark script's"
    yield Aim(what, small["ratios"]["seconds"], 1.6, bound=SMALL)
    what = "pipeline, 1,000 events: seconds from command to report"
    yield Aim(what, small["freshq_pipeline_run"]["seconds"], 20.0, ".1f", SMALL)


def aims_page() -> Sections:
    """Return the sections of docs/contributing/benchmarks.md."""
    files = [file for part in PARTS.values() for file in part.files]
    missing = [file for file in files if not is_measured(file)]
    return sections(
        "benchmarks", aims=aims, PARTS=PARTS, read=read, missing=missing,
        files=[file for file in files if file not in missing],
    )  # fmt: skip


def machines() -> list[Block]:
    """Return where each file was measured, and the files that are missing."""
    return aims_page()["capacity", "machines"]
