"""What the report reads of the tables: sums over groups and batches, and a bounded number of rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from freshq_pipeline.report import time_steps
from freshq_pipeline.report.sections import shed_counts
from freshq_pipeline.report.tables import Sums, Tables
from freshq_pipeline.report.time_steps import by_minute
from freshq_pipeline.schemas import TABLES
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.table_files import manifest_path, place

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

DAY_MS = 86_400_000
MINUTE_MS = 60_000
START_MS = 1_767_225_600_000
TYPES = {
    "string": pa.string(), "int": pa.int32(), "bigint": pa.int64(), "double": pa.float64(),
    "boolean": pa.bool_(), "array<string>": pa.list_(pa.string()),
    "array<struct<bucket:int,count:bigint>>":
        pa.list_(pa.struct([("bucket", pa.int32()), ("count", pa.int64())])),
    "array<struct<from_seconds:int,count:bigint>>":
        pa.list_(pa.struct([("from_seconds", pa.int32()), ("count", pa.int64())])),
}  # fmt: skip


def tables_of(out: Path, rows: dict[str, list[dict[str, Any]]], queues: tuple[str, ...]) -> Tables:
    """Write tables as a run does, those with `day` by day and queue, and return them for the report."""
    files: dict[str, list[str]] = {name: [] for name in TABLES}
    for name, listed in rows.items():
        by_day = {(row["day"], row["queue"]) for row in listed if "day" in row}
        partitions: set[tuple[str, str] | None] = {*by_day} or {None}
        for key in sorted(partitions, key=str):
            mine = [row for row in listed if key in (None, (row.get("day"), row["queue"]))]
            folder = place(name) + ("" if key is None else f"/day={key[0]}/queue={key[1]}")
            left = {column: kind for column, kind in TABLES[name].items() if key is None or column != "queue"}
            schema = pa.schema([(column, TYPES[kind]) for column, kind in left.items()])
            (out / folder).mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.Table.from_pylist(mine, schema), out / folder / "1-0000.parquet")
            files[name].append(f"{folder}/1-0000.parquet")
    manifest = out / manifest_path("1")
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"run_id": "1", "tables": files}))
    return Tables(Folder(str(out)), "1", queues)


def minute(at: int, queue: str = "mail", **more: Any) -> dict[str, Any]:
    """Return a row of `minutes`; its backlog and waits are given as dicts."""
    lists = {
        "wait_histogram": [{"bucket": key, "count": count} for key, count in more.pop("waits", {}).items()],
        "backlog_by_age": [
            {"from_seconds": key, "count": count} for key, count in more.pop("ages", {}).items()
        ],
    }
    flows = dict.fromkeys(("offered", "succeeded", "failed", "cancelled", "shed"), 0)
    day = f"{pd.Timestamp(START_MS + at * MINUTE_MS, unit='ms'):%Y-%m-%d}"
    named = {name: value or None for name, value in lists.items()}
    return {"minute_ms": START_MS + at * MINUTE_MS, "queue": queue, "day": day} | flows | named | more


def test_minutes_are_added_up_over_groups_and_steps(tmp_path: Path) -> None:
    last = 2 * 24 * 60 - 1  # so that a step has a quarter of an hour
    rows = [
        minute(0, task_group="a", offered=3, waits={5: 1, 7: 2}, ages={0: 4}, oldest_pending_seconds=9.0),
        minute(0, task_group="b", offered=1, waits={7: 1}, ages={0: 2, 10: 1}, newest_pending_seconds=2.0),
        minute(11, task_group="a", offered=1, ages={0: 5}, oldest_pending_seconds=4.0),
        minute(15, task_group="a", shed=1, newest_pending_seconds=1.0, service_horizon_seconds=3.0),
        minute(last, task_group="a", succeeded=2, waits={5: 4}),
        minute(0, "post", offered=7),
        minute(0, "left out", offered=9),
    ]
    found = by_minute(tables_of(tmp_path, {"minutes": rows}, ("mail", "post")))
    plain = found.astype(object).where(found.notna(), None).to_dict("records")
    steps = 2 * 24 * 4
    assert [(row["queue"], row["minute_ms"] - START_MS) for row in plain] == [
        (queue, step * 15 * MINUTE_MS) for queue in ("mail", "post") for step in range(steps)
    ]
    first, second, third, end, post = (plain[step] for step in (0, 1, 2, steps - 1, steps))
    assert (third["offered"], third["oldest_pending_seconds"], third["wait_histogram"]) == (0, None, None)
    assert (first["offered"], first["oldest_pending_seconds"], first["newest_pending_seconds"]) == (5, 9, 2)
    assert first["wait_histogram"] == [{"bucket": 5, "count": 1}, {"bucket": 7, "count": 3}]
    # The groups of a minute together; of the minutes of a step, the one with the most.
    assert first["backlog_by_age"] == [{"from_seconds": 0, "count": 6}, {"from_seconds": 10, "count": 1}]
    assert (second["shed"], second["service_horizon_seconds"], second["wait_histogram"]) == (1, 3, None)
    assert (end["succeeded"], post["offered"], post["backlog_by_age"]) == (2, 7, None)
    assert first["at"] == pd.Timestamp(START_MS, unit="ms")


def task(at_ms: float, **more: Any) -> dict[str, Any]:
    day = f"{pd.Timestamp(START_MS + at_ms, unit='ms'):%Y-%m-%d}"
    return {"queue": "mail", "day": day, "created_ms": START_MS + at_ms, "outcome": "success"} | more


def test_shed_tasks_are_counted_by_group_and_reason(tmp_path: Path) -> None:
    shed = {"outcome": "shed", "shed_reason": "expired"}
    rows = [
        *(task(at * DAY_MS, task_group="a", **shed) for at in (0, 0, 1)),
        task(0, task_group="a", outcome="shed", shed_reason="codel"),
        task(0, outcome="shed"),
        task(0, task_group="a"),
        task(0, queue="left out", **shed),
    ]
    found = shed_counts(tables_of(tmp_path, {"tasks": rows}, ("mail",)))
    assert found.to_dict("records") == [
        {"queue": "mail", "task_group": "(none)", "shed_reason": "unknown", "tasks": 1},
        {"queue": "mail", "task_group": "a", "shed_reason": "codel", "tasks": 1},
        {"queue": "mail", "task_group": "a", "shed_reason": "expired", "tasks": 3},
    ]


def test_only_a_short_recording_of_few_tasks_is_read_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Around midnight, with a delayed put of the next day.
    rows = [task(at) for at in (DAY_MS - 1000, DAY_MS, DAY_MS + 5000, 3 * DAY_MS)]
    tables = tables_of(tmp_path, {"tasks": rows}, ("mail",))
    half_an_hour_later = START_MS + DAY_MS - 1000 + time_steps.SHORT_MS
    found = time_steps.short_recording(tables, half_an_hour_later)
    assert found is not None
    assert (len(found), set(found.columns)) == (4, {"queue", *time_steps.SHORT_COLUMNS})
    assert time_steps.short_recording(tables, half_an_hour_later + 1) is None
    monkeypatch.setattr(time_steps, "MAX_TASKS", 3)
    assert time_steps.short_recording(tables, half_an_hour_later) is None


def test_the_largest_rows_of_a_table(tmp_path: Path) -> None:
    rows = [{"queue": "mail", "worker": f"w{number}", "claims": number * 7 % 11} for number in range(11)]
    tables = tables_of(tmp_path, {"workers": [*rows, {"queue": None, "worker": "w", "claims": 99}]}, ())
    found = tables.largest("workers", "claims", 3)
    assert [(row.queue, row.claims) for row in found.itertuples()] == [
        ("(none)", 99),
        ("mail", 10),
        ("mail", 9),
    ]
    assert len(tables.first("workers", 2)) == 2


def test_sums_do_not_depend_on_how_rows_come() -> None:
    rows = pa.table({"key": [1, 2, 1, 2, 3], "count": [1, 2, 3, 4, 5], "least": [5, 4, 3, 2, 1]})
    how = {"count": "sum", "least": "min"}
    at_once, in_parts = Sums(("key",), how), Sums(("key",), how)
    at_once.add(rows)
    for number in range(200):
        in_parts.add(rows.slice(number, 1))
    assert at_once.rows() == in_parts.rows()
    assert at_once.rows().to_pylist()[0] == {"key": 1, "count": 4, "least": 3}
