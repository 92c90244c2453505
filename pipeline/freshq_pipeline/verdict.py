"""The command on a cluster, which leaves its verdict where whoever submitted it can read it.

A cluster tells only that a job failed. Whether its input was bad, Spark failed, or all is published and a
task breaks the ledger is told by the exit status, which no cluster promises to hand on.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, Any, Final, TextIO

from freshq_pipeline.errors import BAD_INPUT_STATUS, FAILED_STATUS, PipelineError

if TYPE_CHECKING:
    from collections.abc import Callable

# Environment variable: the address of the file that the verdict goes to.
VERDICT: Final = "FRESHQ_VERDICT"


class LastLine(io.TextIOBase):
    """Passes text on, and remembers its last line.

    Attributes:
        text: The last line that was not empty.
    """

    def __init__(self, onto: TextIO) -> None:
        """Pass on to another file.

        Args:
            onto: Which.
        """
        self._onto = onto
        self.text = ""

    @property
    def encoding(self) -> str:  # type: ignore[override]  # the base class knows none
        """How text is encoded."""
        return self._onto.encoding

    def write(self, text: str) -> int:
        """Pass on some text."""
        lines = [line for line in text.splitlines() if line.strip()]
        self.text = lines[-1].strip() if lines else self.text
        return self._onto.write(text)

    def flush(self) -> None:
        """Pass on what is kept back."""
        self._onto.flush()


def main() -> None:
    """Run the command with the process's arguments, leave the verdict, and exit with its status."""
    from freshq_pipeline.cli import app  # noqa: PLC0415 - what fails while it is loaded is told as well

    sys.exit(judged(app, os.environ.get(VERDICT)))


def judged(command: Callable[[], Any], address: str | None) -> int:
    """Run a command, write its status and last words down, and return the status.

    Args:
        command: Ends with SystemExit, as a command line does.
        address: The file to write; None for none.
    """
    stderr = sys.stderr
    heard = LastLine(stderr)
    sys.stderr = heard
    status = FAILED_STATUS
    try:
        command()
        status = 0
    except SystemExit as ended:
        status = _status(ended.code)
    except Exception as error:
        heard.text = f"{type(error).__name__}: {error}"
        raise
    finally:
        sys.stderr = stderr
        if address is not None:
            _leave(address, {"status": status, "message": heard.text if status else ""})
    return status


def _status(code: str | int | None) -> int:
    if code is None:
        return 0
    return code if isinstance(code, int) else BAD_INPUT_STATUS


def _leave(address: str, verdict: dict[str, Any]) -> None:
    """Write a verdict; a run that is published is not undone because this fails."""
    from freshq_pipeline.storage import Folder  # noqa: PLC0415 - loads PyArrow

    folder, _, name = address.rpartition("/")
    try:
        Folder(folder).write_json(name, verdict)
    except (OSError, PipelineError) as error:
        sys.stderr.write(f"freshq-pipeline: no verdict at {address}: {error}\n")
