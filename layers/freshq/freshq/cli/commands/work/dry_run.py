"""Shows for `freshq work --dry-run` the tasks that would be claimed first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from freshq.model.answers import WaitsFor

if TYPE_CHECKING:
    from freshq.cli.output import Output
    from freshq.queue.base import BaseQueue


def show_next(queue: BaseQueue, limit: int, output: Output) -> None:
    """Print the tasks that the next claims would take, and take none.

    Args:
        queue: The queue.
        limit: Most tasks to show.
        output: Where to print.

    Raises:
        StoreError: If the store did not answer.
    """
    waiting = [each for each in queue.peek(limit) if each.waits_for is not WaitsFor.DUE]
    if not output.as_json:
        paused = ", but the queue is paused" if queue.paused else ""
        output.console.print(f"The next to be claimed{paused}:")
    output.waiting(waiting, queue.now())
