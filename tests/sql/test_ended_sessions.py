"""A server that ends idle sessions, even inside a transaction."""

import random
import select
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

import psycopg
import pymysql  # type: ignore[import-untyped]
import pytest
import sqlalchemy as sa

from freshq import Backoff, Queue, Task, TaskStatus, Worker
from freshq.errors import StoreError, Throttled, Unreachable
from freshq.queue.core import core_of
from freshq.stores.sql import SqlStore, database, failures
from freshq.stores.sql.failures import translated
from freshq.telemetry import Outcome
from tests.support.patience import PATIENCE_SECONDS
from tests.support.readings import known, within_seconds
from tests.support.worker_threads import Quiet

# By server: the setting that ends sessions idle in a transaction, and the name in the message.
ENDS: Final[dict[str, dict[str, str]]] = {
    "postgres": {
        "idle_in_transaction_session_timeout": "SET idle_in_transaction_session_timeout = '50ms'",
    },
    "mariadb": {
        "wait_timeout": "SET SESSION wait_timeout = 1",
        "idle_transaction_timeout": "SET SESSION idle_transaction_timeout = 1",
    },
}
CASES: Final = [(server, setting) for server, settings in ENDS.items() for setting in settings]


@contextmanager
def queue_on(request: pytest.FixtureRequest, server: str) -> Iterator[Queue]:
    engine: sa.Engine = request.getfixturevalue(f"{server}_engine")
    store = SqlStore(engine.url, queue="default")
    queue = Queue(store, backoff=Backoff(3600.0, 3600.0), rng=random.Random(7))
    yield queue
    queue.close()


def wait_for_end(connection: sa.Connection, statement: str) -> None:
    """Shorten the time for which the session may be idle, and wait until the server has ended it."""
    connection.exec_driver_sql(statement)
    raw: Any = connection.connection.driver_connection
    number = raw.info.backend_pid if hasattr(raw, "info") else raw.thread_id()
    listed = {
        "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE pid = :number",
        "mysql": "SELECT count(*) FROM information_schema.processlist WHERE id = :number",
    }
    apart = sa.create_engine(connection.engine.url, poolclass=sa.NullPool)
    query = sa.text(listed[connection.dialect.name.replace("mariadb", "mysql")])

    def is_gone() -> bool:
        with apart.connect() as other:
            return not other.scalar(query, {"number": number})

    assert within_seconds(PATIENCE_SECONDS, is_gone)


@pytest.mark.parametrize(("server", "setting"), CASES)
@pytest.mark.parametrize("writes", [False, True])
def test_a_run_whose_transaction_the_server_ended_is_an_attempt(
    request: pytest.FixtureRequest, server: str, setting: str, writes: bool
) -> None:
    with queue_on(request, server) as queue:
        queue.put("older", task_id="older")
        queue.put("long", task_id="long")
        runs: list[str] = []

        def runner(task: Task, connection: sa.Connection) -> None:
            runs.append(task.task_id)
            if task.task_id == "long":
                wait_for_end(connection, ENDS[server][setting])
                if writes:
                    connection.execute(sa.text("SELECT 1"))

        observer = Quiet()
        worker = Worker(queue, runner, transaction=True, concurrency=1, poll_seconds=0.01, observer=observer)
        worker.run(until=lambda: len(observer.settlements) >= 2)
        assert runs[:2] == ["long", "older"]
        task = known(queue, "long")
        assert (task.status, task.attempts) == (TaskStatus.PENDING, 1)
        assert task.not_before is not None
        assert setting in str(task.error)
        assert "credentials" not in str(task.error)
        assert known(queue, "older").status is TaskStatus.SUCCESS
        assert {outcome for _claim, outcome, *_ in observer.settlements} >= {Outcome.RETRIED}


@pytest.mark.parametrize(("server", "setting"), CASES)
def test_the_block_of_a_library_user_raises(
    request: pytest.FixtureRequest, server: str, setting: str
) -> None:
    with queue_on(request, server) as queue:
        queue.put("long", task_id="long")
        with pytest.raises(Unreachable, match=setting), queue.transaction() as held:
            assert held is not None
            wait_for_end(held.connection, ENDS[server][setting])
        assert known(queue, "long").attempts == 1


def test_a_process_that_is_stopped_in_a_transaction_loses_its_locks(
    postgres_engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres_engine.url.render_as_string(hide_password=False)
    patient: Any = dict.fromkeys(("lock_timeout_seconds", "answer_timeout_seconds"), PATIENCE_SECONDS)
    stopped = SqlStore(postgres_engine.url, queue="default").database.engine
    with closing(Queue.sql(url, **patient)) as queue:
        task = queue.put("work")
        with monkeypatch.context() as patch:  # for the connection of the stopped process only
            patch.setattr(database, "STOPPED_SECONDS", 0.05)
            connection = stopped.connect()
        with connection:
            connection.execute(sa.text("SELECT task_id FROM tasks FOR UPDATE"))
            assert queue.cancel(task.task_id).status is TaskStatus.CANCELLED
            connection.invalidate()
    stopped.dispose()


def test_a_block_of_the_caller_may_wait_as_long_as_the_server_lets_it(postgres_engine: sa.Engine) -> None:
    show = sa.text("SHOW idle_in_transaction_session_timeout")
    with closing(Queue.sql(postgres_engine.url.render_as_string(hide_password=False))) as queue:
        queue.put("work")
        with queue.transaction() as held:
            assert held is not None
            assert held.connection.execute(show).scalar_one() == "0"


IDLE: Final = {
    "postgres": ["SET idle_session_timeout = '50ms'"],
    "mariadb": ["SET SESSION wait_timeout = 1"],
}


@pytest.mark.parametrize(("server", "statement"), [(name, each) for name in IDLE for each in IDLE[name]])
def test_idle_sessions_that_the_server_ended_are_replaced(
    request: pytest.FixtureRequest, server: str, statement: str
) -> None:
    engine: sa.Engine = request.getfixturevalue(f"{server}_engine")
    queue = Queue(SqlStore(engine.url, queue="default"))
    pool: Any = core_of(queue).store.database.engine.pool  # type: ignore[attr-defined]
    verbs: list[Callable[[], object]] = [
        lambda: queue.put("work"),
        queue.claim,
        queue.stats,
        lambda: queue.put_many([{"payload": 1}] * 2),
    ]
    queue.put("first")
    for verb in verbs:
        idle = [entry.dbapi_connection for entry in pool._idle]
        for raw in idle:
            try:
                with raw.cursor() as cursor:
                    cursor.execute(statement)
            except (psycopg.Error, pymysql.Error):
                continue
        gone = time.monotonic() + PATIENCE_SECONDS
        while any(_is_alive(raw) for raw in idle):
            assert time.monotonic() < gone
            time.sleep(0.02)
        verb()
    queue.close()


def _is_alive(raw: Any) -> bool:
    """Return whether the server has not closed a connection, without a statement on it."""
    number = raw.fileno() if hasattr(raw, "fileno") else raw._sock.fileno()
    if number < 0:
        return False
    readable, _, _ = select.select([number], [], [], 0)
    return not readable


def _postgresql(state: str) -> Exception:
    error = psycopg.OperationalError("reason")
    error.sqlstate = state
    return error


class OfPsycopg2(Exception):
    def __init__(self, state: str) -> None:
        super().__init__("reason")
        self.pgcode = state


class OfMariaDbsConnector(Exception):
    def __init__(self, number: int) -> None:
        super().__init__("reason")
        self.errno, self.sqlstate = number, "HY000"


def _whole(state: str) -> str:
    return state if len(state) == 5 else f"{state}000"[:5]


def _pymysql(number: int) -> Exception:
    error = pymysql.OperationalError(number, "reason")
    error.sqlstate = "42S02"  # it passes on the server's SQLSTATE, and several errors share one
    return error  # type: ignore[no-any-return]


MAKES: Final[dict[str, Callable[[Any], Exception]]] = {
    "psycopg": _postgresql,
    "psycopg2": OfPsycopg2,
    "pg8000": lambda state: Exception({"C": state, "M": "reason"}),
    "pymysql": _pymysql,
    "mariadb": OfMariaDbsConnector,
}


@pytest.mark.parametrize("driver", MAKES)
@pytest.mark.parametrize("kind", [Unreachable, Throttled])
def test_every_code_of_the_lists_is_translated_for_every_driver(driver: str, kind: type[StoreError]) -> None:
    is_postgresql = driver in ("psycopg", "psycopg2", "pg8000")
    states = failures.GONE_STATES if kind is Unreachable else failures.BUSY_STATES
    numbers = failures.GONE_NUMBERS if kind is Unreachable else failures.BUSY_NUMBERS
    dialect = "postgresql" if is_postgresql else "mariadb"
    for code in [*map(_whole, states)] if is_postgresql else [*numbers]:
        error = translated(MAKES[driver](code), dialect, "tasks")
        assert type(error) is kind, code
        if code in failures.ENDED_BY:
            assert failures.ENDED_BY[code] in str(error)


@pytest.mark.parametrize(
    "reason", ["database is locked", "database table is locked: tasks", "locking protocol", "interrupted"]
)
def test_sqlite_that_is_busy(reason: str) -> None:
    assert type(translated(Exception(reason), "sqlite", "tasks")) is Throttled
    assert type(translated(Exception("database or disk is full"), "sqlite", "tasks")) is Throttled
