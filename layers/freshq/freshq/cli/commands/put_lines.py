"""Puts many tasks, one a line."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from freshq.errors import RefusedError
from freshq.model.answers import PutOutcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from freshq.cli.session import Session

# Put at a time: enough to keep the store busy, few enough for the bar to move.
BATCH_TASKS: Final = 200


def put_lines(session: Session, source: str, options: Mapping[str, Any], *, as_text: bool) -> None:
    """Put each line of a file as a task; nothing is put unless every line is right.

    Args:
        session: The queue.
        source: The file; - for the standard input.
        options: Further arguments of every put.
        as_text: Whether a line is a text rather than JSON.

    Raises:
        ValueError: If a line is wrong, or the file cannot be read.
        RefusedError: If some were duplicates.
        StoreError: If the store did not take them all.
    """
    tasks = [{"payload": work, **options} for work in _works(source, as_text=as_text)]
    for task in tasks:
        session.queue.check(task)
    duplicates = 0
    with _progress(len(tasks)) as (progress, bar):
        remaining = iter(tasks)
        while batch := list(islice(remaining, BATCH_TASKS)):
            receipts = session.queue.put_many(batch)
            duplicates += sum(receipt.outcome is PutOutcome.DUPLICATE for receipt in receipts)
            session.see(*(receipt.task_id for receipt in receipts))
            progress.advance(bar, len(batch))
    created = len(tasks) - duplicates
    session.output.answer({"created": created, "duplicates": duplicates}, f"{created:,} tasks put")
    if duplicates:
        msg = f"{duplicates:,} of {len(tasks):,} were duplicates, and changed nothing"
        raise RefusedError(msg)


def _works(source: str, *, as_text: bool) -> Iterator[Any]:
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"lines: cannot read {source!r} ({error})"
        raise ValueError(msg) from error
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            yield line if as_text else json.loads(line)
        except ValueError as error:
            msg = f"lines: line {number} is not JSON ({error}); nothing was put"
            raise ValueError(msg) from error


@contextmanager
def _progress(total: int) -> Iterator[tuple[Progress, Any]]:
    """Show how far it is, where somebody looks."""
    columns = TextColumn("put"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield progress, progress.add_task("put", total=total)
