"""Processes that do random things to one queue, and write down what they did."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from freshq import FreshqError, Queue
from tests.soak.history import Journal
from tests.support.faults import client_at

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.process import BaseProcess
    from pathlib import Path

    from freshq import Claim

LEASE_SECONDS: Final = 0.5
MAX_AGE_SECONDS: Final = 30.0
CONTEXT: Final = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.soak.actors"])

SETTLEMENTS: Final = ("complete", "complete", "complete", "fail", "retry", "release", "extend", "abandon")


@dataclass(frozen=True)
class Place:
    """Where the queue is, in words that another process can open.

    Attributes:
        url: Of a SQL database, or the endpoint of a DynamoDB.
        table: Name of the table in DynamoDB; None for SQL.
    """

    url: str
    table: str | None = None

    def open(self) -> Queue:
        """Return the queue, as a process of its own has it."""
        options: Any = {
            "lease_seconds": LEASE_SECONDS,
            "max_age_seconds": MAX_AGE_SECONDS,
            "max_attempts": 1000,
            "clock": time.time,
        }
        if self.table is None:
            return Queue.sql(self.url, **options)
        queue: Queue = Queue.dynamodb(self.table, client_at(self.url, attempts=5), **options)
        return queue


class Actor:
    """Does random things to a queue."""

    def __init__(self, queue: Queue, journal: Journal, rng: random.Random) -> None:
        """Hold nothing yet."""
        self._queue = queue
        self._journal = journal
        self._rng = rng
        self._puts = 0
        self._held: list[Claim] = []
        self._known: list[str] = []

    def act(self) -> None:
        """Do one random thing."""
        verbs: list[Callable[[], None]] = [self._put, self._claim, self._settle, self._meddle]
        with contextlib.suppress(FreshqError):  # the journal has it
            self._rng.choices(verbs, weights=(4, 4, 6, 1))[0]()

    def _put(self) -> None:
        ids = []
        for _ in range(self._rng.choice((1, 1, 1, 7))):
            self._puts += 1
            ids.append(f"{self._journal.process}-{self._puts}")
        group = self._rng.choice((None, None, "a", "b"))
        delay_seconds = self._rng.choice((0, 0, 0, 0.2))
        with self._journal.call("put", *ids):
            self._queue.put_many(
                [
                    {"payload": each, "task_id": each, "group": group, "delay_seconds": delay_seconds}
                    for each in ids
                ]
            )
        self._known += ids

    def _claim(self) -> None:
        with self._journal.call("claim") as written:
            claims = self._queue.claim(self._rng.choice((1, 1, 3, 10)))
            written["claims"] = [
                {
                    "task_id": claim.task.task_id,
                    "token": claim.token,
                    "lease_until": claim.lease_until,
                    "deadline": claim.task.deadline,
                }
                for claim in claims
            ]
        self._held += claims

    def _settle(self) -> None:
        if not self._held:
            return
        claim = self._held.pop(self._rng.randrange(len(self._held)))
        verb = self._rng.choice(SETTLEMENTS)
        if verb == "abandon":
            return
        with self._journal.call(verb, claim.task.task_id, token=claim.token) as written:
            if verb == "extend":
                extended = self._queue.extend(claim, LEASE_SECONDS)
                written["lease_until"] = extended.lease_until
                self._held.append(extended)
            elif verb == "retry":
                self._queue.retry(claim, "again", self._rng.choice((0, 0.1)))
            else:
                getattr(self._queue, verb)(claim)

    def _meddle(self) -> None:
        if not self._known:
            return
        task_id = self._rng.choice(self._known)
        verb = self._rng.choice(("cancel", "touch", "reprioritize", "redrive", "recover"))
        with self._journal.call(verb, task_id):
            if verb == "recover":
                self._queue.recover()
            elif verb == "reprioritize":
                self._queue.reprioritize(task_id, self._rng.choice((0, 1)))
            elif verb == "redrive":
                self._queue.redrive(task_id=task_id)
            else:
                getattr(self._queue, verb)(task_id)


def play(place: Place, journal: Path, seed: int) -> None:
    """Act until killed."""
    actor = Actor(place.open(), Journal(journal, journal.stem), random.Random(seed))
    while True:
        actor.act()


class Cast:
    """Processes of which one or another is killed and replaced, or stopped for longer than a lease."""

    def __init__(self, place: Place, folder: Path, size: int, seed: int) -> None:
        """Start the processes."""
        self._place = place
        self._folder = folder
        self._rng = random.Random(seed)
        self._started = 0
        self._actors = [self._start() for _ in range(size)]
        self.killed = self.stopped = 0

    def _start(self) -> BaseProcess:
        self._started += 1
        journal = self._folder / f"actor{self._started}.jsonl"
        process = CONTEXT.Process(target=play, args=(self._place, journal, self._started), daemon=True)
        process.start()
        return process

    def acts(self) -> bool:
        """Return whether each of the first actors has written something down."""
        journals = [self._folder / f"actor{number + 1}.jsonl" for number in range(len(self._actors))]
        return all(journal.exists() for journal in journals)

    def disturb(self) -> None:
        """Kill one, or stop one for one and a half leases."""
        number = self._rng.randrange(len(self._actors))
        victim = self._actors[number]
        assert victim.pid is not None
        assert victim.is_alive(), f"an actor ended by itself with status {victim.exitcode}"
        if self._rng.random() < 0.6:
            os.kill(victim.pid, signal.SIGKILL)
            victim.join()
            self.killed += 1
            self._actors[number] = self._start()
        else:
            os.kill(victim.pid, signal.SIGSTOP)
            time.sleep(1.5 * LEASE_SECONDS)
            os.kill(victim.pid, signal.SIGCONT)
            self.stopped += 1

    def end(self) -> None:
        """Kill all that are left."""
        for actor in self._actors:
            actor.kill()
            actor.join()
