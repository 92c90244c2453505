"""How the cost of a claim grows with the queue, on each store: calls, units, rows and time.

    python -m benchmarks.growth [--stores NAME,...] [--sizes N,...] [--groups N,...] [--rounds N]

Each situation is a queue of its own for each size. The sizes take turns, and a ratio of time is the median
of the ratios to the smallest size in the same turn. The figures of a store go to
benchmarks/results/growth_STORE.json, unless sizes, groups or rounds are given.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from operator import truediv
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import sqlalchemy as sa
from local.servers import (
    DYNAMODB_LOCAL_PACKAGE,
    DYNAMODB_LOCAL_VERSION,
    DynamoDBLocal,
    Postgres,
    create_without_stream,
)
from rich.console import Console
from typing_extensions import override

from benchmarks import figures
from benchmarks.capacity import metered
from benchmarks.growth_page import STORES, growth_sections
from benchmarks.render import markdown
from freshq import Order, Queue, TaskStatus
from freshq.model.new_task import NewTask
from freshq.stores.dynamodb.items import Keyspace, encode
from freshq.stores.sql import SqlStore
from freshq.stores.sql.rows import row_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

    from types_boto3_dynamodb import DynamoDBClient

    from freshq.model.task import Task

DRAINED_TASKS: Final = 400
CLAIMER_COUNTS: Final = (1, 2, 4, 8)
DRAIN_ROUNDS: Final = 5
# Of the queue: longer than filling and draining it takes.
MAX_AGE_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class TimedClaim:
    """A claimed task and the time that its claim took.

    Attributes:
        rank: Place of the task in the queue's order; 0 is the best.
        began: When the claim was made, on the monotonic clock, in seconds.
        ended: When it was answered.
    """

    rank: int
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Departures:
    """How far claims departed from the order.

    Attributes:
        claimers: Claimers at a time.
        share: Part of the claims that passed over a better task.
        mean_places: Better tasks passed over, per claim that did.
        most_places: Better tasks passed over by one claim, at most.
    """

    claimers: int
    share: float
    mean_places: float
    most_places: int


def departures(claims: Sequence[TimedClaim], claimers: int) -> Departures:
    """Return how far claims of single tasks departed from the order.

    Args:
        claims: All claims of a run, whose tasks were put before it.
        claimers: Claimers at a time.
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
    """Fill a new queue, newest first, and drain it with claims of one task."""
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

    threads = [threading.Thread(target=claim_all, args=(queue,)) for queue in queues]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return departures(claims, claimers)


def passed_over_main() -> None:
    """Print and write the departures of 1, 2, 4 and 8 claimers, in turns."""
    parser = argparse.ArgumentParser(description="Measure how far claims depart from the queue's order.")
    parser.add_argument("--tasks", type=int, default=DRAINED_TASKS, help="tasks to claim in each run")
    parser.add_argument("--rounds", type=int, default=DRAIN_ROUNDS, help="runs of each number of claimers")
    arguments = parser.parse_args()
    console = Console()
    report = []
    with DynamoDBLocal() as server:
        for claimers in CLAIMER_COUNTS * arguments.rounds:
            found = drain(server.client(), claimers, arguments.tasks)
            report.append(asdict(found))
            console.print(
                f"{claimers} claimers: {found.share:.0%} of the claims pass over a better task, "
                f"{found.mean_places:.1f} places on average, {found.most_places} at most"
            )
    figures.write(
        "passed_over",
        {"tasks": arguments.tasks, "rounds": arguments.rounds, "runs": report},
        programs={DYNAMODB_LOCAL_PACKAGE: DYNAMODB_LOCAL_VERSION},
    )


QUEUE_MAX_AGE_SECONDS: Final = 86_400.0
LEASE_SECONDS: Final = 3600.0
BATCH_ITEMS: Final = 25
# Threads that fill a table on DynamoDB.
LOADERS: Final = 4
MEMORY_BATCH: Final = 10_000
# The plans of PostgreSQL have figures of time, which differ from run to run.
PLAN_OPTIONS: Final = "ANALYZE, BUFFERS, TIMING OFF, COSTS OFF"
CASTS: Final = re.compile(r'::(text|bigint|smallint|VARCHAR|BIGINT|INTEGER)| COLLATE "C"')
# Times, and ids of tasks.
VARYING: Final = re.compile(r"\d{13,}|[0-9a-f]{8}-[0-9a-f-]{27}")
# As long as the ids that freshq makes: DynamoDB bills the bytes that a query passes over.
ID_CHARS: Final = len(str(uuid.UUID(int=0)))


@dataclass
class Cost:
    """What some claims cost.

    Attributes:
        amounts: By kind: calls, read units, write units, statements, rows, pages, steps.
        plans: The plan of each statement, where the store has plans.
    """

    amounts: Counter[str] = field(default_factory=Counter)
    plans: dict[str, str] = field(default_factory=dict)

    def each(self, claims: int) -> dict[str, float]:
        """Return the amounts of one of some claims."""
        return {name: round(amount / claims, 1) for name, amount in sorted(self.amounts.items())}


class Place:
    """A queue in memory, and the base of the others.

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
        """Store tasks, each created a microsecond after the one before.

        Args:
            count: How many.
            age_seconds: Age of the first.
            left_seconds: Time until their deadline, negative for stale ones; None: the queue's max age.
            status: Their status.
        """
        now = self.queue.now()
        first = self.queue.lifecycle.created(NewTask(payload={"work": 1}), now, now - age_seconds)
        deadline = first.deadline if left_seconds is None else now + left_seconds
        # Stored before it went stale.
        updated = min(now, deadline - 1)
        self._filled += 1
        named = f"{self._filled}-"
        self._insert(replace(first, task_id=named, status=status, deadline=deadline, updated=updated), count)

    def drop(self) -> None:
        """Close the queue, and delete its tasks."""
        self.queue.close()

    def _insert(self, first: Task, count: int) -> None:
        for start in range(0, count, MEMORY_BATCH):
            numbers = range(start, min(count, start + MEMORY_BATCH))
            self.queue.store.insert([numbered(first, number) for number in numbers])

    @contextmanager
    def counted(self) -> Iterator[Cost]:
        """Count the instructions of Python: memory has neither calls nor rows."""
        cost = Cost()

        def count(frame: FrameType, event: str, _argument: object) -> Any:
            frame.f_trace_opcodes = True
            cost.amounts["steps"] += event == "opcode"
            return count

        sys.settrace(count)
        try:
            yield cost
        finally:
            sys.settrace(None)


def numbered(first: Task, number: int) -> Task:
    """Return a task that follows another, with an id as long as those that freshq makes."""
    task_id = f"{first.task_id}{number:0{ID_CHARS - len(first.task_id)}}"
    return replace(first, task_id=task_id, created=round(first.created + number / 1e6, 6))


class DynamoDBPlace(Place):
    """A queue on DynamoDB Local, in a table of its own."""

    def __init__(self, client: DynamoDBClient, name: str, order: Order, shards: int = 1) -> None:
        """Create the table."""
        create_without_stream(client, name)
        super().__init__(Queue.dynamodb(name, client, shards=shards, **options(order)))
        self._client, self._table, self._keyspace = client, name, Keyspace(shards)

    def _insert(self, first: Task, count: int) -> None:
        with ThreadPoolExecutor(LOADERS) as pool:
            list(pool.map(lambda start: self._write(first, start, count), range(0, count, BATCH_ITEMS)))

    def _write(self, first: Task, start: int, count: int) -> None:
        numbers = range(start, min(count, start + BATCH_ITEMS))
        items = (encode(numbered(first, number), self._keyspace) for number in numbers)
        requests: Any = {self._table: [{"PutRequest": {"Item": item}} for item in items]}
        while requests:
            requests = self._client.batch_write_item(RequestItems=requests)["UnprocessedItems"]

    @override
    def drop(self) -> None:
        super().drop()
        self._client.delete_table(TableName=self._table)

    @contextmanager
    def counted(self) -> Iterator[Cost]:
        """Count calls and capacity units."""
        cost = Cost()
        with metered(self._client) as meter:
            yield cost
        cost.amounts.update(
            {"calls": meter.calls.total(), "write units": meter.write_units, "read units": meter.read_units}
        )


class SqlPlace(Place):
    """A queue on PostgreSQL or SQLite, in a table of its own."""

    def __init__(self, url: str, name: str, order: Order) -> None:
        """Create the table."""
        super().__init__(Queue.sql(url, name, **options(order)))
        self.queue.create_table()
        store = self.queue.store
        assert isinstance(store, SqlStore)
        self._store = store
        self._engine = store.database.engine
        self._is_postgresql = self._engine.dialect.name == "postgresql"

    def _insert(self, first: Task, count: int) -> None:
        row = {name: value for name, value in row_of(first).items() if value is not None}
        numbers = self._numbers(count)
        digits = sa.cast(numbers, sa.Text)
        zeros = sa.func.substr("0" * ID_CHARS, 1, ID_CHARS - len(first.task_id) - sa.func.length(digits))
        computed: dict[str, Any] = {
            "task_id": sa.literal(first.task_id).concat(zeros).concat(digits),
            "created_us": sa.literal(row["created_us"], sa.BigInteger) + numbers,
        }
        values = [computed.get(name, sa.literal(value)).label(name) for name, value in row.items()]
        tasks = self._store.schema.tasks
        with self._engine.begin() as connection:
            connection.execute(sa.insert(tasks).from_select(list(row), sa.select(*values)))
            connection.execute(sa.text(f"ANALYZE {tasks.name}"))

    @override
    def drop(self) -> None:
        self._store.schema.tasks.drop(self._engine)
        super().drop()

    def _numbers(self, count: int) -> sa.ColumnElement[int]:
        if self._is_postgresql:
            series = sa.func.generate_series(0, count - 1).table_valued(sa.column("n", sa.BigInteger))
            return series.render_derived().c.n
        start = sa.select(sa.literal_column("0").label("n")).cte("series", recursive=True)
        following = sa.select(start.c.n + 1).where(start.c.n < count - 1)
        return start.union_all(following).c.n

    @contextmanager
    def counted(self) -> Iterator[Cost]:
        """Count statements, and what they read."""
        cost, seen = Cost(), _Statements()
        with seen.of(self._store), self._steps(cost):
            yield cost
        cost.amounts["statements"] += len(seen.statements)
        for text, arguments in seen.statements:
            self._explain(text, arguments, cost)

    @contextmanager
    def _steps(self, cost: Cost) -> Iterator[None]:
        """Count the steps of SQLite's virtual machine, which has no counts of rows."""
        if self._is_postgresql:
            yield
            return

        def step() -> None:
            cost.amounts["steps"] += 1

        self._on_each_step(step)
        yield
        self._on_each_step(None)

    def _on_each_step(self, step: Callable[[], None] | None) -> None:
        # The pool lends the connection that was used last, and a claim uses only one.
        raw = self._engine.raw_connection()
        connection: Any = raw.driver_connection
        connection.set_progress_handler(step, 1)
        raw.close()

    def _explain(self, text: str, arguments: Any, cost: Cost) -> None:
        if text.split(maxsplit=1)[0].upper() not in ("SELECT", "WITH", "UPDATE", "DELETE"):
            return
        prefix = f"EXPLAIN ({PLAN_OPTIONS}, FORMAT JSON)" if self._is_postgresql else "EXPLAIN QUERY PLAN"
        with self._engine.connect() as connection:
            given = tuple(arguments) if isinstance(arguments, list) else arguments
            rows = connection.exec_driver_sql(f"{prefix} {text}", given).all()
            connection.rollback()
        if not self._is_postgresql:
            cost.plans.setdefault(self._plain(text), self._plain("\n".join(str(row[-1]) for row in rows)))
            return
        found = rows[0][0]
        plan = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
        cost.amounts["rows"] += rows_read(plan)
        cost.amounts["pages"] += plan.get("Shared Hit Blocks", 0) + plan.get("Shared Read Blocks", 0)
        cost.plans.setdefault(self._plain(text), self._plain("\n".join(plan_lines(plan))))

    def _plain(self, text: str) -> str:
        """Return a statement or plan without what differs from run to run, and without casts."""
        text = text.replace(self._store.schema.tasks.name, "tasks")
        return VARYING.sub("…", CASTS.sub("", text))


class _Statements:
    """The statements that a store sends, with their arguments in the driver's form."""

    def __init__(self) -> None:
        self.statements: list[tuple[str, Any]] = []

    @contextmanager
    def of(self, store: SqlStore) -> Iterator[None]:
        """Collect the statements of a store."""
        database = store.database
        execute = getattr(database, "_execute")  # noqa: B009 - a private name

        def collected(statement: Any, parameters: Any) -> Any:
            self.statements.append((statement.text, statement.arguments(parameters)))
            return execute(statement, parameters)

        def note(_connection: Any, _cursor: Any, statement: str, arguments: Any, *_rest: Any) -> None:
            self.statements.append((statement, arguments))

        sa.event.listen(database.engine, "before_cursor_execute", note)
        with patch.object(database, "_execute", collected):
            yield
        sa.event.remove(database.engine, "before_cursor_execute", note)


def rows_read(plan: dict[str, Any]) -> int:
    """Return how many rows a plan of PostgreSQL read from tables and indexes."""
    total = sum(rows_read(part) for part in plan.get("Plans", ()))
    if "Scan" in plan["Node Type"] and ("Relation Name" in plan or "Index Name" in plan):
        removed = sum(value for name, value in plan.items() if name.startswith("Rows Removed"))
        total += int((plan["Actual Rows"] + removed) * plan["Actual Loops"])
    return total


def plan_lines(plan: dict[str, Any], depth: int = 0) -> Iterator[str]:
    """Yield a plan of PostgreSQL as indented lines."""
    on = plan.get("Index Name") or plan.get("Relation Name")
    condition = plan.get("Index Cond") or plan.get("TID Cond")
    line = (
        "  " * depth
        + plan["Node Type"]
        + (f" on {on}" if on else "")
        + (f": {condition}" if condition else "")
    )
    yield line + (f", filter {plan['Filter']}" if "Filter" in plan else "")
    for part in plan.get("Plans", ()):
        yield from plan_lines(part, depth + 1)


def options(order: Order) -> Any:
    """Return the options of every queue here."""
    return {"order": order, "max_age_seconds": QUEUE_MAX_AGE_SECONDS, "lease_seconds": LEASE_SECONDS}


PACKAGES: Final[Mapping[str, Sequence[str]]] = {
    "memory": (),
    "sqlite": ("sqlalchemy",),
    "postgresql": ("sqlalchemy", "psycopg"),
    "dynamodb": ("boto3",),
}
SIZES: Final = (1_000, 100_000, 1_000_000)
# DynamoDB Local takes minutes for more. These are more than the 17,000 that a claim passes over at most.
DYNAMODB_SIZES: Final = (1_000, 30_000)
GROUPS: Final = (1, 100, 10_000)
SHARDS: Final = (1, 4, 16)
CLAIMERS: Final = 4
SHARD_TASKS: Final = 150
LIMITS: Final = (1, 10)
ROUNDS: Final = 25
LEAST_ROUNDS: Final = 2
# Calls and units are counted; times in an emulator say little.
DYNAMODB_ROUNDS: Final = 7
# Claims whose cost is counted, after those that are timed.
COUNTED: Final = 3
# More than all claims of a situation take.
LIVE: Final = 1_000
# Age of tasks that are older, and of those that are younger, in seconds.
OLD, YOUNG = 3600.0, 60.0


@dataclass(frozen=True)
class Situation:
    """What waits beside the tasks that are claimed.

    Attributes:
        name: For the page.
        order: Order of the queue.
        fill: Fills a queue, given the size.
    """

    name: str
    order: Order
    fill: Callable[[Place, int], None]


def beside_stale_newer(place: Place, size: int) -> None:
    """Let stale tasks precede the live ones, newest first."""
    place.fill(LIVE, OLD)
    place.fill(size, YOUNG, left_seconds=-1.0)


def beside_stale_older(place: Place, size: int) -> None:
    """Let stale tasks precede the live ones, oldest first."""
    place.fill(size, OLD, left_seconds=-1.0)
    place.fill(LIVE, YOUNG)


def beside_finished(place: Place, size: int) -> None:
    """Let finished tasks be kept."""
    place.fill(size, OLD, status=TaskStatus.SUCCESS)
    place.fill(LIVE, YOUNG)


def in_groups(place: Place, groups: int) -> None:
    """Let tasks wait in some groups, at least one in each."""
    tasks = range(max(groups, LIVE))
    place.queue.put_many([{"payload": {"work": 1}, "group": f"group-{number % groups}"} for number in tasks])


SITUATIONS: Final = (
    Situation("waiting", Order.LIFO, lambda place, size: place.fill(size, OLD)),
    Situation("beside stale, LIFO", Order.LIFO, beside_stale_newer),
    Situation("beside stale, FIFO", Order.FIFO, beside_stale_older),
    Situation("beside finished", Order.LIFO, beside_finished),
    Situation("groups", Order.LIFO, in_groups),
)


@dataclass(frozen=True)
class Figure:
    """What a claim costs in one situation.

    Attributes:
        store: Name of the store.
        situation: Name of the situation.
        size: Its size: tasks, or groups.
        limit: Tasks that the claim asks for.
        seconds: Median time.
        ratio: Median of the ratios of that time to the smallest size's in the same turn.
        ratio_quartiles: The lower and the upper quartile of these ratios.
        short: Share of the claims that found fewer tasks than they asked for.
        found: Tasks that a claim found, on average.
        amounts: Calls, units, statements, rows, pages or steps per claim.
        plans: Plan of each statement.
    """

    store: str
    situation: str
    size: int
    limit: int
    seconds: float
    ratio: float
    ratio_quartiles: tuple[float, float]
    short: float
    found: float
    amounts: dict[str, float]
    plans: dict[str, str]


def measured(
    store: str, situation: Situation, new_place: Callable[[Order], Place], sizes: Sequence[int], rounds: int
) -> list[Figure]:
    """Return the figures of one situation, the sizes in turns."""
    places = {}
    for size in sizes:
        places[size] = new_place(situation.order)
        situation.fill(places[size], size)
    timed = _timed(places, rounds)
    found = []
    for size, place in places.items():
        for limit in LIMITS:
            with place.counted() as cost:
                for _ in range(COUNTED):
                    place.queue.claim(limit)
            claims, smallest = timed[size, limit], timed[sizes[0], limit]
            lower, ratio, upper = statistics.quantiles(
                map(truediv, claims.seconds, smallest.seconds), n=4, method="inclusive"
            )
            found.append(
                Figure(
                    store, situation.name, size, limit, statistics.median(claims.seconds),
                    ratio=ratio,
                    ratio_quartiles=(lower, upper),
                    short=statistics.mean(tasks < limit for tasks in claims.found),
                    found=statistics.mean(claims.found),
                    amounts=cost.each(COUNTED),
                    plans=cost.plans if size == sizes[-1] and limit == LIMITS[0] else {},
                )
            )  # fmt: skip
    for place in places.values():
        place.drop()
    return found


@dataclass
class _Timed:
    """Claims of one limit at one size: how long each took, and how many tasks it found."""

    seconds: list[float] = field(default_factory=list)
    found: list[int] = field(default_factory=list)


def _timed(places: Mapping[int, Place], rounds: int) -> Mapping[tuple[int, int], _Timed]:
    """Return the claims by size and limit."""
    timed: defaultdict[tuple[int, int], _Timed] = defaultdict(_Timed)
    for number in range(rounds):
        for limit in LIMITS:
            for size, place in sorted(places.items(), reverse=bool(number % 2)):
                began = time.perf_counter()
                claims = place.queue.claim(limit)
                timed[size, limit].seconds.append(time.perf_counter() - began)
                timed[size, limit].found.append(len(claims))
    return timed


def shard_figures(server: DynamoDBLocal) -> list[dict[str, Any]]:
    """Return how far claims depart from the order, and what a claim costs, by shards."""
    found = []
    for shards in SHARDS:
        place = DynamoDBPlace(server.client(), _name(), Order.LIFO, shards)
        place.fill(LIVE)
        place.queue.claim()
        with place.counted() as cost:
            for _ in range(COUNTED):
                place.queue.claim(max(LIMITS))
        departed = drain(server.client(), CLAIMERS, SHARD_TASKS, shards)
        found.append(asdict(departed) | {"shards": shards, "amounts": cost.each(COUNTED)})
    return found


def _name() -> str:
    return f"growth_{uuid.uuid4().hex[:12]}"


def of_store(store: str, sizes: Sequence[int], groups: Sequence[int], rounds: int) -> dict[str, Any]:
    """Measure all situations on one store."""
    with ExitStack() as running:
        new_place: Callable[[Order], Place]
        report: dict[str, Any] = {}
        if store == "memory":
            new_place = lambda order: Place(Queue.memory(**options(order)))  # noqa: E731 - one of four
        elif store == "dynamodb":
            server = running.enter_context(DynamoDBLocal())
            new_place = lambda order: DynamoDBPlace(server.client(), _name(), order)  # noqa: E731 - one of four
            report["shards"] = shard_figures(server)
        elif store == "postgresql":
            url = running.enter_context(Postgres(durable=True)).url
            new_place = lambda order: SqlPlace(url, _name(), order)  # noqa: E731 - one of four
        else:
            folder = running.enter_context(tempfile.TemporaryDirectory())
            new_place = lambda order: SqlPlace(f"sqlite:///{folder}/{_name()}.db", "tasks", order)  # noqa: E731 - one of four
        found: list[Figure] = []
        for situation in SITUATIONS:
            of_situation = groups if situation.fill is in_groups else sizes
            found += measured(store, situation, new_place, of_situation, rounds)
            ratios = [round(figure.ratio, 2) for figure in found[-2 * len(of_situation) :]]
            Console().print(f"{store}, {situation.name}, ratios by size and limit: {ratios}")
        return report | {"figures": [asdict(figure) for figure in found]}


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _rounds(text: str) -> int:
    rounds = int(text)
    if rounds < LEAST_ROUNDS:
        msg = f"must be at least {LEAST_ROUNDS}, as ratios have quartiles; got {rounds}"
        raise argparse.ArgumentTypeError(msg)
    return rounds


def main() -> None:
    """Measure the stores, write the figures of those that were measured in full, and print their page."""
    parser = argparse.ArgumentParser(description="Measure how the cost of a claim grows.")
    parser.add_argument("--stores", default=",".join(STORES), help="stores to measure")
    parser.add_argument("--sizes", type=_numbers, help="numbers of tasks, the smallest first")
    parser.add_argument("--groups", type=_numbers, help="numbers of groups, the smallest first")
    parser.add_argument("--rounds", type=_rounds, help="claims of each kind, at least 2")
    arguments = parser.parse_args()
    report: dict[str, Any] = {}
    for store in arguments.stores.split(","):
        sizes = arguments.sizes or (DYNAMODB_SIZES if store == "dynamodb" else SIZES)
        rounds = arguments.rounds or (DYNAMODB_ROUNDS if store == "dynamodb" else ROUNDS)
        report[store] = of_store(store, sizes, arguments.groups or GROUPS, rounds)
        if not (arguments.sizes or arguments.groups or arguments.rounds):
            figures.write(f"growth_{store}", report[store], PACKAGES[store])
    sections = growth_sections(report, figures.figures_of("capacity"))
    print("\n\n".join(map(markdown, sections.values())))


if __name__ == "__main__":
    main()
