"""The verbs through `AsyncQueue`: the same tests, on a queue whose every call is a coroutine."""

import asyncio
import inspect
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from freshq import AsyncQueue, Queue
from freshq.queue.core import core_of
from freshq.stores.memory import MemoryStore
from freshq.stores.sql import SqlStore
from tests.conftest import StoreUnderTest
from tests.contract.test_verbs import *  # noqa: F403 - every test of the verbs runs here too
from tests.contract.test_wait import *  # noqa: F403 - and those of waiting
from tests.support.patience import PATIENCE_SECONDS


class Blocking:
    """Calls verbs, each as a coroutine on a loop, and waits for it."""

    def __init__(self, verbs: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._verbs = verbs
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        if name == "_core":
            return core_of(self._verbs.queue)
        if name == "admin":
            return Blocking(self._verbs.admin, self._loop)
        verb = getattr(self._verbs, name)
        if inspect.isasyncgenfunction(verb):
            return lambda *a, **k: self._iterated(verb(*a, **k))
        if not inspect.iscoroutinefunction(verb):
            return verb
        return lambda *a, **k: self._waited(verb(*a, **k))

    def end(self) -> None:
        """End its threads."""
        self._waited(self._verbs.close())

    def _iterated(self, found: Any) -> Iterator[Any]:
        while (each := self._waited(anext(found, None))) is not None:
            yield each

    def _waited(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE_SECONDS)


@dataclass
class AsyncStoreUnderTest(StoreUnderTest):
    """A store with queues whose verbs are coroutines."""

    loop: asyncio.AbstractEventLoop | None = None
    opened: list[Blocking] = field(default_factory=list)

    def queue(self, *, shards: int | None = None, **options: Any) -> Queue:
        assert self.loop is not None
        self.opened.append(Blocking(AsyncQueue(super().queue(shards=shards, **options)), self.loop))
        return cast("Queue", self.opened[-1])


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, loop: asyncio.AbstractEventLoop) -> Iterator[StoreUnderTest]:
    if request.param == "memory":
        memory = MemoryStore()
        store = AsyncStoreUnderTest("memory", lambda _shards: memory, loop=loop)
    else:
        engine = request.getfixturevalue("sqlite_engine")
        store = AsyncStoreUnderTest("sqlite", lambda _shards: SqlStore(engine), loop=loop)
    yield store
    for queue in store.opened:
        queue.end()
