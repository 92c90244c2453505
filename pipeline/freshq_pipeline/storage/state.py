"""The state that a run stores for the next one: immutable run folders, and a pointer to the current run."""

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
# Durations of the parts of a run. Not in the tables: these are equal for equal input, durations are not.
SECONDS: Final = "seconds.json"
STATE_VERSION: Final = 2


@dataclass(slots=True)
class State:
    """What is known after a run.

    Attributes:
        run_id: Id of the run; ids sort by time.
        events: Address of the folder that was read.
        form: Format of its files.
        files: Size and time of each file that was read.
        silver: Names of the parts that hold the accepted events, duplicates included.
        counts: `records` read, `accepted` ones, those of `no_task`, and accepted ones `with_unknown_fields`.
        unknown_fields: How often each unknown field occurs, by name.
        reasons: Quarantined records by reason.
        options: The options that change the tables.
        version: Version of this layout.
    """

    run_id: str
    events: str
    form: str
    files: dict[str, list[int]] = field(default_factory=dict)
    silver: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    unknown_fields: dict[str, int] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    version: int = STATE_VERSION


def new_run_id() -> str:
    """Return a unique run id that sorts after all earlier ones."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{secrets.token_hex(3)}"


def current(out: Folder) -> State | None:
    """Return the state of the current run, None if there is none.

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

    Readers who follow the pointer or the summary see either the previous run or this one.

    Args:
        out: Folder with the runs.
        state: State of the finished run.
        summary: Its summary.
        keep_runs: How many runs to keep, including this one.
    """
    out.write_json(f"runs/{state.run_id}/{SUMMARY}", summary)
    out.write_json(POINTER, asdict(state))
    out.write_json(SUMMARY, summary)
    prune(out, state, keep_runs)


def prune(out: Folder, state: State, keep_runs: int) -> None:
    """Delete all but the newest runs, and the silver parts that the current run does not need."""
    finished = []
    for run_id in out.folders("runs"):
        if out.exists(f"runs/{run_id}/{SUMMARY}"):
            finished.append(run_id)
        elif run_id < state.run_id:  # it was killed: it has no summary
            out.delete(f"runs/{run_id}")
    for run_id in finished[: max(0, len(finished) - keep_runs)]:
        if run_id != state.run_id:
            out.delete(f"runs/{run_id}")
    for part in out.folders("silver"):
        # A newer part belongs to a run in progress.
        if part not in state.silver and part <= state.run_id:
            out.delete(f"silver/{part}")


def table_path(run_id: str, table: str) -> str:
    """Return the path of a table of a run, below the output folder."""
    if table not in TABLES:
        msg = f"table: must be one of {', '.join(TABLES)}, got {table!r}"
        raise ValueError(msg)
    return f"runs/{run_id}/{table}"
