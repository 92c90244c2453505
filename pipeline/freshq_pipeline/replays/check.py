"""How far the replay of the recorded policy is from the recording."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from freshq_pipeline.replays.record import Recorded

TOLERANCE: Final = 0.05


def check(record: Recorded, result: dict[str, Any]) -> dict[str, Any]:
    """Return the difference between the replay of the recorded policy and the recording.

    Args:
        record: The recorded load of a queue.
        result: Result of its recorded policy at the recorded capacity.
    """
    ratio = abs(result["served_in_time"] - record.in_time) / max(1, record.in_time)
    return {
        "queue": record.queue,
        "policy": result["policy"],
        "served_in_time_recorded": record.in_time,
        "served_in_time_replayed": result["served_in_time"],
        "difference_ratio": ratio,
        "within": ratio <= TOLERANCE,
        "tolerance": TOLERANCE,
        "idle_ratio": record.idle_ratio,
    }
