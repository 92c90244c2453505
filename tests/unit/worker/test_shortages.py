"""A worker continues after a temporary lack of threads or file descriptors."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from freshq import Handlers, Queue, Task, Worker
from freshq.cli.commands.supervisor import Child
from freshq.errors import StoreError, is_shortage
from freshq.policy.retry import Backoff
from freshq.telemetry import Outcome, RunReport
from freshq.worker import loop
from tests.support.patience import PATIENCE_SECONDS
from tests.support.worker_threads import wait_until

NO_THREAD = "can't start new thread"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CLAIM_BACKOFF", "BUSY_BACKOFF"):
        monkeypatch.setattr(loop, name, Backoff(0.01, 0.05))


class Threads:
    """Refuses threads by the beginning of their name while `refuses` is set; counts the refusals."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.refuses = True
        self.refused = 0
        self._start = threading.Thread.start

    def start(self, thread: threading.Thread) -> None:
        if self.refuses and thread.name.startswith(self.name):
            self.refused += 1
            raise RuntimeError(NO_THREAD)
        self._start(thread)


@contextmanager
def refusing(monkeypatch: pytest.MonkeyPatch, name: str) -> Iterator[Threads]:
    threads = Threads(name)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", lambda thread: threads.start(thread))  # noqa: PLW0108 - a test replaces it
        yield threads


@contextmanager
def running(worker: Worker) -> Iterator[list[RunReport]]:
    """Run a worker in a thread for the block; raise its error."""
    reports: list[RunReport] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            reports.append(worker.run())
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    thread = threading.Thread(target=run, name="the test's worker")
    thread.start()
    try:
        yield reports
    finally:
        worker.stop()
        thread.join(PATIENCE_SECONDS)
    assert not errors, errors


def handlers_of(*, is_async: bool) -> Handlers:
    handlers = Handlers()

    def work(task: Task) -> Any:
        return task.payload

    async def work_later(task: Task) -> Any:
        await asyncio.sleep(0)
        return task.payload

    handlers.on("a")(work_later if is_async else work)
    return handlers


NAMES = ["freshq-run", "freshq-handlers", "freshq-leases", "freshq-upkeep", "freshq-settle"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("is_async", [False, True])
def test_a_worker_goes_on_when_there_are_threads_again(
    monkeypatch: pytest.MonkeyPatch, name: str, is_async: bool
) -> None:
    queue = Queue.memory()
    with refusing(monkeypatch, name) as threads:
        worker = Worker(queue, handlers_of(is_async=is_async), concurrency=2, poll_seconds=0.01)
        with running(worker) as reports:
            queue.put_many([{"payload": number, "kind": "a"} for number in range(5)])
            is_needed = name != "freshq-settle" and (is_async or name != "freshq-handlers")
            wait_until(lambda: threads.refused > 1 or not is_needed or queue.stats().success == 5)
            threads.refuses = False
            queue.put_many([{"payload": number, "kind": "a"} for number in range(5)])
            wait_until(lambda: queue.stats().success == 10)
            assert threads.refused or not is_needed
    assert reports[0].outcomes[Outcome.SUCCEEDED] == 10
    assert reports[0].outcomes[Outcome.RETRIED] == 0


def test_a_worker_in_transactions_goes_on_when_there_are_threads_again(
    monkeypatch: pytest.MonkeyPatch, sqlite_url: str
) -> None:
    def runner(task: Task, _connection: sa.Connection) -> Any:
        return task.payload

    with Queue.sql(sqlite_url) as queue:
        queue.create_table()
        queue.put_many([{"payload": number} for number in range(5)])
        with refusing(monkeypatch, "freshq-transaction") as threads:
            worker = Worker(queue, runner, transaction=True, concurrency=1, poll_seconds=0.01)
            with running(worker):
                wait_until(lambda: threads.refused > 1)
                threads.refuses = False
                wait_until(lambda: queue.stats().success == 5)


def test_one_thread_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue.memory()
    queue.put_many([{"payload": number} for number in range(20)])
    with refusing(monkeypatch, "freshq-run") as threads:
        start = threads.start

        def all_but_the_first(thread: threading.Thread) -> None:
            threads.refuses = any(each.name == "freshq-run" for each in threading.enumerate())
            start(thread)

        monkeypatch.setattr(threads, "start", all_but_the_first)
        worker = Worker(queue, lambda _task: time.sleep(0.001), concurrency=4, poll_seconds=0.01)
        with running(worker):
            wait_until(lambda: queue.stats().success == 20)


def test_a_shortage_without_an_end_ends_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SHORTAGE_SECONDS", 0.05)
    queue = Queue.memory()
    queue.put("work")
    with refusing(monkeypatch, "freshq-run"), pytest.raises(RuntimeError, match=NO_THREAD):
        Worker(queue, lambda task: task.payload, poll_seconds=0.01).run()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS])
def test_a_claim_that_lacks_a_resource_is_tried_again(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    queue = Queue.memory()
    queue.put("work", task_id="a")
    claim, failures = queue.claim, [OSError(number, os.strerror(number))] * 3

    def short_claim(*arguments: Any, **options: Any) -> Any:
        if failures:
            raise failures.pop()
        return claim(*arguments, **options)

    monkeypatch.setattr(queue, "claim", short_claim)
    with running(Worker(queue, lambda task: task.payload, poll_seconds=0.01)):
        wait_until(lambda: queue.stats().success == 1)


@contextmanager
def without_descriptors() -> Iterator[None]:
    """Let this process open no further file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.pipe()
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


PROGRAM = """
import sys
from tests.unit.worker.test_shortages import work_without_descriptors
work_without_descriptors(sys.argv[1], sys.argv[2])
"""


def work_without_descriptors(url: str, way: str) -> None:
    """Begin to work, take away all descriptors while tasks arrive, and give them back."""

    def runner(task: Task, *_connection: Any) -> Any:
        return task.payload

    chosen: Any = {"handlers": handlers_of(is_async=False), "coroutines": handlers_of(is_async=True)}.get(
        way, runner
    )
    with Queue.sql(url) as queue:
        worker = Worker(queue, chosen, concurrency=2, poll_seconds=0.05, transaction=way == "transactions")
        with running(worker) as reports:
            if way == "running":
                queue.put(0, kind="a")
                wait_until(lambda: queue.stats().success == 1)
            with without_descriptors():
                end = time.monotonic() + 2
                while time.monotonic() < end:
                    try:
                        queue.put(1, kind="a")
                    except StoreError:
                        time.sleep(0.05)
                assert not reports
            queue.put(2, kind="a")
            wait_until(lambda: queue.stats().pending + queue.stats().taken == 0)
        assert reports[0].outcomes[Outcome.RETRIED] == 0, reports
        assert queue.stats().failure == 0


@pytest.mark.parametrize("way", ["running", "handlers", "coroutines", "transactions"])
def test_a_worker_goes_on_when_there_are_descriptors_again(sqlite_url: str, way: str) -> None:
    from tests.support.programs import python  # noqa: PLC0415

    with Queue.sql(sqlite_url) as queue:
        queue.create_table()
    ended = python("-c", PROGRAM, sqlite_url, way, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_supervisor_starts_no_process_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    child = Child(1, [sys.executable, "-c", "input()"])
    with refusing(monkeypatch, "freshq-lines") as threads:
        with pytest.raises(RuntimeError, match=NO_THREAD):
            child.start()
        assert child.ended() is None
        threads.refuses = False
        child.allow()
        assert child.start()
    child.kill()
    wait_until(lambda: child.ended() is not None)


@pytest.mark.parametrize(
    ("make", "is_one"),
    [
        (lambda: OSError(errno.EMFILE, "files"), True),
        (lambda: RuntimeError(NO_THREAD), True),
        (MemoryError, True),
        (lambda: OSError(errno.ENOENT, "no file"), False),
        (lambda: RuntimeError("another"), False),
        (lambda: ValueError(NO_THREAD), False),
    ],
)
def test_what_is_a_shortage(make: Callable[[], BaseException], is_one: bool) -> None:
    assert is_shortage(make()) is is_one
