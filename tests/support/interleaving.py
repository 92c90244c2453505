"""Run several queues on one store so that exactly one runs at a time, in an order drawn from a seed.

Each actor is a greenlet with its own queue, as a process has. It hands over before each call of the store.
Faults: a reply is lost, a write lands a second time later, and an actor is killed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from greenlet import GreenletExit, greenlet

from freshq import Claim, LeaseLost, Queue, TaskStatus
from freshq.errors import RefusedError, Unreachable
from freshq.model.task import TRANSITIONS, Task
from freshq.stores.memory import MemoryStore

LEASE_SECONDS: Final = 10.0
WRITES: Final = frozenset({"replace", "settle_many", "replace_many"})
LEGAL: Final = {
    (source, target) for sources, targets in TRANSITIONS.values() for source in sources for target in targets
}
Actor = Callable[[Queue], object]


class Audited(MemoryStore):
    """A store that checks each change of a task against the transitions, and who made it."""

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[str] = []
        self.now = 0.0

    def tokens(self) -> Iterator[tuple[str, str | None]]:
        """Yield the token under which each task is held."""
        return ((task.task_id, task.lease_token) for task in self._tasks.values())

    def _store(self, task: Task) -> None:
        before = self._tasks.get(task.task_id)
        if before is not None:
            self.problems += self._wrong(before, task)
        super()._store(task)

    def _wrong(self, before: Task, after: Task) -> Iterator[str]:
        if (before.status, after.status) not in LEGAL:
            yield f"{before.status} became {after.status}"
        if after.attempts not in (0, before.attempts - 1, before.attempts, before.attempts + 1):
            yield f"attempts {before.attempts} became {after.attempts}"
        if after.status is TaskStatus.TAKEN and before.stale_at <= self.now and before.lease_token is None:
            yield "a stale task was taken"
        if before.status is TaskStatus.TAKEN and before.created != after.created:
            yield "a held task moved in time"


@dataclass
class Interleaving:
    """One schedule.

    Attributes:
        seed: Draws the order, the faults and the choices of the actors.
        store: Home of the tasks.
        problems: What went wrong.
    """

    seed: int
    store: Audited
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.actors: list[greenlet] = []
        self.late: list[Callable[[], object]] = []
        # By task: the ends of which somebody was told, each as its result.
        self.told: dict[str, list[str]] = {}
        self.main = greenlet.getcurrent()

    def now(self) -> float:
        """Return the virtual time in seconds."""
        return self.store.now

    def queue(self) -> Queue:
        """Return a queue as another process has it."""
        store: Any = _Switching(self)
        rng = random.Random(self.seed)
        return Queue(store, clock=self.now, lease_seconds=LEASE_SECONDS, max_attempts=50, rng=rng)

    def add(self, actor: Actor) -> None:
        """Add an actor; it begins when it is first chosen."""
        self.actors.append(greenlet(partial(actor, self.queue())))

    def run(self) -> list[str]:
        """Run the actors to their ends, then bring in what is left; return what went wrong."""
        while self.actors:
            chance = self.rng.random()
            if chance < 0.04:
                self.store.now += self.rng.choice([1.0, LEASE_SECONDS + 1])
            elif chance < 0.08 and self.late:
                _ignoring_refusals(self.late.pop(self.rng.randrange(len(self.late))))
            actor = self.rng.choice(self.actors)
            if chance > 0.99:
                actor.throw(GreenletExit)
            else:
                actor.switch()
            self.actors = [each for each in self.actors if not each.dead]
        self._drain()
        return self.problems + self.store.problems

    def _drain(self) -> None:
        queue = Queue(self.store, clock=self.now, lease_seconds=LEASE_SECONDS, max_attempts=50)
        for _ in range(3):
            self.store.now += LEASE_SECONDS + 1
            queue.admin.recover()
        self.problems += [f"{task.task_id} is still held" for task in queue.list(status=TaskStatus.TAKEN)]
        for task_id, ends in self.told.items():
            if len(ends) > 1:
                self.problems.append(f"{task_id} ended {len(ends)} times")
            task = queue.get(task_id)
            if task is None or task.result not in ends:
                self.problems.append(f"{task_id} was confirmed as {ends[0]}, and is not")

    def call(self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Make a call of the store after others had a chance to run, with faults."""
        self.main.switch()
        made = partial(self._made, name, arguments, named)
        answer = made()
        if name in WRITES:
            if self.rng.random() < 0.1:
                self.late.append(made)
            if self.rng.random() < 0.05:
                raise Unreachable("the reply was lost")
        return answer

    def _made(self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        before = dict(self.store.tokens())
        answer = getattr(self.store, name)(*arguments, **named)
        if name == "replace" and arguments[1].lease_token not in (None, before.get(arguments[0].task_id)):
            self.problems.append(f"{arguments[0].task_id} was changed by another than its holder")
        return answer


class _Switching:
    """The store as one actor sees it."""

    def __init__(self, run: Interleaving) -> None:
        self._run = run

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._run.store, name)
        return partial(self._call, name) if callable(found) and name not in ("clock", "wakes") else found

    def _call(self, name: str, *arguments: Any, **named: Any) -> Any:
        return self._run.call(name, arguments, named)


def _ignoring_refusals(write: Callable[[], object]) -> None:
    try:
        write()
    except Exception as error:
        if type(error).__name__ != "Conflict":
            raise


def worker(run: Interleaving, rounds: int) -> Actor:
    """Return an actor that claims tasks, perhaps extends their leases, and settles them."""

    def work(queue: Queue) -> None:
        for _ in range(rounds):
            try:
                claims = queue.claim(run.rng.randint(1, 2))
                for claim in claims:
                    settle(run, queue, claim)
            except (Unreachable, RefusedError):
                continue

    return work


def settle(run: Interleaving, queue: Queue, claim: Claim) -> None:
    """Settle a claim in a way drawn from the seed, and note a success that was confirmed."""
    try:
        if run.rng.random() < 0.4:
            claim = queue.extend(claim)
        verb = run.rng.choice(["complete", "complete", "retry", "release"])
        if verb == "complete":
            mark = claim.token[-8:]
            queue.complete(claim, result=mark)
            run.told.setdefault(claim.task.task_id, []).append(mark)
        elif verb == "retry":
            queue.retry(claim, delay_seconds=0)
        else:
            queue.release(claim)
    except LeaseLost:
        return


def sweeper(rounds: int) -> Actor:
    """Return an actor that recovers what is due."""

    def sweep(queue: Queue) -> None:
        for _ in range(rounds):
            with suppress(Unreachable):
                queue.admin.recover()

    return sweep


def explore(make_store: Callable[[], Audited], seeds: range, tasks: int = 2) -> tuple[int, list[str]] | None:
    """Return the first seed that finds something wrong, with the problems; None if none does."""
    for seed in seeds:
        run = Interleaving(seed, make_store())
        Queue(run.store, clock=run.now).put_many(
            [{"payload": number, "task_id": f"task-{number}"} for number in range(tasks)]
        )
        for _ in range(3):
            run.add(worker(run, 4))
        run.add(sweeper(6))
        if problems := run.run():
            return seed, problems
    return None
