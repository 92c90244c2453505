"""The queue that a worker calls, of whatever queue an application has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from freshq.queue.base import BaseQueue

if TYPE_CHECKING:
    from freshq.queue.async_queue import AsyncQueue


def blocking_queue(queue: BaseQueue | AsyncQueue) -> BaseQueue:
    """Return a queue whose verbs block: of an AsyncQueue, the queue that it uses.

    Raises:
        ValueError: If it is no queue.
    """
    # Checking for the class would load asyncio, which is slow.
    own: Any = getattr(queue, "queue", queue)
    if not isinstance(own, BaseQueue):
        msg = f"queue: must be a queue, such as Queue.sql(...), got {type(queue).__name__}"
        raise ValueError(msg)  # noqa: TRY004 - bad input is a ValueError throughout
    return own
