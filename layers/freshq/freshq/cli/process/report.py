"""What such a command reports: JSON lines for programs, and the log as part of them."""

from __future__ import annotations

import json
import logging
import threading
import time
import traceback
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol, TextIO

from typing_extensions import override

from freshq.cli.errors import OneLineLog
from freshq.worker.log_fields import FIELDS, TaskLogFilter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from freshq.worker.report import RunReport, WorkerStatus


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """One process at work, as it was when it last said so.

    Attributes:
        process: Its number, from 1 on.
        pid: Its process id.
        values: Its worker's status, by name.
        heard_at: When it said so, in seconds of the monotonic clock.
    """

    process: int
    pid: int
    values: dict[str, Any]
    heard_at: float = field(default_factory=time.monotonic)

    @property
    def turned_seconds(self) -> float:
        """Time since its loop last went round, as far as is known."""
        return float(self.values["turned_seconds"]) + time.monotonic() - self.heard_at

    @property
    def takes_tasks(self) -> bool:
        """Whether it claims, and its store answered the last call."""
        return self.values["state"] == "working" and bool(self.values["store_answers"])

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        turned = round(self.turned_seconds, 3)
        return {"process": self.process, "pid": self.pid, **self.values, "turned_seconds": turned}


class Reporter(Protocol):
    """Receives what happens. Several threads call it."""

    def event(self, event: str, **values: object) -> None:
        """Receive an event, such as the start of the draining."""

    def status(self, processes: Sequence[ProcessStatus]) -> None:
        """Receive the state of the processes, several times a second."""

    def close(self) -> None:
        """Show nothing more."""


class JsonLines(Reporter):
    """Prints each event as a line of JSON, and the status from time to time."""

    def __init__(self, stream: TextIO, status_seconds: float) -> None:
        """Print to a stream.

        Args:
            stream: Where to print.
            status_seconds: Time between two lines with the status.
        """
        self._stream = stream
        self._status_seconds = status_seconds
        self._next_status = 0.0
        self._lock = threading.Lock()
        self._is_read = True

    @override
    def event(self, event: str, **values: object) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, "event": event, **values}, default=str)
        with self._lock:
            if not self._is_read:
                return
            try:
                self._stream.write(line + "\n")
                self._stream.flush()
            except (OSError, ValueError):
                # Whoever read the lines is gone. That is no reason to leave the tasks.
                self._is_read = False

    @override
    def status(self, processes: Sequence[ProcessStatus]) -> None:
        if time.monotonic() < self._next_status:
            return
        self._next_status = time.monotonic() + self._status_seconds
        self.event("status", processes=[each.as_json() for each in processes])

    @override
    def close(self) -> None:
        return


class ReportingHandler(logging.Handler):
    """Makes an event of each log record, with the task that it is about and the traceback."""

    def __init__(self, reporter: Reporter) -> None:
        super().__init__(logging.WARNING)
        self.addFilter(TaskLogFilter())
        self._reporter = reporter

    @override
    def emit(self, record: logging.LogRecord) -> None:
        values = {"level": record.levelname, "logger": record.name, "message": record.getMessage()}
        of_task = {name: getattr(record, name, None) for name in FIELDS}
        values |= {name: value for name, value in of_task.items() if value is not None}
        if record.exc_info and record.exc_info[1] is not None:
            values["traceback"] = "".join(traceback.format_exception(record.exc_info[1]))
        self._reporter.event("log", **values)


def report_log(reporter: Reporter) -> None:
    """Make events of the log, unless the application has set up logging: then it goes where that says."""
    ours, root = logging.getLogger("freshq"), logging.getLogger()
    ours.handlers[:] = [handler for handler in ours.handlers if not isinstance(handler, OneLineLog)]
    if not root.handlers:
        root.addHandler(ReportingHandler(reporter))


# The field of a status that has a worker's outcomes.
OUTCOMES: Final = "outcomes"


def status_values(status: WorkerStatus) -> dict[str, Any]:
    """Return the status of a worker as JSON has it."""
    return {
        "state": status.state.value,
        "running": status.running,
        "claimed": status.claimed,
        OUTCOMES: {outcome.value: number for outcome, number in status.outcomes.items()},
        "overran": status.overran,
        "turned_seconds": status.turned_seconds,
        "store_answers": status.store_answers,
    }


def report_values(report: RunReport) -> dict[str, Any]:
    """Return the report of a worker as JSON has it."""
    return {
        "claimed": report.claimed,
        OUTCOMES: {outcome.value: number for outcome, number in report.outcomes.items()},
        "overran": report.overran,
        "given_back": report.given_back,
        "unfinished": report.unfinished,
        "idle": report.idle,
    }
