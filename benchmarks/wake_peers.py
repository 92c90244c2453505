"""Idle workers and producers of other queues for `benchmarks.wake`, run as `worker_peers` is.

    python wake_peers.py work PEER WHERE
    python wake_peers.py put PEER WHERE TASKS

`work` prints `ready` once its worker waits for tasks, and for each run the milliseconds since its put began;
it works until its input is closed. `put` puts single tasks, at random intervals.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import random
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Put = Callable[[float], Awaitable[object]]

SLOTS: Final = 8
# Longer than a worker takes to be idle again.
PAUSE_SECONDS: Final = (0.05, 0.25)
# A worker has reached its first wait by then.
SETTLED_SECONDS: Final = 1.0


def pauses(seed: object) -> random.Random:
    """Return the source of pauses between puts."""
    return random.Random(str(seed))


def note(put_at: float) -> None:
    """Print the milliseconds since a put began, by the machine's monotonic clock."""
    sys.stdout.write(f"{1000 * (time.monotonic() - put_at):.2f}\n")
    sys.stdout.flush()


@dataclass(frozen=True, slots=True)
class Peer:
    """Another queue.

    Attributes:
        work: Runs tasks until an event is set.
        put_many: Opens the queue and calls a function with what puts a task.
    """

    work: Callable[[asyncio.Event], Awaitable[None]]
    put_many: Callable[[Callable[[Put], Awaitable[None]]], Awaitable[None]]


def procrastinate(where: str) -> Peer:
    """Measure procrastinate, which listens."""
    package = importlib.import_module("procrastinate")
    app = package.App(connector=package.PsycopgConnector(conninfo=where))

    @app.task(name="note")  # type: ignore[untyped-decorator]
    async def noted(put_at: float) -> None:
        note(put_at)

    async def work(over: asyncio.Event) -> None:
        async with app.open_async():
            working = asyncio.create_task(
                app.run_worker_async(concurrency=SLOTS, install_signal_handlers=False)
            )
            await over.wait()
            working.cancel()

    async def put_many(use: Callable[[Put], Awaitable[None]]) -> None:
        async with app.open_async():
            await use(lambda put_at: noted.defer_async(put_at=put_at))

    return Peer(work, put_many)


def oban(where: str) -> Peer:
    """Measure oban, which listens."""
    package = importlib.import_module("oban")

    class _Noted:
        async def process(self, job: Any) -> None:
            note(job.args["put_at"])

    noted: Any = package.worker(queue="default")(_Noted)

    async def work(over: asyncio.Event) -> None:
        pool = await package.Oban.create_pool(where, min_size=2, max_size=10)
        async with package.Oban(pool=pool, queues={"default": SLOTS}):
            await over.wait()
        await pool.close()

    async def put_many(use: Callable[[Put], Awaitable[None]]) -> None:
        pool = await package.Oban.create_pool(where, min_size=2, max_size=10)
        client = package.Oban(pool=pool)
        await use(lambda put_at: client.enqueue(noted.new({"put_at": put_at})))
        await pool.close()

    return Peer(work, put_many)


PEERS: Final[dict[str, Callable[[str], Peer]]] = {each.__name__: each for each in (procrastinate, oban)}


async def _work(peer: Peer) -> None:
    over = asyncio.Event()
    working = asyncio.ensure_future(peer.work(over))
    await asyncio.sleep(SETTLED_SECONDS)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    over.set()
    await working


async def _put(peer: Peer, tasks: int) -> None:
    source = pauses(tasks)

    async def use(put: Put) -> None:
        for _ in range(tasks):
            await asyncio.sleep(source.uniform(*PAUSE_SECONDS))
            await put(time.monotonic())

    await peer.put_many(use)


def main(verb: str, name: str, where: str, *tasks: str) -> None:
    """Work, or put a number of tasks."""
    peer = PEERS[name](where)
    asyncio.run(_work(peer) if verb == "work" else _put(peer, int(*tasks)))


if __name__ == "__main__":
    main(*sys.argv[1:])
    # A peer's worker may have threads that do not end.
    os._exit(0)
