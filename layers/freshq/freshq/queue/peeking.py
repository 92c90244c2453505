"""Why claims pass a waiting task over, or take another before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from freshq.model.answers import Waiting, WaitsFor

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from freshq.model.task import Task
    from freshq.policy.order import Order


def waiting(
    claimable: Sequence[Task], delayed: Sequence[Task], order: Order | None, *, paused: bool
) -> list[Waiting]:
    """Return tasks with what they wait for.

    Args:
        claimable: Tasks in the order of claims.
        delayed: Tasks that are not in a line yet.
        order: Order of every line by creation time; None if lines have none, or each its own. Then no task
            is said to wait for its group's turn.
        paused: Whether claims are suspended.
    """
    if paused:
        shown = [Waiting(task, WaitsFor.RESUME) for task in claimable]
    elif order is None:
        shown = [Waiting(task, None) for task in claimable]
    else:
        sign = -1 if order.newest_first else 1
        shown = list(_in_turn(claimable, sign))
    return [*shown, *(Waiting(task, WaitsFor.DUE) for task in delayed)]


def _in_turn(claimable: Sequence[Task], sign: int) -> Iterator[Waiting]:
    """Yield tasks; one waits for its turn if another of its level goes before it against the order.

    Within a group the order holds, so that the other is of another group.
    """
    latest: dict[int, float] = {}
    for task in claimable:
        place = sign * task.created
        before = latest.get(task.priority, place)
        latest[task.priority] = max(before, place)
        yield Waiting(task, WaitsFor.TURN if place < before else None)
