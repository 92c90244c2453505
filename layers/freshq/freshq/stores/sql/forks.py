"""Forks of a process that uses SQLite.

SQLite keeps the locks of a file by process, and a forked child inherits the belief that it holds them. A
connection that the child then opens takes no lock in truth: the parent deletes the log under it, and the
child's commits are lost. So a fork closes all connections first, and both processes open new ones. If
another one is open nevertheless (a transaction, or a connection of the application), the child refuses to
open the file.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import unquote, urlsplit
from weakref import WeakSet

from freshq.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable

    import sqlalchemy as sa

# How long a fork waits for the statements of other threads. If they take longer, the child refuses.
WAIT_SECONDS: Final = 10.0
# Folder that lists the open files of a process; without it, descriptors up to this number are tried.
FILES: Final = "/dev/fd"
MOST_FILES: Final = 65_536
ADVICE: Final = (
    "SQLite's locks do not survive a fork. Close your own connections to it, and end transactions, before "
    'the fork; or start the process otherwise, such as by multiprocessing.get_context("spawn")'
)


class Holder(Protocol):
    """Something with connections to SQLite."""

    def close_for_fork(self, until: float) -> None:
        """Close the connections, and open none before `reopen`; wait for users, if need be.

        Args:
            until: When to leave those open that are still in use, by the monotonic clock.
        """

    def reopen(self) -> None:
        """After the fork, in the parent: connect again when the next statement needs it."""

    def abandon(self) -> None:
        """After the fork, in the child: never touch a connection that is still open."""


_HOLDERS: Final[WeakSet[Holder]] = WeakSet()
# Held from before a fork until after it, so that nobody connects in between. Reentrant, because a signal
# handler may fork too.
_gate = threading.RLock()
_forks = 0
# The regular files that were open at the fork of this process, by their numbers.
_inherited: dict[int, tuple[int, int]] = {}


def close_for_forks(holder: Holder) -> None:
    """Close the connections of a holder before each fork."""
    with _gate:
        _HOLDERS.add(holder)


def refuse_inherited(file: str) -> None:
    """Raise if a connection to a file was open when this process was forked, and still is.

    Args:
        file: The path of a database, or SQLite's `file:` address of it.

    Raises:
        StoreError: If so.
    """
    if not _inherited:
        return
    path = unquote(urlsplit(file).path) if file.startswith("file:") else file
    this = _identity(path)
    if this is not None and any(
        known == this and _identity(number) == this for number, known in _inherited.items()
    ):
        msg = f"the file {path!r} was open in the parent process when this one was forked; {ADVICE}"
        raise StoreError(msg)


def refuse_inherited_by(connection: sa.Connection) -> None:
    """Do the same for the files of an application's connection."""
    if _inherited:
        for _number, _name, file in connection.exec_driver_sql("PRAGMA database_list").all():
            if file:
                refuse_inherited(file)


class OfParent:
    """Stands, in a child, for a connection that is in use in its parent. Only the parent may use that."""

    def __init__(self, error_class: type[Exception]) -> None:
        """Raise errors of a class when it is used."""
        self.__dict__["_error_class"] = error_class

    def rollback(self) -> None:
        """Leave the transaction to the parent."""

    close = rollback

    def __getattr__(self, name: str) -> Any:
        msg = f"this transaction is the parent process's, and this process was forked in it; {ADVICE}"
        raise self._error_class(msg)


def keep_for_ever(things: Iterable[object]) -> None:
    """Keep objects from being deleted, even when the interpreter ends: that would close their connections."""
    import ctypes  # noqa: PLC0415 - few children need it

    for thing in things:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _identity(file: str | int) -> tuple[int, int] | None:
    """Return what identifies a regular file, given its path or number; None if there is none."""
    try:
        found = os.stat(file)  # noqa: PTH116 - Path takes no number
    except (OSError, ValueError):  # the last: a path with a NUL
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISREG(found.st_mode) else None


def _open_files() -> dict[int, tuple[int, int]]:
    """Return the regular files that this process has open."""
    try:
        numbers = [int(name) for name in os.listdir(FILES)]  # noqa: PTH208 - numbers, not paths
    except OSError:  # there is no such folder, or no file may be opened now
        numbers = list(range(min(MOST_FILES, os.sysconf("SC_OPEN_MAX"))))
    found = ((number, _identity(number)) for number in numbers)
    return {number: identity for number, identity in found if identity is not None}


def _before() -> None:
    global _forks  # noqa: PLW0603 - a process has one state
    _gate.acquire()
    _forks += 1
    until = time.monotonic() + WAIT_SECONDS
    for holder in [*_HOLDERS]:
        holder.close_for_fork(until)


def _in_parent() -> None:
    global _forks  # noqa: PLW0603 - a process has one state
    for holder in [*_HOLDERS]:
        holder.reopen()
    if _forks:  # not if a library forked in C, and told Python only afterwards
        _forks -= 1
        _gate.release()


def _in_child() -> None:
    global _gate, _forks, _inherited  # noqa: PLW0603 - a process has one state
    _gate, _forks = threading.RLock(), 0
    _inherited = _open_files()
    for holder in [*_HOLDERS]:
        holder.abandon()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
