"""Processes on a machine that loses its power or is suspended, and what is on its disk afterwards.

`machine.c` notes each change of a file, and each sync, in the order in which all processes made them. So one
run can be cut at every note: `Disk` plays the notes back up to one of them, and keeps what was synced and a
random part of the rest, torn at sectors.
"""

import atexit
import os
import random
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import pytest

SOURCE: Final = Path(__file__).with_suffix(".c")
SECTOR_BYTES: Final = 512
# Files that the observers of a test write: a cut removes nothing from them.
NOTES: Final = ".jsonl"
# Files that processes share as memory, which a machine does not have after a restart.
SHARED_MEMORY: Final = ("-shm",)
_HEAD: Final = struct.Struct("<c3xIQQ")


class Change(NamedTuple):
    """One record of the journal.

    Attributes:
        kind: O opened, W written, T truncated, S synced, D folder synced, R renamed, L linked, U unlinked.
        inode: The inode of the file.
        number: Where a write begins, the new size, or whether opening emptied the file.
        data: What was written, or the path; of a rename or link the old and the new path.
    """

    kind: str
    inode: int
    number: int
    data: bytes

    @property
    def paths(self) -> tuple[str, str]:
        """The old path and the new one."""
        old, _, new = self.data.partition(b"\0")
        return old.decode(), new.decode()


def changes(journal: Path) -> list[Change]:
    """Return all whole records."""
    notes, at, found = journal.read_bytes(), 0, list[Change]()
    while at + _HEAD.size <= len(notes):
        kind, length, inode, number = _HEAD.unpack_from(notes, at)
        at += _HEAD.size
        found.append(Change(kind.decode(), inode, number, notes[at : at + length]))
        at += length
    return found


@dataclass
class _File:
    """The synced part of a file, and later writes (place, bytes) and truncations (size), in order."""

    synced: bytearray = field(default_factory=bytearray)
    since: list[tuple[int, bytes] | int] = field(default_factory=list)

    def sync(self) -> None:
        for change in self.since:
            _apply(self.synced, change)
        self.since = []

    def after_a_cut(self, rng: random.Random) -> bytes:
        """Return the contents after a cut: any of the unsynced changes, and any sectors of a write."""
        left, share = bytearray(self.synced), rng.choice((0.0, 0.0, 0.5, 0.9, 1.0))
        is_torn = rng.random() < 0.5
        for change in self.since:
            if is_torn and not isinstance(change, int):
                for sector in _sectors(*change):
                    if rng.random() < share:
                        _apply(left, sector)
            elif rng.random() < share:
                _apply(left, change)
        return bytes(left)


def _apply(content: bytearray, change: tuple[int, bytes] | int) -> None:
    if isinstance(change, int):
        del content[change:]
        content.extend(bytes(change - len(content)))
        return
    at, data = change
    content.extend(bytes(max(0, at - len(content))))
    content[at : at + len(data)] = data


def _sectors(at: int, data: bytes) -> Iterator[tuple[int, bytes]]:
    begin, end = at, at + len(data)
    while begin < end:
        border = min(end, (begin // SECTOR_BYTES + 1) * SECTOR_BYTES)
        yield begin, data[begin - at : border - at]
        begin = border


@dataclass
class Disk:
    """The files of a folder as the changes leave them.

    A new name lasts once its folder or, as on ext4 and XFS, its file was synced; names that were not are
    lost from some change on, as a journal of metadata keeps their order.
    """

    _names: dict[str, _File] = field(default_factory=dict)
    _folders: list[str] = field(default_factory=list)
    _inodes: dict[int, _File] = field(default_factory=dict)
    _lasting: dict[str, _File] = field(default_factory=dict)
    # Changes of names that may be lost: by path the file that has it since, or None.
    _since: list[dict[str, _File | None]] = field(default_factory=list)

    @classmethod
    def of(cls, folder: Path) -> "Disk":
        """Return a disk that has the files of a folder, all of them synced."""
        disk = cls()
        for path in folder.rglob("*"):
            name = str(path.relative_to(folder))
            if path.is_dir():
                disk._folders.append(name)
            elif path.is_file():
                file = _File(bytearray(path.read_bytes()))
                disk._names[name] = disk._lasting[name] = file
        return disk

    def change(self, change: Change) -> None:
        """Make a change."""
        if change.kind == "O":
            self._open(change.data.decode(), change.inode, is_emptied=change.number != 0)
        elif change.kind in "WTS":
            self._change_file(self._inodes[change.inode], change)
        elif change.kind == "D":
            folder = change.data.decode()
            self._last(lambda names: any(os.path.dirname(name) == folder for name in names))  # noqa: PTH120
        else:
            old, new = change.paths
            moved: dict[str, _File | None] = {}
            if change.kind in "RU":
                moved[old if change.kind == "R" else new] = None
            if change.kind in "RL":
                moved[new] = self._names.get(old)
            self._name(moved)

    def _open(self, name: str, inode: int, *, is_emptied: bool) -> None:
        file = self._names.get(name)
        if file is None:
            file = _File()
            self._name({name: file})
        self._inodes[inode] = file
        if is_emptied:
            file.since.append(0)

    def _change_file(self, file: _File, change: Change) -> None:
        if change.kind == "W":
            file.since.append((change.number, change.data))
        elif change.kind == "T":
            file.since.append(change.number)
        else:
            file.sync()
            self._last(lambda names: any(each is file for each in names.values()))

    def _name(self, names: dict[str, _File | None]) -> None:
        self._since.append(names)
        _named(self._names, names)

    def _last(self, is_lasting: Callable[[dict[str, _File | None]], bool]) -> None:
        """Make changes of names durable, with all earlier changes."""
        lasting = [place for place, names in enumerate(self._since, start=1) if is_lasting(names)]
        until = max(lasting, default=0)
        for names in self._since[:until]:
            _named(self._lasting, names)
        del self._since[:until]

    def cut(self, folder: Path, rng: random.Random) -> None:
        """Write into a folder the contents of the disk after a power cut now."""
        for name in self._folders:
            (folder / name).mkdir(parents=True, exist_ok=True)
        names = dict(self._lasting)
        for changed in self._since[: rng.randint(0, len(self._since))]:
            _named(names, changed)
        observed = {name: file for name, file in self._names.items() if name.endswith(NOTES)}
        for name, file in (names | observed).items():
            if not name.endswith(SHARED_MEMORY):
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(_whole(file) if name in observed else file.after_a_cut(rng))


def _named(names: dict[str, _File], changed: dict[str, _File | None]) -> None:
    for name, file in changed.items():
        if file is None:
            names.pop(name, None)
        else:
            names[name] = file


def _whole(file: _File) -> bytes:
    file.sync()
    return bytes(file.synced)


@cache
def library() -> Path:
    """Return the library of `machine.c`; skip the test visibly if there is no compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        if os.environ.get("FRESHQ_REQUIRE_COMPILER") == "1":
            pytest.fail("no gcc, which compiles tests/support/machine.c")
        pytest.skip("no gcc, which compiles tests/support/machine.c")
    made = Path(tempfile.mkdtemp(prefix="freshq-machine-")) / "machine.so"
    atexit.register(shutil.rmtree, made.parent)
    made.parent.chmod(0o755)  # PostgreSQL runs as another user than root
    options = ["-O1", "-Wall", "-Werror", "-shared", "-fPIC"]
    subprocess.run([compiler, *options, "-o", str(made), str(SOURCE), "-ldl", "-lpthread"], check=True)
    return made


def on_machine(
    folder: Path | None = None, journal: Path | None = None, clock: Path | None = None
) -> dict[str, str]:
    """Return the additional environment variables of a process on such a machine.

    Args:
        folder: Each change of a file in it is noted.
        journal: Where.
        clock: The file that says how wrong the clocks are; `set_ahead` writes it.
    """
    given = {"MACHINE_FOLDER": folder, "MACHINE_JOURNAL": journal, "MACHINE_CLOCK": clock}
    named = {name: str(path) for name, path in given.items() if path is not None}
    return {"LD_PRELOAD": str(library()), **named}


def set_ahead(clock: Path, seconds: float, stepped_seconds: float = 0.0) -> None:
    """Let the clocks be ahead of the real time, by whole seconds.

    Args:
        clock: The file of `on_machine`.
        seconds: How long the machine was suspended.
        stepped_seconds: How far somebody has set the time of day, forward or back.
    """
    ahead = struct.pack("=dd", seconds, stepped_seconds)
    if not clock.exists():
        clock.write_bytes(ahead)
        return
    with clock.open("r+b") as file:  # in place: processes have it mapped
        file.write(ahead)
