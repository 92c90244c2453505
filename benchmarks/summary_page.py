"""The page docs/benchmarks.md: every part of `make bench`, what it found, and what misses its aim."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from benchmarks.aims import by_load, counted, simulated, timed
from benchmarks.dollars import FOR_TASKS, LOADS
from benchmarks.figures import figures_of, is_measured, read
from benchmarks.overload_setting import (
    MEASURED_DEADLINE_SECONDS,
    MEASURED_SECONDS,
    MEASURED_TASK_SECONDS,
    SERVERS,
)
from benchmarks.parts import PARTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.aims import Finding
    from benchmarks.parts import Part


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
        unmeasured=_unmeasured(),
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
    yield "| file | date | cores | memory | Python | load before | load at the end |"
    yield "| --- | --- | ---: | ---: | --- | ---: | ---: |"
    for file in _files(PARTS.values()):
        whole = read(file)
        machine = whole["machine"]
        loads = " | ".join(str(machine.get(load, "")) for load in ("load_before", "load"))
        yield (
            f"| {file} | {whole['date']} | {machine['cores']} | {machine['memory_gib']} GiB "
            f"| {machine['python']} | {loads} |"
        )


def _files(parts: Sequence[Part] | Any) -> Iterator[str]:  # noqa: ANN401 - a view of a dictionary's values
    return (file for part in parts for file in part.files if is_measured(file))


def _unmeasured() -> str:
    """Return a sentence about the files that there are not."""
    names = [file for part in PARTS.values() for file in part.files if not is_measured(file)]
    return f"Not measured yet: {', '.join(names)}.\n" if names else ""


def _missed(findings: Sequence[Finding]) -> Iterator[str]:
    if not findings:
        yield "Every aim above is met."
    for each in findings:
        found, aim = (each.form.format(number) for number in (each.found, each.aim))
        yield f"- {each.what}: {found}, where the aim is {each.relation[0]} {aim}. {each.bound}"


_TEXT: Final = """# Benchmarks

What freshq costs and gets through, each figure with how it was found. `make bench` writes this page, and what
its parts find on the pages listed [below](#how-to-run-it), from the files in `benchmarks/results`; a test
holds the pages to the files.

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

Invocations, here and above, are those that tasks cause: of Trigger, ProcessTasks and Archive. The producer
and the sweep, which runs on a schedule, are left out. The bytes are what CloudWatch Logs bills. Successes and
claims are INFO lines of every tenth task; failures, retries and what is shed are always logged
([dollars](dollars.md) has the price, [growth](growth.md) what a claim costs beside more tasks,
[scale](scale.md) which quota binds first).

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

The load before is the average of the minute before the part began, that at the end of the last quarter of an
hour, the part's own work included. Each part writes both; files that lack one are older than that.
{unmeasured}"""
