"""The figures of asyncio, the command line and telemetry, as sections of a page."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any, Final

from benchmarks.sections import Name, paragraph, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

SETTINGS: Final = {
    "off": "none",
    "no SDK": "`OpenTelemetry()`, no SDK",
    "SDK, not sampled": "with the SDK, no trace sampled",
    "SDK, every trace sampled": "with the SDK, every trace sampled",
}
# What freshq works with is installed beside it and has no version of interest here.
QUEUES: Final = {
    "freshq": "freshq",
    "procrastinate": "procrastinate {}",
    "taskiq": "taskiq, taskiq-postgres {}",
}


def sections(
    coroutines: Mapping[str, Any], commands: Mapping[str, Any], telemetry: Mapping[str, Any]
) -> dict[Name, Iterable[str]]:
    """Return the sections with the figures of `benchmarks.coroutines`, `cli` and `telemetry`."""
    return {
        ("asyncio", "coroutines"): _coroutines(coroutines),
        ("cli", "commands"): _commands(commands),
        ("telemetry", "costs"): _telemetry(telemetry["settings"]),
    }


def _coroutines(found: Mapping[str, Any]) -> Iterator[str]:
    rounds = len(found["queues"]["freshq"]["seconds"])
    yield from paragraph(
        f"{found['puts']:,} puts by {found['putters']} coroutines, and {found['sleepers']} tasks that "
        f"are put and sleep for {found['sleep_seconds']:g} s, up to {found['sleepers']} at a time. The first "
        f"two columns have the median, the lowest and the highest of {rounds} rounds in turns; the others "
        "the most of any round:"
    )
    yield ""
    yield from table(
        [
            "",
            "puts a second",
            f"seconds until all {found['sleepers']} were done",
            "most at once",
            "threads",
            "connections",
        ],
        [
            [
                QUEUES[name].format(each["version"]),
                _range(each["puts_per_second"], ",.0f"),
                _range(each["seconds"], ".1f"),
                *(f"{max(each[kind])}" for kind in ("most_sleeping", "threads", "connections")),
            ]
            for name, each in found["queues"].items()
        ],
    )


def _range(numbers: Sequence[float], form: str) -> str:
    return f"{median(numbers):{form}} ({min(numbers):{form}} to {max(numbers):{form}})"


def _commands(found: Mapping[str, Any]) -> list[str]:
    rows = [
        [
            f"`python -c '{name}'`" if name.startswith("import ") else f"`{name}`",
            f"{seconds:.2f}",
            f"{found['at_most'][name]:.2f}" if name in found["at_most"] else "",
        ]
        for name, seconds in found["processor_seconds"].items()
        if name != "import nothing"
    ]
    return table(["command", "processor seconds", "at most"], rows)


def _telemetry(settings: Mapping[str, Mapping[str, float]]) -> list[str]:
    rows = []
    for name, title in SETTINGS.items():
        each = settings[name]
        cells = [
            cell
            for part in ("put", "work")
            for cell in (f"{each[f'{part}_microseconds']:.0f}", f"{each[f'{part}_ratio']:.1f}")
        ]
        rows.append([title, *cells])
    return table(["telemetry", "put, µs", "ratio", "claim, run, settle, µs", "ratio"], rows)
