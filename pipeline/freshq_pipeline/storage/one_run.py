"""One run at a time in an output folder: a lock on a disk; in a bucket, a comparison before publication."""

from __future__ import annotations

import fcntl
import os
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, BinaryIO, Final

from freshq_pipeline.errors import PipelineError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from freshq_pipeline.storage.folder import Folder

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
