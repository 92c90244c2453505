"""State that a run leaves for the next one: run folders, a pointer to the current run, and a lock."""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import product
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from freshq_pipeline.errors import BadInput, Overtaken, PipelineError, once_published
from freshq_pipeline.schemas import TABLES
from freshq_pipeline.storage.days import DAY_US, Day, days_from_json, iso
from freshq_pipeline.storage.results import SUMMARY, DamagedFile
from freshq_pipeline.storage.table_files import (
    FILES,
    INTERNAL,
    PARQUET,
    link_tables,
    manifest_path,
    paths_of,
    published_paths,
    show_tables,
    spare_tables,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from freshq_pipeline.storage.folder import Folder
    from freshq_pipeline.storage.registration import Registry


POINTER: Final = "_current.json"
# Suffix of the parts of silver and of the id index that a run joined.
ALL: Final = "-all"
# Durations of the parts of a run. They are not in the tables, which are equal for equal input.
SECONDS: Final = "seconds.json"
STATE_VERSION: Final = 1


@dataclass(slots=True)
class State:
    """The facts known after a run.

    Attributes:
        run_id: Id of the run; ids sort by time.
        events: Address of the folder of recorded changes.
        form: Format of its files.
        files: Size, time and digest of each file that was read.
        damaged: Files among them that were read only in part.
        days: Accepted events in silver, including duplicates, by number of their day of creation.
        indexed: Silver parts whose ids are in the index of ids.
        ids: Parts of that index.
        starts_us: Time of the first event of each queue.
        last_us: Time of the last event.
        as_of_us: Time up to which the tables are complete.
        opened: Days with tasks that this run computed.
        final_until: Last day whose silver was deleted, or on which a task of such a day mattered.
        counts: Numbers of `records` read, of `accepted` records, of records of `no_task`, and of accepted
            records `with_unknown_fields`; and `other_unknown_fields`, the occurrences of all other fields.
        unknown_fields: Occurrences of the most frequent unknown fields, by name.
        reasons: Number of quarantined records by reason.
        options: Options that change the tables.
        index_lag: Fields of the `IndexLag` that was used.
        tables: Files of each table by day, below the output folder; "" for tables that are not by day.
        published: Ids of the newest runs that became current. The last id is this run once it is published,
            and until then the run that was current when this one started.
        keep_runs: Number of runs to keep.
        version: Version of this layout.
    """

    run_id: str
    events: str
    form: str
    files: dict[str, list[Any]] = field(default_factory=dict)
    damaged: dict[str, DamagedFile] = field(default_factory=dict)
    days: dict[int, Day] = field(default_factory=dict)
    indexed: list[str] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    starts_us: dict[str | None, int] = field(default_factory=dict)
    last_us: int | None = None
    as_of_us: int = 0
    opened: list[str] = field(default_factory=list)
    final_until: int | None = None
    counts: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    unknown_fields: dict[str, int] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    index_lag: dict[str, Any] = field(default_factory=dict)
    tables: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    published: list[str] = field(default_factory=list)
    keep_runs: int = 5
    version: int = STATE_VERSION

    def is_final(self, day: int) -> bool:
        """Return whether new events of a day are too late."""
        if day in self.days:
            return self.days[day].forgotten
        return self.final_until is not None and day <= self.final_until

    def forget(self, keep_days: int) -> None:
        """Drop the silver of days that have not mattered for `keep_days` days."""
        over_us = self.as_of_us - keep_days * DAY_US
        for known in self.days.values():
            last_us = known.last_us
            if known.silver and last_us is not None and last_us < over_us and not known.has_open:
                known.silver = {}
                self.final_until = max(self.final_until or 0, last_us // DAY_US)

    def silver_parts(self) -> set[str]:
        """Return the names of the silver parts that hold events."""
        return {part for day in self.days.values() for part in day.silver}


def new_run_id() -> str:
    """Return a unique id that sorts after all earlier ones."""
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{secrets.token_hex(3)}"


def current(out: Folder) -> State | None:
    """Return the state of the current run; None if there is none.

    Raises:
        BadInput: If another version of the pipeline wrote it.
    """
    if not out.exists(POINTER):
        return None
    kept = out.read_json(POINTER)
    if not isinstance(kept, dict) or kept.get("version") != STATE_VERSION:
        msg = f"out: {out.at(POINTER)} was written by another version; "
        msg += "run `freshq-pipeline run --full-refresh` once, or use another folder"
        raise BadInput(msg)
    damaged = {path: DamagedFile(**value) for path, value in kept["damaged"].items()}
    starts_us, days = dict(kept["starts_us"]), days_from_json(kept["days"])
    return State(**kept | {"days": days, "starts_us": starts_us, "damaged": damaged})


def required_current(out: Folder) -> State:
    """Return the state of the current run.

    Raises:
        BadInput: If there is none, or another version of the pipeline wrote it.
    """
    state = current(out)
    if state is None:
        msg = f"out: {out.uri} has no run; run the pipeline first"
        raise BadInput(msg)
    return state


def _as_json(state: State) -> dict[str, Any]:
    days = {iso(day): asdict(kept) for day, kept in state.days.items()}
    # Pairs, because a JSON object cannot have null as a name.
    return asdict(state) | {"days": days, "starts_us": list(state.starts_us.items())}


@contextmanager
def draft(out: Folder, state: State) -> Iterator[None]:
    """Delete the output of a run that fails before it is published.

    Raises:
        Overtaken: If another run was published in the meantime; it may have deleted files that this run
            reads.
    """
    try:
        yield
    except BaseException as error:
        _delete_draft(out, state)
        if isinstance(error, Exception):
            check_current(out, state.published)
        raise


def _delete_draft(out: Folder, state: State) -> None:
    for folder in ("runs", "silver", "ids"):
        out.delete(f"{folder}/{state.run_id}")


def publish(
    out: Folder, state: State, summary: dict[str, Any], keep_runs: int, registry: Registry | None = None
) -> None:
    """Make a finished run current, register it, and delete data that is no longer needed.

    Replacing the pointer publishes the run. Readers of the tables, the manifest and the summary see either
    the previous run or this one.

    Args:
        out: The output folder.
        state: State of the run.
        summary: Summary of the run.
        keep_runs: Number of runs to keep, including this one.
        registry: Catalog for the tables; None: do not register them.

    Raises:
        Overtaken: If another run was published since this one started.
        Unfinished: If the run is published, but a later step failed.
    """
    link_tables(out, state.run_id, state.tables)
    out.write_json(f"runs/{state.run_id}/{SUMMARY}", summary)
    try:
        check_current(out, state.published)
    except Overtaken:
        _delete_draft(out, state)
        raise
    # Pruning needs to know the previous run.
    state.published = [*state.published, state.run_id][-max(keep_runs, 2) :]
    out.write_json(POINTER, _as_json(state))
    with once_published(out.uri, [summary]):
        end_publication(out, state, keep_runs, registry)


def end_publication(out: Folder, state: State, keep_runs: int, registry: Registry | None) -> None:
    """Do the steps that follow the pointer's replacement, unless they are done."""
    show(out, state.run_id)
    if registry is not None:
        registry.register(state.run_id, {name: paths_of(state.tables, name) for name in TABLES})
    prune(out, state, keep_runs, registry)


def check_current(out: Folder, published: list[str]) -> None:
    """Check that no other run was published.

    Args:
        out: The output folder.
        published: Runs that were published when this one started, the newest last.

    Raises:
        Overtaken: If another run is current now.
    """
    if published_runs(out)[-1:] != published[-1:]:
        raise Overtaken(out.uri)


def published_runs(out: Folder) -> list[str]:
    """Return the ids of the newest published runs, whichever events they read."""
    try:
        kept = out.read_json(POINTER) if out.exists(POINTER) else None
    except BadInput:
        kept = None  # only a full refresh gets here, which replaces it
    if not isinstance(kept, dict):
        return []
    return list(kept.get("published", []))


def show(out: Folder, run_id: str) -> None:
    """Show the tables and the summary of the current run to readers.

    A killed run may not have got this far.
    """
    show_tables(out, run_id)
    if not out.exists(SUMMARY) or out.read_json(SUMMARY)["run_id"] != run_id:
        out.write_json(SUMMARY, out.read_json(f"runs/{run_id}/{SUMMARY}"))


def prune(out: Folder, state: State, keep_runs: int, registry: Registry | None = None) -> None:
    """Delete old runs, and files that no kept run, catalog or next run needs.

    It lists existing files, so it also deletes the remains of killed runs. It deletes nothing if another run
    was published in the meantime: that run decides which files are needed.
    """
    if published_runs(out)[-1:] != [state.run_id]:
        return
    found, last = out.folders("runs"), _last_ended(out, state)
    # Runs that were killed before they became current, and runs of other layouts, are not kept.
    newest = state.published[-keep_runs:]
    kept = {state.run_id, *(run_id for run_id in newest if out.exists(manifest_path(run_id)))}
    # Snapshots first: they need the files.
    needed = set() if registry is None else registry.retire(kept)
    for run_id in found:
        if run_id not in kept and run_id <= last:
            spare_tables(out, run_id)
            out.delete(f"runs/{run_id}")
    for run_id, table in product(kept - {state.run_id}, TABLES):
        needed.update(published_paths(out, run_id, table))
    _prune_files(out, state, needed, last)
    _prune_parts(out, state, last)
    _prune_silver(out, state, last)


# Folders with a folder for each run.
_OF_RUNS: Final = ("runs", "silver", "ids", "quarantine", "salvage")


def prune_killed(out: Folder) -> None:
    """Delete leftovers of killed and failed runs, given that no run is in progress.

    On a disk, the lock of this run shows that there is no other. In a bucket, the next publication prunes.
    """
    published = published_runs(out)
    if not out.local or (out.exists(POINTER) and not published):  # the pointer is damaged
        return
    last = max(published, default="")
    for kind in _OF_RUNS:
        for name in out.folders(kind):
            if name.removesuffix(ALL) > last:
                _delete_killed(out, f"{kind}/{name}", last)


def _delete_killed(out: Folder, path: str, last: str) -> None:
    """Delete a folder of a killed run, and the files of tables that it may have moved to their place."""
    if path.startswith("runs/"):
        for folder in (FILES, INTERNAL):
            out.delete_files(file.path for file in out.files(folder) if _maker(file.path) > last)
    out.delete(path)


def _maker(file: str) -> str:
    """Return the id of the run that wrote a file of a table."""
    return file.rpartition("/")[2].rpartition("-")[0]


def _last_ended(out: Folder, state: State) -> str:
    """Return the id of the newest run that has certainly ended; newer runs may be in progress.

    On a disk the lock keeps other runs out, so all runs up to the current one have ended. In a bucket, a run
    that started after the previous run was published may not have noticed that it was overtaken.
    """
    if out.local:
        return state.run_id
    return state.published[-2] if len(state.published) > 1 else ""


def _prune_parts(out: Folder, state: State, last: str) -> None:
    """Delete the parts of silver and of the id index that the current run does not need."""
    for kind, needed in (("silver", state.silver_parts()), ("ids", set(state.ids))):
        for part in out.folders(kind):
            if part not in needed and part <= last:
                out.delete(f"{kind}/{part}")


def _prune_silver(out: Folder, state: State, last: str) -> None:
    """Delete days of silver that were rewritten to other parts or dropped."""
    needed = {silver_path(part, day) for day, known in state.days.items() for part in known.silver}
    for path in {file.path.rpartition("/")[0] for file in out.files("silver")} - needed:
        if path.split("/")[1] <= last:
            out.delete(path)


def _prune_files(out: Folder, state: State, needed: set[str], last: str) -> None:
    """Delete the files of tables that nothing needs."""
    needed = needed.union(*(paths_of(state.tables, table) for table in state.tables))
    for folder in (FILES, INTERNAL):
        out.delete_files(
            file.path
            for file in out.files(folder)
            if file.path.endswith(PARQUET) and file.path not in needed and _maker(file.path) <= last
        )


def silver_path(part: str, day: int) -> str:
    """Return the path of a day in a part of silver."""
    return f"silver/{part}/day={iso(day)}"


# The lock ends with its process, so the file may stay.
LOCK: Final = "_run.lock"


@contextmanager
def only_run(out: Folder, *, wait: bool = False) -> Iterator[None]:
    """Keep other runs out of an output folder on a disk; a bucket has no locks.

    Args:
        out: The output folder; created if needed.
        wait: Whether to wait for another run to end.

    Raises:
        PipelineError: If another run is at work, and `wait` is false.
    """
    file = out.on_disk(LOCK)
    if file is None:
        yield
        return
    is_new = not out.exists()
    with _locked(out, file, wait=wait):
        try:
            yield
        finally:
            # A run that fails before it writes anything leaves no folder.
            if is_new and list(file.parent.iterdir()) == [file]:
                file.unlink()
                file.parent.rmdir()


def _locked(out: Folder, file: Path, *, wait: bool) -> BinaryIO:
    """Return the locked file; closing it releases the lock."""
    while True:
        out.make("")
        with suppress(FileNotFoundError), ExitStack() as opened:
            lock = opened.enter_context(file.open("ab"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                msg = f"out: another run works in {out.uri}; run again after its end"
                raise PipelineError(msg) from error
            # If another run deleted the file before it was locked here, try again.
            if os.path.samestat(file.stat(), os.fstat(lock.fileno())):
                opened.pop_all()
                return lock
