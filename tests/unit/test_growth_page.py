"""The benchmark of growth counts what it says."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from benchmarks.growth import in_groups
from benchmarks.growth_places import Place, SqlPlace, options, rows_read

from freshq import Order, Queue, TaskStatus
from tests.support.readings import counts

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_place_is_filled_in_bulk_and_its_claims_are_counted(store: str, tmp_path: Path) -> None:
    if store == "memory":
        place = Place(Queue.memory(**options(Order.FIFO)))
    else:
        place = SqlPlace(f"sqlite:///{tmp_path}/tasks.db", "tasks", Order.FIFO)
    place.fill(30, age_seconds=50.0)
    place.fill(20, age_seconds=100.0, left_seconds=-1.0)
    place.fill(10, status=TaskStatus.SUCCESS)
    assert counts(place.queue.stats()) == {"pending": 30, "shed": 20, "success": 10}
    place.queue.claim()
    with place.counted() as cost:
        (claim,) = place.queue.claim()
    assert claim.task.task_id == f"1-{1:034}"
    assert len(claim.task.task_id) == len(str(uuid.uuid4()))
    assert cost.amounts["steps"] > 10
    assert cost.each(2)["steps"] == round(cost.amounts["steps"] / 2, 1)
    assert bool(cost.plans) == (store == "sqlite")
    place.queue.close()


def test_groups_have_the_same_number_of_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.growth.LIVE", 20)
    place = Place(Queue.memory(**options(Order.LIFO)))
    in_groups(place, 5)
    waiting = place.queue.store.count_waiting("default", place.queue.now(), 0.0, 100)
    assert list(waiting.values()) == [4] * 5


def test_rows_are_those_of_the_scans() -> None:
    scan = {"Node Type": "Index Scan", "Index Name": "i", "Actual Rows": 2, "Actual Loops": 3}
    scan |= {"Rows Removed by Filter": 5}
    plan = {"Node Type": "Limit", "Actual Rows": 2, "Actual Loops": 1, "Plans": [scan]}
    assert rows_read(plan) == 21
