"""A PostgreSQL dies and its standby takes over: workers and producers go on, nothing confirmed is lost."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any, Final, Self

import pytest
from local.faults import Fault, Proxy
from local.servers import HOST, Postgres

from freshq import Claim, Queue, StoreError, Task, TaskStatus, Worker
from freshq.telemetry import Outcome
from tests.support.patience import PATIENCE_SECONDS
from tests.support.postgres import Standby, answer, confirm_by_standby, kill_all, need_postgres
from tests.support.programs import python
from tests.support.readings import known, within_seconds
from tests.support.worker_threads import InThread, Quiet

PRODUCERS: Final = 3
# Confirmed puts before the failover, and after it.
PUTS: Final = 60
LONG_SECONDS: Final = 240.0
PUT: Final = "import sys, freshq; freshq.Queue.sql(sys.argv[1]).put('from afar', task_id='afar')"
# Held by the session that listens on behalf of waiting callers.
LISTENERS: Final = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'"


def address(*servers: Postgres) -> str:
    """Return the address that names several servers."""
    return f"postgresql://freshq@{','.join(f'{HOST}:{server.port}' for server in servers)}/postgres"


@pytest.fixture
def primary() -> Iterator[Postgres]:
    """Return a separate server."""
    need_postgres()
    with Postgres(durable=True) as server, closing(Queue.sql(server.url)) as queue:
        queue.create_table()
        yield server


class Log(Quiet):
    """An observer that keeps starts and confirmed completions in one order."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[tuple[str, str]] = []

    def run(self, task: Task) -> None:
        self.steps.append(("started", task.task_id))

    def settled(self, claim: Claim, outcome: Outcome, run_seconds: float, error: str | None) -> None:
        super().settled(claim, outcome, run_seconds, error)
        if outcome is Outcome.SUCCEEDED:
            self.steps.append(("completed", claim.task.task_id))

    def started_again(self) -> list[str]:
        """Return the tasks that started after their completion was confirmed."""
        over, again = set[str](), list[str]()
        for step, task_id in self.steps:
            if step == "completed":
                over.add(task_id)
            elif task_id in over:
                again.append(task_id)
        return again


class Producers:
    """Threads that put tasks, each again under its id until the put is confirmed."""

    def __init__(self, url: str) -> None:
        self.confirmed: list[str] = []
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._put, args=(url, number)) for number in range(PRODUCERS)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(LONG_SECONDS)

    def _put(self, url: str, number: int) -> None:
        with closing(Queue.sql(url)) as queue:
            while not self._over.is_set():
                task_id = f"{number}-{len(self.confirmed)}"
                while not self._over.is_set():
                    try:
                        queue.put("work", task_id=task_id)
                    except StoreError:
                        continue
                    self.confirmed.append(task_id)
                    break


@pytest.mark.timeout(3 * LONG_SECONDS)
def test_workers_and_producers_move_to_the_promoted_standby(primary: Postgres) -> None:
    log = Log()
    with Standby(primary) as standby:
        confirm_by_standby(primary)
        url = address(primary, standby)
        with closing(Queue.sql(url)) as queue:
            # It polls only once an hour: without a notification the task would wait.
            worker = Worker(queue, log.run, concurrency=4, poll_seconds=3600, observer=log)
            with InThread(worker) as working:
                with Producers(url) as producers:
                    assert within_seconds(LONG_SECONDS, lambda: len(producers.confirmed) >= PUTS)
                    kill_all(primary)
                    standby.promote()
                    so_far = len(producers.confirmed)
                    assert within_seconds(LONG_SECONDS, lambda: len(producers.confirmed) >= so_far + PUTS)
                assert within_seconds(LONG_SECONDS, lambda: queue.stats().pending == queue.stats().taken == 0)
                assert within_seconds(LONG_SECONDS, lambda: answer(standby, LISTENERS) >= 1)
                python("-c", PUT, url)
                assert within_seconds(
                    PATIENCE_SECONDS, lambda: known(queue, "afar").status is TaskStatus.SUCCESS
                )
                working.ended()
            missing = [each for each in producers.confirmed if queue.get(each) is None]
            done = {known(queue, each).status for each in producers.confirmed if each not in missing}
    assert missing == []
    assert done == {TaskStatus.SUCCESS}
    assert log.started_again() == []


@pytest.fixture
def cut_off(primary: Postgres) -> Iterator[tuple[Standby, Proxy]]:
    """Return a standby that follows through a network that can fail."""
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy(primary.port))
        standby = stack.enter_context(Standby(primary, proxy.port))
        yield standby, proxy


@pytest.mark.timeout(3 * LONG_SECONDS)
def test_what_an_unreachable_standby_did_not_confirm_is_not_confirmed(
    primary: Postgres, cut_off: tuple[Standby, Proxy]
) -> None:
    standby, proxy = cut_off
    confirm_by_standby(primary)
    limits: Any = {"answer_timeout_seconds": 1.0, "lock_timeout_seconds": 1.0, "connect_timeout_seconds": 5.0}
    with closing(Queue.sql(address(primary, standby), **limits)) as queue:
        queue.put("confirmed", task_id="a")
        proxy.fault = Fault.SWALLOW
        with pytest.raises(StoreError):
            queue.put("not confirmed", task_id="b")
        kill_all(primary)
        standby.promote()
        assert queue.get("b") is None
        assert queue.put("again", task_id="b").outcome == "CREATED"
        assert known(queue, "a").payload == "confirmed"


@pytest.mark.timeout(3 * LONG_SECONDS)
def test_an_asynchronous_standby_lacks_the_last_puts(
    primary: Postgres, cut_off: tuple[Standby, Proxy]
) -> None:
    standby, proxy = cut_off
    with closing(Queue.sql(address(primary, standby))) as queue:
        queue.put("followed", task_id="a")
        assert within_seconds(PATIENCE_SECONDS, lambda: answer(standby, "SELECT count(*) FROM tasks") == 1)
        proxy.fault = Fault.SWALLOW
        queue.put("confirmed, and lost", task_id="b")
        kill_all(primary)
        standby.promote()
        assert queue.get("a") is not None
        assert queue.get("b") is None
