"""The parts of the tables that are made without Spark."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshq_pipeline.gold import build as gold
from freshq_pipeline.gold import totals
from freshq_pipeline.gold.chains import hops
from freshq_pipeline.gold.inversions import out_of_turn
from freshq_pipeline.gold.open_hours import OpenHours
from freshq_pipeline.gold.silver_days import hashed, index_ids
from freshq_pipeline.gold.totals import workers
from freshq_pipeline.schemas import TABLES, VALUES
from freshq_pipeline.storage.arrow import arrow_schema
from freshq_pipeline.storage.days import DAY_US, HOUR_US, Day, chained_days, linked_days
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.recording import IndexLag
from freshq_pipeline.storage.state import State, silver_path

TIME = st.integers(0, 12)


@given(
    st.lists(st.tuples(TIME, TIME), max_size=20),
    st.lists(st.tuples(TIME, TIME, TIME), max_size=20),
)
def test_vectorized_equals_pairwise(claims: list[tuple[int, int]], waits: list[tuple[int, int, int]]) -> None:
    columns = [
        np.array([row[place] for row in rows], dtype=np.int64)
        for rows, width in ((claims, 2), (waits, 3))
        for place in range(width)
    ]
    expected = [
        any(since < at < until and created > own for since, until, created in waits) for at, own in claims
    ]
    assert out_of_turn(*columns).tolist() == expected


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


TASK_ROWS = [
    {"queue": "mail", "day": "2026-01-01", "task_id": "a", "life": 1, "task_group": "g", "created_ms": 1.5,
     "wait_seconds": 2.0, "run_seconds": 0.5, "outcome": "success", "inverted": None, "in_time": True,
     "kind": "k", "value": 1e12, "decay": "linear", "value_delivered": 9e11, "problems": []},
    {"queue": "mail", "day": "2026-01-01", "task_id": "b", "life": 2, "task_group": "g", "created_ms": 2.0,
     "wait_seconds": 2.000001, "run_seconds": None, "outcome": "shed", "inverted": None, "in_time": None,
     "kind": "k", "value": 0.000001, "decay": None, "value_delivered": 0.0,
     "problems": ["no creation recorded", "lost while it was taken"]},
    {"queue": None, "day": "2026-01-02", "task_id": "c", "life": 1, "task_group": None, "created_ms": 3.0,
     "wait_seconds": None, "run_seconds": None, "outcome": "pending", "inverted": True, "in_time": False,
     "kind": None, "value": None, "decay": None, "value_delivered": None, "problems": []},
]  # fmt: skip


@pytest.mark.parametrize("rows_at_a_time", [1, 1 << 18])
def test_totals_of_tasks_add_up(rows_at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(totals, "ROWS_AT_A_TIME", rows_at_a_time)
    columns = {name: (TABLES["tasks"] | {"day": "string"})[name] for name in totals.OF_TASK}
    schema = pa.schema(
        [(name, pa.list_(pa.string()) if name == "problems" else arrow_schema({name: kind}).types[0])
         for name, kind in columns.items()]
    )  # fmt: skip
    batches = pa.Table.from_pylist(TASK_ROWS, schema).to_batches(max_chunksize=1)
    found = pa.Table.from_batches(totals.totals_of_tasks(batches), totals.SCHEMA)

    def of(kind: str) -> pa.Table:
        return found.filter(pc.field("kind") == kind)

    counted = ("tasks", "created", "success", "in_time", "run_us", "violations", "inversions", "valued")
    by_queue = totals.summed(of("fates"), ("queue", "day", "task_group"), counted).to_pylist()
    assert [tuple(row.values()) for row in by_queue] == [
        ("mail", "2026-01-01", "g", 2, 1, 1, 1, 500_000, 1, None, 2),
        (None, "2026-01-02", None, 1, 1, 0, 0, 0, 0, 1, 0),
    ]  # fmt: skip
    values = [{name: int(row[name]) for name in VALUES if row[name]} for row in
              totals.summed(of("fates"), ("queue",), VALUES).to_pylist()]  # fmt: skip
    assert values == [
        {"value_put": 10**18, "value_delivered": 9 * 10**17, "value_decayed": 10**17, "value_shed": 1},
        {"value_put": 10**6, "value_open": 10**6},
    ]
    (mail, other) = totals.kinds(of("kinds")).to_pylist()
    assert (mail["queue"], mail["kind"], mail["offered"], mail["in_time"], mail["shed"]) == (
        "mail", "k", 2, 1, 1,
    )  # fmt: skip
    assert (mail["value_offered"], mail["value_delivered"], mail["value_lost"]) == (1e12 + 1e-6, 9e11, 1e11)
    assert (other["kind"], other["value_offered"], other["value_share"]) == (None, 1.0, 0.0)
    waits = of("waits").group_by(["queue", "class"]).aggregate(
        [("count", "sum"), ("shortest_us", "min"), ("longest_us", "max")]
    )  # fmt: skip
    assert [tuple(row.values()) for row in waits.to_pylist()] == [("mail", 733, 2, 2_000_000, 2_000_001)]
    assert [(row["task_id"], row["life"], row["created_us"], row["problem"])
            for row in of("violations").to_pylist()] == [
        ("b", 2, 2000, "no creation recorded"), ("b", 2, 2000, "lost while it was taken"),
    ]  # fmt: skip


def test_the_ledger_balances_to_the_millionth_whatever_the_sums() -> None:
    """A thousand days of a million tasks of the greatest value, and a millionth that is not accounted for."""
    days = 1000
    counts = {name: [10**6] * days for name in ("created", "success")}
    counts |= {
        name: [0] * days for name in ("failure", "cancelled", "shed", "pending", "taken", "violations")
    }
    values = {name: [10**24 + 1 if name == "value_put" else 0] * days for name in VALUES}
    values["value_delivered"] = [10**24] * days
    rows = {"queue": ["mail"] * days, "day": [f"{day:04}" for day in range(days)], "valued": [1] * days}
    decimal = totals.SCHEMA.field("value_put").type
    table = pa.table(rows | counts | {name: pa.array(one, decimal) for name, one in values.items()})
    (*by_day, total) = totals.ledger(table).to_pylist()
    assert {(row["difference"], row["value_difference"]) for row in by_day} == {(0, 1e-6)}
    assert (total["day"], total["valued"], total["value_difference"]) == (None, days, days * 1e-6)
    assert total["value_delivered"] == 1e21


NO_SPARK: Any = None
IDS = [(name, pa.string()) for name in ("queue", "task_id", "root_id")]
SILVER = pa.schema([*IDS, ("created_us", pa.int64())])


def add(out: Folder, state: State, run_id: str, ids: dict[int, list[str]]) -> None:
    """Write the silver of a run, and index it; an id is HOUR:QUEUE/ID, with or without hour and queue."""
    state.run_id = run_id
    for day, tasks in ids.items():
        path = f"{silver_path(run_id, day)}/0.parquet"
        hours, names = zip(*(task.rpartition(":")[::2] for task in tasks), strict=True)
        queues, of_queues = zip(*(name.rpartition("/")[::2] for name in names), strict=True)
        named = pa.array([queue or None for queue in queues], pa.string())
        created = pa.array([day * DAY_US + int(hour or 0) * HOUR_US for hour in hours])
        roots = pa.nulls(len(tasks), pa.string())
        rows = pa.record_batch([named, pa.array(of_queues), roots, created], schema=SILVER)
        out.write_parquet(path, [rows], SILVER)
        state.days.setdefault(day, Day()).silver[run_id] = 1
    index_ids(NO_SPARK, out, state)


def links(state: State) -> dict[int, list[int]]:
    return {day: sorted(known.linked) for day, known in state.days.items()}


def test_days_that_share_ids_are_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("freshq_pipeline.gold.silver_days.MAX_PARTS", 2)
    out, state = Folder(str(tmp_path)), State("", "in", "landed")
    add(out, state, "a", {1: ["x", "y", "x"], 2: ["z"]})
    assert links(state) == {1: [], 2: []}
    add(out, state, "b", {3: ["y", "new"], 4: ["new"]})
    assert links(state) == {1: [3], 2: [], 3: [1, 4], 4: [3]}
    # The third part makes them one, which still has every id.
    add(out, state, "c", {2: ["z", "other"]})
    assert (state.ids, state.indexed) == (["c-all"], ["a", "b", "c"])
    add(out, state, "d", {5: ["z"], 6: ["other"]})
    assert links(state) == {1: [3], 2: [5, 6], 3: [1, 4], 4: [3], 5: [2], 6: [2]}
    # Indexed events are not read again.
    (tmp_path / silver_path("a", 1) / "0.parquet").write_text("damaged")
    index_ids(NO_SPARK, out, state)
    assert state.ids == ["c-all", "d"]


def test_a_day_is_linked_with_itself_if_an_id_occurs_in_two_of_its_hours(tmp_path: Path) -> None:
    out, state = Folder(str(tmp_path)), State("", "in", "landed")
    add(out, state, "a", {1: ["3:x", "3:x", "4:y"], 2: ["0:z", "23:z"]})
    assert links(state) == {1: [], 2: [2]}
    add(out, state, "b", {1: ["5:y"], 3: ["7:x"]})
    assert links(state) == {1: [1, 3], 2: [2], 3: [1]}
    assert linked_days(state.days, [1]) == {1, 3}


def test_the_same_id_in_another_queue_links_no_days(tmp_path: Path) -> None:
    out, state = Folder(str(tmp_path)), State("", "in", "landed")
    add(out, state, "a", {1: ["x", "mail/x", "mail/mail"], 2: ["ship/x", "ship/ship", "mail/y"]})
    assert links(state) == {1: [], 2: []}
    add(out, state, "b", {3: ["ship/x"], 4: ["x", "mail/ship"]})
    assert links(state) == {1: [4], 2: [3], 3: [2], 4: [1]}


def test_days_with_tasks_of_a_chain_are_chained_and_not_linked(tmp_path: Path) -> None:
    out, state = Folder(str(tmp_path)), State("", "in", "landed")
    days = {1: ("root", None), 2: ("a", "root"), 3: ("b", "root"), 4: ("other", "else")}
    for run_id in ("a", "b"):
        state.run_id = run_id
        for day, (task_id, root_id) in days.items():
            if (day > 2) == (run_id == "b"):
                path = f"{silver_path(run_id, day)}/0.parquet"
                row = {"queue": "mail", "task_id": task_id, "root_id": root_id, "created_us": day * DAY_US}
                # A child in another hour of the day is no reason to read the day for it.
                rows = [row, row | {"task_id": f"{task_id}-2", "created_us": day * DAY_US + HOUR_US}]
                out.write_parquet(path, [pa.RecordBatch.from_pylist(rows, SILVER)], SILVER)
                state.days.setdefault(day, Day()).silver[run_id] = 1
        index_ids(NO_SPARK, out, state)
    assert {day: sorted(known.chained) for day, known in state.days.items()} == {
        1: [2, 3],
        2: [1, 3],
        3: [1, 2],
        4: [],
    }
    assert not any(known.linked for known in state.days.values())
    assert chained_days(state.days, [3, 4]) == {1, 2, 3, 4}


def test_hops_are_counted_from_the_root() -> None:
    parents: dict[str, str | None] = {"d": "c", "c": "b", "b": "root", "e": "gone", "x": "y", "y": "x"}
    assert hops("root", parents) == {"root": 1, "b": 2, "c": 3, "d": 4, "e": 2, "y": 2, "x": 3}


def test_the_hash_of_an_id_never_changes() -> None:
    # Another hash would make the ids of earlier runs unknown.
    assert hashed(np.array(["a", "b"], object)).tolist() == [-4496393130729816112, -5758684491630436641]


def test_an_index_that_fails_ends_a_first_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_arguments: object) -> None:
        raise OSError("the disk is full")

    no_hours = SimpleNamespace(hours=OpenHours(frozenset()), figures=[], steps=None)
    monkeypatch.setattr(gold, "index_ids", fails)
    monkeypatch.setattr(gold, "open_all", lambda *_arguments: no_hours)
    monkeypatch.setattr(gold, "_check_events", lambda _run: None)
    monkeypatch.setattr(gold, "figures", lambda *_arguments: {})
    state, options = State("1", "in", "landed"), SimpleNamespace(as_of_ms=None, index_lag=IndexLag(0))
    no_spark: Any = None
    with pytest.raises(OSError, match="disk is full"):
        gold.build(
            no_spark, Folder(str(tmp_path)), state, None, cast("Any", options), lambda _name: nullcontext()
        )
