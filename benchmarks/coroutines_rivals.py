"""The other queues that `benchmarks.coroutines` measures, where they are installed."""

from __future__ import annotations

import asyncio
import importlib
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from benchmarks.sql_contenders import PAYLOAD, Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    Put = Callable[[], Awaitable[object]]
    Sleep = Callable[[], Awaitable[None]]


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
