"""`benchmarks.invocations` reads logs and changes, and merges runs."""

import json
from pathlib import Path

import pytest
from benchmarks import figures, invocations
from benchmarks.invocations import Entry, merged, reported_metrics, units_by_kind
from local.facts import Change

NEW: Entry = {"load": "steady", "window_seconds": 1, "date": "2026-01-02"}


def test_units_are_counted_by_what_the_items_are() -> None:
    task = {"taskId": {"S": "a"}, "taskStatus": {"S": "PENDING"}}
    waiting = task | {"pendingShard": {"S": "p"}, "taskCreated": {"N": "1"}}
    lease = {"taskId": {"S": "freshq#lease#default#1"}}
    changes = [Change(None, waiting), Change(waiting, task), Change(None, lease), Change(lease, None)]
    assert units_by_kind(changes) == {"tasks": 4, "lease": 2}


def test_metrics_are_counted_by_their_dimensions() -> None:
    directive = {
        "Namespace": "freshq",
        "Dimensions": [["queue"], ["queue", "function"]],
        "Metrics": [{"Name": "Rings"}, {"Name": "RingsSkipped"}],
    }
    line = {"_aws": {"CloudWatchMetrics": [directive]}, "queue": "default", "function": "Trigger"}
    found = reported_metrics(json.dumps(line))
    assert len(found) == 4
    assert ("freshq", ("queue", "default"), "Rings") in found
    assert reported_metrics(json.dumps(line | {"Rings": 7})) == found
    assert reported_metrics("START RequestId: _aws") == reported_metrics('{"message": "rang"}') == set()


def test_a_new_run_replaces_that_of_its_load_and_window_alone() -> None:
    old = [{"load": "steady", "window_seconds": 0, "date": "2026-01-01"}]
    kept = [*old, {"load": "steady", "window_seconds": 1, "date": "2026-01-01"}]
    found = merged(kept, [NEW, NEW | {"load": "burst"}])
    assert [(one["load"], one["window_seconds"], one["date"]) for one in found] == [
        ("steady", 0, "2026-01-01"),
        ("steady", 1, "2026-01-02"),
        ("burst", 1, "2026-01-02"),
    ]


def test_the_first_run_of_all_has_nothing_to_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    assert invocations._kept() == []
    figures.write("invocations", merged([], [NEW]))
    assert [one["load"] for one in invocations._kept()] == ["steady"]
