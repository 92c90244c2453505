"""Count the capacity units and calls of each step of a task's life on Amazon's DynamoDB Local.

The units come from ReturnConsumedCapacity, so they do not depend on the machine. A write whose condition
failed reports no units but is billed by the size of the item: one unit here. The benchmark sets every clock
that freshq reads, so work that a process repeats every few seconds does not depend on the speed of this
machine.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar
from unittest.mock import patch

from local.faults import AFTER, client_at, hooked, meanwhile
from local.servers import DynamoDBLocal, create_without_stream, load
from typing_extensions import override

from benchmarks import figures
from benchmarks.costs_page import ALONE
from benchmarks.figures import PAYLOAD
from freshq import MatchQueue, Queue, Settlement
from freshq.errors import FreshqError
from freshq.model.pass_options import PassOptions
from freshq.queue import core, polling
from freshq.queue.core import core_of
from freshq.queue.polling import Fetcher
from freshq.queue.shared import options
from freshq.stores import clocks
from freshq.stores.dynamodb import line_records
from freshq.stores.dynamodb.batches import Batches
from freshq.stores.dynamodb.calls import ConditionFailed
from freshq.stores.dynamodb.leases import LATE_CLAIM_SECONDS
from freshq.stores.dynamodb.line_records import RULES
from freshq.stores.dynamodb.passes import WorkerPasses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from types_boto3_dynamodb import DynamoDBClient

    from freshq import Claim, Receipt
    from freshq.stores.base import OnConflict

T = TypeVar("T")
READS: Final = ("GetItem", "BatchGetItem", "Query", "Scan")
# freshq reads items with strong consistency, which indexes do not offer.
STRONG_READS: Final = ("GetItem", "BatchGetItem")
WRITES: Final = ("PutItem", "UpdateItem", "DeleteItem", "BatchWriteItem")
# The units of an eventually consistent read of up to 4 KB.
LEAST_READ_UNITS: Final = 0.5
LEAST_STRONG_READ_UNITS: Final = 1.0


@dataclass(eq=False)
class Meter:
    """The capacity that the calls of a client consumed.

    Attributes:
        write_units: Write request units.
        read_units: Read request units.
        calls: Calls of the SDK by operation.
        refused: Writes whose condition failed; the other figures include them.
    """

    write_units: float = 0.0
    read_units: float = 0.0
    calls: Counter[str] = field(default_factory=Counter)
    refused: int = 0

    def ask(self, params: dict[str, Any], model: Any, **_rest: Any) -> dict[str, Any]:
        """Have DynamoDB report the consumption of a call."""
        del model
        return params | {"ReturnConsumedCapacity": "INDEXES"}

    def count(self, parsed: dict[str, Any], model: Any, **_rest: Any) -> None:
        """Add the consumption of a call."""
        self.calls[model.name] += 1
        if parsed.get("Error", {}).get("Code") == "ConditionalCheckFailedException":
            self.refused += 1
            self.write_units += 1
            return
        consumed = parsed["ConsumedCapacity"]
        parts = consumed if isinstance(consumed, list) else [consumed]
        units = sum(part["CapacityUnits"] for part in parts)
        if model.name in READS:
            # A read that finds nothing is billed as the smallest read, but DynamoDB Local reports 0.
            least = LEAST_STRONG_READ_UNITS if model.name in STRONG_READS else LEAST_READ_UNITS
            self.read_units += max(units, least)
        else:
            self.write_units += units

    def batch(self, writes: Sequence[Any]) -> list[Any]:
        """Send the writes of a batch one at a time; count their units and one call."""
        before = self.calls.copy()
        calls = before.copy()
        answers: list[Any] = []
        for write in writes:
            try:
                answers.append(write.alone())
            except FreshqError as error:
                answers.append(error)
                if isinstance(error, ConditionFailed) and write.item is not None:
                    # The answers lack the items of used ids, so one more call reads them together.
                    calls["BatchGetItem"] = before["BatchGetItem"] + 1
                    self.read_units += LEAST_STRONG_READ_UNITS
        self.calls = calls + Counter({"BatchExecuteStatement": 1})
        return answers


@contextmanager
def metered(client: DynamoDBClient) -> Iterator[Meter]:
    """Count the capacity that a client consumes."""
    meter = Meter()
    with ExitStack() as hooks:
        hooks.enter_context(patch.object(Batches, "_batch", meter.batch))
        for operation in (*READS, *WRITES):
            hooks.enter_context(hooked(client, "provide-client-params", meter.ask, operation))
            hooks.enter_context(hooked(client, AFTER, meter.count, operation))
        yield meter


START_SECONDS: Final = 1_700_000_000.0
LEASE_SECONDS: Final = 60.0
QUEUE_MAX_AGE_SECONDS: Final = 3600.0


@dataclass
class Clock:
    """A clock that only a benchmark moves."""

    now: float = START_SECONDS
    # Stores do not compare a fixed clock with their server's.
    simulated: ClassVar[bool] = True

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now


@dataclass(frozen=True)
class Cost:
    """The cost of one step for one task.

    Attributes:
        step: Name of the step.
        tasks: Number of tasks measured.
        write_units: Write request units per task.
        read_units: Read request units per task.
        calls: SDK calls per task.
    """

    step: str
    tasks: int
    write_units: float
    read_units: float
    calls: float


class Bench:
    """A new table with its queues and measured steps."""

    def __init__(self, client: DynamoDBClient) -> None:
        """Create the table."""
        self.client = client
        self.clock = Clock()
        self.table = f"bench-{uuid.uuid4().hex}"
        create_without_stream(client, self.table)
        core.core_of(self.queue()).options.store_named()

    def queue(self) -> Queue:
        """Return the queue of another process, which has read the stored options."""
        queue = Queue.dynamodb(
            self.table, self.client, clock=self.clock, rng=random.Random(7), lease_seconds=LEASE_SECONDS,
            max_age_seconds=QUEUE_MAX_AGE_SECONDS,
        )  # fmt: skip
        queue.configure()
        return queue

    def fill(self, tasks: int) -> None:
        """Put tasks without measuring."""
        self.queue().put_many([{"payload": PAYLOAD}] * tasks)

    def measure(self, step: str, tasks: int, action: Callable[[], object]) -> Cost:
        """Return the cost of an action per task."""
        with metered(self.client) as meter:
            action()
        figures = (meter.write_units, meter.read_units, meter.calls.total())
        return Cost(step, tasks, *(round(figure / tasks, 3) for figure in figures))

    def costs(self, *steps: tuple[str, int, Callable[[], object]]) -> list[Cost]:
        """Return the costs of steps, each with its tasks and its action, in order."""
        return [self.measure(*step) for step in steps]


@contextmanager
def new_bench(client: DynamoDBClient) -> Iterator[Bench]:
    """Yield a bench whose clock replaces the machine's in freshq."""
    bench = Bench(client)
    machine = SimpleNamespace(time=bench.clock, monotonic=bench.clock)
    with ExitStack() as patches:
        for module in (clocks, line_records, core, options, polling):
            patches.enter_context(patch.object(module, "time", machine))
        yield bench


def groups(client: DynamoDBClient, tasks: int = 10) -> list[Cost]:
    """Measure puts into groups, and a claim from two groups in turn."""
    with new_bench(client) as bench:
        producer, worker = bench.queue(), bench.queue()

        def put(group: str, count: int) -> list[Receipt]:
            return producer.put_many([{"payload": PAYLOAD, "group": group}] * count)

        def claim() -> None:
            assert len(worker.claim(limit=tasks)) == tasks

        costs = bench.costs(
            ("first put of a queue's first group", 1, lambda: put("a", 1)),
            ("put into a group that nothing waits in", 1, lambda: put("b", 1)),
            (
                "put of a group, 10 in one call of `put_many`",
                2 * tasks,
                lambda: [put(each, tasks) for each in "ab"],
            ),
            ("claim of 10 from two groups in turn", tasks, claim),
        )
        bench.clock.now += 2 * RULES.trust_seconds
        look = "put of a group, its line record looked at again: at most once a second"
        return [*costs, bench.measure(look, 1, lambda: put("a", 1)), one_task_groups(client)]


def one_task_groups(client: DynamoDBClient, tasks: int = 48) -> Cost:
    """Measure the whole life of tasks, each alone in its group."""
    with new_bench(client) as bench:
        worker = bench.queue()

        def live() -> None:
            worker.put_many([{"payload": PAYLOAD, "group": f"g{number}"} for number in range(tasks)])
            bench.clock.now += 10
            while claims := worker.claim(limit=10):
                list(map(worker.complete, claims))
            bench.clock.now += 2 * LEASE_SECONDS
            worker.admin.recover()

        step = "whole life of a task alone in its group, claims of 10, completed one by one"
        return bench.measure(step, tasks, live)


# A claim can pass over the first number of stale tasks, but not over the second.
STALE: Final = (3_000, 20_000)
CLAIM: Final = 10


def behind_stale(client: DynamoDBClient, stale: int) -> dict[str, float]:
    """Return the tasks that a claim of 10, newest first, finds behind stale tasks, and its read units."""
    with new_bench(client) as bench:
        queue, now = bench.queue(), bench.clock.now
        bench.fill(CLAIM)
        (taken,) = queue.claim()  # reads the control record
        live = queue.get(queue.put(PAYLOAD).task_id) or taken.task
        # Put in the same second, each a microsecond after the last, and stale by now.
        moments = (round(now + 1 + number / 1e6, 6) for number in range(stale))
        newer = [replace(live, task_id=str(uuid.uuid4()), created=at, deadline=now + 2) for at in moments]
        load(client, bench.table, newer)
        bench.clock.now += 3
        found: list[int] = []
        cost = bench.measure("", 1, lambda: found.append(len(queue.claim(limit=CLAIM))))
    return {"stale": stale, "found": found[0], "read_units": cost.read_units}


def dead_letters(bench: Bench, tasks: int = 10) -> list[Cost]:
    """Measure how tasks become dead letters and return, and a listing of one page."""
    queue = bench.queue()
    bench.fill(tasks)
    claims = queue.claim(limit=tasks)
    ids = [claim.task.task_id for claim in claims]
    return bench.costs(
        ("fail: the task, and its entry among the dead letters", tasks, lambda: [*map(queue.fail, claims)]),
        ("list of 10 dead letters", tasks, lambda: queue.list("FAILURE", limit=tasks)),
        ("redrive of all dead letters", tasks, queue.redrive),
        ("cancel as a dead letter", tasks, lambda: [queue.cancel(each, dead=True) for each in ids]),
        (
            "redrive as new of a dead letter",
            tasks,
            lambda: [queue.redrive([each], as_new=True) for each in ids],
        ),
    )


LANGUAGES: Final = ("English", "French", "German", "Italian", "Spanish")
UNITS_AN_ACTION: Final = 2
UNIT_BYTES: Final = 1024


@dataclass(eq=False)
class MatchMeter(Meter):
    """The capacity that the calls of a client of a `MatchQueue` consumed.

    DynamoDB Local's figures for transactions are unreliable, so they are computed by the rule in DynamoDB's
    documentation: 2 units per action and started KB of the item. Every item here is smaller than 1 KB.

    Attributes:
        actions: Number of transaction actions.
        sent: Operation and arguments of every call.
    """

    actions: int = 0
    sent: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @override
    def ask(self, params: dict[str, Any], model: Any, **_rest: Any) -> dict[str, Any]:
        """Count a call, and have DynamoDB report its consumption."""
        self.calls[model.name] += 1
        self.sent.append((model.name, params))
        for action in params.get("TransactItems", []):
            ((_, arguments),) = action.items()
            if size_bytes(arguments.get("Item", {})) > UNIT_BYTES:
                msg = f"the figures assume items of at most {UNIT_BYTES} bytes; this one is larger"
                raise AssertionError(msg)
            self.actions += 1
            self.write_units += UNITS_AN_ACTION
        return params | {"ReturnConsumedCapacity": "TOTAL"}

    @override
    def count(self, parsed: dict[str, Any], model: Any, **_rest: Any) -> None:
        """Add the consumption of a call unless it is a transaction."""
        if model.name == "TransactWriteItems":
            return
        units = parsed.get("ConsumedCapacity", {}).get("CapacityUnits", 0.0)
        if model.name in READS:  # all strongly consistent
            self.read_units += max(units, LEAST_STRONG_READ_UNITS)
        else:
            self.write_units += units


def size_bytes(value: Any) -> int:
    """Return the approximate size of an item: its names and texts in UTF-8."""
    if isinstance(value, dict):
        return sum(len(name.encode()) + size_bytes(part) for name, part in value.items())
    return sum(map(size_bytes, value)) if isinstance(value, list) else len(str(value).encode())


@contextmanager
def match_metered(client: DynamoDBClient) -> Iterator[MatchMeter]:
    """Measure the calls of a client."""
    meter = MatchMeter()
    with ExitStack() as hooks:
        hooks.enter_context(hooked(client, "provide-client-params", meter.ask))
        hooks.enter_context(hooked(client, AFTER, meter.count))
        yield meter


def cycle(client: DynamoDBClient, languages: int) -> dict[str, MatchMeter]:
    """Return the cost of each step in the cycle of an agent with a number of languages."""
    queue = MatchQueue.dynamodb(f"agents-{uuid.uuid4().hex}", client)
    queue.create_table()
    meters: dict[str, MatchMeter] = {}
    wanted = {"language": "English", "gender": "F"}

    def step(name: str, action: Callable[[], T]) -> T:
        with match_metered(client) as meters[name]:
            return action()

    known = {"language": set(LANGUAGES[:languages]), "gender": "F"}
    step("register", lambda: queue.register("Ellen", attributes=known))
    step("offer", lambda: queue.offer("Ellen"))
    (match,) = step("match", lambda: queue.match(wanted))
    extended = step("extend", lambda: queue.extend(match))
    step("release", lambda: queue.release(extended))
    (again,) = queue.match(wanted)
    step("complete", lambda: queue.complete(again))
    step("match without a result, with recovery", lambda: queue.match(wanted))
    step("match without a result", lambda: queue.match(wanted))
    step("request: joins the line", lambda: queue.request(wanted, caller_id="caller"))
    step("request: asks again in vain", lambda: queue.request(wanted, caller_id="caller"))
    step("offer, matched to a waiting caller", lambda: queue.offer("Ellen"))
    held = queue.admin.held("Ellen", getattr(queue.get("Ellen"), "token", ""))
    step("complete after request", lambda: queue.complete(held))
    queue.offer("Ellen")
    step("request: takes a queued resource", lambda: queue.request(wanted, caller_id="caller"))
    return meters


def matching(client: DynamoDBClient) -> list[dict[str, Any]]:
    """Return the cost of each step, by the number of languages of an agent."""
    return [
        {"languages": languages, "step": step}
        | {"write_units": meter.write_units, "read_units": meter.read_units, "calls": meter.calls.total()}
        for languages in (1, 2, 3)
        for step, meter in cycle(client, languages).items()
    ]


# Seconds between tasks that each wake a pass of their own, as in benchmarks.invocations.
EVERY_SECONDS: Final = 4.0
SLOTS: Final = 25


def whole_life(
    client: DynamoDBClient, claim_size: int, rate_per_second: float = 100, tasks: int = 200
) -> Cost:
    """Measure puts, claims and joint completions, the close of the worker and the sweep after it.

    Args:
        client: Client of DynamoDB Local.
        claim_size: Tasks of a claim.
        rate_per_second: Throughput of the worker. The tasks of a period share the cost of work that the
            worker repeats once a period, such as reading the control record.
        tasks: Number of tasks.
    """
    with new_bench(client) as bench:

        def live() -> None:
            bench.fill(tasks)
            worker = bench.queue()
            while claims := worker.claim(limit=claim_size):
                bench.clock.now += len(claims) / rate_per_second
                worker.settle_many([Settlement.complete(claim, {"ok": True}) for claim in claims])
            worker.close()
            bench.clock.now += LEASE_SECONDS
            bench.queue().admin.recover()

        cost = bench.measure(f"whole life, claims of {claim_size}", tasks, live)
        assert bench.queue().stats().success == tasks
    return cost


def whole_lives(client: DynamoDBClient) -> list[Cost]:
    """Measure whole lives by size of claims, by throughput, and without batches of writes."""
    slow = whole_life(client, 10, rate_per_second=10)
    with patch.object(Batches, "serve", return_value=False):
        one_by_one = whole_life(client, 10)
    return [
        *(whole_life(client, size) for size in (25, 10, 5, 1)),
        replace(slow, step=f"{slow.step}, at 10 tasks a second"),
        replace(one_by_one, step=f"{one_by_one.step}, each write a call of its own"),
        alone(client),
    ]


def alone(client: DynamoDBClient, tasks: int = 20) -> Cost:
    """Measure tasks that arrive one every four seconds, so that each has its own pass of the worker function.

    The steps are the steps of Trigger and ProcessTasks, in their order: check whether a pass is running, take
    the pass slot, claim, poll until the pass has been idle long enough, and count the waiting tasks.
    """
    idle_seconds = PassOptions.model_fields["idle_exit_seconds"].default
    with new_bench(client) as bench:
        producer, worker = bench.queue(), bench.queue()
        passes = WorkerPasses(bench.table, worker.name, client, clock=bench.clock)

        def live() -> None:
            for number in range(tasks):
                producer.put(PAYLOAD)
                assert not passes.all_taken()
                with passes.slot(f"pass {number}") as entered:
                    assert entered
                    for claim in worker.claim(limit=SLOTS):
                        worker.complete(claim)
                    fetcher = Fetcher(core_of(worker), idle_seconds)
                    idle_until = bench.clock.now + idle_seconds
                    while bench.clock.now < idle_until:
                        fetcher.begin()
                        worker.claim(limit=SLOTS)
                        fetcher.found_few(0)
                        bench.clock.now = min(idle_until, bench.clock.now + fetcher.left_seconds)
                    core_of(worker).release()
                worker.stats(approximate=True)
                bench.clock.now += EVERY_SECONDS - idle_seconds

        cost = bench.measure(ALONE, tasks, live)
        assert worker.stats().success == tasks
    return cost


def shed_task(client: DynamoDBClient, max_age_seconds: float | None = None, tasks: int = 20) -> Cost:
    """Measure tasks that go stale before a worker claims.

    Args:
        client: Client of DynamoDB Local.
        max_age_seconds: Max age of the tasks; None for the queue's.
        tasks: Number of tasks.
    """
    with new_bench(client) as bench:

        def go_stale() -> None:
            bench.queue().put_many([{"payload": PAYLOAD, "max_age_seconds": max_age_seconds}] * tasks)
            bench.clock.now += (max_age_seconds or QUEUE_MAX_AGE_SECONDS) + 1
            assert bench.queue().claim(limit=10) == []

        whose = "the queue's max age" if max_age_seconds is None else "its own, shorter max age"
        return bench.measure(f"shed by {whose}, put included", tasks, go_stale)


class _Worker:
    """A worker whose steps are measured, claiming several tasks at a time."""

    def __init__(self, bench: Bench, tasks: int) -> None:
        self.bench = bench
        self.queue = bench.queue()
        self.tasks = tasks
        self.held: list[Claim] = []

    def claim(self) -> None:
        self.held = self.queue.claim(limit=self.tasks)
        assert len(self.held) == self.tasks

    def bounce(self) -> None:
        for claim in self.held:
            self.queue.release(claim)
        self.claim()

    def fail_and_wait(self) -> None:
        for claim in self.held:
            self.queue.retry(claim, error="busy", delay_seconds=5)
        self.bench.clock.now += 5
        self.queue.admin.recover()
        self.claim()

    def extend(self) -> None:
        self.held = [self.queue.extend(claim, lease_seconds=2 * LEASE_SECONDS) for claim in self.held]

    def complete(self) -> None:
        for claim in self.held:
            self.queue.complete(claim)


def steps(client: DynamoDBClient, tasks: int = 10) -> list[Cost]:
    """Measure single steps, claiming `tasks` at a time."""
    with new_bench(client) as bench:
        worker = _Worker(bench, tasks)
        worker.queue.claim()  # reads the control record
        costs = bench.costs(
            ("put, 10 in one call of `put_many`", tasks, lambda: bench.fill(tasks)),
            ("claim of 10, lease record included", tasks, worker.claim),
            ("release, one by one, and claim again", tasks, worker.bounce),
            ("retry, one by one, wait, promote and claim again", tasks, worker.fail_and_wait),
            ("extend", tasks, worker.extend),
            ("complete, one by one", tasks, worker.complete),
        )
        others = [*_single_calls(bench, worker.queue), _recovery(bench, worker)]
        return [*costs, *others, *dead_letters(bench)]


def _single_calls(bench: Bench, queue: Queue) -> list[Cost]:
    """Measure verbs of one task, and claims and sweeps that find nothing."""
    queue.put(PAYLOAD, task_id="a")
    return bench.costs(
        ("put of a taken id", 1, lambda: queue.put(PAYLOAD, task_id="a")),
        ("redrive as new of a waiting task", 1, lambda: queue.redrive(["a"], as_new=True)),
        ("cancel", 1, lambda: queue.cancel("a")),
        ("get", 1, lambda: queue.get("a")),
        ("claim from an empty queue", 1, queue.claim),
        ("sweep with nothing to do", 1, queue.admin.recover),
    )


def _recovery(bench: Bench, worker: _Worker) -> Cost:
    """Measure the sweep after the death of a worker."""
    bench.fill(worker.tasks)
    worker.claim()
    bench.clock.now += LEASE_SECONDS

    def sweep() -> None:
        assert bench.queue().admin.recover() == worker.tasks
        bench.clock.now += LATE_CLAIM_SECONDS + 1
        bench.queue().admin.recover()  # deletes the lease record of the dead worker

    return bench.measure("recover an orphan, 10 of one dead worker", worker.tasks, sweep)


def puts_over(client: DynamoDBClient) -> list[Cost]:
    """Measure puts of an id whose task is waiting, taken or finished."""
    with new_bench(client) as bench:
        queue = bench.queue()

        def put(payload: object, on_conflict: OnConflict) -> Receipt:
            return queue.put(payload, task_id="a", on_conflict=on_conflict)

        costs = bench.costs(
            ("put with `on_conflict`, the id free", 1, lambda: put(PAYLOAD, "update")),
            ("`ignore` of a live task", 1, lambda: put("new", "ignore")),
            ("`update` of a PENDING task", 1, lambda: put("new", "update")),
            ("`update` of a live task with equal work", 1, lambda: put("new", "update")),
        )
        queue.claim()
        costs.append(bench.measure("`update` of a TAKEN task", 1, lambda: put("newer", "update")))
        queue.complete(queue.claim()[0])
        over = bench.measure("put with `on_conflict`, its task over", 1, lambda: put(PAYLOAD, "ignore"))
        return [*costs, over]


def races(client: DynamoDBClient) -> list[Cost]:
    """Measure claims of one task, one of which loses the newest task to another claimer."""
    with new_bench(client) as bench:
        worker = bench.queue()
        bench.fill(1)
        worker.claim()
        bench.fill(4)
        rival = Queue.dynamodb(bench.table, client_at(client.meta.endpoint_url), clock=bench.clock)
        costs = [
            bench.measure("claim of 1", 1, worker.claim),
            bench.measure("claim of 1 whose lease record names the task already", 1, worker.claim),
        ]
        with meanwhile(client, "UpdateItem", rival.claim):
            raced = "claim of 1 that loses one race, both tasks named already"
            costs.append(bench.measure(raced, 1, worker.claim))
        return costs


def approximate_stats(client: DynamoDBClient, tasks: int) -> Cost:
    """Measure approximate stats with a backlog."""
    with new_bench(client) as bench:
        queue = bench.queue()
        first = queue.get(queue.put(PAYLOAD).task_id)
        assert first is not None
        load(client, bench.table, [replace(first, task_id=str(uuid.uuid4())) for _ in range(1, tasks)])
        step = f"approximate stats, {tasks:,} tasks waiting"
        return bench.measure(step, 1, lambda: queue.stats(approximate=True))


def all_costs(client: DynamoDBClient) -> list[Cost]:
    """Measure everything."""
    return [
        *whole_lives(client),
        shed_task(client),
        shed_task(client, max_age_seconds=60),
        *steps(client),
        *puts_over(client),
        *races(client),
        *groups(client),
        *(approximate_stats(client, tasks) for tasks in (200, 2000)),
    ]


def main() -> None:
    """Measure everything."""
    with DynamoDBLocal() as server:
        report = {"steps": [asdict(cost) for cost in all_costs(server.client())]}
        report["matching"] = matching(server.client())
        report["behind_stale"] = [behind_stale(server.client(), stale) for stale in STALE]
    figures.write("capacity", report)
