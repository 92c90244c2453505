"""oban's part of `benchmarks.sql`, run by an interpreter that has it: it needs Python 3.12 or newer.

python sql_oban.py CONNINFO fill JOBS
python sql_oban.py CONNINFO work CONCURRENCY     # until its input ends
"""

from __future__ import annotations

import asyncio
import importlib
import sys
from typing import Any, Final

PAYLOAD: Final = {"order": "7c0a1c52-6a64-4d0c-8d0e-9a6a1b7f2c11", "customer": 4711, "items": [1, 2, 3]}
BATCH: Final = 500

oban: Any = importlib.import_module("oban")
schema: Any = importlib.import_module("oban.schema")


class _Nothing:
    """A job that does nothing."""

    async def process(self, _job: object) -> None:
        """Do nothing."""


Nothing: Any = oban.worker(queue="default")(_Nothing)


async def fill(pool: object, jobs: int) -> None:
    """Make the tables anew, and fill them."""
    await schema.uninstall(pool)
    await schema.install(pool)
    client = oban.Oban(pool=pool)
    for start in range(0, jobs, BATCH):
        await client.enqueue_many([Nothing.new(PAYLOAD) for _ in range(start, min(jobs, start + BATCH))])


async def work(pool: object, concurrency: int) -> None:
    """Run jobs until the input ends."""
    async with oban.Oban(pool=pool, queues={"default": concurrency}):
        await asyncio.to_thread(sys.stdin.read)


async def main(conninfo: str, verb: str, number: int) -> None:
    """Do what is asked for."""
    pool = await oban.Oban.create_pool(conninfo, min_size=2, max_size=10)
    try:
        await {"fill": fill, "work": work}[verb](pool, number)
    finally:
        await pool.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
