"""In which order waiting tasks are served."""

from __future__ import annotations

from enum import StrEnum


class Order(StrEnum):
    """Order of service within a priority level; levels are always drained from high to low."""

    LIFO = "lifo"
    FIFO = "fifo"

    @property
    def newest_first(self) -> bool:
        """Whether the newest waiting task is served before older ones."""
        return self is Order.LIFO
