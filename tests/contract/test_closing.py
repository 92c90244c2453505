"""A queue that was closed refuses every verb until it is opened again."""

import asyncio
import getpass

import pytest

from freshq import AsyncQueue, Queue, Worker
from freshq.errors import RefusedError
from freshq.queue.core import Core, core_of
from freshq.stores.base import Finding
from freshq.stores.memory import MemoryStore
from tests.conftest import StoreUnderTest
from tests.support.verbs import VERBS, prepared


def test_every_verb_of_a_closed_queue_is_refused(store: StoreUnderTest) -> None:
    queue = store.queue()
    with queue:
        claim = prepared(queue)
    queue.close()
    for verb in VERBS.values():
        with pytest.raises(RefusedError):
            verb(queue, claim)
    with pytest.raises(RefusedError), queue.transaction():
        pass
    assert queue.name == queue.admin.config.name == "default"
    with store.queue() as again:
        again.complete(claim)


def test_a_failing_store_leaves_no_queue_half_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    queue, closed = Queue.memory(), []
    monkeypatch.setattr(Core, "flush", lambda _core: 1 / 0)
    monkeypatch.setattr(core_of(queue).store, "close", lambda: closed.append(1))
    with pytest.raises(ZeroDivisionError):
        queue.close()
    assert closed == [1]
    with pytest.raises(RefusedError):
        queue.get("work")


def test_an_async_queue_closes_its_queue() -> None:
    async def use(queue: AsyncQueue) -> None:
        async with queue:
            await queue.put("work")
        await queue.close()
        with pytest.raises(RefusedError):
            await queue.claim(wait_seconds=1)
        with pytest.raises(RefusedError):
            await queue.admin.recover()

    asyncio.run(use(AsyncQueue.memory()))


def test_a_worker_leaves_its_queue_open(store: StoreUnderTest) -> None:
    queue = store.queue()
    queue.put("work", task_id="a")
    worker = Worker(queue, lambda task: task.payload, idle_exit_seconds=0)
    worker.run()
    assert queue.stats().success == 1
    queue.close()
    with pytest.raises(RefusedError):
        worker.run()


def test_a_store_knows_who_uses_it_and_says_what_stays_of_deleted_tasks(store: StoreUnderTest) -> None:
    with store.queue() as queue:
        opened = core_of(queue).store
        assert getpass.getuser() in opened.caller() or "arn:aws" in opened.caller()
        found = list(opened.erase("default", ("no-such-task",), None))
    assert all(isinstance(each, Finding) and each.text for each in found)
    assert bool(found) is not isinstance(opened, MemoryStore)
