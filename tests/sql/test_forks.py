"""A process that uses a SQLite file forks: nothing is acknowledged and lost."""

import asyncio
import multiprocessing
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from freshq import AsyncQueue, MatchQueue, Queue
from freshq.errors import StoreError
from freshq.queue.core import core_of
from freshq.stores.sql import forks
from tests.support.forking import REFUSED, exit_code, forked
from tests.support.patience import PATIENCE_SECONDS
from tests.support.statements import database_of
from tests.support.worker_threads import wait_until

# Python warns of forks with threads since 3.12; this test does it on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
PUTS = 100


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tasks.db"


@pytest.fixture
def queue(file: Path) -> Iterator[Queue]:
    """Return a queue that this process has used."""
    queue = Queue.sql(f"sqlite:///{file}", max_age_seconds=None)
    queue.create_table()
    queue.put("of the parent")
    yield queue
    queue.close()


def put_all(queue: Queue, count: int = PUTS) -> None:
    for number in range(count):
        assert queue.put(number).outcome == "CREATED"


def check(file: Path, tasks: int, table: str = "tasks") -> None:
    """Check that the file is sound and has this number of rows."""
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (tasks,)


def close(queue: Queue) -> None:
    queue.close()


def keep_putting(queue: Queue) -> None:
    put_all(queue)


def keep(_queue: Queue) -> None:
    """Do not touch the queue."""


@pytest.mark.parametrize("parent", [close, keep_putting, keep])
def test_children_and_parent_lose_no_task(queue: Queue, file: Path, parent: Callable[[Queue], None]) -> None:
    children = [forked(lambda: put_all(queue)) for _ in range(3)]
    parent(queue)
    assert [exit_code(child) for child in children] == [0, 0, 0]
    check(file, 1 + 3 * PUTS + (PUTS if parent is keep_putting else 0))


def test_a_daemon_outlives_its_parent(queue: Queue, file: Path) -> None:
    done, ends = os.pipe()

    def daemon() -> None:
        put_all(queue)
        os.write(ends, b".")

    def first_child() -> None:
        os.setsid()
        put_all(queue, 1)
        forked(daemon)
        queue.close()

    assert exit_code(forked(first_child)) == 0
    queue.close()
    assert os.read(done, 1) == b"."
    os.close(done)
    os.close(ends)
    check(file, 2 + PUTS)


def test_multiprocessing_by_fork(queue: Queue, file: Path) -> None:
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=put_all, args=(queue,)) for _ in range(2)]
    for child in children:
        child.start()
    put_all(queue)
    queue.close()
    for child in children:
        child.join(PATIENCE_SECONDS)
    assert [child.exitcode for child in children] == [0, 0]
    check(file, 1 + 3 * PUTS)


def test_a_fork_waits_for_the_verbs_of_other_threads(queue: Queue, file: Path) -> None:
    stopped = threading.Event()

    def use(put: Callable[[], object]) -> int:
        count = 0
        while not stopped.is_set():
            put()
            queue.claim()
            count += 1
        return count

    puts: list[Callable[[], object]] = [
        lambda: queue.put("one"),
        lambda: queue.put("over", on_conflict="ignore"),
        lambda: queue.put_many([{"payload": "a"}, {"payload": "b"}]),
    ]
    with ThreadPoolExecutor(len(puts)) as threads:
        used = [threads.submit(use, put) for put in puts]
        try:
            children = [forked(lambda: put_all(queue, 10)) for _ in range(10)]
            assert [exit_code(child) for child in children] == [0] * 10
        finally:
            stopped.set()
        one, over, two = (each.result() for each in used)
    check(file, 1 + 10 * 10 + one + over + 2 * two)


def test_a_thread_forks(queue: Queue, file: Path) -> None:
    with ThreadPoolExecutor(1) as threads:
        ended = threads.submit(lambda: exit_code(forked(lambda: put_all(queue))))
        put_all(queue)
        assert ended.result() == 0
    check(file, 1 + 2 * PUTS)


def test_a_child_of_asyncio(file: Path) -> None:
    queue = AsyncQueue.sql(f"sqlite:///{file}", max_age_seconds=None)

    async def put_some() -> None:
        for number in range(PUTS):
            assert (await queue.put(number)).outcome == "CREATED"

    async def begin() -> None:
        await queue.create_table()
        await put_some()

    asyncio.run(begin())
    children = [forked(lambda: asyncio.run(put_some())) for _ in range(2)]
    asyncio.run(queue.close())
    assert [exit_code(child) for child in children] == [0, 0]
    check(file, 3 * PUTS)


def test_resources_of_children(file: Path) -> None:
    matches = MatchQueue.sql(f"sqlite:///{file}")
    matches.create_table()

    def register(name: str) -> None:
        for number in range(PUTS):
            matches.register(f"{name}{number}", attributes={"skill": name})

    register("parent")
    children = [forked(lambda name=name: register(name)) for name in ("a", "b")]  # type: ignore[misc]
    matches.close()
    assert [exit_code(child) for child in children] == [0, 0]
    check(file, 3 * PUTS, "resources")


def test_a_watcher_hears_of_tasks_after_a_fork(queue: Queue, file: Path) -> None:
    queue.claim()
    notifier = core_of(queue).store.notifier
    with ThreadPoolExecutor(1) as threads:
        for _ in range(2):
            waits = threads.submit(queue.claim, wait_seconds=PATIENCE_SECONDS)
            wait_until(lambda: notifier.is_connected)
            assert exit_code(forked(lambda: put_all(queue, 1))) == 0
            assert len(waits.result()) == 1

        def wait_and_put() -> None:
            queue.claim(wait_seconds=0.1)
            put_all(queue, 1)

        waits = threads.submit(queue.claim, wait_seconds=PATIENCE_SECONDS)
        assert exit_code(forked(wait_and_put)) == 0
        assert len(waits.result()) == 1
    check(file, 4)


def raw(file: Path, stack: ExitStack) -> Any:
    return stack.enter_context(closing(sqlite3.connect(file)))


def of_sqlalchemy(file: Path, stack: ExitStack) -> Any:
    engine = sa.create_engine(f"sqlite:///{file}")
    stack.callback(engine.dispose)
    return stack.enter_context(engine.begin())


@pytest.mark.parametrize("connect", [raw, of_sqlalchemy])
def test_a_child_refuses_a_file_on_which_the_application_has_a_connection(
    queue: Queue, file: Path, connect: Callable[[Path, ExitStack], Any]
) -> None:
    with ExitStack() as stack:
        connection = connect(file, stack)

        def open_another() -> None:
            Queue.sql(f"sqlite:///file:{file}?uri=true", max_age_seconds=None).put("work")

        def close_first() -> None:
            stack.close()
            put_all(queue)

        works: list[Callable[[], object]] = [
            lambda: queue.put("work"),
            lambda: queue.put("work", connection=connection),
            open_another,
            close_first,
        ]
        codes = [exit_code(forked(work)) for work in works]
        assert codes == [REFUSED, REFUSED, REFUSED, 0]
    put_all(queue)
    check(file, 1 + 2 * PUTS)


def test_the_refusal_says_what_to_do(queue: Queue, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(file)):
        monkeypatch.setattr(forks, "_inherited", forks._open_files())  # as in a child
        with pytest.raises(StoreError, match=r"tasks\.db.*Close your own connections.*spawn"):
            Queue.sql(f"sqlite:///{file}", max_age_seconds=None).put("work")
    queue.put("closed since")


class TestInATransaction:
    """The parent forks inside `queue.transaction()`."""

    def test_a_child_refuses_and_the_parent_goes_on(self, queue: Queue, file: Path) -> None:
        with queue.transaction() as held:
            assert held is not None
            queue.put("with it", connection=held.connection)
            works: list[Callable[[], object]] = [
                lambda: queue.put("work"),
                lambda: queue.put("work", connection=held.connection),
                queue.stats,
            ]
            codes = [exit_code(forked(work)) for work in works]
        assert codes == [REFUSED] * 3
        queue.put("after")
        assert (queue.stats().success, queue.stats().pending) == (1, 2)
        check(file, 3)

    @pytest.mark.matrix
    @pytest.mark.parametrize("end", ["raise ValueError", "raise SystemExit", ""])
    def test_a_child_that_leaves_the_block_changes_nothing(
        self, queue: Queue, file: Path, tmp_path: Path, end: str
    ) -> None:
        program = tmp_path / "leaves.py"
        program.write_text(
            f"""
import os, sys
from freshq import Queue
from freshq.errors import FreshqError
queue = Queue.sql("sqlite:///{file}", max_age_seconds=None)
child = 0
try:
    with queue.transaction() as held:
        queue.put("with it", connection=held.connection)
        child = os.fork()
        if not child:
            {end or "pass"}
        else:
            os.waitpid(child, 0)
except (FreshqError, ValueError):
    if child:
        raise
if child:
    queue.put("after")
    queue.close()
"""
        )
        queue.close()
        context = multiprocessing.get_context("spawn")
        process = context.Process(target=run_program, args=(str(program),))
        process.start()
        process.join(PATIENCE_SECONDS)
        assert process.exitcode == 0
        check(file, 3)
        with closing(Queue.sql(f"sqlite:///{file}", max_age_seconds=None)) as again:
            assert (again.stats().success, again.stats().pending) == (1, 2)


@pytest.mark.parametrize("fails", [False, True], ids=["ends", "fails"])
def test_a_child_neither_ends_nor_fails_a_transaction_of_its_parent(engine: sa.Engine, fails: bool) -> None:
    child = 0
    with closing(Queue.sql(engine.url.render_as_string(hide_password=False))) as queue:
        queue.put("held", task_id="held")
        try:
            with queue.transaction() as held:
                assert held is not None
                queue.put("with it", connection=held.connection)
                child = os.fork()
                assert child or not fails, "a failure in the child"
                assert not child or exit_code(child) == REFUSED
        except (AssertionError, StoreError):
            if child:
                raise
            os._exit(REFUSED)
        finally:
            if not child:
                os._exit(1)
        task = queue.get("held")
        assert task is not None
        assert (task.status, task.attempts, queue.stats().pending) == ("SUCCESS", 1, 1)


def run_program(path: str) -> None:
    exec(compile(Path(path).read_text(), path, "exec"), {})


def test_a_fork_that_python_hears_of_too_late(
    queue: Queue, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library that forks in C may call only the functions for afterwards."""
    monkeypatch.setattr(forks, "WAIT_SECONDS", 0.0)
    pool: Any = database_of(queue).engine.pool
    monkeypatch.setattr(type(pool), "close_for_fork", lambda *_: None)
    assert exit_code(forked(lambda: queue.put("work"))) == REFUSED
    put_all(queue)
    check(file, 1 + PUTS)


def test_a_child_writes_no_flow_counts_of_its_parent(queue: Queue) -> None:
    put_all(queue, 5)
    meter = core_of(queue).rules.meter
    assert not meter.is_unused

    def count_own() -> None:
        assert meter.is_unused
        put_all(queue, 2)
        queue.close()

    assert exit_code(forked(count_own)) == 0
    assert not meter.is_unused
