"""One process that works a queue: the worker in a thread, control and reports in the main thread."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from freshq.cli.process.ending import STOP_SECONDS, ControlChannel, ControlMessage, Stage, WorkStatus
from freshq.cli.process.report import ProcessStatus, report_values, status_values
from freshq.worker.runs import in_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from freshq.cli.process.report import Reporter
    from freshq.worker.report import RunReport
    from freshq.worker.worker import Worker

# Time between two checks of the worker.
CHECK_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True)
class Deadlines:
    """When waiting is over, in seconds of the monotonic clock.

    Attributes:
        drain: When the draining has taken long enough.
        stop: When the process ends, whatever its worker waits for.
    """

    drain: float = float("inf")
    stop: float = float("inf")


class WorkProcess:
    """Runs a worker until it ends, or a signal ends it."""

    def __init__(
        self,
        worker: Worker,
        reporter: Reporter,
        control: ControlChannel,
        drain_seconds: float | None,
    ) -> None:
        """Start nothing yet.

        Args:
            worker: The worker.
            reporter: Receives what happens.
            control: Says when to end.
            drain_seconds: How long to wait for running tasks before their leases are given back.
        """
        self._worker = worker
        self._reporter = reporter
        self._control = control
        self._drain_seconds = drain_seconds
        self._stage = Stage.WORKING
        self._deadlines = Deadlines()

    def statuses(self) -> Sequence[ProcessStatus]:
        """Return the status of this process, as the only one."""
        return [ProcessStatus(1, os.getpid(), status_values(self._worker.status()))]

    def run(self) -> WorkStatus:
        """Work until the end.

        Returns:
            How it ended.

        Raises:
            StoreError: If a table is missing, or the store did not answer for `give_up_seconds`.
        """
        ended = in_thread("freshq-worker", self._worker.run)
        ended.add_done_callback(lambda _ended: self._control.send(ControlMessage.WAKE))
        while not ended.done() and time.monotonic() < self._deadlines.stop:
            self._follow(self._control.receive(CHECK_SECONDS))
            self._reporter.status(self.statuses())
        if not ended.done():
            problem = f"it did not stop within {STOP_SECONDS:g} s; leases that it holds must expire"
            status = WorkStatus.UNFINISHED
            values = status_values(self._worker.status())
            self._reporter.event("ended", exit_status=int(status), problem=problem, **values)
            return status
        return self._ended(ended.result())

    def _follow(self, stage: Stage) -> None:
        """Do what the stage asks for, once."""
        now = time.monotonic()
        if stage is Stage.DRAINING and now >= self._deadlines.drain:
            stage = self._control.stage = Stage.STOPPING
        if stage is self._stage:
            return
        self._stage = stage
        running = self._worker.status().running
        if stage is Stage.STOPPING:
            self._deadlines = Deadlines(stop=now + STOP_SECONDS)
            self._worker.stop_at_once()
            self._reporter.event("stopping", running=running)
        else:
            if self._drain_seconds is not None:
                self._deadlines = Deadlines(drain=now + self._drain_seconds)
            self._worker.stop()
            self._reporter.event("draining", running=running)

    def _ended(self, report: RunReport) -> WorkStatus:
        left = report.unfinished or report.given_back
        status = WorkStatus.UNFINISHED if left else WorkStatus.DRAINED
        self._reporter.event("ended", exit_status=int(status), **report_values(report))
        return status
