"""The live view of the demonstration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.progress_bar import ProgressBar
from rich.table import Table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from freshq import Stats


def _age(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.1f} s"


def live_view(
    stats: Stats, elapsed_seconds: float, load_seconds: float, max_age_seconds: float
) -> RenderableType:
    """Return one frame: progress of the load, the backlog and its ages, done and shed tasks."""
    phase = "offering load" if elapsed_seconds < load_seconds else "draining"
    frame = Table.grid(padding=(0, 2))
    for _ in range(2):
        frame.add_column(min_width=26)
    frame.add_row(
        f"[bold]{phase}[/bold]  {elapsed_seconds:4.0f} s",
        ProgressBar(total=load_seconds, completed=min(elapsed_seconds, load_seconds), width=40),
    )
    frame.add_row(f"backlog  [yellow]{stats.pending:5d}[/yellow]", f"in work  {stats.taken:5d}")
    frame.add_row(
        f"newest   {_age(stats.newest_pending_seconds):>7}",
        f"oldest   {_age(stats.oldest_pending_seconds):>7}  (stale from {max_age_seconds:g} s)",
    )
    frame.add_row(
        f"done     [green]{stats.success:5d}[/green]",
        f"shed     [red]{stats.shed:5d}[/red]   failed {stats.failure}",
    )
    return frame
