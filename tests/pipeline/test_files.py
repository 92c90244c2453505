"""The tables have about one file for each day and queue, whatever the number of partitions."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from freshq_pipeline.gold import build, inversions
from freshq_pipeline.schemas import BY_DAY
from freshq_pipeline.spark.tuning import LARGE
from tests.pipeline.conftest import Pipeline, all_rows, tuned, without_names
from tests.pipeline.recording import Recording, write_lines

DAY = 86_400


def skewed() -> Recording:
    """Nearly all tasks are in one queue, half of them on one day, and one task has many events."""
    tape = Recording()
    for number in range(400):
        day = 1 if number % 2 else number % 5
        queue = "rare" if number % 20 == 0 else "hot"
        tape.put(day * DAY + number, f"{number}", queue=queue, max_age=3 * DAY)
        tape.take(day * DAY + number + 5, f"{number}")
        tape.settle(day * DAY + number + 9, f"{number}", "SUCCESS")
    tape.put(2 * DAY, "busy", queue="hot", max_age=9 * DAY)
    for attempt in range(500):
        tape.take(2 * DAY + 10 * attempt, "busy", holder=f"w:{attempt}")
        tape.settle(2 * DAY + 10 * attempt + 5, "busy", "PENDING")
    return tape


def test_few_files_of_equal_rows(
    pipeline: Pipeline, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lines(tmp_path / "in/a.json", skewed().landed())
    expected = pipeline(tmp_path / "in", tmp_path / "small")
    partitions = "spark.sql.shuffle.partitions"
    before: Any = spark.conf.get(partitions)
    # So that Spark computes inversions.
    monkeypatch.setattr(build, "FEW_STEPS", 0)
    for module in (build, inversions):
        monkeypatch.setattr(module, "GROUP_ROWS", 100)
    try:
        spark.conf.set(partitions, "12")
        with tuned(spark, LARGE):
            found = pipeline(tmp_path / "in", tmp_path / "large")
    finally:
        spark.conf.set(partitions, before)
    assert without_names(found) == without_names(expected)
    assert all_rows(found) == all_rows(expected)
    for table in BY_DAY:
        files = list((tmp_path / "large/files" / table).glob("*/*/*.parquet"))
        assert len(files) <= 1.5 * len({file.parent for file in files}), table
