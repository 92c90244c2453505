"""The settings of Spark follow from the size of the input."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from freshq_pipeline.runs.batch import RunPlan, execute
from freshq_pipeline.runs.progress import RunProgress
from freshq_pipeline.runs.request import RunRequest
from freshq_pipeline.spark.tuning import (
    INFLATION,
    LARGE,
    MEDIUM,
    MEDIUM_BYTES,
    SMALL,
    SMALL_BYTES,
    tuning_for,
    uncompressed_bytes,
)
from freshq_pipeline.storage.days import DAY_US, Day
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.state import State

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from freshq_pipeline.spark.tuning import Tuning


@pytest.mark.parametrize(
    ("input_bytes", "chosen"),
    [
        (0, SMALL),
        (SMALL_BYTES, SMALL),
        (SMALL_BYTES + 1, MEDIUM),
        (MEDIUM_BYTES, MEDIUM),
        (MEDIUM_BYTES + 1, LARGE),
        (1 << 40, LARGE),
    ],
)
def test_settings_by_size(input_bytes: int, chosen: Tuning) -> None:
    assert tuning_for(input_bytes) is chosen


def test_compressed_files_count_as_what_they_inflate_to() -> None:
    assert uncompressed_bytes({}) == 0
    assert uncompressed_bytes({"a.json": 100, "b.json.gz": 10}) == 100 + 10 * INFLATION


def test_open_days_of_earlier_runs_count() -> None:
    days = {0: Day({"1": MEDIUM_BYTES // INFLATION}, last_us=DAY_US), 1: Day({"1": 1}, last_us=3 * DAY_US)}
    before = State("1", "in", "landed", files={"old": [MEDIUM_BYTES, 0]}, days=days, as_of_us=2 * DAY_US)
    files = {"old": (MEDIUM_BYTES, 0), "new": (100, 0)}
    assert RunPlan(None, files, ["new"]).tuning() is SMALL
    assert RunPlan(None, files, ["new", "old"]).tuning() is LARGE
    # Both days in silver are open; later the first one is over, unless all days may be computed.
    assert RunPlan(before, files, ["new"]).tuning() is LARGE
    before.as_of_us = 2 * DAY_US + 1
    assert RunPlan(before, files, ["new"]).tuning() is SMALL
    assert RunPlan(before, files, ["new"], again=True).tuning() is LARGE


@pytest.mark.parametrize(("size_bytes", "chosen"), [(2, SMALL), (MEDIUM_BYTES + 1, LARGE)])
def test_a_run_starts_spark_with_them_and_says_so(size_bytes: int, chosen: Tuning, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    with (tmp_path / "in/a.json").open("wb") as file:
        file.truncate(size_bytes)
    shown, given = StringIO(), list[Any]()

    def session(tuning: Tuning) -> Any:
        given.append(tuning)
        raise InterruptedError

    request = RunRequest(Folder(str(tmp_path / "in")), Folder(str(tmp_path / "out")))
    with (
        RunProgress(Console(file=shown, force_terminal=True, width=120)) as progress,
        pytest.raises(InterruptedError),
    ):
        execute(request, session, progress)
    assert given == [chosen]
    assert f"1/7 starting Spark for a {chosen.name} input" in shown.getvalue()


def test_spark_and_its_java_have_them(spark: SparkSession) -> None:
    java: Any = spark.sparkContext._jvm
    options = list(java.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments())
    assert set(SMALL.java) <= set(options)
    assert not set(LARGE.java) & set(options)
    configured = spark.sparkContext.getConf()
    assert {name: configured.get(name) for name in SMALL.spark} == SMALL.spark
