"""The benchmark of growth counts correctly."""

import uuid
from pathlib import Path
from typing import Any

import pytest
from benchmarks import costs_page, library_pages
from benchmarks.figures import figures_of
from benchmarks.growth import Place, SqlPlace, each, in_groups, options, rows_read
from benchmarks.pages import DOCS
from benchmarks.render import markdown

from freshq import Order, Queue, TaskStatus
from freshq.queue.core import core_of
from freshq.queue.reading import count_waiting
from tests.support.readings import counts


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
    with place.counted() as amounts:
        (claim,) = place.queue.claim()
    assert claim.task.task_id == f"1-{1:034}"
    assert len(claim.task.task_id) == len(str(uuid.uuid4()))
    assert amounts["steps"] > 10
    assert each(amounts, 2)["steps"] == round(amounts["steps"] / 2, 1)
    place.queue.close()


def test_groups_have_the_same_number_of_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.growth.LIVE", 20)
    place = Place(Queue.memory(**options(Order.LIFO)))
    in_groups(place, 5)
    waiting = count_waiting(core_of(place.queue).store, "default", place.queue.admin.now(), 0.0, 100)
    assert list(waiting.values()) == [4] * 5


def test_rows_are_those_of_the_scans() -> None:
    scan = {"Node Type": "Index Scan", "Index Name": "i", "Actual Rows": 2, "Actual Loops": 3}
    scan |= {"Rows Removed by Filter": 5}
    plan = {"Node Type": "Limit", "Actual Rows": 2, "Actual Loops": 1, "Plans": [scan]}
    assert rows_read(plan) == 21


def figure(size: int, ratio: float, steps: int = 5, situation: str = "waiting") -> dict[str, Any]:
    """Return the figures of a size."""
    of = {"store": "sqlite", "situation": situation, "limit": 1, "size": size}
    return of | {"ratio": ratio, "short": 0.0, "amounts": {"steps": steps}}


def rendered(report: dict[str, Any]) -> str:
    """Return the sections of a report as Markdown."""
    sections = library_pages.growth_sections(report, figures_of("capacity"))
    return "\n\n".join(map(markdown, sections.values()))


def test_ratios_of_equal_work_are_noise() -> None:
    found = [figure(1000, 0.7), figure(10, 1.0), figure(100, 1.1), figure(1000, 4.0, steps=9, situation="x")]
    found.append(figure(10, 1.0, situation="x"))
    assert sorted(library_pages.ratios_of_equal_work(found)) == [0.7, 1.1]


@pytest.mark.parametrize(
    ("situation", "ratio", "misses"),
    [("waiting", 1.204, False), ("waiting", 1.206, True), ("groups", 1.9, False), ("groups", 2.41, True)],
)
def test_ratios_that_miss_their_aim_are_bold(situation: str, ratio: float, *, misses: bool) -> None:
    report = {"sqlite": {"figures": [figure(10, 1.0), figure(100, 1.0), figure(100, ratio, 5, situation)]}}
    page = rendered(report)
    assert (f"| **{ratio:.2f}** |" in page) is misses
    assert (f"| {ratio:.2f} |" in page) is not misses


def test_a_ratio_shows_its_quartiles_and_a_short_claim_what_it_found() -> None:
    one = figure(100, 1.0) | {"ratio_quartiles": (0.9, 1.25), "short": 0.5, "found": 4.0}
    page = rendered({"sqlite": {"figures": [figure(10, 1.0), one]}})
    assert "| 1.00 (0.90 to 1.25) | 50%, 4.0 tasks on average |" in page


def test_what_stale_tasks_cost_comes_from_one_count() -> None:
    capacity = figures_of("capacity")
    some, most = capacity["behind_stale"]
    assert (some["found"], most["found"]) == (10, 0)
    assert costs_page.entries_per_half_unit(capacity) == round(some["stale"] / some["read_units"] / 2)
    assert most["stale"] > costs_page.most_passed_over() == 17_000
    for page in ("costs", "contributing/growth"):
        assert f"{most['read_units']:g}" in (DOCS / f"{page}.md").read_text("utf-8")
