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
    recorded, replayed = record.counts.served_in_time, result["served_in_time"]
    ratio = abs(replayed - recorded) / max(1, recorded)
    return {
        "queue": record.queue,
        "policy": result["policy"],
        "served_in_time_recorded": recorded,
        "served_in_time_replayed": replayed,
        "difference_ratio": ratio,
        "within": ratio <= TOLERANCE,
        "tolerance": TOLERANCE,
        # What may explain a difference.
        "servers": record.occupied.servers,
        "mean_servers": record.occupied.mean_servers,
        "idle_ratio": record.occupied.idle_ratio,
        "surplus_ratio": record.occupied.surplus_ratio,
        "shed_early": record.shed_early,
        "inverted_ratio": record.inverted_ratio,
    }
