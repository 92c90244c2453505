"""What the source of recorded events was like, stored next to them: EVENTS/_recording.json."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from freshq_pipeline.errors import BadInput

if TYPE_CHECKING:
    from freshq_pipeline.storage.folder import Folder

# Hidden, so that it is not read as events.
RECORDING: Final = "_recording.json"
_INDEX_LAG: Final = "index_lag_seconds"
# DynamoDB's indexes are eventually consistent, usually within a second.
DYNAMODB_INDEX_LAG_SECONDS: Final = 1.0


def write_recording(events: Folder, index_lag_seconds: float) -> None:
    """Store how long the source's index may lag, unless the folder has a recording file.

    Args:
        events: Folder with the events.
        index_lag_seconds: Time after which a new task must be visible to claims.
    """
    if not events.exists(RECORDING):
        events.write_json(RECORDING, {_INDEX_LAG: index_lag_seconds})


def recorded_index_lag_seconds(events: Folder) -> float:
    """Return the time after which a new task was visible to claims; 0 if the folder does not say.

    Raises:
        BadInput: If the recording file is invalid.
    """
    if not events.exists(RECORDING):
        return 0.0
    try:
        found = events.read_json(RECORDING)
    except ValueError:
        found = None
    lag = found.get(_INDEX_LAG, 0.0) if isinstance(found, dict) else None
    if isinstance(lag, bool) or not isinstance(lag, int | float) or not 0 <= lag < float("inf"):
        msg = f"events: {events.at(RECORDING)} must be a JSON object with {_INDEX_LAG}, a number from 0"
        raise BadInput(msg)
    return float(lag)
