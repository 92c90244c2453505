"""The processes of `freshq work`."""

from __future__ import annotations

import json
import os
import random
import subprocess
import time
from concurrent.futures import Future, wait
from contextlib import suppress
from contextvars import copy_context
from dataclasses import asdict
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from freshq.cli.errors import ExitStatus
from freshq.cli.process import (
    STOP_SECONDS,
    ControlChannel,
    ControlMessage,
    ProcessStatus,
    Stage,
)
from freshq.errors import is_shortage
from freshq.policy.retry import Backoff
from freshq.worker.run import in_thread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from freshq.cli.process import Reporter
    from freshq.worker.report import RunReport
    from freshq.worker.worker import Worker, Workers

# Time between two checks of the worker.
CONTROL_CHECK_SECONDS: Final = 0.25
# Delay between the death of a process and its replacement.
RESTART_BACKOFF: Final = Backoff(base_seconds=0.5, cap_seconds=30.0)
# A process that lived this long did not fail at its start.
HEALTHY_SECONDS: Final = 60.0
# Between two checks of the processes.
CHECK_SECONDS: Final = 0.1
# Maximum wait for the last lines of a process that has ended.
LAST_LINES_SECONDS: Final = 1.0
# A process that should stop immediately is killed after this time.
KILL_AFTER_SECONDS: Final = STOP_SECONDS + 5.0


class WorkProcess:
    """Runs a worker until it ends, or a signal ends it."""

    def __init__(
        self,
        worker: Worker | Workers,
        reporter: Reporter,
        control: ControlChannel,
        drain_seconds: float | None,
    ) -> None:
        """Start nothing yet.

        Args:
            worker: The worker.
            reporter: Receives events.
            control: Ends the run.
            drain_seconds: Maximum wait for running tasks before their leases are given back.
        """
        self._worker = worker
        self._reporter = reporter
        self._control = control
        self._drain_seconds = drain_seconds
        self._stage = Stage.WORKING
        self._drain_until = self._stop_at = float("inf")

    def statuses(self) -> Sequence[ProcessStatus]:
        """Return the status of this process as the only entry."""
        return [ProcessStatus(1, os.getpid(), asdict(self._worker.status()))]

    def run(self) -> ExitStatus:
        """Work until the end.

        Returns:
            How it ended.

        Raises:
            StoreError: If a table is missing, or the store did not answer for `give_up_seconds`.
        """
        ended = in_thread("freshq-worker", partial(copy_context().run, self._worker.run))
        ended.add_done_callback(lambda _ended: self._control.send(ControlMessage.WAKE))
        while not ended.done() and time.monotonic() < self._stop_at:
            self._follow(self._control.receive(CONTROL_CHECK_SECONDS))
            self._reporter.status(self.statuses())
        if not ended.done():
            problem = f"it did not stop within {STOP_SECONDS:g} s; leases that it holds must expire"
            status = ExitStatus.UNFINISHED
            values = asdict(self._worker.status())
            self._reporter.event("ended", exit_status=int(status), problem=problem, **values)
            return status
        return self._ended(ended.result())

    def _follow(self, stage: Stage) -> None:
        """Enter the stage, once."""
        now = time.monotonic()
        if stage is Stage.DRAINING and now >= self._drain_until:
            stage = self._control.stage = Stage.STOPPING
        if stage is self._stage:
            return
        self._stage = stage
        running = self._worker.status().running
        if stage is Stage.STOPPING:
            self._stop_at = now + STOP_SECONDS
            self._worker.stop_at_once()
            self._reporter.event("stopping", running=running)
        else:
            if self._drain_seconds is not None:
                self._drain_until = now + self._drain_seconds
            self._worker.stop()
            self._reporter.event("draining", running=running)

    def _ended(self, report: RunReport) -> ExitStatus:
        left = report.unfinished or report.given_back
        status = ExitStatus.UNFINISHED if left else ExitStatus.DONE
        self._reporter.event("ended", exit_status=int(status), **asdict(report))
        return status


class Child:
    """One slot of a supervisor, and its process.

    Attributes:
        number: Number of the slot, from 1.
        status: The last reported status of its process.
        exit_status: Exit status of the last process that ended.
        problem: Permanent error that ended the last process, such as a missing table; None once the store
            has answered.
    """

    def __init__(self, number: int, command: Sequence[str]) -> None:
        """Start no process yet.

        Args:
            number: Number of the slot, from 1.
            command: Command line of the process.
        """
        self.number = number
        self.status: ProcessStatus | None = None
        self.exit_status: int | None = None
        self.problem: str | None = None
        self._command = command
        self._process: subprocess.Popen[str] | None = None
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._reader: Future[None] = Future()
        self._started_at = 0.0
        self._deaths = 0
        self._restart_at: float | None = float("inf")

    @property
    def is_over(self) -> bool:
        """Whether no process runs here or will start."""
        return self._process is None and self._restart_at is None

    @property
    def is_due(self) -> bool:
        """Whether it is time to start a process."""
        return self._restart_at is not None and time.monotonic() >= self._restart_at

    def start(self) -> int:
        """Start a process with its own connections and only its standard streams open; return its id.

        Raises:
            OSError, RuntimeError: If the system has no process, file or thread left for it.
        """
        process = subprocess.Popen(  # noqa: S603 - this interpreter, this command
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            # Ctrl-C on the terminal is for the supervisor, which passes it on.
            start_new_session=True,
        )
        self._reader = in_thread("freshq-lines", partial(self._read, process))
        if self._reader.done() and (error := self._reader.exception()) is not None:
            process.kill()  # nobody would read its lines
            process.communicate()
            raise error
        self._process, self._restart_at, self._started_at = process, None, time.monotonic()
        return process.pid

    def _read(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            self._lines.put(line)

    def allow(self) -> None:
        """Let the first process start, unless it has started or must not."""
        if self._restart_at == float("inf"):
            self._restart_at = 0.0

    def lines(self) -> list[str]:
        """Return the lines that the process has printed since the last call."""
        found = []
        with suppress(Empty):
            while True:
                found.append(self._lines.get_nowait())
        return found

    def send(self, message: ControlMessage) -> None:
        """Send a message. No further process starts here."""
        self._restart_at = None
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):  # it has just died; the next check sees that
                self._process.stdin.write(f"{message.value}\n")
                self._process.stdin.flush()

    def kill(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()

    def ended(self) -> int | None:
        """Return the exit status of a process that ended since the last call; None if none did."""
        if self._process is None or self._process.poll() is None:
            return None
        process, self._process = self._process, None
        wait([self._reader], LAST_LINES_SECONDS)
        self.exit_status = process.returncode
        with suppress(OSError):  # a message that it did not read
            process.stdin.close()  # type: ignore[union-attr]
        if self._reader.done() and process.stdout is not None:
            process.stdout.close()
        return self.exit_status

    def restart_later(self) -> float:
        """Plan the next process, and return the delay in seconds."""
        lived_seconds = time.monotonic() - self._started_at
        self._deaths = 1 if lived_seconds >= HEALTHY_SECONDS else self._deaths + 1
        seconds = RESTART_BACKOFF.delay_seconds(self._deaths, 0.5 + random.random() / 2)  # noqa: S311 - jitter
        self._restart_at = time.monotonic() + seconds
        return seconds


class Supervisor:
    """Keeps a number of processes running until they finish or a signal stops them."""

    def __init__(
        self, commands: Sequence[Sequence[str]], reporter: Reporter, control: ControlChannel
    ) -> None:
        """Start nothing yet.

        Args:
            commands: The command line of each process.
            reporter: Receives events.
            control: Ends the run.
        """
        self._children = [Child(number, command) for number, command in enumerate(commands, 1)]
        self._reporter = reporter
        self._control = control
        self._stage = Stage.WORKING
        self._kill_at = float("inf")

    def statuses(self) -> list[ProcessStatus]:
        """Return the last reported statuses of the processes."""
        return [child.status for child in self._children if child.status is not None]

    def run(self) -> int:
        """Supervise until every process has ended; return the combined exit status."""
        self._children[0].allow()  # a wrong runner is one error, not one error per process
        while not all(child.is_over for child in self._children):
            for child in self._children:
                self._tend(child)
            self._reporter.status(self.statuses())
            self._follow(self._control.receive(CHECK_SECONDS))
            if time.monotonic() >= self._kill_at:
                for child in self._children:
                    child.kill()
        status = exit_status_of([child.exit_status for child in self._children])
        self._reporter.event("all_ended", exit_status=status)
        return status

    def common_problem(self) -> str | None:
        """Return the error that ended every process, if it is permanent and the store never answered."""
        problems = [child.problem for child in self._children]
        return problems[0] if all(problem is not None for problem in problems) else None

    def _tend(self, child: Child) -> None:
        if child.is_due:
            self._start(child)
        exit_status = child.ended()
        for line in child.lines():
            self._pass_on(child, line)
        if exit_status is None:
            return
        child.status = None
        wrong_use = exit_status == ExitStatus.WRONG_USE
        restarts = self._stage is Stage.WORKING and exit_status != 0 and not wrong_use
        seconds = round(child.restart_later(), 3) if restarts else None
        self._reporter.event(
            "process_ended", process=child.number, exit_status=exit_status, restart_in_seconds=seconds
        )
        if wrong_use or self.common_problem() is not None:  # the next process would end the same way
            self._control.send(ControlMessage.DRAIN)

    def _start(self, child: Child) -> None:
        """Start the process of a child; plan the next try if the system is short of a resource."""
        try:
            pid = child.start()
        except (OSError, RuntimeError) as error:
            if not is_shortage(error):
                raise
            seconds = round(child.restart_later(), 3)
            self._reporter.event(
                "process_not_started", process=child.number, error=str(error), restart_in_seconds=seconds
            )
            return
        self._reporter.event("process_started", process=child.number, pid=pid)

    def _follow(self, stage: Stage) -> None:
        if stage is self._stage:
            return
        self._stage = stage
        if stage is Stage.STOPPING:
            self._kill_at = time.monotonic() + KILL_AFTER_SECONDS
        for child in self._children:
            child.send(ControlMessage.STOP if stage is Stage.STOPPING else ControlMessage.DRAIN)

    def _pass_on(self, child: Child, line: str) -> None:
        """Report an event of a process, under its number."""
        values = _event_of(line)
        event = values.pop("event")
        if event == "status":
            (status,) = values["processes"]
            pid, _ = status.pop("pid"), status.pop("process")
            child.status = ProcessStatus(child.number, pid, status)
            if child.status.takes_tasks:
                child.problem = None
            return
        if event == "ended" and values.get("lasting"):
            child.problem = str(values["error"])
        if event == "started":
            for each in self._children:
                each.allow()
        self._reporter.event(event, process=child.number, **values)


def _event_of(line: str) -> dict[str, Any]:
    """Parse a line as an event. Other lines come from the application."""
    try:
        values = json.loads(line)
    except ValueError:
        values = None
    known = values if isinstance(values, dict) else {}
    if "time" not in known or "process" in known or not isinstance(known.get("event"), str):
        return {"event": "output", "text": line.rstrip(os.linesep)}
    del known["time"]
    return known


def exit_status_of(statuses: Sequence[int | None]) -> int:
    """Return the worst of the exit statuses of several processes. None: it never started."""
    if ExitStatus.WRONG_USE in statuses:
        return int(ExitStatus.WRONG_USE)
    known = [status for status in statuses if status is not None]
    # A process that a signal killed left its tasks.
    return max((int(ExitStatus.UNFINISHED) if status < 0 else status for status in known), default=0)
