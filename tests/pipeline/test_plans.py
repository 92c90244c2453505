"""Properties of the physical plans: no single partition, one shuffle by task, no Python."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from freshq_pipeline.gold.inversions import inversions
from freshq_pipeline.gold.minutes import minutes
from freshq_pipeline.gold.steps import distinct_steps
from freshq_pipeline.gold.tasks import lives, tasks
from freshq_pipeline.gold.totals import fates, violations, worked
from freshq_pipeline.ingest.sources import canonical_files
from freshq_pipeline.schemas import EVENT, Format, ddl
from freshq_pipeline.storage.table_files import columns_with_day

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

PARTITIONS = 3
AS_OF_US = 1_767_225_600_000_000
BY_TASK = re.compile(r"Exchange hashpartitioning\(task_id#\d+L?(.*, life#\d+)?, \d+\)")
ONE_PARTITION = "SinglePartition"
PYTHON = ("Python", "Pandas", "InArrow")


def plan_of(table: DataFrame) -> str:
    return str(table._jdf.queryExecution().executedPlan().toString())


@pytest.fixture
def steps(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """Steps of one file: without files the optimizer knows that the result is empty."""
    (tmp_path / "a.json").write_text("{}\n")
    events = spark.read.schema(ddl(EVENT)).json(str(tmp_path / "a.json"))
    return distinct_steps(events, PARTITIONS)


@pytest.fixture
def written(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """The table `tasks` as the other tables read it."""
    return spark.read.schema(ddl(columns_with_day("tasks"))).json(str(tmp_path / "a.json"))


def test_one_shuffle_by_task(steps: DataFrame) -> None:
    # Lives are sorted for aggregation within the same partitions: hashing such wide rows is slower.
    for table, sorts in ((steps, 1), (lives(steps), 2)):
        plan = plan_of(table)
        assert len(BY_TASK.findall(plan)) == 1
        assert plan.count("Exchange") == 1
        assert plan.count("Sort [task_id") == sorts


def test_lives_are_not_shuffled_again_for_inversions(spark: SparkSession, steps: DataFrame) -> None:
    threshold = "spark.sql.autoBroadcastJoinThreshold"
    before = str(spark.conf.get(threshold))
    spark.conf.set(threshold, "-1")  # as with millions of lives, where neither side of the join is small
    try:
        plan = plan_of(tasks(lives(steps), inversions(steps, AS_OF_US), AS_OF_US, F.lit(0)))
    finally:
        spark.conf.set(threshold, before)
    assert "SortMergeJoin" in plan
    # Only the inversions are shuffled: by task and life to be distinct, and then to the lives.
    assert len([life for life in BY_TASK.findall(plan) if life]) == 1


def test_nothing_runs_in_one_partition(steps: DataFrame, written: DataFrame) -> None:
    inverted = inversions(steps, AS_OF_US)
    made = {
        "tasks": tasks(lives(steps), inverted, AS_OF_US, F.lit(0)),
        "minutes": minutes(steps, written, AS_OF_US),
        "workers": worked(steps),
        "fates": fates(written),
        "violations": violations(written),
    }
    for name, table in made.items():
        plan = plan_of(table)
        assert ONE_PARTITION not in plan, name
        # Spark has no operator for inversions.
        assert (name == "tasks") == any(word in plan for word in PYTHON), name


def test_reading_takes_neither_a_shuffle_nor_python(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}\n")
    plan = plan_of(canonical_files(spark, [str(tmp_path / "a.json")], Format.LANDED))
    assert "Exchange" not in plan
    assert not any(word in plan for word in PYTHON)
