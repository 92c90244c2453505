"""Runs over parts of a recording of several days make the tables of a run over all of it."""

import json
import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from freshq_pipeline.errors import BadInput
from freshq_pipeline.gold.open_hours import Opened, kept, open_hours, release
from freshq_pipeline.runs.request import Options
from freshq_pipeline.spark.tuning import LARGE, SMALL, Tuning
from freshq_pipeline.storage.days import (
    DAY_US,
    HOUR_US,
    Day,
    Hour,
    iso,
    number,
    recorded_days,
    spans,
    widened,
)
from tests.pipeline.conftest import Pipeline, all_rows, tuned
from tests.pipeline.nights import (
    assert_each_run_equals_duckdb,
    nights,
    quiet_days,
    quiet_hours,
    recorded,
)
from tests.pipeline.recording import START_SECONDS, Recording, write_lines

# Each run takes seconds, on a busy machine half a minute.
PATIENCE_SECONDS = 900


def opened(out: Path) -> list[int]:
    """Return the days that the current run computed, counted from the first day of the recording."""
    state = json.loads((out / "_current.json").read_text())
    first = min(number(day) for day in state["days"])
    return [number(day) - first for day in state["opened"]]


def published(out: Path) -> dict[str, Counter[str]]:
    """Return the rows of all tables of the current run."""
    return all_rows({"manifest": out / "tables/manifest.json"})


@pytest.mark.timeout(PATIENCE_SECONDS)
def test_a_night_computes_what_it_changed_and_a_late_event_opens_its_day(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    tape = quiet_days(9)
    events = tape.landed()
    held = next(event for event in events if event["task_id"] == "d3-1" and event["status"] == "SUCCESS")
    last = [event for event in events if event["task_id"].startswith("d8")]
    first = [event for event in events if event not in last and event is not held]
    assert_each_run_equals_duckdb(pipeline, tmp_path, [first])
    assert opened(tmp_path / "out") == list(range(8))
    # The last day, and the one before, whose tasks waited at midnight.
    assert_each_run_equals_duckdb(pipeline, tmp_path, [first, last])
    assert opened(tmp_path / "out") == [7, 8]
    # A late event of day 3 ends a task that seemed to be in progress since then.
    assert_each_run_equals_duckdb(pipeline, tmp_path, [first, last, [held]])
    days = opened(tmp_path / "out")
    assert 3 in days
    assert 0 not in days
    tables = published(tmp_path / "out")
    # Days may be computed again, and their events be given up.
    chosen = {"since": "2026-01-02", "until": "2026-01-03", "keep_silver_days": 2}
    again = pipeline(tmp_path / "in", tmp_path / "out", **chosen)
    assert opened(tmp_path / "out") == [0, 1, 2]  # the first one has a task that waited into the second
    assert published(tmp_path / "out") == tables
    kept = {path.name for path in tmp_path.glob("out/silver/*/day=*")}
    assert kept == {f"day=2026-01-0{day}" for day in (7, 8, 9)}
    write_lines(tmp_path / "in/late.json", [held | {"event_id": "late"}])
    late = pipeline(tmp_path / "in", tmp_path / "out", keep_silver_days=2)
    assert (late["events_too_late"], late["events_read"]) == (1, again["events_read"] + 1)
    assert published(tmp_path / "out") == tables
    forgotten = r"of 2026-01-05 to 2026-01-06 were deleted .* give --since after 2026-01-06"
    for name, value, why in (
        (
            "index_lag_seconds",
            1.0,
            r"index-lag-seconds was 0\.0, now it is 1\.0; .* 2026-01-01 to 2026-01-06",
        ),
        ("since", "2026-01-05", forgotten),
        ("since", "2030-01-01", "to the last is recorded; those from 2026-01-01 to 2026-01-09"),
        ("until", "2025-12-31", "until: no day from the first to 2025-12-31 is recorded"),
    ):
        with pytest.raises(BadInput, match=why):
            pipeline(tmp_path / "in", tmp_path / "out", **{name: value})
    assert published(tmp_path / "out") == tables


@pytest.mark.timeout(PATIENCE_SECONDS)
def test_an_increment_computes_the_hours_that_it_changed(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[set[int]] = []

    def noted(*arguments: Any) -> Opened:
        found = open_hours(*arguments)
        opened.append({hour - 24 * number("2026-01-01") for hour in found.hours.tasks or ()})
        return found

    monkeypatch.setattr("freshq_pipeline.gold.build.open_hours", noted)
    events = quiet_hours(7).landed()
    hours = [event["stream_ms"] / 3_600_000 - START_SECONDS / 3600 for event in events]
    held = next(event for event in events if event["task_id"] == "h2-1" and event["status"] == "SUCCESS")
    rest = [(event, at) for event, at in zip(events, hours, strict=True) if event is not held]
    of_parts = ((0, 5), (5, 5.5), (5.5, 9))
    parts = [[event for event, at in rest if first <= at < end] for first, end in of_parts]
    assert_each_run_equals_duckdb(pipeline, tmp_path, [*parts, [held]])
    # The hour of the last event and the hour before, whose task waited past its end.
    assert opened[:2] == [{3, 4, 5}, {4, 5, 6}]
    # A task of hour 2 seemed to be in progress since then.
    assert {2, 3, 4, 5, 6} <= opened[2]
    assert 0 not in opened[2]
    files = {path.parent for path in tmp_path.glob("out/tables/*/day=*/queue=*/*.parquet")}
    assert len(files) == 2  # of tasks and of minutes


@pytest.mark.timeout(PATIENCE_SECONDS)
@pytest.mark.parametrize(
    ("size", "few_steps", "partitions"), [(SMALL, 1 << 20, "1"), (SMALL, 1 << 20, "2"), (LARGE, 0, "2")],
    ids=["small", "small in two partitions", "large"],
)  # fmt: skip
def test_increments_of_a_day_equal_duckdb(
    size: Tuning, few_steps: int, partitions: str, spark: SparkSession, pipeline: Pipeline, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("freshq_pipeline.gold.build.FEW_STEPS", few_steps)
    parts = nights(recorded(60, seed=7, days=1), count=5, late=0.05, seed=7)
    before = str(spark.conf.get("spark.sql.shuffle.partitions"))
    try:
        spark.conf.set("spark.sql.shuffle.partitions", partitions)
        with tuned(spark, size):
            assert_each_run_equals_duckdb(pipeline, tmp_path, parts)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)


@pytest.mark.parametrize(
    ("size", "master", "is_cached"),
    [(SMALL, "local[2]", False), (SMALL, "local-cluster[2,1,1024]", True), (LARGE, "local[2]", True)],
)
def test_steps_are_computed_once(size: Tuning, master: str, is_cached: bool, spark: SparkSession) -> None:
    with tuned(spark, size):
        session: Any = SimpleNamespace(conf=spark.conf, sparkContext=SimpleNamespace(master=master))
        steps = kept(session, spark.range(3).withColumn("made", F.expr("uuid()")))
        assert steps.is_cached is is_cached
        assert sorted(steps.select("made", "id").collect()) == sorted(steps.select("made", "id").collect())
        release(steps)


@pytest.mark.timeout(PATIENCE_SECONDS)
@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["small", "large"])
def test_runs_leave_no_steps_in_memory(
    size: Tuning, spark: SparkSession, pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java: Any = spark.sparkContext._jsc
    before, while_running = set(java.getPersistentRDDs()), list[int]()

    def note(steps: DataFrame) -> None:
        while_running.append(len(set(java.getPersistentRDDs()) - before))
        release(steps)

    monkeypatch.setattr("freshq_pipeline.gold.build.release", note)
    with tuned(spark, size):
        for number, part in enumerate(nights(recorded(60, seed=7, days=1), count=2, late=0, seed=7)):
            write_lines(tmp_path / f"in/{number}.json", part)
            pipeline(tmp_path / "in", tmp_path / "out")
    assert while_running == [1, 1]
    assert not set(java.getPersistentRDDs()) - before


@pytest.mark.timeout(PATIENCE_SECONDS)
def test_the_recording_of_each_queue_begins_with_its_own_first_event(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    tape = Recording()
    tape.put(0, "a", queue="one")
    tape.put(1, "b", queue="two")
    tape.put(2, "c", queue="two")
    tape.put(2.1, "d", queue="two")
    tape.change(2.2, "d", "CANCELLED")
    tape.put(3, "d", queue="two")  # used again, and then lost
    tape.take(4, "d")
    tape.remove(4.5, "d", by_ttl=True)
    for at, task in ((5, "b"), (6, "c")):
        tape.take(at, task)
        tape.settle(at + 0.5, task, "SUCCESS")
    first, other, _put, *earlier = tape.landed()[:5]
    lost, rest = tape.landed()[5:8], tape.landed()[8:]
    # The queue two keeps a history only since 5 s, so that the put of c is before it.
    summary = assert_each_run_equals_duckdb(pipeline, tmp_path, [[first, *rest]])
    assert summary["ledger_violations"] == 0
    # An event of 1 s makes it known that the put of c is missing.
    parts = [[first, *rest], [other, *lost]]
    summary = assert_each_run_equals_duckdb(pipeline, tmp_path, parts)
    violations = {row["queue"]: row["ledger_violations"] for row in summary["queues"]}
    assert violations == {"one": 0, "two": 2}
    # The first life of d is now its second one: that is no new violation.
    summary = assert_each_run_equals_duckdb(pipeline, tmp_path, [*parts, earlier])
    assert (summary["new_ledger_violations"], summary["ledger_violations"]) == (0, 2)
    # To compute a day again brings no violation that the run before did not have.
    computed_again: tuple[dict[str, Any], ...] = ({}, {"since": "2026-01-01"}, {"index_lag_seconds": 1.0})
    for options in computed_again:
        again = pipeline(tmp_path / "in", tmp_path / "out", **options)
        assert (again["new_ledger_violations"], again["ledger_violations"]) == (0, 2), options
    afresh = pipeline(tmp_path / "in", tmp_path / "out", full_refresh=True)
    assert [row["new_ledger_violations"] for row in afresh["queues"]] == [0, 2]


def test_days_of_the_options() -> None:
    options = Options(since="2026-01-02", until="2026-01-03")
    assert [options.again_on(number(f"2026-01-0{day}")) for day in range(1, 5)] == [False, True, True, False]
    assert not Options().again_on(20454)
    assert iso(20454) == "2026-01-01"
    assert number(iso(20454)) == 20454
    for wrong in ("2026-1-2", "today", "2026-01-02T00:00:00"):
        with pytest.raises(BadInput, match="since: "):
            Options(since=wrong)
    with pytest.raises(BadInput, match=r"since: .* until"):
        Options(since="2026-01-02", until="2026-01-01")


def test_days_without_a_put_are_recorded_if_tasks_waited() -> None:
    waited = Day(hours={23: Hour(DAY_US - 1, 2 * DAY_US)})
    in_progress = Day(hours={7 * 24: Hour(7 * DAY_US, 7 * DAY_US, has_open=True)})
    until_later = Day(hours={4 * 24: Hour(4 * DAY_US, 90 * DAY_US)})
    of_new_events = Day(silver={"1": 1})
    assert recorded_days({0: waited, 5: of_new_events}, 9 * DAY_US) == {0, 1, 2, 5}
    assert recorded_days({7: in_progress}, 9 * DAY_US) == {7, 8, 9}
    assert recorded_days({4: until_later}, 5 * DAY_US) == {4, 5}


def test_hours_are_widened_to_few_spans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("freshq_pipeline.storage.days.MAX_SPANS", 2)
    assert spans([]) == []
    assert spans([5, 3, 4, 9]) == [(3, 6), (9, 10)]
    assert widened({3, 5, 9}) == {3, 4, 5, 9}
    assert widened({3, 9, 10}) == {3, 9, 10}
    known = Hour(HOUR_US - 1, 3 * HOUR_US)
    assert [known.touches([hour]) for hour in range(5)] == [True, True, True, True, False]
    assert known.touches([7, 8]) is False


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("order", ["by time", "random"])
def test_many_nights_equal_duckdb(order: str, seed: int, pipeline: Pipeline, tmp_path: Path) -> None:
    parts = nights(recorded(150, seed=seed, days=10), count=10, late=0.03, seed=seed)
    if order == "random":
        random.Random(seed).shuffle(parts)
    assert_each_run_equals_duckdb(pipeline, tmp_path, parts)
