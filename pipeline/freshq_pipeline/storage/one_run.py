"""One run at a time in an output folder: a lock on a disk; in a bucket, a comparison before publication."""

from __future__ import annotations

import fcntl
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from freshq_pipeline.errors import PipelineError

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    out.make("")
    with file.open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            msg = f"out: another run works in {out.uri}; run again after its end"
            raise PipelineError(msg) from error
        yield
