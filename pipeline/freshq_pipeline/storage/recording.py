"""How long an index may lag behind its table, by source: DynamoDB's do, queries of a SQL database do not."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from freshq_pipeline.errors import BadInput

if TYPE_CHECKING:
    from freshq_pipeline.storage.folder import Folder

# In the folder of a history that was pulled. Hidden, so that it is not read as events.
RECORDING: Final = "_recording.json"
# How the names of these folders begin.
HISTORY_FOLDER: Final = "queue-"
# DynamoDB's indexes are eventually consistent, usually within a second.
DYNAMODB_INDEX_LAG_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class IndexLag:
    """Time after which a new task must be visible to claims.

    Attributes:
        seconds: Of the queues whose source does not say.
        by_queue: Of the others, in seconds.
    """

    seconds: float = DYNAMODB_INDEX_LAG_SECONDS
    by_queue: dict[str, float] = field(default_factory=dict)

    def of(self, queue: str | None) -> float:
        """Return the lag of a queue in seconds."""
        return self.seconds if queue is None else self.by_queue.get(queue, self.seconds)

    def as_json(self) -> dict[str, Any]:
        """Return it as a state keeps it; its fields make it again."""
        return asdict(self)


def recording_of_history(queue: str) -> dict[str, Any]:
    """Return what is recorded with the history of a queue in a SQL database: claims see every put at once."""
    return {"queue": queue, "index_lag_seconds": 0.0}


def recorded_index_lag(events: Folder) -> IndexLag:
    """Return the lag of each queue whose source recorded it, and DynamoDB's for the others.

    Raises:
        BadInput: If a recording file is invalid.
    """
    found = [name for name in events.folders("") if name.startswith(HISTORY_FOLDER)]
    recorded = [f"{name}/{RECORDING}" for name in found]
    return IndexLag(by_queue=dict(_recorded(events, path) for path in recorded if events.exists(path)))


def _recorded(events: Folder, path: str) -> tuple[str, float]:
    """Return the queue and the lag of a recording file."""
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
