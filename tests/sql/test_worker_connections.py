"""A worker with many slots opens no more connections than its queue may."""

import threading
from typing import Any

import pytest
import sqlalchemy as sa
from local.servers import Server

from freshq import Claim, Queue, Task
from freshq.telemetry import Outcome
from tests.conftest import Clock
from tests.support.patience import PATIENCE_SECONDS
from tests.support.statements import database_of
from tests.support.worker_threads import work_off

SLOTS = 256
MAX_CONNECTIONS = 10


def test_256_slots_share_ten_connections(
    postgres_server: Server, postgres_engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with postgres_engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM tasks"))
    clock = Clock()
    queue = Queue.sql(postgres_server.url, lease_seconds=20, clock=clock)
    opened: list[object] = []
    sa.event.listen(database_of(queue).engine, "connect", lambda *connection: opened.append(connection))
    queue.put_many([{"payload": number} for number in range(2 * SLOTS)])
    extended, extend = {number: threading.Event() for number in range(2 * SLOTS)}, queue.extend

    def noted(claim: Claim, **arguments: Any) -> Claim:
        answer = extend(claim, **arguments)
        extended[claim.task.payload].set()
        return answer

    monkeypatch.setattr(queue, "extend", noted)
    together = threading.Barrier(SLOTS, action=lambda: clock.advance(15), timeout=PATIENCE_SECONDS)

    def runner(task: Task) -> None:
        together.wait()
        assert extended[task.payload].wait(PATIENCE_SECONDS)

    report = work_off(queue, runner, concurrency=SLOTS)
    assert report.outcomes[Outcome.SUCCEEDED] == 2 * SLOTS
    assert 2 <= len(opened) <= MAX_CONNECTIONS
