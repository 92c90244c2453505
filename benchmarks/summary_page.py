"""The page docs/benchmarks.md: every part of `make bench`, what it found, and what misses its aim."""

from __future__ import annotations

import statistics
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

from benchmarks.aims import by_load, counted, simulated, timed
from benchmarks.dollars import FOR_TASKS, LOADS
from benchmarks.figures import figures_of, is_measured, read
from benchmarks.finding import missed, tables
from benchmarks.overload_setting import (
    FIRST_SECONDS,
    MEASURED_DEADLINE_SECONDS,
    MEASURED_SECONDS,
    MEASURED_TASK_SECONDS,
    SERVERS,
)
from benchmarks.parts import PARTS
from benchmarks.sections import paragraph

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from benchmarks.parts import Part


def current() -> str:
    """Return the page as the files make it now."""
    parts = {"counted": [*counted()], "simulated": [*simulated()], "timed": [*timed()]}
    measured = _of_application()
    return _TEXT.format(
        **{kind: "\n".join(tables(of)) for kind, of in parts.items()},
        **_of_burst(),
        measured="\n".join(paragraph(_MEASURED.format(**measured))),
        shares="\n".join(paragraph(_SHARES.format(**measured))),
        logs="\n".join(_logs()),
        application="\n".join(_application()),
        parts="\n".join(_parts()),
        missed="\n".join(missed([each for of in parts.values() for each in of])),
        machines="\n".join(_machines()),
        passed_over="\n".join(_passed_over()),
        unmeasured=_unmeasured(),
    )


def _of_burst() -> dict[str, str]:
    """Return how fast the application served a burst, as the text says it."""
    burst = by_load()["burst"]
    return {
        "burst_tasks": f"{burst['tasks']:,}",
        "burst_seconds": f"{burst['seconds']:.0f}",
        "burst_wait": f"{burst['wait_p50_seconds']:.1f}",
    }


def _of_application() -> dict[str, str]:
    """Return what the application was measured with, as the text says it."""
    found = figures_of("overload")["application"]
    below = [one for one in found if one["offered"] <= 1]
    # What three tasks more or less change, where the fewest arrived.
    least = min(below, key=lambda one: one["arrived"])
    long, short = max(MEASURED_SECONDS.values()), min(MEASURED_SECONDS.values())
    return {
        "deadline": f"{MEASURED_DEADLINE_SECONDS:g}",
        "servers": str(SERVERS),
        "task": f"{MEASURED_TASK_SECONDS:g}",
        "long": f"{long:g}",
        "short": f"{short:g}",
        "first": f"{FIRST_SECONDS:g}",
        "slots": _from_to([one["slot_seconds"] for one in found], ".2f"),
        "loads": _from_to([one["machine_load"] for one in found], ".1f"),
        "least_tasks": str(least["arrived"]),
        "most_tasks": str(max(one["arrived"] for one in below)),
        "points": f"{100 * 3 * least['load'] / least['arrived']:.1f}",
    }


def _from_to(numbers: Sequence[float], form: str) -> str:
    return f"{min(numbers):{form}} to {max(numbers):{form}}"


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
    yield "| load / capacity | order | done in time | the same, simulated | tasks | wait, p50 | wait, p99 |"
    yield "| ---: | --- | ---: | ---: | ---: | ---: | ---: |"
    for one in figures_of("overload")["application"]:
        waits = " | ".join(_seconds(one[f"wait_{which}_seconds"]) for which in ("p50", "p99"))
        yield (
            f"| {one['load']:.2f} | {one['order']} | {one['goodput']:.2f} | {one['simulated_goodput']:.2f} "
            f"| {one['done']} of {one['arrived']} | {waits} |"
        )


def _passed_over() -> Iterator[str]:
    yield "| claimers | claims that pass over a better task | places, mean | places, most |"
    yield "| ---: | ---: | ---: | ---: |"
    for claimers, runs in passed_over_runs().items():
        shares, places = ([run[name] for run in runs] for name in ("share", "mean_places"))
        most = max(run["most_places"] for run in runs)
        yield f"| {claimers} | {_median(shares, '.0%')} | {_median(places, '.1f')} | {most} |"


def passed_over_runs() -> dict[int, list[dict[str, Any]]]:
    """Return the runs of `benchmarks.passed_over` by the number of claimers."""
    found: dict[int, list[dict[str, Any]]] = {}
    for run in figures_of("passed_over")["runs"]:
        found.setdefault(run["claimers"], []).append(run)
    return found


def _median(numbers: Sequence[float], form: str) -> str:
    return f"{statistics.median(numbers):{form}} ({_from_to(numbers, form)})"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.2f} s"


def _parts() -> Iterator[str]:
    yield "| part | what it finds | minutes | figures |"
    yield "| --- | --- | ---: | --- |"
    for name, part in PARTS.items():
        default = "**" if part.is_default else ""
        here = "below" if part.page == "benchmarks.md" else f"[{PurePath(part.page).stem}]({part.page})"
        yield f"| {default}{name}{default} | {part.what} | {part.minutes} | {here} |"


def _machines() -> Iterator[str]:
    yield "| file | date | code | cores | memory | Python | load before | load at the end |"
    yield "| --- | --- | --- | ---: | ---: | --- | ---: | ---: |"
    for file in _files(PARTS.values()):
        whole = read(file)
        machine, python = whole["machine"], _pythons(whole)
        loads = " | ".join(str(machine.get(load, "")) for load in ("load_before", "load"))
        yield (
            f"| {file} | {whole['date']} | {whole.get('commit', '')} | {machine['cores']} "
            f"| {machine['memory_gib']} GiB | {python} | {loads} |"
        )


def _pythons(whole: Mapping[str, Any]) -> str:
    """Return the version of Python, and that of the other queues if they had one of their own."""
    found = whole["figures"]
    others = found.get("peers_python") if isinstance(found, dict) else None
    own: str = whole["machine"]["python"]
    return f"{own}, the others {others}" if others else own


def _files(parts: Sequence[Part] | Any) -> Iterator[str]:
    return (file for part in parts for file in part.files if is_measured(file))


def _unmeasured() -> str:
    """Return a sentence about the files that there are not."""
    names = [file for part in PARTS.values() for file in part.files if not is_measured(file)]
    return f"Not measured yet: {', '.join(names)}.\n" if names else ""


_MEASURED: Final = (
    "The deployed application ran on the embedded emulator, with {servers} slots, tasks of {task} s and a "
    "deadline of {deadline} s: three stacks, one for each order, side by side with the same arrivals, for "
    "{long} s up to the capacity and {short} s beyond it. The first {first} s do not count. "
    "`BatchingWindowSeconds` is 0 here: the simulator knows no worker that waits to be woken. The "
    "JavaScript prototype is simulated only."
)
_SHARES: Final = (
    "A share is of what the slots could do, given the measured time from one task to the next in a slot: "
    "{slots} s. The emulator needs part of that time, on a machine whose load average was {loads}. Beside "
    "each share is that of the simulator for the recorded arrivals. *Tasks* are those done in time, of "
    "those that arrived. Up to the capacity {least_tasks} to {most_tasks} arrived: three tasks that end "
    "after the last second can be {points} points. At both ends one more task may end than the slots do "
    "on average; a share above 1 is shown as 1. Close to the capacity a backlog needs minutes to reach "
    "the deadline, so FIFO does not fail within this time."
)
_TEXT: Final = """# Benchmarks

What freshq costs and gets through, each figure with how it was found. `make bench` writes this page, and what
its parts find on the pages listed [below](#how-to-run-it), from the files in `benchmarks/results`; a test
holds the pages to the files.

- **Counted** figures are capacity units, calls, invocations, bytes and connections. Capacity and calls, which
  [costs](costs.md) lists, do not depend on the machine. Those of the application depend a little on its
  speed: here it served a burst of {burst_tasks} tasks in {burst_seconds} s, and claimed half of them
  within {burst_wait} s.
- **Simulated** figures are means over seeds, with 95 % intervals.
- **Timed** figures depend on the machine, and on what else it does. Contenders take turns within one run, so
  the ratios say more than the rates. A ratio is the median of those within each round, with the lowest and
  the highest behind it. Ratios of single runs, or of medians, stand alone.

Figures that miss their aim are bold; what bounds them is [below](#what-misses-its-aim).

## Counted

{counted}

The application, on the embedded emulator with a batching window of one second:

{logs}

Invocations, here and above, are those that tasks cause: of Trigger, ProcessTasks and Archive. The producer
and the sweep, which runs on a schedule, are left out. The bytes are what CloudWatch Logs bills. Successes and
claims are INFO lines of every tenth task; failures, retries and what is shed are always logged.
[Dollars](dollars.md) has the prices, [growth](growth.md) how the cost of a claim changes as the queue grows,
[scale](scale.md) which quota binds first.

## Simulated, and the application beside it

{simulated}

{measured}

{shares}

{application}

[Overload](overload.md) shows the picture, and the shares before, in and after a burst.

## Timed

{timed}

How far claims of one task depart from the order, newest first, while several claimers drain one queue of one
shard on DynamoDB Local as fast as they can: medians of runs in turns, with the lowest and the highest. The
next claims take what was passed over.

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

*Code* is the commit that was measured, with a plus if the code had changed since. The load before is the
average of the minute before the part began; that at the end is of the last quarter of an hour, so it holds
the part's own work, and after a short part mostly what ran before. Files that lack one of these are older
than it.
{unmeasured}"""
