"""A worker whose DynamoDB table answers no call for a while."""

import threading

import pytest
from local.faults import counted, refused

from freshq import Task, Worker
from freshq.policy.retry import Backoff
from freshq.telemetry import Outcome, RunReport
from freshq.worker import loop, settle
from tests.conftest import StoreUnderTest
from tests.support.patience import PATIENCE_SECONDS
from tests.support.worker_threads import wait_until


def test_a_worker_outlives_an_outage_of_its_table(
    table_store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It claims, renews and settles again once the table answers."""
    monkeypatch.setattr(loop, "CLAIM_BACKOFF", Backoff(0.02, 0.05))
    monkeypatch.setattr(settle, "SETTLE_BACKOFF", Backoff(0.02, 0.05))
    queue, client = table_store.queue(lease_seconds=60), table_store.client
    assert client is not None
    queue.put_many([{"payload": number, "task_id": str(number)} for number in range(3)])
    started, release = threading.Semaphore(0), threading.Event()
    reports: list[RunReport] = []

    def runner(_task: Task) -> None:
        started.release()
        assert release.wait(PATIENCE_SECONDS)

    worker = Worker(queue, runner, concurrency=4, poll_seconds=0.01)
    thread = threading.Thread(target=lambda: reports.append(worker.run()))
    thread.start()
    try:
        for _ in range(3):
            assert started.acquire(timeout=PATIENCE_SECONDS)
        with counted(client) as calls, refused(client, code="InternalServerError"):
            table_store.clock.advance(35)  # the leases are due for renewal
            release.set()
            wait_until(lambda: len(calls) >= 60)
        queue.put("late")
        wait_until(lambda: queue.stats().success == 4)
    finally:
        release.set()
        worker.stop()
        thread.join(PATIENCE_SECONDS)
    assert reports[0].outcomes[Outcome.SUCCEEDED] == 4
