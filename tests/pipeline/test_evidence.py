"""The report links each violation of the ledger to the events of its task."""

from pathlib import Path

import pandas as pd

from freshq_pipeline.report.evidence import MAX_EVENTS, events_of
from freshq_pipeline.report.page import write_report
from freshq_pipeline.report.tables import Tables
from freshq_pipeline.storage.folder import Folder
from tests.pipeline.conftest import Pipeline
from tests.pipeline.recording import Recording, write_lines


def test_each_violation_has_its_events(pipeline: Pipeline, tmp_path: Path) -> None:
    tape = Recording()
    tape.put(0, "first")
    tape.put(5, "<lost put>", max_age=5000)
    for attempt in range(MAX_EVENTS):
        tape.take(10 + attempt, "<lost put>", holder=f"w:{attempt}")
    events = [
        event for event in tape.landed() if (event["task_id"], event["change"]) != ("<lost put>", "INSERT")
    ]
    write_lines(tmp_path / "in/a.json", [*events, events[-1]])
    out = Folder(str(tmp_path / "out"))
    summary = pipeline(tmp_path / "in", tmp_path / "out")
    assert summary["ledger_violations"] == 1
    tables = Tables(out, summary["run_id"], ["default"])
    violations = tables.first("violations", 50)
    (shown,) = events_of(tables, violations).items()
    assert shown[0] == "<lost put>"
    assert list(shown[1]["worker"]) == ["w"] * MAX_EVENTS
    assert next(iter(shown[1]["changed"])) == "2026-01-01 00:00:10 UTC"
    write_report(out)
    page = (tmp_path / "out/report.html").read_text()
    assert "<a href='#events0'>&lt;lost put&gt;</a>" in page
    assert "<h3 id='events0'>Events of &lt;lost put&gt;</h3>" in page
    gone = pd.DataFrame({"task_id": ["x"], "day": ["2020-01-01"]})
    assert events_of(tables, gone) == {}
