"""Polls a queue while a page is open, and sends each snapshot to every page."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from starlette.concurrency import run_in_threadpool

from freshq.cli.output import json_text
from freshq.errors import FreshqError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from freshq.cli.dashboard.snapshots import PageWatcher

logger = logging.getLogger(__name__)

# Snapshots in the chart of rates of a newly opened page.
KEPT_SNAPSHOTS: Final = 300
# Snapshots take at most this share of the time, so that a large or slow queue is read less often.
LARGEST_SHARE: Final = 0.2
# A page that receives nothing for this long reports a lost connection.
QUIET_SECONDS: Final = 15.0

SNAPSHOT: Final = "snapshot"
PROBLEM: Final = "problem"
HISTORY: Final = "history"


class Live:
    """Watches a queue in a thread while there are readers."""

    def __init__(self, watcher: PageWatcher, every_seconds: float) -> None:
        self._watcher = watcher
        self._every_seconds = every_seconds
        self._readers: set[asyncio.Queue[str | None]] = set()
        self._history: deque[dict[str, Any]] = deque(maxlen=KEPT_SNAPSHOTS)
        self._watching: asyncio.Task[None] | None = None
        self._at_once = asyncio.Event()
        self._closed = False

    def refresh(self) -> None:
        """Take a snapshot at once and restart the survey, after a change."""
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
            yield event(HISTORY, {"every_seconds": self._every_seconds, "rates": list(self._history)})
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
        try:
            snapshot = await run_in_threadpool(self._watcher.snapshot)
        except FreshqError as error:
            return event(PROBLEM, {"problem": str(error)})
        except Exception as error:
            # Otherwise pages would wait indefinitely without a reason.
            logger.exception("the dashboard failed to read the queue")
            return event(PROBLEM, {"problem": f"the dashboard failed: {type(error).__name__}: {error}"})
        self._history.append({"at_ms": round(snapshot.at * 1000), **snapshot.rates()})
        return event(SNAPSHOT, snapshot.as_json())


def _hand(reader: asyncio.Queue[str | None], text: str | None) -> None:
    """Hand a reader the latest event, and drop unread ones."""
    while not reader.empty():
        reader.get_nowait()
    reader.put_nowait(text)


def event(name: str, value: object) -> str:
    """Return a server-sent event. JSON has no line breaks, which would end the event."""
    return f"event: {name}\ndata: {json_text(value)}\n\n"
