"""The vectors of docs/wire.md are what puts store; who writes them by hand has put a task."""

import json
import re
from typing import Any

import pytest
import sqlalchemy as sa

from freshq import PutOutcome, Queue
from freshq.model.fields import FIELDS, MAX_ID_BYTES, NEVER, QUEUE_KEY_PREFIX, RESERVED_ID_PREFIX
from freshq.model.new_task import MAX_GROUP_BYTES
from freshq.model.options import NAME_PATTERN, QueueConfig
from freshq.model.storable_options import NOTE_PREFIX, RECORD
from freshq.model.task import MAX_PRIORITY
from freshq.model.validation import MAX_JSON_DEPTH, MAX_PAYLOAD_BYTES
from freshq.policy.value import AGE_OFFSET, BAND_OFFSET, SMALLEST_VALUE
from freshq.queue.core import core_of
from freshq.stores.dynamodb.items import INDEX_KEYS, RECORD_PREFIX
from freshq.stores.dynamodb.line_records import RULES, TTL_SECONDS
from freshq.stores.sql import SqlStore
from freshq.stores.sql.rows import NEW_COLUMNS
from tests.conftest import DATABASES, StoreUnderTest
from tests.support.wire import FILE, NOW, PUTS, task_of, text

VECTORS: list[dict[str, Any]] = json.loads(FILE.read_text("utf-8"))


def test_the_file_has_what_the_library_stores() -> None:
    assert FILE.read_text("utf-8") == text(), "run python -m tests.support.wire"


def opened(store: StoreUnderTest, name: str, **options: Any) -> Queue:
    """Return a queue, as another process opens it."""
    return Queue(store.make_store(None).of_queue(name), name=name, clock=store.clock, **options)


def write(store: StoreUnderTest, queue: Queue, vector: dict[str, Any]) -> None:
    """Write a vector without freshq."""
    if store.client is None:
        of_queue = core_of(queue).store
        assert isinstance(of_queue, SqlStore)
        names = ", ".join(vector["row"])
        values = ", ".join(f":{name}" for name in vector["row"])
        with of_queue.database.engine.begin() as connection:
            connection.execute(sa.text(f"INSERT INTO tasks ({names}) VALUES ({values})"), vector["row"])
        return
    for call in vector["before"]:
        for name, arguments in call.items():
            getattr(store.client, name)(TableName=store.table, **arguments)
    condition: Any = {"ConditionExpression": "attribute_not_exists(taskId)"}
    store.client.put_item(TableName=str(store.table), Item=vector["item"], **condition)


@pytest.mark.parametrize("store", ["dynamodb_local", *DATABASES], indirect=True)
@pytest.mark.parametrize("place", range(len(VECTORS)), ids=[says for says, *_others in PUTS])
def test_a_vector_that_is_written_is_a_put(store: StoreUnderTest, place: int) -> None:
    vector = VECTORS[place]
    store.clock.now = NOW
    queue = opened(store, vector["queue"], **vector["options"])
    assert queue.claim() == []
    write(store, queue, vector)
    expected = task_of(place)
    assert core_of(queue).stored(vector["task_id"]) == expected
    assert queue.put("other", task_id=vector["task_id"]).outcome is PutOutcome.DUPLICATE
    if expected.stale_at <= NOW:
        assert queue.claim() == []
        return
    # A process may know the levels of its queue for a second, so another one claims.
    worker = opened(store, vector["queue"])
    if expected.not_before is not None:
        assert worker.claim() == []
        store.clock.now = expected.not_before + 0.001
    (claim,) = worker.claim(2)
    assert (claim.task.task_id, claim.task.payload) == (expected.task_id, vector["arguments"]["payload"])
    worker.complete(claim)
    assert worker.stats().success == 1


PAGE = (FILE.parents[1] / "wire.md").read_text("utf-8")


def test_the_page_has_every_column_and_attribute_of_a_new_task() -> None:
    named = set(re.findall(r"`(\w+)`", PAGE))
    attributes = {field.name for field in FIELDS if field.column in NEW_COLUMNS} | {*INDEX_KEYS, "putToken"}
    assert {*NEW_COLUMNS, *attributes} - named == {"parent_id", "root_id", "parentId", "rootId"}


def test_the_page_has_the_limits_of_the_library() -> None:
    options = QueueConfig()
    late_after = RULES.trust_seconds + RULES.landing_seconds
    limits: list[str] = [
        *(f"{MAX_PAYLOAD_BYTES:,} bytes", f"{MAX_JSON_DEPTH} levels", f"1 to {MAX_ID_BYTES:,} bytes"),
        *(f"{MAX_GROUP_BYTES} bytes", f"0 to {MAX_PRIORITY}", f"{options.max_age_seconds:.0f} s by default"),
        *(f"`retention_seconds`, {options.retention_seconds:.0f} by default", NAME_PATTERN.strip("^$")),
        *(f"neither `{RESERVED_ID_PREFIX}` nor `{QUEUE_KEY_PREFIX}`", f"`{NEVER * 1e6:.0f}`"),
        *(
            f"`{NEVER * 1e3:.3f}`",
            f"plus {TTL_SECONDS}",
            f"more than {late_after:g} s",
            f"from {SMALLEST_VALUE:f}",
        ),
        *(
            f"+ {BAND_OFFSET}`",
            f"+ {AGE_OFFSET}`",
            f"`{NOTE_PREFIX}`",
            f"`{RECORD}`",
            f"`{RECORD_PREFIX}NAME#{RECORD}`",
        ),
    ]
    assert [limit for limit in limits if limit not in PAGE.replace("\n  ", " ")] == []
