"""The workers of other queues, for `benchmarks.worker`, run by an interpreter that has them.

python worker_peers.py PEER WHERE TASKS CONCURRENCY

It fills a queue, runs an empty handler for each task, and prints the seconds from the first run to the last,
and the processor time of this process between them. A peer that is not installed ends with status 3.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import resource
import sys
import threading
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

PAYLOAD: Final = {"text": "x" * 1000}
BATCH: Final = 500
LONGEST_SECONDS: Final = 300
NOT_INSTALLED: Final = 3


class Runs:
    """Counts the runs, and keeps when the first and the last one began."""

    def __init__(self, tasks: int) -> None:
        """Expect some runs."""
        self._left = tasks
        self._lock = threading.Lock()
        self._began: tuple[float, float] | None = None
        self.result: dict[str, float] = {}
        self.done = threading.Event()

    def note(self) -> None:
        """Count one run."""
        with self._lock:
            now = time.monotonic(), _processor_seconds()
            if self._began is None:
                self._began = now
            self._left -= 1
            if self._left == 0:
                self.result = {
                    "seconds": now[0] - self._began[0],
                    "processor_seconds": now[1] - self._began[1],
                }
                self.done.set()


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def _until_done(runs: Runs) -> None:
    deadline = time.monotonic() + LONGEST_SECONDS
    while not runs.done.is_set() and time.monotonic() < deadline:
        await asyncio.sleep(0.02)


def oban(where: str, runs: Runs, tasks: int, concurrency: int) -> None:
    """Measure oban, which claims as many jobs as it has free places, and settles several at once."""
    package, schema = importlib.import_module("oban"), importlib.import_module("oban.schema")

    class _Nothing:
        async def process(self, _job: object) -> None:
            runs.note()

    nothing: Any = package.worker(queue="default")(_Nothing)

    async def measure() -> None:
        pool = await package.Oban.create_pool(where, min_size=2, max_size=10)
        await schema.uninstall(pool)
        await schema.install(pool)
        client = package.Oban(pool=pool)
        for start in range(0, tasks, BATCH):
            await client.enqueue_many([nothing.new(PAYLOAD) for _ in range(start, min(tasks, start + BATCH))])
        async with package.Oban(pool=pool, queues={"default": concurrency}):
            await _until_done(runs)
        await pool.close()

    asyncio.run(measure())


def procrastinate(where: str, runs: Runs, tasks: int, concurrency: int) -> None:
    """Measure procrastinate."""
    package = importlib.import_module("procrastinate")
    app = package.App(connector=package.PsycopgConnector(conninfo=where))

    @app.task(name="nothing")  # type: ignore[untyped-decorator]
    async def nothing(**_payload: object) -> None:
        runs.note()

    async def measure() -> None:
        async with app.open_async():
            await app.connector.execute_query_async("DROP SCHEMA public CASCADE")
            await app.connector.execute_query_async("CREATE SCHEMA public")
            await app.schema_manager.apply_schema_async()
            await nothing.batch_defer_async(*[PAYLOAD for _ in range(tasks)])
            await app.run_worker_async(
                concurrency=concurrency, wait=False, listen_notify=False, install_signal_handlers=False
            )

    asyncio.run(measure())


def celery(where: str, runs: Runs, tasks: int, concurrency: int) -> None:
    """Measure Celery with threads, and its transport that keeps messages in tables."""
    package = importlib.import_module("celery")
    parts = importlib.import_module("psycopg.conninfo").conninfo_to_dict(where)
    url = "sqla+postgresql+psycopg://{user}@{host}:{port}/{dbname}".format(**parts)
    app = package.Celery(broker=url)
    app.conf.update(task_ignore_result=True, worker_redirect_stdouts=False)

    @app.task(name="nothing")  # type: ignore[untyped-decorator]
    def nothing(_payload: object) -> None:
        runs.note()

    with app.connection_for_write() as connection:
        connection.default_channel.queue_declare("celery")
        connection.default_channel.queue_purge("celery")
    for _ in range(tasks):
        nothing.delay(PAYLOAD)
    worker = app.Worker(
        pool="threads", concurrency=concurrency, loglevel="ERROR", without_gossip=True, without_mingle=True,
        without_heartbeat=True, quiet=True,
    )  # fmt: skip
    threading.Thread(target=worker.start, daemon=True).start()
    runs.done.wait(LONGEST_SECONDS)


def huey(where: str, runs: Runs, tasks: int, concurrency: int) -> None:
    """Measure huey's consumer on SQLite, with threads."""
    package = importlib.import_module("huey")
    queue = package.SqliteHuey(filename=where, results=False)

    @queue.task()  # type: ignore[untyped-decorator]
    def nothing(_payload: object) -> None:
        runs.note()

    for _ in range(tasks):
        nothing(PAYLOAD)
    consumer = queue.create_consumer(workers=concurrency, periodic=False)
    consumer.start()
    runs.done.wait(LONGEST_SECONDS)
    consumer.stop()


def litequeue(where: str, runs: Runs, tasks: int, _concurrency: int) -> None:
    """Measure litequeue, which has no worker: a loop that takes one message, and marks it done."""
    queue = importlib.import_module("litequeue").LiteQueue(where)
    for _ in range(tasks):
        queue.put(json.dumps(PAYLOAD))
    while (message := queue.pop()) is not None:
        json.loads(message.data)
        runs.note()
        queue.done(message.message_id, claim_id=message.claim_id)


PEERS: Final[dict[str, Callable[[str, Runs, int, int], None]]] = {
    each.__name__: each for each in (oban, procrastinate, celery, huey, litequeue)
}


def main(peer: str, where: str, tasks: int, concurrency: int) -> int:
    """Measure a peer; return the exit status."""
    runs = Runs(tasks)
    try:
        PEERS[peer](where, runs, tasks, concurrency)
    except ModuleNotFoundError as missing:
        print(missing, file=sys.stderr)
        return NOT_INSTALLED
    if not runs.done.is_set():
        print(f"{peer} did not run {tasks} tasks in {LONGEST_SECONDS} s", file=sys.stderr)
        return 1
    print(json.dumps(runs.result | {"version": version(peer)}), flush=True)
    return 0


if __name__ == "__main__":
    # Celery's worker is still there: it is for a process of its own.
    os._exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
