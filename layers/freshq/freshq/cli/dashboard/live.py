"""Polls a queue while a page is open, and sends each snapshot to every page."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from starlette.concurrency import run_in_threadpool

from freshq.cli.commands.tasks import cause_of
from freshq.cli.dashboard.snapshots import point_of
from freshq.cli.output import counted, json_text
from freshq.errors import FreshqError, RefusedError
from freshq.worker.run import in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from freshq.cli.dashboard.snapshots import PageWatcher
    from freshq.model.task import Task
    from freshq.queue.base import BaseQueue

logger = logging.getLogger(__name__)

# How far back the charts reach, and the steps, each of which keeps its last figures.
KEPT_SECONDS: Final = 3600
STEP_SECONDS: Final = 5
TREND_STEP_SECONDS: Final = 60
# While no page is open, the figures of the charts are read this often.
SAMPLE_SECONDS: Final = 10.0
# Figures further apart than this many samples are not joined: nobody read the queue in between.
GAP_SAMPLES: Final = 6
# Snapshots take at most this share of the time, so that a large or slow queue is read less often.
LARGEST_SHARE: Final = 0.2
# A page that receives nothing for this long reports a lost connection.
QUIET_SECONDS: Final = 15.0

SNAPSHOT: Final = "snapshot"
PROBLEM: Final = "problem"
HISTORY: Final = "history"


class LastHour:
    """The figures of a queue in the last hour, in bounded memory."""

    def __init__(self) -> None:
        self._points: deque[dict[str, Any]] = deque(maxlen=KEPT_SECONDS // STEP_SECONDS + 1)

    def add(self, point: dict[str, Any]) -> None:
        """Take the current figures, replacing figures of the same step."""
        if self._points and _step(point, STEP_SECONDS) == _step(self._points[-1], STEP_SECONDS):
            self._points.pop()
        self._points.append(point)
        while point["at_ms"] - self._points[0]["at_ms"] > 1000 * KEPT_SECONDS:
            self._points.popleft()

    def points(self) -> list[dict[str, Any]]:
        """Return the figures, the oldest first."""
        return [*self._points]

    def trend(self) -> list[int | None]:
        """Return the number of waiting tasks at the end of each minute that was read; None if not counted."""
        by_minute = {_step(point, TREND_STEP_SECONDS): point["waiting"] for point in self._points}
        return [*by_minute.values()]


def _step(point: dict[str, Any], seconds: int) -> int:
    return int(point["at_ms"]) // (1000 * seconds)


class Redrive:
    """Returns all dead letters, or those with one cause, to their lines, in a separate thread.

    Attributes:
        said: Its result for the pages; None while it runs.
    """

    def __init__(
        self, queue: BaseQueue, cause: tuple[str, str | None] | None, total: int, *, as_new: bool
    ) -> None:
        """Start.

        Args:
            queue: The queue.
            cause: The cause; None for all dead letters.
            total: Approximate number of dead letters.
            as_new: Whether they return as if they were put now, including stale ones.
        """
        self.said: str | None = None
        self._queue = queue
        self._cause = cause
        self._total = total
        self._as_new = as_new
        self._seen = 0
        in_thread("freshq-redrive", self._run)

    def as_json(self) -> dict[str, Any]:
        """Return the progress in the form that pages read."""
        error, kind = self._cause or (None, None)
        total = max(self._total, self._seen)
        return {"error": error, "kind": kind, "seen": self._seen, "total": total, "said": self.said}

    def _selects(self, task: Task) -> bool:
        selected = self._cause is None or cause_of(task) == self._cause
        self._seen += selected
        return selected

    def _run(self) -> None:
        try:
            moved = self._queue.redrive(where=self._selects, as_new=self._as_new)
        except Exception as error:
            if not isinstance(error, FreshqError):
                logger.exception("the dashboard failed to redrive dead letters")
            self.said = f"The redrive ended after {counted(self._seen, 'dead letter')}: {error}"
            return
        stay = f" {self._seen - moved:,} stay, because they are stale." if moved < self._seen else ""
        self.said = f"{counted(moved, 'dead letter')} returned to their lines.{stay}"


class Live:
    """Watches a queue in a thread while there are readers."""

    def __init__(self, watcher: PageWatcher, every_seconds: float) -> None:
        self._watcher = watcher
        self._every_seconds = every_seconds
        self._readers: set[asyncio.Queue[str | None]] = set()
        self._last_hour = LastHour()
        # The watcher takes one snapshot or sample at a time.
        self._reading = asyncio.Lock()
        self._watching: asyncio.Task[None] | None = None
        self._at_once = asyncio.Event()
        self._closed = False
        self._redrive: Redrive | None = None
        # The result of a redrive that the surveys already reflect.
        self._said: str | None = None

    def redrive(self, queue: BaseQueue, cause: tuple[str, str | None] | None, *, as_new: bool) -> None:
        """Begin to redrive dead letters; the snapshots report the progress.

        Args:
            queue: The queue.
            cause: Their cause; None for all.
            as_new: Whether they return as if they were put now.

        Raises:
            RefusedError: If the last redrive has not ended.
        """
        if self._redrive is not None and self._redrive.said is None:
            raise RefusedError("a redrive is under way; wait until it has ended")
        self._redrive = Redrive(queue, cause, self._watcher.causes.count(cause), as_new=as_new)

    def redriven(self) -> dict[str, Any] | None:
        """Return the progress of the last redrive; None if there was none."""
        return None if self._redrive is None else self._redrive.as_json()

    def trend(self) -> list[int | None]:
        """Return the number of waiting tasks in the last hour, a figure a minute."""
        return self._last_hour.trend()

    async def sample(self) -> None:
        """Keep the current figures for the charts; while a page is open, its snapshots do."""
        if self._watching is not None or self._closed:
            return
        async with self._reading:
            try:
                self._last_hour.add(await run_in_threadpool(self._watcher.sample))
            except FreshqError:  # a gap in the charts; an open page shows the problem
                return

    def refresh(self) -> None:
        """After a change, take a snapshot immediately and restart the survey."""
        self._watcher.restart_survey()
        self._at_once.set()

    def close(self) -> None:
        """End all streams."""
        self._closed = True
        self._at_once.set()
        for reader in self._readers:
            _hand(reader, None)

    async def events(self) -> AsyncIterator[str]:
        """Yield server-sent events: the rates so far, then each snapshot, or the problem."""
        reader: asyncio.Queue[str | None] = asyncio.Queue(maxsize=1)
        self._readers.add(reader)
        try:
            gap_seconds = GAP_SAMPLES * max(self._every_seconds, SAMPLE_SECONDS)
            known = {"every_seconds": self._every_seconds, "gap_seconds": gap_seconds}
            yield event(HISTORY, known | {"rates": self._last_hour.points()})
            if self._watching is None:
                self._watching = asyncio.create_task(self._watch_while_read())
            else:
                self._at_once.set()
            while not self._closed:
                try:
                    text = await asyncio.wait_for(reader.get(), QUIET_SECONDS)
                except TimeoutError:
                    text = ": nothing new\n\n"
                if text is None:
                    return
                yield text
        finally:
            self._readers.discard(reader)

    async def _watch_while_read(self) -> None:
        try:
            while self._readers and not self._closed:
                began = monotonic()
                text = await self._snapshot()
                for reader in self._readers:
                    _hand(reader, text)
                took_seconds = monotonic() - began
                self._at_once.clear()
                with suppress(TimeoutError):
                    pause = max(self._every_seconds - took_seconds, took_seconds * (1 / LARGEST_SHARE - 1))
                    await asyncio.wait_for(self._at_once.wait(), pause)
        finally:
            self._watching = None

    async def _snapshot(self) -> str:
        redrive = self.redriven()
        if redrive is not None and redrive["said"] != self._said:
            self._said = redrive["said"]
            self._watcher.restart_survey()
        try:
            async with self._reading:
                snapshot = await run_in_threadpool(self._watcher.snapshot)
        except FreshqError as error:
            return event(PROBLEM, {"problem": str(error)})
        except Exception as error:
            # Otherwise pages would wait indefinitely without a reason.
            logger.exception("the dashboard failed to read the queue")
            return event(PROBLEM, {"problem": f"the dashboard failed: {type(error).__name__}: {error}"})
        self._last_hour.add(point_of(snapshot))
        return event(SNAPSHOT, snapshot | {"redrive": redrive})


def _hand(reader: asyncio.Queue[str | None], text: str | None) -> None:
    """Hand a reader the latest event, and drop unread ones."""
    while not reader.empty():
        reader.get_nowait()
    reader.put_nowait(text)


def event(name: str, value: object) -> str:
    """Return a server-sent event. JSON has no line breaks, which would end the event."""
    return f"event: {name}\ndata: {json_text(value)}\n\n"
