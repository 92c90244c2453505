"""`replay.json`: the result of the last replay, with the run that it is of.

It outlives that run and this version of the pipeline, so readers check what they find.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from freshq_pipeline.errors import BadInput
from freshq_pipeline.storage.state import REPLAY

if TYPE_CHECKING:
    from freshq_pipeline.storage.folder import Folder

# Of the layout of the result.
VERSION: Final = 2
_IS: Final = {
    "run_id": str, "events": str, "as_of_ms": int, "since": str, "until": str, "days": int,
    "recorded_days": int, "record": dict, "check": dict, "queues": list, "scenarios": list,
}  # fmt: skip


def keep(out: Folder, result: dict[str, Any]) -> dict[str, Any]:
    """Write the result of a replay, and return it as it is written."""
    written = {"version": VERSION} | result
    out.write_json(REPLAY, written)
    return written


def last_replay(out: Folder) -> dict[str, Any] | None:
    """Return the result of the last replay, None if there is none.

    Raises:
        BadInput: If it is not one of this version.
    """
    if not out.exists(REPLAY):
        return None
    try:
        kept = out.read_json(REPLAY)
    except BadInput:
        kept = None
    return checked(kept, out.at(REPLAY))


def checked(result: Any, place: str) -> dict[str, Any]:
    """Return the result of a replay.

    Args:
        result: What was read.
        place: Where it was read.

    Raises:
        BadInput: If it is not one of this version.
    """
    known = isinstance(result, dict) and result.get("version") == VERSION
    if not known or not all(isinstance(result.get(name), kind) for name, kind in _IS.items()):
        msg = f"{place} is no result of this version's replay; run `freshq-pipeline replay` again"
        raise BadInput(msg)
    found: dict[str, Any] = result
    return found
