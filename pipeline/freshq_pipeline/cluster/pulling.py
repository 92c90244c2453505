"""`pull` with its progress, from each kind of source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.progress import DownloadColumn

from freshq_pipeline.cluster.pull_queue import pull_match_queue, pull_queue

if TYPE_CHECKING:
    from pathlib import Path

    from rich.progress import Progress


def from_stack(stack: str, out: Path, bar: Progress) -> str:
    """Copy the archive of a stack; return what was done."""
    from freshq_pipeline.cluster.pull import bucket_of  # noqa: PLC0415 - boto3, which other sources do not need
    from freshq_pipeline.cluster.pull import pull as copy  # noqa: PLC0415 - likewise

    bucket = bucket_of(stack)
    bar.columns = (*bar.columns, DownloadColumn())
    task = bar.add_task("copying", total=None)
    pulled = copy(bucket, out, progress=lambda done, of: bar.update(task, completed=done, total=of))
    bar.update(task, total=pulled.copied_bytes, completed=pulled.copied_bytes)
    return f"{pulled.copied} files copied to {out}, {pulled.known} already there"


def from_address(address: str, out: Path, bar: Progress, *, of_matches: bool) -> str:
    """Write the history of a queue, or those of resources and callers; return what was done."""
    task = bar.add_task("writing", total=None)
    pull = pull_match_queue if of_matches else pull_queue
    pulled = pull(address, out, lambda done, of: bar.update(task, completed=done, total=of))
    bar.update(task, total=pulled.written, completed=pulled.written)
    events = f"{pulled.events} events in {pulled.written} files"
    return f"{events} written to {out}, {pulled.known} files already there"
