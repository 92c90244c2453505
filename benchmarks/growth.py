"""Growth of a claim's cost with the queue on each store: calls, units, rows and time.

Each situation has its own queue for each size. The sizes take turns, and a ratio of time is the median
of the ratios to the smallest size in the same turn.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import psycopg
import sqlalchemy as sa
from local.servers import DynamoDBLocal, Postgres, create_without_stream, load
from rich.console import Console
from typing_extensions import override

from benchmarks import figures
from benchmarks.capacity import metered
from benchmarks.figures import in_turns, numbers, rotated
from benchmarks.library_pages import GROWTH_STORES
from benchmarks.sql import in_threads
from benchmarks.worker import conninfo
from freshq import Order, Queue, TaskStatus
from freshq.model.new_task import NewTask
from freshq.queue.core import core_of
from freshq.stores.sql import SqlStore
from freshq.stores.sql.horizon import OLD_TRANSACTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from types_boto3_dynamodb import DynamoDBClient

    from freshq.model.task import Task

DRAINED_TASKS: Final = 400
CLAIMER_COUNTS: Final = (1, 2, 4, 8)
DRAIN_ROUNDS: Final = 5
# If shorter, tasks would expire while the queue is filled and drained.
MAX_AGE_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class TimedClaim:
    """A claimed task and the time of its claim.

    Attributes:
        rank: Position of the task in the queue's order; 0 is the best.
        began: When the claim was sent, in seconds of the monotonic clock.
        ended: When it was answered.
    """

    rank: int
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Departures:
    """The departures of claims from the order.

    Attributes:
        claimers: Number of concurrent claimers.
        share: Share of the claims that skipped a better task.
        mean_places: Mean number of better tasks skipped by a claim that skipped any.
        most_places: Largest number of better tasks that a claim skipped.
    """

    claimers: int
    share: float
    mean_places: float
    most_places: int


def departures(claims: Sequence[TimedClaim], claimers: int) -> Departures:
    """Return how far claims of single tasks departed from the order.

    Args:
        claims: All claims of a run, whose tasks were put beforehand.
        claimers: Number of concurrent claimers.
    """
    places = [
        sum(other.rank < claim.rank and other.began > claim.ended for other in claims) for claim in claims
    ]
    passed = [count for count in places if count]
    return Departures(
        claimers,
        share=len(passed) / max(1, len(places)),
        mean_places=sum(passed) / max(1, len(passed)),
        most_places=max(places, default=0),
    )


def drain(client: DynamoDBClient, claimers: int, tasks: int = DRAINED_TASKS, shards: int = 1) -> Departures:
    """Fill a new queue and drain it newest first, with claims of one task."""
    table = f"bench-{uuid.uuid4().hex}"
    queues = [
        Queue.dynamodb(table, client, shards=shards, order=Order.LIFO, max_age_seconds=MAX_AGE_SECONDS)
        for _ in range(claimers)
    ]
    create_without_stream(client, table)
    for rank in reversed(range(tasks)):
        queues[0].put(rank)
    claims: list[TimedClaim] = []
    start = threading.Barrier(claimers)

    def claim_all(queue: Queue) -> None:
        start.wait()
        while len(claims) < tasks:
            began = time.monotonic()
            found = queue.claim()
            ended = time.monotonic()
            claims.extend(TimedClaim(claim.task.payload, began, ended) for claim in found)

    in_threads(claimers, lambda: claim_all(queues.pop()))
    return departures(claims, claimers)


def passed_over(tasks: int = DRAINED_TASKS, rounds: int = DRAIN_ROUNDS) -> None:
    """Measure the departures from the order with 1, 2, 4 and 8 claimers, in turns."""
    with DynamoDBLocal() as server:
        found = [
            asdict(drain(server.client(), claimers, tasks))
            for number in range(rounds)
            for claimers in rotated(CLAIMER_COUNTS, number)
        ]
    figures.write("passed_over", {"tasks": tasks, "rounds": rounds, "runs": found})


QUEUE_MAX_AGE_SECONDS: Final = 86_400.0
LEASE_SECONDS: Final = 3600.0
BATCH_TASKS: Final = 10_000
PLAN_OPTIONS: Final = "ANALYZE, BUFFERS, TIMING OFF, COSTS OFF, FORMAT JSON"
# Length of freshq's ids: DynamoDB bills the bytes that a query reads.
ID_CHARS: Final = len(str(uuid.UUID(int=0)))


# Amounts of some claims by kind: calls, read units, write units, statements, rows, pages or steps.
Amounts = Counter[str]


def each(amounts: Amounts, claims: int) -> dict[str, float]:
    """Return the mean amounts of one claim."""
    return {name: round(amount / claims, 1) for name, amount in sorted(amounts.items())}


class Place:
    """A queue in memory, and the base of the other queues.

    Attributes:
        queue: The queue.
    """

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self._filled = 0

    def fill(
        self,
        count: int,
        age_seconds: float = 0.0,
        left_seconds: float | None = None,
        status: TaskStatus = TaskStatus.PENDING,
    ) -> None:
        """Store tasks, each created a microsecond after the last.

        Args:
            count: Number of tasks.
            age_seconds: Age of the first task.
            left_seconds: Time until their deadline, negative if stale; None: the queue's max age.
            status: Status of all tasks.
        """
        now = self.queue.admin.now()
        first = core_of(self.queue).lifecycle.created(NewTask(payload={"work": 1}), now, now - age_seconds)
        deadline = first.stale_at if left_seconds is None else now + left_seconds
        # Enough stale tasks before the live ones.
        updated = min(now, deadline - 1)
        self._filled += 1
        named = f"{self._filled}-"
        first = replace(first, task_id=named, status=status, deadline=deadline, updated=updated)
        self._insert([numbered(first, number) for number in range(count)])

    def drop(self) -> None:
        """Close the queue and delete its tasks."""
        self.queue.close()

    def _insert(self, tasks: Sequence[Task]) -> None:
        for start in range(0, len(tasks), BATCH_TASKS):
            core_of(self.queue).store.insert(tasks[start : start + BATCH_TASKS])

    @contextmanager
    def counted(self) -> Iterator[Amounts]:
        """Count Python's instructions, because memory has neither calls nor rows."""
        amounts = Amounts()

        def count(frame: FrameType, event: str, _argument: object) -> Any:
            frame.f_trace_opcodes = True
            amounts["steps"] += event == "opcode"
            return count

        sys.settrace(count)
        try:
            yield amounts
        finally:
            sys.settrace(None)


def numbered(first: Task, number: int) -> Task:
    """Return the task a number of microseconds after another, with an id as long as freshq's ids."""
    task_id = f"{first.task_id}{number:0{ID_CHARS - len(first.task_id)}}"
    return replace(first, task_id=task_id, created=round(first.created + number / 1e6, 6))


class DynamoDBPlace(Place):
    """A queue on DynamoDB Local, in a table of its own."""

    def __init__(self, client: DynamoDBClient, name: str, order: Order, shards: int = 1) -> None:
        """Create the table."""
        create_without_stream(client, name)
        super().__init__(Queue.dynamodb(name, client, shards=shards, **options(order)))
        self._client, self._table, self._shards = client, name, shards

    @override
    def _insert(self, tasks: Sequence[Task]) -> None:
        load(self._client, self._table, tasks, self._shards)

    @override
    def drop(self) -> None:
        super().drop()
        self._client.delete_table(TableName=self._table)

    @contextmanager
    def counted(self) -> Iterator[Amounts]:
        """Count calls and capacity units."""
        amounts = Amounts()
        with metered(self._client) as meter:
            yield amounts
        amounts.update(
            {"calls": meter.calls.total(), "write units": meter.write_units, "read units": meter.read_units}
        )


class SqlPlace(Place):
    """A queue on PostgreSQL or SQLite, in a table of its own."""

    def __init__(self, url: str, name: str, order: Order) -> None:
        """Create the table."""
        super().__init__(Queue.sql(url, name, **options(order)))
        self._arguments = (url, name, order)
        self.queue.create_table()
        store = core_of(self.queue).store
        assert isinstance(store, SqlStore)
        self._store = store
        self._engine = store.database.engine
        self._is_postgresql = self._engine.dialect.name == "postgresql"

    @override
    def _insert(self, tasks: Sequence[Task]) -> None:
        super()._insert(tasks)
        with self._engine.begin() as connection:
            connection.execute(sa.text(f"ANALYZE {self._store.schema.tasks.name}"))

    def fill_finished(self, count: int, age_seconds: float) -> None:
        """Store tasks, then claim and complete them, all in three statements."""
        self.fill(count, age_seconds)
        ids = {"ids": f"{self._filled}-%"}
        for statement in LIFE:
            with self._engine.begin() as connection:
                connection.execute(sa.text(statement.format(self._store.schema.tasks.name)), ids)

    def opened_again(self) -> SqlPlace:
        """Return the same queue as a new process opens it."""
        return SqlPlace(*self._arguments)

    @override
    def drop(self) -> None:
        self._store.schema.tasks.drop(self._engine)
        super().drop()

    @contextmanager
    def counted(self) -> Iterator[Amounts]:
        """Count statements and the rows and pages that they read."""
        amounts = Amounts()
        with statements_of(self._store) as statements, self._steps(amounts):
            yield amounts
        amounts["statements"] += len(statements)
        for text, arguments in statements if self._is_postgresql else ():
            self._explain(text, arguments, amounts)

    @contextmanager
    def _steps(self, amounts: Amounts) -> Iterator[None]:
        """Count the steps of SQLite's virtual machine, which reports no rows."""
        if self._is_postgresql:
            yield
            return

        def step() -> None:
            amounts["steps"] += 1

        self._on_each_step(step)
        yield
        self._on_each_step(None)

    def _on_each_step(self, step: Callable[[], None] | None) -> None:
        # The pool lends the last used connection, and a claim uses only one.
        raw = self._engine.raw_connection()
        connection: Any = raw.driver_connection
        connection.set_progress_handler(step, 1)
        raw.close()

    def _explain(self, text: str, arguments: Any, amounts: Amounts) -> None:
        """Count the rows and pages that a statement of PostgreSQL reads."""
        if text.split(maxsplit=1)[0].upper() not in ("SELECT", "WITH", "UPDATE", "DELETE"):
            return
        with self._engine.connect() as connection:
            given = tuple(arguments) if isinstance(arguments, list) else arguments
            (found,) = connection.exec_driver_sql(f"EXPLAIN ({PLAN_OPTIONS}) {text}", given).scalars()
            connection.rollback()
        plan = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
        amounts["rows"] += rows_read(plan)
        amounts["pages"] += pages_read(plan)


@contextmanager
def statements_of(store: SqlStore) -> Iterator[list[tuple[str, Any]]]:
    """Yield a list that collects the statements of a store, with arguments in the driver's form."""
    found: list[tuple[str, Any]] = []
    database = store.database
    execute = getattr(database, "_execute")  # noqa: B009 - a private name

    def collected(statement: Any, parameters: Any) -> Any:
        found.append((statement.text, statement.arguments(parameters)))
        return execute(statement, parameters)

    def note(_connection: Any, _cursor: Any, statement: str, arguments: Any, *_rest: Any) -> None:
        found.append((statement, arguments))

    sa.event.listen(database.engine, "before_cursor_execute", note)
    with patch.object(database, "_execute", collected):
        yield found
    sa.event.remove(database.engine, "before_cursor_execute", note)


def pages_read(plan: dict[str, Any]) -> int:
    """Return the number of pages that a plan of PostgreSQL read."""
    return int(plan.get("Shared Hit Blocks", 0) + plan.get("Shared Read Blocks", 0))


def rows_read(plan: dict[str, Any]) -> int:
    """Return the number of rows that a plan of PostgreSQL read from tables and indexes."""
    total = sum(rows_read(part) for part in plan.get("Plans", ()))
    if "Scan" in plan["Node Type"] and ("Relation Name" in plan or "Index Name" in plan):
        removed = sum(value for name, value in plan.items() if name.startswith("Rows Removed"))
        total += int((plan["Actual Rows"] + removed) * plan["Actual Loops"])
    return total


def options(order: Order) -> Any:
    """Return the options of every queue."""
    return {"order": order, "max_age_seconds": QUEUE_MAX_AGE_SECONDS, "lease_seconds": LEASE_SECONDS}


SIZES: Final = (1_000, 100_000, 1_000_000)
# DynamoDB Local takes minutes for more. The larger exceeds the 17,000 tasks that a claim can pass over.
DYNAMODB_SIZES: Final = (1_000, 30_000)
GROUPS: Final = (1, 100, 10_000)
SHARDS: Final = (1, 4, 16)
CLAIMERS: Final = 4
SHARD_TASKS: Final = 150
LIMITS: Final = (1, 10)
ROUNDS: Final = 25
# Calls and units are counted; an emulator's times say little.
DYNAMODB_ROUNDS: Final = 7
# Claims whose cost is counted, after the timed ones.
COUNTED: Final = 3
# If fewer, the claims of a situation would empty the queue.
LIVE: Final = 1_000
# Ages of the older and of the younger tasks in seconds.
OLD, YOUNG = 3600.0, 60.0


@dataclass(frozen=True)
class Situation:
    """The tasks other than the claimed ones.

    Attributes:
        name: Name in the results.
        order: Order of the queue.
        fill: Fills a queue, given the size.
    """

    name: str
    order: Order
    fill: Callable[[Place, int], None]


def beside_stale_newer(place: Place, size: int) -> None:
    """Put stale tasks ahead of the live ones, newest first."""
    place.fill(LIVE, OLD)
    place.fill(size, YOUNG, left_seconds=-1.0)


def beside_stale_older(place: Place, size: int) -> None:
    """Put stale tasks ahead of the live ones, oldest first."""
    place.fill(size, OLD, left_seconds=-1.0)
    place.fill(LIVE, YOUNG)


def beside_finished(place: Place, size: int) -> None:
    """Keep finished tasks next to the live ones."""
    place.fill(size, OLD, status=TaskStatus.SUCCESS)
    place.fill(LIVE, YOUNG)


def in_groups(place: Place, groups: int) -> None:
    """Put tasks into a number of groups, at least one in each."""
    tasks = range(max(groups, LIVE))
    place.queue.put_many([{"payload": {"work": 1}, "group": f"group-{number % groups}"} for number in tasks])


SITUATIONS: Final = (
    Situation("waiting", Order.LIFO, lambda place, size: place.fill(size, OLD)),
    Situation("beside stale, LIFO", Order.LIFO, beside_stale_newer),
    Situation("beside stale, FIFO", Order.FIFO, beside_stale_older),
    Situation("beside finished", Order.LIFO, beside_finished),
    Situation("groups", Order.LIFO, in_groups),
)


def measured(
    store: str, situation: Situation, new_place: Callable[[Order], Place], sizes: Sequence[int], rounds: int
) -> list[dict[str, Any]]:
    """Return the figures of one situation, in which the sizes take turns."""
    places = {size: new_place(situation.order) for size in sizes}
    for size, place in places.items():
        situation.fill(place, size)
    claims = in_turns(
        {
            (size, limit): partial(timed_claim, place.queue, limit)
            for limit in LIMITS
            for size, place in places.items()
        },
        rounds,
    )
    found: list[dict[str, Any]] = []
    for size, place in places.items():
        found += (
            {"store": store, "situation": situation.name, "size": size, "limit": limit}
            | timings(claims[size, limit], claims[sizes[0], limit], limit)
            | {"amounts": counted_claims(place, limit)}
            for limit in LIMITS
        )
        place.drop()
    return found


def timings(
    claims: Sequence[tuple[float, int]], smallest: Sequence[tuple[float, int]], limit: int
) -> dict[str, Any]:
    """Return the figures of timed claims.

    `ratio` is the median of the ratios to the time at the smallest size in the same turn; `short` is the
    share of the claims that found fewer tasks than they asked for.
    """
    seconds, tasks = zip(*claims, strict=True)
    ratios = [time / first for time, (first, _tasks) in zip(seconds, smallest, strict=True)]
    lower, ratio, upper = statistics.quantiles(ratios, n=4, method="inclusive")
    return {
        "seconds": statistics.median(seconds),
        "ratio": ratio,
        "ratio_quartiles": (lower, upper),
        "short": statistics.mean(count < limit for count in tasks),
        "found": statistics.mean(tasks),
    }


def counted_claims(place: Place, limit: int) -> dict[str, float]:
    """Return the mean amounts of several claims."""
    with place.counted() as amounts:
        for _ in range(COUNTED):
            place.queue.claim(limit)
    return each(amounts, COUNTED)


def timed_claim(queue: Queue, limit: int) -> tuple[float, int]:
    """Return the seconds of a claim and the number of tasks that it found."""
    began = time.perf_counter()
    claims = queue.claim(limit)
    return time.perf_counter() - began, len(claims)


def shard_figures(server: DynamoDBLocal) -> list[dict[str, Any]]:
    """Return the departures from the order and the cost of a claim by number of shards."""
    found = []
    for shards in SHARDS:
        place = DynamoDBPlace(server.client(), _name(), Order.LIFO, shards)
        place.fill(LIVE)
        place.queue.claim()
        amounts = counted_claims(place, max(LIMITS))
        departed = drain(server.client(), CLAIMERS, SHARD_TASKS, shards)
        found.append(asdict(departed) | {"shards": shards, "amounts": amounts})
    return found


def _name() -> str:
    return f"growth_{uuid.uuid4().hex[:12]}"


@contextmanager
def running(store: str) -> Iterator[Callable[[Order], Place]]:
    """Yield a function that makes a new, empty queue of an order on a store."""
    with ExitStack() as stack:
        if store == "memory":
            yield lambda order: Place(Queue.memory(**options(order)))
        elif store == "dynamodb":
            server = stack.enter_context(DynamoDBLocal())
            yield lambda order: DynamoDBPlace(server.client(), _name(), order)
        elif store == "postgresql":
            url = stack.enter_context(Postgres(durable=True)).url
            yield lambda order: SqlPlace(url, _name(), order)
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            yield lambda order: SqlPlace(f"sqlite:///{folder}/{_name()}.db", "tasks", order)


def of_store(store: str, sizes: Sequence[int], groups: Sequence[int], rounds: int) -> dict[str, Any]:
    """Return the figures of all situations on one store."""
    found: list[dict[str, Any]] = []
    with running(store) as new_place:
        for situation in SITUATIONS:
            of_situation = groups if situation.fill is in_groups else sizes
            found += measured(store, situation, new_place, of_situation, rounds)
            Console(stderr=True).print(f"{store}, {situation.name}: done")
    report: dict[str, Any] = {"figures": found}
    if store == "dynamodb":
        with DynamoDBLocal() as server:
            report["shards"] = shard_figures(server)
    return report


HORIZON_TASKS: Final = (0, 1_000, 10_000, 100_000)
# Tasks that always wait.
BACKLOG: Final = 200
HORIZON_ORDERS: Final = (Order.LIFO, Order.FIFO)
PEER: Final = "procrastinate"
# The writes of a claim and a completion.
LIFE: Final = (
    "UPDATE {} SET status = 'TAKEN', line = NULL, agenda = 'due', due_us = 0 WHERE task_id LIKE :ids",
    "UPDATE {} SET status = 'SUCCESS', agenda = 'over', due_us = deadline_us WHERE task_id LIKE :ids",
)
UPDATE_OLDEST: Final = (
    "UPDATE procrastinate_jobs SET status = %s WHERE id IN"
    " (SELECT id FROM procrastinate_jobs WHERE status = %s ORDER BY id LIMIT %s)"
)


@contextmanager
def open_snapshot(server: Postgres) -> Iterator[None]:
    """Keep a PostgreSQL snapshot open, as a report does, and let it grow old."""
    with psycopg.connect(conninfo(server)) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT count(*) FROM pg_class")
        with psycopg.connect(conninfo(server), autocommit=True) as other:
            for _ in range(OLD_TRANSACTIONS):
                other.execute("SELECT pg_current_xact_id()")
        yield


def pages_of_claim(place: Place) -> float:
    """Return the pages that a claim of one task reads: the median of five."""
    found = []
    for _ in range(5):
        with place.counted() as amounts:
            place.queue.claim()
        found.append(amounts["pages"])
    return statistics.median(found)


def beside_a_snapshot(server: Postgres, order: Order, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Return the pages that a claim reads after numbers of tasks finished while a snapshot is open."""
    place = SqlPlace(server.url, _name(), order)
    waiting_age, finished_age = (OLD, YOUNG) if order is Order.LIFO else (YOUNG, OLD)
    place.fill(BACKLOG, waiting_age)
    found: list[dict[str, Any]] = []
    finished = 0
    with open_snapshot(server):
        for size in sizes:
            if size > finished:
                place.fill_finished(size - finished, finished_age)
                finished = size
            first = place.opened_again()
            with first.counted() as amounts:
                first.queue.claim()
            pages = pages_of_claim(first)
            first.queue.close()
            name = f"freshq, {order.value}"
            found.append({"queue": name, "finished": size, "pages": pages, "first": amounts["pages"]})
    place.drop()
    return found


def peer_beside_a_snapshot(server: Postgres, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Return the same count for procrastinate, whose oldest jobs are finished in one statement."""
    package: Any = importlib.import_module(PEER)
    fetch = package.sql.queries["fetch_job"]
    app = package.App(connector=package.SyncPsycopgConnector(conninfo=conninfo(server)))
    job = app.configure_task("work", allow_unknown=True)
    found: list[dict[str, Any]] = []
    finished = 0
    with app.open():
        app.schema_manager.apply_schema()
        job.batch_defer(*[{"work": 1}] * BACKLOG)
        with open_snapshot(server), psycopg.connect(conninfo(server), autocommit=True) as connection:
            worker = connection.execute("INSERT INTO procrastinate_workers DEFAULT VALUES RETURNING id")
            where = {"queues": None, "worker_id": (worker.fetchone() or (0,))[0]}
            for size in sizes:
                if size > finished:
                    job.batch_defer(*[{"work": 1}] * (size - finished))
                    for before, after in (("todo", "doing"), ("doing", "succeeded")):
                        connection.execute(UPDATE_OLDEST, (after, before, size - finished))
                    finished = size
                for _ in range(2):  # the first reads the catalog, too
                    with connection.transaction(force_rollback=True):
                        plan = connection.execute(f"EXPLAIN ({PLAN_OPTIONS}) {fetch}", where).fetchone()
                pages = pages_read((plan or ([],))[0][0]["Plan"])
                found.append({"queue": PEER, "finished": size, "pages": pages, "first": pages})
    return found


def horizon(sizes: str = ",".join(map(str, HORIZON_TASKS))) -> None:
    """Measure claims while a snapshot is open on PostgreSQL, and procrastinate's if it is installed.

    Args:
        sizes: Numbers of finished tasks, the smallest first.
    """
    found: list[dict[str, Any]] = []
    with Postgres() as server:
        for order in HORIZON_ORDERS:
            found += beside_a_snapshot(server, order, numbers(sizes))
        if find_spec(PEER):
            found += peer_beside_a_snapshot(server, numbers(sizes))
    figures.write("horizon", found)


def main(stores: str = ",".join(GROWTH_STORES), sizes: str = "", groups: str = "", rounds: int = 0) -> None:
    """Measure some stores.

    Args:
        stores: Their names, separated by commas.
        sizes: Numbers of tasks, the smallest first; by default up to a million, on DynamoDB 30,000.
        groups: Numbers of groups, the smallest first.
        rounds: Claims of each kind, at least 2 (ratios have quartiles); by default 25, on DynamoDB 7.
    """
    for store in stores.split(","):
        is_local = store != "dynamodb"
        of_sizes = numbers(sizes) if sizes else SIZES if is_local else DYNAMODB_SIZES
        of_groups = numbers(groups) if groups else GROUPS
        of_rounds = rounds or (ROUNDS if is_local else DYNAMODB_ROUNDS)
        figures.write(f"growth_{store}", of_store(store, of_sizes, of_groups, of_rounds))
