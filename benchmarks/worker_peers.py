"""Run the workers of other queues for `benchmarks.worker`, in an interpreter in which they are installed.

    python worker_peers.py fill PEER WHERE TASKS
    python worker_peers.py work PEER WHERE CONCURRENCY

`fill` fills a queue and prints the version of the peer. `work` prints `ready` once it is connected, starts at
a line of input, runs an empty handler for each task, prints the number of runs, and goes on until its input
is closed. Then it prints the starts of the first and the last run, and the processor time of this process
between them. If the peer is not installed, the program exits with status 3.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import threading
import time
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

PAYLOAD: Final = {"text": "x" * 1000}
BATCH: Final = 500
NOT_INSTALLED: Final = 3
TOLD_EVERY_SECONDS: Final = 0.02


class Span(NamedTuple):
    """The working time of a process.

    Attributes:
        first: Start of its first run, by the machine's monotonic clock.
        last: Start of its last run, or the last settlement.
        processor_seconds: Processor time of the process between them.
    """

    first: float
    last: float
    processor_seconds: float


class Runs:
    """Counts the runs of this process and notes the starts of the first and the last."""

    def __init__(self) -> None:
        self._count = 0
        self._lock = threading.Lock()
        self._first: tuple[float, float] | None = None
        self._last = (0.0, 0.0)
        self.over = threading.Event()

    def ready(self) -> None:
        """Report that this process is connected; wait until all are."""
        print("ready", flush=True)
        sys.stdin.readline()
        threading.Thread(target=self._await_end, daemon=True).start()

    def _await_end(self) -> None:
        sys.stdin.read()
        self.over.set()

    def note(self) -> None:
        """Count one run."""
        with self._lock:
            self._last = time.monotonic(), time.process_time()
            self._first = self._first or self._last
            self._count += 1

    def tell(self) -> None:
        """Print the count whenever it has changed."""
        told = 0
        while not self.over.wait(TOLD_EVERY_SECONDS):
            if self._count != told:
                told = self._count
                sys.stdout.write(f"{told}\n")  # in one call, because the main thread also writes
                sys.stdout.flush()

    def span(self) -> Span | None:
        """Return the span of this process; None if it ran nothing."""
        if self._first is None:
            return None
        return Span(self._first[0], self._last[0], self._last[1] - self._first[1])


@dataclass(frozen=True, slots=True)
class Peer:
    """Another queue.

    Attributes:
        runs: Counts its runs.
        fill: Leaves only a number of new tasks in its queue.
        work: Runs tasks in a number of slots until none is left, or until `runs.over`.
    """

    runs: Runs
    fill: Callable[[int], None]
    work: Callable[[int], None]


def oban(where: str) -> Peer:
    """Measure oban, which claims as many jobs as it has free slots and settles several together."""
    package, schema = importlib.import_module("oban"), importlib.import_module("oban.schema")
    runs = Runs()

    class _Nothing:
        async def process(self, _job: object) -> None:
            runs.note()

    nothing: Any = package.worker(queue="default")(_Nothing)

    async def fill(tasks: int) -> None:
        pool = await package.Oban.create_pool(where, min_size=2, max_size=10)
        await schema.uninstall(pool)
        await schema.install(pool)
        client = package.Oban(pool=pool)
        for start in range(0, tasks, BATCH):
            await client.enqueue_many([nothing.new(PAYLOAD) for _ in range(start, min(tasks, start + BATCH))])
        await pool.close()

    async def work(concurrency: int) -> None:
        pool = await package.Oban.create_pool(where, min_size=2, max_size=10)
        runs.ready()
        async with package.Oban(pool=pool, queues={"default": concurrency}):
            await asyncio.to_thread(runs.over.wait)
        await pool.close()

    return Peer(runs, lambda tasks: asyncio.run(fill(tasks)), lambda slots: asyncio.run(work(slots)))


def procrastinate(where: str) -> Peer:
    """Measure procrastinate."""
    package = importlib.import_module("procrastinate")
    app = package.App(connector=package.PsycopgConnector(conninfo=where))
    runs = Runs()

    @app.task(name="nothing")  # type: ignore[untyped-decorator]
    async def nothing(**_payload: object) -> None:
        runs.note()

    async def fill(tasks: int) -> None:
        async with app.open_async():
            await app.connector.execute_query_async("DROP SCHEMA public CASCADE")
            await app.connector.execute_query_async("CREATE SCHEMA public")
            await app.schema_manager.apply_schema_async()
            await nothing.batch_defer_async(*[PAYLOAD for _ in range(tasks)])

    async def work(concurrency: int) -> None:
        async with app.open_async():
            runs.ready()
            await app.run_worker_async(
                concurrency=concurrency, wait=False, listen_notify=False, install_signal_handlers=False
            )

    return Peer(runs, lambda tasks: asyncio.run(fill(tasks)), lambda slots: asyncio.run(work(slots)))


def celery(where: str) -> Peer:
    """Measure Celery with threads and its SQLAlchemy transport."""
    package = importlib.import_module("celery")
    parts = importlib.import_module("psycopg.conninfo").conninfo_to_dict(where)
    url = "sqla+postgresql+psycopg://{user}@{host}:{port}/{dbname}".format(**parts)
    app = package.Celery(broker=url)
    app.conf.update(task_ignore_result=True, worker_redirect_stdouts=False)
    runs = Runs()

    @app.task(name="nothing")  # type: ignore[untyped-decorator]
    def nothing(_payload: object) -> None:
        runs.note()

    def fill(tasks: int) -> None:
        with app.connection_for_write() as connection:
            connection.default_channel.queue_declare("celery")
            connection.default_channel.queue_purge("celery")
        for _ in range(tasks):
            nothing.delay(PAYLOAD)

    def work(concurrency: int) -> None:
        worker = app.Worker(
            pool="threads", concurrency=concurrency, loglevel="ERROR", without_gossip=True, quiet=True,
            without_mingle=True, without_heartbeat=True,
        )  # fmt: skip
        runs.ready()
        threading.Thread(target=worker.start, daemon=True).start()
        runs.over.wait()

    return Peer(runs, fill, work)


def sqlite_huey(file: str, **options: Any) -> Any:
    """Return a huey that does not wait for the disk; its own `fsync=False` would be less durable."""
    package, storage = importlib.import_module("huey"), importlib.import_module("huey.storage")

    class _Storage(storage.SqliteStorage):  # type: ignore[misc,name-defined]
        def _create_connection(self) -> Any:
            connection = super()._create_connection()
            connection.execute("PRAGMA synchronous=NORMAL")
            return connection

    return package.Huey(storage_class=_Storage, filename=file, **options)


def huey(where: str) -> Peer:
    """Measure huey's consumer with threads, on SQLite."""
    queue = sqlite_huey(where, results=False)
    runs = Runs()

    @queue.task()  # type: ignore[untyped-decorator]
    def nothing(_payload: object) -> None:
        runs.note()

    def fill(tasks: int) -> None:
        for _ in range(tasks):
            nothing(PAYLOAD)

    def work(concurrency: int) -> None:
        consumer = queue.create_consumer(workers=concurrency, periodic=False)
        runs.ready()
        consumer.start()
        runs.over.wait()
        consumer.stop()

    return Peer(runs, fill, work)


PEERS: Final[dict[str, Callable[[str], Peer]]] = {
    each.__name__: each for each in (oban, procrastinate, celery, huey)
}


def main(verb: str, name: str, where: str, number: int) -> int:
    """Fill the queue of a peer with tasks, or work with a number of slots; return the exit status."""
    try:
        peer = PEERS[name](where)
    except ModuleNotFoundError as missing:
        print(missing, file=sys.stderr)
        return NOT_INSTALLED
    if verb == "fill":
        peer.fill(number)
        print(version(name), flush=True)
        return 0
    threading.Thread(target=peer.runs.tell, daemon=True).start()
    peer.work(number)
    peer.runs.over.wait()
    print(json.dumps(peer.runs.span()), flush=True)
    return 0


if __name__ == "__main__":
    # Celery's worker is still running: it expects its own process.
    os._exit(main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])))
