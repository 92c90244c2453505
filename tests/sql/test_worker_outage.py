"""A worker whose PostgreSQL is stopped under load and started again."""

import threading
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from local.servers import Postgres, Unavailable, databases_are_required

from freshq import Queue, Task, Worker
from freshq.telemetry import Outcome, RunReport
from tests.support.patience import PATIENCE_SECONDS
from tests.support.readings import within_seconds

TASKS = 400
# The test sleeps for this time, because it tests the length of the outage. A worker once gave up after four
# tries, over six seconds.
OUTAGE_SECONDS = 9.0
# A claim whose reply the outage took is repeated after its lease.
LONG_SECONDS = 240.0


@pytest.fixture
def server() -> Iterator[Postgres]:
    """Return a separate PostgreSQL, because other tests share theirs."""
    try:
        with Postgres() as server:
            yield server
    except Unavailable as missing:
        if databases_are_required():
            raise
        pytest.skip(str(missing))


def test_a_worker_outlives_its_database(server: Postgres) -> None:
    """Some tasks start before the outage and end in it, others after it."""
    queue = Queue.sql(server.url, lease_seconds=120)
    queue.create_table()
    queue.put_many([{"payload": number % 100, "task_id": str(number)} for number in range(TASKS)])
    starts, during, after = Counter[str](), threading.Event(), threading.Event()

    def runner(task: Task) -> None:
        starts[task.task_id] += 1
        if task.payload == 0:
            assert after.wait(LONG_SECONDS)
        elif task.payload == 1:
            assert during.wait(LONG_SECONDS)
        time.sleep(0.01)

    reports: list[RunReport] = []
    worker = Worker(queue, runner, concurrency=16, poll_seconds=0.05)
    thread = threading.Thread(target=lambda: reports.append(worker.run()))
    thread.start()
    try:
        assert within_seconds(PATIENCE_SECONDS, lambda: starts.total() >= TASKS / 4)
        server.stop()
        during.set()
        time.sleep(OUTAGE_SECONDS)
        server.start()
        after.set()
        assert within_seconds(LONG_SECONDS, lambda: queue.stats().success == TASKS)
    finally:
        during.set()
        after.set()
        worker.stop()
        thread.join(PATIENCE_SECONDS)
        queue.close()
    (report,) = reports
    assert report.outcomes[Outcome.SUCCEEDED] == TASKS
    assert report.outcomes[Outcome.FAILED] == report.outcomes[Outcome.RETRIED] == 0
    # Only tasks whose claim lost its reply return after their leases, and they never started before.
    assert set(starts.values()) == {1}
