"""Processor time of each verb on SQL beside its floor: the same statements by the bare driver, in turns.

One run of the life of some tasks records every statement that freshq hands to the driver, with arguments and
transactions. The floor replays these calls on an emptied table with the same indexes, through a cursor of the
same kind of connection. The minimum of the rounds counts, because noise only adds time.
"""

from __future__ import annotations

import tempfile
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from unittest.mock import patch

from local.servers import Postgres

from benchmarks import figures
from benchmarks.figures import PAYLOAD, in_turns
from benchmarks.library_pages import VERBS
from freshq import Queue, Settlement
from freshq.queue.core import core_of
from freshq.stores.sql import SqlStore

if TYPE_CHECKING:
    from collections.abc import Callable

    import sqlalchemy as sa

    from freshq import Claim

    Work = Callable[[], object]

BATCH: Final = 500
TOGETHER: Final = 10
Timed = dict[str, float]


class Call(NamedTuple):
    """A call of the driver: `execute` or `executemany` with its arguments."""

    method: str
    arguments: tuple[Any, ...]


class RecordedCursor:
    """A cursor of the driver whose calls are recorded."""

    def __init__(self, cursor: Any, calls: list[Call]) -> None:
        self._cursor, self._calls = cursor, calls

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the cursor; a method that runs a statement is also recorded."""
        found = getattr(self._cursor, name)
        if name not in {"execute", "executemany"}:
            return found

        def recorded(*arguments: Any) -> Any:
            self._calls.append(Call(name, arguments))
            return found(*arguments)

        return recorded


def sql_store(queue: Queue) -> SqlStore:
    """Return the store of a queue in a SQL database."""
    store = core_of(queue).store
    assert isinstance(store, SqlStore)
    return store


def life(queue: Queue, tasks: int, run: Callable[[str, Work], None]) -> None:
    """Run every verb for a number of tasks each, in the order of a task's life."""
    single: list[Claim] = []
    batches: list[list[Claim]] = []
    some = range(0, tasks, TOGETHER)
    rows = [{"payload": PAYLOAD}] * BATCH
    works: tuple[Work, ...] = (
        lambda: [queue.put(PAYLOAD) for _ in range(tasks)],
        lambda: [queue.put_many(rows) for _ in range(0, tasks, BATCH)],
        lambda: single.extend(claim for _ in range(tasks) for claim in queue.claim()),
        lambda: batches.extend(queue.claim(TOGETHER) for _ in some),
        lambda: [queue.complete(claim) for claim in single],
        lambda: [queue.settle_many(list(map(Settlement.complete, claims))) for claims in batches],
    )
    for verb, work in zip(VERBS, works, strict=True):
        run(verb, work)
    assert queue.stats().success == tasks + TOGETHER * len(some)


def timed_life(queue: Queue, tasks: int) -> Timed:
    """Return the processor seconds of each verb."""
    found: Timed = {}

    def run(verb: str, work: Work) -> None:
        began = time.process_time()
        work()
        found[verb] = time.process_time() - began

    queue.purge(confirm="default")
    life(queue, tasks, run)
    return found


def recorded_life(queue: Queue, tasks: int) -> dict[str, list[Call]]:
    """Return the calls of each verb."""
    calls: dict[str, list[Call]] = {}
    pool = sql_store(queue).database.engine.pool
    borrow = pool.borrow  # type: ignore[attr-defined] # a pool of freshq

    def run(verb: str, work: Work) -> None:
        calls[verb] = []

        def recorded() -> tuple[Any, Any]:
            entry, cursor = borrow()
            return entry, RecordedCursor(cursor, calls[verb])

        with patch.object(pool, "borrow", recorded):
            work()

    life(queue, tasks, run)
    return calls


def timed_floor(engine: sa.Engine, recorded: dict[str, list[Call]]) -> Timed:
    """Return the processor seconds of the recorded calls of each verb through the bare driver."""
    connection = engine.raw_connection()
    cursor: Any = connection.driver_connection.cursor()  # type: ignore[union-attr] # it is connected
    found: Timed = {}
    for verb in VERBS:
        calls = [(getattr(cursor, call.method), call.arguments) for call in recorded[verb]]
        began = time.process_time()
        for method, arguments in calls:
            method(*arguments)
            if cursor.description:
                cursor.fetchall()
        found[verb] = time.process_time() - began
    connection.close()
    return found


def measured(url: str, rounds: int, tasks: int) -> dict[str, dict[str, float]]:
    """Return the minimum of each verb, in µs of processor time per task.

    Args:
        url: The database.
        rounds: How often each contender runs.
        tasks: Tasks of each verb, rounded up to whole batches.
    """
    sizes = dict.fromkeys(VERBS, 1) | {VERBS[1]: BATCH, VERBS[3]: TOGETHER, VERBS[5]: TOGETHER}
    queue = Queue.sql(url, durable=not url.startswith("sqlite"))
    queue.create_table()
    recorded = recorded_life(queue, tasks)

    def floor() -> Timed:
        queue.purge(confirm="default")
        return timed_floor(sql_store(queue).database.engine, recorded)

    contenders: dict[str, Callable[[], Timed]] = {
        "floor_us": floor,
        "freshq_us": partial(timed_life, queue, tasks),
    }
    found = in_turns(contenders, rounds)
    queue.purge(confirm="default")
    queue.close()
    return {
        verb: {
            name: round(1e6 * min(each[verb] for each in of) / (-(-tasks // size) * size), 2)
            for name, of in found.items()
        }
        for verb, size in sizes.items()
    }


def main(rounds: int = 5, tasks: int = 1000) -> None:
    """Measure on SQLite and PostgreSQL."""
    with Postgres(durable=True) as server, tempfile.TemporaryDirectory() as folder:
        urls = {"SQLite": f"sqlite:///{folder}/tasks.db", "PostgreSQL": server.url}
        databases = {name: measured(url, rounds, tasks) for name, url in urls.items()}
    figures.write("floor", {"rounds": rounds, "tasks": tasks, "databases": databases})
