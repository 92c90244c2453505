"""A wrong argument is a ValueError that names the argument, and nothing was written."""

import json
import math
import re
from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Any

import pytest
from local.faults import counted, items
from types_boto3_dynamodb import DynamoDBClient

from freshq import Claim, Queue
from freshq.errors import TableMissing
from freshq.model.task import MAX_TRACESTATE_BYTES
from freshq.model.validation import MAX_PAYLOAD_BYTES, MAX_RESULT_AND_PAYLOAD_BYTES, result_and_text
from freshq.policy.retry import Backoff
from freshq.stores.memory import MemoryStore
from freshq.stores.sql import SqlStore
from tests.conftest import StoreUnderTest
from tests.support.readings import known, total
from tests.support.verbs import VERBS, prepared


class Unspeakable:
    """Not a JSON value."""


def nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


TRACEPARENT = f"00-{'1a' * 16}-{'2b' * 8}-01"
NOT_SECONDS: list[Any] = [-1, -0.001, math.nan, math.inf, 1e300, "5", True]
# Wrong values for each argument of put.
PUT: dict[str, list[Any]] = {
    "payload": [
        *("x" * MAX_PAYLOAD_BYTES, "é" * (MAX_PAYLOAD_BYTES // 2), math.nan, [math.inf], {1}, b"bytes"),
        *(Unspeakable(), {(1, 2): 3}, "\ud800", nested(101), nested(5000)),
    ],
    "task_id": ["", 5, b"a", True, "x" * 1025, "é" * 513, "freshq#lease#1", "\ud800", "a\0b"],
    "priority": [-1, 10, 1.0, 0.5, "1", True, False, None, math.nan],
    "delay_seconds": [*NOT_SECONDS, None, 101 * 365 * 86_400],
    "at": [datetime(2026, 1, 1), "noon", -1, 1e12, 2e11, True],  # noqa: DTZ001 - a time without a zone
    "max_age_seconds": [*NOT_SECONDS, 0, 3600.001],
    "group": ["", 5, "x" * 257, "\ud800", "a\0b"],
    "kind": ["", 7, "é" * 200, "\0"],
    "trace_context": [
        *("", 5, "00-1", "\ud800", TRACEPARENT[:-1], TRACEPARENT.upper()),
        TRACEPARENT.replace("1a1a", "zzzz"),
    ],
    "parent": ["root", 5, True, []],
}
BATCHES: list[tuple[Any, str]] = [
    (None, "tasks"),
    (5, "tasks"),
    ("ab", "tasks[0]"),
    ({"payload": 1}, "tasks[0]"),
    ([{"payload": 1}, None], "tasks[1]"),
    ([{"payload": 1}, {"payload": 2, "paylod": 3}], "tasks[1].paylod"),
    ([{"payload": 1}, {"payload": 2, 5: 3}], "tasks[1].5"),
    ([{"payload": 1}, {"payload": 2, "priority": 10}, {"payload": 3, "priority": 11}], "tasks[1].priority"),
    ([{"payload": 1, "task_id": "x"}, {"payload": math.nan}], "tasks[1].payload"),
    ([{"payload": 1, "priority": 8}, {"payload": 1, "max_age_seconds": 4000}], "tasks[1].max_age_seconds"),
    ([{"payload": 1}, {"payload": 1, "at": 2e11}], "tasks[1].at"),
]
NOT_CLAIMS: list[Any] = [None, "t0", 5, ()]
NOT_IDS: list[Any] = [None, "", 5, b"t0", "x" * 1025]


def debounced(arguments: dict[str, Any], queue: Queue, _claim: Claim, value: Any) -> object:
    return queue.put("work", debounce_max_seconds=value, **arguments)


NOT_COUNTS: list[Any] = [0, -1, 1.5, "1", True, None, math.nan]
# Verb, argument, call, wrong values.
CALLS: list[tuple[str, str, Callable[[Queue, Claim, Any], object], list[Any]]] = [
    ("put", "on_conflict", lambda queue, _, value: queue.put("work", on_conflict=value), ["replace", 5]),
    (
        "put_many",
        "on_conflict",
        lambda queue, _, value: queue.put_many([{"payload": 1}], on_conflict=value),
        ["replace", 5],
    ),
    ("put", "at", lambda queue, _, value: queue.put("work", at=value, delay_seconds=1), [2e9]),
    *(
        ("put", "debounce_max_seconds", partial(debounced, arguments), values)
        for arguments, values in (
            ({"delay_seconds": 1, "on_conflict": "update"}, [0, -1, "5", True, math.nan, math.inf, 0.5]),
            ({"on_conflict": "update"}, [5]),
            ({"at": 2e9, "on_conflict": "update"}, [5]),
            ({"delay_seconds": 1}, [5]),
            ({"delay_seconds": 1, "on_conflict": "ignore"}, [5]),
        )
    ),
    ("claim", "limit", lambda queue, _, value: queue.claim(value), [*NOT_COUNTS, 1001]),
    (
        "claim",
        "lease_seconds",
        lambda queue, _, value: queue.claim(1, lease_seconds=value),
        [*NOT_SECONDS, 0],
    ),
    ("complete", "claim", lambda queue, _, value: queue.complete(value), NOT_CLAIMS),
    (
        "complete",
        "result",
        lambda queue, claim, value: queue.complete(claim, result=value),
        [math.nan, {1}, Unspeakable(), "\ud800", nested(101), "x" * MAX_RESULT_AND_PAYLOAD_BYTES],
    ),
    ("fail", "claim", lambda queue, _, value: queue.fail(value), NOT_CLAIMS),
    ("fail", "error", lambda queue, claim, value: queue.fail(claim, error=value), [5, KeyError("x"), b"x"]),
    ("retry", "claim", lambda queue, _, value: queue.retry(value), NOT_CLAIMS),
    ("retry", "error", lambda queue, claim, value: queue.retry(claim, error=value), [5, KeyError("x"), b"x"]),
    (
        "retry",
        "delay_seconds",
        lambda queue, claim, value: queue.retry(claim, delay_seconds=value),
        NOT_SECONDS,
    ),
    ("release", "claim", lambda queue, _, value: queue.release(value), NOT_CLAIMS),
    ("extend", "claim", lambda queue, _, value: queue.extend(value, lease_seconds=5), NOT_CLAIMS),
    (
        "extend",
        "lease_seconds",
        lambda queue, claim, value: queue.extend(claim, lease_seconds=value),
        [*NOT_SECONDS, 0],
    ),
    ("get", "task_id", lambda queue, _, value: queue.get(value), NOT_IDS),
    ("wait", "task_id", lambda queue, _, value: queue.wait(value), NOT_IDS),
    ("wait", "timeout_seconds", lambda queue, _, value: queue.wait("t0", timeout_seconds=value), [-1]),
    ("wait", "poll_seconds", lambda queue, _, value: queue.wait("t0", poll_seconds=value), [0]),
    ("cancel", "error", lambda queue, _, value: queue.cancel("t0", dead=True, error=value), [3]),
    ("peek", "limit", lambda queue, _, value: queue.peek(value), [*NOT_COUNTS, 1001]),
    ("stats", "ids", lambda queue, _, value: queue.stats(ids=value), [0]),
    ("stats", "ids", lambda queue, _, value: queue.stats(ids=value, approximate=True), [2]),
    ("cancel", "task_id", lambda queue, _, value: queue.cancel(value), NOT_IDS),
    ("redrive", "task_ids[0]", lambda queue, _, value: queue.redrive([value], as_new=True), NOT_IDS),
    ("reprioritize", "task_id", lambda queue, _, value: queue.reprioritize(value, priority=1), NOT_IDS),
    (
        "reprioritize",
        "priority",
        lambda queue, _, value: queue.reprioritize("t0", priority=value),
        PUT["priority"],
    ),
    ("redrive", "task_ids[0]", lambda queue, _, value: queue.redrive([value]), NOT_IDS[1:]),
    ("redrive", "limit", lambda queue, _, value: queue.redrive(limit=value), NOT_COUNTS[:5]),
    (
        "redrive",
        "limit",
        lambda queue, _, value: queue.redrive(["dead"], limit=value),
        NOT_COUNTS[:5],
    ),
    ("list", "limit", lambda queue, _, value: queue.list(limit=value), NOT_COUNTS),
    ("list", "status", lambda queue, _, value: queue.list(status=value), ["DONE", "pending", "", 5]),
    ("list", "cursor", lambda queue, _, value: queue.list(cursor=value), NOT_IDS[1:]),
    (
        "list of dead letters",
        "cursor",
        lambda queue, _, value: queue.list("FAILURE", limit=2, cursor=value),
        ["a", "", "1/", "/a", "x/a", "-1/a", "1.5/a", 3],
    ),
    ("purge", "confirm", lambda queue, _, value: queue.purge(confirm=value), ["", "other", None, True]),
]
OPTIONS: dict[str, list[Any]] = {
    "name": ["", "a b", "a#b", "a\n", "x" * 65, 5, None],
    "order": ["newest", "", 5, None],
    "max_age_seconds": [*(each for each in NOT_SECONDS if each != math.inf), 0],
    "max_attempts": [value for value in NOT_COUNTS if value is not None],
    "lease_seconds": [*NOT_SECONDS, 0, None],
    "retention_seconds": [*NOT_SECONDS, None],
    "backoff": [5, None, "a", {"base": 1}],
    "backoff.base_seconds": [Backoff(base_seconds=value) for value in [*NOT_SECONDS, 0, None]],
    "backoff.cap_seconds": [Backoff(cap_seconds=value) for value in [*NOT_SECONDS, 0, None]],
    "clock": [5, None],
    "rng": [5, None],
    "lease": [60],
}


def contents(store: StoreUnderTest) -> object:
    """Return everything in the store, its own items included."""
    if store.client is not None:
        return items(store.client, str(store.table))
    kept = store.make_store(1)
    if isinstance(kept, SqlStore):
        return list(kept.scan("default"))
    assert isinstance(kept, MemoryStore)
    return dict(kept._tasks)


def refusal(call: Callable[..., object], *arguments: Any, **options: Any) -> str:
    with pytest.raises(ValueError, match=r"(?s).") as caught:
        call(*arguments, **options)
    return str(caught.value)


@pytest.mark.parametrize("argument", PUT)
def test_put(store: StoreUnderTest, argument: str) -> None:
    queue = store.queue()
    arguments: dict[str, Any] = {"payload": "work", "task_id": "new"}
    before = contents(store)
    for value in PUT[argument]:
        wrong = arguments | {argument: value}
        for message in (refusal(queue.put, **wrong), refusal(queue.admin.check, wrong)):
            assert message.startswith(f"{argument}: ")
            assert len(message) < 250
        assert refusal(queue.put_many, [arguments, wrong]).startswith(f"tasks[1].{argument}: ")
    assert contents(store) == before


def test_put_many_writes_all_or_nothing(store: StoreUnderTest) -> None:
    queue = store.queue()
    before = contents(store)
    for tasks, where in BATCHES:
        assert re.match(rf"{re.escape(where)}: .", refusal(queue.put_many, tasks))
    assert contents(store) == before
    assert queue.put_many([]) == []


def test_the_error_for_an_unknown_field_lists_the_known_ones(queue: Queue) -> None:
    assert refusal(queue.put_many, [{"paylod": 1}]) == (
        "tasks[0].paylod: unknown field; use one of payload, task_id, priority, delay_seconds, "
        "max_age_seconds, group, kind, value, decay, at, trace_context, parent, on_conflict, "
        "debounce_max_seconds, cost"
    )


def test_every_other_verb(store: StoreUnderTest) -> None:
    queue = store.queue()
    claim = prepared(queue)
    before = contents(store)
    for verb, argument, call, values in CALLS:
        for value in values:
            message = refusal(call, queue, claim, value)
            assert message.startswith(f"{argument}: "), (verb, value)
            assert len(message) < 300
    assert contents(store) == before


@pytest.mark.parametrize("option", OPTIONS)
def test_options(option: str) -> None:
    for value in OPTIONS[option]:
        options = {option.partition(".")[0]: value}
        assert refusal(Queue.memory, **options).startswith(f"{option}: ")


def test_options_of_a_table(default_client: DynamoDBClient) -> None:
    tables: list[Any] = ["", "ab", "with space", "x" * 256, None, 5, b"Tasks"]
    for table in tables:
        assert refusal(Queue.dynamodb, table, default_client).startswith("table: ")
    counts: list[Any] = [0, -1, 65, True, 1.0, "2"]
    for shards in counts:
        assert refusal(Queue.dynamodb, "Tasks", default_client, shards=shards).startswith("shards: ")
    Queue.dynamodb("arn:aws:dynamodb:eu-west-1:123456789012:table/Tasks", default_client)


def test_the_largest_of_everything_fits(table_store: StoreUnderTest) -> None:
    """On DynamoDB Local: the limits of moto differ."""
    queue = table_store.queue()
    payload = "x" * (MAX_PAYLOAD_BYTES - 2)
    context = f"00-{'1' * 32}-{'2' * 16}-01 {'t' * MAX_TRACESTATE_BYTES}"
    parent = {"task_id": "p" * 1024, "root_id": "r" * 1024}
    largest: Any = {"kind": "k" * 256, "trace_context": context, "parent": parent}
    queue.put(payload, task_id="é" * 512, group="g" * 256, priority=9, delay_seconds=0.001, **largest)
    queue.put(nested(100), task_id="deep")
    assert known(queue, "deep").payload == nested(100)
    queue.cancel("deep")
    table_store.clock.advance(0.001)
    (claim,) = queue.claim(lease_seconds=3e9)
    queue.retry(claim, error="é" * 1000, delay_seconds=0)
    (claim,) = queue.claim()
    claim = queue.extend(claim, lease_seconds=3e9, progress=0.333333, step="\N{GRINNING FACE}" * 300)
    queue.fail(claim, error="\N{GRINNING FACE}" * 1000)
    queue.redrive()
    (claim,) = queue.claim()
    claim = queue.extend(claim, lease_seconds=3e9, progress=0.333333, step="\N{GRINNING FACE}" * 300)
    result = "r" * (MAX_RESULT_AND_PAYLOAD_BYTES - MAX_PAYLOAD_BYTES - 2)
    assert result_and_text(result, payload)[0] == result
    queue.complete(claim, result=result)
    done = known(queue, "é" * 512)
    assert (done.payload, done.result, done.trace_context) == (payload, result, context)
    assert (done.parent_id, done.root_id) == ("p" * 1024, "r" * 1024)


def test_an_error_text_with_a_lone_surrogate_can_be_stored(queue: Queue) -> None:
    queue.put("work", task_id="a")
    (claim,) = queue.claim()
    queue.fail(claim, error="file \udcff not found")
    error = known(queue, "a").error
    assert error == "file ? not found"
    json.dumps(error).encode()


class TestMissingTable:
    @pytest.fixture
    def queue(self, client: DynamoDBClient) -> Queue:
        return Queue.dynamodb("NoSuchTable", client)

    def test_every_verb_names_it(self, queue: Queue) -> None:
        claimed = Queue.memory()
        claim = prepared(claimed)
        for verb in VERBS.values():
            with pytest.raises(TableMissing, match=r"'NoSuchTable'.*create_table\(\)"):
                verb(queue, claim)

    def test_it_can_be_made(self, client: DynamoDBClient, table: StoreUnderTest) -> None:
        name = f"{table.table}-new"
        queue = Queue.dynamodb(name, client)
        with pytest.raises(TableMissing):
            queue.claim()
        queue.create_table()
        queue.create_table()
        queue.put("work")
        assert total(queue) == len(queue.claim()) == 1


def test_a_wrong_argument_makes_no_call(table: StoreUnderTest, client: DynamoDBClient) -> None:
    queue = table.queue()
    claim = prepared(queue)
    with counted(client) as sent:
        for _verb, _argument, call, values in CALLS:
            for value in values:
                refusal(call, queue, claim, value)
    assert sent.operations == []
