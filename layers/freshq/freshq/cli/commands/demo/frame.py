"""Draws `freshq demo`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from freshq.cli.commands.demo.contest import CAPACITY_PER_SECOND

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import RenderableType

    from freshq.cli.commands.demo.contest import Plan, Standing

MAX_BAR_CHARS: Final = 40
# Width that the names of the rows and the counts take.
LABEL_CHARS: Final = 24
FATES: Final = (
    ("in_time", "done in time", "green"),
    ("late", "done too late", "red"),
    ("shed", "shed, never started", "bright_black"),
    ("waiting", "waiting", "yellow"),
)


def wait_text(seconds: float | None) -> str:
    """Return a wait with the digits that matter; "-" for None."""
    if seconds is None:
        return "-"
    return f"{seconds:.2f} s" if seconds < 1 else f"{seconds:.1f} s"


def frame(
    plan: Plan, elapsed_seconds: float, standings: Mapping[str, Standing], width: int
) -> RenderableType:
    """Return one frame: the time, and the fates of each queue as bars of one scale."""
    bar_chars = max(1, min(MAX_BAR_CHARS, width - LABEL_CHARS - 8))
    return Group(
        _head(plan, elapsed_seconds),
        *(_fates(plan, name, standing, bar_chars) for name, standing in standings.items()),
    )


def _head(plan: Plan, elapsed_seconds: float) -> RenderableType:
    phase = "offering" if elapsed_seconds < plan.load_seconds else "load over"
    head = Table.grid(padding=(0, 2))
    head.add_row(
        f"[bold]{phase}[/bold]",
        ProgressBar(total=plan.total_seconds, completed=elapsed_seconds, width=20),
        f"{elapsed_seconds:.0f} of {plan.total_seconds:.0f} s",
    )
    return head


def _fates(plan: Plan, name: str, standing: Standing, bar_chars: int) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    table.add_column(min_width=LABEL_CHARS - 4)
    table.add_column(min_width=5, justify="right")
    table.add_column()
    for attribute, label, color in FATES:
        count: int = getattr(standing, attribute)
        bar = "█" * round(count / plan.tasks * bar_chars)
        table.add_row(label, f"{count:,}", Text(bar, style=color))
    wait = wait_text(standing.last_wait_seconds)
    return Group(Text(), Text(f"{name}: the task done last waited {wait}", style="bold"), table)


def offered_text(plan: Plan) -> str:
    """Say what is offered, to what."""
    return (
        f"Each queue is offered {plan.rate_per_second:g} tasks a second; the system behind it can do "
        f"{CAPACITY_PER_SECOND:g}. A task is worth nothing after {plan.deadline_seconds:g} s."
    )


def verdict(plan: Plan, fresh: Standing, fifo: Standing) -> str:
    """Say what the contest showed, and why it matters."""
    return (
        f"Of {plan.tasks:,} tasks, newest first did {fresh.in_time:,} in time after a median wait of "
        f"{wait_text(fresh.wait_p50_seconds)}; first in, first out did {fifo.in_time:,} in time and "
        f"{fifo.late:,} too late, after a median wait of {wait_text(fifo.wait_p50_seconds)}, and left "
        f"{fifo.waiting:,} waiting.\n"
        "Both worked equally hard. What cannot be done in time is lost either way: freshq drops it before "
        "it starts, and spends the capacity on tasks that someone still waits for."
    )
