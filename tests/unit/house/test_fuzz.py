"""Handlers and parsers under random inputs.

Only documented errors come out, each one bounded line without a payload, and nothing is written on refusal.
`make test` tries a few inputs, the same each time. `make soak` sets FRESHQ_FUZZ_EXAMPLES, the number of
inputs in all, which are drawn anew each time.
"""

import copy
import json
import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from http import HTTPStatus
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Never, cast
from unittest.mock import Mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from local import faults
from typer.testing import CliRunner
from types_boto3_dynamodb import DynamoDBClient

from freshq import FreshqError, Queue, StoreError
from freshq.addresses import Address, open_queue
from freshq.aws import producer
from freshq.aws.archive import Archive, ArchiveSettings
from freshq.aws.environment import EnvironmentSettings, QueueSettings
from freshq.aws.landing import landed_event
from freshq.aws.wakeup import DoorbellSettings, KillSwitch, WakeUp, parse_ring
from freshq.aws.worker_pass import WorkerSettings
from freshq.cli.command import parsed
from freshq.cli.commands.simulate import parse_groups, parse_level, parse_shares
from freshq.cli.errors import ExitStatus
from freshq.cli.main import app
from freshq.cli.output import span
from freshq.feeds import Cron, Every
from freshq.feeds.schedules import Schedule
from freshq.matching.places import parse_attributes, places_of
from freshq.matching.resource import parse_criteria
from freshq.model.checks import checked_count, checked_id, checked_priority, checked_seconds, checked_status
from freshq.model.new_task import parse_new_task
from freshq.model.options import parse_options
from freshq.model.pass_options import PassOptions
from freshq.policy.rules import ReserveRule
from freshq.queue.base import BaseQueue
from freshq.queue.core import core_of
from freshq.stores.dynamodb.table import read_description
from freshq.worker.report import RunReport
from tests.support.functions import EVENTS, PROJECT, Context, load_event, load_function

IN_ALL: Final = int(os.environ.get("FRESHQ_FUZZ_EXAMPLES", "0"))
# Properties of this file, which share the inputs.
PROPERTIES: Final = 22
EXAMPLES: Final = -(-IN_ALL // PROPERTIES) if IN_ALL else 25
LONGEST_ERROR_CHARS: Final = 700
SECRET: Final = "payload-4111"

fuzz = settings(
    max_examples=EXAMPLES,
    derandomize=not IN_ALL,
    database=None,
    deadline=None,
    # The fixtures are for the whole test: each input finds an empty queue.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
pytestmark = [
    pytest.mark.timeout(300 + IN_ALL / 10),
    pytest.mark.filterwarnings("ignore:No application metrics to publish"),
]

LONG: Final = "x" * 5_000
texts = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        ["", " ", "0", "-1", "1e999", "nan", "inf", "true", "null", "\0", "\ud800", "\u0661", LONG]
    ),
)
numbers = st.one_of(
    st.integers(),
    st.sampled_from([0, -1, 2**31, 2**63, 2**64, 10**400, True]),
    st.floats(),
)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=8,
)


def paths_of(value: Any) -> list[tuple[Any, ...]]:
    """Return the path of each part of a JSON value."""
    if isinstance(value, dict):
        parts: list[tuple[Any, Any]] = list(value.items())
    else:
        parts = list(enumerate(value)) if isinstance(value, list) else []
    return [(), *((key, *path) for key, inner in parts for path in paths_of(inner))]


@st.composite
def spoilt(draw: st.DrawFn, originals: Sequence[Any]) -> Any:
    """Draw a valid value with some parts replaced, renamed or left out."""
    value = copy.deepcopy(draw(st.sampled_from(originals)))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(paths_of(value)))
        if not path:
            return draw(json_values)
        whole = value
        for key in path[:-1]:
            whole = whole[key]
        if draw(st.booleans()):
            whole[path[-1]] = draw(json_values)
        elif isinstance(whole, dict):
            gone = whole.pop(path[-1])
            if draw(st.booleans()):
                whole[draw(texts)] = gone
        else:
            del whole[path[-1]]
    return value


def events_of(function: str) -> list[Any]:
    """Return the example events of a function, with a payload that no error may have."""
    events = [load_event(file.stem) for file in sorted(EVENTS.glob(f"{function}-*.json"))]
    return [json.loads(json.dumps(event).replace("4111", SECRET)) for event in events]


def refused(call: Callable[[], object], *errors: type[Exception]) -> bool:
    """Return whether a call was refused correctly: by one bounded line without a payload."""
    allowed: tuple[type[Exception], ...] = (ValueError, *errors)
    try:
        call()
    except allowed as refusal:
        error = refusal
    else:
        return False
    text = str(error)
    assert 0 < len(text) <= LONGEST_ERROR_CHARS, text[:LONGEST_ERROR_CHARS]
    assert "\n" not in text
    assert SECRET not in text
    assert not isinstance(error, UnicodeError)
    return True


class Doorbell:
    """SNS and SSM, which the handlers ring and read."""

    def __init__(self) -> None:
        self.rings = 0

    def publish(self, **_: Any) -> None:
        self.rings += 1

    def get_parameter(self, **_: Any) -> dict[str, Any]:
        return {"Parameter": {"Value": "run"}}


class Passes:
    """Pass slots, all free."""

    def all_taken(self, _slots: int) -> bool:
        return False

    def slot(self, _holder: str, _slots: int) -> Any:
        return partial_context()


class partial_context:  # noqa: N801 - a context manager
    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        pass


@pytest.fixture
def doorbell() -> Doorbell:
    return Doorbell()


@pytest.fixture
def handlers(doorbell: Doorbell, monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """Return the functions on a queue in memory."""
    queue = Queue.memory()
    client: Any = doorbell
    options: Any = Mock(current=PassOptions)
    switch = KillSwitch(client, "switch")
    wakeup = WakeUp("arn:aws:sns:topic", lambda: client, switch, cast("Any", Passes()), options)
    for name in ("FRESHQ_TABLE", "FRESHQ_KILL_SWITCH_PARAMETER", "FRESHQ_DELIVERY_STREAM"):
        monkeypatch.setenv(name, "QueueTable")
    for name in ("FRESHQ_TRIGGER_TOPIC_ARN", "FRESHQ_PROCESS_TASKS_TOPIC_ARN"):
        monkeypatch.setenv(name, "arn:aws:sns:topic")
    monkeypatch.setattr(QueueSettings, "queue", lambda *_: queue)
    monkeypatch.setattr(QueueSettings, "pass_options", lambda *_: options)
    monkeypatch.setattr(WakeUp, "connect", lambda *_: wakeup)
    functions = {
        name: load_function(name)
        for name in ("create_tasks", "trigger", "process_tasks", "archive", "http_api")
    }
    without_pause = partial(producer.produce, sleep=lambda _seconds: None)
    monkeypatch.setattr(functions["create_tasks"], "produce", without_pause)
    monkeypatch.setattr(functions["process_tasks"], "work", lambda _connections, _seconds: RunReport())
    monkeypatch.setattr(functions["archive"], "_archive", lambda: Archive(cast("Any", Delivery()), "Archive"))
    return functions


class Delivery:
    """A Firehose that accepts lines of JSON."""

    def put_record_batch(self, *, Records: list[dict[str, Any]], **_: Any) -> dict[str, Any]:
        for record in Records:
            assert SECRET.encode() not in record["Data"]
            for line in record["Data"].splitlines():
                json.loads(line, parse_constant=not_json)
        return {"RequestResponses": [{"RecordId": "1"}] * len(Records)}


def not_json(constant: str) -> Never:
    pytest.fail(f"{constant} is not JSON")


class ShortOfTime(Context):
    """A context whose time ends after a few looks."""

    def get_remaining_time_in_millis(self) -> int:
        self.remaining_seconds -= 40
        return int(self.remaining_seconds * 1000)


class TestHandlers:
    @fuzz
    @given(spoilt(events_of("create_tasks")))
    def test_create_tasks(self, handlers: dict[str, ModuleType], event: Any) -> None:
        store = core_of(handlers["create_tasks"]._connections()[0]).store
        before = {task.task_id for task in store.scan("default")}
        call = partial(handlers["create_tasks"].handler, event, ShortOfTime())
        if refused(call, StoreError):
            assert {task.task_id for task in store.scan("default")} == before
        store.purge("default")

    @fuzz
    @given(spoilt(events_of("trigger")))
    def test_trigger(self, handlers: dict[str, ModuleType], doorbell: Doorbell, event: Any) -> None:
        rings = doorbell.rings
        if refused(lambda: handlers["trigger"].handler(event, Context())):
            assert doorbell.rings == rings

    @fuzz
    @given(spoilt(events_of("process_tasks")))
    def test_process_tasks(self, handlers: dict[str, ModuleType], event: Any) -> None:
        refused(lambda: handlers["process_tasks"].handler(event, Context()))

    @fuzz
    @given(spoilt(events_of("archive")))
    def test_archive(self, handlers: dict[str, ModuleType], event: Any) -> None:
        def handle() -> None:
            answer = handlers["archive"].handler(event, Context())
            assert all(isinstance(each["itemIdentifier"], str) for each in answer["batchItemFailures"])

        refused(handle)

    @fuzz
    @given(spoilt(events_of("http_api")))
    def test_http_api(self, handlers: dict[str, ModuleType], event: Any) -> None:
        def handle() -> None:
            answer = handlers["http_api"].handler(event, ShortOfTime())
            assert answer["statusCode"] < HTTPStatus.INTERNAL_SERVER_ERROR
            assert isinstance(json.loads(answer["body"] or "{}"), dict)

        refused(handle)


class TestOfTheFunctions:
    @fuzz
    @given(st.one_of(texts, spoilt([{"hop": 1, "reason": "tail_call", "chain": "c"}]).map(json.dumps)))
    def test_rings(self, message: str) -> None:
        refused(lambda: parse_ring(message))

    @fuzz
    @given(spoilt([record for event in events_of("archive") for record in event["Records"]]))
    def test_landed_events(self, record: Any) -> None:
        def land() -> None:
            event = landed_event(record)
            json.dumps(event, allow_nan=False)

        if isinstance(record, dict):
            refused(land)

    @fuzz
    @given(st.sampled_from([QueueSettings, DoorbellSettings, WorkerSettings, ArchiveSettings]), st.data())
    def test_settings(
        self, default_client: DynamoDBClient, kind: type[EnvironmentSettings], data: st.DataObject
    ) -> None:
        given_values = {
            "FRESHQ_TABLE": "QueueTable",
            "FRESHQ_KILL_SWITCH_PARAMETER": "/freshq/switch",
            "FRESHQ_DELIVERY_STREAM": "Archive",
            "FRESHQ_TRIGGER_TOPIC_ARN": "arn:aws:sns:topic",
            "FRESHQ_PROCESS_TASKS_TOPIC_ARN": "arn:aws:sns:topic",
        }
        of_environment = texts.filter(lambda text: "\0" not in text and "\ud800" not in text)
        names = st.sampled_from([f"FRESHQ_{field.upper()}" for field in kind.model_fields])
        changed = data.draw(st.dictionaries(names, st.one_of(of_environment, numbers.map(str)), max_size=3))
        with pytest.MonkeyPatch.context() as patch:
            for name, value in (given_values | changed).items():
                patch.setenv(name, value)
            # An attached table is described first; this one does not exist.
            with faults.refused(default_client, "DescribeTable", code="ResourceNotFoundException"):
                refused(lambda: opened(kind.load(), default_client), StoreError)


def opened(settings: EnvironmentSettings, client: DynamoDBClient) -> BaseQueue | None:
    """Return the queue of settings; None for those of the archive, which opens none."""
    return settings.queue(client) if isinstance(settings, QueueSettings) else None


def put(queue: Queue, arguments: dict[str, Any]) -> None:
    """Put a task; a wrong name of an argument is Python's own error."""
    try:
        queue.put(**arguments)
    except TypeError as error:
        raise ValueError("arguments") from error


class TestOfTheLibrary:
    @fuzz
    @given(
        spoilt(
            [
                {"payload": SECRET},
                {"payload": {"a": SECRET}, "task_id": "a", "priority": 5, "delay_seconds": 1.5, "group": "g"},
                {"payload": [SECRET], "max_age_seconds": 3, "at": 1_700_000_000},
            ]
        )
    )
    def test_puts(self, arguments: Any) -> None:
        queue = Queue.memory()
        if isinstance(arguments, dict) and "payload" in arguments and all(map(str.isidentifier, arguments)):
            if refused(lambda: put(queue, arguments), FreshqError):
                assert queue.list().tasks == ()
        elif not isinstance(arguments, list):
            refused(lambda: parse_new_task(arguments))

    @fuzz
    @given(spoilt([[{"payload": SECRET, "task_id": "a"}, {"payload": 1}]]))
    def test_puts_of_many(self, tasks: Any) -> None:
        queue = Queue.memory()
        if refused(lambda: queue.put_many(tasks)):
            assert queue.list().tasks == ()

    @fuzz
    @given(
        spoilt(
            [
                {"name": "q", "order": "fifo", "max_age_seconds": 60, "max_attempts": 5, "lease_seconds": 60},
                {"retention_seconds": 60, "reserve": "p90"},
                {"reserve": 1.5},
            ]
        )
    )
    def test_options(self, options: Any) -> None:
        if isinstance(options, dict):
            refused(lambda: parse_options(cast("Any", options)))

    @fuzz
    @given(json_values)
    def test_single_arguments(self, value: Any) -> None:
        refused(lambda: checked_count("limit", value, at_most=10))
        refused(lambda: checked_seconds("lease_seconds", value))
        refused(lambda: checked_priority(value))
        refused(lambda: checked_status(value))
        refused(lambda: checked_id(value))

    @fuzz
    @given(st.one_of(texts, numbers.map(str), st.from_regex(r"\Ap[0-9.e-]{1,8}\Z")))
    def test_reserves(self, text: str) -> None:
        refused(lambda: ReserveRule.parse(text))

    @fuzz
    @given(
        spoilt(
            [
                {"language": ["Spanish", "English"], "gender": "F"},
                {"language": [["a", None], "b"]},
                [{"language": "a"}, {}],
            ]
        )
    )
    def test_criteria(self, criteria: Any) -> None:
        refused(lambda: parse_criteria(criteria))

    @fuzz
    @given(spoilt([{"language": ["English", "Spanish"], "gender": "F"}, {}]))
    def test_attributes_of_resources(self, attributes: Any) -> None:
        refused(lambda: places_of(parse_attributes(attributes)))

    @fuzz
    @given(
        st.one_of(
            texts, st.lists(st.from_regex(r"\A[0-9*/,L#-]{1,5}\Z"), min_size=4, max_size=6).map(" ".join)
        ),
        st.one_of(texts, st.sampled_from(["UTC", "Europe/Berlin", "../../etc/passwd", "Europe"])),
    )
    def test_cron_expressions(self, expression: str, zone: str) -> None:
        def ticks() -> None:
            after = 1_700_000_000.0
            tick = next(Cron(expression, zone).ticks(after), math.inf)
            assert tick > after

        refused(ticks)

    @fuzz
    @given(json_values, json_values, json_values)
    def test_schedules(self, name: Any, seconds: Any, argument: Any) -> None:
        refused(lambda: Every(seconds))
        refused(lambda: Schedule.of(name, Every(60), SECRET, catch_up=argument))
        refused(lambda: Schedule.of("s", Every(60), SECRET, group=argument))

    @fuzz
    @given(
        spoilt(
            [json.loads(file.read_text("utf-8")) for file in sorted(PROJECT.glob("examples/**/*.json"))]
            or [{"tables": [{"table_name": "Agents", "partition_key": {"attribute_name": "id"}}]}]
        )
    )
    def test_table_descriptions(self, tmp_path: Path, description: Any) -> None:
        file = tmp_path / "tables.json"
        file.write_text(json.dumps(description), "utf-8")
        refused(lambda: read_description(file))


COMMANDS: Final = [
    "put ? --task-id ? --priority ? --delay-seconds ?",
    "put ? --text --group ? --max-age-seconds ? --on-conflict ?",
    "claim --limit ? --lease-seconds ?",
    "done ? --token ?",
    "fail ? --token ? --error ?",
    "get ?",
    "cancel ?",
    "ls --status ? --limit ? --cursor ?",
    "stats --queue ?",
    "dlq ls --limit ?",
    "? ?",
]
# Typer's own messages, in a box.
LONGEST_USAGE_CHARS: Final = 2_000


class TestOfTheCommand:
    @fuzz
    @given(
        st.one_of(
            texts,
            st.builds(
                lambda *parts: "".join(parts),
                st.sampled_from(
                    ["memory", "dynamodb", "sqlite", "postgres", "sql", "postgresql+psycopg", ""]
                ),
                st.sampled_from(["://", ":", "//", ""]),
                texts,
                st.sampled_from(["", "?", "?order=fifo&", "?max_age_seconds=", "?shards=", "?key="]),
                texts,
                st.sampled_from(["", "#", "#tasks"]),
            ),
        )
    )
    def test_addresses(self, text: str) -> None:
        refused(lambda: Address.parse(text))

    @fuzz
    @given(
        st.sampled_from(
            ["name", "order", "max_age_seconds", "max_attempts", "lease_seconds", "reserve", "x"]
        ),
        texts,
        texts,
    )
    def test_opened_queues(self, option: str, value: str, name: str) -> None:
        refused(lambda: open_queue(f"memory://?{option}={value}", name))

    @fuzz
    @given(texts)
    def test_fields(self, text: str) -> None:
        refused(lambda: parsed("payload", text))
        refused(lambda: parse_shares("groups", text))
        refused(lambda: parse_shares("groups", f"a=1,{text}"))
        refused(lambda: parse_groups(text))
        refused(lambda: parse_level(text))

    @settings(fuzz, max_examples=EXAMPLES // 5)  # a command takes as long as a hundred others
    @given(st.sampled_from(COMMANDS), st.data())
    def test_command_lines(self, command: str, data: st.DataObject) -> None:
        words = [data.draw(texts) if word == "?" else word for word in command.split()]
        done = CliRunner(env={"FRESHQ_QUEUE": "memory://"}).invoke(app, words)
        assert done.exception is None or isinstance(done.exception, SystemExit)
        assert done.exit_code in {0, *ExitStatus}
        assert len(done.stderr) <= LONGEST_USAGE_CHARS
        assert all(letter.isprintable() or letter == "\n" for letter in done.stderr)

    @fuzz
    @given(st.one_of(st.none(), st.floats(-1e12, 1e12)))
    def test_durations(self, seconds: float | None) -> None:
        assert 0 < len(span(seconds)) < 30


RECORD: Final = load_event("archive-life")["Records"][0]


def landed_with(**change: Any) -> Callable[[], object]:
    """Return a call that lands a record whose change has other parts."""
    return lambda: landed_event(RECORD | {"dynamodb": RECORD["dynamodb"] | change})


def land_value(attribute: str, value: Any) -> Callable[[], object]:
    """Return a call that lands a record with another value of an attribute."""
    return landed_with(NewImage=RECORD["dynamodb"]["NewImage"] | {attribute: value})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (landed_with(ApproximateCreationDateTime=math.inf), "record: ApproximateCreationDateTime must be in"),
        (landed_with(ApproximateCreationDateTime="today"), "record: ApproximateCreationDateTime must be in"),
        (landed_with(Keys=["task-1"]), "record: Keys must be an object, got list"),
        (landed_with(SequenceNumber=5), "record: SequenceNumber must be a string, got int"),
        (land_value("taskCreated", {"N": "1e999"}), "record: taskCreated must be a number, got '1e999'"),
        (land_value("ttl", {"N": ["1"]}), "record: N must be a string, got list"),
        (land_value("taskQueue", "default"), "record: taskQueue must be an object, got str"),
        (lambda: parse_ring('{"hop": -1}'), "hop: "),
        (lambda: parse_ring('{"hop": true}'), "hop: "),
        (lambda: parse_ring('{"hop": "3"}'), "hop: "),
        (lambda: checked_count("limit", cast("Any", LONG)), f"limit: .* got '{'x' * 59}\\.\\.\\.$"),
        (lambda: checked_count("limit", 10**5000, at_most=5), "limit: .* got a very large int$"),
        (lambda: ReserveRule.parse(LONG), r"reserve: .*x\.\.\.$"),
        (lambda: parse_options(cast("Any", {"a\nb": 1})), r"a\\nb: unknown option; use one of"),
        (lambda: parse_attributes({"a\nb": None}), r"attributes\.a\\nb: a value must be"),
        (
            lambda: Queue.memory().put_many(cast("Any", 4111)),
            "^tasks: must be a list of mappings, got int$",
        ),
        (lambda: Address.parse("sqlite:///\ud800"), "queue: the address is not text; write it in UTF-8"),
        (lambda: open_queue(f"memory://?max_age_seconds={LONG}"), r"max_age_seconds: .*x\.\.\.$"),
        (lambda: parsed("payload", "a\nb"), r"payload: must be JSON .* got 'a\\nb'; quote a string"),
    ],
)
def test_what_was_found_is_refused_in_one_line(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
    assert refused(call)


@pytest.mark.parametrize(
    ("function", "event", "message"),
    [
        ("trigger", {}, "event: needs Records"),
        ("trigger", [], "event: needs Records"),
        ("trigger", {"Records": [{"eventSource": ["aws:sns"]}]}, "record: eventSource must be a string"),
        (
            "trigger",
            {"Records": [{"eventSource": "aws:dynamodb", "dynamodb": []}]},
            "record: dynamodb must be",
        ),
        ("process_tasks", {}, "event: needs Records"),
        ("process_tasks", {"Records": [{"Sns": "ring"}]}, "record: Sns must be an object"),
        ("process_tasks", {"Records": [{}]}, "message: "),
        ("archive", {"Records": "all"}, "event: needs Records"),
    ],
)
def test_an_event_that_is_none_is_refused_by_the_part_that_is_wrong(
    handlers: dict[str, ModuleType], function: str, event: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        handlers[function].handler(event, Context())
