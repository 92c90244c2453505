"""The lives of resources and callers in the events that each store gives the pipeline."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import pytest
import sqlalchemy as sa

from freshq import MatchQueue
from freshq.aws.landing import match_events
from freshq.errors import IllegalTransition, TableMissing
from freshq.matching.history import caller_events, numbered, queues_of, resource_events
from freshq.matching.resource import ResourceStatus
from freshq.matching.stores.base import Change, Changed
from freshq.matching.stores.sql import MatchHistory, SqlMatchStore
from tests.conftest import Clock
from tests.support.call_center_shift import FRENCH, LEASE_SECONDS, shift, story
from tests.support.histories import KEPT_SECONDS
from tests.support.matching import Desk, emptied_resources, join, names, one
from tests.support.streams import enable_stream, stream_records

# Queue, id, creation time, change, status, time, worker, end of the lease. Times in seconds.
EXPECTED: Final = [
    ("resources", "billy", 1, "INSERT", "PENDING", 1, None, False),
    ("resources", "billy", 1, "MODIFY", "TAKEN", 6, None, 66),
    ("resources", "billy", 1, "MODIFY", "PENDING", 67, None, False),
    ("resources", "billy", 1, "MODIFY", "CANCELLED", 68, None, False),
    ("resources", "billy", 78, "INSERT", "PENDING", 78, None, False),
    ("resources", "billy", 78, "MODIFY", "TAKEN", 79, None, 139),
    ("resources", "ellen", 0, "INSERT", "PENDING", 0, None, False),
    ("resources", "ellen", 0, "MODIFY", "TAKEN", 2, None, 62),
    ("resources", "ellen", 0, "MODIFY", "TAKEN", 3, None, 63),
    ("resources", "ellen", 0, "MODIFY", "SUCCESS", 5, None, False),
    ("resources", "ellen", 74, "INSERT", "PENDING", 74, None, False),
    ("resources", "ellen", 74, "MODIFY", "TAKEN", 74, None, 134),
    ("resources", "ellen", 74, "MODIFY", "SUCCESS", 75, None, False),
    ("resources", "max", 82, "INSERT", "PENDING", 82, None, False),
    ("resources", "max", 82, "MODIFY", "TAKEN", 83, None, 143),
    ("resources", "max", 82, "MODIFY", "TAKEN", 83, None, 263),
    ("resources", "zoe", 81, "INSERT", "PENDING", 81, None, False),
    ("resources", "zoe", 81, "MODIFY", "TAKEN", 84, None, 144),
    ("resources", "zoe", 81, "MODIFY", "PENDING", 85, None, False),
    ("resources-callers", "ann", 69, "INSERT", "PENDING", 69, None, False),
    ("resources-callers", "ann", 69, "MODIFY", "TAKEN", 74, "ellen", False),
    ("resources-callers", "ann", 69, "MODIFY", "SUCCESS", 74, None, False),
    ("resources-callers", "bob", 76, "INSERT", "PENDING", 76, None, False),
    ("resources-callers", "bob", 76, "MODIFY", "CANCELLED", 77, None, False),
    ("resources-callers", "cy", 79, "INSERT", "PENDING", 79, None, False),
    ("resources-callers", "cy", 79, "MODIFY", "TAKEN", 79, "billy", False),
    ("resources-callers", "cy", 79, "MODIFY", "SUCCESS", 79, None, False),
    ("resources-callers", "dora", 80, "INSERT", "PENDING", 80, None, False),
]
GROUPS: Final = {
    "ellen": "gender=F&language=Spanish", "billy": "language=French", "zoe": "language=French",
    "max": "language=German", "ann": "language=Spanish", "bob": "language=French", "cy": "language=French",
    "dora": "language=Greek",
}  # fmt: skip


def lives(store: SqlMatchStore) -> MatchHistory:
    assert isinstance(store.history, MatchHistory)
    return store.history


def pulled(store: SqlMatchStore) -> list[dict[str, Any]]:
    """Return all events of the histories of a store."""
    events: list[dict[str, Any]] = []
    for name in lives(store).queues:
        lives(store).add_batches(name)
        kept = lives(store).kept(name)
        assert kept is not None
        for batch in range(kept.first_batch, kept.last_batch + 1):
            events += lives(store).events(name, batch)
    return events


@contextmanager
def lives_told(desk: Desk) -> Iterator[list[dict[str, Any]]]:
    """Yield a list that has the events of the lives afterwards."""
    events: list[dict[str, Any]] = []
    if desk.client is not None:
        enable_stream(desk.client, desk.table)
        yield events
        for record in stream_records(desk.client, desk.table):
            events += match_events(record, "resources")
    elif desk.engine is not None:
        store = SqlMatchStore(desk.engine, history_seconds=KEPT_SECONDS)
        store.create_table()
        try:
            yield events
            events += pulled(store)
        finally:
            lives(store).keep(0)
    else:
        commit = desk.memory.commit

        def told(change: Change) -> None:
            commit(change)
            parts = (
                resource_events(change.before, change.after, change.at),
                caller_events(change.caller_before, change.caller_after, change.at),
            )
            for queue, part in zip(queues_of("resources"), parts, strict=True):
                number = str(len(events) + 1)
                events.extend(event | {"queue": queue} for event in numbered(part, number, number))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(desk.memory, "commit", told)
            yield events


def test_every_store_tells_the_same_lives(desk: Desk) -> None:
    start = desk.clock.now
    with lives_told(desk) as events:
        shift(desk.queue(lease_seconds=LEASE_SECONDS), desk.clock)
    assert len({event["event_id"] for event in events}) == len(events)
    told = story(events, start)
    if desk.client is not None:
        # The stream has no image after a deletion, so it tells its own time, which is not the clock's here.
        told = [(*row[:6], 77, *row[7:]) if row[1:6:4] == ("bob", "CANCELLED") else row for row in told]
    assert [(*row[:3], *row[4:9]) for row in told] == EXPECTED
    assert {row[1]: row[9] for row in told} == GROUPS


def test_a_resource_whose_lease_expired_may_go_to_a_caller_at_once() -> None:
    desk = Desk()
    queue = desk.queue(lease_seconds=LEASE_SECONDS)
    join(queue, "ellen", FRENCH)
    one(queue, FRENCH)
    assert queue.request(FRENCH, caller_id="ann") is None
    desk.clock.advance(LEASE_SECONDS + 1)
    with lives_told(desk) as events:
        assert queue.offer("ellen").caller_id == "ann"
    assert [(event["task_id"].partition("#")[0], event["status"]) for event in events] == [
        ("ellen", "PENDING"), ("ellen", "TAKEN"), ("ann", "TAKEN"), ("ann", "SUCCESS"),
    ]  # fmt: skip


def test_a_resource_that_leaves_after_its_lease_expired_is_no_success(desk: Desk) -> None:
    queue = desk.queue(lease_seconds=LEASE_SECONDS)
    queue.register("ellen", attributes=FRENCH)
    with lives_told(desk) as events:
        queue.offer("ellen")
        one(queue, FRENCH)
        desk.clock.advance(LEASE_SECONDS + 1)
        assert queue.withdraw("ellen").status is ResourceStatus.AVAILABLE
    assert [event["status"] for event in events] == ["PENDING", "TAKEN", "PENDING", "CANCELLED"]
    assert names(queue.match(FRENCH)) == []


def test_a_match_without_a_lease_tells_no_end_of_it(desk: Desk) -> None:
    queue = desk.queue(lease_seconds=None)
    queue.register("ellen", attributes=FRENCH, data={"name": "not for the pipeline"})
    with lives_told(desk) as events:
        queue.offer("ellen")
        queue.release(one(queue, FRENCH))
    assert [event["status"] for event in events] == ["PENDING", "TAKEN", "PENDING"]
    assert not any("lease_until_ms" in event or "not for" in str(event) for event in events)


# --- the history of a SQL database


def test_an_error_names_the_table_that_is_missing(sqlite_engine: sa.Engine) -> None:
    store = SqlMatchStore(sqlite_engine, table="partial")
    store.create_table()
    try:
        with sqlite_engine.begin() as connection:
            connection.execute(sa.text("DROP TABLE partial_callers"))
        queue = MatchQueue(store)
        queue.register("ellen", attributes=FRENCH)
        with pytest.raises(TableMissing):
            queue.request(FRENCH, caller_id="ann")
    finally:
        store.delete_table()


@pytest.fixture
def engine(sqlite_engine: sa.Engine) -> sa.Engine:
    return emptied_resources(sqlite_engine)


def test_a_history_is_kept_for_all_programs_once_it_is_begun(engine: sa.Engine) -> None:
    with pytest.raises(TableMissing):
        SqlMatchStore(engine, history_seconds=KEPT_SECONDS).get("ellen")
    plain = MatchQueue(SqlMatchStore(engine))
    join(plain, "ellen", FRENCH)
    store = SqlMatchStore(engine, history_seconds=KEPT_SECONDS)
    store.create_table()
    assert pulled(store) == []
    plain.withdraw("ellen")
    assert [event["status"] for event in pulled(store)] == ["CANCELLED"]
    lives(store).keep(0)
    join(plain, "ellen", FRENCH)
    assert lives(store).kept("resources") is None


def test_a_change_that_is_not_made_leaves_no_event(engine: sa.Engine) -> None:
    store = SqlMatchStore(engine, history_seconds=KEPT_SECONDS)
    store.create_table()
    queue = MatchQueue(store)
    join(queue, "ellen", FRENCH)
    queue.complete(one(queue, FRENCH))
    before = pulled(store)
    resource = store.get("ellen")
    assert resource is not None
    with pytest.raises(Changed):
        store.commit(Change(replace(resource, token="another"), None, at=1.0))
    queue.offer("ellen")
    with pytest.raises(IllegalTransition):
        queue.offer("ellen")
    assert len(pulled(store)) == len(before) + 1
    lives(store).keep(0)


def test_old_events_are_deleted_by_recover(engine: sa.Engine, clock: Clock) -> None:
    store = SqlMatchStore(engine, history_seconds=KEPT_SECONDS)
    store.create_table()
    queue = MatchQueue(store, clock=clock)
    join(queue, "ellen", FRENCH)
    assert len(pulled(store)) == 1
    clock.advance(KEPT_SECONDS + 1)
    queue.admin.recover()
    kept = lives(store).kept("resources")
    assert kept is not None
    assert kept.first_batch > kept.last_batch
    lives(store).keep(0)


# --- a stream record


def test_a_record_of_nobody_who_waits_is_no_event(table_desk: Desk) -> None:
    assert table_desk.client is not None
    enable_stream(table_desk.client, table_desk.table)
    queue = table_desk.queue()
    queue.register("ellen", attributes=FRENCH)
    queue.register("ellen", attributes={"language": "Greek"})
    queue.unregister("ellen")
    records = list(stream_records(table_desk.client, table_desk.table))
    assert len(records) > 3
    assert [match_events(record, "resources") for record in records] == [[]] * len(records)


def test_a_malformed_record_is_an_error(table_desk: Desk) -> None:
    assert table_desk.client is not None
    enable_stream(table_desk.client, table_desk.table)
    join(table_desk.queue(), "ellen", FRENCH)
    (record,) = (
        one for one in stream_records(table_desk.client, table_desk.table) if match_events(one, "resources")
    )
    images = record["dynamodb"]
    for missing in ("changedAt", "resourceStatus"):
        broken = {name: value for name, value in images["NewImage"].items() if name != missing}
        with pytest.raises(ValueError, match="malformed"):
            match_events(record | {"dynamodb": images | {"NewImage": broken}}, "resources")
    with pytest.raises(ValueError, match="eventID"):
        match_events(record | {"eventID": None}, "resources")
