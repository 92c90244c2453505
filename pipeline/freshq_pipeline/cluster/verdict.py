"""The verdict of a run on a cluster: its exit status and last line, in a file for `submit`.

A cluster reports only that a job failed. The verdict tells bad input, failures of Spark and published runs
with ledger violations apart.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, Any, Final, TextIO

from typing_extensions import override

from freshq_pipeline.errors import BAD_INPUT_STATUS, FAILED_STATUS, PipelineError, complain

if TYPE_CHECKING:
    from collections.abc import Callable

# Environment variable with the address of the file; if unset, no file is written.
VERDICT: Final = "FRESHQ_VERDICT"


class LastLine(io.TextIOBase):
    """Passes text on and remembers the last line.

    Attributes:
        text: The last line that was not blank.
    """

    def __init__(self, target: TextIO) -> None:
        """Pass text on to `target`."""
        self._target = target
        self.text = ""

    @property
    @override
    def encoding(self) -> str:  # type: ignore[override]  # writable in the base class
        return self._target.encoding

    @override
    def write(self, text: str) -> int:
        lines = [line for line in text.splitlines() if line.strip()]
        self.text = lines[-1].strip() if lines else self.text
        return self._target.write(text)

    @override
    def flush(self) -> None:
        self._target.flush()


def with_verdict(command: Callable[[], Any]) -> int:
    """Run a command, write its verdict to the address in `FRESHQ_VERDICT`, and return its exit status.

    Args:
        command: Called without arguments; may raise SystemExit.
    """
    stderr = sys.stderr
    last_line = LastLine(stderr)
    sys.stderr = last_line
    status = FAILED_STATUS
    try:
        command()
        status = 0
    except SystemExit as ended:
        status = _status(ended.code)
    except Exception as error:
        last_line.text = f"{type(error).__name__}: {error}"
        raise
    finally:
        sys.stderr = stderr
        _write({"status": status, "message": last_line.text if status else ""})
    return status


def _status(code: str | int | None) -> int:
    if code is None:
        return 0
    return code if isinstance(code, int) else BAD_INPUT_STATUS


def _write(verdict: dict[str, Any]) -> None:
    """Write the verdict. A failure here must not fail a published run."""
    address = os.environ.get(VERDICT)
    if address is None:
        return
    from freshq_pipeline.storage.folder import Folder  # noqa: PLC0415 - loads PyArrow

    folder, _, name = address.rpartition("/")
    try:
        Folder(folder).write_json(name, verdict)
    except (OSError, PipelineError) as error:
        complain(f"cannot write the verdict to {address}: {error}")
