"""Transactions of coroutines: more at a time than there are connections."""

import asyncio

import sqlalchemy as sa
from local.servers import Postgres

from freshq import AsyncQueue, Queue
from tests.support.patience import PATIENCE_SECONDS
from tests.support.readings import counts

CONNECTIONS = 2
TASKS = 8


def test_those_that_wait_for_a_connection_do_not_keep_the_others_from_ending(
    postgres_server: Postgres, postgres_engine: sa.Engine
) -> None:
    del postgres_engine  # its tables are empty

    async def work(queue: AsyncQueue) -> int:
        async with queue.transaction() as held:
            assert held is not None
            await asyncio.sleep(0.02)  # in the meantime the other calls take all threads
            return await held.run(lambda connection: connection.execute(sa.text("SELECT 1")).scalar_one())

    async def program() -> None:
        url = postgres_server.url
        queue = AsyncQueue(
            Queue.sql(url, max_connections=CONNECTIONS, answer_timeout_seconds=4 * PATIENCE_SECONDS), 2
        )
        async with queue, asyncio.timeout(PATIENCE_SECONDS):
            await queue.put_many([{"payload": number} for number in range(TASKS)])
            answers = await asyncio.gather(*(work(queue) for _ in range(TASKS)))
            assert answers == [1] * TASKS
            assert counts(await queue.stats()) == {"success": TASKS}

    asyncio.run(program())
