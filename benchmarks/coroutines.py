"""Puts and sleeping handlers of one event loop on PostgreSQL, compared with other queues, in turns.

procrastinate is measured if it is installed. Each queue has ten connections. Every commit waits for the disk.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
import time
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import psycopg
from local.servers import Postgres

from benchmarks import figures
from benchmarks.figures import PAYLOAD, in_turns
from benchmarks.worker import CONNECTIONS as COUNT_CONNECTIONS
from benchmarks.worker import conninfo
from freshq import AsyncQueue, Handlers, Queue, Worker

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    Put = Callable[[], Awaitable[object]]
    Sleep = Callable[[], Awaitable[None]]
    Opened = Callable[[Postgres, Sleep | None], AbstractAsyncContextManager[Put]]

PUTS: Final = 2000
# Coroutines that put at the same time.
PUTTERS: Final = 50
SLEEPERS: Final = 500
SLEEP_SECONDS: Final = 1.0
CONNECTIONS: Final = 10
PATIENCE_SECONDS: Final = 120


@asynccontextmanager
async def opened_freshq(server: Postgres, sleep: Sleep | None) -> AsyncIterator[Put]:
    """Yield a function that puts a task; given `sleep`, a worker runs the tasks at the same time."""
    queue = Queue.sql(server.url, max_connections=CONNECTIONS)
    handlers = Handlers()

    @handlers.on("sleep")
    async def sleeps(_task: object) -> None:
        if sleep is not None:
            await sleep()

    async with AsyncQueue(queue, CONNECTIONS) as async_queue:
        await async_queue.create_table()
        await async_queue.purge(confirm=queue.name)
        put = partial(async_queue.put, PAYLOAD, kind="sleep")
        if sleep is None:
            yield put
        else:
            async with Worker(queue, handlers, concurrency=SLEEPERS).serving():
                yield put


@asynccontextmanager
async def opened_procrastinate(server: Postgres, sleep: Sleep | None) -> AsyncIterator[Put]:
    """Yield a function that defers a job; given `sleep`, a worker runs the jobs at the same time."""
    procrastinate: Any = importlib.import_module("procrastinate")
    connector = procrastinate.PsycopgConnector(conninfo=conninfo(server), max_size=CONNECTIONS)
    app = procrastinate.App(connector=connector)

    @app.task(name="sleep")  # type: ignore[untyped-decorator]  # the package may be missing
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
                app.run_worker_async(concurrency=SLEEPERS, install_signal_handlers=False)
            )
        yield lambda: sleeps.defer_async(**PAYLOAD)
        if worker is not None:
            worker.cancel()
            with suppress(asyncio.CancelledError):
                await worker


QUEUES: Final[dict[str, Opened]] = {"freshq": opened_freshq, "procrastinate": opened_procrastinate}


@dataclass
class Sleepers:
    """Handlers that sleep at the same time.

    Attributes:
        begun: Number of handlers that started.
        ended: Number of handlers that completed.
        most: Largest number of handlers at the same time.
        threads: Largest number of threads of the process.
    """

    begun: int = 0
    ended: int = 0
    most: int = 0
    threads: int = 0

    async def sleep(self) -> None:
        """Sleep in a handler."""
        self.begun += 1
        self.most = max(self.most, self.begun - self.ended)
        self.threads = max(self.threads, threading.active_count())
        await asyncio.sleep(SLEEP_SECONDS)
        self.ended += 1


async def puts_per_second(server: Postgres, opened: Opened) -> float:
    """Put tasks from many coroutines."""
    async with opened(server, None) as put:

        async def put_some() -> None:
            for _ in range(PUTS // PUTTERS):
                await put()

        await put()  # opens the first connection
        started = time.monotonic()
        await asyncio.gather(*(put_some() for _ in range(PUTTERS)))
        return PUTS / (time.monotonic() - started)


async def run_sleepers(server: Postgres, opened: Opened) -> dict[str, float]:
    """Put tasks whose handlers sleep; return the seconds until all have run, and the largest counts."""
    sleepers = Sleepers()
    async with opened(server, sleepers.sleep) as put:
        await asyncio.sleep(1)  # the worker is waiting for tasks by now
        started = time.monotonic()
        puts = asyncio.gather(*(put() for _ in range(SLEEPERS)))
        connections = 0
        async with asyncio.timeout(PATIENCE_SECONDS):
            while sleepers.ended < SLEEPERS:
                await asyncio.sleep(0.01)
                if not connections and sleepers.begun == SLEEPERS:
                    connections = await asyncio.to_thread(connections_of, server)
        seconds = time.monotonic() - started
        await puts
    return {
        "seconds": seconds,
        "most_sleeping": sleepers.most,
        "threads": sleepers.threads,
        "connections": connections,
    }


def connections_of(server: Postgres) -> int:
    """Return the number of a server's other connections."""
    with psycopg.connect(conninfo(server)) as connection:
        row = connection.execute(COUNT_CONNECTIONS).fetchone()
    return int(row[0]) if row else 0


def both(server: Postgres, opened: Opened) -> dict[str, float]:
    """Return the figures of one queue in one round."""
    rate = asyncio.run(puts_per_second(server, opened))
    return {"puts_per_second": rate} | asyncio.run(run_sleepers(server, opened))


def main(rounds: int = 3) -> None:
    """Measure the queues that are installed."""
    with Postgres(durable=True) as server:
        contenders = {
            name: partial(both, server, opened) for name, opened in QUEUES.items() if find_spec(name)
        }
        found = in_turns(contenders, rounds)
    queues = {
        name: {"version": version(name)}
        | {figure: [each[figure] for each in results] for figure in results[0]}
        for name, results in found.items()
    }
    setting = {"puts": PUTS, "putters": PUTTERS, "sleepers": SLEEPERS, "sleep_seconds": SLEEP_SECONDS}
    figures.write("asyncio", setting | {"queues": queues})
