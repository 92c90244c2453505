"""The cells of `benchmarks.harness` for docs/contributing/measurements.md."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from benchmarks.render import Table, bold

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Medians = Mapping[str, float | None]

OWN: Final = "freshq"
# freshq's columns; only the first is compared.
TITLES: Final = {OWN: OWN, "freshq@functions": "freshq, functions"}
FAILED: Final = "failed"
# What limits freshq.
PYTHON: Final = "Python code for each task ([Floor](floor.md)): awa claims and settles in Rust"
PUTS: Final = "the row and the index entries of each task, and the Python code that makes them"
LATENCY: Final = "a claim and a settlement are transactions of their own for nearly every task at this rate"
RECOVERY: Final = "pauses between the tries of a worker that lost its connection"
LEASE: Final = "the lease must expire before a task of a killed worker runs again"
HORIZON: Final = "claims pass the dead entries that the snapshot keeps ([Growth](growth.md))"
SLOTS: Final = "time between the end of a run and the start of the next one in its slot"
WRITES: Final = "two updates of each row with its index entries, for claim and settlement; awa only appends"


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of a cell.

    Attributes:
        cell: The cell.
        figure: The figure's name in the results.
        title: Its title on the page.
        digits: Decimal places.
        bound: What limits freshq where another contender is better; empty if none is compared.
        is_most_best: Whether the most is best, or the least.
        is_share: Whether it is a share of one, shown in percent.
    """

    cell: str
    figure: str
    title: str
    digits: int
    bound: str
    is_most_best: bool = False
    is_share: bool = False

    def medians(self, cells: Mapping[str, Any]) -> dict[str, float | None]:
        """Return the median of each contender as shown; None if it failed in each round."""
        runs = cells[self.cell]["runs"] if self.cell in cells else {}
        return {name: self._median(rounds) for name, rounds in runs.items()}

    def _median(self, rounds: Sequence[Mapping[str, float | None]]) -> float | None:
        found = [figure for each in rounds if (figure := each.get(self.figure)) is not None]
        return round((100 if self.is_share else 1) * median(found), self.digits) if found else None

    def is_lost(self, medians: Medians) -> bool:
        """Return whether freshq failed, or another contender is better in the digits that are shown."""
        if OWN not in medians or not self.bound:
            return False
        own = medians[OWN]
        others = [each for name, each in medians.items() if name not in TITLES and each is not None]
        if own is None or not others:
            return own is None
        return own < max(others) if self.is_most_best else own > min(others)

    def shown(self, figure: float | None) -> str:
        """Return the text of a median."""
        return FAILED if figure is None else f"{figure:,.{self.digits}f}{' %' if self.is_share else ''}"


ROWS: Final = (
    *(
        Row(f"full-{slots}", "jobs_per_second", f"jobs a second, {slots} slots", 0, PYTHON, is_most_best=True)
        for slots in (8, 64, 256)
    ),
    Row("full-64", "put_per_second", "puts of 1,000 in one call, tasks a second", 0, PUTS, is_most_best=True),
    *(
        Row("steady", f"p{which}_ms", f"put to start at 200 a second, p{which}, ms", 1, LATENCY)
        for which in (50, 95, 99)
    ),
    Row(
        "kills", "kept", "two connections killed a second: throughput kept", 0, RECOVERY,
        is_most_best=True, is_share=True,
    ),
    Row("kills", "lost_or_stuck", "the same: lost or stuck", 0, RECOVERY),
    Row("crashes", "lost_or_stuck", "workers killed: lost or stuck", 0, LEASE),
    Row("crashes", "longest_seconds", "the same: longest time from put to end, s", 1, LEASE),
    Row("restart", "resumes_seconds", "server restarted: first start after, s", 1, RECOVERY),
    Row(
        "pressure", "kept_end", "snapshot idle in a transaction: throughput kept, last 10 s", 0, HORIZON,
        is_most_best=True, is_share=True,
    ),
    Row("burst", "done", "burst of three times the capacity: done by its end", 0, SLOTS, is_most_best=True),
    Row("full-64", "log_bytes", "log bytes a job, full queue", 0, WRITES),
    Row("steady", "log_bytes", "log bytes a job, at 200 a second", 0, WRITES),
    Row("full-64", "updates", "updates of rows a job", 1, WRITES),
    Row("full-64", "hot_updates", "HOT updates among them", 1, ""),
)  # fmt: skip


def table(found: Mapping[str, Any]) -> Table:
    """Return all rows by contender, where freshq is behind in bold with its bound."""
    cells = found["cells"]
    names = list(dict.fromkeys(name for cell in cells.values() for name in cell["runs"]))
    lines = []
    for row in ROWS:
        medians = row.medians(cells)
        is_lost = row.is_lost(medians)
        texts = [row.shown(medians[name]) if name in medians else "" for name in names]
        lines.append(
            [
                row.title,
                *(bold(text, when=is_lost and name == OWN) for name, text in zip(names, texts, strict=True)),
                row.bound if is_lost else "",
            ]
        )
    versions = found["versions"]
    heads = [TITLES.get(name, f"{name} {versions.get(name, '')}") for name in names]
    return Table(["", *heads, "bounded by"], lines)


def setting(found: Mapping[str, Any], cell: str, name: str) -> float | None:
    """Return a figure that all runs of a cell share; None if it was not measured."""
    runs = found["cells"].get(cell, {"runs": {}})["runs"].values()
    return next((each[name] for rounds in runs for each in rounds if name in each), None)
