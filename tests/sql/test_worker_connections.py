"""A worker with many slots opens no more connections than its queue may."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import sqlalchemy as sa

from freshq import Outcome, Queue
from freshq.stores.sql import SqlStore
from tests.support.patience import PATIENCE_SECONDS
from tests.support.working import work_off

if TYPE_CHECKING:
    from freshq import Task
    from tests.support.databases import Server

SLOTS = 256
MAX_CONNECTIONS = 10


def test_256_slots_share_ten_connections(postgres_server: Server, postgres_engine: sa.Engine) -> None:
    with postgres_engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM tasks"))
    queue = Queue.sql(postgres_server.url, lease_seconds=4)  # extended while they run
    assert isinstance(queue.store, SqlStore)
    opened: list[object] = []
    sa.event.listen(queue.store.database.engine, "connect", lambda *connection: opened.append(connection))
    queue.put_many([{"payload": number} for number in range(2 * SLOTS)])
    together = threading.Barrier(SLOTS, timeout=PATIENCE_SECONDS)

    def runner(_task: Task) -> None:
        together.wait()

    report = work_off(queue, runner, concurrency=SLOTS)
    assert report.outcomes[Outcome.SUCCEEDED] == 2 * SLOTS
    assert 2 <= len(opened) <= MAX_CONNECTIONS
