"""The last replay outlives its run and its version; the report says so, and never fails because of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from freshq_pipeline.errors import BadInput
from freshq_pipeline.report.ending import show_replay
from freshq_pipeline.report.sections import replay_section
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.results import keep_replay, last_replay
from freshq_pipeline.storage.state import POINTER, State, _as_json

if TYPE_CHECKING:
    from pathlib import Path

COUNTS = {"served_in_time": 8, "served_late": 0, "failed": 1, "pending": 0}
CHECK = {
    "queue": "mail", "policy": "lifo", "served_in_time_recorded": 8, "served_in_time_replayed": 8,
    "difference_ratio": 0.0, "within": True, "tolerance": 0.05, "servers": 2, "mean_servers": 2.0,
    "idle_ratio": 0.0, "surplus_ratio": 0.0, "shed_early": 0, "inverted_ratio": 0.0,
}  # fmt: skip
RECORD = COUNTS | {"tasks": 12, "shed": 3, "servers": 2, "running": 0, "service_times_imputed": 3}


def scenario(policy: str, capacity: float = 1.0, **more: Any) -> dict[str, Any]:
    row = {"queue": "mail", "policy": policy, "capacity": capacity, "deadline_seconds": None, "servers": 2}
    row |= {"offered": 12, "shed_ratio": 0.25, "shed_by_reason": {"expired": 3}, "wait_p99_seconds": 1.5}
    return row | COUNTS | more


def replay_of(events: str, run_id: str = "1") -> dict[str, Any]:
    """Return a replay as it is written."""
    return {
        "run_id": run_id, "events": events, "as_of_ms": 1_767_225_600_000, "since": "2026-01-10",
        "until": "2026-02-09", "days": 31, "recorded_days": 40, "check": CHECK,
        "record": RECORD | {"imputation": "Cancelled tasks are left out."},
        "queues": [{"queue": "mail", "record": RECORD, "check": CHECK}],
        "scenarios": [scenario("lifo"), scenario("fifo", served_in_time=2), scenario("lifo", 2.0)],
    }  # fmt: skip


@pytest.fixture
def out(tmp_path: Path) -> Folder:
    """Return an output folder whose current run is of the events in `events`."""
    folder = Folder(str(tmp_path))
    folder.write_json(POINTER, _as_json(State("1", "/data/events", "landed")))
    return folder


def test_a_replay_of_the_current_run_is_shown_with_its_days(out: Folder) -> None:
    assert replay_section(out, "1") is None
    keep_replay(out, replay_of("/data/events"))
    section = replay_section(out, "1")
    assert section is not None
    assert section.text.startswith("Queue mail, at its recorded capacity: lifo does 67 % in time, fifo 17 %.")
    assert "from 2026-01-10 to 2026-02-09, on 31 of 40 days with tasks" in section.text
    assert "earlier run" not in section.text
    assert list(section.charts) == ["mail"]
    assert section.table is not None
    assert section.table["in time, recorded"].tolist() == [8]


def test_a_replay_of_an_earlier_run_says_so(out: Folder) -> None:
    keep_replay(out, replay_of("/data/events", run_id="0"))
    section = replay_section(out, "1")
    assert section is not None
    assert "an earlier run than the tables: run 0, complete up to 2026-01-01 00:00:00 UTC." in section.text


def test_a_replay_of_other_events_is_left_out(out: Folder) -> None:
    keep_replay(out, replay_of("/data/others"))
    assert replay_section(out, "1") is None


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", '{"version": 1}', '{"version": 2}', '{"scenarios": [], "queues": []}', "{broken"],
)
def test_another_layout_is_one_sentence(text: str, out: Folder) -> None:
    out.write("replay.json", text)
    with pytest.raises(BadInput, match=r"replay\.json"):
        last_replay(out)
    section = replay_section(out, "1")
    assert section is not None
    assert (section.charts, section.table) == ({}, None)
    assert section.text.endswith("run `freshq-pipeline replay` again.")


def test_the_terminal_shows_the_recording_above_the_scenarios(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    show_replay(replay_of("events"))
    shown = capsys.readouterr().out
    head, *rows = [line for line in shown.splitlines() if line.startswith(("┃", "│"))]
    assert [name.strip() for name in head.split("┃")[1:-1]] == [
        "policy", "servers", "in time", "failed", "shed", "p99 wait",
    ]  # fmt: skip
    assert [[cell.strip() for cell in row.split("│")[1:-1]] for row in rows[:2]] == [
        ["recorded", "2", "8", "1", "3", "-"],
        ["lifo", "2", "8", "1", "3", "1.5 s"],
    ]
    assert "on 31 of 40 days with tasks" in shown
