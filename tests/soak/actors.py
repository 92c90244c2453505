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

import boto3
from botocore.config import Config

from freshq import FreshqError, Queue
from tests.soak.history import OK, Journal, Stop, read
from tests.support.proxy import Fault, Proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.process import BaseProcess
    from pathlib import Path

    from types_boto3_dynamodb import DynamoDBClient

    from freshq import Claim

LEASE_SECONDS: Final = 0.5
# How long an actor waits for an answer, such as one that the proxy swallows.
ANSWER_SECONDS: Final = 1.0
# How long a fault of the network lasts.
FAULT_SECONDS: Final = 0.4
# An answer that comes late, by more than the lease slack of the checker.
DELAY_SECONDS: Final = 0.3
# How long a store is down before it is started again.
DOWN_SECONDS: Final = 0.5
MAX_AGE_SECONDS: Final = 30.0
CONTEXT: Final = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.soak.actors"])

SETTLEMENTS: Final = ("complete", "complete", "complete", "fail", "retry", "release", "extend", "abandon")
# What the first actors share out, and do until the queue has carried it out, before anything is disturbed.
OPENING: Final = (
    "put", "claim", "complete", "fail", "redrive", "retry", "release", "extend",
    "touch", "reprioritize", "cancel", "recover",
)  # fmt: skip
# Of a task that nobody claims during an opening.
LONG_DELAY_SECONDS: Final = 20.0


@dataclass(frozen=True)
class Place:
    """Where the queue is, in words that another process can open.

    Attributes:
        url: Of a SQL database, or the endpoint of a DynamoDB.
        table: Name of the table in DynamoDB; None for SQL.
        answer_seconds: How long to wait for an answer.
    """

    url: str
    table: str | None = None
    answer_seconds: float = ANSWER_SECONDS

    def open(self) -> Queue:
        """Return the queue, as a process of its own has it."""
        options: Any = {
            "lease_seconds": LEASE_SECONDS,
            "max_age_seconds": MAX_AGE_SECONDS,
            "max_attempts": 1000,
            "clock": time.time,
        }
        if self.table is not None:
            queue: Queue = Queue.dynamodb(self.table, _client(self.url, self.answer_seconds), **options)
            return queue
        if not self.url.startswith("sqlite"):
            options |= dict.fromkeys(
                ("connect_timeout_seconds", "answer_timeout_seconds"), self.answer_seconds
            )
        return Queue.sql(self.url, **options)


def _client(endpoint_url: str, answer_seconds: float) -> DynamoDBClient:
    client: DynamoDBClient = boto3.client(
        "dynamodb",
        endpoint_url=endpoint_url,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",  # noqa: S106 - names no account
        config=Config(
            connect_timeout=answer_seconds,
            read_timeout=answer_seconds,
            retries={"mode": "standard", "total_max_attempts": 3},
        ),
    )
    return client


@dataclass
class Network:
    """What is between the actors and their store.

    Attributes:
        proxy: Passes their connections on.
        restart: Stops the store and starts it again, with its data; None: never.
    """

    proxy: Proxy
    restart: Callable[[], None] | None = None


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
        self._failed = ""

    def act(self) -> None:
        """Do one random thing."""
        verbs: list[Callable[[], None]] = [self._put, self._claim, self._settle, self._meddle]
        with contextlib.suppress(FreshqError):  # the journal has it
            self._rng.choices(verbs, weights=(4, 4, 6, 1))[0]()

    def open(self, verbs: Sequence[str]) -> None:
        """Do some verbs until the queue has carried out each once."""
        while not self._known:
            with contextlib.suppress(FreshqError):  # the journal has it
                self._put(1, LONG_DELAY_SECONDS)
        delayed = self._known[0]
        # At the end nothing is left that is delayed for long.
        for verb in [*(verb for verb in verbs if verb != "cancel"), "cancel"]:
            while not self._is_done(verb, delayed):
                pass

    def _is_done(self, verb: str, delayed: str) -> bool:
        """Try a verb; return whether it succeeded."""
        try:
            if verb == "put":
                self._put()
            elif verb == "claim":
                self._claim()
            elif verb in SETTLEMENTS:
                self._put()
                self._claim()
                if not self._held:
                    return False
                self._settle(verb)
            elif verb == "redrive" and not self._failed:
                self._is_done("fail", delayed)
                return False
            else:
                self._meddle(verb, self._failed if verb == "redrive" else delayed)
        except FreshqError:  # the journal has it
            return False
        return True

    def _put(self, count: int = 0, delay_seconds: float | None = None) -> None:
        ids = []
        for _ in range(count or self._rng.choice((1, 1, 1, 7))):
            self._puts += 1
            ids.append(f"{self._journal.process}-{self._puts}")
        group = self._rng.choice((None, None, "a", "b"))
        if delay_seconds is None:
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
                    "lease_seconds": self._queue.lease_seconds,
                }
                for claim in claims
            ]
        self._held += claims

    def _settle(self, verb: str | None = None) -> None:
        if not self._held:
            return
        # In an opening the newest claim: an older lease may be over.
        claim = self._held.pop(-1 if verb else self._rng.randrange(len(self._held)))
        verb = verb or self._rng.choice(SETTLEMENTS)
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
        if verb == "fail":
            self._failed = claim.task.task_id

    def _meddle(self, verb: str | None = None, task_id: str = "") -> None:
        if not self._known:
            return
        task_id = task_id or self._rng.choice(self._known)
        verb = verb or self._rng.choice(("cancel", "touch", "reprioritize", "redrive", "recover"))
        with self._journal.call(verb, task_id):
            if verb == "recover":
                self._queue.recover()
            elif verb == "reprioritize":
                self._queue.reprioritize(task_id, self._rng.choice((0, 1)))
            elif verb == "redrive":
                self._queue.redrive(task_id=task_id)
            else:
                getattr(self._queue, verb)(task_id)


def play(place: Place, journal: Path, seed: int, opening: Sequence[str]) -> None:
    """Act until killed, after an opening if it has verbs."""
    actor = Actor(place.open(), Journal(journal, journal.stem), random.Random(seed))
    if opening:
        actor.open(opening)
    while True:
        actor.act()


class Cast:
    """Processes of which one or another is killed and replaced, or stopped for longer than a lease.

    The network between them and their store fails for moments, and the store is stopped and started.
    """

    def __init__(
        self, place: Place, folder: Path, size: int, seed: int, network: Network | None = None
    ) -> None:
        """Start the processes."""
        self._place = place
        self._network = network
        self._folder = folder
        self._rng = random.Random(seed)
        self._started = 0
        self._actors = [self._start(OPENING[number::size]) for number in range(size)]
        self.killed = self.faults = self.restarts = 0
        self.stops: list[Stop] = []
        self._untried = [act for act, _weight in self._bad_things()]
        self._rng.shuffle(self._untried)

    def _start(self, opening: Sequence[str] = ()) -> BaseProcess:
        self._started += 1
        journal = self._folder / f"actor{self._started}.jsonl"
        process = CONTEXT.Process(
            target=play,
            args=(self._place, journal, self._started, opening),
            name=journal.stem,
            daemon=True,
        )
        process.start()
        return process

    def has_opened(self) -> bool:
        """Return whether the first actors have done their shares of the opening."""
        size = len(self._actors)
        events = read(self._folder.glob("*.jsonl"))
        done = {(event.process, event.verb) for event in events if event.outcome == OK}
        shares = {f"actor{number + 1}": OPENING[number::size] for number in range(size)}
        return all((name, verb) in done for name, share in shares.items() for verb in (*share, "cancel"))

    def disturb(self) -> None:
        """Do one of the bad things; at first each of them once."""
        if self._untried:
            self._untried.pop()()
            return
        verbs, weights = zip(*self._bad_things(), strict=True)
        self._rng.choices(verbs, weights)[0]()

    @property
    def tried_all(self) -> bool:
        """Whether each of the bad things was done."""
        return not self._untried

    def _bad_things(self) -> list[tuple[Callable[[], None], int]]:
        """Return what can be done, and how often beside the others."""
        things: list[tuple[Callable[[], None], int]] = [(self._kill, 6), (self._stop, 4)]
        if self._network is not None:
            things.append((self._fail, 5))
            if self._network.restart is not None:
                things.append((self._restart, 1))
        return things

    def _victim(self) -> tuple[int, BaseProcess]:
        number = self._rng.randrange(len(self._actors))
        victim = self._actors[number]
        assert victim.is_alive(), f"an actor ended by itself with status {victim.exitcode}"
        return number, victim

    def _kill(self) -> None:
        number, victim = self._victim()
        victim.kill()
        victim.join()
        self.killed += 1
        self._actors[number] = self._start()

    def _stop(self) -> None:
        """Stop one for one and a half leases."""
        _number, victim = self._victim()
        assert victim.pid is not None
        began = time.time()
        os.kill(victim.pid, signal.SIGSTOP)
        time.sleep(1.5 * LEASE_SECONDS)
        os.kill(victim.pid, signal.SIGCONT)
        self.stops.append(Stop(victim.name, began, time.time()))

    def _fail(self) -> None:
        """Let the network fail for a moment."""
        assert self._network is not None
        proxy = self._network.proxy
        proxy.delay_seconds = DELAY_SECONDS
        proxy.fault = self._rng.choice((Fault.DELAY, Fault.CUT, Fault.SWALLOW, Fault.RESET))
        time.sleep(FAULT_SECONDS)
        proxy.fault = Fault.NONE
        self.faults += 1

    def _restart(self) -> None:
        assert self._network is not None
        assert self._network.restart is not None
        self._network.restart()
        self.restarts += 1

    def end(self) -> None:
        """Kill all that are left."""
        for actor in self._actors:
            actor.kill()
            actor.join()
