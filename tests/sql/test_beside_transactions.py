"""In a caller's transaction, or beside one, a verb touches memory and that transaction, nothing else."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Final

import pytest
import sqlalchemy as sa

from freshq import Overloaded, Queue, Task
from freshq.policy.backlog_limit import BacklogLimit, WhenFull
from freshq.policy.pressure import AdmissionLimit
from freshq.queue.core import core_of
from freshq.queue.shared import later
from freshq.stores.sql import ConnectionLimits, SqlStore
from freshq.stores.sql.database import open_engine
from freshq.stores.sql.pool import StatementPool
from tests.conftest import Clock
from tests.support.patience import PATIENCE_SECONDS
from tests.support.readings import counts, known, within_seconds
from tests.support.worker_threads import work_off

# Later than every interval at which a verb does more than its own work.
LATER_SECONDS: Final = 100.0
OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "none": {},
    "admission": {"admission": AdmissionLimit()},
    "full drops the oldest": {"backlog": BacklogLimit(2, WhenFull.DROP_OLDEST)},
    "full rejects the newest": {"backlog": BacklogLimit(2, WhenFull.REFUSE_NEWEST)},
    "full sheds the noisiest": {"backlog": BacklogLimit(2, WhenFull.REFUSE_NEWEST, group_share=0.5)},
    "reserve": {"reserve": "p90"},
    "both": {"admission": AdmissionLimit(), "backlog": BacklogLimit(2)},
}


@pytest.fixture
def borrowed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the threads that have taken a connection of a pool, in order."""
    names: list[int] = []
    take = StatementPool._do_get

    def _do_get(self: StatementPool) -> Any:
        names.append(threading.get_ident())
        return take(self)

    monkeypatch.setattr(StatementPool, "_do_get", _do_get)
    return names


@pytest.fixture
def callers(engine: sa.Engine) -> Iterator[sa.Engine]:
    """Return the engine of an application on the same database."""
    application = sa.create_engine(engine.url, poolclass=sa.NullPool)
    yield application
    application.dispose()


@pytest.fixture
def opened(engine: sa.Engine, clock: Clock) -> Iterator[Callable[..., Queue]]:
    """Return a function that opens a queue with a pool of its own, as an application does."""
    queues: list[Queue] = []

    def open_queue(**options: Any) -> Queue:
        limits = ConnectionLimits(PATIENCE_SECONDS, PATIENCE_SECONDS, PATIENCE_SECONDS)
        store = SqlStore(engine.url, queue="default", limits=limits)
        given = {"clock": clock, "max_age_seconds": 3600, **options}
        queues.append(Queue(store, **{name: value for name, value in given.items() if value is not None}))
        return queues[-1]

    yield open_queue
    for queue in queues:
        queue.close()


def here(names: list[int]) -> list[int]:
    return [name for name in names if name == threading.get_ident()]


def expire_everything(queue: Queue, clock: Clock) -> None:
    """Make the options, flow counts, database clock and counts of waiting tasks due for a refresh."""
    clock.advance(LATER_SECONDS)
    core_of(queue).options.check_at = 0.0
    if hasattr(core_of(queue)._clock, "_measure_at"):
        core_of(queue)._clock._measure_at = 0.0  # type: ignore[attr-defined]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("of_database", [False, True], ids=["own clock", "clock of the database"])
def test_a_put_in_a_transaction_takes_no_other_connection(
    callers: sa.Engine,
    opened: Callable[..., Queue],
    clock: Clock,
    borrowed: list[int],
    options: dict[str, Any],
    of_database: bool,
) -> None:
    queue = opened(**options, **({"clock": None} if of_database else {}))
    for number in range(6):
        with callers.begin() as connection:
            try:
                queue.put(number, group=f"g{number % 2}", connection=connection)
                queue.put_many([{"payload": n, "kind": "k"} for n in range(2)], connection=connection)
            except Exception as error:  # noqa: BLE001 - compared
                assert "the queue is overloaded" in str(error)  # noqa: PT017
        expire_everything(queue, clock)
    assert here(borrowed) == []
    assert queue.stats().pending > 0
    assert here(borrowed) != []  # the spy sees what there is


def test_the_counts_of_a_process_that_only_puts_in_transactions_are_written(
    callers: sa.Engine, opened: Callable[..., Queue], clock: Clock
) -> None:
    queue, observer = opened(), opened()
    for number in range(3):
        with callers.begin() as connection:
            queue.put(number, connection=connection)
        clock.advance(10)
    meter = core_of(observer).rules.meter

    def offered() -> float:
        return meter.flow(clock.now).offered

    assert within_seconds(PATIENCE_SECONDS, lambda: offered() > 0)


def test_counts_that_a_transaction_keeps_from_being_written_are_written_after_it(
    callers: sa.Engine, opened: Callable[..., Queue], clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[object] = []
    queue, observer = opened(), opened()
    is_done = later.Later._is_done

    def counted(self: later.Later) -> bool:
        tries.append(is_done(self))
        return bool(tries[-1])

    monkeypatch.setattr(later.Later, "_is_done", counted)
    with callers.begin() as connection:
        for number in range(3):
            queue.put(number, connection=connection)
            clock.advance(10)
        assert within_seconds(PATIENCE_SECONDS, lambda: bool(tries))
        # This thread can read beside it, although another thread tries to write.
        assert queue.get("no such task") is None
    assert within_seconds(PATIENCE_SECONDS, lambda: core_of(observer).rules.meter.flow(clock.now).offered > 0)


def test_a_full_backlog_keeps_its_bound_in_a_transaction(
    callers: sa.Engine, opened: Callable[..., Queue]
) -> None:
    queue = opened(backlog=BacklogLimit(3, WhenFull.DROP_OLDEST))
    for end in ("rollback", "commit"):
        with callers.connect() as connection:
            for number in range(6):
                queue.put(number, connection=connection)
            getattr(connection, end)()
        assert counts(queue.stats()) == ({"pending": 3, "shed": 3} if end == "commit" else {})


def test_a_full_backlog_turns_a_put_in_a_transaction_away(
    callers: sa.Engine, opened: Callable[..., Queue], clock: Clock
) -> None:
    queue = opened(backlog=BacklogLimit(2, WhenFull.REFUSE_NEWEST))
    with callers.begin() as connection:
        for number in range(2):
            queue.put(number, connection=connection)
            clock.advance(2)  # counted again: the count sees the tasks of this transaction
        with pytest.raises(Overloaded):
            queue.put("more", connection=connection)
    assert counts(queue.stats()) == {"pending": 2}


def test_a_transaction_that_can_no_longer_be_committed_raises(
    engine: sa.Engine, callers: sa.Engine, opened: Callable[..., Queue], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL's COMMIT after an error rolls back, and says nothing."""
    queue = opened(backlog=BacklogLimit(1, WhenFull.DROP_OLDEST))
    store: Any = core_of(queue).store
    broken = sa.text("SELECT * FROM no_such_table")
    monkeypatch.setattr(
        store,
        "read_waiting",
        lambda *_arguments: store.database.read(lambda connection: connection.execute(broken)),
    )
    del engine

    def put_both() -> None:
        with callers.begin() as connection:
            queue.put("first", connection=connection)
            queue.put("second", connection=connection)

    with pytest.raises(Exception, match="does not exist"):
        put_both()
    assert counts(queue.stats()) == {}


@contextmanager
def deferred(file: str) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(file, isolation_level=None, timeout=PATIENCE_SECONDS)) as raw:
        raw.execute("BEGIN")
        yield raw
        raw.execute("COMMIT")


def test_a_deferred_transaction_of_sqlite_becomes_a_writer_first(sqlite_url: str) -> None:
    """A read before the first write would fail the write if another process wrote in between."""
    with Queue.sql(sqlite_url) as queue, Queue.sql(sqlite_url) as other:
        with deferred(str(sa.make_url(sqlite_url).database)) as raw:
            core_of(queue).store.database.requirement = lambda: other.put("in between")  # type: ignore[attr-defined]
            queue.put("work", connection=raw)
        assert counts(queue.stats()) == {"pending": 2}


def test_a_file_that_freshq_never_opened(sqlite_url: str) -> None:
    """Only the connection of the caller has it open, in the journal mode of the caller."""
    file = str(sa.make_url(sqlite_url).database)
    with closing(sqlite3.connect(file)) as raw:
        assert raw.execute("PRAGMA journal_mode=DELETE").fetchone() == ("delete",)
        with Queue.sql(sqlite_url) as queue:
            for number in range(3):
                raw.execute("CREATE TABLE IF NOT EXISTS orders (number integer)")
                raw.execute("INSERT INTO orders VALUES (1)")
                queue.put(number, connection=raw)
                raw.commit()
            assert counts(queue.stats()) == {"pending": 3}


def follow_up(queue: Queue, clock: Clock) -> Callable[[Task, sa.Connection], None]:
    def run(task: Task, connection: sa.Connection) -> None:
        clock.advance(LATER_SECONDS)
        core_of(queue).options.check_at = 0.0
        if task.payload:
            queue.put(None, task_id=f"after-{task.task_id}", connection=connection)

    return run


def test_the_function_of_a_transaction_worker_puts_follow_ups(
    opened: Callable[..., Queue], clock: Clock, borrowed: list[int]
) -> None:
    queue = opened()
    queue.put_many([{"payload": "work", "task_id": str(number)} for number in range(5)])
    del borrowed[:]
    held: list[int] = []

    def runner(task: Task, connection: sa.Connection) -> None:
        before = len(here(borrowed))
        follow_up(queue, clock)(task, connection)
        assert task.seconds_left() is not None
        held.extend(here(borrowed)[before:])

    work_off(queue, runner, transaction=True)  # type: ignore[arg-type]
    assert held == []
    assert queue.stats().success == 10


def test_as_many_runs_as_connections_do_not_wait_for_each_other(
    engine: sa.Engine, opened: Callable[..., Queue], borrowed: list[int]
) -> None:
    """Each run puts and reads its clock while every connection of the pool is held."""
    if engine.dialect.name == "sqlite":
        pytest.skip("its transactions run one at a time")
    queue = opened(clock=None)
    connections = core_of(queue).store.database.engine.pool._size  # type: ignore[attr-defined]
    queue.put_many([{"payload": "work", "task_id": str(number)} for number in range(connections)])
    all_hold, all_put = threading.Barrier(connections), threading.Barrier(connections)
    held: list[int] = []

    def runner(task: Task, connection: sa.Connection) -> None:
        if task.payload:
            all_hold.wait(PATIENCE_SECONDS)
            before = len(borrowed)
            expire_everything(queue, Clock())
            assert task.seconds_left() is not None
            queue.put(None, connection=connection)
            held.extend(here(borrowed[before:]))
            all_put.wait(PATIENCE_SECONDS)

    work_off(queue, runner, transaction=True, concurrency=connections)  # type: ignore[arg-type]
    assert held == []
    assert queue.stats().success == 2 * connections


def test_a_clock_is_not_read_again_while_every_connection_is_held(engine: sa.Engine) -> None:
    own = open_engine(
        engine.url, ConnectionLimits(max_connections=1, answer_timeout_seconds=PATIENCE_SECONDS)
    )
    try:
        clock: Any = SqlStore(own).clock
        before = clock()
        if engine.dialect.name != "sqlite":
            clock._measure_at = 0.0
        with own.begin():
            assert clock() >= before
    finally:
        own.dispose()


def test_what_is_left_ends_with_the_queue(
    opened: Callable[..., Queue], callers: sa.Engine, clock: Clock
) -> None:
    queue = opened()
    for number in range(2):
        with callers.begin() as connection:
            queue.put(number, connection=connection)
        clock.advance(LATER_SECONDS)
    queue.close()
    assert not [each for each in threading.enumerate() if each.name == "freshq-later"]
    with opened() as again:
        assert known(again, again.list()[0].task_id).payload in (0, 1)


def put_in(callers: sa.Engine, queue: Queue, *, end: str = "commit") -> None:
    with callers.connect() as connection:
        queue.put("work", connection=connection)
        getattr(connection, end)()


@pytest.mark.parametrize("named", [{"max_attempts": 9}, {}], ids=["names an option", "names nothing"])
@pytest.mark.parametrize("ends", [False, True], ids=["it lives", "it died"])
def test_the_first_transaction_decides_about_the_options_of_a_new_queue(
    callers: sa.Engine, opened: Callable[..., Queue], named: dict[str, Any], ends: bool
) -> None:
    """They are visible as soon as its task is, even if the process dies right after the commit."""
    opened(max_age_seconds=None).create_table()
    first = opened(max_age_seconds=None, **named)
    put_in(callers, first)
    if ends:
        core_of(first).options._store.close()
    for _ in range(2):
        peer = opened(max_age_seconds=None, max_attempts=3)
        for verb in (peer.stats, partial(peer.put, 2), peer.claim, partial(put_in, callers, peer)):
            with pytest.raises(ValueError, match=r"^max_attempts: queue 'default' has . .*, and 3 was named"):
                verb()
        same = opened(max_age_seconds=None, **named)  # as the next start of the same program
        put_in(callers, same)
        same.put("work")
        assert opened(max_age_seconds=None).configure().max_attempts == named.get("max_attempts", 5)


def test_a_transaction_that_is_rolled_back_decides_nothing(
    callers: sa.Engine, opened: Callable[..., Queue]
) -> None:
    first = opened(max_age_seconds=None)
    put_in(callers, first, end="rollback")
    first.close()
    peer = opened(max_age_seconds=None, max_attempts=3)
    put_in(callers, peer)
    assert opened(max_age_seconds=None).configure().max_attempts == 3
    with pytest.raises(ValueError, match=r"^max_attempts: queue 'default' has 3 stored"):
        put_in(callers, opened(max_age_seconds=None, max_attempts=2))


def test_the_first_transactions_do_not_wait_for_each_other(
    engine: sa.Engine, callers: sa.Engine, opened: Callable[..., Queue]
) -> None:
    """Nor does a put without one: it may be by the thread that has the transaction."""
    if engine.dialect.name == "sqlite":
        pytest.skip("its transactions run one at a time")
    first, second = opened(max_attempts=9), opened(max_attempts=9)
    with callers.begin() as one, callers.begin() as other, callers.begin() as third:
        first.put(1, connection=one)
        first.put(2, connection=other)
        second.put(3, connection=third)
        first.put(4)
    assert counts(opened(max_attempts=9).stats()) == {"pending": 4}


def test_a_process_is_refused_in_its_transactions_too(
    callers: sa.Engine, opened: Callable[..., Queue], clock: Clock
) -> None:
    ours = opened(max_attempts=9)
    put_in(callers, ours, end="rollback")
    opened(max_attempts=2).put("work")

    def is_refused() -> bool:
        expire_everything(ours, clock)
        try:
            put_in(callers, ours, end="rollback")
        except ValueError as error:
            return "has 2 stored, and 9 was named" in str(error)
        return False

    assert within_seconds(PATIENCE_SECONDS, is_refused)
