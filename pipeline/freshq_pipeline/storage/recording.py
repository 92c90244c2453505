"""How long an index may lag behind its table, by source.

DynamoDB's indexes are eventually consistent; queries of a SQL database see every put immediately.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from freshq_pipeline.errors import BadInput

if TYPE_CHECKING:
    from freshq_pipeline.storage.folder import Folder

# The file, in the folder of a pulled history, that holds its index lag. Hidden, so it is not read as events.
RECORDING: Final = "_recording.json"
# Prefix of the names of these folders.
HISTORY_FOLDER: Final = "queue-"
# Usually DynamoDB's indexes catch up within a second.
DYNAMODB_INDEX_LAG_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class IndexLag:
    """Time after which a new task must be visible to claims.

    Attributes:
        seconds: Lag of queues without a recorded lag.
        by_queue: Recorded lags in seconds, by queue.
    """

    seconds: float = DYNAMODB_INDEX_LAG_SECONDS
    by_queue: dict[str, float] = field(default_factory=dict)

    def of(self, queue: str | None) -> float:
        """Return the lag of a queue in seconds."""
        return self.seconds if queue is None else self.by_queue.get(queue, self.seconds)


def recording_of_history(queue: str) -> dict[str, Any]:
    """Return the content of the recording file for the history of a SQL queue, which has no lag."""
    return {"queue": queue, "index_lag_seconds": 0.0}


def recorded_index_lag(events: Folder) -> IndexLag:
    """Return the recorded lags of the queues in a folder, and DynamoDB's lag for all other queues.

    Raises:
        BadInput: If a recording file is invalid.
    """
    found = [name for name in events.folders("") if name.startswith(HISTORY_FOLDER)]
    recorded = [f"{name}/{RECORDING}" for name in found]
    return IndexLag(by_queue=dict(_recorded(events, path) for path in recorded if events.exists(path)))


def _recorded(events: Folder, path: str) -> tuple[str, float]:
    """Return the queue and the lag in a recording file."""
    try:
        found = events.read_json(path)
    except BadInput:
        found = None
    match found:
        case {"queue": str(queue), "index_lag_seconds": int(lag) | float(lag)} if 0 <= lag < float("inf"):
            return queue, float(lag)
    msg = f"events: {events.at(path)} must be a JSON object with queue, a string, and index_lag_seconds, "
    msg += "a number from 0; delete it, and pull again"
    raise BadInput(msg)
