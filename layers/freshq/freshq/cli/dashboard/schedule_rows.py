"""Schedules as the dashboard shows them: when each fired, and when it will."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from freshq.feeds.marks import Marks
from freshq.feeds.schedules import Cron

if TYPE_CHECKING:
    from collections.abc import Sequence

    from freshq.feeds.schedules import Schedule
    from freshq.queue.base import BaseQueue


def schedule_rows(queue: BaseQueue, schedules: Sequence[Schedule]) -> list[dict[str, Any]]:
    """Return a row for each schedule.

    Raises:
        StoreError: If the store did not answer.
    """
    now, marks = queue.now(), Marks(queue)
    rows = []
    for schedule in schedules:
        progress = marks.read(schedule.record_name)
        when = schedule.when
        rows.append(
            {
                "name": schedule.name,
                "when": f"{when.expression} ({when.zone})"
                if isinstance(when, Cron)
                else f"every {when.seconds:g} s",
                "started": progress is not None,
                "up_to": None if progress is None else progress.last,
                "failed": 0 if progress is None else len(progress.failed),
                "next": next(when.ticks(now), None),
            }
        )
    return rows
