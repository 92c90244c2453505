"""Write a file completely or not at all. Needs no PyArrow."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def whole_file(target: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces `target` when the block ends without an error.

    Its folder is created if needed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    except OSError as error:
        if error.filename is None:  # as when the disk is full
            error.filename = str(target)
        raise
    finally:
        draft.unlink(missing_ok=True)
