"""On SQLite, the threads of a process run one statement at a time."""

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from freshq import GroupRule, GroupRules, Queue
from freshq.errors import StoreError
from freshq.stores.sql import forks
from freshq.stores.sql.database import Database, PreparedStatement
from freshq.stores.sql.url import ConnectionLimits
from tests.support.forking import REFUSED, exit_code, forked
from tests.support.patience import PATIENCE_SECONDS

THREADS = 4


class Meeting:
    """A SQL function that waits a moment until other threads are inside it."""

    def __init__(self) -> None:
        self.met = threading.Event()
        self.left = threading.Event()
        self._lock = threading.Lock()
        self._inside = 0

    def __call__(self) -> int:
        with self._lock:
            self._inside += 1
            if self._inside > 1:
                self.met.set()
        self.met.wait(0.02)
        with self._lock:
            self._inside -= 1
        return 1

    def hold(self) -> int:
        """Wait until the test has seen enough."""
        self.met.set()
        assert self.left.wait(PATIENCE_SECONDS)
        return 1


@pytest.fixture
def meeting() -> Meeting:
    return Meeting()


@pytest.fixture
def lock_timeout_seconds() -> float:
    return PATIENCE_SECONDS


@pytest.fixture
def database(tmp_path: Path, meeting: Meeting, lock_timeout_seconds: float) -> Iterator[Database]:
    limits = ConnectionLimits(lock_timeout_seconds=lock_timeout_seconds)
    database = Database(f"sqlite:///{tmp_path}/lock.db", "tasks", limits)
    database.allow_new_file()

    def prepare(connection: Any, _record: object) -> None:
        connection.create_function("meet", 0, meeting)
        connection.create_function("hold", 0, meeting.hold)

    event.listen(database.engine, "connect", prepare)
    yield database
    database.close()


def statement(database: Database, name: str) -> PreparedStatement:
    return PreparedStatement(sa.select(getattr(sa.func, name)()), database.engine.dialect)


def test_one_thread_at_a_time_runs_a_statement(database: Database, meeting: Meeting) -> None:
    meet = statement(database, "meet")
    with ThreadPoolExecutor(THREADS) as threads:
        results = list(threads.map(lambda _: database.execute(meet, {}), range(2 * THREADS)))
    assert [result.rows for result in results] == [[(1,)]] * (2 * THREADS)
    assert not meeting.met.is_set()


def test_a_failed_statement_releases_the_lock(database: Database) -> None:
    fails = PreparedStatement(
        sa.text("SELECT 1 FROM absent").columns(sa.column("one")), database.engine.dialect
    )
    with pytest.raises(StoreError):
        database.execute(fails, {})
    assert database.execute(statement(database, "meet"), {}).rows == [(1,)]


@pytest.mark.parametrize("lock_timeout_seconds", [0.05])
def test_a_statement_that_hangs_does_not_hold_up_the_others_for_ever(
    database: Database, meeting: Meeting
) -> None:
    with ThreadPoolExecutor(1) as threads:
        hangs = threads.submit(database.execute, statement(database, "hold"), {})
        try:
            assert meeting.met.wait(PATIENCE_SECONDS)
            assert database.execute(statement(database, "meet"), {}).rows == [(1,)]
            assert not hangs.done()
        finally:
            meeting.left.set()
        assert hangs.result().rows == [(1,)]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")  # the test does this on purpose
@pytest.mark.parametrize("lock_timeout_seconds", [600.0])
def test_a_forked_child_does_not_wait_for_a_thread_of_its_parent(
    database: Database, meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "WAIT_SECONDS", 0.1)
    one = PreparedStatement(sa.select(sa.literal(1)), database.engine.dialect)
    with ThreadPoolExecutor(1) as threads:
        hangs = threads.submit(database.execute, statement(database, "hold"), {})
        try:
            assert meeting.met.wait(PATIENCE_SECONDS)
            # Its connection is in use in the parent, so SQLite's locks would not work in the child.
            assert exit_code(forked(lambda: database.execute(one, {}))) == REFUSED
        finally:
            meeting.left.set()
        assert hangs.result().rows == [(1,)]


@pytest.mark.parametrize(
    "options",
    [{"order": "value"}, {"order": "deadline"}, {"groups": GroupRules(default=GroupRule(max_running=1))}],
    ids=["value", "deadline", "limits"],
)
def test_claims_of_an_empty_queue_need_no_write_lock(tmp_path: Path, options: dict[str, Any]) -> None:
    """Idle workers look every second; a lock for each look would hold up whoever writes."""
    url = f"sqlite:///{tmp_path}/tasks.db"
    with Queue.sql(url, lock_timeout_seconds=0.01, max_age_seconds=None, **options) as queue:
        queue.create_table()
        writer = sqlite3.connect(tmp_path / "tasks.db", isolation_level=None)
        for _ in range(2):
            queue.put("work")
            (claim,) = queue.claim()
            queue.complete(claim)
            assert queue.claim() == []  # it looks, and finds no line
            writer.execute("BEGIN IMMEDIATE")
            assert queue.claim() == []
            writer.execute("ROLLBACK")
        writer.close()
