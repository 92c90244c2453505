"""The floor runs the statements of freshq, and the page shows both beside each other."""

from pathlib import Path

import pytest
from benchmarks import floor, isolate, library_pages
from benchmarks.library_pages import VERBS
from benchmarks.render import markdown

from freshq import Queue
from tests.support.readings import counts


def test_the_floor_does_to_the_table_what_freshq_did(tmp_path: Path) -> None:
    queue = Queue.sql(f"sqlite:///{tmp_path}/tasks.db")
    queue.create_table()
    recorded = floor.recorded_life(queue, 20)
    done = counts(queue.stats())
    queue.purge(confirm="default")
    seconds = floor.timed_floor(floor.sql_store(queue).database.engine, recorded)
    assert counts(queue.stats()) == done == {"pending": 480, "success": 40}
    assert [*seconds] == [*VERBS]
    queue.close()


def test_every_verb_has_a_time_beside_its_floor(tmp_path: Path) -> None:
    found = floor.measured(f"sqlite:///{tmp_path}/tasks.db", rounds=2, tasks=20)
    assert all(each["freshq_us"] > 0 and each["floor_us"] > 0 for each in found.values())
    assert [*found] == [*VERBS]


def test_a_ratio_above_its_aim_is_bold(monkeypatch: pytest.MonkeyPatch) -> None:
    verbs = {verb: {"freshq_us": 2.4, "floor_us": 1.0} for verb in VERBS}
    slots = {"1": {"thread_us": 100.0, "process_us": 1200.0}, "4": {"thread_us": 100.0, "process_us": 500.0}}
    figures = {"rounds": 5, "tasks": 1000, "databases": {"SQLite": verbs}, "slots": slots}
    result = {"figures": figures, "machine": {"python": "3.11", "load_before": 1.0}}
    monkeypatch.setattr(library_pages, "read", lambda _name: result)
    page = markdown(library_pages.floor_page()["floor", "ratios"])
    assert "| SQLite | put | 2.4 | 1.0 | **2.40** | 2.0 |" in page
    assert "| SQLite | claim(10) | 2.4 | 1.0 | 2.40 | 2.5 |" in page
    page = markdown(library_pages.floor_page()["isolate", "price"])
    assert "| 1 | 100 | 1200 | **1100** | 1,000 |" in page
    assert "| 4 | 100 | 500 | 400 | 1,000 |" in page


@pytest.mark.parametrize("isolates", [False, True])
def test_a_run_is_measured_in_a_thread_and_in_a_process(isolates: bool) -> None:
    assert isolate.seconds(20, 1, isolate=isolates) > 0


def test_the_start_of_the_processes_is_no_part_of_the_price(monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(tasks: int, slots: int, *, isolate: bool) -> float:
        return (0.5 if isolate else 0.0) + tasks * slots * (3e-4 if isolate else 1e-4)

    monkeypatch.setattr(isolate, "seconds", seconds)
    found = isolate.microseconds(2, 200)
    assert found == {(slots, isolates): pytest.approx((300 if isolates else 100) * slots)
                     for slots in isolate.SLOTS for isolates in (False, True)}  # fmt: skip
