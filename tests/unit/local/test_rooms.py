"""`make coverage`: the table by room, and the threshold."""

from __future__ import annotations

from local.rooms import GUARDED, PACKAGE, below_threshold, by_room, coverage_rows


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
