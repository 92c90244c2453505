"""Kill a process before one of its writes."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import pytest

from freshq_pipeline.storage.folder import Folder

# The functions by which publication writes: their owners and names. A file is replaced by os.replace.
WRITES: Final = (
    (Folder, ("_move", "delete", "_delete_file")),
    (os, ("link", "symlink", "rename", "replace", "rmdir")),
)


class KilledError(BaseException):
    """The end of a process, which no cleanup survives."""


@contextmanager
def killed_at(step: int, writes: Iterable[tuple[Any, tuple[str, ...]]] = WRITES) -> Iterator[list[str]]:
    """Kill a process before its write number `step`; yield the names of the writes that did not happen."""
    missed: list[str] = []
    count = 0

    def killing(name: str, write: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            if count == step:
                missed.append(name)
                raise KilledError
            count += 1
            return write(*arguments, **named)

        return call

    with pytest.MonkeyPatch.context() as patch, suppress(KilledError):
        for owner, names in writes:
            for name in names:
                patch.setattr(owner, name, killing(name, getattr(owner, name)))
        yield missed
