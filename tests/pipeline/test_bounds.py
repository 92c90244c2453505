"""The driver holds a bounded amount, whatever the number of events; above a bound Spark does the work."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.dataset import dataset
from pyspark.sql import SparkSession

from freshq_pipeline.gold import figures, silver_days
from freshq_pipeline.gold.totals import SCHEMA, TOTAL, VIOLATIONS
from freshq_pipeline.schemas import TOTALS
from freshq_pipeline.storage import folder
from freshq_pipeline.storage.days import DAY_US, HOUR_US, Day
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.state import State, silver_path


def add(spark: SparkSession, out: Folder, state: State, run_id: str, ids: dict[int, list[str]]) -> None:
    state.run_id = run_id
    schema = pa.schema([("queue", pa.string()), ("task_id", pa.string()), ("created_us", pa.int64())])
    for day, tasks in ids.items():
        names = pa.array([None if "/" not in task else task.partition("/")[0] for task in tasks], pa.string())
        created = pa.array([day * DAY_US + HOUR_US * at for at in range(len(tasks))])
        ids_of_tasks = pa.array([task.rpartition("/")[2] for task in tasks])
        rows = pa.record_batch([names, ids_of_tasks, created], schema=schema)
        out.write_parquet(f"{silver_path(run_id, day)}/0.parquet", [rows], schema)
        state.days.setdefault(day, Day()).silver[run_id] = 1
    silver_days.index_ids(spark, out, state)


@pytest.mark.parametrize("here", ["nothing", "silver"])
def test_spark_links_the_same_days(
    here: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silver_days, "SILVER_HERE_BYTES", 0 if here == "nothing" else 1 << 40)
    monkeypatch.setattr(silver_days, "INDEX_HERE_BYTES", 0)
    monkeypatch.setattr(silver_days, "HASHED_BYTES", 1)  # each file is hashed on its own
    out, state = Folder(str(tmp_path)), State("", "in", "landed")
    add(spark, out, state, "a", {1: ["x", "mail/y", "x"], 2: ["z", "ship/y"]})
    # Arrow made this part of the index, if the first run was smaller.
    monkeypatch.setattr(silver_days, "SILVER_HERE_BYTES", 0)
    add(spark, out, state, "b", {3: ["mail/y", "new"], 4: ["new", "mail/z"], 5: ["x"]})
    assert {day: sorted(known.linked) for day, known in state.days.items()} == {
        1: [1, 3, 5], 2: [], 3: [1, 4], 4: [3], 5: [1],
    }  # fmt: skip


def test_spark_links_no_days_without_an_id_in_common(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(silver_days, "SILVER_HERE_BYTES", 0)
    out, state = Folder(str(tmp_path)), State("", "in", "landed")
    add(spark, out, state, "a", {1: ["x"], 2: ["y", "mail/x"]})
    add(spark, out, state, "b", {1: ["x"], 3: ["ship/x"]})
    assert [known.linked for known in state.days.values()] == [[], [], []]
    assert len(out.files("ids")) == len(state.ids)


def test_spark_counts_the_same_new_violations(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Folder(str(tmp_path))

    def run(run_id: str, rows: list[tuple[str | None, str, int, str]]) -> State:
        values: dict[str, Any] = dict.fromkeys(TOTALS)
        named = [
            values | {"kind": VIOLATIONS, "queue": queue, "task_id": task, "created_us": created, "day": day}
            for queue, task, created, day in rows
        ]
        path = f"parts/totals/{run_id}.parquet"
        out.write_parquet(path, pa.Table.from_pylist(named, SCHEMA).to_batches(), SCHEMA)
        return State(run_id, "in", "landed", opened=["2026-01-02"], tables={TOTAL: {"": [path]}})

    day = "2026-01-02"
    before = run("1", [("a", "x", 1, day), (None, "x", 1, day), ("a", "gone", 1, day)])
    after = run("2", [("a", "x", 1, day), ("a", "x", 2, day), ("a", "y", 1, day), ("a", "y", 1, day),
                      (None, "x", 1, day), (None, "y", 1, day), ("a", "z", 1, "2026-01-01")])  # fmt: skip
    found = []
    for here in (figures.VIOLATIONS_HERE, 0):
        monkeypatch.setattr(figures, "VIOLATIONS_HERE", here)
        found.append([figures._new_violations(spark, out, after, one) for one in (None, before)])
    assert found == [[Counter({"a": 3, None: 2}), Counter({"a": 2, None: 1})]] * 2


def test_a_scan_keeps_no_metadata_of_the_files_that_it_has_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, rows, scanned = Folder(str(tmp_path)), pa.table({"number": [1, 2]}), list[Any]()
    paths = ["one.parquet", "two.parquet"]
    for path in paths:
        out.write_parquet(path, rows.to_batches(), rows.schema)

    def noted(*arguments: Any, **named: Any) -> Any:
        scanned.append(dataset(*arguments, **named))
        return scanned[-1]

    monkeypatch.setattr(folder, "dataset", noted)
    assert out.scan(paths, None, None).to_table().num_rows == 2 * len(rows)
    out.delete_files(paths)
    fragments = list(scanned[0].get_fragments())
    assert len(fragments) == len(paths)
    for fragment in fragments:
        # Values that are not kept must be read from the file.
        with pytest.raises(FileNotFoundError):
            fragment.metadata  # noqa: B018 - the access reads it
