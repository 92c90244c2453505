"""The gauges of a queue: each figure under its name, and no age where nothing waits."""

from freshq.policy.pressure import Pressure
from freshq.queue.gauges import GAUGES, gauges, snake_case
from freshq.stores.base import Stats

PRESSURE = Pressure(8.0, 7.0, 0.75, overloaded=True, retry_after_seconds=1.0)


def test_each_figure_has_its_name() -> None:
    ages = (6.0, 0.0, 9.0, 7.0)
    stats = Stats(1, 2, 3, 0, 5, 0, 4, *ages, dead_rows=10)
    found = gauges(stats, PRESSURE, paused=True)
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
        "QueuePaused": 1.0,
    }
    assert found.keys() == GAUGES.keys()


def test_where_nothing_waits_there_is_no_age() -> None:
    found = gauges(Stats(), PRESSURE, paused=False)
    assert GAUGES.keys() - found.keys() == {
        "OldestPendingSeconds",
        "NewestPendingSeconds",
        "OldestDeadSeconds",
        "OldestSnapshotSeconds",
        "DeadRows",
    }
    assert found["QueuePaused"] == 0.0


def test_names_in_lower_case() -> None:
    assert snake_case("TasksStaleInIndex") == "tasks_stale_in_index"
