"""Processes that do random things to one queue and keep a journal."""

import contextlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import boto3
from botocore.config import Config
from types_boto3_dynamodb import DynamoDBClient

from freshq import AttachedQueue, Claim, FreshqError, Queue, StoreError
from freshq.queue.core import core_of
from tests.soak.history import Journal
from tests.support.patience import PATIENCE_SECONDS

LEASE_SECONDS: Final = 0.5
MAX_AGE_SECONDS: Final = 30.0

SETTLEMENTS: Final = ("complete", "complete", "complete", "fail", "retry", "release", "extend", "abandon")
# Verbs that the first actors divide among them and repeat until each succeeds, before any disturbance.
OPENING: Final = (
    "put", "claim", "complete", "fail", "redrive", "retry", "release", "extend",
    "reprioritize", "cancel", "recover", "cancel as dead", "redrive as new",
)  # fmt: skip
MEDDLING: Final = ("cancel", "reprioritize", "redrive", "recover", "cancel as dead", "redrive as new")
# Probability with which a verb takes a task from its holder by force.
FORCED: Final = 0.5
# The delay of a task that nobody may claim during the opening.
LONG_DELAY_SECONDS: Final = 20.0


class Watch:
    """The clock of a queue, which notes whether it was read after the store answered a claim."""

    def __init__(self) -> None:
        self._read = self._answered = 0.0

    def __call__(self) -> float:
        self._read = time.time()
        return self._read

    def note_answers(self, queue: Queue | AttachedQueue) -> None:
        """Note when the store of a queue answers a claim."""
        schedulers: Any = core_of(queue).schedulers
        claimed = schedulers.claimed

        def noted(tasks: Any) -> None:
            self._answered = time.time()
            claimed(tasks)

        schedulers.claimed = noted

    @property
    def checked(self) -> float | None:
        """When the queue last looked at the time, if that was after the answer; None if it was not."""
        return self._read if self._read >= self._answered else None


@dataclass(frozen=True)
class Place:
    """The address of the queue, in a form that another process can open.

    Attributes:
        url: Of a SQL database, or the endpoint of a DynamoDB.
        table: Name of the table in DynamoDB; None for SQL.
        answer_seconds: How long to wait for an answer; a busy machine may stall a server for many seconds.
        key: The hash key of an attached table; None for a table of freshq's own.
        lease_seconds: Length of the leases.
    """

    url: str
    table: str | None = None
    answer_seconds: float = PATIENCE_SECONDS
    key: str | None = None
    lease_seconds: float = LEASE_SECONDS

    def open(self, clock: Callable[[], float] | None = time.time) -> Queue | AttachedQueue:
        """Return the queue as another process would open it; without a clock it uses the store's."""
        options: Any = {
            "lease_seconds": self.lease_seconds,
            "max_age_seconds": MAX_AGE_SECONDS,
            "max_attempts": 1000,
            **({} if clock is None else {"clock": clock}),
        }
        if self.table is not None:
            if self.key is not None:
                options |= {"attach": True, "key": self.key}
            queue: Queue | AttachedQueue = Queue.dynamodb(
                self.table, _client(self.url, self.answer_seconds), **options
            )
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
        aws_secret_access_key="local",
        config=Config(
            connect_timeout=answer_seconds,
            read_timeout=answer_seconds,
            retries={"mode": "standard", "total_max_attempts": 3},
        ),
    )
    return client


class Actor:
    """Does random things to a queue."""

    def __init__(
        self, queue: Queue | AttachedQueue, journal: Journal, rng: random.Random, watch: Watch | None = None
    ) -> None:
        """Hold nothing yet."""
        self._queue = queue
        self._watch = watch
        self._journal = journal
        self._rng = rng
        self._puts = 0
        self._held: list[Claim] = []
        self._known: list[str] = []
        self._failed = ""

    def act(self) -> None:
        """Do one random thing."""
        verbs: list[Callable[[], object]] = [*(self._put, self._claim, self._settle, self._meddle)]
        with contextlib.suppress(FreshqError):  # the journal has it
            self._rng.choices(verbs, weights=(8, 8, 12, 3))[0]()

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
            elif verb in ("cancel as dead", "redrive as new"):
                self._put(1, LONG_DELAY_SECONDS)
                if verb == "redrive as new":  # a waiting task would keep its delay
                    self._meddle("cancel as dead", self._known[-1])
                self._meddle(verb, self._known[-1])
            elif verb == "redrive" and not self._failed:
                self._is_done("fail", delayed)
                return False
            else:
                self._meddle(verb, self._failed if verb == "redrive" else delayed)
        except FreshqError:  # the journal has it
            if verb == "redrive":  # another actor may have brought it back
                self._failed = ""
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
                    {"payload": payload, "task_id": each, "group": group, "delay_seconds": delay_seconds}
                    for each, payload in zip(ids, self._payloads(ids), strict=True)
                ]
            )
        self._known += ids

    def _payloads(self, ids: Sequence[str]) -> Sequence[str | None]:
        """Return the payloads to put; the payload of a record is the record, which is written first."""
        if not isinstance(self._queue, AttachedQueue):
            return ids
        for each in ids:
            self._queue.records.put({"id": each, "written_by": self._journal.process})
        return [None] * len(ids)

    def _claim(self) -> None:
        limit = self._rng.choice((1, 1, 3, 10))
        with self._journal.call("claim") as written:
            claims = self._queue.claim(limit)
            written["short"] = len(claims) < limit
            written["claims"] = [
                {
                    "task_id": claim.task.task_id,
                    "token": claim.token,
                    "lease_until": claim.lease_until,
                    "deadline": claim.task.deadline,
                    "lease_seconds": self._queue.admin.config.lease_seconds,
                    "checked": None if self._watch is None else self._watch.checked,
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
                extended = self._queue.extend(claim, lease_seconds=self._queue.admin.config.lease_seconds)
                written["lease_until"] = extended.lease_until
                self._held.append(extended)
            elif verb == "retry":
                self._queue.retry(claim, error="again", delay_seconds=self._rng.choice((0, 0.1)))
            else:
                getattr(self._queue, verb)(claim)
        if verb == "fail":
            self._failed = claim.task.task_id

    def _meddle(self, verb: str | None = None, task_id: str = "") -> None:
        if not self._known:
            return
        task_id = task_id or self._rng.choice(self._known)
        verb = verb or self._rng.choice(MEDDLING)
        with self._journal.call(verb, task_id):
            if verb == "recover":
                self._queue.admin.recover()
            elif verb == "reprioritize":
                self._queue.reprioritize(task_id, priority=self._rng.choice((0, 1)))
            elif verb == "redrive":
                self._queue.redrive([task_id])
            elif verb == "redrive as new":
                self._queue.redrive([task_id], as_new=True, force=self._rng.random() < FORCED)
            else:
                self._queue.cancel(task_id, dead=verb != "cancel", force=self._rng.random() < FORCED)


def opened(place: Place, watch: Watch) -> Queue | AttachedQueue:
    """Return the queue once its store answers: to open an attached table reads how it was attached."""
    while True:
        with contextlib.suppress(StoreError):
            queue = place.open(watch)
            watch.note_answers(queue)
            return queue


def play(place: Place, journal: Path, seed: int, opening: Sequence[str]) -> None:
    """Act until killed, after an opening if it has verbs."""
    watch = Watch()
    actor = Actor(opened(place, watch), Journal(journal, journal.stem), random.Random(seed), watch)
    if opening:
        actor.open(opening)
    while True:
        actor.act()
