"""Known results, for every format."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np
import pytest
from benchmarks.lives import write_events

from freshq_pipeline.schemas import OUTCOMES as FATES
from freshq_pipeline.schemas import TABLES, Format
from freshq_pipeline.tables.minutes import AGES_SECONDS
from freshq_pipeline.tables.percentiles import wait_percentiles_seconds
from tests.pipeline.conftest import Pipeline, table
from tests.pipeline.oracle import make_tables, rows_that_differ, write_tables
from tests.pipeline.recording import START_SECONDS, Recording, small, write_lines
from tests.pipeline.wandering import wandering

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

START_MS = START_SECONDS * 1000
OUTCOMES = {
    "a": "success", "b": "success", "c": "failure", "d": "cancelled", "e": "shed", "f": "shed",
    "g": "cancelled", "h": "shed", "i": "success", "j": "pending", "k": "taken",
}  # fmt: skip


def lines_of(tape: Recording, form: Format) -> list[Any]:
    return {Format.LANDED: tape.landed(), Format.STREAMS: tape.records, Format.KINESIS: tape.kinesis()}[form]


@pytest.mark.parametrize("form", [Format.LANDED, Format.STREAMS, Format.KINESIS])
def test_small_recording(form: Format, pipeline: Pipeline, tmp_path: Path) -> None:
    lines = lines_of(small(), form)
    delivered = [*lines, *lines[3:8], "{broken", '"no object"']
    random.Random(3).shuffle(delivered)
    write_lines(tmp_path / "in/2026/01/01/00/a.json.gz", delivered[:20])
    write_lines(tmp_path / "in/2026/01/01/01/b.json", delivered[20:])
    summary = pipeline(tmp_path / "in", tmp_path / "out", form)
    own = 0 if form is Format.LANDED else 1
    assert summary["events_read"] == len(delivered)
    assert summary["events_duplicate"] == 5
    assert summary["events_quarantined"] == 2
    assert summary["events_no_task"] == own
    assert summary["as_of_ms"] == START_MS + 400_000
    assert summary["ledger_violations"] == 0
    rows = {row["task_id"]: row for row in table(summary, "tasks", "task_id")}
    assert {task: row["outcome"] for task, row in rows.items()} == OUTCOMES
    assert [rows[task]["shed_reason"] for task in "aefh"] == [None, "expired", "expired", "overflow"]
    assert rows["e"]["finished_ms"] == START_MS + 110_000  # at its deadline, not when TTL removed it
    assert rows["e"]["removed_ms"] == START_MS + 300_000
    assert (rows["b"]["attempts"], rows["b"]["wait_seconds"], rows["b"]["run_seconds"]) == (2, 1.0, 4.0)
    assert (rows["i"]["lease_losses"], rows["i"]["run_seconds"]) == (1, 35.0)
    assert rows["j"]["wait_seconds"] is None
    workers = {row["worker"]: row for row in table(summary, "workers", "worker")}
    assert workers["w1"] == {"worker": "w1", "claims": 4, "settles": 3, "lease_losses": 1}
    total = table(summary, "ledger", "day")[-1]
    assert (total["day"], total["created"], total["shed"], total["difference"]) == (None, 11, 3, 0)
    if form is not Format.KINESIS:  # only Kinesis has removals to the microsecond
        landed = small().landed()
        write_lines(tmp_path / "sound.json", [*landed, *landed[3:8]])
        assert differing_from_duckdb(summary, tmp_path / "sound.json", tmp_path / "duckdb") == {}


def test_inversions_violations_and_an_id_used_again(pipeline: Pipeline, tmp_path: Path) -> None:
    tape = Recording()
    for at, task in enumerate("abc"):
        tape.put(at, task)
    tape.put(1.5, "other", priority=5)
    tape.take(4, "b")  # c is newer and waits
    tape.take(5, "c")
    tape.take(6, "a")  # no newer task of its level waits
    tape.settle(7, "a", "SUCCESS")
    tape.change(8, "a", "PENDING")  # a task that succeeded cannot wait again
    tape.remove(9, "b", by_ttl=True)  # a task in progress must not disappear
    tape.put(1, "again", queue="two", max_age=5)
    tape.remove(9, "again", by_ttl=True)
    tape.put(9, "again", queue="two")
    tape.take(9.5, "again")
    tape.settle(9.6, "again", "SUCCESS")
    for task, end in (("over", "SUCCESS"), ("over too", "FAILURE")):
        tape.put(1, task, queue="three")
        tape.take(2, task)
        tape.settle(3, task, end)
        tape.put(4, task, queue="three", max_age=2)  # replaces a finished task
        tape.put(7, task, queue="three")  # replaces a stale task
    tape.put(10, "lost", queue="two")
    tape.take(11, "lost")
    events = [event for event in tape.landed() if (event["task_id"], event["change"]) != ("lost", "INSERT")]
    write_lines(tmp_path / "in/a.json", events)
    summary = pipeline(tmp_path / "in", tmp_path / "out")
    rows = table(summary, "tasks", "task_id, life")
    lives = [(row["life"], row["outcome"], row["wait_seconds"]) for row in rows if row["task_id"] == "again"]
    assert lives == [(1, "shed", None), (2, "success", 0.5)]
    for task, end in (("over", "success"), ("over too", "failure")):
        fates = [(row["life"], row["outcome"]) for row in rows if row["task_id"] == task]
        assert fates == [(1, end), (2, "shed"), (3, "pending")]
    assert [row["task_id"] for row in rows if row["inverted"]] == ["b"]
    assert summary["inversions"] == 1
    assert summary["ledger_violations"] == 3
    problems = {row["task_id"]: row["problem"] for row in table(summary, "violations", "task_id")}
    assert problems == {
        "a": "illegal step SUCCESS -> PENDING",
        "b": "lost while it was taken",
        "lost": "no creation recorded",
    }
    # A task without a recorded put is in its first life, too.
    assert {row["life"] for row in table(summary, "violations", "task_id")} == {1}
    assert table(summary, "ledger", "day")[-1]["difference"] == -1
    assert differing_from_duckdb(summary, tmp_path / "in/*.json", tmp_path / "duckdb") == {}


def test_outcomes_at_an_earlier_time(pipeline: Pipeline, tmp_path: Path) -> None:
    write_lines(tmp_path / "in/a.json", small().landed())
    summary = pipeline(tmp_path / "in", tmp_path / "out", as_of_ms=START_MS + 23_000)
    rows = {row["task_id"]: row["outcome"] for row in table(summary, "tasks", "task_id")}
    assert rows == {"a": "success", "b": "taken"}


def test_equal_to_duckdb(pipeline: Pipeline, tmp_path: Path) -> None:
    count = write_events(tmp_path / "in", 8000, files=3, seed=5)
    strays = [event | {"event_id": f"w{event['event_id']}"} for event in wandering(300, seed=5).landed()]
    write_lines(tmp_path / "in/wandering.json.gz", strays)
    summary = pipeline(tmp_path / "in", tmp_path / "out")
    assert summary["events_distinct"] == count + len(strays)
    for figure in ("events_duplicate", "inversions", *FATES, "ledger_violations"):
        assert summary[figure] > 0
    assert {age for row in table(summary, "minutes", "minute_ms") for age in ages(row)} == set(AGES_SECONDS)
    assert differing_from_duckdb(summary, tmp_path / "in/*.gz", tmp_path / "duckdb") == {}


def ages(minute: dict[str, Any]) -> list[int]:
    return [one["from_seconds"] for one in minute["backlog_by_age"] or ()]


def differing_from_duckdb(summary: dict[str, Any], files: Path, out: Path) -> dict[str, int]:
    """Return the number of differing rows by table, without tables that do not differ."""
    with duckdb.connect() as oracle:
        make_tables(oracle, str(files))
        off = rows_that_differ(oracle, summary["tables"], write_tables(oracle, out))
    assert off.keys() == TABLES.keys()
    return {name: rows for name, rows in off.items() if rows}


@pytest.mark.parametrize(
    "waits", [[], [0.0], [3.0, 1.0, 2.0, 1.0], [0.5] * 9 + [700.0], [0.0, 0.0, 5.25, 80.0]]
)
def test_percentiles_are_exact(waits: list[float], spark: SparkSession) -> None:
    tasks = spark.createDataFrame([(wait,) for wait in [*waits, None]], "wait_seconds double")
    found = wait_percentiles_seconds(tasks, (0.0, 0.5, 0.99, 1.0))
    if not waits:
        assert found == [None] * 4
    else:
        assert found == pytest.approx(list(np.quantile(waits, (0.0, 0.5, 0.99, 1.0))))
