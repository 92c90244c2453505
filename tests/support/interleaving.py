"""Run processes of a queue so that one runs at a time, in an order drawn from a seed, under virtual time.

Each actor is a greenlet with its own queue. It hands over before each call of a store's primitive: a method
of the store in memory, a statement of SQLite, a request to the double of DynamoDB. What happened is a list
of steps, which can be replayed and minimized.
"""

from __future__ import annotations

import atexit
import os
import random
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, Self, TypeVar
from unittest import mock

import sqlalchemy as sa
from botocore.exceptions import ClientError, ReadTimeoutError
from greenlet import GreenletExit, getcurrent, greenlet

from freshq import Claim, GroupRules, LeaseLost, Queue, Settlement, TaskStatus
from freshq.errors import RefusedError, StoreError, Unreachable
from freshq.model.task import LIVE, TRANSITIONS, Task
from freshq.queue.core import core_of
from freshq.stores import wakes
from freshq.stores.base import Conflict
from freshq.stores.dynamodb.items import decode_if_task
from freshq.stores.dynamodb.schema import table_definition
from freshq.stores.dynamodb.store import DynamoDBStore
from freshq.stores.memory import MemoryStore
from freshq.stores.sql import SqlStore
from freshq.stores.sql.database import open_engine
from tests.support.dynamodb_double import DynamoDBDouble, Item, Tables, Writing

T = TypeVar("T")
START: Final = 1_700_000_000.0
LEASE_SECONDS: Final = 10.0
CALL_SECONDS: Final = 0.01
# DynamoDB rejects a request that was signed longer ago.
SIGNED_SECONDS: Final = 900.0
# A write takes effect within this time, or its sender lives until it has noticed (docs/guarantees.md).
LANDING_SECONDS: Final = 2.0
# How long SQLite waits for a lock, and how often it looks.
LOCK_SECONDS: Final = 30.0
LOCKED_SECONDS: Final = 0.25
_SQL_WRITES: Final = ("INSERT", "UPDATE", "DELETE", "WITH free")
MOST_STEPS: Final = 20_000
LEGAL: Final = {
    (source, target) for sources, targets in TRANSITIONS.values() for source in sources for target in targets
}
WORLD: Final = ""
# A waiter in the process of a put claims its task sooner.
LATE_SECONDS: Final = 1.0


@dataclass(frozen=True)
class Faults:
    """How often what goes wrong, as a part of the steps.

    Attributes:
        lost: A write lands, and its reply is lost.
        late: A write lands some time after its sender gave it up.
        twice: A write is sent twice by the SDK, and the first copy lands later.
        partial: A batch is carried out in part.
        lag: An index shows a write up to `lag_seconds` later.
        kill: A process dies.
        stall: A process stands still for longer than its lease.
        tick: Time passes.
        lag_seconds: The longest lag.
    """

    lost: float = 0.04
    late: float = 0.02
    twice: float = 0.03
    partial: float = 0.04
    lag: float = 0.1
    kill: float = 0.006
    stall: float = 0.006
    tick: float = 0.03
    lag_seconds: float = 3.0

    def drawn(self, rng: random.Random) -> tuple[str, float]:
        """Return a fault and its amount, mostly none."""
        left = rng.random()
        for name in ("lost", "late", "twice", "partial", "lag", "kill", "stall"):
            left -= getattr(self, name)
            if left < 0:
                return name, self._amount(name, rng)
        return "", 0.0

    def _amount(self, name: str, rng: random.Random) -> float:
        if name == "lag":
            return round(rng.uniform(0.1, self.lag_seconds), 2)
        return {"partial": float(rng.randint(1, 2)), "stall": rng.choice([1.1, 2.5]) * LEASE_SECONDS}.get(
            name, 0.0
        )


NO_FAULTS: Final = Faults(lost=0, late=0, twice=0, partial=0, lag=0, kill=0, stall=0, tick=0)
Actor = Callable[["Interleaving", Queue, random.Random], object]


class Step(NamedTuple):
    """What happened next: an actor ran up to its next call, or time passed, or a late write landed.

    Attributes:
        actor: Its name; empty for the world.
        fault: What went wrong with the call that it made first; of the world "tick" or "land".
        amount: Seconds, entries left over, or which write lands.
    """

    actor: str
    fault: str = ""
    amount: float = 0.0


@dataclass
class _Process:
    """An actor: when it may run on."""

    body: greenlet
    until: float = 0.0
    is_called: Callable[[], bool] = lambda: False
    stalled_until: float = 0.0
    paused_at: float = 0.0
    # Whether it once made a call for longer than writes take to land: it must live until it has noticed.
    was_slow: bool = False
    dying: bool = False

    def ready(self, now: float) -> bool:
        return now >= self.stalled_until and (now >= self.until or self.is_called())


def process_of(name: str) -> str:
    """Return the process of an actor."""
    return name.partition(".")[0]


class Interleaving:
    """One schedule.

    Attributes:
        now_seconds: The virtual time.
        problems: What went wrong.
        steps: What happened.
        told: By task, the results of which somebody was told that they were stored.
        denied: By task, the results of which somebody was told that they were not.
        handed: By task and token, the group of a claim that was handed out, and the end of its lease.
        claims: By token, the claims on which several threads of a process work.
        acting: The process whose write lands.
    """

    def __init__(
        self, scenario: Scenario, seed: int, steps: Sequence[Step] | None = None, without: Sequence[str] = ()
    ) -> None:
        self.scenario, self.seed = scenario, seed
        self.now_seconds = START
        self.problems: list[str] = []
        self.steps: list[Step] = []
        self.told: dict[str, list[str]] = {}
        self.denied: dict[str, list[str]] = {}
        self.handed: dict[tuple[str, str | None], tuple[str | None, float]] = {}
        self.claims: dict[str, Claim] = {}
        self.acting = WORLD
        self.main = getcurrent()
        self.actors: dict[str, _Process] = {}
        self._copies: list[tuple[float, str, Callable[[], object]]] = []
        self._queues: dict[str, Queue] = {}
        self._planned = None if steps is None else iter(steps)
        self._without = without
        self._rng = random.Random(seed)
        self._chance = random.Random(f"{seed}/chance")
        self._sticks = self._rng.choice([0.0, 0.5, 0.9])
        self._last = WORLD

    def now(self) -> float:
        """Return the virtual time in seconds."""
        return self.now_seconds

    def random_bytes(self, size: int) -> bytes:
        """Return what the operating system would give."""
        return self._chance.randbytes(size)

    def add(self, name: str, actor: Callable[[Interleaving, Queue, random.Random], object]) -> None:
        """Add an actor; it begins when it is first chosen.

        Args:
            name: Its process, and perhaps a dot and the name of a thread.
            actor: What it does.
        """
        if name in self._without:
            return
        process = process_of(name)
        if process not in self._queues:
            self._queues[process] = self.world.queue(process)
        queue = self._queues[process]

        def act(_step: Step) -> None:
            try:
                actor(self, queue, random.Random(f"{self.seed}/{name}"))
            except Exception as error:  # noqa: BLE001 - any is a finding
                self.problems.append(f"{name} raised {type(error).__name__}: {error}")

        self.actors[name] = _Process(greenlet(act))

    def run(self) -> list[str]:
        """Run the actors to their ends, then bring in what is left; return what went wrong."""
        with playing(self), self.scenario.world(self) as self.world:
            self.scenario.begin(self)
            while self.actors and len(self.steps) < MOST_STEPS:
                step = self._next()
                self.steps.append(step)
                self._take(step)
            if self.actors:
                self.problems.append(f"{', '.join(self.actors)} did not end")
            while self._copies:
                self._land(0)
            self._drain()
            self.world.audit()
        return self.problems

    def _next(self) -> Step:
        ready = [name for name, actor in self.actors.items() if actor.ready(self.now_seconds)]
        for step in self._planned or ():
            if step.actor in ready or step.fault in ("tick", "land"):
                return step
        if not ready:
            moments = [max(actor.until, actor.stalled_until) for actor in self.actors.values()]
            return Step(WORLD, "tick", max(min(moments) - self.now_seconds, CALL_SECONDS))
        if self._planned is not None:
            return Step(ready[0])
        rng, faults = self._rng, self.scenario.faults
        if rng.random() < faults.tick:
            return Step(WORLD, "tick", rng.choice([0.3, 1.0, 3.0, LEASE_SECONDS + 1]))
        if self._copies and rng.random() < 0.1:
            return Step(WORLD, "land", rng.randrange(len(self._copies)))
        name = self._last if self._last in ready and rng.random() < self._sticks else rng.choice(ready)
        return Step(name, *faults.drawn(rng))

    def _take(self, step: Step) -> None:
        if step.fault == "tick":
            self.now_seconds += step.amount
        elif step.fault == "land":
            if self._copies:
                self._land(int(step.amount) % len(self._copies))
        else:
            actor = self.actors[step.actor]
            self.now_seconds += CALL_SECONDS
            self.acting, self._last = process_of(step.actor), step.actor
            slow_seconds = self.now_seconds - max(actor.paused_at, actor.until)
            actor.was_slow |= actor.paused_at > 0 and slow_seconds > LANDING_SECONDS
            if step.fault == "stall":
                actor.stalled_until = self.now_seconds + step.amount
            elif step.fault == "kill" and not actor.was_slow:
                self._kill(process_of(step.actor))
            else:
                actor.body.switch(step)
            self.acting = WORLD
            self.actors = {name: each for name, each in self.actors.items() if not each.body.dead}

    def _kill(self, process: str) -> None:
        for name, actor in self.actors.items():
            if process_of(name) == process:
                self._last, actor.dying = name, True
                actor.body.throw(GreenletExit)
        self.world.killed(process)

    def pause(self, until: float = 0.0, is_called: Callable[[], bool] = lambda: False) -> Step:
        """Let others run; return the step with which this actor goes on.

        Args:
            until: Go on at this time, in seconds.
            is_called: Or as soon as this is true.
        """
        if getcurrent() is self.main:
            self.now_seconds = max(self.now_seconds + CALL_SECONDS, until)
            return Step(WORLD)
        actor = self.actors[self._last]
        if actor.dying:
            raise GreenletExit
        actor.until, actor.is_called, actor.paused_at = until, is_called, self.now_seconds
        step: Step = self.main.switch()
        return step

    def delivered(self, made: Callable[[Step], T], *, lost: Exception, copies: bool = True) -> T:
        """Make a writing call after others had a chance to run, with faults."""
        step = self.pause()
        if step.fault == "late" and copies:
            self._copies.append((self.now_seconds, self.acting, partial(made, Step(WORLD))))
            raise lost
        if step.fault == "twice" and copies:
            self._copies.append((self.now_seconds, self.acting, partial(made, Step(WORLD))))
        try:
            answer = made(step)
        except Exception as error:
            if step.fault == "lost":
                raise lost from error
            raise
        if step.fault == "lost":
            raise lost
        return answer

    def _land(self, index: int) -> None:
        sent, self.acting, write = self._copies.pop(index)
        if self.now_seconds < sent + SIGNED_SECONDS:
            with suppress(Conflict, ClientError):
                write()
        self.acting = WORLD

    def _drain(self) -> None:
        """Bring in everything as one process that is left alone; note what stays behind."""
        self.acting = "drain"
        queue = self.world.queue(self.acting)
        for seconds in (LEASE_SECONDS + 1, LEASE_SECONDS + 1, LEASE_SECONDS + 1, SIGNED_SECONDS, 100, 100):
            self.now_seconds += seconds
            queue.admin.recover()
            while claims := queue.claim(10):
                for claim in claims:
                    queue.complete(claim, result="drained")
        self._check_ends({task.task_id: task for task in core_of(queue).store.scan(queue.name)})

    def _check_ends(self, left: dict[str, Task]) -> None:
        for task in left.values():
            if task.status_at(self.now_seconds) in LIVE:
                self.problems.append(f"{task.task_id} is stranded as {task.status}")
        for task_id, ends in self.told.items():
            result = left[task_id].result if task_id in left else None
            if len(ends) > 1:
                self.problems.append(f"{task_id} ended {len(ends)} times")
            if result not in ends:
                self.problems.append(f"{task_id} was confirmed as {ends[0]}, and is {result}")
        for task_id, marks in self.denied.items():
            if left[task_id].result in marks:
                self.problems.append(f"{task_id} is {left[task_id].result}, which was denied")

    def hand_out(self, claim: Claim) -> None:
        """Note a claim that an actor got, and check it against the limit of its group."""
        group, now, key = claim.task.group, self.now_seconds, (claim.task.task_id, claim.token)
        if key not in self.handed:
            if claim.task.stale_at <= now:
                self.problems.append(f"{claim.task.task_id} was handed out stale")
            if claim.lease_until < now + LEASE_SECONDS / 2:
                self.problems.append(f"{claim.task.task_id} was handed out under a lease that is used up")
        until = max(self.handed.get(key, (None, 0.0))[1], claim.lease_until)
        self.handed[key] = (group, until)
        rules: GroupRules | None = self.scenario.options.get("groups")
        most = None if rules is None or group is None else rules.rule(group).max_running
        held = sum(of == group and until > now for of, until in self.handed.values())
        if most is not None and held > most:
            self.problems.append(f"{held} tasks of group {group} in work")

    def check(self, before: Any, after: Any) -> None:
        """Check a change of a task, and who made it; `before` may be None."""
        if before is not None:
            self.problems += self._wrong(before, after)

    def _wrong(self, before: Task, after: Task) -> Iterator[str]:
        task_id, by = before.task_id, self.acting
        if (before.status, after.status) not in LEGAL:
            yield f"{task_id}: {before.status} became {after.status}"
        # A late copy of a claim, and then of its release, may take more than one attempt back.
        if after.attempts > before.attempts + 1 or (after.attempts < before.attempts and by == WORLD):
            yield f"{task_id}: attempts {before.attempts} became {after.attempts}"
        if before.status is TaskStatus.TAKEN:
            holder = str(before.lease_token).partition(":")[0]
            if after.status is TaskStatus.TAKEN and before.created != after.created:
                yield f"{task_id} moved in time while it was held"
            if after.status is TaskStatus.TAKEN and after.lease_token != before.lease_token:
                yield f"{task_id} was taken by {by} from {holder}"
            _group, promised = self.handed.get((task_id, before.lease_token), (None, 0.0))
            until = max(before.lease_until or 0.0, promised)
            if until > self.now_seconds and by not in (holder, *self.scenario.forces):
                yield f"{task_id} became {after.status} by {by} while {holder} held it"


@dataclass(frozen=True)
class Scenario:
    """Who does what.

    Attributes:
        world: Makes a store for a schedule.
        begin: Puts tasks and adds actors.
        faults: How often what goes wrong.
        options: Of each queue.
        verbs: By which workers also settle.
        forces: The processes that may take a task from its holder.
    """

    world: Callable[[Interleaving], Any]
    begin: Callable[[Interleaving], None]
    faults: Faults = Faults()
    options: dict[str, Any] = field(default_factory=dict)
    verbs: Sequence[str] = ()
    forces: Sequence[str] = ()


class _World:
    """A store for one schedule."""

    def __init__(self, run: Interleaving) -> None:
        self._run = run

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Free what it has."""

    def killed(self, name: str) -> None:
        """Close what the operating system closes for a process that dies."""

    def audit(self) -> None:
        """Check the changes that were not checked at once."""

    def store(self, name: str) -> Any:
        """Return the store as a process opens it."""
        raise NotImplementedError

    def queue(self, name: str) -> Queue:
        """Return a queue as a process of this name has it."""
        options: dict[str, Any] = {"lease_seconds": LEASE_SECONDS, "max_attempts": 50, "max_age_seconds": 1e6}
        options |= {"clock": self._run.now, "rng": random.Random(name), "worker_name": name}
        return Queue(self.store(name), **options | self._run.scenario.options)


class InMemory(_World):
    """The store in memory, with a point before each of its methods."""

    writes: Final = frozenset({"replace", "settle_many", "replace_many", "put_new", "put_over", "claim"})

    def __init__(self, run: Interleaving, kind: type[MemoryStore] = MemoryStore) -> None:
        super().__init__(run)
        run_check = run.check

        class Audited(kind):  # type: ignore[valid-type,misc]
            def _store(self, task: Task) -> None:
                run_check(self._tasks.get(task.task_id), task)
                super()._store(task)

        self._store = Audited()

    def store(self, name: str) -> Any:  # noqa: ARG002 - the interface
        return _Switching(self._run, self._store)


class _Switching:
    """The store in memory as one actor sees it. It has no network: only the settlements lose replies."""

    def __init__(self, run: Interleaving, store: MemoryStore) -> None:
        self._run, self._store = run, store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return (
            partial(self._call, found, name) if callable(found) and name not in ("clock", "wakes") else found
        )

    def _call(self, method: Callable[..., Any], name: str, *arguments: Any, **named: Any) -> Any:
        if name in ("replace", "settle_many", "replace_many"):
            lost = Unreachable("the reply was lost")
            return self._run.delivered(lambda _step: method(*arguments, **named), lost=lost)
        self._run.pause()
        return method(*arguments, **named)


class InDynamoDB(_World):
    """The store on the double of DynamoDB, with a point before each request."""

    def __init__(self, run: Interleaving) -> None:
        super().__init__(run)
        self.tables = Tables(run.now)
        definition: Any = table_definition("tasks")
        DynamoDBDouble(self.tables).create_table(**definition)
        self.tables.seen = self._seen

    def _seen(self, _table: str, before: Item | None, after: Item | None) -> None:
        if before is not None and after is not None and "taskStatus" in before and "taskStatus" in after:
            self._run.check(decode_if_task(before), decode_if_task(after))

    def store(self, name: str) -> Any:  # noqa: ARG002 - the interface
        client: Any = DynamoDBDouble(self.tables, self._deliver)
        return DynamoDBStore("tasks", client)

    def _deliver(self, _name: str, writes: bool, made: Callable[[Writing], Any]) -> Any:
        def carried_out(step: Step) -> Any:
            lag_seconds = step.amount if step.fault == "lag" else 0.0
            left = int(step.amount) if step.fault == "partial" else 0
            retried = {"ResponseMetadata": {"RetryAttempts": int(step.fault == "twice")}}
            try:
                return made(Writing(lag_seconds, left)) | retried
            except ClientError as error:
                response: Any = error.response
                response |= retried
                raise

        if not writes:
            return carried_out(self._run.pause())
        lost = ReadTimeoutError(endpoint_url="the double")
        return self._run.delivered(carried_out, lost=lost)


class InSqlite(_World):
    """The store in a file of SQLite, with a point before each statement."""

    # Engines keep their compiled statements over all schedules.
    _engines: Final[dict[str, sa.Engine]] = {}
    _folder: Path | None = None
    _run_of_engines: Interleaving
    world: InSqlite

    def __init__(self, run: Interleaving) -> None:
        super().__init__(run)
        self._connections: list[tuple[str, sqlite3.Connection]] = []
        self.cursors: dict[str, set[sqlite3.Cursor]] = {}
        cls = type(self)
        cls._run_of_engines, cls.world = run, self
        if cls._folder is None:
            cls._folder = Path(tempfile.mkdtemp())
            atexit.register(shutil.rmtree, cls._folder, ignore_errors=True)
            self._make_template(cls._folder / "template.db")
        self._file = cls._folder / "tasks.db"
        shutil.copy(cls._folder / "template.db", self._file)

    @staticmethod
    def _make_template(path: Path) -> None:
        """Make a file with empty tables, and triggers that note each change of a task."""
        store = SqlStore(f"sqlite:///{path}")
        store.create_table()
        store.close()
        columns = ("status", "attempts", "lease_token", "created_us", "lease_until_us")
        connection = sqlite3.connect(path)
        both = [f"{when}_{column}" for when in ("old", "new") for column in columns]
        connection.execute(f"CREATE TABLE seen (acting, at, task_id, {', '.join(both)})")
        connection.create_function("acting", 0, str)
        connection.create_function("moment", 0, float)
        connection.execute(
            "CREATE TRIGGER see AFTER UPDATE ON tasks BEGIN INSERT INTO seen VALUES "
            f"(acting(), moment(), old.task_id, {', '.join(each.replace('_', '.', 1) for each in both)}); END"
        )
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()

    def store(self, name: str) -> Any:
        if (engine := self._engines.get(name)) is None:
            engine = self._engines[name] = open_engine(f"sqlite:///{self._file}")
            sa.event.listen(engine, "connect", lambda connection, _record: self.world.prepare(connection))
            dialect: Any = engine.dialect
            for method in ("do_execute", "do_executemany", "do_execute_no_params"):
                setattr(dialect, method, partial(self._executed, getattr(dialect, method)))
            dialect.do_commit = partial(self._committed, dialect.do_commit)
        pool: Any = engine.pool
        borrow = pool.borrow

        def lend() -> tuple[Any, Any]:
            entry, cursor = borrow()
            return entry, _Lent(cursor, self._executed)

        pool.borrow = lend
        store = SqlStore(engine)
        store.database._lock = None  # it only spares threads of one process a wait for the file's lock
        return store

    def prepare(self, connection: Any) -> None:
        """Let a new connection wait for no lock, and tell the triggers who writes."""
        run = self._run
        self._connections.append((run.acting, connection))
        connection.execute("PRAGMA busy_timeout=0")
        connection.execute("PRAGMA synchronous=OFF")
        connection.create_function("acting", 0, lambda: run.acting)
        connection.create_function("moment", 0, run.now)

    @classmethod
    def _executed(cls, execute: Callable[..., Any], cursor: Any, text: str, *rest: Any) -> None:
        """Run a statement after others had a chance to run; wait for locks, and perhaps lose the reply."""
        run = cls._run_of_engines
        cls.world.cursors.setdefault(run.acting, set()).add(getattr(cursor, "driver_cursor", cursor))
        alone = not cursor.connection.in_transaction
        try:
            step = run.pause()
        except GreenletExit:
            cursor.connection.rollback()
            raise
        waits_until = run.now_seconds + LOCK_SECONDS
        while True:
            try:
                execute(cursor, text, *rest)
                break
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or run.now_seconds > waits_until:
                    raise
            run.pause(run.now_seconds + LOCKED_SECONDS)
        if step.fault == "lost" and (text == "COMMIT" or (alone and text.startswith(_SQL_WRITES))):
            if cursor.description:
                cursor.fetchall()  # SQLite commits a statement when its last row is fetched
            raise sqlite3.OperationalError("database is locked")

    @classmethod
    def _committed(cls, commit: Callable[[Any], None], connection: Any) -> None:
        run = cls._run_of_engines
        if not connection.in_transaction:
            commit(connection)
            return
        step = run.pause()
        commit(connection)
        if step.fault == "lost":
            raise sqlite3.OperationalError("database is locked")

    def killed(self, name: str) -> None:
        for cursor in self.cursors.get(name, ()):  # or a statement that is not at its end keeps its lock
            with suppress(sqlite3.ProgrammingError):  # it is closed
                cursor.close()
        for owner, connection in self._connections:
            if owner == name:
                connection.close()

    def audit(self) -> None:
        run, now = self._run, self._run.now_seconds
        connection = sqlite3.connect(self._file)
        for acting, at, task_id, *values in connection.execute("SELECT * FROM seen ORDER BY rowid"):
            run.acting, run.now_seconds = acting, at
            run.check(_seen(task_id, values[:5]), _seen(task_id, values[5:]))
        connection.close()
        run.acting, run.now_seconds = WORLD, now

    def close(self) -> None:
        for engine in self._engines.values():
            engine.dispose()
        for _owner, connection in self._connections:
            connection.close()
        for file in self._file.parent.glob("tasks.db*"):
            file.unlink()


def _seen(task_id: str, values: Sequence[Any]) -> Any:
    status, attempts, token, created, until = values
    return SimpleNamespace(
        task_id=task_id,
        status=TaskStatus(status),
        attempts=attempts,
        lease_token=token,
        created=created,
        lease_until=until and until / 1e6,
    )


class _Lent:
    """A cursor that a pool lent, with a point before each statement."""

    def __init__(self, cursor: Any, execute: Callable[..., None]) -> None:
        self._cursor, self._execute = cursor, execute

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def execute(self, text: str, values: Any = ()) -> None:
        self._execute(lambda cursor, *given: cursor.execute(*given), self._cursor, text, values)

    def executemany(self, text: str, rows: Any) -> None:
        self._execute(lambda cursor, *given: cursor.executemany(*given), self._cursor, text, rows)


class _Inline:
    """A pool of threads that works at once, in order."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def map(self, work: Callable[..., Any], *given: Any) -> list[Any]:
        return [work(*each) for each in zip(*given, strict=False)]


_POOLS: Final = (
    "freshq.stores.dynamodb.batches.ThreadPoolExecutor",
    "freshq.stores.dynamodb.line_records.ThreadPoolExecutor",
)


@contextmanager
def playing(run: Interleaving) -> Iterator[None]:
    """Replace time, threads and chance for the block by those of a schedule."""

    def wait(signal: wakes.Signal, seen: int, seconds: float) -> None:
        until = run.now_seconds + seconds
        while signal.count == seen and run.now_seconds < until:  # and no thread watches for other processes
            run.pause(until, lambda: signal.count != seen)

    def sleep(seconds: float) -> None:
        run.pause(run.now_seconds + seconds)

    class Lock:
        """A lock for which a thread of the same process waits while others run."""

        held = False

        def __enter__(self) -> None:
            while self.held:
                run.pause(run.now_seconds + LOCKED_SECONDS, lambda: not self.held)
            self.held = True

        def __exit__(self, *_error: object) -> None:
            self.held = False

    state = random.getstate()
    random.seed(run.seed)
    patches: list[Any] = [
        *(mock.patch.object(time, name, run.now) for name in ("monotonic", "time")),
        mock.patch.object(time, "sleep", sleep),
        mock.patch("freshq.stores.clocks.steady_seconds", run.now),
        mock.patch("freshq.stores.dynamodb.queries.steady_seconds", run.now),
        mock.patch.object(os, "urandom", run.random_bytes),
        mock.patch.object(random, "_urandom", run.random_bytes),
        mock.patch.object(wakes.Signal, "wait", wait),
        mock.patch("freshq.stores.dynamodb.leases.threading", SimpleNamespace(Lock=Lock)),
        *(mock.patch(pool, _Inline) for pool in _POOLS),
    ]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in reversed(patches):
            patch.stop()
        random.setstate(state)


class Found(NamedTuple):
    """A schedule that breaks a rule."""

    seed: int
    problems: list[str]
    steps: list[Step]
    without: Sequence[str] = ()


def explore(scenario: Scenario, seeds: Sequence[int], faults: Faults | None = None) -> Found | None:
    """Return the first schedule of some seeds that breaks a rule; None if none does."""
    if faults is not None:
        scenario = replace(scenario, faults=faults)
    for seed in seeds:
        run = Interleaving(scenario, seed)
        if run.run():
            return Found(seed, run.problems, run.steps)
    return None


def replayed(scenario: Scenario, seed: int, steps: Sequence[Step], without: Sequence[str] = ()) -> list[str]:
    """Return what goes wrong in a recorded schedule, or in a part of one."""
    return Interleaving(scenario, seed, steps, without).run()


def minimized(scenario: Scenario, found: Found) -> Found:
    """Return a schedule with as few actors, faults and switches as a problem needs, by delta debugging."""
    names = {step.actor for step in found.steps} - {WORLD}
    without: list[str] = []
    steps = list(found.steps)
    for name in sorted(names):
        fewer = [step for step in steps if step.actor != name]
        if replayed(scenario, found.seed, fewer, [*without, name]):
            without, steps = [*without, name], fewer

    def fails(some: Sequence[Step]) -> bool:
        return bool(replayed(scenario, found.seed, some, without))

    if fails([]):
        return Found(found.seed, replayed(scenario, found.seed, [], without), [], without)
    faulty = [place for place, step in enumerate(steps) if step.fault]

    def with_faults(kept: Sequence[int]) -> list[Step]:
        chosen = set(kept)
        return [
            step if not step.fault or place in chosen else Step(step.actor)
            for place, step in enumerate(steps)
            if step.actor or place in chosen
        ]

    steps = with_faults(ddmin(faulty, lambda kept: fails(with_faults(kept))))
    steps = ddmin(steps, fails)
    return Found(found.seed, replayed(scenario, found.seed, steps, without), steps, without)


def ddmin(entries: Sequence[T], fails: Callable[[Sequence[T]], bool]) -> list[T]:
    """Return a part of some entries with which it still fails, and without any chunk of which it does not."""
    kept, parts = list(entries), 2
    while kept:
        size = max(1, -(-len(kept) // parts))
        for start in range(0, len(kept), size):
            fewer = kept[:start] + kept[start + size :]
            if fails(fewer):
                kept, parts = fewer, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(kept), 2 * parts)
    return kept


# Actors and scenarios.


def worker(rounds: int, *, together: bool = False, rest_seconds: float = 0.0) -> Actor:
    """Return an actor that claims tasks, perhaps extends their leases, and settles them."""

    def work(run: Interleaving, queue: Queue, rng: random.Random) -> None:
        for _ in range(rounds):
            with suppress(StoreError, RefusedError):
                claims = queue.claim(rng.randint(1, 3))
                for claim in claims:
                    run.hand_out(claim)
                if together:
                    settle_together(run, queue, claims, rng)
                else:
                    for claim in claims:
                        settle(run, queue, claim, rng)
            if rest_seconds:
                time.sleep(rng.choice([0.2, 1.0, 2.0]) * rest_seconds)

    return work


def extender(run: Interleaving, queue: Queue, rng: random.Random) -> None:
    """Extend the claims that another thread of the process works on, for less time than it does."""
    for _ in range(6):
        time.sleep(rng.choice([0.1, 0.5]))
        for claim in [*run.claims.values()]:
            with suppress(LeaseLost, StoreError):
                queue.extend(claim)


def long_runner(run: Interleaving, queue: Queue, rng: random.Random) -> None:
    """Claim tasks, and run each for longer than a lease."""
    for _ in range(3):
        with suppress(LeaseLost, StoreError):
            for claim in queue.claim():
                run.claims[claim.token] = claim
                time.sleep(rng.choice([0.1, 0.5]))
                run.hand_out(queue.extend(claim, lease_seconds=3 * LEASE_SECONDS))
                time.sleep(2 * LEASE_SECONDS)
                del run.claims[claim.token]
                run.handed.pop((claim.task.task_id, claim.token))
                queue.complete(claim)


def settle(run: Interleaving, queue: Queue, claim: Claim, rng: random.Random) -> None:
    """Settle a claim in a way drawn from the seed, and note what was confirmed or denied."""
    mark = claim.token[-8:]
    verb = rng.choice(["complete", "complete", "retry", "release", *run.scenario.verbs])
    try:
        if rng.random() < 0.4:
            claim = queue.extend(claim)
            run.hand_out(claim)
        run.handed.pop((claim.task.task_id, claim.token), None)
        if verb == "complete":
            queue.complete(claim, result=mark)
            run.told.setdefault(claim.task.task_id, []).append(mark)
        elif verb == "retry":
            queue.retry(claim, delay_seconds=rng.choice([0, 2]))
        elif verb == "fail":
            queue.fail(claim)
        else:
            queue.release(claim)
    except LeaseLost:
        run.denied.setdefault(claim.task.task_id, []).append(mark)


def settle_together(run: Interleaving, queue: Queue, claims: Sequence[Claim], rng: random.Random) -> None:
    """Settle claims in one call."""
    ends = [
        Settlement.complete(claim, result=claim.token[-8:])
        if rng.random() < 0.7
        else Settlement.release(claim)
        for claim in claims
    ]
    for claim in claims:
        run.handed.pop((claim.task.task_id, claim.token), None)
    for claim, end, answer in zip(claims, ends, queue.settle_many(ends), strict=True):
        noted = run.denied if isinstance(answer, LeaseLost) else run.told
        if isinstance(answer, Task | LeaseLost) and end.result is not None:
            noted.setdefault(claim.task.task_id, []).append(claim.token[-8:])


def operator(tasks: int, *, force: bool) -> Actor:
    """Return an actor that cancels tasks, brings back dead ones and moves others."""

    def operate(_run: Interleaving, queue: Queue, rng: random.Random) -> None:
        for _ in range(8):
            task_id = f"task-{rng.randrange(tasks)}"
            with suppress(StoreError, RefusedError):
                verb = rng.choice(["cancel", "die", "redrive", "redrive", "reprioritize"])
                if verb == "redrive":
                    queue.redrive([task_id], as_new=True, force=force)
                elif verb == "reprioritize":
                    queue.reprioritize(task_id, priority=rng.randrange(3))
                elif rng.random() < 0.5:
                    queue.cancel(task_id, dead=verb == "die", force=force)

    return operate


def sweeper(rounds: int, rest_seconds: float = 0.0) -> Actor:
    """Return an actor that recovers what is due."""

    def sweep(_run: Interleaving, queue: Queue, _rng: random.Random) -> None:
        for _ in range(rounds):
            with suppress(StoreError):
                queue.admin.recover()
            if rest_seconds:
                time.sleep(rest_seconds)

    return sweep


def producer(tasks: int, *, groups: Sequence[str | None] = (None,), rest_seconds: float = 0.0) -> Actor:
    """Return an actor that puts tasks, one or two at a time."""

    def put(_run: Interleaving, queue: Queue, rng: random.Random) -> None:
        for number in range(tasks):
            given = {"payload": number, "group": rng.choice(groups)}
            names = [f"put-{number}", *([f"put-{number}-too"] if rng.random() < 0.3 else [])]
            with suppress(StoreError, RefusedError):
                queue.put_many([given | {"task_id": name} for name in names])
            if rest_seconds:
                time.sleep(rng.choice([0.2, 1.0, 2.0]) * rest_seconds)

    return put


def waiter(rounds: int) -> Actor:
    """Return an actor that waits for tasks, and must be woken by a put of its process."""

    def wait(run: Interleaving, queue: Queue, _rng: random.Random) -> None:
        for _ in range(rounds):
            with suppress(StoreError):
                for claim in queue.claim(wait_seconds=8):
                    late_seconds = run.now() - claim.task.created
                    if late_seconds > LATE_SECONDS:
                        run.problems.append(f"{claim.task.task_id} woke nobody for {late_seconds:.1f} s")
                    queue.complete(claim)

    return wait
