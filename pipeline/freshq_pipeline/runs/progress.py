"""Progress of a run on a terminal, and the durations of its parts."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
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
POLL_SECONDS: Final = 0.5


class RunProgress:
    """Shows the current part of a run and Spark's progress in it, if the console is a terminal."""

    def __init__(self, console: Console) -> None:
        """Prepare the progress line for a console."""
        self._shown = console.is_terminal
        columns = (
            SpinnerColumn(), TextColumn("{task.fields[place]} {task.description}"), BarColumn(20),
            TextColumn("{task.fields[done]}"), TimeElapsedColumn(),
        )  # fmt: skip
        self._line = Progress(
            *columns, console=console, transient=True, refresh_per_second=4, disable=not self._shown
        )
        self._task = self._line.add_task("", total=None, place="", done="")
        self._ended = threading.Event()
        self._spark: SparkSession | None = None
        self._asking = threading.Lock()
        self._poll = threading.Thread(target=self._follow, name="progress", daemon=True)

    def __enter__(self) -> Self:
        """Start showing progress."""
        self._line.start()
        if self._shown:
            self._poll.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove the progress line."""
        self._ended.set()
        if self._shown:
            self._poll.join()
        self._line.stop()

    def begin(self, part: str, how: str = "") -> None:
        """Show that a part of `PARTS` begins, and how it is done."""
        place = f"{list(PARTS).index(part) + 1}/{len(PARTS)}"
        described = f"{PARTS[part]} {how}".rstrip()
        self._line.update(self._task, description=described, place=place, completed=0, done="")

    @contextmanager
    def follow(self, spark: SparkSession) -> Iterator[None]:
        """Show Spark's progress in the block; after the block, Spark may stop."""
        self._spark = spark
        try:
            yield
        finally:
            with self._asking:
                self._spark = None
            self.begin("stop")

    def _follow(self) -> None:
        while not self._ended.wait(POLL_SECONDS):
            with self._asking:
                if self._spark is not None:
                    self._line.update(self._task, **spark_work(self._spark))


def spark_work(spark: SparkSession) -> dict[str, Any]:
    """Return the `total` and `completed` tasks of Spark's active stages, and both as text in `done`."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
    found = [stage for stage in stages if stage is not None]
    total = sum(stage.numTasks for stage in found)
    if not total:
        return {"total": None, "done": ""}
    completed = sum(stage.numCompletedTasks for stage in found)
    return {"total": total, "completed": completed, "done": f"{completed} of {total}"}


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
