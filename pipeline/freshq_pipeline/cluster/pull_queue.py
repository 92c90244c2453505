"""`pull --queue` and `--match-queue`: write the history of a queue in a SQL database as landed events."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from freshq.addresses import Address, open_match_queue, open_queue
from freshq.errors import FreshqError, MissingExtra, TableMissing
from freshq.queue.core import core_of
from freshq_pipeline.errors import BadInput, PipelineError
from freshq_pipeline.storage.recording import HISTORY_FOLDER, RECORDING, recording_of_history
from freshq_pipeline.storage.whole_file import whole_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from rich.progress import Progress

    from freshq.stores.base import History, Kept


SUFFIX: Final = ".jsonl.gz"
# Digits of a batch's number in the name of its file, so that names sort by number.
DIGITS: Final = 12
# Characters of the history's id at the end of a folder's name.
ID_CHARACTERS: Final = 12
# Repeated text compresses well already at this level; higher levels take several times as long.
GZIP_LEVEL: Final = 4
# Fields that identify an event, even if another one has its id after a backup was restored.
IDENTITY: Final = ("event_id", "task_id", "stream_ms")


@dataclass(frozen=True, slots=True)
class PulledQueue:
    """The result of a pull.

    Attributes:
        written: Number of files that were written.
        events: Number of events in them.
        known: Number of files that the folder already had.
    """

    written: int
    events: int
    known: int


def pull_queue(
    address: str, out: Path, progress: Callable[[int, int], None] = lambda _done, _of: None
) -> PulledQueue:
    """Write the batches of the history that the folder lacks; may be interrupted and repeated.

    The first pull writes the whole history, later pulls new events only, each event once.

    Args:
        address: Address of the queue, such as sqlite:///tasks.db?name=mail.
        out: The folder; created if needed. Each history has its own folder in it.
        progress: Called with the files written so far and their total.

    Raises:
        BadInput: If the address is wrong, the queue keeps no history, events were deleted before they were
            pulled, or the folder has events that were undone by restoring a backup, or another history of a
            queue of this name.
        PipelineError: If the database did not answer. The next pull writes the rest.
    """
    with _errors():
        _check_sql(address)
        with closing(open_queue(address)) as queue:
            return _pull(core_of(queue).store.history, [queue.name], out, progress)


def pull_match_queue(
    address: str, out: Path, progress: Callable[[int, int], None] = lambda _done, _of: None
) -> PulledQueue:
    """Write the histories of resources and callers in the same way.

    Args:
        address: Address of the resources, such as sqlite:///agents.db.
        out: As above.
        progress: As above.

    Raises:
        BadInput: As above.
        PipelineError: As above.
    """
    with _errors():
        _check_sql(address)
        with open_match_queue(address) as queue:
            names = [] if queue.admin.history is None else queue.admin.history.queues
            return _pull(queue.admin.history, names, out, progress)


def _pull(
    history: History | None, names: Sequence[str], out: Path, progress: Callable[[int, int], None]
) -> PulledQueue:
    """Write the missing batches of the histories of some queues."""
    if history is None:
        raise BadInput("queue: needs a queue in a SQL database, such as sqlite:///tasks.db")
    parts = [_Part.of(history, name, out) for name in names]
    done, of, events = 0, sum(len(part.missing) for part in parts), 0
    for part in parts:
        if part.known:
            part.write_recording()
        for batch in part.missing:
            found = _batch(history, part.name, batch)
            part.write_recording()
            events += _write(_path(part.folder, batch), found)
            done += 1
            progress(done, of)
    return PulledQueue(of, events, sum(part.known for part in parts))


@dataclass(frozen=True, slots=True)
class _Part:
    """The batches of a queue's history in a folder.

    Attributes:
        name: Name of the queue.
        folder: Folder of the batches.
        missing: Numbers of the batches that the folder lacks.
        known: Number of batches that it has.
    """

    name: str
    folder: Path
    missing: list[int]
    known: int

    @classmethod
    def of(cls, history: History, name: str, out: Path) -> _Part:
        """Put all events of a queue into batches, and compare them with the folder."""
        kept = _kept(history, name)
        folder = out / f"{HISTORY_FOLDER}{name}-{kept.history_id[:ID_CHARACTERS]}"
        _check_only_history(name, folder)
        known = _numbers(folder)
        _check_same(history, name, kept, known, folder)
        history.add_batches(name)
        kept = _kept(history, name)
        _check_gap(kept, known, folder)
        missing = [batch for batch in range(kept.first_batch, kept.last_batch + 1) if batch not in known]
        return cls(name, folder, missing, len(known))

    def write_recording(self) -> None:
        """Write the facts that a run must know about the history, unless they are already there."""
        target = self.folder / RECORDING
        if not target.exists():
            with whole_file(target) as file:
                file.write(json.dumps(recording_of_history(self.name)).encode())


@contextmanager
def _errors() -> Iterator[None]:
    """Turn errors of freshq into errors of the pipeline."""
    try:
        yield
    except MissingExtra:
        raise
    except (ValueError, TableMissing) as error:
        raise BadInput(str(error)) from error
    except FreshqError as error:
        raise PipelineError(str(error)) from error


def _check_sql(address: str) -> None:
    if Address.parse(address).backend == "dynamodb":
        msg = "queue: the changes of a DynamoDB table are in the archive of its stack; use --stack NAME"
        raise BadInput(msg)


def _kept(history: History, name: str) -> Kept:
    kept = history.kept(name)
    if kept is None:
        msg = f"queue: {name!r} keeps no history; run `{history.command}` with ?history=on in the address, "
        msg += "and later pull what happened since"
        raise BadInput(msg)
    return kept


def _numbers(folder: Path) -> set[int]:
    """Return the numbers of the batches in a folder; batches never change."""
    names = [path.name.removesuffix(SUFFIX) for path in folder.glob(f"*{SUFFIX}")]
    return {int(name) for name in names if name.isdecimal()}


def _path(folder: Path, batch: int) -> Path:
    return folder / f"{batch:0{DIGITS}}{SUFFIX}"


def _check_only_history(name: str, folder: Path) -> None:
    """Check that there is no other history of a queue of this name next to the folder.

    Tasks with the same id in the two histories would become lives of one task.

    Raises:
        BadInput: If there is one.
    """
    of_name = re.compile(rf"queue-{re.escape(name)}-[0-9a-f]{{{ID_CHARACTERS}}}")
    found = folder.parent.glob("queue-*")
    others = sorted(one.name for one in found if of_name.fullmatch(one.name) and one != folder)
    if others:
        msg = (
            f"queue: {folder.parent} has {others[0]}, another history of a queue named {name!r}: of another "
            "database, or from before the history was restarted. Pull into a new folder, and make new tables "
            "from it"
        )
        raise BadInput(msg)


def _check_same(history: History, name: str, kept: Kept, known: set[int], folder: Path) -> None:
    """Check that the newest batch in the folder equals the one with this number in the database.

    A restored database continues its numbers from the backup, and so uses numbers again.

    Raises:
        BadInput: If they differ. Otherwise the folder would keep events that a restore removed, and lack
            later ones.
    """
    newest = max(known, default=0)
    # Batches that were deleted because of their age cannot be compared.
    if newest < kept.first_batch:
        return
    if newest <= kept.last_batch:
        path = _path(folder, newest)
        if _identities(_read(path)) == _identities(_batch(history, name, newest)):
            return
    msg = (
        f"queue: {folder} has events that the history of {name!r} does not have: the database was restored "
        f"from a backup. Run `{history.command}` with ?history=off in the address, then with ?history=on; "
        "pull into a new folder, and make new tables from it"
    )
    raise BadInput(msg)


def _identities(events: Sequence[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    return [tuple(event.get(field) for field in IDENTITY) for event in events]


def _read(path: Path) -> list[dict[str, Any]]:
    """Return the events of a file.

    Raises:
        BadInput: If the file is damaged.
    """
    try:
        return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    except (gzip.BadGzipFile, zlib.error, EOFError, ValueError) as error:
        msg = f"out: {path} is damaged ({error}); delete it and pull again"
        raise BadInput(msg) from error


def _check_gap(kept: Kept, known: set[int], folder: Path) -> None:
    """Check that no batch is missing between the batches in the folder and those in the database.

    Raises:
        BadInput: If one is. Tables made without it would seem complete.
    """
    if known and max(known) < kept.first_batch - 1:
        msg = (
            f"queue: events were deleted by their age after the last pull into {folder}; "
            "pull into a new folder, and pull more often or keep them longer with history_seconds"
        )
        raise BadInput(msg)


def _batch(history: History, name: str, batch: int) -> Sequence[Mapping[str, Any]]:
    """Return the events of a batch.

    Raises:
        BadInput: If events may have been deleted in the meantime.
    """
    events = history.events(name, batch)
    if _kept(history, name).first_batch > batch:
        raise BadInput("queue: events are being deleted by their age while they are pulled; pull again")
    return events


def _write(target: Path, events: Sequence[Mapping[str, Any]]) -> int:
    """Write events to a file, completely or not at all; return their number."""
    lines = b"".join(json.dumps(event, separators=(",", ":")).encode() + b"\n" for event in events)
    with whole_file(target) as file:
        file.write(gzip.compress(lines, GZIP_LEVEL, mtime=0))
    return len(events)


def from_address(address: str, out: Path, bar: Progress, *, of_matches: bool) -> str:
    """Write the history of a queue, or of resources and callers; return a message about the files."""
    task = bar.add_task("writing", total=None)
    pull = pull_match_queue if of_matches else pull_queue
    pulled = pull(address, out, lambda done, of: bar.update(task, completed=done, total=of))
    bar.update(task, total=pulled.written, completed=pulled.written)
    events = f"{pulled.events} events in {pulled.written} files"
    return f"{events} written to {out}, {pulled.known} files already there"
