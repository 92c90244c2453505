"""The gauges of a queue: each figure under its name, and no age if nothing waits."""

from dataclasses import replace

import pytest

from freshq import Queue
from freshq.errors import IllegalTransition, NotFound, Overloaded, PutIncomplete, StoreError
from freshq.model.answers import PutOutcome, Receipt
from freshq.model.telemetry import PutSpan
from freshq.policy.pressure import Pressure
from freshq.queue.gauges import (
    GAUGES,
    counted_put,
    gauges,
    gauges_of,
    metric_of,
    snake_case,
    wanted_capacity,
)
from freshq.stores.base import Stats
from freshq.testing import make_task

PRESSURE = Pressure(8.0, 7.0, 0.75, overloaded=True, retry_after_seconds=1.0, wanted_servers=9)


def test_each_figure_has_its_name() -> None:
    ages = (6.0, 0.0, 9.0, 7.0)
    stats = Stats(1, 2, 3, 0, 5, 0, 4, *ages, dead_rows=10)
    valued = replace(
        PRESSURE, value_offered_per_second=80.0, value_delivered_per_second=72.0, value_lost_ratio=0.1
    )
    found = gauges(stats, valued, paused=True, slowed=2)
    assert found == {
        "TasksPending": 1,
        "TasksDelayed": 2,
        "TasksTaken": 3,
        "TasksStaleInIndex": 4,
        "OldestPendingSeconds": 6.0,
        "NewestPendingSeconds": 0.0,
        "TasksDead": 5,
        "OldestDeadSeconds": 9.0,
        "OldestSnapshotSeconds": 7.0,
        "DeadRows": 10,
        "OfferedPerSecond": 8.0,
        "ServedPerSecond": 7.0,
        "ShedRatio": 0.25,
        "ValueOfferedPerSecond": 80.0,
        "ValueDeliveredPerSecond": 72.0,
        "ValueLostRatio": 0.1,
        "WantedServers": 9,
        "WorkersSlowed": 2.0,
        "QueuePaused": 1.0,
    }
    assert found.keys() == GAUGES.keys()


def test_where_nothing_waits_there_is_no_age_and_without_values_no_value() -> None:
    found = gauges(Stats(), PRESSURE, paused=False)
    assert GAUGES.keys() - found.keys() == {
        "OldestPendingSeconds",
        "NewestPendingSeconds",
        "OldestDeadSeconds",
        "OldestSnapshotSeconds",
        "DeadRows",
        "ValueOfferedPerSecond",
        "ValueDeliveredPerSecond",
        "ValueLostRatio",
    }
    assert found["QueuePaused"] == 0.0


def test_a_busy_queue_wants_a_slot_and_an_idle_one_none() -> None:
    idle, unknown = replace(PRESSURE, wanted_servers=0), replace(PRESSURE, wanted_servers=None)
    assert wanted_capacity(Stats(), idle) == wanted_capacity(Stats(), unknown) == 0
    assert wanted_capacity(Stats(pending=1), idle) == wanted_capacity(Stats(taken=1), idle) == 1
    assert wanted_capacity(Stats(pending=10_000, taken=3), idle) == 1, "not by the backlog"
    assert wanted_capacity(Stats(pending=10_000, taken=3), unknown) == 3, "until the time of a task is known"


def test_names_in_lower_case() -> None:
    assert snake_case("TasksStaleInIndex") == "tasks_stale_in_index"


def test_the_gauges_of_a_queue_are_read() -> None:
    queue = Queue.memory()
    queue.put_many([{"payload": "a"}, {"payload": "b"}])
    queue.pause()
    found = gauges_of(queue)
    assert (found["TasksPending"], found["QueuePaused"], found["WorkersSlowed"]) == (2, 1.0, 0.0)
    assert gauges_of(queue, Stats(pending=7))["TasksPending"] == 7


@pytest.mark.parametrize(
    ("answer", "metric"),
    [
        (Receipt("a", PutOutcome.CREATED), "TasksCreated"),
        (Receipt("a", PutOutcome.DUPLICATE), "TasksDuplicate"),
        (Receipt("a", PutOutcome.UPDATED), "TasksUpdated"),
        (IllegalTransition("taken", status="TAKEN"), "TasksDuplicate"),
        (IllegalTransition("ended", status="SUCCESS"), "TasksRefused"),
        (NotFound("gone"), "TasksRefused"),
        (Overloaded("a", "admission", 1.0), "TasksTurnedAway"),
        (StoreError("away"), "TasksNotWritten"),
    ],
)
def test_the_outcome_of_a_put_has_its_metric(answer: object, metric: str) -> None:
    assert metric_of(answer) == metric


def test_each_task_of_a_put_is_counted_whatever_becomes_of_the_put() -> None:
    counted: list[object] = []
    span = PutSpan("default", [make_task(1), make_task(2)])
    receipt, away = Receipt("a", PutOutcome.CREATED), StoreError("away")
    with counted_put(span, counted.extend):
        span.receipts = [receipt, receipt]
    assert counted == [receipt, receipt]
    for error, answers in ((PutIncomplete([receipt, away]), [receipt, away]), (away, [away, away])):
        counted.clear()
        with pytest.raises(StoreError, match="away"), counted_put(span, counted.extend):
            raise error
        assert counted == answers
