"""Processor time of each verb on SQL beside its floor: the same statements by the bare driver, in turns.

    python -m benchmarks.floor [--rounds N] [--tasks N]

The life of some tasks runs once while every statement that freshq hands to the driver is recorded, with its
arguments and transactions. A floor replays these calls on an emptied table with the same indexes, through a
cursor of a connection with the same settings. The minimum of the rounds counts: noise only adds time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from unittest.mock import patch

from local.servers import Postgres

from benchmarks import figures
from benchmarks.render import markdown
from benchmarks.sql import PAYLOAD, sql_store
from benchmarks.worker_page import VERBS, floor_page
from freshq import Queue, Settlement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import sqlalchemy as sa

    from freshq import Claim

    Work = Callable[[], object]

BATCH: Final = 500
TOGETHER: Final = 10
Timed = dict[str, float]


class Call(NamedTuple):
    """A call of the driver: `execute` or `executemany`, with its arguments."""

    method: str
    arguments: tuple[Any, ...]


class Recorder:
    """Records the calls of a pool's cursors, by the verb under way."""

    def __init__(self) -> None:
        self.verb = ""
        self.calls: defaultdict[str, list[Call]] = defaultdict(list)

    @contextmanager
    def of(self, pool: Any) -> Iterator[None]:
        """Record what is sent through cursors that the pool lends."""
        borrow = pool.borrow

        def recorded() -> tuple[Any, Any]:
            entry, cursor = borrow()
            return entry, RecordedCursor(cursor, self)

        with patch.object(pool, "borrow", recorded):
            yield


class RecordedCursor:
    """A cursor of the driver whose calls are recorded."""

    def __init__(self, cursor: Any, recorder: Recorder) -> None:
        self._cursor, self._recorder = cursor, recorder

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the cursor."""
        return getattr(self._cursor, name)

    def execute(self, *arguments: Any) -> None:
        """Run a statement, and record it."""
        self._recorder.calls[self._recorder.verb].append(Call("execute", arguments))
        self._cursor.execute(*arguments)

    def executemany(self, *arguments: Any) -> None:
        """Run a statement for several rows, and record it."""
        self._recorder.calls[self._recorder.verb].append(Call("executemany", arguments))
        self._cursor.executemany(*arguments)


def life(queue: Queue, tasks: int, run: Callable[[str, Work], None]) -> None:
    """Have every verb run, for a number of tasks each, in the order of a task's life."""
    single: list[Claim] = []
    batches: list[list[Claim]] = []
    some = range(0, tasks, TOGETHER)
    run(VERBS[0], lambda: [queue.put(PAYLOAD) for _ in range(tasks)])
    run(
        VERBS[1],
        lambda: [
            queue.put_many([{"payload": PAYLOAD} for _ in range(BATCH)]) for _ in range(0, tasks, BATCH)
        ],
    )
    run(VERBS[2], lambda: single.extend(claim for _ in range(tasks) for claim in queue.claim()))
    run(VERBS[3], lambda: batches.extend(queue.claim(TOGETHER) for _ in some))
    run(VERBS[4], lambda: [queue.complete(claim) for claim in single])
    run(VERBS[5], lambda: [queue.settle_many(list(map(Settlement.complete, claims))) for claims in batches])
    assert queue.stats().success == tasks + TOGETHER * len(some)


def timed_life(queue: Queue, tasks: int) -> Timed:
    """Return the processor seconds of each verb."""
    found: Timed = {}

    def run(verb: str, work: Work) -> None:
        began = time.process_time()
        work()
        found[verb] = time.process_time() - began

    life(queue, tasks, run)
    return found


def recorded_life(queue: Queue, tasks: int) -> Recorder:
    """Return the calls of each verb."""
    recorder = Recorder()

    def run(verb: str, work: Work) -> None:
        recorder.verb = verb
        work()
        recorder.verb = ""

    with recorder.of(sql_store(queue).database.engine.pool):
        life(queue, tasks, run)
    return recorder


def timed_floor(engine: sa.Engine, recorder: Recorder) -> Timed:
    """Return the processor seconds of the recorded calls of each verb, by the bare driver."""
    connection = engine.raw_connection()
    cursor: Any = connection.driver_connection.cursor()  # type: ignore[union-attr] # it is connected
    found: Timed = {}
    for verb in VERBS:
        calls = [(getattr(cursor, call.method), call.arguments) for call in recorder.calls[verb]]
        began = time.process_time()
        for method, arguments in calls:
            method(*arguments)
            if cursor.description:
                cursor.fetchall()
        found[verb] = time.process_time() - began
    connection.close()
    return found


def measured(url: str, rounds: int, tasks: int) -> dict[str, dict[str, float]]:
    """Measure a database in turns; return the minimum of each verb, in µs of processor time a task.

    Args:
        url: Its address.
        rounds: How often each contender runs.
        tasks: How many tasks each verb handles, rounded up to whole batches.
    """
    rows_by_verb = dict.fromkeys(VERBS, tasks) | {
        VERBS[1]: -(-tasks // BATCH) * BATCH,
        **dict.fromkeys((VERBS[3], VERBS[5]), -(-tasks // TOGETHER) * TOGETHER),
    }
    queue = Queue.sql(url, durable=not url.startswith("sqlite"))
    queue.create_table()
    engine = sql_store(queue).database.engine
    recorder = recorded_life(queue, tasks)
    turns: list[Callable[[], Timed]] = [
        lambda: timed_life(queue, tasks),
        lambda: timed_floor(engine, recorder),
    ]
    found: list[list[Timed]] = [[], []]
    for number in range(rounds):
        for contender in (0, 1) if number % 2 else (1, 0):
            queue.purge(confirm="default")
            found[contender].append(turns[contender]())
    queue.purge(confirm="default")
    queue.close()
    return {
        verb: {
            name: round(1e6 * min(each[verb] for each in of) / rows_by_verb[verb], 2)
            for name, of in zip(("freshq_us", "floor_us"), found, strict=True)
        }
        for verb in VERBS
    }


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=1000)
    options = parser.parse_args()
    with Postgres(durable=True) as server, tempfile.TemporaryDirectory() as folder:
        urls = {"SQLite": f"sqlite:///{folder}/tasks.db", "PostgreSQL": server.url}
        databases = {name: measured(url, options.rounds, options.tasks) for name, url in urls.items()}
    report = {"rounds": options.rounds, "tasks": options.tasks, "databases": databases}
    figures.write("floor", report, ("psycopg", "sqlalchemy"))
    for blocks in floor_page().values():
        print(markdown(blocks))


if __name__ == "__main__":
    main()
