"""The table of `make coverage` and its threshold; the page of `make architecture` agrees with the code."""

from contextvars import Context
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from local.pages import (
    ARCHITECTURE,
    GUARDED,
    PACKAGE,
    PICTURE,
    STORES,
    VERBS,
    below_threshold,
    by_room,
    coverage_rows,
    moving_picture,
    room_rows,
    ways_on,
)

from freshq import Queue
from freshq.cli.commands.demo import Plan, Standing

PLAN = Plan(total_seconds=20.0)
STANDING = Standing(in_time=316, late=1, shed=523, waiting=0, wait_p50_seconds=0.01, last_wait_seconds=0.3)


def summary(lines: int, branches: int) -> dict[str, object]:
    counts = {"covered_lines": lines, "num_statements": 10, "covered_branches": branches, "num_branches": 10}
    return {"summary": {**counts, "percent_covered": 0.0}}


def test_files_are_added_up_by_room() -> None:
    rooms = by_room(
        {
            "files": {
                f"{PACKAGE}errors.py": summary(10, 10),
                f"{PACKAGE}stores/sql/rows.py": summary(10, 6),
                f"{PACKAGE}stores/memory.py": summary(9, 6),
            }
        }
    )
    assert coverage_rows(rooms) == "| freshq | 100 % | 100 % | 100 % |\n| stores | 95 % | 60 % | 77 % |\n"


def test_guarded_rooms_must_reach_the_threshold() -> None:
    files = {f"{PACKAGE}{room}/a.py": summary(9, 9) for room in GUARDED}
    assert below_threshold(by_room({"files": files})) == []
    files[f"{PACKAGE}model/b.py"] = summary(9, 8)
    del files[f"{PACKAGE}queue/a.py"]
    assert below_threshold(by_room({"files": files})) == [
        "coverage: model is at 87.5 %, below 90 %",
        "coverage: queue is at 0.0 %, below 90 %",
    ]


def test_the_page_of_the_architecture_has_the_rooms_of_the_code() -> None:
    assert "\n".join(room_rows()) in ARCHITECTURE.read_text("utf-8"), "run make architecture"


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_the_page_of_the_architecture_has_the_way_of_each_verb(store: str, tmp_path: Path) -> None:
    queue = Queue.memory() if store == "memory" else Queue.sql(f"sqlite:///{tmp_path}/tasks.db")
    page = ARCHITECTURE.read_text("utf-8")
    # A transaction that an earlier test ended is still looked at by calls in its context.
    for verb, way in Context().run(ways_on, queue).items():
        section = page.partition(f"### {VERBS[verb]}: {STORES[store]}\n\n")[2].partition("\n\n")[0]
        assert section.splitlines() == [*way.lines()], "run make architecture"
    queue.close()


def test_the_recorded_demo_is_a_small_picture_that_stands_still_for_who_wants_that() -> None:
    text = PICTURE.read_text("utf-8")
    assert len(text) < 40_000
    assert "prefers-reduced-motion" in text
    assert ET.fromstring(text).tag.endswith("svg")  # noqa: S314 - our own file
    made = moving_picture(PLAN, [(STANDING, STANDING)] * 3)
    assert ET.fromstring(made).get("aria-label") == (  # noqa: S314
        "newest first (freshq): 316 of 840 tasks in time; first in, first out: 316 of 840 tasks in time"
    )
