"""What differs from the run before, and when a run is refused because of it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from freshq_pipeline.errors import BadInput, PipelineError
from freshq_pipeline.storage.addresses import normalized
from freshq_pipeline.storage.days import iso, recorded_days
from freshq_pipeline.storage.partitions import paths_of
from freshq_pipeline.storage.recording import IndexLag
from freshq_pipeline.storage.state import silver_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from freshq_pipeline.runs.request import Options, RunRequest
    from freshq_pipeline.storage.folder import Folder
    from freshq_pipeline.storage.state import State


def check_same_events(request: RunRequest, before: State, files: dict[str, tuple[int, int]]) -> None:
    """Check that a folder still has what the earlier runs read there; files that are gone do not matter.

    Raises:
        BadInput: If it is another folder, another format, or files changed.
    """
    out, events, form = request.out.uri, request.events.uri, request.options.form.value
    anew = "use another --out, or make all tables anew with `run --full-refresh`"
    if before.form != form:
        msg = f"format: {out} has {before.form} events, not {form}; give --format {before.form}, {anew}"
        raise BadInput(msg)
    if normalized(before.events) != normalized(events):
        msg = f"events: {out} was made from {before.events}, not from {events}; {anew}"
        raise BadInput(msg)
    changed = [path for path, seen in before.files.items() if path in files and list(files[path]) != seen]
    if changed:
        gone = len(before.files.keys() - files.keys())
        msg = f"events: files in {events} changed after {out} was made from them: {_some(changed)}; {anew}"
        msg += f", which loses the events of files that are gone: {gone}" if gone else ""
        raise BadInput(msg)


def _some(paths: list[str]) -> str:
    """Return the first path, and how many others there are."""
    return paths[0] + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")


def changed_options(before: State, options: Options, lag: IndexLag) -> list[str]:
    """Return in words which options of the tables, and which lags of the queues in them, are not as before.

    Args:
        before: State of the run before.
        options: Options of this run.
        lag: Lags of this run.
    """
    lag_before = IndexLag(**before.index_lag)
    values = [
        (name.removesuffix("_ms").replace("_", "-"), before.options.get(name), value)
        for name, value in options.of_tables().items()
    ]
    values += [
        (f"the index lag of the queue {queue!r} in seconds", lag_before.of(queue), lag.of(queue))
        for queue in before.starts_us
    ]
    return [f"{name} was {_text(was)}, now it is {_text(now)}" for name, was, now in values if was != now]


def _text(value: object) -> str:
    return "not given" if value is None else str(value)


def check_deleted(before: State, changed: list[str]) -> None:
    """Check that the events of all days are there if an option changes all tables.

    Args:
        before: State of the run before.
        changed: From `changed_options`.

    Raises:
        BadInput: If some were deleted.
    """
    gone = [day for day, known in before.days.items() if known.forgotten]
    if changed and gone:
        msg = f"options: {changed[0]}; that changes all tables, but the events of {iso(min(gone))} to "
        msg += f"{iso(max(gone))} were deleted (keep-silver-days); leave it as it was, or use --full-refresh"
        raise BadInput(msg)


def check_recorded(state: State, options: Options) -> None:
    """Check that a day is recorded if some are to be computed again.

    Raises:
        BadInput: If none is.
    """
    days = recorded_days(state.days, state.last_us or 0)
    if options.again() and days and not any(map(options.again_on, days)):
        name = "until" if options.since is None else "since"
        wanted = f"{options.since or 'the first'} to {options.until or 'the last'}"
        msg = f"{name}: no day from {wanted} is recorded; those from {iso(min(days))} to {iso(max(days))} are"
        raise BadInput(msg)


@contextmanager
def missing_named(out: Folder, before: State | None) -> Iterator[None]:
    """Name a file of the run before if a run fails and one is missing; to look each time would take long.

    Args:
        out: The output folder.
        before: State of the run before; None: there is none to build on.

    Raises:
        BadInput: If the block failed otherwise than by a PipelineError, and a file is missing.
    """
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        missing = None if before is None else _missing(out, before)
        if missing is None:
            raise
        msg = f"out: {out.at(missing)} is missing, which an earlier run wrote; run once with --full-refresh, "
        msg += "or restore it"
        raise BadInput(msg) from error


def _missing(out: Folder, before: State) -> str | None:
    """Return the path of a file, or of a day of silver, that the next run may need and that is missing."""
    needed = {path for table in before.tables for path in paths_of(before.tables, table)}
    found = {file.path for folder in {path.split("/")[0] for path in needed} for file in out.files(folder)}
    silver = {silver_path(part, day) for day, known in before.days.items() for part in known.silver}
    kept = {file.path.rpartition("/")[0] for file in out.files("silver")}
    return min((needed - found) | (silver - kept), default=None)
