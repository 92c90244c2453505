"""The state that a run stores for the next one: immutable run folders, and a pointer to the current run."""

from __future__ import annotations

import fcntl
import os
import secrets
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import product
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from freshq_pipeline.errors import BadInput, Overtaken, PipelineError, Unfinished
from freshq_pipeline.schemas import TABLES
from freshq_pipeline.storage.days import DAY_US, Day, days_from_json, iso
from freshq_pipeline.storage.results import SUMMARY
from freshq_pipeline.storage.table_files import (
    FILES,
    INTERNAL,
    PARQUET,
    PUBLISHED,
    has_links,
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
# Durations of the parts of a run. Not in the tables: these are equal for equal input, durations are not.
SECONDS: Final = "seconds.json"
STATE_VERSION: Final = 9


@dataclass(slots=True)
class State:
    """What is known after a run.

    Attributes:
        run_id: Id of the run; ids sort by time.
        events: Address of the folder that was read.
        form: Format of its files.
        files: Size and time of each file that was read.
        days: The accepted events in silver, duplicates included, by number of their day of creation.
        indexed: Silver parts whose ids are in the index of ids.
        ids: Names of the parts of that index.
        starts_us: Time of the first event of each queue.
        last_us: Time of the last event.
        as_of_us: Time up to which the tables are complete.
        opened: Days whose tasks this run computed.
        final_until: Last day of which silver was deleted, or in which a task of such a day mattered.
        counts: `records` read, `accepted` ones, those of `no_task`, and accepted ones `with_unknown_fields`;
            how often `other_unknown_fields` occur than those named.
        unknown_fields: How often each unknown field occurs, by name: the most frequent ones.
        reasons: Quarantined records by reason.
        options: The options that change the tables.
        index_lag: The fields of the `IndexLag` that was used.
        tables: Files of each table below the output folder, by day; a table that is whole has the day "".
        published: Ids of the newest runs that became the current one. The last is this run once it is
            published, and until then the run that was current when this one began.
        keep_runs: How many runs to keep.
        version: Version of this layout.
    """

    run_id: str
    events: str
    form: str
    files: dict[str, list[int]] = field(default_factory=dict)
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
        """Return whether events of a day come too late."""
        if day in self.days:
            return self.days[day].forgotten
        return self.final_until is not None and day <= self.final_until

    def forget(self, keep_days: int) -> None:
        """Give up the silver of days whose tasks were over before so many days."""
        over_us = self.as_of_us - keep_days * DAY_US
        for known in self.days.values():
            if known.silver and _is_over(known, over_us):
                known.silver = {}
                self.final_until = max(self.final_until or 0, (known.last_us or 0) // DAY_US)

    def silver_parts(self) -> set[str]:
        """Return the names of the silver parts that hold the events."""
        return {part for day in self.days.values() for part in day.silver}


def _is_over(day: Day, before_us: int) -> bool:
    """Return whether nothing of a day matters since a time."""
    return day.last_us is not None and day.last_us < before_us and not day.has_open


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
        msg = f"out: {out.at(POINTER)} was written by another version; "
        msg += "run `freshq-pipeline run --full-refresh` once, or use another folder"
        raise BadInput(msg)
    return State(**kept | {"days": days_from_json(kept["days"]), "starts_us": dict(kept["starts_us"])})


def _as_json(state: State) -> dict[str, Any]:
    days = {iso(day): asdict(kept) for day, kept in state.days.items()}
    # Pairs: a name of an object of JSON cannot be null.
    return asdict(state) | {"days": days, "starts_us": list(state.starts_us.items())}


@contextmanager
def draft(out: Folder, state: State) -> Iterator[None]:
    """Delete what a run wrote if it fails before it is published.

    Raises:
        Overtaken: If it failed after another run was published, which may have deleted what it reads.
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
    """Make a finished run the current one, register it, and delete what is no longer needed.

    The pointer decides. Readers of the tables, the manifest or the summary see the previous run or this one.

    Args:
        out: Folder with the runs.
        state: State of the finished run.
        summary: Its summary.
        keep_runs: How many runs to keep, including this one.
        registry: Where its tables are registered; None: nowhere.

    Raises:
        Overtaken: If another run was published since this one began.
        Unfinished: If the run is published, and what follows failed.
    """
    link_tables(out, state.run_id, state.tables)
    out.write_json(f"runs/{state.run_id}/{SUMMARY}", summary)
    try:
        check_current(out, state.published)
    except Overtaken:
        _delete_draft(out, state)
        raise
    # Pruning needs to know the run before.
    state.published = [*state.published, state.run_id][-max(keep_runs, 2) :]
    out.write_json(POINTER, _as_json(state))
    try:
        end_publication(out, state, keep_runs, registry)
    except OSError as error:
        msg = f"the tables in {out.uri} are published, but what follows failed: {error}; run again"
        raise Unfinished(msg) from error


def end_publication(out: Folder, state: State, keep_runs: int, registry: Registry | None) -> None:
    """Do what follows the publication, as far as it is not done."""
    show(out, state.run_id)
    if registry is not None:
        register(registry, state)
    prune(out, state, keep_runs, registry)


def check_current(out: Folder, published: list[str]) -> None:
    """Check that the current run is the last of those that were known.

    Raises:
        Overtaken: If it is another one.
    """
    if published_runs(out)[-1:] != published[-1:]:
        raise Overtaken(out.uri)


def published_runs(out: Folder) -> list[str]:
    """Return the ids of the newest runs that became the current one, also if they read other events."""
    try:
        kept = out.read_json(POINTER) if out.exists(POINTER) else None
    except BadInput:
        kept = None  # a full refresh replaces it, and nothing else gets here
    if not isinstance(kept, dict):
        return []
    # The pointer of an early version names no run but its own.
    return list(kept.get("published", [kept.get("run_id", "")]))


def register(registry: Registry, state: State) -> None:
    """Register the tables of the current run in a catalog, unless they are."""
    registry.register(state.run_id, {name: paths_of(state.tables, name) for name in TABLES})


def show(out: Folder, run_id: str) -> None:
    """Let readers see the tables and the summary of the current run, unless they do.

    A run may have been killed after it became the current one.
    """
    show_tables(out, run_id)
    if not out.exists(SUMMARY) or out.read_json(SUMMARY)["run_id"] != run_id:
        out.write_json(SUMMARY, out.read_json(f"runs/{run_id}/{SUMMARY}"))


def prune(out: Folder, state: State, keep_runs: int, registry: Registry | None = None) -> None:
    """Delete all but the newest runs, and the files that neither they, a catalog nor the next run need.

    It looks at what is there: what a run that was killed here left, the next one deletes. If another run was
    published since, nothing is deleted, because that run decides what is needed.
    """
    if published_runs(out)[-1:] != [state.run_id]:
        return
    found, last = out.folders("runs"), _last_ended(out, state)
    # None of them: a run that was killed before it became the current one, and those of earlier layouts.
    newest = state.published[-keep_runs:]
    kept = {state.run_id, *(run_id for run_id in newest if out.exists(manifest_path(run_id)))}
    # First the snapshots, which need the files.
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


def _last_ended(out: Folder, state: State) -> str:
    """Return the id of the newest run that has surely ended; newer ones may still be at work.

    On a disk a lock keeps other runs away, so all up to the current one have ended. In a bucket, a run that
    began after the one before was published may not have noticed yet that it was overtaken.
    """
    if out.local:
        return state.run_id
    return state.published[-2] if len(state.published) > 1 else ""


def _prune_parts(out: Folder, state: State, last: str) -> None:
    """Delete the parts of silver and of the index of ids that the current run does not need."""
    for kind, needed in (("silver", state.silver_parts()), ("ids", set(state.ids))):
        for part in out.folders(kind):
            if part not in needed and part <= last:
                out.delete(f"{kind}/{part}")


def _prune_silver(out: Folder, state: State, last: str) -> None:
    """Delete the days that other parts of silver have by now, or that were given up."""
    needed = {silver_path(part, day) for day, known in state.days.items() for part in known.silver}
    for path in {file.path.rpartition("/")[0] for file in out.files("silver")} - needed:
        if path.split("/")[1] <= last:
            out.delete(path)


def _prune_files(out: Folder, state: State, needed: set[str], last: str) -> None:
    """Delete the files of tables that neither the current run nor anything else needs."""
    needed = needed.union(*(paths_of(state.tables, table) for table in state.tables))
    folders = [FILES, INTERNAL]
    if not has_links(out):
        folders.append(PUBLISHED)  # where earlier versions had the files
    for folder in folders:
        for file in out.files(folder):
            run_id = file.path.rpartition("/")[2].rpartition("-")[0]
            if file.path.endswith(PARQUET) and file.path not in needed and run_id <= last:
                out.delete_files([file.path])


def silver_path(part: str, day: int) -> str:
    """Return the path of a day in a part of silver, below the output folder."""
    return f"silver/{part}/day={iso(day)}"


# The end of the process releases the lock, however it ends. So the file stays.
LOCK: Final = "_run.lock"


@contextmanager
def only_run(out: Folder, *, wait: bool = False) -> Iterator[None]:
    """Let no other run work in an output folder on a disk meanwhile; a bucket has no locks.

    Args:
        out: The output folder; created if needed.
        wait: Whether to wait for the end of another run.

    Raises:
        PipelineError: If another run works there, and `wait` is false.
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
            # A run that fails before it writes leaves no folder.
            if is_new and list(file.parent.iterdir()) == [file]:
                file.unlink()
                file.parent.rmdir()


def _locked(out: Folder, file: Path, *, wait: bool) -> BinaryIO:
    """Return the locked file; to close it is to release the lock."""
    while True:
        out.make("")
        with suppress(FileNotFoundError), ExitStack() as opened:
            lock = opened.enter_context(file.open("ab"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                msg = f"out: another run works in {out.uri}; run again after its end"
                raise PipelineError(msg) from error
            # Otherwise another run deleted the file before it was locked here.
            if os.path.samestat(file.stat(), os.fstat(lock.fileno())):
                opened.pop_all()
                return lock
