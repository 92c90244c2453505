"""Progress bars for changes of tables, which take minutes."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def progress_bars() -> Iterator[Callable[[str, str], None]]:
    """Yield a function of a name and its status, which shows one bar for each name on standard error."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[status]}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        bars = {}

        def on_status(name: str, status: str) -> None:
            if name not in bars:
                bars[name] = progress.add_task(name, total=None, status=status)
            done = status == "ACTIVE"
            progress.update(bars[name], status=status, total=1 if done else None, completed=int(done))

        yield on_status
