"""The results that outlive a run: `summary.json`, `replay.json` and `report.html`. Needs no Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from freshq_pipeline.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from freshq_pipeline.storage.folder import Folder


SUMMARY: Final = "summary.json"
REPLAY: Final = "replay.json"
REPORT: Final = "report.html"
# The figure of a summary that counts ledger violations not found by the previous run.
NEW: Final = "new_ledger_violations"
# Version of the layout of `replay.json`. A later version of the pipeline may find an earlier layout.
REPLAY_VERSION: Final = 1
_REPLAY_FIELDS: Final = {
    "run_id": str, "events": str, "as_of_ms": int, "since": str, "until": str, "days": int,
    "recorded_days": int, "record": dict, "check": dict, "queues": list, "scenarios": list,
}  # fmt: skip


@dataclass(slots=True)
class DamagedFile:
    """A file that was published although it could not be read to its end.

    Attributes:
        problem: The problem with the file.
        lines: Number of whole lines that were read.
        text_bytes: Size of these lines.
        text_sha256: Digest of these lines.
        counts: Counts of their records, as in `State`.
        reasons: Number of their unusable records, and of the file's unread end, by reason.
        unknown_fields: Occurrences of their most frequent unknown fields.
    """

    problem: str
    lines: int = 0
    text_bytes: int = 0
    text_sha256: str = sha256().hexdigest()
    counts: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    unknown_fields: dict[str, int] = field(default_factory=dict)


# Number of damaged files to name.
MAX_DAMAGED: Final = 20


def damage(files: Mapping[str, Sequence[Any]], damaged: Mapping[str, DamagedFile]) -> dict[str, Any]:
    """Return the figures of damaged files.

    Args:
        files: Size of each file that was read, first in its values, by path.
        damaged: The damaged ones among them.
    """
    sizes_bytes = {path: files[path][0] for path in damaged}
    largest = sorted(damaged, key=lambda path: (-sizes_bytes[path], path))[:MAX_DAMAGED]
    return {
        "files_read": len(files),
        "files_damaged": len(damaged),
        "damaged_share": sum(sizes_bytes.values()) / max(1, sum(size for size, *_ in files.values())),
        "damaged_files": [
            {"file": path, "problem": damaged[path].problem, "lines": damaged[path].lines} for path in largest
        ],
    }


def damage_text(figures: Mapping[str, Any]) -> str | None:
    """Return a sentence about the damaged files in a summary, without its full stop; None if none are."""
    if not figures["files_damaged"]:
        return None
    first, count = figures["damaged_files"][0], figures["files_damaged"]
    more = f" and {count - 1:,} more" if count > 1 else ""
    return (
        f"{count:,} of {figures['files_read']:,} files {'are' if count > 1 else 'is'} damaged, "
        f"{figures['damaged_share']:.1%} of the bytes: {first['file']} ({first['problem']}, "
        f"{first['lines']:,} whole lines readable){more}"
    )


def published_summary(out: Folder) -> dict[str, Any]:
    """Return the summary of the current run.

    Raises:
        BadInput: If there is no run.
    """
    if not out.exists(SUMMARY):
        msg = f"out: no {SUMMARY} in {out.uri}; run the pipeline first"
        raise BadInput(msg)
    summary: dict[str, Any] = out.read_json(SUMMARY)
    return summary


def without_new(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the summary of the current run for a run that found no new files."""
    return summary | {NEW: 0, "queues": [row | {NEW: 0} for row in summary["queues"]]}


def with_earlier(summary: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """Return a summary with the new violations of an earlier one added.

    A later run may have more queues, never fewer.
    """
    known = {row["queue"]: row[NEW] for row in earlier["queues"]}
    queues = [row | {NEW: row[NEW] + known.get(row["queue"], 0)} for row in summary["queues"]]
    return summary | {NEW: summary[NEW] + earlier[NEW], "queues": queues}


def keep_replay(out: Folder, result: dict[str, Any]) -> dict[str, Any]:
    """Write the result of a replay; return it as written."""
    written = {"version": REPLAY_VERSION} | result
    out.write_json(REPLAY, written)
    return written


def last_replay(out: Folder) -> dict[str, Any] | None:
    """Return the result of the last replay; None if there is none.

    Raises:
        BadInput: If another version wrote it.
    """
    if not out.exists(REPLAY):
        return None
    try:
        kept = out.read_json(REPLAY)
    except BadInput:
        kept = None
    return checked_replay(kept, out.at(REPLAY))


def checked_replay(result: Any, place: str) -> dict[str, Any]:
    """Check the layout of a replay's result, and return it.

    Args:
        result: The parsed result.
        place: Where it was read, for the error.

    Raises:
        BadInput: If another version wrote it.
    """
    known = isinstance(result, dict) and result.get("version") == REPLAY_VERSION
    if not known or not all(isinstance(result.get(name), kind) for name, kind in _REPLAY_FIELDS.items()):
        msg = f"{place} is no result of this version's replay; run `freshq-pipeline replay` again"
        raise BadInput(msg)
    found: dict[str, Any] = result
    return found
