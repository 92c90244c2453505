"""Claims out of turn are found in groups of bounded size, in about as many rows as there are tasks."""

import random

import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession

from freshq_pipeline.gold import inversions as module
from freshq_pipeline.gold.inversions import CHUNK_US, WITH_HOUR, chunks
from freshq_pipeline.schemas import ddl
from freshq_pipeline.storage.days import DAY_US

COLUMNS = "queue string, priority int, since_us bigint, until_us bigint, created_us bigint"
ROW = f"{COLUMNS}, task_id string, life int"
Row = tuple[str | None, int, int, int | None, int, str | None, int | None]


def frames(spark: SparkSession, claims: list[Row], waits: list[Row]) -> tuple[DataFrame, DataFrame]:
    return spark.createDataFrame(claims, ROW), spark.createDataFrame(waits, ROW)


def found(rows: DataFrame) -> set[str]:
    grouped = rows.groupBy("queue", "priority", "chunk_us", "chunk")
    return {row["task_id"] for row in grouped.applyInArrow(module._out_of_turn, ddl(WITH_HOUR)).collect()}


@pytest.mark.parametrize(("group_rows", "pieces"), [(10**9, 20), (20, 20)])
def test_claims_in_chunks_equal_all_pairs(
    group_rows: int, pieces: int, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GROUP_ROWS", group_rows)
    monkeypatch.setattr(module, "PIECES", pieces)
    generator = random.Random(group_rows)
    levels = [("a", 0), ("a", 1), (None, 0)]
    claims: list[Row] = []
    waits: list[Row] = []
    for number in range(300):
        # Most of them are close together.
        at = generator.choice((generator.randrange(3000), 1200 + generator.randrange(60)))
        claims.append((*generator.choice(levels), at, None, generator.randrange(100), f"{number}", 1))
        since = generator.choice((generator.randrange(3000), 1200 + generator.randrange(60)))
        until = since + 1 + generator.choice((generator.randrange(40), generator.randrange(2500)))
        waits.append((*generator.choice(levels), since, until, generator.randrange(60), None, None))
    expected = {
        str(task)
        for queue, priority, at, _, own, task, _ in claims
        if any(
            (queue, priority) == wait[:2] and wait[2] < at < int(wait[3] or 0) and wait[4] > own
            for wait in waits
        )
    }
    assert 20 < len(expected) < 280
    rows = chunks(*frames(spark, claims, waits), 100, many=True)
    assert found(rows) == expected
    sizes = rows.groupBy("queue", "priority", "chunk_us", "chunk").count().toArrow()
    by_length = {length: sizes.filter(pc.field("chunk_us") == length) for length in (100, 100 // pieces)}
    assert pc.max(by_length[100]["count"]).as_py() <= group_rows
    assert (len(by_length[100 // pieces]) > 0) == (group_rows < 10**9)


def test_long_waits_take_few_rows(spark: SparkSession) -> None:
    tasks, days = 5000, 14
    begin = 20_000 * DAY_US
    waits: list[Row] = [
        ("a", 0, begin + number, begin + days * DAY_US - number, begin + number, None, None)
        for number in range(tasks)
    ]
    # Each task is claimed at the end of its wait, and an older one each quarter of an hour.
    claims: list[Row] = [("a", 0, wait[3] or 0, None, wait[4], f"t{wait[4]}", 1) for wait in waits]
    old = range(1, days * DAY_US // CHUNK_US, 7)
    claims += [("a", 0, begin + one * CHUNK_US, None, begin - 1, f"old{one}", 1) for one in old]
    rows = chunks(*frames(spark, claims, waits), many=True)
    assert rows.count() <= 4 * tasks
    assert {f"old{one}" for one in old} <= found(rows)
