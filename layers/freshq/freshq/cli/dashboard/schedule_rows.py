"""Schedules as the dashboard shows them: when each fired, and when it will."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from freshq.feeds.high_water_marks import HighWaterMarks
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
    now, high_water_marks = queue.now(), HighWaterMarks(queue)
    rows = []
    for schedule in schedules:
        state = high_water_marks.read(schedule.record_name)
        when = schedule.when
        rows.append(
            {
                "name": schedule.name,
                "when": f"{when.expression} ({when.zone})"
                if isinstance(when, Cron)
                else f"every {when.seconds:g} s",
                "started": state is not None,
                "up_to": None if state is None else state.last,
                "failed": 0 if state is None else len(state.failed),
                "next": next(when.ticks(now), None),
            }
        )
    return rows
