"""The stored options of worker passes: read seldom, checked, and followed by a pass under way."""

import threading
from typing import Any, Final

import pytest
from types_boto3_dynamodb import DynamoDBClient

from freshq import Queue
from freshq.aws.pass_options import (
    FRESH_SECONDS,
    StoredPassOptions,
    configure_stack,
    store_pass_options,
    stored_pass_options,
)
from freshq.model.pass_options import STACK_RECORD, PassOptions
from freshq.queue.core import core_of
from freshq.worker.worker import Worker
from tests.conftest import Clock
from tests.support.function_chain import ring_event
from tests.support.patience import PATIENCE_SECONDS
from tests.support.refusals import refused
from tests.unit.conftest import Application

CHANGES: Final[list[Any]] = []
STOPPING: Final = threading.Event()


def change_the_options(_task: Any) -> str:
    """In the first run, change the options and wait until the pass has noticed."""
    if CHANGES:
        CHANGES.pop()()
        STOPPING.wait(PATIENCE_SECONDS)
    return "done"


@pytest.fixture
def stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set `STOPPING` once a pass must stop."""
    stop = Worker.stop

    def noted(worker: Worker) -> None:
        stop(worker)
        STOPPING.set()

    STOPPING.clear()
    monkeypatch.setattr(Worker, "stop", noted)


@pytest.fixture
def queue(account_client: DynamoDBClient) -> Queue:
    queue = Queue.dynamodb("QueueTable", account_client)
    queue.create_table()
    return queue


def test_a_change_is_seen_within_five_seconds_and_not_read_more_often(
    queue: Queue, account_client: DynamoDBClient, clock: Clock
) -> None:
    stored = StoredPassOptions("QueueTable", "default", account_client, monotonic=clock)
    assert stored.current() == PassOptions()
    store_pass_options(queue, {"concurrency": 7})
    clock.advance(FRESH_SECONDS - 0.1)
    assert stored.current().concurrency == PassOptions().concurrency
    clock.advance(0.2)
    assert stored.current().concurrency == 7


def test_other_stored_options_stay(queue: Queue) -> None:
    configure_stack(queue, concurrency=7, order="fifo")
    configure_stack(queue, max_hops=9)
    assert stored_pass_options(queue) == {"concurrency": 7, "max_hops": 9}
    assert queue.configure().order == "fifo"


@pytest.mark.parametrize("value", [0, "3", True, 3.5, None])
def test_a_wrong_option_is_named_and_nothing_is_stored(queue: Queue, value: Any) -> None:
    with refused("concurrency"):
        configure_stack(queue, concurrency=value, order="fifo")
    assert stored_pass_options(queue) == {}
    assert queue.configure().order == "lifo"


def test_a_wrong_stored_option_is_named_and_one_of_a_later_version_is_not(
    queue: Queue, account_client: DynamoDBClient
) -> None:
    def options(values: dict[str, Any]) -> PassOptions:
        store = core_of(queue).store
        record = store.read_record("default", STACK_RECORD)
        assert store.write_record("default", STACK_RECORD, values, None if record is None else record.version)
        return StoredPassOptions("QueueTable", "default", account_client).current()

    assert options({"of_a_later_version": 1, "max_hops": 3}) == PassOptions(max_hops=3)
    with refused("max_hops"):
        options({"max_hops": "many"})


@pytest.mark.usefixtures("stopping")
def test_a_pass_under_way_ends_for_a_change_and_its_successor_follows_it(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("freshq.aws.pass_options.FRESH_SECONDS", 0.01)
    application.set("FRESHQ_RUNNER", "tests.unit.aws.test_pass_options:change_the_options")
    application.queue.put_many([{"payload": number} for number in range(50)])
    CHANGES.append(lambda: application.configure(concurrency=1))
    answer = application.invoke("process_tasks", ring_event({}))
    assert answer["tail_call"]
    assert 0 < answer["succeeded"] < 50
    while application.queue.stats().pending:
        application.invoke("process_tasks", ring_event({}))
    assert application.queue.stats().success == 50
