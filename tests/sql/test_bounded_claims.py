"""The cost of claims is bounded: statements, and rows that the database visited."""

import math
from collections.abc import Callable
from typing import Final

import pytest
import sqlalchemy as sa

from freshq import GroupRule, GroupRules, Order, Queue, Settlement
from freshq.queue import lines
from freshq.queue.core import core_of
from freshq.queue.lines import WINDOW_LINES
from freshq.queue.reading import count_waiting, oldest_created, oldest_tasks
from freshq.stores.sql import SqlStore
from freshq.stores.sql.counts import COUNTED_ROWS
from freshq.stores.sql.lines import LOOKED_ROWS, STALE_ROWS
from tests.conftest import Clock, StoreUnderTest
from tests.support.readings import counts, payloads
from tests.support.refusals import refused
from tests.support.statements import multiply, rows_read, sent, sqlite_work, vacuum

CLAIMS: Final = 30
MANY_GROUPS: Final = 2_000
STALE: Final = 3_000
# Two searches, the tasks taken and cleared after each, and a small portion of upkeep.
MAX_STATEMENTS: Final = 25


def fill(queue: Queue, groups: int) -> None:
    tasks = max(groups, (CLAIMS + 1) * 10)
    queue.put_many(
        [{"payload": n, "group": f"{n % groups:05}" if groups > 1 else None} for n in range(tasks)]
    )


def cost(
    queue: Queue, groups: int, limit: int, work: Callable[[], int], prepare: Callable[[], object] = int
) -> tuple[int, int]:
    """Return how many statements some claims send, and the work that the database has with them."""
    fill(queue, groups)
    prepare()
    queue.claim(limit)
    before = work()
    with sent(queue) as statements:
        for _ in range(CLAIMS):
            assert len(queue.claim(limit)) == limit
    done = work() - before
    queue.purge(confirm="default")
    return len(statements), done


@pytest.mark.parametrize("limit", [1, 10])
def test_on_postgresql_claims_cost_at_most_twice_as_much_with_many_groups(
    postgres_at_rest: sa.Engine, limit: int
) -> None:
    queue = Queue(SqlStore(postgres_at_rest))
    one, hundred, many = (
        cost(queue, groups, limit, lambda: rows_read(postgres_at_rest), lambda: vacuum(postgres_at_rest))
        for groups in (1, 100, MANY_GROUPS)
    )
    assert one[0] == CLAIMS
    assert max(hundred[0], many[0]) <= 2 * one[0]
    assert max(hundred[1], many[1]) <= 2 * one[1]


@pytest.mark.parametrize("limit", [1, 10])
def test_on_sqlite_claims_cost_at_most_twice_as_much_with_many_groups(
    sqlite_engine: sa.Engine, limit: int
) -> None:
    queue = Queue(SqlStore(sqlite_engine))
    with sqlite_work(queue) as work:
        one, hundred, many = (cost(queue, groups, limit, lambda: work[0]) for groups in (1, 100, MANY_GROUPS))
    assert one[0] == CLAIMS
    assert max(hundred[0], many[0]) <= 2 * one[0]
    assert max(hundred[1], many[1]) <= 2 * one[1]


def test_on_sqlite_a_claim_costs_as_much_beside_many_groups_at_their_limit(
    sqlite_engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = {f"open-{number:02}": GroupRule(max_running=CLAIMS) for number in range(100)}
    works = []
    for full in (0, 1000):
        queue = Queue(SqlStore(sqlite_engine), groups=GroupRules(GroupRule(max_running=1), wide))
        queue.create_table()
        monkeypatch.setattr(lines, "OPEN_SECONDS", -1.0)
        queue.put_many([{"payload": 0, "group": f"full-{number}"} for number in range(full) for _ in (1, 2)])
        assert len([claim for _ in range(full // 100) for claim in queue.claim(100)]) == full
        queue.put_many([{"payload": 0, "group": group} for group in wide for _ in range(3)])
        monkeypatch.setattr(lines, "OPEN_SECONDS", math.inf)  # this claim lists the groups with room
        queue.claim()
        with sqlite_work(queue) as work:
            for _ in range(CLAIMS):
                assert [claim.task.group in wide for claim in queue.claim()] == [True]
        works.append(work[0])
    assert works[1] <= 2 * works[0]


def test_an_empty_claim_after_many_groups_sends_few_statements(queue: Queue) -> None:
    queue.put_many([{"payload": n, "group": f"{n:05}"} for n in range(5 * WINDOW_LINES)])
    while claims := queue.claim(WINDOW_LINES):
        queue.settle_many([Settlement.complete(claim) for claim in claims])
    with sent(queue) as statements:
        assert queue.claim() == []
        assert queue.claim(10) == []
    assert len(statements) <= 2 * 10


# Each order, with the distance of stale tasks that puts them before the live task.
ORDERS: Final = [(Order.LIFO, 1), (Order.FIFO, -1)]


@pytest.mark.parametrize(("order", "step_us"), ORDERS)
def test_a_live_task_among_stale_ones_is_found_within_a_bounded_number_of_claims(
    store: StoreUnderTest, engine: sa.Engine, order: Order, step_us: int
) -> None:
    queue = store.queue(order=order, max_age_seconds=3600)
    queue.put("live")
    queue.put("stale", task_id="stale", max_age_seconds=5)
    multiply(engine, "stale", STALE, step_us)
    store.clock.advance(10)
    for _ in range(STALE // STALE_ROWS):
        with sent(queue) as statements:
            claims = queue.claim()
        assert len(statements) <= MAX_STATEMENTS
        if claims:
            break
    assert payloads(claims) == ["live"]
    assert claims[0].lease_until == pytest.approx(store.clock.now + queue.admin.config.lease_seconds)
    assert queue.claim() == []
    assert counts(queue.stats()) == {"taken": 1, "shed": STALE + 1}


@pytest.mark.parametrize(("order", "step_us"), ORDERS)
def test_a_claim_looks_at_a_bounded_number_of_stale_rows(
    postgres_at_rest: sa.Engine, order: Order, step_us: int
) -> None:
    clock = Clock()
    queue = Queue(SqlStore(postgres_at_rest), order=order, clock=clock, max_age_seconds=3600)
    queue.put("stale", task_id="stale", max_age_seconds=5)
    multiply(postgres_at_rest, "stale", 10 * STALE, step_us)
    vacuum(postgres_at_rest)
    clock.advance(10)
    before = rows_read(postgres_at_rest)
    assert queue.claim() == []
    # More than twice, because index entries of changed rows stay until the next VACUUM.
    assert rows_read(postgres_at_rest) - before <= 5 * (LOOKED_ROWS + STALE_ROWS)
    before = rows_read(postgres_at_rest)
    queue.stats(approximate=True)
    queue.pressure()
    assert rows_read(postgres_at_rest) - before <= COUNTED_ROWS + 5 * LOOKED_ROWS


@pytest.mark.parametrize("max_age_seconds", [5, 3600])
def test_stale_groups_are_cleared_by_a_bounded_number_of_claims(
    store: StoreUnderTest, max_age_seconds: int
) -> None:
    queue = store.queue(max_age_seconds=3600)
    groups = 9 * WINDOW_LINES
    queue.put_many(
        [{"payload": n, "group": f"{n:05}", "max_age_seconds": max_age_seconds} for n in range(groups)]
    )
    store.clock.advance(max_age_seconds + 1)
    queue.put("live", group="zzz")
    for _ in range(1 + groups // STALE_ROWS):
        with sent(queue) as statements:
            claims = queue.claim()
        assert len(statements) <= 6 * WINDOW_LINES if store.kind == "mariadb" else MAX_STATEMENTS
        if claims:
            break
    assert payloads(claims) == ["live"]


def test_tasks_within_the_reserve_are_passed_over(store: StoreUnderTest) -> None:
    queue = store.queue(max_age_seconds=3600, reserve=30)
    queue.put("long enough")
    queue.put_many([{"payload": n, "max_age_seconds": 20} for n in range(200)])
    assert payloads(queue.claim()) == ["long enough"]


def test_counts_and_ages_send_a_bounded_number_of_statements(queue: Queue) -> None:
    queue.put_many([{"payload": n, "group": f"{n:05}", "priority": n % 3} for n in range(1_000)])
    now, store = queue.admin.now(), core_of(queue).store
    with sent(queue) as statements:
        stats = queue.stats(approximate=True)
        waiting = count_waiting(store, "default", now, now - 3600, 2_000)
        oldest = oldest_created(store, "default", now, now - 3600)
        tasks = oldest_tasks(store, "default", now, now - 3600, 2)
    assert len(statements) <= 13  # one of them for dead rows, on PostgreSQL
    assert stats.pending == 1_000
    assert len(waiting) == sum(waiting.values()) == 1_000
    assert tasks[0].created == oldest
    assert [task.priority for task in tasks] == [0, 0]


def test_counts_of_very_many_finished_tasks_say_that_there_are_at_least_so_many(
    queue: Queue, engine: sa.Engine
) -> None:
    queue.put("done", task_id="done")
    queue.complete(queue.claim()[0])
    multiply(engine, "done", COUNTED_ROWS, 1)
    stats = queue.stats(approximate=True)
    assert stats.success == COUNTED_ROWS
    # Dead letters have an index of their own.
    expected = dict.fromkeys(("success", "cancelled", "shed"), "at least") | {"failure": None}
    assert {name: stats.bounded.get(name) for name in expected} == expected


RETENTION_PAGE: Final = 200


def forgetting_cost(queue: Queue, engine: sa.Engine, over: int, work: Callable[[], int]) -> int:
    """Return the work of deleting some of the tasks that are past their retention."""
    queue.put("done", task_id="done")
    queue.complete(queue.claim()[0])
    multiply(engine, "done", over)
    before = work()
    assert (
        core_of(queue).store.tidy(queue.name, queue.admin.now() + 2 * 86_400, RETENTION_PAGE)
        == RETENTION_PAGE
    )
    done = work() - before
    queue.purge(confirm=queue.name)
    return done


def test_on_sqlite_the_cost_of_retention_does_not_depend_on_what_is_left(sqlite_engine: sa.Engine) -> None:
    queue = Queue(SqlStore(sqlite_engine))
    with sqlite_work(queue) as work:
        few, many = (forgetting_cost(queue, sqlite_engine, over, lambda: work[0]) for over in (300, 9_000))
    assert many <= 1.5 * few


def test_on_postgresql_retention_reads_what_it_deletes(postgres_at_rest: sa.Engine) -> None:
    queue = Queue(SqlStore(postgres_at_rest))
    vacuum(postgres_at_rest)  # the statistics are those of an empty table
    done = forgetting_cost(queue, postgres_at_rest, 9_000, lambda: rows_read(postgres_at_rest))
    assert done <= 3 * RETENTION_PAGE


def test_an_exact_count_reads_no_task(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.put_many({"payload": number} for number in range(10))
    queue.complete(queue.claim()[0])
    monkeypatch.setattr(SqlStore, "scan", None)
    assert counts(queue.stats()) == {"pending": 9, "success": 1}


def test_waiting_and_held_tasks_are_listed_through_an_index(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.put_many({"payload": number, "task_id": f"t{number}"} for number in range(5))
    queue.put("later", task_id="later", delay_seconds=5)
    held = [claim.task.task_id for claim in queue.claim(limit=2)]
    monkeypatch.setattr(SqlStore, "scan", None)
    assert sorted(task.task_id for task in queue.list("TAKEN")) == sorted(held)
    first = queue.list("PENDING", limit=2)
    assert [task.task_id for task in (*first, *queue.list("PENDING", cursor=first.cursor))] == [
        *sorted({f"t{number}" for number in range(5)}.difference(held)),
        "later",
    ]
    for cursor in ("t1", "over/1/t1", "due/x/t1", "due/1/", "stale/1/t1"):
        with refused("cursor"):
            queue.list("TAKEN", cursor=cursor)
