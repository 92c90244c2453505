"""Eight workers on PostgreSQL do a million tasks that two producers put: each once, and the ledger holds."""

import os
import time
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from typing import Any, Final

import pytest
import sqlalchemy as sa

from freshq import Queue, Worker
from freshq.stores.sql import SqlStore
from tests.soak.handover import PATIENT, WEEK_SECONDS
from tests.sql.workers import CONTEXT, rows
from tests.support.patience import PATIENCE_SECONDS
from tests.support.readings import counts, within_seconds

SOAK_SECONDS: Final = float(os.environ.get("FRESHQ_SOAK_SECONDS", "2"))
TASKS: Final = min(1_000_000, round(3_400 * SOAK_SECONDS))
WORKERS: Final = 8
PRODUCERS: Final = 2
BATCH: Final = 500
OPTIONS: Final[Any] = {"max_age_seconds": WEEK_SECONDS, **PATIENT}
LONG_SECONDS: Final = 300 + 8 * SOAK_SECONDS
DOUBLE: Final = "SELECT count(*) FROM tasks WHERE attempts <> 1 OR status <> 'SUCCESS'"


def work(url: str) -> None:
    """Work until killed."""
    with Queue.sql(url, **OPTIONS) as queue:
        Worker(queue, lambda task: task.payload, concurrency=8, poll_seconds=0.2).run()


def produce(url: str, numbers: Sequence[int]) -> None:
    """Put the tasks."""
    with Queue.sql(url, **OPTIONS) as queue:
        for start in range(0, len(numbers), BATCH):
            queue.put_many(
                [{"payload": number, "task_id": str(number)} for number in numbers[start : start + BATCH]]
            )


def is_worked_off(queue: Queue) -> bool:
    """Return whether nothing is left to do; the approximate count of few tasks is exact."""
    stats = queue.stats(approximate=True)
    return stats.pending == stats.taken == 0


@pytest.mark.timeout(LONG_SECONDS + 60)
def test_a_million_tasks(postgres_engine: sa.Engine) -> None:
    url = postgres_engine.url.render_as_string(hide_password=False)
    queue = Queue(SqlStore(postgres_engine), clock=time.time, max_age_seconds=WEEK_SECONDS)
    processes: list[BaseProcess] = [
        *(CONTEXT.Process(target=work, args=(url,), daemon=True) for _ in range(WORKERS)),
        *(
            CONTEXT.Process(target=produce, args=(url, range(number, TASKS, PRODUCERS)), daemon=True)
            for number in range(PRODUCERS)
        ),
    ]
    for process in processes:
        process.start()
    try:
        for producer in processes[WORKERS:]:
            producer.join(LONG_SECONDS)
            assert producer.exitcode == 0
        assert within_seconds(LONG_SECONDS, lambda: is_worked_off(queue))
    finally:
        for process in processes:
            process.kill()
            process.join(PATIENCE_SECONDS)
    assert counts(queue.stats()) == {"success": TASKS}
    assert rows(postgres_engine, DOUBLE) == [(0,)]
