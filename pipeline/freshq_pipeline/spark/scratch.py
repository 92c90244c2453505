"""Folders for temporary files, which end with the process, or with the next one if it was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from freshq_pipeline.errors import PipelineError
from freshq_pipeline.spark.interrupts import held_signals
from freshq_pipeline.spark.java import cache_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRATCH_PREFIX: Final = "freshq-pipeline-"
# A process that holds the lock on this file in its folder still lives.
SCRATCH_LOCK: Final = "lock"
# A folder this old without a lock was left behind by a process killed at its start.
LOCKLESS_SECONDS: Final = 86_400
# Folders for programs if that of temporary files is mounted with noexec, after the cache.
_MORE_FOLDERS: Final = ("/var/tmp", "/tmp", "/dev/shm")  # noqa: S108 # nosec B108 - each process gets its own folder


@contextmanager
def scratch_folder(parent: Path | None = None) -> Iterator[Path]:
    """Return a folder for temporary files; delete it on exit, and first those of killed processes.

    Args:
        parent: Where to make it; None: in the folder of temporary files.
    """
    parent = Path(tempfile.gettempdir()) if parent is None else parent
    prune_scratch(parent)
    scratch = None
    try:
        with held_signals():
            scratch = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=parent))
        with (scratch / SCRATCH_LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.write("locked")
            lock.flush()
            yield scratch
    finally:
        if scratch is not None:
            with held_signals():
                shutil.rmtree(scratch, ignore_errors=True)


def prune_scratch(parent: Path) -> None:
    """Delete the folders that killed processes of this user left in a folder."""
    for folder in parent.glob(f"{SCRATCH_PREFIX}*"):
        with suppress(OSError):  # another process was faster
            if folder.lstat().st_uid == os.getuid() and folder.is_dir() and _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_abandoned(folder: Path) -> bool:
    """Return whether no process holds the lock of a folder. An empty file was not locked yet."""
    file = folder / SCRATCH_LOCK
    if not file.exists() or not file.stat().st_size:
        return folder.stat().st_mtime < time.time() - LOCKLESS_SECONDS
    with file.open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


@contextmanager
def program_folder(scratch: Path) -> Iterator[Path]:
    """Return a folder from which programs and libraries can be loaded: `scratch`, unless it is on noexec.

    Java unpacks the libraries for compression there, without which it cannot write a table.

    Raises:
        PipelineError: If there is none.
    """
    if not _is_noexec(scratch):
        yield scratch
        return
    cache = cache_folder()
    for folder in (*([] if cache is None else [cache]), *map(Path, _MORE_FOLDERS)):
        with suppress(OSError):
            if folder == cache:
                folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK | os.X_OK) and not _is_noexec(folder):
                break
    else:
        msg = f"{scratch.parent} is mounted with noexec, so that Java cannot load its libraries from there; "
        raise PipelineError(msg + "set TMPDIR or XDG_CACHE_HOME to a folder without noexec")
    with scratch_folder(folder) as programs:
        yield programs


def _is_noexec(folder: Path) -> bool:
    return bool(os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0))
