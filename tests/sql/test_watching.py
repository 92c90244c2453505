"""Waking processes of a SQL database. A store that shares no signals stands for another process."""

import asyncio
import math
import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa

from freshq import AsyncQueue, Claim, Queue, Settlement, Worker
from freshq.queue import polling
from freshq.queue.core import core_of
from freshq.queue.polling import Fetcher
from freshq.stores import notifier
from freshq.stores.notifier import Topic
from freshq.stores.sql import SqlStore
from freshq.stores.sql.database import open_engine
from freshq.stores.sql.listening import IDS_BYTES, Listener, PostgresNotifier, parted
from freshq.stores.sql.watching import LinePoller
from freshq.worker.background import REST_SECONDS
from freshq.worker.options import WorkerConfig
from tests.support.patience import PATIENCE_SECONDS
from tests.support.statements import sent
from tests.support.worker_threads import wait_until

# Reads and takes the lease of the upkeep, in a transaction.
OF_LEASE = 3
NEVER_SECONDS = 100 * PATIENCE_SECONDS
# The constant FD_SETSIZE of glibc.
SELECTED_FILES = 1024
LINE = Topic("default", "line")
END = Topic("default", "end")


def listener_of(queue: Queue) -> Listener:
    of_queue = core_of(queue).store.notifier
    assert isinstance(of_queue, PostgresNotifier)
    assert isinstance(of_queue._watcher, Listener)
    return of_queue._watcher


class Idle:
    """A worker that waits for tasks, and what it started."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = open_engine(engine.url.update_query_dict({"application_name": "idle"}))
        self.queue = Queue(SqlStore(self.engine))
        self.listener = listener_of(self.queue)
        self.starts: SimpleQueue[object] = SimpleQueue()
        self.worker = Worker(self.queue, self.run, poll_seconds=NEVER_SECONDS)
        self.thread = threading.Thread(target=self.worker.run)
        self.thread.start()

    def run(self, task: Any) -> None:
        self.starts.put(task.payload)

    def waits(self) -> bool:
        line = core_of(self.queue).store.notifier.line("default")
        return self.worker.status().store_answers and LINE in self.listener._held and line.waiters > 0

    def started(self) -> object:
        return self.starts.get(timeout=PATIENCE_SECONDS)

    def end(self) -> None:
        self.worker.stop()
        self.thread.join(PATIENCE_SECONDS)
        self.queue.close()
        self.engine.dispose()


@pytest.fixture
def queue(postgres_engine: sa.Engine) -> Queue:
    return Queue(SqlStore(postgres_engine))


@pytest.fixture
def idle(postgres_engine: sa.Engine) -> Iterator[Idle]:
    idle = Idle(postgres_engine)
    try:
        wait_until(idle.waits)
        yield idle
    finally:
        idle.end()


@pytest.fixture
def heard(postgres_engine: sa.Engine, queue: Queue) -> Iterator[Callable[[], list[str]]]:
    """Return a function that returns the payloads of all notifications since the last call."""
    channel = listener_of(queue).channel
    raw: Any = postgres_engine.raw_connection()
    connection: psycopg.Connection[Any] = raw.driver_connection
    connection.execute(f"LISTEN {channel}")

    def heard() -> list[str]:
        connection.execute(f"NOTIFY {channel}, 'last'")
        payloads: list[str] = []
        for notification in connection.notifies(timeout=PATIENCE_SECONDS):
            if notification.payload == "last":
                break
            payloads.append(notification.payload)
        return payloads

    yield heard
    connection.execute("UNLISTEN *")
    raw.close()


def commit_put(queue: Queue, engine: sa.Engine) -> None:
    with engine.begin() as connection:
        queue.put("work", connection=connection)


def release(queue: Queue, _engine: sa.Engine) -> None:
    queue.release(queue.claim()[0])


def put_by_sql(_queue: Queue, engine: sa.Engine) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql("""SELECT freshq_put('default', '"work"')""")


@pytest.mark.parametrize("act", [lambda queue, _engine: queue.put("work"), commit_put, put_by_sql])
def test_a_worker_of_another_process_starts_a_task(
    idle: Idle, queue: Queue, postgres_engine: sa.Engine, act: Callable[[Queue, sa.Engine], object]
) -> None:
    act(queue, postgres_engine)
    assert idle.started() == "work"


@pytest.fixture
def many_files() -> Iterator[None]:
    """Open so many files that those opened later are beyond the reach of `select`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * SELECTED_FILES), hard))
    with ExitStack() as files:
        for _ in range(SELECTED_FILES):
            files.enter_context(Path(os.devnull).open("rb"))
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_a_process_with_many_open_files_is_woken(idle: Idle, queue: Queue) -> None:
    queue.put("work")
    assert idle.started() == "work"


def test_a_dead_letter_that_returns_wakes_too(idle: Idle, queue: Queue) -> None:
    queue.put("work", task_id="a", delay_seconds=NEVER_SECONDS)  # a pause reaches the worker later
    queue.cancel("a", dead=True)
    queue.redrive()
    assert idle.started() == "work"


def test_a_lost_connection_is_opened_again(idle: Idle, queue: Queue, postgres_engine: sa.Engine) -> None:
    with postgres_engine.connect() as connection:
        ended = connection.execute(
            sa.text(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE application_name = 'idle' AND query NOT LIKE 'SELECT pg_terminate%'"
            )
        ).all()
    assert ended
    queue.put("during")
    assert idle.started() == "during"
    wait_until(idle.waits)
    queue.put("after")
    assert idle.started() == "after"


def test_nothing_is_sent_if_nobody_waits(queue: Queue, heard: Callable[[], list[str]]) -> None:
    queue.put_many([{"payload": number} for number in range(3)])
    release(queue, queue)  # type: ignore[arg-type]  # unused
    queue.complete(queue.claim()[0])
    assert heard() == []


def test_tasks_put_in_a_burst_all_start(idle: Idle, queue: Queue) -> None:
    for number in range(50):
        queue.put(number)
    assert sorted(str(idle.started()) for _ in range(50)) == sorted(map(str, range(50)))


def test_a_process_that_asked_a_moment_ago_does_not_ask_again(queue: Queue) -> None:
    queue.put("first")
    listener_of(queue).silent_until[LINE] = math.inf
    with sent(queue) as statements:
        queue.put("second")
    assert len(statements) == 1


def test_ids_have_room_in_a_notification() -> None:
    ids = [f"{number}-ü" for number in range(3000)]
    parts = [*parted(ids, IDS_BYTES)]
    assert [task_id for part in parts for task_id in part] == ids
    assert len(parts) > 1
    assert all(
        len(Listener("tasks", notifier.Signals(), list).payload_of("q", part).encode()) < 8000
        for part in parts
    )


def test_a_put_that_is_rolled_back_sends_nothing(
    queue: Queue, heard: Callable[[], list[str]], postgres_engine: sa.Engine
) -> None:
    with postgres_engine.connect() as connection, connection.begin() as transaction:
        queue.put("never", connection=connection)
        transaction.rollback()
    assert heard() == []


def test_the_end_of_a_worker_closes_its_connection(postgres_engine: sa.Engine) -> None:
    idle = Idle(postgres_engine)
    wait_until(idle.waits)
    idle.end()
    wait_until(lambda: idle.listener._thread is None)
    opened = sa.text("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'idle'")

    def left() -> int:
        with postgres_engine.connect() as connection:
            count: int = connection.execute(opened).scalar_one()
            return count

    wait_until(lambda: left() == 0)


def test_every_database_wakes_a_worker_of_another_process(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, starts = Queue(SqlStore(engine)), SimpleQueue[object]()
    monkeypatch.setattr(notifier, "_BY_PLACE", {})  # so that the next store shares nothing with this one
    other = Queue(SqlStore(engine))
    worker = Worker(queue, lambda task: starts.put(task.payload), poll_seconds=NEVER_SECONDS)
    thread = threading.Thread(target=worker.run)
    thread.start()
    signals: Any = core_of(queue).store.notifier
    try:
        for payload in range(2):
            wait_until(lambda: LINE in signals._watcher._held and signals.is_connected)
            other.put(payload)
            assert starts.get(timeout=PATIENCE_SECONDS) == payload
    finally:
        worker.stop()
        thread.join(PATIENCE_SECONDS)
        queue.close()


@pytest.fixture
def apart(engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Queue, Queue, list[Claim]]]:
    """Return a queue, the queue of another process, and the claims of the latter; polls come too late."""
    if engine.dialect.name in ("mysql", "mariadb"):
        pytest.skip("MariaDB is polled")
    monkeypatch.setattr(polling, "FIRST_INTERVAL_SECONDS", NEVER_SECONDS)
    queue = Queue(SqlStore(engine))
    monkeypatch.setattr(notifier, "_BY_PLACE", {})
    other = Queue(SqlStore(engine))
    other.put_many([{"payload": name, "task_id": name} for name in "abc"])
    yield queue, other, sorted(other.claim(3), key=lambda claim: claim.task.task_id)
    queue.close()


def when_awaited(queue: Queue, act: Callable[[], object]) -> threading.Thread:
    """Act in another thread once changes by other processes end a wait for the end of a task."""
    signals: Any = core_of(queue).store.notifier

    def wait() -> None:
        wait_until(lambda: END in signals._watcher._held and signals._signals.by_topic[END].waiters > 0)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_a_caller_learns_at_once_of_ends_by_another_process(apart: tuple[Queue, Queue, list[Claim]]) -> None:
    queue, other, (a, b, _c) = apart
    ends = iter(
        (
            lambda: other.complete(b),
            lambda: other.settle_many([Settlement.complete(a)]),
            lambda: other.cancel("c", force=True),
        )
    )
    settles = when_awaited(queue, next(ends))
    order = []
    for task in queue.wait_many([*"abc"], timeout_seconds=PATIENCE_SECONDS, poll_seconds=NEVER_SECONDS):
        order.append(task.task_id)
        settles.join()
        if (end := next(ends, None)) is not None:
            settles = when_awaited(queue, end)
    assert order == ["b", "a", "c"]


def test_a_coroutine_learns_at_once_of_an_end_by_another_process(
    apart: tuple[Queue, Queue, list[Claim]],
) -> None:
    queue, other, (a, _b, _c) = apart
    settles = when_awaited(queue, lambda: other.complete(a, result=7))
    wait = AsyncQueue(queue).wait("a", timeout_seconds=PATIENCE_SECONDS, poll_seconds=NEVER_SECONDS)
    assert asyncio.run(wait).result == 7
    settles.join()


def test_an_idle_worker_sends_at_most_1_5_statements_a_second(
    engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Count what it does each time, instead of waiting for it."""
    monkeypatch.setattr(notifier.Notifier, "is_connected", True)
    with Queue(SqlStore(engine)) as queue:
        fetcher = Fetcher(core_of(queue), NEVER_SECONDS)

        def look() -> None:
            fetcher.begin()
            assert queue.claim() == []
            fetcher.found_few(0)

        look()
        queue.admin.upkeep()
        with sent(queue) as looks:
            look()
        with sent(queue) as portions:
            queue.admin.upkeep()
    asks = 1 / LinePoller.longest_seconds if engine.dialect.name in ("mysql", "mariadb") else 0
    poll_seconds = WorkerConfig.model_fields["poll_seconds"].default
    statements = len(looks) / poll_seconds + (len(portions) + OF_LEASE) / REST_SECONDS + asks
    # Each look also reads the pause and the options of the queue, unless it did so a moment ago.
    assert round(statements + 2 / poll_seconds, 2) <= 1.5
