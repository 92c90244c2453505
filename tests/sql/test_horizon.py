"""Claims beside a snapshot that stays open: PostgreSQL then keeps what finished tasks left in its indexes."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final
from unittest.mock import patch

import pytest
import sqlalchemy as sa

from freshq import Claim, Order, Queue, Settlement
from freshq.queue.core import core_of
from freshq.queue.reading import oldest_expiring
from freshq.stores.lines import END
from freshq.stores.sql import SqlStore
from freshq.stores.sql.database import Database
from freshq.stores.sql.horizon import CHECK_SECONDS, EMPTY_SECONDS, FULL_SECONDS, LOOKUP_SECONDS
from tests.conftest import Clock, StoreUnderTest
from tests.support.statements import database_of

FINISHED: Final = 3_000
ROUND: Final = 25
ROUND_SECONDS: Final = 0.05
# Lower than the default, so that a test needs few transactions.
OLD_TRANSACTIONS: Final = 100
BACKLOG: Final = 100
PLAN: Final = "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, COSTS OFF, FORMAT JSON)"
READS: Final = ("SELECT", "WITH", "UPDATE")


@pytest.fixture
def store(postgres_at_rest: sa.Engine, clock: Clock) -> StoreUnderTest:
    return StoreUnderTest("postgresql", lambda _shards: SqlStore(postgres_at_rest), clock)


@pytest.fixture(autouse=True)
def snapshot(postgres_at_rest: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep a snapshot open, as a report does."""
    monkeypatch.setattr("freshq.stores.sql.horizon.OLD_TRANSACTIONS", OLD_TRANSACTIONS)
    apart = sa.create_engine(postgres_at_rest.url, poolclass=sa.NullPool, isolation_level="REPEATABLE READ")
    with apart.connect() as connection:
        connection.execute(sa.text("SELECT count(*) FROM tasks"))
        yield
    # Otherwise the next tests would start with its remains.
    with apart.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text("DELETE FROM tasks"))
        connection.execute(sa.text("VACUUM tasks"))


def opened(store: StoreUnderTest, **options: Any) -> Queue:
    """Return the queue of another process, with the clock of the tests."""
    queue = store.queue(max_age_seconds=86_400, lease_seconds=3_600, **options)
    horizon_of(queue).monotonic = store.clock
    return queue


def horizon_of(queue: Queue) -> Any:
    sql_store = core_of(queue).store
    assert isinstance(sql_store, SqlStore)
    return sql_store.horizon


@contextmanager
def pages_of(queue: Queue) -> Iterator[list[int]]:
    """Count the pages that each statement of a queue reads: those with a cursor of their own, and others."""
    database = database_of(queue)
    execute, counted = database._execute, list[int]()

    def count(text: str, given: Any) -> None:
        if text.startswith(READS):
            with database.engine.connect() as connection, connection.begin() as planned:
                (found,) = connection.exec_driver_sql(f"{PLAN} {text}", given).scalars()
                planned.rollback()
            plan = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
            counted.append(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])

    def explained(statement: Any, parameters: Any) -> Any:
        count(statement.text, statement.arguments(parameters))
        return execute(statement, parameters)

    def listener(_connection: Any, _cursor: Any, text: str, given: Any, *_others: Any) -> None:
        count(text, given)

    sa.event.listen(database.engine, "before_cursor_execute", listener)
    try:
        with patch.object(Database, "_execute", lambda _self, *arguments: explained(*arguments)):
            yield counted
    finally:
        sa.event.remove(database.engine, "before_cursor_execute", listener)


def pages(queue: Queue, call: Callable[[], object]) -> int:
    """Return the most pages that a statement reads in a call."""
    with pages_of(queue) as counted:
        call()
    return max(counted)


def claim_and_return(queue: Queue) -> list[Claim]:
    claims = queue.claim(5)
    for claim in claims:
        queue.release(claim)
    return claims


def finish(queue: Queue, clock: Clock, number: int, groups: int = 1) -> None:
    """Put and finish tasks; claims of the process find them at the better end of the line."""
    for start in range(0, number, ROUND):
        clock.advance(ROUND_SECONDS)
        names = [None if groups == 1 else f"group-{count % groups}" for count in range(start, start + ROUND)]
        queue.put_many([{"payload": "young", "group": name} for name in names])
        queue.settle_many([Settlement.complete(claim) for claim in queue.claim(ROUND)])


@pytest.mark.parametrize("order", [Order.LIFO, Order.FIFO])
def test_a_claim_reads_no_more_pages_after_many_tasks(store: StoreUnderTest, order: Order) -> None:
    queue = opened(store, order=order)
    queue.put_many([{"payload": "old"}] * BACKLOG)
    store.clock.advance(60)
    claim_and_return(queue)
    first = pages(queue, partial(queue.claim, 5))
    finish(queue, store.clock, FINISHED)
    assert pages(queue, partial(queue.claim, 5)) <= 2 * first


def test_a_claim_that_finds_nothing_reads_few_pages(store: StoreUnderTest) -> None:
    queue = opened(store)
    finish(queue, store.clock, ROUND)
    store.clock.advance(60)
    first = pages(queue, queue.claim)
    finish(queue, store.clock, FINISHED)
    store.clock.advance(EMPTY_SECONDS)
    queue.claim()
    assert pages(queue, queue.claim) <= 2 * first


def test_the_look_for_tasks_within_the_reserve_reads_few_pages(store: StoreUnderTest) -> None:
    queue = opened(store)

    def look() -> None:
        now = store.clock.now
        assert oldest_expiring(core_of(queue).store, queue.name, now, now - 86_400, now + 10) is None

    finish(queue, store.clock, ROUND)
    first = pages(queue, look)
    finish(queue, store.clock, FINISHED)
    # The index has one more level.
    assert pages(queue, look) <= first + 5


def test_upkeep_reads_few_pages_for_leases_and_deadlines_that_have_passed(store: StoreUnderTest) -> None:
    queue = opened(store)
    first = pages(queue, queue.admin.recover)
    finish(queue, store.clock, FINISHED)
    store.clock.advance(100_000)
    queue.admin.recover()
    assert pages(queue, queue.admin.recover) <= 2 * first


def test_claims_of_groups_read_no_more_pages_after_many_tasks(store: StoreUnderTest) -> None:
    queue = opened(store)
    queue.put_many([{"payload": "old", "group": f"group-{number % 3}"} for number in range(BACKLOG)])
    store.clock.advance(60)
    claim_and_return(queue)
    first = pages(queue, partial(queue.claim, 5))
    finish(queue, store.clock, FINISHED, groups=3)
    store.clock.advance(1)
    assert pages(queue, partial(queue.claim, 5)) <= 2 * first


def test_a_transaction_reads_no_more_pages_after_many_tasks(store: StoreUnderTest) -> None:
    queue = opened(store)
    queue.put_many([{"payload": "old"}] * BACKLOG)
    store.clock.advance(60)
    finish(queue, store.clock, FINISHED)
    with queue.transaction() as work:
        assert work is not None
        assert work.task.payload == "old"
    parts = horizon_of(queue).known(queue.name)
    assert [span[0] < span[1] for span in parts.lines["0"]] == [True]


def test_a_nearly_empty_queue_is_not_searched_for_lines_from_end_to_end(store: StoreUnderTest) -> None:
    """Its line is empty most of the time, and each task was there before its line is looked up."""
    queue, producer = opened(store), opened(store)
    searched: list[tuple[str, str]] = []
    execute = Database._execute

    def note(itself: Database, statement: Any, parameters: Any) -> Any:
        if statement.text.startswith("WITH RECURSIVE"):
            searched.append((parameters["of_after"], parameters["of_until"]))
        return execute(itself, statement, parameters)

    with patch.object(Database, "_execute", note):
        for _ in range(OLD_TRANSACTIONS):
            store.clock.advance(2 * CHECK_SECONDS / OLD_TRANSACTIONS)
            producer.put("young")
            queue.settle_many([Settlement.complete(claim) for claim in queue.claim(8)])
            assert queue.claim(8) == []
        searched.clear()
        for _ in range(round(FULL_SECONDS / ROUND_SECONDS)):
            store.clock.advance(ROUND_SECONDS)
            producer.put("young")
            (claim,) = queue.claim(8)
            queue.complete(claim)
            assert queue.claim(8) == []
    whole = [each for each in searched if each == ("", END)]
    assert len(whole) <= 2
    assert len(searched) <= 2 * (1 + FULL_SECONDS / LOOKUP_SECONDS) + len(whole)


@pytest.fixture
def drained(store: StoreUnderTest) -> Queue:
    """Return a queue that passes over a line: nothing waits but old tasks."""
    queue = opened(store)
    queue.put_many([{"payload": "old"}] * BACKLOG)
    store.clock.advance(60)
    finish(queue, store.clock, 2 * ROUND * OLD_TRANSACTIONS // 3)
    store.clock.advance(CHECK_SECONDS)
    queue.release(*queue.claim())
    return queue


def test_a_returned_task_has_its_old_place(drained: Queue, store: StoreUnderTest) -> None:
    drained.put("held")
    (held,) = drained.claim()
    store.clock.advance(1)
    assert [claim.task.payload for claim in drained.claim()] == ["old"]
    drained.release(held)
    assert [claim.task.payload for claim in drained.claim(2)] == ["held", "old"]


def test_a_task_that_another_process_returns_is_found_by_the_next_full_search(
    drained: Queue, store: StoreUnderTest
) -> None:
    other = opened(store)
    drained.put("held")
    (held,) = other.claim()
    store.clock.advance(1)
    drained.claim()
    other.release(held)
    assert [claim.task.payload for claim in drained.claim()] == ["old"]
    store.clock.advance(FULL_SECONDS)
    assert [claim.task.payload for claim in drained.claim()] == ["held"]


def test_a_task_that_another_process_returns_is_found_at_once_if_nothing_else_waits(
    drained: Queue, store: StoreUnderTest
) -> None:
    other = opened(store)
    drained.put("held")
    (held,) = other.claim()
    store.clock.advance(1)
    drained.claim(limit=BACKLOG)
    drained.claim()
    other.release(held)
    store.clock.advance(EMPTY_SECONDS)
    assert [claim.task.payload for claim in drained.claim()] == ["held"]


@pytest.mark.parametrize("options", [{}, {"group": "new"}, {"priority": 9}])
def test_what_another_process_puts_is_found(drained: Queue, store: StoreUnderTest, options: Any) -> None:
    drained.claim()
    opened(store).put("new", **options)
    store.clock.advance(LOOKUP_SECONDS)
    claims = drained.claim(2)
    assert sorted(claim.task.payload for claim in claims) == ["new", "old"]


def test_stats_say_what_the_snapshot_keeps(drained: Queue) -> None:
    for approximate in (False, True):
        stats = drained.stats(approximate=approximate)
        assert stats.oldest_snapshot_seconds is not None
        assert stats.oldest_snapshot_seconds > 0
        assert stats.dead_rows is not None


def test_once_the_snapshot_is_closed_nothing_is_passed_over(
    drained: Queue, store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert horizon_of(drained).known(drained.name) is not None
    store.clock.advance(CHECK_SECONDS)
    monkeypatch.setattr("freshq.stores.sql.horizon.OLD_TRANSACTIONS", 10**9)
    assert drained.claim()
    assert horizon_of(drained).known(drained.name) is None
