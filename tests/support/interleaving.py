"""Run processes of a queue so that one runs at a time, in an order drawn from a seed, under virtual time.

Each actor is a greenlet with its own queue. It hands over before each call of a store's primitive: a method
of the store in memory, a statement of SQLite, a request to the double of DynamoDB. A schedule is a list of
steps, which can be replayed and minimized.
"""

from __future__ import annotations

import atexit
import json
import random
import re
import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import partial
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, TypeVar, cast

import sqlalchemy as sa
from botocore.exceptions import ClientError, ReadTimeoutError
from greenlet import GreenletExit, getcurrent, greenlet

from freshq import Claim, MatchQueue, Queue, TaskStatus
from freshq.errors import Unreachable
from freshq.matching.resource import Resource, ResourceStatus
from freshq.matching.stores.base import Change, Changed
from freshq.matching.stores.dynamodb import DynamoDBMatchStore, decode_resource, match_table_definition
from freshq.matching.stores.memory import MemoryMatchStore
from freshq.matching.stores.sql import SqlMatchStore
from freshq.model.task import Task
from freshq.stores.base import Conflict
from freshq.stores.dynamodb.items import decode_if_task
from freshq.stores.dynamodb.schema import table_definition
from freshq.stores.dynamodb.store import DynamoDBStore
from freshq.stores.memory import MemoryStore
from freshq.stores.sql import SqlStore
from freshq.stores.sql.database import open_engine
from tests.support.audits import LEASE_SECONDS, MAX_ATTEMPTS, SIGNED_SECONDS, Audit, process_of
from tests.support.cooperative import playing
from tests.support.dynamodb_double import DynamoDBDouble, Item, Tables, Writing

T = TypeVar("T")
START: Final = 1_700_000_000.0
# The queue of the scenarios, the one to which relays move its tasks, and the table of resources.
SOURCE: Final = "tasks"
DESTINATION: Final = "destination"
RESOURCES: Final = "resources"
CALL_SECONDS: Final = 0.01
# A write takes effect within this time, or its sender lives until it has noticed (docs/guarantees.md).
LANDING_SECONDS: Final = 2.0
# How long SQLite waits for a lock, and how often it tries.
LOCK_SECONDS: Final = 30.0
LOCKED_SECONDS: Final = 0.25
_SQL_WRITES: Final = ("INSERT", "UPDATE", "DELETE", "WITH free")
# Columns that the triggers record of each change.
TASK_COLUMNS: Final = (
    "status",
    "attempts",
    "lease_token",
    "created_us",
    "lease_until_us",
    "priority",
    "payload",
    "successor_record",
)
RESOURCE_COLUMNS: Final = ("status", "token", "lease_until_us", "caller_id")
MOST_STEPS: Final = 20_000
MOST_STILLS: Final = 2
WORLD: Final = ""


@dataclass(frozen=True)
class Faults:
    """Probabilities of faults per step.

    Attributes:
        lost: A write lands, and its reply is lost.
        late: A write lands some time after its sender gave it up.
        twice: A write is sent twice by the SDK, and the first copy lands later.
        partial: A batch is carried out in part.
        lag: An index shows a write up to `lag_seconds` later.
        kill: A process dies.
        stall: A call is slow.
        still: A process stands still between two calls, right after the answer to the first; it does
            so up to `MOST_STILLS` times, because a producer looks at its line only so often before a put.
        tick: Time passes.
        landing: A write that is under way lands.
        lag_seconds: The shortest lag and the longest.
        stall_seconds: Durations of slow calls; by default, longer than a lease.
        still_seconds: Durations for which processes stand still.
    """

    lost: float = 0.04
    late: float = 0.02
    twice: float = 0.03
    partial: float = 0.04
    lag: float = 0.1
    kill: float = 0.006
    stall: float = 0.006
    still: float = 0.0
    tick: float = 0.03
    landing: float = 0.1
    lag_seconds: tuple[float, float] = (0.1, 3.0)
    stall_seconds: Sequence[float] = (1.1 * LEASE_SECONDS, 2.5 * LEASE_SECONDS)
    still_seconds: Sequence[float] = (1.1 * LEASE_SECONDS, 2.5 * LEASE_SECONDS)

    def drawn(self, rng: random.Random) -> tuple[str, float]:
        """Return a fault and its amount, mostly none."""
        left = rng.random()
        for name in ("lost", "late", "twice", "partial", "lag", "kill", "stall", "still"):
            left -= getattr(self, name)
            if left < 0:
                return name, self._amount(name, rng)
        return "", 0.0

    def _amount(self, name: str, rng: random.Random) -> float:
        if name == "lag":
            return round(rng.uniform(*self.lag_seconds), 2)
        if name == "still":
            return rng.choice(self.still_seconds)
        return {"partial": float(rng.randint(1, 2)), "stall": rng.choice(self.stall_seconds)}.get(name, 0.0)


NO_FAULTS: Final = Faults(lost=0, late=0, twice=0, partial=0, lag=0, kill=0, stall=0, tick=0)
Actor = Callable[["Interleaving", Queue, random.Random], object]


class Step(NamedTuple):
    """One step: an actor ran up to its next call, or time passed, or a late write landed.

    Attributes:
        actor: Its name; empty for the world.
        fault: The fault of the first call of the step; for the world "tick" or "land".
        amount: Seconds, entries left over, or the number of the landing write.
    """

    actor: str
    fault: str = ""
    amount: float = 0.0


@dataclass
class _Process:
    """An actor: when it may run on, and the call that it makes then."""

    body: greenlet
    call: str = ""
    until: float = 0.0
    is_called: Callable[[], bool] = lambda: False
    stalled_until: float = 0.0
    paused_at: float = 0.0
    # Whether it once made a call for longer than writes take to land: it must live until it has noticed.
    was_slow: bool = False
    dying: bool = False
    is_thread: bool = False

    @property
    def is_stalled(self) -> bool:
        """Return whether the call that it makes has taken long."""
        return self.stalled_until > self.paused_at

    def ready(self, now: float) -> bool:
        return now >= self.stalled_until and (now >= self.until or self.is_called())

    @property
    def ready_at(self) -> float:
        return self.stalled_until if self.is_called() else max(self.until, self.stalled_until)


class Interleaving(Audit):
    """One schedule.

    Attributes:
        steps: What happened.
        claims: By token, the claims on which several threads of a process work.
    """

    def __init__(
        self, scenario: Scenario, seed: int, steps: Sequence[Step] | None = None, without: Sequence[str] = ()
    ) -> None:
        super().__init__(scenario)
        self.seed = seed
        self.now_seconds = START
        self.steps: list[Step] = []
        self.claims: dict[str, Claim] = {}
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
        self._threads = 0
        self._stills = Counter[str]()

    def now(self) -> float:
        """Return the virtual time in seconds."""
        return self.now_seconds

    def random_bytes(self, size: int) -> bytes:
        """Return the value that the operating system would give."""
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

    def start(self, target: Callable[[], object]) -> None:
        """Start a thread of the process that acts; it ends with the first actor of its process."""
        if self.actors[self._last].dying:
            raise GreenletExit
        self._threads += 1

        def act(_step: Step) -> None:
            try:
                target()
            except Exception as error:  # noqa: BLE001 - any is a finding
                self.problems.append(f"a thread raised {type(error).__name__}: {error}")

        name = f"{process_of(self._last)}.thread-{self._threads}"
        self.actors[name] = _Process(greenlet(act, self.main), is_thread=True)

    def run(self) -> list[str]:
        """Run the actors to their ends, then finish the remaining tasks; return the violations."""
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
            self.world.audit()
            self._drain()
            self.world.audit()
            self.check_last_puts()
        return self.problems

    def _next(self) -> Step:
        ready = [name for name, actor in self.actors.items() if actor.ready(self.now_seconds)]
        for step in self._planned or ():
            if step.actor in ready or step.fault in ("tick", "land"):
                return step
        if not ready:
            seconds = min(actor.ready_at for actor in self.actors.values()) - self.now_seconds
            return Step(WORLD, "tick", max(seconds, CALL_SECONDS) if seconds < inf else -inf)
        if self._planned is not None:
            return Step(ready[0])
        rng, faults = self._rng, self.scenario.faults
        if rng.random() < faults.tick:
            return Step(WORLD, "tick", rng.choice([0.3, 1.0, 3.0, LEASE_SECONDS + 1]))
        if self._copies and rng.random() < faults.landing:
            return Step(WORLD, "land", rng.randrange(len(self._copies)))
        name = self._last if self._last in ready and rng.random() < self._sticks else rng.choice(ready)
        fault, amount = self._faults(name).drawn(rng)
        return Step(name) if fault == "stall" and self.actors[name].is_stalled else Step(name, fault, amount)

    def _faults(self, name: str) -> Faults:
        """Return the faults of the call that an actor is about to make."""
        called = f"{name} {self.actors[name].call}"
        some = (faults for pattern, faults in self.scenario.faults_of.items() if fnmatch(called, pattern))
        return next(some, self.scenario.faults)

    def _take(self, step: Step) -> None:
        if step.amount == -inf:
            self.problems.append(f"{', '.join(self.actors)} wait for each other")
            self.actors.clear()
            return
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
                if actor.body.dead and not actor.is_thread:
                    self._end_threads(process_of(step.actor))
            self.acting = WORLD
            self.actors = {name: each for name, each in self.actors.items() if not each.body.dead}

    def _kill(self, process: str) -> None:
        for name, actor in list(self.actors.items()):
            if process_of(name) == process:
                self._throw(name, actor)
        self.world.killed(process)

    def _end_threads(self, process: str) -> None:
        for name, actor in list(self.actors.items()):
            if process_of(name) == process and actor.is_thread:
                self._throw(name, actor)

    def _throw(self, name: str, actor: _Process) -> None:
        self._last, actor.dying = name, True
        actor.body.throw(GreenletExit)

    def pause(
        self, until: float = 0.0, is_called: Callable[[], bool] = lambda: False, call: str = ""
    ) -> Step:
        """Let others run; return the step with which this actor goes on.

        Args:
            until: Go on at this time, in seconds.
            is_called: Return as soon as this is true.
            call: The call that this actor makes next; empty for none.
        """
        if getcurrent() is self.main:
            self.now_seconds = max(self.now_seconds + CALL_SECONDS, until)
            return Step(WORLD)
        actor = self.actors[self._last]
        if actor.dying:
            raise GreenletExit
        actor.until, actor.is_called, actor.call = until, is_called, call
        actor.paused_at = self.now_seconds
        step: Step = self.main.switch()
        return step

    def answered(self, call: str, made: Callable[[Step], T]) -> T:
        """Make a read after others had a chance to run; perhaps stand still after it."""
        step = self.pause(call=call)
        answer = made(step)
        self._stand_still(step)
        return answer

    def _stand_still(self, step: Step) -> None:
        if step.fault == "still" and self._stills[self.acting] < MOST_STILLS:
            self._stills[self.acting] += 1
            self.pause(self.now_seconds + step.amount)

    def delivered(self, call: str, made: Callable[[Step], T], *, lost: Exception) -> T:
        """Make a write after others had a chance to run, with faults."""
        step = self.pause(call=call)
        if step.fault == "late":
            self._copies.append((self.now_seconds, self.acting, partial(made, Step(WORLD))))
            raise lost
        if step.fault == "twice":
            self._copies.append((self.now_seconds, self.acting, partial(made, Step(WORLD))))
        try:
            answer = made(step)
        except Exception as error:
            if step.fault == "lost":
                raise lost from error
            raise
        if step.fault == "lost":
            raise lost
        self._stand_still(step)
        return answer

    def _land(self, index: int) -> None:
        sent, self.acting, write = self._copies.pop(index)
        self.is_late = True
        if self.now_seconds < sent + SIGNED_SECONDS:
            try:
                write()
            except (Conflict, Changed, ClientError):
                pass
            except Exception as error:  # noqa: BLE001 - any is a finding
                self.problems.append(f"a late write raised {type(error).__name__}: {error}")
        self.acting, self.is_late = WORLD, False

    def _drain(self) -> None:
        """Let a single process finish all tasks; note tasks that stay behind."""
        self.acting = "drain"
        try:
            self.scenario.drain(self)
        except Exception as error:  # noqa: BLE001 - any is a finding
            self.problems.append(f"the drain raised {type(error).__name__}: {error}")


def drained(run: Interleaving) -> None:
    """Finish the remaining tasks."""
    run.drain(run.world.queue(run.acting))


@dataclass(frozen=True)
class Scenario:
    """The actors of a schedule and their faults.

    Attributes:
        world: Makes a store for a schedule.
        begin: Puts tasks and adds actors.
        faults: Probabilities of faults.
        faults_of: Other probabilities, by a pattern "ACTOR CALL"; the first match counts.
        options: Options of each queue.
        verbs: Further verbs by which workers settle.
        forces: The processes that may take a task from its holder.
        drain: Finishes and checks the remaining tasks.
    """

    world: Callable[[Interleaving], Any]
    begin: Callable[[Interleaving], None]
    faults: Faults = Faults()
    faults_of: Mapping[str, Faults] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    verbs: Sequence[str] = ()
    forces: Sequence[str] = ()
    drain: Callable[[Interleaving], None] = drained


class _World:
    """A store for one schedule."""

    def __init__(self, run: Interleaving) -> None:
        self._run = run

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Free its locks and threads."""

    def killed(self, name: str) -> None:
        """Close what the operating system would close for a dead process."""

    def audit(self) -> None:
        """Check the changes that were not checked immediately."""

    def store(self, name: str, of: str) -> Any:
        """Return the store of a queue as a process opens it."""
        raise NotImplementedError

    def match_store(self, name: str) -> Any:
        """Return the store of resources as a process opens it."""
        raise NotImplementedError

    def queue(self, name: str, of: str = SOURCE, **named: Any) -> Queue:
        """Return a queue as a process of this name has it.

        Args:
            name: The process.
            of: The name of the queue.
            **named: Options in which it differs from the scenario's.
        """
        options: dict[str, Any] = {"lease_seconds": LEASE_SECONDS, "max_age_seconds": 1e6}
        options |= {"max_attempts": MAX_ATTEMPTS, "name": of}
        options |= {"clock": self._run.now, "rng": random.Random(name), "worker_name": name}
        return Queue(self.store(name, of), **options | self._run.scenario.options | named)

    def desk(self, name: str) -> MatchQueue:
        """Return the queue of resources of the process with this name."""
        return MatchQueue(self.match_store(name), lease_seconds=LEASE_SECONDS, clock=self._run.now)


class InMemory(_World):
    """The store in memory, with a point before each of its methods."""

    def __init__(self, run: Interleaving) -> None:
        super().__init__(run)
        check, check_resource = run.check, run.check_resource
        run.keeps_ended = False  # a claim slower than its lease may take its task again

        class Audited(MemoryStore):
            def _store(self, task: Task) -> None:
                check(self._tasks.get(task.task_id), task)
                super()._store(task)

        class AuditedMatches(MemoryMatchStore):
            def _replace(self, resource_id: str, change: Change) -> None:
                check_resource(self._resources.get(resource_id), change.after)
                super()._replace(resource_id, change)

        self._stores = {of: Audited() for of in (SOURCE, DESTINATION)}
        self._matches = AuditedMatches()

    def store(self, name: str, of: str) -> Any:
        # As in DynamoDB, ids are unique among the queues of a store.
        return _Switching(self._run, self._stores[SOURCE if of == SOURCE else DESTINATION])

    def match_store(self, name: str) -> Any:
        return _Switching(self._run, self._matches)


class _Switching:
    """A view of a store in memory for one actor. It has no network: only what is named loses replies."""

    def __init__(self, run: Interleaving, store: Any) -> None:
        self._run, self._store = run, store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        return (
            partial(self._call, found, name)
            if callable(found) and name not in ("clock", "notifier")
            else found
        )

    def _call(self, method: Callable[..., Any], name: str, *arguments: Any, **named: Any) -> Any:
        if name in ("replace", "settle_many", "replace_many", "commit"):
            lost = Unreachable("the reply was lost")
            return self._run.delivered(name, lambda _step: method(*arguments, **named), lost=lost)
        return self._run.answered(name, lambda _step: method(*arguments, **named))


class InDynamoDB(_World):
    """The store on the double of DynamoDB, with a point before each request."""

    def __init__(self, run: Interleaving) -> None:
        super().__init__(run)
        self.tables = Tables(run.now)
        for definition in (*map(table_definition, (SOURCE, DESTINATION)), match_table_definition(RESOURCES)):
            DynamoDBDouble(self.tables).create_table(**cast("Any", definition))
        self.tables.seen = self._seen

    def close(self) -> None:
        # The service times that freshq shares by client live as long as a queue, which lives as long as they.
        vars(self.tables).clear()
        vars(self).clear()

    def _seen(self, table: str, before: Item | None, after: Item | None) -> None:
        if table == RESOURCES:
            self._run.check_resource(_resource_in(before), _resource_in(after))
        elif before is not None and after is not None and "taskStatus" in before and "taskStatus" in after:
            self._run.check(decode_if_task(before), decode_if_task(after))

    def store(self, name: str, of: str) -> Any:
        client: Any = DynamoDBDouble(self.tables, self._deliver)
        return DynamoDBStore(SOURCE if of == SOURCE else DESTINATION, client)

    def match_store(self, name: str) -> Any:
        client: Any = DynamoDBDouble(self.tables, self._deliver)
        return DynamoDBMatchStore(RESOURCES, client)

    def _deliver(self, name: str, writes: bool, made: Callable[[Writing], Any]) -> Any:
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
            return self._run.answered(name, carried_out)
        lost = ReadTimeoutError(endpoint_url="the double")
        return self._run.delivered(name, carried_out, lost=lost)


def _resource_in(item: Item | None) -> Resource | None:
    return None if item is None or "resourceStatus" not in item else decode_resource(item)


class InSqlite(_World):
    """The store in a file of SQLite, with a point before each statement."""

    # Engines keep their compiled statements over all schedules.
    _engines: Final[dict[str, sa.Engine]] = {}
    _folder: Path | None = None
    _run_of_engines: Interleaving
    world: InSqlite

    def __init__(self, run: Interleaving) -> None:
        super().__init__(run)
        # A claim that is repeated after a lost reply may take its task from a sweep's hands.
        run.keeps_ended = False
        self._connections: list[tuple[str, sqlite3.Connection]] = []
        self.cursors: dict[str, set[sqlite3.Cursor]] = {}
        self._opened: dict[str, sa.Engine] = {}
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
        """Make a file with empty tables, and triggers that note each change of a task or a resource."""
        for store in (SqlStore(f"sqlite:///{path}"), SqlMatchStore(f"sqlite:///{path}", RESOURCES)):
            store.create_table()
            store.close()
        connection = sqlite3.connect(path)
        for table, key, columns in (
            ("tasks", "task_id", TASK_COLUMNS),
            (RESOURCES, "resource_id", RESOURCE_COLUMNS),
        ):
            both = [f"{when}_{column}" for when in ("old", "new") for column in columns]
            values = ", ".join(each.replace("_", ".", 1) for each in both)
            connection.execute(
                f"CREATE TABLE seen_{table} (acting, doing, at, before, after, {', '.join(both)})"
            )
            for event in ("UPDATE", "INSERT", "DELETE"):
                ids = [f"{when}.{key}" for when in ("old", "new")]
                given = values
                if event != "UPDATE":
                    missing = "old" if event == "INSERT" else "new"
                    ids = ["NULL" if each.startswith(missing) else each for each in ids]
                    given = re.sub(rf"\b{missing}\.\w+", "NULL", values)
                when = ""
                if event == "UPDATE" and table == "tasks":
                    # A write that is repeated after a lost reply gives the same version, and changes nothing.
                    compared = [f"old.{each} IS NOT new.{each}" for each in ("request_token", *columns)]
                    when = f"WHEN {' OR '.join(compared)}"
                connection.execute(
                    f"CREATE TRIGGER see_{event}_{table} AFTER {event} ON {table} {when} BEGIN INSERT INTO "
                    f"seen_{table} VALUES (acting(), doing(), moment(), {', '.join(ids)}, {given}); END"
                )
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()

    def _engine(self, name: str) -> sa.Engine:
        """Return the engine of a process, with a point before each statement."""
        if (opened := self._opened.get(name)) is not None:
            return opened
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
        self._opened[name] = engine
        return engine

    def store(self, name: str, of: str) -> Any:
        store = SqlStore(self._engine(name), queue=of)
        store.database._lock = None  # it only spares threads of one process a wait for the file's lock
        return store

    def match_store(self, name: str) -> Any:
        store = SqlMatchStore(self._engine(name), RESOURCES)
        store._database._lock = None
        return store

    def prepare(self, connection: Any) -> None:
        """Let a new connection wait for no lock, and tell the triggers who writes."""
        run = self._run
        self._connections.append((run.acting, connection))
        connection.execute("PRAGMA busy_timeout=0")
        connection.execute("PRAGMA synchronous=OFF")
        connection.create_function("acting", 0, lambda: run.acting)
        connection.create_function("doing", 0, lambda: run.doing.get(run.acting, ""))
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
        for cursor in self.cursors.pop(name, ()):  # or a statement that is not at its end keeps its lock
            with suppress(sqlite3.ProgrammingError):  # it is closed
                cursor.close()
        for owner, connection in self._connections:
            if owner == name:
                connection.close()

    def audit(self) -> None:
        run, now, by = self._run, self._run.now_seconds, self._run.acting
        doing = dict(run.doing)
        connection = sqlite3.connect(self._file)
        for table, made, check in (
            ("tasks", _task, run.check),
            (RESOURCES, _resource, run.check_resource),
        ):
            rows = connection.execute(f"SELECT * FROM seen_{table} ORDER BY rowid").fetchall()
            for acting, verb, at, before, after, *values in rows:
                run.acting, run.now_seconds, run.doing[acting] = acting, at, verb
                half = len(values) // 2
                check(made(before, values[:half]), made(after, values[half:]))
            connection.execute(f"DELETE FROM seen_{table}")
        connection.commit()
        connection.close()
        run.acting, run.now_seconds, run.doing = by, now, doing

    def close(self) -> None:
        for name in list(self.cursors):
            self.killed(name)
        for engine in self._engines.values():
            engine.dispose()
        for _owner, connection in self._connections:
            connection.close()
        for file in self._file.parent.glob("tasks.db*"):
            file.unlink()


def _task(task_id: str | None, values: Sequence[Any]) -> Any:
    if task_id is None:
        return None
    status, attempts, token, created, until, priority, payload, successor_record = values
    return SimpleNamespace(
        task_id=task_id,
        status=TaskStatus(status),
        attempts=attempts,
        lease_token=token,
        created=created,
        lease_until=until and until / 1e6,
        priority=priority,
        payload=json.loads(payload),
        successor_record=successor_record,
    )


def _resource(resource_id: str | None, values: Sequence[Any]) -> Any:
    if resource_id is None:
        return None
    status, token, until, caller_id = values
    return SimpleNamespace(
        resource_id=resource_id,
        status=ResourceStatus(status),
        token=token,
        lease_until=until and until / 1e6,
        caller_id=caller_id,
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
    """Return a minimal part of some entries that still fails: it passes without any of its chunks."""
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
