"""Runs in the session of the caller, as in docs/reference/pipeline.md and the notebook of examples."""

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import jupytext
import pytest
from pyspark.sql import SparkSession

from freshq import Queue
from freshq_pipeline import BadInput, Grid, Options, replay, run, tables
from freshq_pipeline.schemas import BY_DAY, TABLES
from freshq_pipeline.spark.session import session_beside
from tests.pipeline.recording import write_lines
from tests.pipeline.two_days import two_days
from tests.support.functions import PROJECT
from tests.support.snippets import Reader, snippets

PAGE = Path(__file__).parents[2] / "docs/reference/pipeline.md"


@pytest.mark.timeout(600)  # two runs on Spark, on a machine that may be busy
def test_the_session_of_the_caller(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = two_days().landed()
    write_lines(tmp_path / "events/1.json", events)
    monkeypatch.chdir(tmp_path)
    # A session with settings with which the pipeline would fail or count days otherwise.
    mine = spark.newSession()
    settings = {"spark.sql.session.timeZone": "Asia/Tokyo", "spark.sql.caseSensitive": "false"}
    skipping = ("spark.sql.files.ignoreCorruptFiles", "spark.sql.files.ignoreMissingFiles")
    for name, value in (settings | dict.fromkeys(skipping, "true")).items():
        mine.conf.set(name, value)
    own = session_beside(mine)
    assert [own.conf.get(name) for name in skipping] == ["false", "false"], "a lost file would be no error"
    before = mine.conf.getAll
    first = run(mine, "events", "out")
    assert mine.conf.getAll == before
    assert {name: frame.sparkSession for name, frame in first.tables.items()} == dict.fromkeys(TABLES, mine)
    assert {name: frame.columns for name, frame in first.tables.items()} == {
        name: [*columns, *(["day"] if name in BY_DAY else [])] for name, columns in TABLES.items()
    }
    by_day = first.tables["tasks"].groupBy("day").count().collect()
    assert {row["day"]: row["count"] for row in by_day} == {"2026-01-01": 3, "2026-01-02": 15}
    # Later runs do not change the DataFrames of earlier runs.
    late = [event | {"event_id": f"late {event['event_id']}", "task_id": "late"} for event in events[:1]]
    write_lines(tmp_path / "events/2.json", late)
    second = run(mine, tmp_path / "events", tmp_path / "out")
    counts = [frames["tasks"].count() for frames in (first.tables, second.tables, tables(mine, "out"))]
    assert counts == [18, 19, 19]
    assert tables(mine, "out", first.summary["run_id"])["tasks"].count() == 18
    # A reader who does not know about runs finds the files of one run.
    folder = str(tmp_path / "out/tables/tasks")
    by_hand = [mine.read.parquet(path) for path in (folder, f"{folder}/*/*/*.parquet")]
    assert [frame.count() for frame in by_hand] == [19, 19]
    assert set(by_hand[0].columns) == set(second.tables["tasks"].columns)
    with pytest.raises(BadInput, match=r"run_id: .*'other'.*20.*, 20"):
        tables(mine, "out", "other")
    with pytest.raises(BadInput, match="/events"):
        tables(mine, "events")
    assert mine.range(3).count() == 3


def test_a_replay_says_how_far_it_is_from_the_recording(spark: SparkSession) -> None:
    rows = [
        row | {"created_ms": 1000.0 * number, "put_ms": 1000.0 * number}
        for number, row in enumerate([TASK] * 3)
    ]
    columns = ", ".join(f"{name} {kind}" for name, kind in TABLES["tasks"].items())
    tasks = spark.createDataFrame([tuple(row.get(name) for name in TABLES["tasks"]) for row in rows], columns)
    found = replay(tasks, replace(Grid(), capacities=(1.0, 2.0)))
    assert found.sparkSession is spark
    listed = [row.asDict() for row in found.collect()]
    assert [(row["policy"], row["capacity"]) for row in listed[:2]] == [("lifo", 1.0), ("lifo", 2.0)]
    assert [row["recorded"] for row in listed] == [True] + [False] * (len(listed) - 1)
    assert listed[0]["difference_ratio"] == 0
    assert {row["difference_ratio"] for row in listed[1:]} == {None}
    assert {row["offered"] for row in listed} == {3}


TASK: dict[str, Any] = {
    "task_id": "a", "life": 1, "queue": "mail", "priority": 0, "deadline_ms": 60_000.0, "attempts": 1,
    "first_taken_ms": 3000.0, "finished_ms": 4000.0, "wait_seconds": 1.0, "run_seconds": 1.0,
    "outcome": "success", "lease_losses": 0, "inverted": False, "in_time": True, "problems": [],
}  # fmt: skip


def test_a_session_that_cannot_be_used(tmp_path: Path) -> None:
    connect: Any = object()
    with pytest.raises(BadInput, match="spark: "):
        run(connect, "events", tmp_path / "out", Options())
    assert not list(tmp_path.iterdir())


@pytest.mark.timeout(600)  # a run on Spark, on a machine that may be busy
def test_the_page_does_what_it_says(
    spark: SparkSession, two_days_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run finds nothing new; the test above has one that does."""
    monkeypatch.chdir(two_days_folder)
    assert SparkSession.builder.getOrCreate() is spark
    Reader(two_days_folder).follow(replace(one, not_run=None, is_next=True) for one in snippets(PAGE))


FOLDER = PROJECT / "examples/pipeline"


def small_queue(file: Path) -> str:
    """Return the address of a queue that has done five tasks, and keeps its history."""
    url = f"sqlite:///{file}?name=mail"
    with closing(Queue.sql(f"sqlite:///{file}", name="mail", history=True)) as queue:
        queue.create_table()
        queue.put_many([{"payload": number} for number in range(5)])
        for claim in queue.claim(limit=5):
            queue.complete(claim)
    return url


@pytest.mark.timeout(600)  # a run and a replay on Spark, on a machine that may be busy
def test_the_notebook_picks_a_max_age(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for name in ("OUT", "QUEUE", "STACK"):
        monkeypatch.delenv(name, raising=False)
    # Another queue beside it, which is smaller and pulled from its database.
    monkeypatch.setenv("QUEUE_URL", small_queue(tmp_path / "mail.db"))
    monkeypatch.setenv("EVENTS", "demo-events")
    assert SparkSession.builder.getOrCreate() is spark
    notebook = jupytext.read("max_age.py")
    kinds = [cell.cell_type for cell in notebook.cells]
    assert kinds.count("markdown") > 4
    names: dict[str, Any] = {}
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "code":
            exec(compile(cell.source, f"cell {number}", "exec"), names)
    summary = names["recorded"].summary
    assert (summary["tasks"], summary["success"], summary["shed"]) == (725, 250, 475)
    assert names["tasks"].where("queue = 'mail' and in_time").count() == 5
    # Longer max ages serve more tasks, and older ones.
    found = {row["deadline_seconds"]: row for row in names["candidates"].collect()}
    served = [row["served_in_time"] for row in found.values()]
    waits = [row["wait_p99_seconds"] for row in found.values()]
    assert (served, waits) == (sorted(served), sorted(waits))
    assert names["best"]["deadline_seconds"] == max(
        age for age in found if found[age]["wait_p99_seconds"] <= 5
    )
    assert f"max_age_seconds={names['best']['deadline_seconds']:g}: " in capsys.readouterr().out
    picture = (tmp_path / "out/max_age.svg").read_text()
    for shown in ("newest first", "oldest first", "max age (s)", "wait, 99th percentile (s)"):
        assert shown in picture
    # With no max age that fits, the last two cells say so.
    names["OLDEST_SECONDS"] = 0.0
    for cell in [cell for cell in notebook.cells if cell.cell_type == "code"][-2:]:
        exec(compile(cell.source, "again", "exec"), names)
    assert "within 0 s. Try shorter max ages" in capsys.readouterr().out
    assert "None of these max ages" in (tmp_path / "out/max_age.svg").read_text()
