"""Latency between processes: from a put to the start of the task by an idle worker, and to its result.

A worker of each contender waits in a process of its own, all at the same time, and the producers take turns.
Intervals between puts are random and long enough for the worker to be idle again. Other queues have a
database each on the same PostgreSQL, and keep no result to wait for.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from itertools import chain
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import psycopg
from local.servers import Postgres
from typing_extensions import override

from benchmarks import figures
from benchmarks.figures import LONGEST_SECONDS, in_background, in_turns
from benchmarks.library_pages import FRESHQ
from benchmarks.peers import PAUSE_SECONDS, SLOTS, pauses
from benchmarks.worker import PROGRAM, PeerProcess, conninfo, fill_peer, new_database, opened
from freshq import Queue, Task, Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    Turn = Callable[[], list[dict[str, float]]]

PEERS: Final = ("procrastinate", "oban")
IDLE_SECONDS: Final = 20
# The server's counts are up to a second late.
COUNTED_SECONDS: Final = 2
COUNT: Final = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s"


def began(_task: Task) -> float:
    """Return when the run began, by the machine's monotonic clock."""
    return time.monotonic()


def _work(url: str, ready: Any, over: Any) -> None:
    logging.disable(logging.WARNING)
    with opened(url) as queue:
        queue.get("none")
        ready.put("ready")
        Worker(queue, began, concurrency=SLOTS).run(until=over.is_set)


# Takes the address of a queue, and runs an idle worker in another process during a block.
working: Final = partial(in_background, _work)


def round_trips(queue: Queue, tasks: int) -> list[dict[str, float]]:
    """Put single tasks and wait for each result; return the milliseconds from the put."""
    source, found = pauses(tasks), []
    for _ in range(tasks):
        time.sleep(source.uniform(*PAUSE_SECONDS))
        put_at = time.monotonic()
        task = queue.wait(queue.put("work").task_id, timeout_seconds=LONGEST_SECONDS)
        learned_at = time.monotonic()
        found.append(
            {
                "start_ms": round(1000 * (task.result - put_at), 2),
                "result_ms": round(1000 * (learned_at - put_at), 2),
            }
        )
    return found


class IdlePeer(PeerProcess):
    """An idle worker of another queue, and its producer."""

    def __init__(self, python: str, peer: str, where: str) -> None:
        """Start it and wait until it is idle."""
        self._put = [python, PROGRAM, "put", peer, where]
        self._lines: SimpleQueue[str] = SimpleQueue()
        super().__init__(python, "idle", peer, where, SLOTS)

    @override
    def hear(self, line: str) -> None:
        self._lines.put(line)

    def turn(self, tasks: int) -> list[dict[str, float]]:
        """Let it run single tasks; return the milliseconds from the put to the start of each."""
        command = [*self._put, str(tasks)]
        subprocess.run(command, check=True, timeout=LONGEST_SECONDS, stderr=subprocess.DEVNULL)
        return [{"start_ms": float(self._lines.get(timeout=LONGEST_SECONDS))} for _ in range(tasks)]


def contenders(
    server: Postgres, peers: str, stack: ExitStack, tasks: int
) -> tuple[dict[str, Turn], dict[str, str]]:
    """Start all workers; return a turn of each contender, and the versions of the installed peers."""
    turns: dict[str, Turn] = {}
    versions: dict[str, str] = {}
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    for name, url in ((FRESHQ, server.url), (f"{FRESHQ}, SQLite", f"sqlite:///{folder}/tasks.db")):
        queue = stack.enter_context(opened(url))
        queue.create_table()
        stack.enter_context(working(url))
        turns[name] = partial(round_trips, queue, tasks)
    for peer in PEERS:
        where = new_database(server, peer)
        version = fill_peer(peers, peer, where, 0)
        if version is not None:
            versions[peer] = version
            idle = IdlePeer(peers, peer, where)
            stack.callback(idle.end)
            turns[peer] = partial(idle.turn, tasks)
    return turns, versions


def idle_rates(server: Postgres, databases: dict[str, str]) -> dict[str, float]:
    """Return the transactions a second of each database while nothing is put."""
    with psycopg.connect(conninfo(server, "template1"), autocommit=True) as connection:

        def counts() -> dict[str, int]:
            time.sleep(COUNTED_SECONDS)
            rows = {name: connection.execute(COUNT, [each]).fetchone() for name, each in databases.items()}
            return {name: row[0] for name, row in rows.items() if row}

        before, since = counts(), time.monotonic()
        time.sleep(IDLE_SECONDS)
        after = counts()
        seconds = time.monotonic() - since
    return {name: round((after[name] - before[name]) / seconds, 2) for name in databases}


def main(rounds: int = 4, tasks: int = 50, peers: str = sys.executable) -> None:
    """Measure in rounds of a number of tasks for each contender."""
    with Postgres(durable=True) as server, ExitStack() as stack:
        turns, versions = contenders(server, peers, stack, tasks)
        databases = {FRESHQ: "postgres"} | {peer: peer for peer in versions}
        found = in_turns(turns, rounds)
        idle = idle_rates(server, databases)
    figures.write(
        "wake",
        {
            "rounds": rounds,
            "tasks": tasks,
            "slots": SLOTS,
            "versions": versions,
            "missing": [peer for peer in PEERS if peer not in versions],
            "idle_per_second": idle,
            "contenders": {name: [*chain.from_iterable(turns)] for name, turns in found.items()},
        },
    )
