"""Sums of batches are those of all rows at once, whatever is in memory at a time."""

from __future__ import annotations

import pyarrow as pa
import pytest

from freshq_pipeline.gold import totals
from freshq_pipeline.gold.totals import workers
from freshq_pipeline.schemas import TABLES
from freshq_pipeline.storage.arrow import arrow_schema

SCHEMA = arrow_schema(TABLES["workers"])


@pytest.mark.parametrize("rows_at_a_time", [1, 3, 1 << 18])
def test_workers_of_many_days(rows_at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    most = 0
    summed = totals.summed

    def watched(rows: pa.Table, *arguments: object) -> pa.Table:
        nonlocal most
        most = max(most, len(rows))
        return summed(rows, *arguments)  # type: ignore[arg-type]  # as they came

    monkeypatch.setattr(totals, "ROWS_AT_A_TIME", rows_at_a_time)
    monkeypatch.setattr(totals, "summed", watched)
    names = ["w1", None, "w2"]
    day = pa.record_batch(
        [pa.array(["mail"] * 3), pa.array(names), *(pa.array(n) for n in ([3, 2, 1], [2, 2, 0], [1, 0, 1]))],
        schema=SCHEMA,
    )
    found = workers([day] * 40)
    assert {row["worker"]: tuple(row.values())[2:] for row in found.to_pylist()} == {
        "w1": (120, 80, 40), "w2": (40, 0, 40), None: (80, 80, 0),
    }  # fmt: skip
    assert most <= rows_at_a_time + 3 + 3 or most == 40 * 3
    assert len(workers([])) == 0
