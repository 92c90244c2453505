"""Every store answers as memory does: random programs of verbs, run on both, step by step.

Stores may differ in what is left out of the comparison: tokens and versions, how a listing orders its tasks
and where its pages end, which of several tasks created in the same microsecond comes first, which of several
equally served groups comes first, and when a claim deletes what is past its retention. So the tasks of a
program have one group, no two are created together, and no program comes near a retention. An index of
DynamoDB may lag; the index of DynamoDB Local does not.
"""

import dataclasses
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from freshq import Claim, FreshqError, Queue, Settlement, Task
from freshq.queue.core import core_of
from freshq.stores.memory import MemoryStore
from tests.conftest import DATABASES, Clock, StoreUnderTest

# Steps of a program on SQLite, and on a store with a server, which is slower.
STEPS: Final = 15
SERVER_STEPS: Final = 9
# Programs on each store: with --all, and without.
PROGRAMS: Final = 2_000
FEW_PROGRAMS: Final = 40
LEASE_SECONDS: Final = 10.0
MAX_AGE_SECONDS: Final = 60.0
# Fields that name a write, and so differ.
NAMES_OF_WRITES: Final = ("request_token", "lease_token", "version", "successor_record")
# Each step moves the clock by this, so that no two tasks are due or created together.
TICK_SECONDS: Final = 0.001
numbers: Final = itertools.count()

ids: Final = st.sampled_from("abcdef")
delays: Final = st.sampled_from([0, 0, 0, 3, 20, 70])
texts: Final = st.sampled_from([None, "", "late", "nul \0", "lone \ud800", "x" * 3000])
values: Final[st.SearchStrategy[Any]] = st.sampled_from(
    [None, 0, 1.5, "nul \0", {"a": [True, None]}, [], "ü"]
)
conflicts: Final = st.sampled_from([None, "ignore", "update", "after", "after"])
messages: Final = st.fixed_dictionaries(
    {"payload": values, "task_id": ids},
    optional={
        "priority": st.integers(0, 2),
        "delay_seconds": delays,
        "max_age_seconds": st.sampled_from([2, 30]),
        "kind": st.just("mail"),
    },
)
# The place of a claim among those of the program so far, modulo their number.
places: Final = st.integers(0, 5)
ends: Final = st.one_of(
    st.tuples(st.just("complete"), st.fixed_dictionaries({"result": values})),
    st.tuples(st.just("fail"), st.fixed_dictionaries({"error": texts})),
    st.tuples(st.just("retry"), st.fixed_dictionaries({"error": texts, "delay_seconds": delays})),
    st.tuples(st.just("release"), st.fixed_dictionaries({"delay_seconds": delays})),
)
waits: Final = st.tuples(st.just("wait"), st.sampled_from([0.5, 3.0, 3.0, 10.0, 11.0, 30.0, 61.0]))
puts: Final = st.tuples(st.just("put"), messages, conflicts)
claims: Final = st.tuples(st.just("claim"), st.integers(1, 3), st.sampled_from([None, 2.0]))
recoveries: Final = st.just(("recover",))
steps: Final = st.one_of(
    # Puts, claims and settlements are drawn more often than other verbs.
    *(puts, claims, waits, recoveries, puts, claims, waits, recoveries),
    st.tuples(st.just("put_many"), st.lists(messages, min_size=1, max_size=4), conflicts),
    st.tuples(st.just("settle"), places, ends),
    st.tuples(st.just("settle_many"), st.lists(st.tuples(places, ends), min_size=1, max_size=3)),
    st.tuples(
        st.just("extend"), places, st.sampled_from([1.0, 30.0]), st.sampled_from([None, (0.5, "nul \0")])
    ),
    st.tuples(st.just("cancel"), ids, st.booleans(), st.booleans(), texts),
    st.tuples(st.just("redrive"), st.none() | st.lists(ids, min_size=1, max_size=2), st.booleans()),
    st.tuples(st.just("redrive by force"), ids),
    st.tuples(st.just("reprioritize"), ids, st.integers(0, 2)),
    st.tuples(st.just("purge"), st.sampled_from(["all", "FAILURE", "ids"]), st.lists(ids, min_size=1)),
    st.tuples(st.just("list"), st.sampled_from([None, "PENDING", "TAKEN", "FAILURE", "SHED", "SUCCESS"])),
    st.tuples(st.sampled_from(["pause", "resume", "resume", "stats", "peek", "paused"])),
    st.tuples(st.just("get"), ids),
)
Program = Sequence[tuple[Any, ...]]


class Half(random.Random):
    """Draws no lots."""

    def random(self) -> float:
        return 0.5


def seen(value: Any) -> Any:
    """Return an answer without the fields that may differ."""
    if isinstance(value, FreshqError | ValueError):
        return f"{type(value).__name__}: {value}"
    if isinstance(value, Claim):
        return ("claim", seen(value.task), round(value.lease_until, 6))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [each.name for each in dataclasses.fields(value) if each.name not in NAMES_OF_WRITES]
        successor = {"successor": seen(value.successor)} if isinstance(value, Task) else {}
        return {name: seen(getattr(value, name)) for name in names} | successor
    if isinstance(value, Mapping):
        return {key: seen(each) for key, each in sorted(value.items())}
    if isinstance(value, float):
        return round(value, 6)
    return [seen(each) for each in value] if isinstance(value, list | tuple) else value


@dataclass
class Run:
    """A program on one store.

    Attributes:
        store: The store.
        prefix: Begins each id of a task: in DynamoDB, the queues of a table share its ids.
        order: The order of the queue.
        group: The group of every task.
    """

    store: StoreUnderTest
    prefix: str
    order: str
    group: str | None
    claims: list[Claim] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = Clock()
        self.queue: Queue = self.store.queue(
            worker_name="worker",
            name=self.prefix,
            order=self.order,
            clock=self.clock,
            rng=Half(),
            max_age_seconds=MAX_AGE_SECONDS,
            max_attempts=3,
            lease_seconds=LEASE_SECONDS,
        )

    def step(self, verb: str, *arguments: Any) -> str:
        """Return the answer of one step as text."""
        self.clock.advance(TICK_SECONDS)
        try:
            answer = getattr(self, f"_{verb.replace(' ', '_')}")(*arguments)
        except (FreshqError, ValueError) as error:
            answer = error
        return repr(seen(answer)).replace(self.prefix, "")

    def state(self) -> str:
        """Return every task as it is stored."""
        tasks = core_of(self.queue).store.scan(self.prefix)
        return repr(seen(sorted(tasks, key=lambda task: task.task_id))).replace(self.prefix, "")

    def close(self) -> None:
        """Leave nothing in the table."""
        self.queue.purge(confirm=self.prefix)
        self.queue.close()

    def _named(self, message: dict[str, Any]) -> dict[str, Any]:
        return message | {"task_id": self.prefix + message["task_id"], "group": self.group}

    def _put(self, message: dict[str, Any], on_conflict: Any) -> Any:
        named = self._named(message)
        return self.queue.put(named.pop("payload"), on_conflict=on_conflict, **named)

    def _put_many(self, tasks: list[dict[str, Any]], on_conflict: Any) -> Any:
        apart = [
            self._named(task)
            | ({"delay_seconds": task["delay_seconds"] + place / 1e4} if task.get("delay_seconds") else {})
            for place, task in enumerate(tasks)
        ]
        return self.queue.put_many(apart, on_conflict=on_conflict)

    def _claim(self, limit: int, lease_seconds: float | None) -> Any:
        found = self.queue.claim(limit, lease_seconds=lease_seconds)
        self.claims += found
        return found

    def _held(self, place: int) -> Claim | None:
        return self.claims[place % len(self.claims)] if self.claims else None

    def _settle(self, place: int, end: tuple[str, dict[str, Any]]) -> Any:
        claim = self._held(place)
        return claim and getattr(self.queue, end[0])(claim, **end[1])

    def _settle_many(self, settled: list[tuple[int, tuple[str, dict[str, Any]]]]) -> Any:
        by_claim = {id(claim): (claim, end) for place, end in settled if (claim := self._held(place))}
        return self.queue.settle_many(
            [getattr(Settlement, verb)(claim, **arguments) for claim, (verb, arguments) in by_claim.values()]
        )

    def _extend(self, place: int, lease_seconds: float, report: tuple[float, str] | None) -> Any:
        claim = self._held(place)
        progress, step = report or (None, None)
        return claim and self.queue.extend(claim, lease_seconds=lease_seconds, progress=progress, step=step)

    def _cancel(self, task_id: str, force: bool, dead: bool, error: str | None) -> Any:
        return self.queue.cancel(self.prefix + task_id, force=force, dead=dead, error=error if dead else None)

    def _redrive(self, task_ids: list[str] | None, as_new: bool) -> Any:
        named = None if task_ids is None else [self.prefix + task_id for task_id in task_ids]
        return self.queue.redrive(named, as_new=as_new)

    def _redrive_by_force(self, task_id: str) -> Any:
        return self.queue.redrive([self.prefix + task_id], as_new=True, force=True)

    def _reprioritize(self, task_id: str, priority: int) -> Any:
        return self.queue.reprioritize(self.prefix + task_id, priority=priority)

    def _purge(self, what: str, task_ids: list[str]) -> Any:
        if what == "all":
            return self.queue.purge(confirm=self.prefix)
        named = [self.prefix + task_id for task_id in task_ids] if what == "ids" else None
        return self.queue.purge(status="FAILURE", task_ids=named, confirm=self.prefix)

    def _list(self, status: str | None) -> Any:
        found: list[Task] = []
        cursor = None
        while True:
            page = self.queue.list(status, limit=4, cursor=cursor)
            found += page.tasks
            cursor = page.cursor
            if cursor is None:
                return sorted(found, key=lambda task: task.task_id)

    def _get(self, task_id: str) -> Any:
        return self.queue.get(self.prefix + task_id)

    def _wait(self, seconds: float) -> Any:
        self.clock.advance(seconds)

    def _recover(self) -> Any:
        return self.queue.admin.recover()

    def _stats(self) -> Any:
        # Only PostgreSQL counts dead rows.
        return replace(self.queue.stats(), dead_rows=None, oldest_snapshot_seconds=None)

    def _peek(self) -> Any:
        return self.queue.peek(10)

    def _pause(self) -> Any:
        self.queue.pause()

    def _resume(self) -> Any:
        self.queue.resume()

    def _paused(self) -> Any:
        return self.queue.paused()


def same(found: str, expected: str, where: str) -> None:
    """Fail with the first difference of two answers: a whole diff would slow down shrinking."""
    if found != expected:
        first = next((i for i, pair in enumerate(zip(found, expected, strict=False)) if len({*pair}) > 1), 0)
        parts = (text[max(0, first - 60) : first + 60] for text in (expected, found))
        pytest.fail(f"{where}: memory says ...{next(parts)}..., the store ...{next(parts)}...")


def check(store: StoreUnderTest, program: Program, order: str = "lifo", group: str | None = None) -> None:
    """Check that a store answers each step of a program as memory does."""
    memory = MemoryStore()
    prefix = f"q{next(numbers):06}-"
    runs = [
        Run(each, prefix, order, group) for each in (StoreUnderTest("memory", lambda _shards: memory), store)
    ]
    try:
        for number, step in enumerate(program):
            expected, found = (run.step(*step) for run in runs)
            same(found, expected, f"step {number}, {step}")
        expected, found = (run.state() for run in runs)
        same(found, expected, "the tasks at the end")
    finally:
        for run in runs:
            run.close()


PUT: Final = ("put", {"payload": 1, "task_id": "a"}, None)
SHORT: Final = ("put", {"payload": 1, "task_id": "a", "max_age_seconds": 2}, None)
AFTER: Final = ("put", {"payload": 2, "task_id": "a"}, "after")
NAMED: Final[dict[str, Program]] = {
    # DynamoDB shed the task for a reason and at a time that the other stores do not give.
    "a stale task that a claim passed over": [
        *(SHORT, ("wait", 3.0), ("claim", 1, None), ("recover",), ("get", "a"), ("list", "SHED"), ("stats",)),
        *(("list", "PENDING"), ("reprioritize", "a", 1), ("redrive", ["a"], True), ("get", "a"), PUT),
        ("claim", 1, None),
    ],
    # The SQL stores replaced the character, the other stores kept it.
    "an error with NUL": [
        *(PUT, ("claim", 1, None), ("settle", 0, ("retry", {"error": "nul \0", "delay_seconds": 0}))),
        *(("get", "a"), ("claim", 1, None), ("settle", 1, ("fail", {"error": "\0"})), ("get", "a")),
        *(PUT, ("get", "a"), ("redrive", ["a"], False), ("cancel", "a", False, True, "\0\0"), ("get", "a")),
    ],
    "puts behind a run": [
        *(PUT, ("claim", 1, None), AFTER, AFTER, ("get", "a"), ("stats",), ("extend", 0, 30.0, None)),
        *(("put", {"payload": "\0", "task_id": "a", "delay_seconds": 3}, "after"), ("list", None)),
        *(("cancel", "a", False, False, "x"), ("settle", 0, ("release", {"delay_seconds": 3})), ("get", "a")),
        *(("wait", 3.0), ("recover",), ("claim", 1, None), AFTER, ("wait", 11.0), ("recover",), ("get", "a")),
        *(("claim", 1, None), AFTER, ("cancel", "a", True, True, "by hand"), ("get", "a"), ("stats",)),
        *(
            AFTER,
            ("claim", 1, None),
            AFTER,
            ("redrive by force", "a"),
            ("get", "a"),
            ("claim", 1, None),
            AFTER,
        ),
        *(
            ("settle_many", [(3, ("fail", {"error": "\0"}))]),
            ("get", "a"),
            ("purge", "all", ["a"]),
            ("stats",),
        ),
    ],
    "stale while it was held or delayed": [
        *(PUT, ("put", {"payload": "\0", "task_id": "b", "delay_seconds": 3}, None), ("claim", 1, None)),
        *(("wait", 61.0), ("recover",), ("get", "a"), ("list", "SHED"), ("stats",), ("claim", 2, None)),
        *(("wait", 3.0), ("recover",), ("get", "b"), ("list", None), ("stats",)),
        *(("settle", 0, ("retry", {"error": "late", "delay_seconds": 3})), ("put_many", [PUT[1]], "update")),
    ],
}


@pytest.mark.usefixtures("read_once")
@pytest.mark.parametrize("name", NAMED)
def test_programs_that_answered_differently(store: StoreUnderTest, name: str) -> None:
    check(store, NAMED[name])


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("read_once")
@pytest.mark.parametrize("store", [*DATABASES, "dynamodb_local"], indirect=True)
def test_random_programs(store: StoreUnderTest, request: pytest.FixtureRequest) -> None:
    every = bool(request.config.getoption("all"))
    programs = st.lists(steps, min_size=1, max_size=STEPS if store.kind == "sqlite" else SERVER_STEPS)
    program_settings = settings(
        max_examples=PROGRAMS if every else FEW_PROGRAMS,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )

    @program_settings
    @given(programs, st.sampled_from(["lifo", "fifo"]), st.sampled_from([None, "g"]))
    def run(program: Program, order: str, group: str | None) -> None:
        check(store, program, order, group)

    run()
