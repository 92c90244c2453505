"""The page docs/benchmarks.md: every part of `make bench`, what it found, and what misses its aim."""

from __future__ import annotations

import operator
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from benchmarks.costs_page import LIFE, SHED
from benchmarks.dollars import FOR_TASKS, LOADS, WINDOW_SECONDS
from benchmarks.figures import RESULTS, figures_of, read
from benchmarks.overload_setting import (
    MEASURED_DEADLINE_SECONDS,
    MEASURED_SECONDS,
    MEASURED_TASK_SECONDS,
    SERVERS,
)
from benchmarks.parts import PARTS
from benchmarks.worker_page import AIMS, STORES, ratios

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benchmarks.parts import Part

# A put of 2, a claim of 2 and a completion of 1, and a tenth of a lease record with its deletion.
FLOOR_WRITE_UNITS: Final = 5.11
AT_MOST: Final = ("at most", operator.le)
AT_LEAST: Final = ("at least", operator.ge)
# Slots at which the issue sets aims beside other queues.
AIMED_SLOTS: Final = ("8", "32")
OVERLOADED: Final = 2.0


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
            f"invocations for 1,000 tasks, {LOADS[load]}", found, AT_MOST, most_invocations, "{:.0f}"
        )
    wait_seconds = invocations["trickle"]["wait_p50_seconds"]
    what = f"seconds from put to claim, median, {LOADS['trickle']}"
    yield Finding(what, wait_seconds, AT_MOST, 1.5)


def timed() -> Iterator[Finding]:
    """Yield what was timed and has an aim: ratios within one run, and processor time."""
    worker = figures_of("worker")
    for store, title in STORES.items():
        for contender, aim in AIMS.items():
            found = ratios(worker[store], contender)
            for slots in (each for each in AIMED_SLOTS if each in found):
                what = f"times {contender}, a `Worker` with {slots} slots on {title}"
                yield Finding(what, found[slots], AT_LEAST, aim, bound=_THROUGHPUT)
    far = figures_of("distance")["delays_ms"]["5"]
    together, alone = far.values()
    gain = statistics.median(map(operator.truediv, together, alone))
    what = "times one write a call, a `Worker` on DynamoDB 5 ms away with 25 writes a call"
    yield Finding(what, gain, AT_LEAST, 5.0, bound=_DISTANCE)
    cli = figures_of("cli")
    for command, most in cli["at_most"].items():
        what = f"processor seconds of `{command}`"
        yield Finding(what, cli["processor_seconds"][command], AT_MOST, most, bound=_CLI)


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


def current() -> str:
    """Return the page as the files make it now."""
    parts = {"counted": [*counted()], "simulated": [*simulated()], "timed": [*timed()]}
    missed = [each for of in parts.values() for each in of if not each.is_met]
    tables = {kind: "\n".join(_findings(of)) for kind, of in parts.items()}
    loads = [one["machine_load"] for one in figures_of("overload")["application"]]
    return _TEXT.format(
        **tables,
        logs="\n".join(_logs()),
        application="\n".join(_application()),
        parts="\n".join(_parts()),
        missed="\n".join(_missed(missed)),
        machines="\n".join(_machines()),
        passed_over="\n".join(_passed_over()),
        deadline=MEASURED_DEADLINE_SECONDS,
        servers=SERVERS,
        seconds=MEASURED_SECONDS,
        task=MEASURED_TASK_SECONDS,
        least_load=min(loads),
        most_load=max(loads),
    )


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    yield "| what | aim | found |"
    yield "| --- | ---: | ---: |"
    yield from (each.row() for each in findings)


def _logs() -> Iterator[str]:
    yield "| load | invocations for 1,000 tasks | bytes logged a task | write units a task |"
    yield "| --- | ---: | ---: | ---: |"
    of = by_load()
    for load, text in LOADS.items():
        one = of[load]
        invocations, logged = (
            sum(one[kind][name] for name in FOR_TASKS) / one["tasks"] for kind in ("invocations", "log_bytes")
        )
        units = one["write_units"] / one["tasks"]
        yield f"| {text} | {1000 * invocations:,.0f} | {logged:,.0f} | {units:.2f} |"


def _application() -> Iterator[str]:
    overload = figures_of("overload")
    yield "| load | order | done in time | simulated | wait, p50 | wait, p99 |"
    yield "| ---: | --- | ---: | ---: | ---: | ---: |"
    lines = {(one["order"], one["load"]): one for one in overload["by_load"]}
    for one in overload["application"]:
        near = lines.get((one["order"], one["offered"]))
        simulated_share = f"{near['mean']:.2f} ± {near['half_width']:.2f}" if near else ""
        waits = " | ".join(_seconds(one[f"wait_{which}_seconds"]) for which in ("p50", "p99"))
        yield f"| {one['load']:.2f} | {one['order']} | {one['goodput']:.2f} | {simulated_share} | {waits} |"


def _passed_over() -> Iterator[str]:
    yield "| claimers | claims that pass over a better task | places, mean | places, most |"
    yield "| ---: | ---: | ---: | ---: |"
    for run in figures_of("passed_over")["runs"]:
        yield (
            f"| {run['claimers']} | {run['share']:.0%} | {run['mean_places']:.1f} | {run['most_places']} |"
        )


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.2f} s"


def _parts() -> Iterator[str]:
    yield "| part | what it finds | minutes | figures |"
    yield "| --- | --- | ---: | --- |"
    for name, part in PARTS.items():
        default = "**" if part.is_default else ""
        here = "below" if part.page == "benchmarks.md" else f"[{part.page.removesuffix('.md')}]({part.page})"
        yield f"| {default}{name}{default} | {part.what} | {part.minutes} | {here} |"


def _machines() -> Iterator[str]:
    yield "| file | date | cores | memory | Python | load average |"
    yield "| --- | --- | ---: | ---: | --- | ---: |"
    for file in _files(PARTS.values()):
        whole = read(file)
        machine = whole["machine"]
        load = machine.get("load", "")
        yield (
            f"| {file} | {whole['date']} | {machine['cores']} | {machine['memory_gib']} GiB "
            f"| {machine['python']} | {load} |"
        )


def _files(parts: Sequence[Part] | Any) -> Iterator[str]:  # noqa: ANN401 - a view of a dictionary's values
    return (file for part in parts for file in part.files if (RESULTS / f"{file}.json").exists())


def _missed(findings: Sequence[Finding]) -> Iterator[str]:
    if not findings:
        yield "Every aim above is met."
    for each in findings:
        found, aim = (each.form.format(number) for number in (each.found, each.aim))
        yield f"- {each.what}: {found}, where the aim is {each.relation[0]} {aim}. {each.bound}"


_THROUGHPUT: Final = "[What bounds it](throughput.md#what-bounds-it)."
_DISTANCE: Final = "DynamoDB Local works on the same two cores: [more](throughput.md#dynamodb-at-a-distance)."
_CLI: Final = "Most of it is the import of the packages, which [cli](cli.md) lists."
_TEXT: Final = """# Benchmarks

What freshq costs and gets through, each figure with how it was found. `make bench` writes this page, Costs,
Dollars, Growth, Scale, Throughput and the tables of Overload from the files in `benchmarks/results`, and a
test holds them to these. The figures on other pages are written by hand.

- **Counted** figures are capacity units, calls, invocations and bytes. They do not depend on the machine.
- **Simulated** figures are means of ten seeds, with 95 % intervals.
- **Timed** figures depend on the machine, and on what else it does. Contenders take turns within one run, so
  the ratios say more than the rates. A ratio is the median of those within each round; the pages show the
  lowest and the highest.

Figures that miss their aim are bold; what bounds them is [below](#what-misses-its-aim).

## Counted

{counted}

The application, on the embedded emulator with a batching window of one second:

{logs}

The bytes are what CloudWatch Logs bills. Successes and claims are INFO lines of every tenth task; failures,
retries and what is shed are always logged ([dollars](dollars.md) has the price, [growth](growth.md) what a
claim costs beside more tasks, [scale](scale.md) which quota binds first).

## Simulated, and the application beside it

{simulated}

The deployed application on the embedded emulator, with {servers} slots, tasks of {task:g} s and a deadline
of {deadline:g} s, for {seconds:g} s under each load: the same arrivals in both orders, side by side. A
share is of what its slots could do, by the measured time from one task of a slot to the next: the emulator
needs some of it, on a machine whose load average was {least_load} to {most_load}. At both ends of
the measured time one more task may end than the slots do on average; a share above 1 is shown as 1. Close to
the capacity a backlog takes minutes to reach the deadline, so FIFO does not fail yet in this time.

{application}

[Overload](overload.md) shows the picture.

## Timed

{timed}

How far claims of one task depart from the order, newest first, while several claimers drain one queue on
DynamoDB Local as fast as they can. The next claims take what was passed over.

{passed_over}

## What misses its aim

{missed}

Of the pages written by hand, [the pipeline's](pipeline.md#speed) has aims that are missed, too.

## How to run it

<!-- not run: it measures for minutes -->
```sh
make bench                          # the bold parts
make bench PARTS="capacity growth"  # parts by name
make bench PARTS=worker PEERS=python3.12
```

PEERS names an interpreter in which other queues are installed; those that it lacks are left out, and the
page names them.

{parts}

## Where it was measured

{machines}

The load average is that of the last quarter of an hour at the end of the part, its own work included.
"""
