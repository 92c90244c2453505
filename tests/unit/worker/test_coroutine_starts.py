"""Coroutines that are started on the loop of another thread: a burst wakes the loop once."""

import asyncio
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextvars import ContextVar
from typing import Any

import pytest

from freshq.model.answers import Busy
from freshq.worker.executor import NotStarted, started_on
from tests.support.patience import PATIENCE_SECONDS
from tests.support.worker_threads import wait_until

NAME: ContextVar[str] = ContextVar("NAME", default="none")


class Loop:
    """A loop in a thread, which can be held."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.woken = 0
        self._call = self.loop.call_soon_threadsafe
        self.thread.start()

    def get(self) -> asyncio.AbstractEventLoop:
        return self.loop

    def count(self, *arguments: Any, **options: Any) -> Any:
        self.woken += 1
        return self._call(*arguments, **options)

    def hold(self) -> threading.Event:
        """Let the loop wait until the event is set."""
        held, release = threading.Event(), threading.Event()

        def wait() -> None:
            held.set()
            assert release.wait(PATIENCE_SECONDS)

        self._call(wait)
        assert held.wait(PATIENCE_SECONDS)
        return release

    def close(self) -> None:
        self._call(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    own = Loop()
    monkeypatch.setattr(own.loop, "call_soon_threadsafe", own.count)
    yield own
    if not own.loop.is_closed():
        own.close()


def test_a_burst_wakes_the_loop_once_and_starts_in_order(own: Loop) -> None:
    started: list[int] = []

    async def work(number: int) -> int:
        started.append(number)
        await asyncio.sleep(0)
        if number == 3:
            raise ValueError("the fourth")
        return number

    release = own.hold()
    futures = [started_on(own.get, lambda number=number: work(number)) for number in range(50)]  # type: ignore[misc]
    assert (own.woken, started) == (1, [])
    release.set()
    answers = [future.exception(PATIENCE_SECONDS) or future.result() for future in futures]
    assert [*answers[:3], *answers[4:]] == [0, 1, 2, *range(4, 50)]
    assert isinstance(answers[3], ValueError)
    assert started == [*range(50)]
    assert started_on(own.get, lambda: work(7)).result(PATIENCE_SECONDS) == 7
    assert own.woken == 2


def test_every_coroutine_has_a_copy_of_the_context_of_its_start(own: Loop) -> None:
    async def name() -> str:
        found = NAME.get()
        NAME.set("changed")
        return found

    release, futures = own.hold(), []
    for each in ("first", "second"):
        token = NAME.set(each)
        futures.append(started_on(own.get, name))
        NAME.reset(token)
    release.set()
    assert [future.result(PATIENCE_SECONDS) for future in futures] == ["first", "second"]
    assert NAME.get() == "none"


@pytest.mark.parametrize("is_running", [False, True])
def test_a_cancelled_coroutine_ends(own: Loop, is_running: bool) -> None:
    happened: deque[str] = deque()

    async def work() -> None:
        happened.append("began")
        try:
            await asyncio.Event().wait()
        finally:
            happened.append("ended")

    release = own.hold()
    future = started_on(own.get, work)
    told: list[Any] = []
    future.add_done_callback(told.append)
    if is_running:
        release.set()
        wait_until(lambda: [*happened] == ["began"])
    assert future.cancel()
    assert told == [future]
    release.set()
    with pytest.raises(CancelledError):
        future.result(PATIENCE_SECONDS)
    wait_until(lambda: [*happened] == (["began", "ended"] if is_running else []))
    following = started_on(own.get, lambda: asyncio.sleep(0, "next"))
    assert following.result(PATIENCE_SECONDS) == "next"


def test_a_coroutine_that_cancels_itself(own: Loop) -> None:
    async def work() -> None:
        raise asyncio.CancelledError

    with pytest.raises(CancelledError):
        started_on(own.get, work).result(PATIENCE_SECONDS)


def test_a_loop_that_is_closed_or_was_not_started(own: Loop) -> None:
    def none() -> asyncio.AbstractEventLoop:
        raise OSError(24, "Too many open files")

    own.close()
    for get in (own.get, none):
        future = started_on(get, lambda: asyncio.sleep(0))
        error = future.exception(PATIENCE_SECONDS)
        assert isinstance(error, NotStarted)
        assert isinstance(error, Busy)
    assert not future.cancel()


def test_a_task_factory_that_fails_ends_the_run_and_the_next_one_starts(own: Loop) -> None:
    async def work() -> str:
        return "done"

    def refuse(*_: Any, **__: Any) -> Any:
        raise KeyError("no task today")

    release = own.hold()
    own.loop.set_task_factory(refuse)
    refused = [started_on(own.get, work) for _ in range(2)]
    release.set()
    for each in refused:
        assert isinstance(each.exception(PATIENCE_SECONDS), NotStarted)
    own.loop.set_task_factory(None)
    assert started_on(own.get, work).result(PATIENCE_SECONDS) == "done"
