"""All that accept a queue also accept an AsyncQueue, and refuse other objects immediately."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from freshq import AsyncQueue, Handlers, MatchQueue, Queue, Task, Worker
from freshq.feeds import Every, Relay, Schedule, Scheduler
from freshq.feeds.relay import TaskCopy
from freshq.matching import AsyncMatchQueue
from freshq.testing import assert_nothing_put, assert_put, drain

handlers = Handlers()


@handlers.on("mail")
def mail(_task: Task, payload: str) -> str:
    return payload


RECEIPT = mail.put(Queue.memory(), "hello")
NO_QUEUES = (None, "sqlite:///tasks.db", MatchQueue.memory(), AsyncMatchQueue(MatchQueue.memory()), Queue)
TAKES: dict[str, Callable[[Any], object]] = {
    "worker": lambda queue: Worker(queue, print),
    "scheduler": lambda queue: Scheduler(queue, [Schedule.of("prices", Every(60), None)]),
    "relay source": lambda queue: Relay(queue, Queue.memory()),
    "relay destination": lambda queue: Relay(Queue.memory(), queue),
    "copy source": lambda queue: TaskCopy(queue, Queue.memory()),
    "copy destination": lambda queue: TaskCopy(Queue.memory(), queue),
    "assert_nothing_put": assert_nothing_put,
    "drain": lambda queue: drain(queue, print),
}
ONLY_QUEUES: dict[str, Callable[[Any], object]] = {
    "assert_put": assert_put,
    "put": lambda queue: mail.put(queue, "hello"),
    "put_many": lambda queue: mail.put_many(queue, ["hello"]),
    "wait": RECEIPT.wait,
    "async": AsyncQueue,
}


@pytest.mark.parametrize("take", TAKES)
@pytest.mark.parametrize("make", [Queue.memory, AsyncQueue.memory])
def test_it_takes_queues_of_both_kinds(take: str, make: Callable[[], Any]) -> None:
    TAKES[take](make())


@pytest.mark.parametrize("take", [*TAKES, *ONLY_QUEUES])
@pytest.mark.parametrize("given", NO_QUEUES, ids=lambda given: type(given).__name__)
def test_anything_else_is_refused_at_once(take: str, given: object) -> None:
    with pytest.raises(ValueError, match=r"^(queue|source|destination): must be a (q|Q)ueue"):
        {**TAKES, **ONLY_QUEUES}[take](given)


def test_what_takes_an_async_queue_works_with_it() -> None:
    queue, destination = AsyncQueue.memory(), AsyncQueue.memory()

    async def put() -> None:
        await queue.put("hello", task_id="a", group="desk")

    asyncio.run(put())
    assert assert_put(queue, group="desk").task_id == "a"
    relay = Relay(queue, destination, idle_exit_seconds=0)
    assert relay.move() == 1
    assert assert_put(destination, task_id="a").payload == "hello"
    report = TaskCopy(destination, copied := AsyncQueue.memory()).run()
    assert sum(report.copied.values()) == 1
    assert assert_put(copied, task_id="a")
    scheduler = Scheduler(copied, [Schedule.of("prices", Every(60), None)])
    assert scheduler.fire() == 0
