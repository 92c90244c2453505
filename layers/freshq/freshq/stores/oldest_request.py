"""The request of a queue that sheds its oldest tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclass(frozen=True, slots=True)
class OldestRequest:
    """A request for the oldest claimable tasks of a queue.

    Attributes:
        queue: Name of the queue.
        now: Current time in seconds; tasks past their own deadline are stale.
        created_after: Tasks created at or before this time are stale.
        count: Maximum number of tasks.
        groups: Only of these groups; None for all.
        level: Only of this priority level; None for all.
    """

    queue: str
    now: float
    created_after: float
    count: int
    groups: Collection[str | None] | None = None
    level: int | None = None

    def asks(self, level: int, group: str | None) -> bool:
        """Return whether it asks for tasks of a line."""
        return self.level in (None, level) and (self.groups is None or group in self.groups)
