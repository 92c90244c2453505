"""Batches in which no task may be twice."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


def rounds(task_ids: Sequence[str]) -> Iterator[list[int]]:
    """Yield the places of ids in rounds, none of which has an id twice; the same id comes in its order."""
    left = list(range(len(task_ids)))
    while left:
        first = {task_ids[place]: place for place in reversed(left)}
        yield sorted(first.values())
        left = [place for place in left if first[task_ids[place]] != place]
