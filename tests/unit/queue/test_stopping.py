"""Worker, Scheduler and Relay end in the same ways: by `stop`, by `until`, and when idle."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest

from freshq import Queue, StoreError, Worker
from freshq.feeds import Every, Relay, Schedule, Scheduler
from tests.support.patience import PATIENCE_SECONDS
from tests.support.readings import total, within_seconds

Runs: TypeAlias = Worker | Scheduler | Relay


def worker(queue: Queue) -> Runs:
    return Worker(queue, lambda _task: None, poll_seconds=0.01)


def scheduler(queue: Queue) -> Runs:
    return Scheduler(queue, [Schedule.of("often", Every(0.02), "work")])


def relay(queue: Queue) -> Runs:
    return Relay(queue, Queue.memory(), poll_seconds=0.01)


each = pytest.mark.parametrize("make", [worker, scheduler, relay])


def in_thread(run: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=run)
    thread.start()
    return thread


@each
def test_stop_of_another_thread_ends_it(make: Callable[[Queue], Runs]) -> None:
    runs = make(Queue.memory())
    thread = in_thread(runs.run)
    runs.stop()
    thread.join(PATIENCE_SECONDS)

    assert not thread.is_alive()


@each
def test_a_stop_is_final(make: Callable[[Queue], Runs]) -> None:
    queue = Queue.memory()
    queue.put("work")
    runs = make(queue)
    runs.stop()
    for _ in range(2):
        runs.run()

    assert total(queue) == queue.stats().pending == 1


@each
def test_a_signal_handler_may_stop_it(make: Callable[[Queue], Runs]) -> None:
    """It may interrupt the thread that runs anywhere, also in its wait."""
    runs = make(Queue.memory())
    before = signal.signal(signal.SIGUSR1, lambda *_: runs.stop())
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
    timer.start()
    give_up = time.monotonic() + PATIENCE_SECONDS
    try:
        runs.run(lambda: time.monotonic() > give_up)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)

    assert time.monotonic() < give_up


@each
@pytest.mark.parametrize("is_time", [True, False])
def test_until_is_a_time_of_the_queues_clock_or_a_condition(
    make: Callable[[Queue], Runs], *, is_time: bool
) -> None:
    clock = [1000.0]
    runs = make(Queue.memory(clock=lambda: clock[0]))
    thread = in_thread(lambda: runs.run(1001.0 if is_time else lambda: clock[0] > 1000))
    thread.join(0.05)
    running, clock[0] = thread.is_alive(), 1001.0
    thread.join(PATIENCE_SECONDS)

    assert running
    assert not thread.is_alive()


def test_a_scheduler_whose_condition_the_store_does_not_answer_asks_again() -> None:
    answers: Iterator[bool | StoreError] = iter([StoreError("down"), False, True])

    def until() -> bool:
        if isinstance(answer := next(answers), StoreError):
            raise answer
        return answer

    scheduler(Queue.memory()).run(until)
    assert list(answers) == []


def test_a_scheduler_fires_until_then() -> None:
    queue = Queue.memory()
    scheduler(queue).run(lambda: total(queue) >= 3)

    assert total(queue) >= 3


def test_a_relay_ends_when_idle() -> None:
    queue, destination = Queue.memory(), Queue.memory()
    queue.put("work")
    runs = Relay(queue, destination, poll_seconds=0.01, idle_exit_seconds=0.2)
    thread = in_thread(runs.run)
    assert within_seconds(PATIENCE_SECONDS, lambda: total(destination) == 1)
    queue.put("more")
    thread.join(PATIENCE_SECONDS)

    assert total(destination) == 2
