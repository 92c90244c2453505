"""Histories of queues in SQL databases, for tests: what was written, and a queue that lives at random."""

import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import sqlalchemy as sa

from freshq import Claim, LeaseLost, Queue, Settlement, TaskStatus
from freshq.errors import IllegalTransition
from freshq.stores.sql import SqlStore
from tests.conftest import Clock

NAME: Final = "default"
KEPT_SECONDS: Final = 3_600.0


def keeping(engine: sa.Engine, name: str = NAME, seconds: float = KEPT_SECONDS) -> SqlStore:
    """Return a store whose queue keeps a history."""
    store = SqlStore(engine, queue=name, history_seconds=seconds)
    store.create_table()
    return store


def pulled(store: SqlStore, name: str = NAME) -> list[dict[str, Any]]:
    """Return all events of the history of a queue, in order."""
    store.history.add_batches(name)
    kept = store.history.kept(name)
    assert kept is not None
    batches = range(kept.first_batch, kept.last_batch + 1)
    return [event for batch in batches for event in store.history.events(name, batch)]


def versions(store: SqlStore, name: str = NAME) -> dict[str, str]:
    """Return the version of every task of a queue."""
    return {task.task_id: task.request_token for task in store.scan(name)}


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the id and the kind of each change between two states of a queue, sorted."""
    kinds = dict.fromkeys(before.keys() & after.keys(), "MODIFY")
    kinds |= dict.fromkeys(after.keys() - before.keys(), "INSERT")
    kinds |= dict.fromkeys(before.keys() - after.keys(), "REMOVE")
    return sorted(
        (task_id, kind) for task_id, kind in kinds.items() if before.get(task_id) != after.get(task_id)
    )


def fates(events: Iterable[Mapping[str, Any]], now: float) -> dict[str, int]:
    """Return the number of tasks by fate that events tell of."""
    last = {event["task_id"]: event for event in events}
    counts = dict.fromkeys(("pending", "taken", "success", "failure", "cancelled", "shed"), 0)
    for event in last.values():
        if event["change"] == "REMOVE":
            continue
        stale = event["status"] == TaskStatus.PENDING and event["deadline_ms"] <= now * 1000
        counts["shed" if stale else event["status"].lower()] += 1
    return counts


class Life:
    """Applies random verbs to a queue."""

    def __init__(self, queue: Queue, clock: Clock, seed: int) -> None:
        """Apply none yet."""
        self._queue = queue
        self._clock = clock
        self._random = random.Random(seed)
        self._claims: list[Claim] = []
        self._puts = 0

    def live(self, steps: int) -> None:
        """Apply a number of verbs."""
        verbs: list[Callable[[], object]] = [
            *(self._put, self._put, self._put_many, self._claim, self._claim, self._settle, self._settle),
            *(
                self._settle_many,
                self._by_id,
                self._by_id,
                self._wait,
                self._queue.admin.recover,
                self._transaction,
            ),
        ]
        for _ in range(steps):
            self._random.choice(verbs)()
            self._clock.advance(self._random.choice([0.001, 0.5, 2.0]))

    def _put(self) -> None:
        self._puts += 1
        delay_seconds = self._random.choice([0, 0, 0, 5])
        group = self._random.choice([None, "a", "b"])
        self._queue.put(self._puts, task_id=f"t{self._puts}", delay_seconds=delay_seconds, group=group)

    def _put_many(self) -> None:
        numbers = range(self._puts + 1, self._puts + 4)
        self._puts += 3
        self._queue.put_many([{"payload": number, "task_id": f"t{number}"} for number in numbers])

    def _claim(self) -> None:
        self._claims += self._queue.claim(limit=self._random.randint(1, 3))

    def _taken(self) -> Claim | None:
        if not self._claims:
            return None
        return self._claims.pop(self._random.randrange(len(self._claims)))

    def _settle(self) -> None:
        claim = self._taken()
        if claim is None:
            return
        queue = self._queue
        verbs: list[Callable[[Claim], object]] = [
            *(queue.complete, queue.complete, queue.fail, queue.retry, queue.release),
            lambda claim: queue.extend(claim, lease_seconds=60),
        ]
        try:
            self._random.choice(verbs)(claim)
        except LeaseLost:
            return  # others ended the claim, or it is too late

    def _settle_many(self) -> None:
        claims = [claim for claim in (self._taken(), self._taken(), self._taken()) if claim is not None]
        makers: list[Callable[[Claim], Settlement]] = [
            Settlement.complete, Settlement.retry, Settlement.release, Settlement.fail,
        ]  # fmt: skip
        self._queue.settle_many([self._random.choice(makers)(claim) for claim in claims])

    def _by_id(self) -> None:
        if not self._puts:
            return
        queue, task_id = self._queue, f"t{self._random.randint(1, self._puts)}"
        verbs: list[Callable[[], object]] = [
            lambda: queue.cancel(task_id),
            lambda: queue.cancel(task_id, force=True),
            lambda: queue.cancel(task_id, dead=True, error="by hand"),
            lambda: queue.redrive([task_id], as_new=True),
            lambda: queue.redrive([task_id], as_new=True),
            lambda: queue.reprioritize(task_id, priority=self._random.randint(0, 3)),
            lambda: queue.redrive([task_id]),
            lambda: queue.put("again", task_id=task_id, on_conflict="update"),
            lambda: queue.put(self._random.random(), task_id=task_id, on_conflict="after"),
        ]
        try:
            self._random.choice(verbs)()
        except IllegalTransition:
            return  # the task is not in a status for this verb

    def _wait(self) -> None:
        self._clock.advance(self._random.choice([5, 20]))

    def _transaction(self) -> None:
        with self._queue.transaction() as work:
            if work is not None:
                work.result = "done"
