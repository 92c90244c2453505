"""The words, tables and charts of the report."""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import vl_convert

from freshq_pipeline.errors import BadInput
from freshq_pipeline.report import charts, page, time_steps
from freshq_pipeline.report.ending import show_replay
from freshq_pipeline.report.sections import figures, replay_section, shed_counts, table
from freshq_pipeline.report.tables import Sums, Tables
from freshq_pipeline.report.time_steps import by_minute
from freshq_pipeline.report.words import (
    age_labels,
    cell,
    conclusions,
    duration,
    fates_of,
    headline,
    next_step,
    share,
    value_share,
)
from freshq_pipeline.schemas import OUTCOMES, TABLES
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.results import keep_replay, last_replay
from freshq_pipeline.storage.state import POINTER, State, _as_json
from freshq_pipeline.storage.table_files import manifest_path, place

FIGURES = dict.fromkeys((*OUTCOMES, "in_time"), 0)


def test_the_headline_says_what_was_delivered_of_the_value() -> None:
    figures = {"value_offered": 40.0, "value_delivered": 30.0}
    assert value_share({}) is None
    said = headline({"done in time": 1, "shed": 1}, 2.0, value_share(figures))
    assert said == "50% done in time, 50% shed; 75% of the value delivered; median wait 2 s."


def test_the_headline_says_what_became_of_the_tasks() -> None:
    counted = FIGURES | {"success": 23, "in_time": 22, "shed": 76, "pending": 1}
    said = headline(fates_of(counted), 0.06)
    assert said == "22% done in time, 76% shed, 1% done late, 1% still waiting; median wait 60 ms."
    in_time = FIGURES | {"success": 22, "in_time": 22}
    assert headline(fates_of(in_time), 0.06) == "100% done in time; median wait 60 ms."
    assert headline(fates_of(FIGURES), None) == "No tasks."


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"success": 99, "in_time": 99, "shed": 1}, "nothing to do"),
        ({"success": 90, "in_time": 90, "shed": 10}, "add workers"),
        ({"success": 98, "in_time": 98, "failure": 2}, "why tasks fail"),
        ({"success": 100, "in_time": 90}, "too late"),
        ({"success": 50, "shed": 50, "ledger_violations": 1}, "the table violations"),
    ],
)
def test_the_report_says_what_to_do_next(counts: dict[str, int], said: str) -> None:
    assert said in next_step({"tasks": 100} | FIGURES | counts)


def test_something_is_never_nothing_and_not_everything_never_everything() -> None:
    assert [share(part, 1000) for part in (0, 1, 10, 999, 1000)] == [
        "0%", "under 1%", "1%", "over 99%", "100%",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.06, "60 ms"), (0.9999, "1,000 ms"), (1.234, "1.23 s"), (90, "1.5 min"), (7200, "2 h"),
        (3.6e7, "10,000 h"),
    ],
)  # fmt: skip
def test_times_are_in_the_unit_that_suits_them(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_age_classes_are_ranges() -> None:
    ages = ["under 5 s", "5 to 30 s", "30 s to 1 min", "1 min to 2 h", "2 h and more"]
    assert age_labels((0, 5, 30, 60, 7200)) == ages


def test_cells_have_units_and_thousands() -> None:
    cells = [("wait_p50_seconds", 0.06), ("claims", 12_345), ("shed_share", 0.5), ("jain_index", 0.25)]
    assert [cell(*one) for one in cells] == ["60 ms", "12,345", "50%", "0.250"]
    values = (None, float("nan"), 7.0, "total")
    assert [cell("created", value) for value in values] == ["-", "-", "7", "total"]


def test_columns_and_figures_of_zeros_are_folded() -> None:
    shown = table(pd.DataFrame({"queue": ["a<b"], "shed": [1500], "cancelled": [0], "difference": [0]}))
    assert "<th class='text'>queue</th><th>shed</th><th>difference</th>" in shown
    assert "<td class='text'>a&lt;b</td><td>1,500</td><td>0</td>" in shown
    assert "Zero: cancelled." in shown
    boxes = figures({"tasks": 3, "failure": 0, "wait_p50_seconds": None})
    assert boxes.count("<b>") == 2
    assert "Zero: failure." in boxes


@pytest.mark.parametrize("shown", [[0.06], [0.06, 7.5], [0.0], [0.02, 400_000.0], [5.0, 5.0]])
def test_the_axis_of_times_has_ticks_around_what_it_shows(shown: list[float]) -> None:
    axis: Any = charts.seconds_axis("x:Q", "wait", pd.Series(shown)).to_dict()
    ticks, (begin, end) = axis["axis"]["values"], axis["scale"]["domain"]
    assert 2 <= len(ticks) <= charts.MAX_TICKS
    assert begin <= max(min(shown), charts.SHORTEST_SECONDS) <= max(*shown, 0.001) <= end
    assert all(begin <= tick <= end for tick in ticks)


def test_the_conclusions_of_a_replay() -> None:
    def row(policy: str, in_time: int, queue: str = "mail", capacity: float = 1) -> dict[str, Any]:
        scenario = {"queue": queue, "policy": policy, "capacity": capacity}
        return scenario | {"served_in_time": in_time, "offered": 100}

    rows = [row("fifo", 2), row("lifo", 45), row("fifo", 99, capacity=2)]
    rows += [row("fifo", 100, "b"), row("lifo", 100, "b"), row("fifo", 1, "c")]
    assert conclusions({"scenarios": rows}) == [
        "Queue mail, at its recorded capacity: lifo completes 45% in time, fifo 2%.",
        "Queue b, at its recorded capacity: all policies complete 100% in time.",
    ]


def test_a_replay_of_tasks_with_values_is_judged_by_value() -> None:
    def row(policy: str, in_time: int, delivered: float) -> dict[str, Any]:
        scenario = {"queue": "mail", "policy": policy, "capacity": 1, "offered": 100, "value_offered": 400.0}
        return scenario | {"served_in_time": in_time, "value_delivered": delivered}

    rows = [row("lifo", 50, 200.0), row("value", 45, 360.0), row("fifo", 55, 100.0)]
    (said,) = conclusions({"scenarios": rows})
    assert said == (
        "Queue mail, at its recorded capacity: value delivers 90% of the value and completes 45% of the "
        "tasks in time, fifo 25% and 55%."
    )
    (said,) = conclusions({"scenarios": [row("lifo", 50, 400.0), row("value", 51, 400.0)]})
    assert said.endswith("all policies deliver 100% of the value.")


START_MS = 1_767_225_600_000
NONE = float("nan")


def recording(*tasks: tuple[float, float, float, str]) -> pd.DataFrame:
    """Return tasks, each given by its put, first claim and end in seconds, and its outcome."""
    frame = pd.DataFrame(tasks, columns=["created_ms", "first_taken_ms", "finished_ms", "outcome"])
    for name in ("created_ms", "first_taken_ms", "finished_ms"):
        frame[name] = START_MS + frame[name] * 1000
    frame["queue"] = "default"
    return frame.assign(wait_seconds=(frame["first_taken_ms"] - frame["created_ms"]) / 1000)


TASKS = recording(
    (0.2, 0.3, 0.9, "success"),
    (0.4, 2.5, 3.1, "failure"),
    (0.5, NONE, 3.5, "shed"),
    (1.1, NONE, 2.2, "cancelled"),
    (2.6, NONE, NONE, "pending"),
)


def column(name: str) -> list[Any]:
    return list(time_steps.by_second(TASKS, START_MS + 4000)[name])


def test_puts_and_ends_of_each_second() -> None:
    assert column("offered") == [3, 1, 1, 0]
    assert column("succeeded") == [1, 0, 0, 0]
    assert column("failed") == [0, 0, 0, 1]
    assert column("cancelled") == [0, 0, 1, 0]
    assert column("shed") == [0, 0, 0, 1]


def test_tasks_waiting_for_their_first_claim_at_the_end_of_each_second() -> None:
    waiting = [{one["from_seconds"]: one["count"] for one in ages} for ages in column("backlog_by_age")]
    assert waiting == [{0: 2}, {0: 1, 1: 2}, {0: 1, 2: 1}, {1: 1}]
    assert [round(age, 3) for age in column("oldest_pending_seconds")] == [0.6, 1.6, 2.5, 1.4]
    assert [round(age, 3) for age in column("newest_pending_seconds")] == [0.5, 0.9, 0.4, 1.4]


def test_waits_of_the_tasks_first_claimed_in_each_second() -> None:
    horizons = column("service_horizon_seconds")
    assert [None if pd.isna(age) else round(age, 3) for age in horizons] == [0.1, None, 2.1, None]
    third = time_steps.by_second(TASKS, START_MS + 4000)["wait_histogram"][2]
    assert abs(charts.percentiles([third])[0.5] - 2.1) < 0.05


def test_equal_percentiles_of_waits_are_all_visible() -> None:
    """Of a single claim p50, p90 and p99 are equal."""
    one = {"at": [pd.Timestamp("2026-01-01")], "wait_histogram": [[{"bucket": 600, "count": 1}]]}
    rows = pd.DataFrame(one | {"minute_ms": [0]})
    drawn: Any = charts.waits(rows, charts.time_axis(rows))
    lines, points = drawn.to_dict()["layer"]
    names = ["p50", "p90", "p99"]
    dashes, sizes = lines["encoding"]["strokeDash"]["scale"], points["encoding"]["size"]["scale"]
    assert (dashes["domain"], sizes["domain"]) == (names, names)
    assert dashes["range"][1] != dashes["range"][2]
    assert sizes["range"] == sorted(sizes["range"], reverse=True)
    # A channel without a legend would take the legend of the others.
    assert "legend" not in lines["encoding"]["strokeDash"] | points["encoding"]["size"]


def test_longer_recordings_have_longer_steps() -> None:
    at = time_steps.by_second(TASKS, START_MS + 20 * 60_000)["at"]
    assert (len(at), at[1] - at[0]) == (120, pd.Timedelta(seconds=10))


DAY_MS = 86_400_000
MINUTE_MS = 60_000
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
    # All groups of a minute together; the largest minute of a step.
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


COUNTS = {"served_in_time": 8, "served_late": 0, "failed": 1, "pending": 0}
CHECK = {
    "queue": "mail", "policy": "lifo", "served_in_time_recorded": 8, "served_in_time_replayed": 8,
    "difference_ratio": 0.0, "within": True, "tolerance": 0.05, "servers": 2, "mean_servers": 2.0,
    "idle_ratio": 0.0, "surplus_ratio": 0.0, "shed_early": 0, "inverted_ratio": 0.0,
}  # fmt: skip
RECORD = COUNTS | {"tasks": 12, "shed": 3, "servers": 2, "running": 0, "service_times_imputed": 3}


def scenario(policy: str, capacity: float = 1.0, **more: Any) -> dict[str, Any]:
    row = {"queue": "mail", "policy": policy, "capacity": capacity, "deadline_seconds": None, "servers": 2}
    row |= {"offered": 12, "shed_ratio": 0.25, "shed_by_reason": {"expired": 3}, "wait_p99_seconds": 1.5}
    return row | COUNTS | more


def replay_of(events: str, run_id: str = "1") -> dict[str, Any]:
    """Return a replay as it is written."""
    return {
        "run_id": run_id, "events": events, "as_of_ms": 1_767_225_600_000, "since": "2026-01-10",
        "until": "2026-02-09", "days": 31, "recorded_days": 40, "check": CHECK,
        "record": RECORD | {"imputation": "Cancelled tasks are left out."},
        "queues": [{"queue": "mail", "record": RECORD, "check": CHECK}],
        "scenarios": [scenario("lifo"), scenario("fifo", served_in_time=2), scenario("lifo", 2.0)],
    }  # fmt: skip


@pytest.fixture
def out(tmp_path: Path) -> Folder:
    """Return an output folder whose current run is of the events in `events`."""
    folder = Folder(str(tmp_path))
    folder.write_json(POINTER, _as_json(State("1", "/data/events", "landed")))
    return folder


def test_a_replay_of_the_current_run_is_shown_with_its_days(out: Folder) -> None:
    assert replay_section(out, "1") is None
    keep_replay(out, replay_of("/data/events"))
    section = replay_section(out, "1")
    assert section is not None
    assert section.text.startswith(
        "Queue mail, at its recorded capacity: lifo completes 67% in time, fifo 17%."
    )
    assert "from 2026-01-10 to 2026-02-09, on 31 of 40 days with tasks" in section.text
    assert "earlier run" not in section.text
    assert list(section.charts) == ["mail"]
    assert section.table is not None
    assert section.table["in time, recorded"].tolist() == [8]


def test_a_replay_of_an_earlier_run_says_so(out: Folder) -> None:
    keep_replay(out, replay_of("/data/events", run_id="0"))
    section = replay_section(out, "1")
    assert section is not None
    assert "an earlier run than the tables: run 0, complete up to 2026-01-01 00:00:00 UTC." in section.text


def test_a_replay_of_other_events_is_left_out(out: Folder) -> None:
    keep_replay(out, replay_of("/data/others"))
    assert replay_section(out, "1") is None


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", '{"version": 1}', '{"version": 0}', '{"scenarios": [], "queues": []}', "{broken"],
)
def test_another_layout_is_one_sentence(text: str, out: Folder) -> None:
    out.write("replay.json", text)
    with pytest.raises(BadInput, match=r"replay\.json"):
        last_replay(out)
    section = replay_section(out, "1")
    assert section is not None
    assert (section.charts, section.table) == ({}, None)
    assert section.text.endswith("run `freshq-pipeline replay` again.")


def test_the_terminal_shows_the_recording_above_the_scenarios(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    show_replay(replay_of("events"))
    shown = capsys.readouterr().out
    head, *rows = [line for line in shown.splitlines() if line.startswith(("┃", "│"))]
    assert [name.strip() for name in head.split("┃")[1:-1]] == [
        "policy", "servers", "in time", "failed", "shed", "p99 wait",
    ]  # fmt: skip
    assert [[cell.strip() for cell in row.split("│")[1:-1]] for row in rows[:2]] == [
        ["recorded", "2", "8", "1", "3", "-"],
        ["lifo", "2", "8", "1", "3", "1.5 s"],
    ]
    assert "on 31 of 40 days with tasks" in shown


def test_values_are_shown_beside_tasks_in_time(out: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    replay = replay_of("/data/events")
    for row in (*replay["scenarios"], RECORD, replay["queues"][0]["record"]):
        row |= {"value_offered": 40.0, "value_delivered": 30.0}
    keep_replay(out, replay)
    section = replay_section(out, "1")
    assert section is not None
    titles = [chart["encoding"]["y"]["title"] for chart in section.charts["mail"]]
    assert titles == ["share of the value", "share done in time", "share shed", "p99 wait"]
    show_replay(replay)
    assert "75%" in capsys.readouterr().out


def test_the_scripts_are_bundled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundled = list[dict[str, Any]]()

    def bundle(**options: Any) -> str:
        bundled.append(options)
        return "vegaEmbed"

    monkeypatch.setattr(vl_convert, "javascript_bundle", bundle)
    (tmp_path / "cache").write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert [page._scripts(), page._scripts()] == ["vegaEmbed"] * 2
    assert len(bundled) == 2
    (tmp_path / "cache").unlink()
    assert [page._scripts(), page._scripts()] == ["vegaEmbed"] * 2
    assert len(bundled) == 3
