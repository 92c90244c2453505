"""`AsyncMatchQueue`: it has the verbs of `MatchQueue`, and a cancelled call strands no resource."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from freshq.errors import RefusedError, Unreachable
from freshq.matching import AsyncMatchQueue, MatchQueue, ResourceStatus
from freshq.matching import asyncio as matching_asyncio
from freshq.matching.stores.base import Change
from freshq.matching.stores.memory import MemoryMatchStore
from tests.support.patience import PATIENCE_SECONDS
from tests.support.refusals import refused

SPANISH = {"language": "Spanish"}


class HeldStore(MemoryMatchStore):
    """A store whose commits wait, once the test says so, until it lets them go on."""

    def __init__(self) -> None:
        super().__init__()
        self.committing, self.may_go_on = threading.Event(), threading.Event()
        self.may_go_on.set()
        self.fails = False

    def hold(self) -> None:
        self.committing.clear()
        self.may_go_on.clear()

    def commit(self, change: Change) -> None:
        if self.fails:
            raise Unreachable("no answer")
        self.committing.set()
        assert self.may_go_on.wait(PATIENCE_SECONDS)
        super().commit(change)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_it_is_opened_and_used_like_a_match_queue(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matching_asyncio, "PAGE", 2)

    async def live() -> None:
        url = f"sqlite:///{tmp_path}/agents.db"
        async with AsyncMatchQueue.memory() if store == "memory" else AsyncMatchQueue.sql(url) as queue:
            await queue.create_table()
            for name in ("ann", "bob", "cy"):
                await queue.register(name, attributes=SPANISH)
            assert [each.resource_id async for each in queue.resources("AVAILABLE")] == ["ann", "bob", "cy"]
            assert await queue.request(SPANISH, caller_id="zoe") is None
            assert [each.caller_id async for each in queue.callers()] == ["zoe"]
            assert (await queue.offer("ann")).caller_id == "zoe"
            served = await queue.request(SPANISH, caller_id="zoe")
            assert served is not None
            assert (await queue.release(await queue.extend(served))).status is ResourceStatus.QUEUED
            (match,) = await queue.match(SPANISH)
            assert await queue.admin.held("ann", match.token) is not None
            await queue.complete(match)
            assert await queue.admin.recover() == await queue.waiting() == 0
        with pytest.raises(RefusedError):
            await queue.depths()

    asyncio.run(live())


def test_only_a_match_queue_will_do() -> None:
    with refused("queue"):
        AsyncMatchQueue("sqlite://")  # type: ignore[arg-type]  # the mistake under test


def cancelled(store: HeldStore, call: Callable[[AsyncMatchQueue], Awaitable[object]]) -> None:
    """Cancel a call while its commit is under way, which then goes on."""
    MatchQueue(store).register("ann", attributes=SPANISH)
    MatchQueue(store).offer("ann")

    async def cancel() -> None:
        async with AsyncMatchQueue(MatchQueue(store)) as queue:
            store.hold()
            task = asyncio.ensure_future(call(queue))
            assert await asyncio.to_thread(store.committing.wait, PATIENCE_SECONDS)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            store.may_go_on.set()

    asyncio.run(cancel())


@pytest.mark.parametrize(
    "call", [lambda queue: queue.match(SPANISH), lambda queue: queue.request(SPANISH, caller_id="zoe")]
)
def test_the_match_of_a_cancelled_call_is_released(
    call: Callable[[AsyncMatchQueue], Awaitable[object]],
) -> None:
    store = HeldStore()
    cancelled(store, call)
    ann = store.get("ann")
    assert ann is not None
    assert ann.status is ResourceStatus.QUEUED
    assert store.caller("zoe") is None


def test_a_match_that_cannot_be_released_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = HeldStore()
    give_back = MatchQueue.release

    def fail(queue: MatchQueue, match: object) -> object:
        store.fails = True
        return give_back(queue, match)  # type: ignore[arg-type]

    monkeypatch.setattr(MatchQueue, "release", fail)
    cancelled(store, lambda queue: queue.match(SPANISH))
    assert "resource ann stays MATCHED until its lease expires: no answer" in caplog.text
