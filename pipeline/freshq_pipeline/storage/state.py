"""What a run leaves for the next one: runs are folders that nobody changes, and a pointer to the last."""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from freshq_pipeline.errors import BadInput
from freshq_pipeline.schemas import TABLES

if TYPE_CHECKING:
    from freshq_pipeline.storage.folder import Folder

POINTER: Final = "_current.json"
SUMMARY: Final = "summary.json"
# How long the parts of a run took; beside the tables, since no two runs agree in it.
SECONDS: Final = "seconds.json"
STATE_VERSION: Final = 1


@dataclass(slots=True)
class State:
    """What is known after a run.

    Attributes:
        run_id: Its name, which sorts by time.
        events: The folder that was read.
        form: How its files are written.
        files: What was read, with sizes and times, so that it is not read again.
        silver: Names of the parts that hold the accepted events, duplicates included.
        counts: `lines` read, `quarantined`, of `no_task`, and quarantined by reason.
        options: What else the result depends on.
        version: Of this layout.
    """

    run_id: str
    events: str
    form: str
    files: dict[str, list[int]] = field(default_factory=dict)
    silver: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    version: int = STATE_VERSION


def new_run_id() -> str:
    """Return a name that no other run has, and that sorts after those before."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{secrets.token_hex(3)}"


def current(out: Folder) -> State | None:
    """Return what the last run left, None if there was none.

    Raises:
        BadInput: If another version of the pipeline wrote it.
    """
    if not out.exists(POINTER):
        return None
    kept = out.read_json(POINTER)
    if not isinstance(kept, dict) or kept.get("version") != STATE_VERSION:
        msg = f"out: {out.at(POINTER)} was written by another version; use another folder"
        raise BadInput(msg)
    return State(**kept)


def publish(out: Folder, state: State, summary: dict[str, Any], keep_runs: int) -> None:
    """Make a finished run the current one, and delete what is no longer needed.

    Readers who follow the pointer or the summary see the run before or this one, never half of it.

    Args:
        out: Where the runs are.
        state: Of the finished run.
        summary: Its figures.
        keep_runs: How many runs stay, this one included.
    """
    out.write_json(f"runs/{state.run_id}/summary.json", summary)
    out.write_json(POINTER, asdict(state))
    out.write_json(SUMMARY, summary)
    prune(out, state, keep_runs)


def prune(out: Folder, state: State, keep_runs: int) -> None:
    """Delete all but the newest runs, and the events that the current one does not need."""
    # What was killed left a folder without a summary.
    runs = []
    for run_id in out.folders("runs"):
        if out.exists(f"runs/{run_id}/{SUMMARY}"):
            runs.append(run_id)
        elif run_id < state.run_id:
            out.delete(f"runs/{run_id}")
    for run_id in runs[: max(0, len(runs) - keep_runs)]:
        if run_id != state.run_id:
            out.delete(f"runs/{run_id}")
    for part in out.folders("silver"):
        # A part that is newer than this run belongs to one that is under way.
        if part not in state.silver and part <= state.run_id:
            out.delete(f"silver/{part}")


def table_path(run_id: str, table: str) -> str:
    """Return where a table of a run is, below the folder of all."""
    if table not in TABLES:
        msg = f"table: must be one of {', '.join(TABLES)}, got {table!r}"
        raise ValueError(msg)
    return f"runs/{run_id}/{table}"
