"""Modules of the application that a command works with, in the current folder."""

from __future__ import annotations

import sys
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def application_imports() -> Iterator[str]:
    """Let modules of the current folder be imported inside this block.

    What they print goes to standard error, so that each line of standard output is one of the command's.

    Yields:
        What to do if there is no such module, for the error.
    """
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    with redirect_stdout(sys.stderr):
        yield f"run the command in its folder (this is {folder}), or set PYTHONPATH"
