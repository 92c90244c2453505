"""The time limits of calls: silent networks, locks, forks and the limits of a process."""

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from local.faults import Fault, Proxy
from local.servers import HOST, Server

from freshq import Queue
from freshq.errors import Throttled, Unreachable
from freshq.policy.retry import Backoff, CallRetry
from freshq.stores.sql import SqlStore, connection_limits_for, database
from freshq.stores.sql.schema import schema
from tests.sql.workers import LIMITS
from tests.support.one_thread_patch import confined
from tests.support.patience import PATIENCE_SECONDS
from tests.support.readings import counts, payloads
from tests.support.refusals import refused
from tests.support.statements import database_of
from tests.support.worker_threads import wait_until

T = TypeVar("T")


@pytest.fixture
def proxy(postgres_server: Server) -> Iterator[Proxy]:
    """Return a proxy in front of PostgreSQL."""
    with Proxy(postgres_server.port) as proxy:
        yield proxy


@pytest.fixture
def behind(proxy: Proxy, postgres_engine: sa.Engine) -> Iterator[Queue]:
    """Return a queue that reaches PostgreSQL through the proxy, and gives up soon."""
    assert postgres_engine.dialect.name == "postgresql"
    url = f"postgresql://freshq@{HOST}:{proxy.port}/postgres"
    queue = Queue.sql(url, connect_timeout_seconds=2, answer_timeout_seconds=0.5)
    yield queue
    queue.close()


@pytest.fixture
def direct(postgres_engine: sa.Engine) -> Queue:
    """Return the same queue without the proxy, and with patience."""
    return Queue(SqlStore(postgres_engine), clock=time.time)


def answered(call: Callable[[], T]) -> T:
    """Return the answer of a call of `behind`, which gives up sooner than a busy machine may answer."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return call()
        except Unreachable:
            if time.monotonic() > deadline:
                raise


class TestSilence:
    def test_a_network_that_swallows_answers_ends_every_call(
        self, proxy: Proxy, behind: Queue, direct: Queue
    ) -> None:
        direct.put_many([{"payload": "first"}, {"payload": "second"}])
        claim = direct.claim()[0]
        answered(lambda: behind.put("before"))
        for verb in (
            lambda: behind.put("third"),
            lambda: behind.put_many([{"payload": "fourth"}, {"payload": "fifth"}]),
            behind.claim,
            lambda: behind.complete(claim),
        ):
            proxy.fault = Fault.SWALLOW
            with pytest.raises(Unreachable):
                verb()
            proxy.fault = Fault.NONE
            answered(lambda: behind.put("another"))  # by a new connection

    def test_a_connection_that_is_never_answered_is_unreachable(
        self, proxy: Proxy, behind: Queue, direct: Queue
    ) -> None:
        proxy.fault = Fault.SWALLOW
        with pytest.raises(Unreachable):
            behind.put("work")
        wait_until(lambda: proxy.connections > 0)
        assert proxy.connections == 1
        proxy.fault = Fault.NONE
        answered(lambda: behind.put("work", task_id="a"))
        assert payloads(direct.claim()) == ["work"]

    @pytest.mark.parametrize("database", ["postgresql", "mariadb"])
    def test_a_queue_connects_nowhere_before_its_first_call(self, database: str) -> None:
        with Proxy(port=1) as proxy:
            Queue.sql(f"{database}://nobody@127.0.0.1:{proxy.port}/x").close()
            assert proxy.connections == 0

    def test_a_handlers_own_statements_may_take_longer(self, behind: Queue, direct: Queue) -> None:
        direct.put("work")

        def work_off() -> None:
            with behind.transaction() as work:
                if work is not None:
                    work.connection.execute(sa.text("SELECT pg_sleep(2)"))

        answered(work_off)
        assert counts(direct.stats()) == {"success": 1}


class TestLocks:
    @pytest.mark.parametrize("kind", ["postgres", "mariadb", "sqlite"])
    def test_a_row_that_stays_locked_is_an_error(
        self, kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        quick = Backoff(base_seconds=0.001, cap_seconds=0.001)
        monkeypatch.setattr(database, "CALL_RETRY", CallRetry(max_tries=2, backoff=quick))
        engine: sa.Engine = request.getfixturevalue(f"{kind}_engine")
        url = engine.url.render_as_string(hide_password=False)
        queue = Queue.sql(url, lock_timeout_seconds=0.1, answer_timeout_seconds=PATIENCE_SECONDS)
        queue.put("work", task_id="a")
        tasks = schema("tasks", engine.dialect.name).tasks
        with engine.begin() as connection:
            connection.execute(sa.update(tasks).values(attempts=0))
            with pytest.raises((Throttled, Unreachable)):
                queue.cancel("a")
        queue.cancel("a")
        queue.close()

    def test_no_further_try_begins_after_the_answer_timeout(
        self, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now, tries = [0.0], []
        monkeypatch.setattr(time, "monotonic", confined(lambda: now[0], time.monotonic))
        quick = Backoff(base_seconds=0.001, cap_seconds=0.001)
        monkeypatch.setattr(database, "CALL_RETRY", CallRetry(max_tries=5, backoff=quick))

        def locked(_connection: sa.Connection) -> None:
            tries.append(now[0])
            now[0] += 10
            raise sa.exc.OperationalError("SELECT 1", {}, Exception("database is locked"))

        store = SqlStore(sqlite_url)
        with pytest.raises(Throttled):
            store.database.transaction(locked)
        assert tries == [0.0, 10.0]
        store.close()


class TestProcesses:
    @pytest.mark.parametrize("kind", ["postgres", "mariadb"])
    def test_forked_children_share_no_connection(self, kind: str, request: pytest.FixtureRequest) -> None:
        engine: sa.Engine = request.getfixturevalue(f"{kind}_engine")
        queue = Queue.sql(engine.url.render_as_string(hide_password=False), **LIMITS)
        queue.put_many([{"payload": number} for number in range(60)])
        children = [_forked(queue) for _ in range(3)]
        _work_off(queue)
        assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
        assert counts(queue.stats()) == {"success": 60}
        queue.close()

    def test_a_process_opens_at_most_so_many_connections(self, sqlite_url: str) -> None:
        queue = Queue.sql(sqlite_url, max_connections=1, answer_timeout_seconds=0.05)
        queue.put("work")
        with (
            queue.transaction(),
            ThreadPoolExecutor(1) as threads,
            pytest.raises(Throttled, match="max_connections"),
        ):
            threads.submit(queue.put, "more").result()
        queue.close()


def _forked(queue: Queue) -> int:
    child = os.fork()
    if child == 0:
        try:
            _work_off(queue)
            os._exit(0)
        finally:
            os._exit(1)
    return child


def _work_off(queue: Queue) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while claims := queue.claim():
        queue.complete(claims[0])
        assert time.monotonic() < deadline


@pytest.mark.parametrize(("options", "level"), [({}, 2), ({"durable": True}, 2), ({"durable": False}, 1)])
def test_sqlite_waits_for_the_disk_unless_it_need_not(
    sqlite_url: str, options: dict[str, Any], level: int
) -> None:
    queue = Queue.sql(sqlite_url, **options)
    with database_of(queue).engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == level
    queue.close()


@pytest.mark.parametrize(
    ("lease_seconds", "expected"),
    [(None, (5, 15, 5)), (60, (5, 15, 5)), (300, (5, 15, 5)), (24, (2, 6, 2)), (1, (2, 2, 2))],
)
def test_timeouts_fit_the_lease(lease_seconds: float | None, expected: tuple[float, float, float]) -> None:
    limits = connection_limits_for(lease_seconds, answer_timeout_seconds=None, max_connections=3)
    given = (limits.connect_timeout_seconds, limits.answer_timeout_seconds, limits.lock_timeout_seconds)
    assert given == expected
    assert connection_limits_for(lease_seconds, answer_timeout_seconds=9).answer_timeout_seconds == 9


@pytest.mark.parametrize(
    "options",
    [
        {"connect_timeout_seconds": 0},
        {"answer_timeout_seconds": float("nan")},
        {"lock_timeout_seconds": "5"},
        {"answer_timeout_seconds": True},
        {"max_connections": 0},
        {"max_connections": 2.5},
        {"durable": "yes"},
    ],
)
def test_wrong_limits(sqlite_url: str, options: dict[str, Any]) -> None:
    with refused(next(iter(options))):
        Queue.sql(sqlite_url, **options)
