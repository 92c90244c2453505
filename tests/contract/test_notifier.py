"""Changes that wake callers who wait for tasks, on every store: polls would be too late here."""

import asyncio
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

import pytest

from freshq import AsyncQueue, Claim, Queue, Settlement, Worker
from freshq.queue import polling
from freshq.stores.notifier import Signals
from tests.conftest import StoreUnderTest
from tests.support.patience import PATIENCE_SECONDS
from tests.support.worker_threads import wait_until

NEVER_SECONDS = 100 * PATIENCE_SECONDS


class Held:
    """A queue of this process with a task that nobody can claim until the test acts."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    def claim(self) -> Claim:
        self.queue.put("work")
        return self.queue.claim()[0]

    def put(self) -> Callable[[], object]:
        return lambda: self.queue.put("work")

    def put_over(self) -> Callable[[], object]:
        return lambda: self.queue.put("work", task_id="a", on_conflict="update")

    def put_for_later(self) -> Callable[[], object]:
        return lambda: self.queue.put("work", delay_seconds=0.2)

    def release(self) -> Callable[[], object]:
        claim = self.claim()
        return lambda: self.queue.release(claim)

    def retry(self) -> Callable[[], object]:
        claim = self.claim()
        return lambda: self.queue.retry(claim, delay_seconds=0.2)

    def release_many(self) -> Callable[[], object]:
        claim = self.claim()
        return lambda: self.queue.settle_many([Settlement.release(claim)])

    def redrive(self) -> Callable[[], object]:
        self.queue.fail(self.claim())
        return self.queue.redrive

    def redrive_one(self) -> Callable[[], object]:
        task = self.queue.fail(self.claim())
        return lambda: self.queue.redrive([task.task_id])

    def resume(self) -> Callable[[], object]:
        self.queue.pause()
        self.queue.put("work")
        return self.queue.resume

    def expire(self) -> Callable[[], object]:
        self.queue.put("work")
        self.queue.claim(lease_seconds=0.5)
        return lambda: None


WAYS = [name for name in vars(Held) if not name.startswith("_") and name != "claim"]


@pytest.fixture(params=WAYS)
def act(store: StoreUnderTest, request: pytest.FixtureRequest) -> Callable[[], object]:
    """Return a function that makes a task claimable, now or soon."""
    way: Callable[[], Callable[[], object]] = getattr(Held(store.queue(clock=time.time)), request.param)
    return way()


def test_an_idle_worker_starts_it(store: StoreUnderTest, act: Callable[[], object]) -> None:
    starts: SimpleQueue[object] = SimpleQueue()
    queue = store.queue(clock=time.time)
    worker = Worker(queue, lambda task: starts.put(task.payload), poll_seconds=NEVER_SECONDS)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        wait_until(lambda: worker.status().store_answers)
        act()
        assert starts.get(timeout=PATIENCE_SECONDS) == "work"
    finally:
        worker.stop()
        thread.join(PATIENCE_SECONDS)


def test_a_waiting_claim_takes_it(
    store: StoreUnderTest, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "CLAIM_SECONDS", NEVER_SECONDS)
    acts = threading.Timer(0.1, act)
    acts.start()
    with store.queue(clock=time.time) as queue:
        assert [claim.task.payload for claim in queue.claim(wait_seconds=PATIENCE_SECONDS)] == ["work"]
    acts.join()


async def _claimed(queue: Queue, act: Callable[[], object]) -> object:
    async with AsyncQueue(queue) as waiting:
        claims = asyncio.create_task(waiting.claim(wait_seconds=PATIENCE_SECONDS))
        await asyncio.sleep(0.1)
        await asyncio.to_thread(act)
        return [claim.task.payload for claim in await claims]


def test_a_waiting_coroutine_takes_it(
    store: StoreUnderTest, act: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "CLAIM_SECONDS", NEVER_SECONDS)
    assert asyncio.run(_claimed(store.queue(clock=time.time), act)) == ["work"]


def test_the_end_of_a_task_ends_the_wait_for_it(
    store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(polling, "FIRST_INTERVAL_SECONDS", NEVER_SECONDS)
    queue, other = store.queue(), store.queue()
    queue.put_many([{"payload": name, "task_id": name} for name in "abc"])
    claims = {claim.task.task_id: claim for claim in other.claim(3)}
    ends = [
        lambda: other.complete(claims["b"]),
        lambda: other.settle_many([Settlement.complete(claims["a"])]),
        lambda: other.cancel("c", force=True),
    ]
    order = []
    settles = threading.Timer(0.1, ends.pop(0))
    settles.start()
    for task in queue.wait_many("abc".partition("b"), timeout_seconds=PATIENCE_SECONDS):
        order.append(task.task_id)
        settles.join()
        if ends:
            settles = threading.Timer(0.1, ends.pop(0))
            settles.start()
    assert order == ["b", "a", "c"]
    assert asyncio.run(AsyncQueue(queue).wait("c")).task_id == "c"


def test_a_forked_child_forgets_the_waiting_threads_in_its_memory() -> None:
    signals = Signals()
    line, awaited = signals.line("queue"), signals.ends("queue").of(["a"])
    line.waiters = 1
    signals.forget_threads()
    signals.ends("queue").tell(["a"])
    assert (line.waiters, awaited.take()) == (0, [])
