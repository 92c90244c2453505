"""PostgreSQL behind PgBouncer in transaction mode, where each transaction may have another session."""

import threading
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import sqlalchemy as sa

from freshq import Queue, Worker
from freshq.queue.core import core_of
from freshq.stores.sql import SqlStore
from tests.support.patience import PATIENCE_SECONDS
from tests.support.worker_threads import wait_until

# psycopg prepares a statement at its sixth execution.
PUTS = 15
THREADS = 6


def test_threads_that_share_sessions_put_and_work(pgbouncer_engine: sa.Engine) -> None:
    queue, ran = Queue(SqlStore(pgbouncer_engine)), SimpleQueue[object]()

    def put(thread: int) -> None:
        for number in range(PUTS):
            queue.put([thread, number])

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(put, range(THREADS)))
    wanted = THREADS * PUTS
    worker = Worker(queue, lambda task: ran.put(task.payload), concurrency=THREADS)
    worker.run(until=lambda: ran.qsize() >= wanted)
    queue.close()
    found = sorted(ran.get() for _ in range(ran.qsize()))  # type: ignore[type-var]  # lists of integers
    assert found == [[thread, number] for thread in range(THREADS) for number in range(PUTS)]


def test_an_idle_worker_polls_for_tasks_of_other_processes(
    pgbouncer_engine: sa.Engine, postgres_engine: sa.Engine
) -> None:
    queue, direct = Queue(SqlStore(pgbouncer_engine)), Queue(SqlStore(postgres_engine))
    starts: SimpleQueue[object] = SimpleQueue()
    worker = Worker(queue, lambda task: starts.put(task.payload), poll_seconds=PATIENCE_SECONDS)
    thread = threading.Thread(target=worker.run)
    thread.start()
    listener: Any = core_of(queue).store.notifier
    try:
        wait_until(lambda: listener._watcher._cannot_listen)
        assert not listener.is_connected
        direct.put("work")
        assert starts.get(timeout=PATIENCE_SECONDS) == "work"
    finally:
        worker.stop()
        thread.join(PATIENCE_SECONDS)
        queue.close()
        direct.close()
