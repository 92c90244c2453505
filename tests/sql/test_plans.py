"""The plans of PostgreSQL on a table that was empty when the queue began."""

import re
import time
from collections.abc import Callable, Iterator
from typing import Final

import pytest
import sqlalchemy as sa
from local.servers import Server

from freshq import Queue, Settlement
from freshq.queue.core import core_of
from freshq.stores.sql import SqlStore
from freshq.stores.sql.tasks import given_ends
from tests.support.patience import PATIENCE_SECONDS
from tests.support.readings import counts

TABLE: Final = "planned"
FINISHED: Final = 16_000
# If fewer, driver and server would not yet keep a plan.
OFTEN: Final = 20
FAR_US: Final = 2_000_000_000_000_000


@pytest.fixture
def apart(postgres_server: Server) -> sa.Engine:
    """Return an engine that keeps no connection."""
    return sa.create_engine(
        postgres_server.url.replace("postgresql://", "postgresql+psycopg://"), poolclass=sa.NullPool
    )


@pytest.fixture
def queue(postgres_server: Server, apart: sa.Engine) -> Iterator[Queue]:
    """Return a queue on a table that will not be analysed again."""
    queue = Queue.sql(postgres_server.url, TABLE)
    queue.create_table()
    with apart.begin() as connection:
        connection.execute(sa.text(f"ALTER TABLE {TABLE} SET (autovacuum_enabled = off)"))
        connection.execute(sa.text(f"ANALYZE {TABLE}"))
    yield queue
    queue.close()
    with apart.begin() as connection:
        for table in ("", "_records", "_counts", "_migrations"):
            connection.execute(sa.text(f"DROP TABLE {TABLE}{table}"))


def _scans(apart: sa.Engine, updated: int) -> tuple[int, int]:
    """Return how often the table was read from end to end, and by an index, once all is counted."""
    query = sa.text(
        "SELECT seq_scan, idx_scan, n_tup_upd FROM pg_stat_user_tables WHERE relname = :table"
    ).bindparams(table=TABLE)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        with apart.connect() as connection:
            row = connection.execute(query).one()
        if row.n_tup_upd >= updated:
            return row.seq_scan, row.idx_scan
        time.sleep(0.05)
    pytest.fail(f"PostgreSQL counted {row.n_tup_upd} updates in {PATIENCE_SECONDS} s, not {updated}")


def _rows_read(apart: sa.Engine, updated: int) -> int:
    """Return how many rows were read by an index, once this many updates are counted."""
    _scans(apart, updated)
    query = sa.text("SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = :table")
    with apart.connect() as connection:
        return int(connection.execute(query.bindparams(table=TABLE)).scalar_one())


def _one(queue: Queue) -> int:
    claims = queue.claim()
    for claim in claims:
        queue.complete(claim)
    return len(claims)


def _batch(queue: Queue) -> int:
    claims = queue.claim(limit=3)
    queue.settle_many([Settlement.complete(claim) for claim in claims])
    return len(claims)


def _in_transaction(queue: Queue) -> int:
    with queue.transaction() as work:
        return 0 if work is None else 1


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("take", [_one, _batch, _in_transaction])
def test_no_claim_reads_the_whole_table(
    queue: Queue, apart: sa.Engine, take: Callable[[Queue], int], groups: int
) -> None:
    for _ in range(OFTEN):
        assert take(queue) == 0
    queue.put_many([{"payload": n, "group": f"tenant-{n % groups}"} for n in range(200)])
    done = sum(take(queue) for _ in range(OFTEN))
    assert counts(queue.stats(approximate=True))["pending"] == 200 - done
    queue.close()
    by_reading_all, by_index = _scans(apart, done)
    # The making of its indexes reads the table a few times.
    assert by_reading_all < OFTEN / 2
    assert by_index >= 2 * done


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("take", [_one, _batch])
def test_no_claim_reads_the_finished_rows_of_a_table_without_statistics(
    queue: Queue, apart: sa.Engine, take: Callable[[Queue], int], groups: int
) -> None:
    columns = "task_id, queue, status, created_us, updated_us, deadline_us, expires, request_token, put_token"
    finished = "'done-' || n, 'default', 'SUCCESS', 1, 1, 1, 2000000000, 'token', 'token'"
    with apart.begin() as connection:
        connection.execute(
            sa.text(
                f"INSERT INTO {TABLE} ({columns}, priority, attempts, agenda, due_us, payload) "
                f"SELECT {finished}, 0, 1, 'over', {FAR_US}, '1' FROM generate_series(1, {FINISHED}) AS n"
            )
        )
    tasks = [{"payload": n, "task_id": f"task-{n}", "group": f"tenant-{n % groups}"} for n in range(20)]
    queue.put_many(tasks)
    queue.put_many(tasks)
    done = take(queue)
    queue.close()
    assert _rows_read(apart, 2 * done) < FINISHED / 10


def test_a_handlers_own_statements_are_planned_as_usual(queue: Queue) -> None:
    queue.put("one")
    queue.put("two")
    settings = sa.text("SELECT current_setting('enable_seqscan'), current_setting('plan_cache_mode')")
    with queue.transaction() as work:
        assert work is not None
        assert tuple(work.connection.execute(settings).one()) == ("on", "auto")
    with pytest.raises(RuntimeError), queue.transaction() as work:
        raise RuntimeError("the handler's")
    assert counts(queue.stats())["success"] == 1


def test_settlements_search_by_the_ids_of_their_tasks(queue: Queue) -> None:
    """PostgreSQL keeps the plan that it made while the table was small."""
    queue.put_many([{"payload": number} for number in range(500)])
    store = core_of(queue).store
    assert isinstance(store, SqlStore)
    done, now = core_of(queue).rules.lifecycle.completed, queue.admin.now()
    ended = [(done(claim.task, now, None), claim.token) for claim in queue.claim(20)]
    statement = store.settle_sql.finish_many
    with store.database.engine.connect() as connection:
        given = statement.arguments(given_ends(ended, "postgresql"))
        lines = connection.exec_driver_sql(f"EXPLAIN {statement.text}", given).scalars()
        used = {found[1] for line in lines if (found := re.search(rf"using ({TABLE}_\w+)", line))}
    assert used == {f"{TABLE}_pkey"}
