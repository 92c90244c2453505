"""What one event loop does on PostgreSQL: puts, and handlers that sleep, beside other queues, in turns.

    python -m benchmarks.coroutines [--rounds N]

procrastinate and taskiq (taskiq-postgres, with asyncpg) are measured where they are installed. Each queue has
10 connections. Every commit waits for the disk.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import statistics
import threading
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import psycopg
from local.servers import HOST, Postgres
from rich.console import Console
from rich.table import Table

from benchmarks import figures
from benchmarks.figures import rotated
from benchmarks.sql import PAYLOAD, Server
from freshq import AsyncQueue, Handlers, Queue, Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Put = Callable[[], Awaitable[object]]
    Sleep = Callable[[], Awaitable[None]]
    from contextlib import AbstractAsyncContextManager

    Opened = Callable[[Server, int, Sleep | None, int], AbstractAsyncContextManager[Put]]


@asynccontextmanager
async def opened_procrastinate(
    server: Server, connections: int, sleep: Sleep | None, concurrency: int
) -> AsyncIterator[Put]:
    """Yield a function that defers a job; with a sleep, a worker runs the jobs beside it."""
    procrastinate: Any = importlib.import_module("procrastinate")
    connector = procrastinate.PsycopgConnector(conninfo=server.conninfo, max_size=connections)
    app = procrastinate.App(connector=connector)

    @app.task(name="sleep")  # type: ignore[untyped-decorator]  # a package that may not be there
    async def sleeps(**_payload: object) -> None:
        if sleep is not None:
            await sleep()

    async with app.open_async():
        if not await app.check_connection_async():
            await app.schema_manager.apply_schema_async()
        await connector.execute_query_async("TRUNCATE procrastinate_jobs CASCADE")
        worker = None
        if sleep is not None:
            worker = asyncio.create_task(
                app.run_worker_async(concurrency=concurrency, install_signal_handlers=False)
            )
        yield lambda: sleeps.defer_async(**PAYLOAD)
        await _cancelled(worker)


@asynccontextmanager
async def opened_taskiq(
    server: Server, connections: int, sleep: Sleep | None, concurrency: int
) -> AsyncIterator[Put]:
    """Yield a function that sends a message; with a sleep, a receiver runs the messages beside it."""
    broker_class: Any = importlib.import_module("taskiq_pg.asyncpg").AsyncpgBroker
    dsn = f"postgresql://freshq@{server.host}:{server.port}/postgres"
    broker = broker_class(dsn=dsn, write_kwargs={"max_size": connections})

    @broker.task(task_name="sleep")  # type: ignore[untyped-decorator]  # a package that may not be there
    async def sleeps(_payload: dict[str, object]) -> None:
        if sleep is not None:
            await sleep()

    await broker.startup()
    receiver = None
    if sleep is not None:
        run_receiver: Any = importlib.import_module("taskiq.api").run_receiver_task
        receiver = asyncio.create_task(run_receiver(broker, max_async_tasks=concurrency))
    yield lambda: sleeps.kiq(PAYLOAD)
    await _cancelled(receiver)
    await broker.shutdown()


async def _cancelled(worker: asyncio.Task[None] | None) -> None:
    if worker is not None:
        worker.cancel()
        with suppress(asyncio.CancelledError):
            await worker


PUTS: Final = 2000
# Coroutines that put at the same time.
PUTTERS: Final = 50
SLEEPERS: Final = 500
SLEEP_SECONDS: Final = 1.0
CONNECTIONS: Final = 10
PATIENCE_SECONDS: Final = 120


@dataclass
class Sleepers:
    """Handlers that sleep at the same time.

    Attributes:
        begun: How many began.
        ended: How many ended.
        most: The largest number at the same time.
        threads: The largest number of threads of the process.
    """

    begun: int = 0
    ended: int = 0
    most: int = 0
    threads: int = 0

    async def sleep(self) -> None:
        """Sleep, as a handler."""
        self.begun += 1
        self.most = max(self.most, self.begun - self.ended)
        self.threads = max(self.threads, threading.active_count())
        await asyncio.sleep(SLEEP_SECONDS)
        self.ended += 1


@dataclass
class Figures:
    """What was measured of one queue, one value a round.

    Attributes:
        version: Version of its package.
        puts_per_second: Puts a second from one loop.
        seconds: From the first put to the end of the last of the handlers that sleep.
        most_sleeping: The largest number of handlers that slept at the same time.
        threads: The largest number of threads of the process meanwhile.
        connections: The largest number of connections meanwhile.
    """

    version: str
    puts_per_second: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    most_sleeping: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    connections: list[int] = field(default_factory=list)


@asynccontextmanager
async def opened_freshq(
    server: Server, connections: int, sleep: Sleep | None, concurrency: int
) -> AsyncIterator[Put]:
    """Yield a function that puts a task; with a sleep, a worker runs the tasks beside it."""
    queue = Queue.sql(server.url, max_connections=connections)
    handlers = Handlers()

    @handlers.on("sleep")
    async def sleeps(_task: object) -> None:
        if sleep is not None:
            await sleep()

    async with AsyncQueue(queue, connections) as async_queue:
        await async_queue.create_table()
        await async_queue.purge(queue.name)
        put = partial(async_queue.put, PAYLOAD, kind="sleep")
        if sleep is None:
            yield put
        else:
            async with Worker(queue, handlers, concurrency=concurrency).serving():
                yield put


def contenders() -> dict[str, tuple[Opened, str]]:
    """Return how each queue that is installed is opened, and its package."""
    found: dict[str, tuple[Opened, str]] = {"freshq": (opened_freshq, "freshq")}
    if find_spec("procrastinate"):
        found["procrastinate"] = opened_procrastinate, "procrastinate"
    if find_spec("taskiq_pg"):
        found["taskiq"] = opened_taskiq, "taskiq-postgres"
    return found


async def puts_per_second(server: Server, opened: Opened) -> float:
    """Put tasks from many coroutines."""
    async with opened(server, CONNECTIONS, None, 0) as put:

        async def put_some() -> None:
            for _ in range(PUTS // PUTTERS):
                await put()

        await put()  # opens the first connection
        started = time.monotonic()
        await asyncio.gather(*(put_some() for _ in range(PUTTERS)))
        return PUTS / (time.monotonic() - started)


async def run_sleepers(server: Server, opened: Opened, figures: Figures) -> None:
    """Put tasks whose handlers sleep, until all have run."""
    sleepers = Sleepers()
    async with opened(server, CONNECTIONS, sleepers.sleep, SLEEPERS) as put:
        await asyncio.sleep(1)  # the worker has begun, and waits for work
        started = time.monotonic()
        puts = asyncio.gather(*(put() for _ in range(SLEEPERS)))
        connections = 0
        async with asyncio.timeout(PATIENCE_SECONDS):
            while sleepers.ended < SLEEPERS:
                await asyncio.sleep(0.01)
                if not connections and sleepers.begun == SLEEPERS:
                    connections = await asyncio.to_thread(connections_of, server)
        figures.seconds.append(time.monotonic() - started)
        await puts
    figures.most_sleeping.append(sleepers.most)
    figures.threads.append(sleepers.threads)
    figures.connections.append(connections)


def connections_of(server: Server) -> int:
    """Return how many connections the server has besides this one."""
    query = "SELECT count(*) - 1 FROM pg_stat_activity WHERE backend_type = 'client backend'"
    with psycopg.connect(server.conninfo) as connection:
        row = connection.execute(query).fetchone()
    return int(row[0]) if row else 0


def measured(server: Server, rounds: int) -> dict[str, Figures]:
    """Measure all in turns."""
    found = contenders()
    figures = {name: Figures(version(package)) for name, (_, package) in found.items()}
    for number in range(rounds):
        names = rotated(list(found), number)
        for name in names:
            figures[name].puts_per_second.append(asyncio.run(puts_per_second(server, found[name][0])))
        for name in names:
            asyncio.run(run_sleepers(server, found[name][0], figures[name]))
    return figures


def show(figures: dict[str, Figures]) -> None:
    """Print medians and ranges."""
    table = Table(
        "", "puts a second", f"{SLEEPERS} handlers of {SLEEP_SECONDS:g} s", "threads", "connections"
    )
    for name, each in figures.items():
        puts = f"{statistics.median(each.puts_per_second):,.0f}"
        puts += f" ({min(each.puts_per_second):,.0f} to {max(each.puts_per_second):,.0f})"
        seconds = (
            f"{statistics.median(each.seconds):.2f} s ({min(each.seconds):.2f} to {max(each.seconds):.2f})"
        )
        table.add_row(name, puts, seconds, str(max(each.threads)), str(max(each.connections)))
    Console().print(table)


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with Postgres(durable=True) as running:
        found = measured(Server(running.url, HOST, running.port), options.rounds)
    show(found)
    report = {
        "puts": PUTS,
        "putters": PUTTERS,
        "sleepers": SLEEPERS,
        "sleep_seconds": SLEEP_SECONDS,
        "queues": {name: asdict(each) for name, each in found.items()},
    }
    figures.write("asyncio", report, ("psycopg", "sqlalchemy"))


if __name__ == "__main__":
    main()
