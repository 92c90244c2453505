"""Progress of a run on a terminal, and the durations of its parts."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from freshq_pipeline.errors import PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType
    from typing import Self

    from pyspark.sql import SparkSession
    from rich.console import Console


# The parts of a run in order, as shown.
PARTS: Final = {
    "start": "starting Spark",
    "read": "reading the new files",
    "steps": "ordering the events of each task",
    "tasks": "computing the tasks, with inversions",
    "minutes and others": "computing the minutes and all other tables",
    "stop": "stopping Spark",
    "report": "writing the report",
}
REPLAY_PARTS: Final = {
    **{part: text for part, text in PARTS.items() if part not in ("stop", "report")},
    "replay": "simulating the scenarios",
    "stop": PARTS["stop"],
    "report": PARTS["report"],
}
# A stream repeats the parts from reading to the report for each batch.
IDLE: Final = "wait"
STREAM_PARTS: Final = {"start": PARTS["start"], IDLE: "looking for new files", **PARTS}
POLL_SECONDS: Final = 0.5
# Interval of progress in a log.
LOG_SECONDS: Final = 30.0


class RunProgress:
    """Shows the part of a command and Spark's progress in it: on a terminal, or in a log every 30 s."""

    def __init__(self, console: Console, *, logs: bool = True, parts: Mapping[str, str] = PARTS) -> None:
        """Prepare the progress line.

        Args:
            console: Where to show progress.
            logs: Whether to log progress if the console is no terminal.
            parts: The parts of the command in order, as shown.
        """
        self._console, self._logs = console, logs and not console.is_terminal
        self._parts, self._idle = parts, False
        self._logged_at = time.monotonic()
        self._stages = StageClock()
        columns = (
            SpinnerColumn(), TextColumn("{task.fields[place]} {task.description}"), BarColumn(20),
            TextColumn("{task.fields[done]}"), TimeElapsedColumn(),
        )  # fmt: skip
        self._line = Progress(
            *columns, console=console, transient=True, refresh_per_second=4, disable=not console.is_terminal
        )
        self._task = self._line.add_task("", total=None, place="", done="")
        self._ended = threading.Event()
        self._spark: SparkSession | None = None
        self._asking = threading.Lock()
        self._poll = threading.Thread(target=self._follow, name="progress", daemon=True)

    def __enter__(self) -> Self:
        """Start showing progress."""
        self._line.start()
        self._poll.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the progress line."""
        self._ended.set()
        self._poll.join()
        self._line.stop()

    def begin(self, part: str, how: str = "") -> None:
        """Show that a part begins, and how it is executed."""
        self._idle = part == IDLE
        place = f"{list(self._parts).index(part) + 1}/{len(self._parts)}"
        described = f"{self._parts[part]} {how}".rstrip()
        self._line.update(self._task, description=described, place=place, completed=0, done="")

    @contextmanager
    def follow(self, spark: SparkSession) -> Iterator[None]:
        """Show Spark's progress in the block; after the block, Spark may stop."""
        before, self._spark = self._spark, spark
        try:
            yield
        finally:
            with self._asking:
                self._spark = before
            if before is None:
                self.begin("stop")

    def _show_work(self, spark: SparkSession) -> None:
        from freshq_pipeline.spark.failures import is_of_connection

        try:
            self._line.update(self._task, **self._stages.work(spark))
        except Exception as error:
            if not is_of_connection(error):
                raise
            self._spark = None  # Java has ended; the command will notice

    def _follow(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            with self._asking:
                if self._spark is not None:
                    self._show_work(self._spark)
            # A stream may wait for days.
            if self._logs and not self._idle and time.monotonic() - self._logged_at >= LOG_SECONDS:
                self._logged_at = time.monotonic()
                part = self._line.tasks[self._task]
                text = f"{PREFIX}{part.fields['place']} {part.description} {part.fields['done']}".rstrip()
                self._console.print(text, soft_wrap=True, markup=False, highlight=False)


@dataclass(slots=True)
class StageClock:
    """Measures how fast Spark completes the tasks of its active stages.

    Attributes:
        stages: Ids of the stages that were active at the last look.
        since: Monotonic time at which they were first seen.
    """

    stages: list[int] = field(default_factory=list)
    since: float = 0.0

    def work(self, spark: SparkSession) -> dict[str, Any]:
        """Return the `total` and `completed` tasks of the active stages, and both in words in `done`."""
        tracker, now = spark.sparkContext.statusTracker(), time.monotonic()
        active = sorted(tracker.getActiveStageIds())
        if active != self.stages:
            self.stages, self.since = active, now
        found = [stage for stage in map(tracker.getStageInfo, active) if stage is not None]
        total = sum(stage.numTasks for stage in found)
        if not total:
            return {"total": None, "done": ""}
        completed = sum(stage.numCompletedTasks for stage in found)
        done = f"stage {active[-1]}: {completed} of {total} tasks, {completed / total:.0%}"
        if completed:
            left_seconds = (now - self.since) * (total - completed) / completed
            done += f", about {left_seconds:.0f} s left"
        return {"total": total, "completed": completed, "done": done}


@dataclass(slots=True)
class Stopwatch:
    """Measures the parts of a run.

    Attributes:
        begun: Called with the name of each part when it starts.
        seconds: Duration of each part, by name.
    """

    begun: Callable[[str], None] = lambda _name: None
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measure the duration of a block."""
        self.begun(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = round(time.perf_counter() - start, 3)
