"""The other queues' part of `benchmarks.sql`, run by an interpreter that has them.

    python sql_peers.py versions
    python sql_peers.py fill PEER CONNINFO JOBS
    python sql_peers.py work PEER CONNINFO CONCURRENCY
    python sql_peers.py put PEER CONNINFO CONCURRENCY JOBS
    python sql_peers.py drain PEER FILE JOBS

`versions` prints those of the peers that are installed. `work` and `put` say when they are connected, and
begin at a line of input; oban then works until its input ends. `drain` works off a file of SQLite, in one
loop, and prints the seconds.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

PAYLOAD: Final = {"order": "7c0a1c52-6a64-4d0c-8d0e-9a6a1b7f2c11", "customer": 4711, "items": [1, 2, 3]}
BATCH: Final = 500
NAMES: Final = ("oban", "procrastinate", "litequeue", "huey")


async def started() -> None:
    """Say that all is ready, and wait until the others are."""
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)


class Oban:
    """oban claims as many jobs as it has free places and settles several at once, at most every 5 ms."""

    def __init__(self, conninfo: str) -> None:
        self._package: Any = importlib.import_module("oban")
        self._conninfo = conninfo

        class _Nothing:
            async def process(self, _job: object) -> None:
                """Do nothing."""

        self._nothing: Any = self._package.worker(queue="default")(_Nothing)

    async def fill(self, jobs: int) -> None:
        """Make the tables anew, and fill them."""
        schema = importlib.import_module("oban.schema")
        pool = await self._package.Oban.create_pool(self._conninfo, min_size=2, max_size=10)
        await schema.uninstall(pool)
        await schema.install(pool)
        client = self._package.Oban(pool=pool)
        for start in range(0, jobs, BATCH):
            batch = range(start, min(jobs, start + BATCH))
            await client.enqueue_many([self._nothing.new(PAYLOAD) for _ in batch])
        await pool.close()

    async def work(self, concurrency: int) -> None:
        """Run jobs until the input ends."""
        pool = await self._package.Oban.create_pool(self._conninfo, min_size=2, max_size=10)
        await started()
        async with self._package.Oban(pool=pool, queues={"default": concurrency}):
            await asyncio.to_thread(sys.stdin.read)
        await pool.close()


class Procrastinate:
    """procrastinate claims and finishes each job by calls of its own."""

    def __init__(self, conninfo: str) -> None:
        package: Any = importlib.import_module("procrastinate")
        self._app = package.App(connector=package.PsycopgConnector(conninfo=conninfo))

        @self._app.task(name="nothing")  # type: ignore[untyped-decorator]
        async def nothing(**_payload: object) -> None:
            """Do nothing."""

        self._nothing: Any = nothing

    async def fill(self, jobs: int) -> None:
        """Make the tables, or empty them, and fill them."""
        async with self._app.open_async():
            connector = self._app.connector
            found = await connector.execute_query_one_async(
                "SELECT to_regclass('procrastinate_jobs') IS NOT NULL AS present"
            )
            if found["present"]:
                await connector.execute_query_async("TRUNCATE procrastinate_jobs CASCADE")
            else:
                await self._app.schema_manager.apply_schema_async()
            if jobs:
                await self._nothing.batch_defer_async(*[PAYLOAD for _ in range(jobs)])

    async def work(self, concurrency: int) -> None:
        """Run all jobs there are."""
        async with self._app.open_async():
            await started()
            await self._app.run_worker_async(
                concurrency=concurrency, wait=False, listen_notify=False, install_signal_handlers=False
            )

    async def put(self, concurrency: int, jobs: int) -> None:
        """Defer jobs one by one, in coroutines."""

        async def one_by_one(count: int) -> None:
            for _ in range(count):
                await self._nothing.defer_async(**PAYLOAD)

        async with self._app.open_async():
            await started()
            shares = [jobs // concurrency + (each < jobs % concurrency) for each in range(concurrency)]
            await asyncio.gather(*map(one_by_one, shares))


def litequeue(file: str, jobs: int) -> float:
    """Return the seconds in which litequeue takes all messages, and marks them done."""
    queue = importlib.import_module("litequeue").LiteQueue(file)
    for _ in range(jobs):
        queue.put(str(PAYLOAD))
    start = time.monotonic()
    while (message := queue.pop()) is not None:
        queue.done(message.message_id, claim_id=message.claim_id)
    return time.monotonic() - start


def huey(file: str, jobs: int) -> float:
    """Return the seconds in which SqliteHuey hands out all jobs, each of which it deletes then."""
    # Beside this script, which another interpreter runs: it does not have the package `benchmarks`.
    storage = importlib.import_module("worker_peers").sqlite_huey(file).storage
    for _ in range(jobs):
        storage.enqueue(str(PAYLOAD).encode())
    start = time.monotonic()
    while storage.dequeue() is not None:
        pass
    return time.monotonic() - start


def versions() -> dict[str, str]:
    """Return the versions of the peers that are installed."""
    found = {}
    for name in NAMES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def main(verb: str, peer: str = "", where: str = "", *numbers: str) -> None:
    """Do what is asked for."""
    if verb == "versions":
        print(json.dumps(versions()))
    elif verb == "drain":
        print({"litequeue": litequeue, "huey": huey}[peer](where, *map(int, numbers)))
    else:
        measured = {"oban": Oban, "procrastinate": Procrastinate}[peer](where)
        asyncio.run(getattr(measured, verb)(*map(int, numbers)))


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    main(*sys.argv[1:])
