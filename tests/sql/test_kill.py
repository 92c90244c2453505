"""Workers die by SIGKILL at random moments on PostgreSQL: every task is done, and no change is half made.

FRESHQ_SOAK=1 makes it 16 processes and 20,000 tasks.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator
from typing import Final

import pytest
import sqlalchemy as sa
from local.servers import Server

from freshq import Queue
from freshq.queue.core import core_of
from freshq.stores.sql import SqlStore
from freshq.stores.sql.schema import schema
from tests.sql.conftest import EFFECTS, written
from tests.sql.workers import Crew, relay, rows, work_in_transactions, work_under_leases
from tests.support.readings import counts

SOAK: Final = os.environ.get("FRESHQ_SOAK") == "1"
PROCESSES: Final = 16 if SOAK else 6
TASKS: Final = 20_000 if SOAK else 1_500
KILLS: Final = 150 if SOAK else 8
LEFT: Final = "SELECT count(*) FROM tasks WHERE status <> 'SUCCESS'"
PATIENCE_SECONDS: Final = 600.0 if SOAK else 240.0


@pytest.fixture
def tables(postgres_engine: sa.Engine) -> Iterator[sa.Engine]:
    EFFECTS.create(postgres_engine)
    SqlStore(postgres_engine, "arrived").create_table()
    yield postgres_engine
    EFFECTS.drop(postgres_engine)
    schema("arrived", "postgresql").metadata.drop_all(postgres_engine)


@pytest.mark.timeout(PATIENCE_SECONDS + 60)
def test_every_task_is_done_once_however_many_workers_die(tables: sa.Engine, postgres_server: Server) -> None:
    queue = Queue(SqlStore(tables), clock=time.time)
    queue.put_many([{"payload": number, "task_id": str(number)} for number in range(TASKS)])
    jobs = [(job, (postgres_server.url,)) for job in (work_under_leases, work_in_transactions)]
    crew = Crew(jobs * (PROCESSES // 2), seed=1)
    ways = "SELECT count(DISTINCT result) FROM tasks"
    number_of_tasks = TASKS

    def done() -> bool:
        nonlocal number_of_tasks
        if rows(tables, LEFT) != [(0,)]:
            return False
        if crew.killed >= KILLS // 2 and rows(tables, ways) == [(2,)]:
            return True
        # They finished before they could be killed, or workers of one kind started late.
        queue.put(number_of_tasks, task_id=str(number_of_tasks))
        number_of_tasks += 1
        return False

    try:
        assert crew.work_until(done, kills=KILLS, within_seconds=PATIENCE_SECONDS)
    finally:
        crew.end()
    tasks = list(core_of(queue).store.scan(queue.name))
    assert sorted(int(task.task_id) for task in tasks) == list(range(number_of_tasks))
    assert counts(queue.stats()) == {"success": number_of_tasks}
    results = Counter(task.result for task in tasks)
    assert results.keys() == {"by lease", "by transaction"}
    # Exactly the transactions that settled their tasks have left effects.
    assert written(tables) == sorted(task.task_id for task in tasks if task.result == "by transaction")


@pytest.mark.timeout(PATIENCE_SECONDS + 60)
def test_a_relay_loses_and_doubles_nothing_however_often_it_dies(
    tables: sa.Engine, postgres_server: Server
) -> None:
    source = Queue(SqlStore(tables), clock=time.time)
    number_of_tasks = TASKS // 2
    source.put_many([{"payload": number, "task_id": str(number)} for number in range(number_of_tasks)])
    crew = Crew([(relay, (postgres_server.url, "arrived"))] * 2, seed=2)

    def done() -> bool:
        nonlocal number_of_tasks
        if rows(tables, LEFT) != [(0,)]:
            return False
        if crew.killed >= KILLS // 4:
            return True
        source.put(number_of_tasks, task_id=str(number_of_tasks))  # they were too quick to be killed
        number_of_tasks += 1
        return False

    try:
        assert crew.work_until(done, kills=KILLS // 2, within_seconds=PATIENCE_SECONDS)
    finally:
        crew.end()
    destination = Queue(SqlStore(tables, "arrived"), clock=time.time)
    arrived = [task.payload for task in core_of(destination).store.scan("default")]
    assert sorted(arrived) == list(range(number_of_tasks))
    assert counts(destination.stats()) == {"pending": number_of_tasks}
