"""A batch, increments and a killed stream make the same tables."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmarks.lives import write_events
from local.facts import relations
from pyspark.sql import SparkSession

from freshq.policy.order import Order
from freshq_pipeline.errors import BadInput
from freshq_pipeline.replays.grid import DayRange, Grid
from freshq_pipeline.replays.replaying import replay_published
from freshq_pipeline.report.page import write_report
from freshq_pipeline.runs.batch import as_before, plan
from freshq_pipeline.runs.request import Options, RunRequest
from freshq_pipeline.runs.stream import stream
from freshq_pipeline.schemas import Format
from freshq_pipeline.storage.addresses import normalized
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.recording import IndexLag, recording_of_history
from freshq_pipeline.storage.results import last_replay
from tests.pipeline.conftest import Pipeline, all_rows, query, table, without_names
from tests.pipeline.recording import START_SECONDS, Recording, small, write_lines

# For a process that starts Spark on a busy machine.
PATIENCE_SECONDS = 200


def test_increments_equal_a_batch(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("freshq_pipeline.runs.new_files.MAX_SILVER_PARTS", 1)
    events = small().landed()
    write_lines(tmp_path / "in/1.json.gz", [*events[12:], "{broken"])
    pipeline(tmp_path / "in", tmp_path / "out", max_reject_ratio=0.5)
    first = (tmp_path / "out/_current.json").read_text()
    write_lines(tmp_path / "in/2.json.gz", events[:20])
    second = pipeline(tmp_path / "in", tmp_path / "out", keep_runs=1)
    # The two parts of the day were rewritten as one. (The stream below reads several.)
    assert [part.name for part in (tmp_path / "out/silver").iterdir()] == [f"{second['run_id']}-all"]
    batch = pipeline(tmp_path / "in", tmp_path / "batch")
    assert without_names(second) == without_names(batch)
    assert second["events_duplicate"] == 8
    assert all_rows(second) == all_rows(batch)
    # Without new files the current run stays; the earlier one was pruned.
    pointer = (tmp_path / "out/_current.json").read_text()
    assert pointer != first
    assert pipeline(tmp_path / "in", tmp_path / "out") == second
    assert (tmp_path / "out/_current.json").read_text() == pointer
    assert [run.name for run in (tmp_path / "out/runs").iterdir()] == [second["run_id"]]


def test_unusable_records_are_quarantined(pipeline: Pipeline, tmp_path: Path) -> None:
    events = [json.dumps(event) for event in small().landed()]
    new = {"note": 'a "b", c: {}', "nested": {"a": [1]}, "number": 2.5}
    events[0] = json.dumps(json.loads(events[0]) | new)
    events[2] = json.dumps(json.loads(events[2]) | {"number": 3, "worker": 'known, "text":'})
    folder = tmp_path / "in/my 100%2F+1"  # Spark returns names URL-encoded
    write_lines(folder / "whole.json.gz", [events[0] + events[1], "not json", "", '{"schema_version": 1}'])
    write_lines(folder / "array.json", ["[" + ",".join(events[3:5]) + "]"])
    write_lines(folder / "blank.json", ["", "  ", "\t", "\ufeff" + events[3]])
    write_lines(folder / "cut.json.gz", events[2:])
    cut = folder / "cut.json.gz"
    cut.write_bytes(cut.read_bytes()[:-40])
    # 2 MB that inflate to 2 GB, in a line without an end.
    (folder / "bomb.json.gz").write_bytes(gzip.compress(b"0" * (32 << 20)) * 64)
    summary = pipeline(tmp_path / "in", tmp_path / "out", accept_damaged=True)
    quarantined = (tmp_path / "out/quarantine" / summary["run_id"]).glob("*.json")
    rows = [json.loads(line) for file in quarantined for line in file.read_text().splitlines()]
    found = {(row["file"].rsplit("/", 1)[-1], row["line"], row["reason"]) for row in rows}
    assert {normalized(row["file"]).rsplit("/", 1)[0] for row in rows} == {str(folder)}
    lost = next(line for name, line, _ in found if name == "cut.json.gz")
    assert found == {
        ("whole.json.gz", 2, "not a JSON record"),
        ("whole.json.gz", 4, "no event_id"),
        ("cut.json.gz", lost, "truncated gzip"),
        ("bomb.json.gz", 1, "inflates more than 100 times"),
        ("array.json", 1, "not a JSON record"),
    }
    # Known or not, fields are kept; the task's own are used.
    assert summary["events_with_unknown_fields"] == 2
    assert summary["unknown_fields"] == {"nested": 1, "note": 1, "number": 2}
    silver = f"read_parquet('{tmp_path}/out/silver/*/*/*.parquet')"
    kept = query(f"select unknown_fields from {silver} where unknown_fields is not null order by sequence")
    assert kept == [
        {"unknown_fields": {"note": new["note"], "nested": '{"a":[1]}', "number": "2.5"}},
        {"unknown_fields": {"number": "3"}},
    ]
    # Both records of the line without a delimiter, and the lines before the truncation.
    assert summary["events_distinct"] == 2 + lost - 1
    assert summary["events_read"] == summary["events_distinct"] + summary["events_duplicate"] + 5
    assert not (tmp_path / "out/salvage").exists() or not list((tmp_path / "out/salvage").iterdir())


def test_a_file_with_another_time_is_compared_by_its_content(pipeline: Pipeline, tmp_path: Path) -> None:
    landed, file = small().landed(), tmp_path / "in/a.json"
    write_lines(file, landed[:5])
    (tmp_path / "in/b.bin").write_bytes(b"not json\n")  # read by Spark
    first = pipeline(tmp_path / "in", tmp_path / "out", max_reject_ratio=1.0)
    for path in (file, tmp_path / "in/b.bin"):
        os.utime(path, ns=(1, 1))
    assert without_names(pipeline(tmp_path / "in", tmp_path / "out", max_reject_ratio=1.0)) == (
        without_names(first) | {"new_ledger_violations": 0}
    )
    write_lines(tmp_path / "in/c.json", landed[5:])
    assert pipeline(tmp_path / "in", tmp_path / "out")["events_read"] == len(landed) + 1
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    with pytest.raises(BadInput, match=r"changed after .*: a\.json"):
        pipeline(tmp_path / "in", tmp_path / "out")


def test_a_folder_that_links_to_itself_is_read_once(pipeline: Pipeline, tmp_path: Path) -> None:
    landed, folder = small().landed(), tmp_path / "in/2026"
    write_lines(folder / "a.json", landed)
    (folder / "again").symlink_to(tmp_path / "in")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/back").symlink_to(folder)
    write_lines(tmp_path / "elsewhere/b.json", landed[:2])
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    (folder / "dangling.json").symlink_to(tmp_path / "nowhere")
    os.mkfifo(folder / "pipe.json")
    summary = pipeline(tmp_path / "in", tmp_path / "out")
    assert (summary["files_read"], summary["events_read"]) == (2, len(landed) + 2)


def test_names_that_spark_cannot_read_are_refused_in_words(pipeline: Pipeline, tmp_path: Path) -> None:
    write_lines(tmp_path / "in/a.json", small().landed())
    for events, out in (("in[1]", "out"), ("in", "out*")):
        with pytest.raises(BadInput, match=r"(events|out): .*'[\[*]'"):
            pipeline(tmp_path / events, tmp_path / out)
    for name, message in (("b{1}.json", "takes for a pattern"), ("00:00.json", "has a colon")):
        (tmp_path / "in" / name).touch()
        with pytest.raises(BadInput, match=message):
            pipeline(tmp_path / "in", tmp_path / "out")
        (tmp_path / "in" / name).unlink()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"schema_version": 2, "event_id": "1"}, "schema version newer"),
        ({"eventID": "1"}, "Is the format right"),
    ],
)
def test_unusable_events_publish_nothing(
    line: dict[str, Any], message: str, pipeline: Pipeline, tmp_path: Path
) -> None:
    write_lines(tmp_path / "in/a.json", [line])
    with pytest.raises(BadInput, match=message):
        pipeline(tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out/summary.json").exists()
    assert not list(tmp_path.glob("out/runs/*"))
    assert not list(tmp_path.glob("out/silver/*"))


def test_export_through_its_manifest(pipeline: Pipeline, tmp_path: Path) -> None:
    tape = small()
    root = tmp_path / "in/prefix/AWSDynamoDB"
    items = [{"Item": item} for item in tape.items.values()]
    write_lines(root / "01-a/data/x.json.gz", items)
    write_lines(root / "01-a/data/stray.json.gz", ["{broken"] * 50)
    entry = {"itemCount": len(items), "dataFileS3Key": "prefix/AWSDynamoDB/01-a/data/x.json.gz"}
    write_lines(root / "01-a/manifest-files.json", [entry])
    named = {"manifestFilesS3Key": "prefix/AWSDynamoDB/01-a/manifest-files.json", "itemCount": len(items)}
    write_lines(root / "01-a/manifest-summary.json", [named])
    summary = pipeline(tmp_path / "in", tmp_path / "out", Format.EXPORT)
    outcomes = {row["task_id"]: row["outcome"] for row in table(summary, "tasks", "task_id")}
    assert summary["events_quarantined"] == 0
    assert {task: outcomes[task] for task in "abcdfhijk"} == {
        "a": "success", "b": "success", "c": "failure", "d": "cancelled", "f": "shed", "h": "shed",
        "i": "success", "j": "pending", "k": "taken",
    }  # fmt: skip
    write_lines(root / "01-a/manifest-files.json", [entry | {"md5Checksum": "AAAA"}])
    with pytest.raises(BadInput, match="checksum"):
        pipeline(tmp_path / "in", tmp_path / "out", Format.EXPORT)


def test_a_replay_keeps_the_options_of_the_run(pipeline: Pipeline, tmp_path: Path) -> None:
    write_lines(tmp_path / "in/a.json", small().landed())
    as_of_ms = START_SECONDS * 1000 + 23_000
    chosen: dict[str, Any] = {"as_of_ms": as_of_ms, "index_lag_seconds": 2.0, "keep_runs": 20}
    summary = pipeline(tmp_path / "in", tmp_path / "out", **chosen)
    assert (summary["as_of_ms"], summary["index_lag_seconds"]) == (as_of_ms, 2.0)
    plain = RunRequest(Folder(str(tmp_path / "in")), Folder(str(tmp_path / "out")))
    again = as_before(plain)
    assert again == replace(plain, options=Options(**chosen))
    assert (plan(again).new, plan(again).again) == ([], False)
    # Another output has no options yet, and options for other events do not apply.
    elsewhere = replace(plain, out=Folder(str(tmp_path / "new")))
    of_others = replace(plain, events=Folder(str(tmp_path / "other")))
    assert (as_before(elsewhere), as_before(of_others)) == (elsewhere, of_others)


def out_of_turn_within_a_second(queue: str) -> Recording:
    """Return an older task that is claimed half a second after a newer one was put."""
    tape = Recording()
    for at, task in ((0, "older"), (21, "newer")):
        tape.put(at, task, queue=queue)
    tape.take(21.5, "older")
    return tape


def test_the_index_lag_is_that_of_the_source(pipeline: Pipeline, tmp_path: Path) -> None:
    """DynamoDB's index may show a task a second late; a history of SQL says that its queries do not."""
    write_lines(tmp_path / "in/2026/11/21/08/a.json", out_of_turn_within_a_second("cloud").landed())
    events, out = tmp_path / "in", tmp_path / "out"
    first = pipeline(events, out, index_lag_seconds=None)
    history = events / "queue-office-123456789abc"
    write_lines(history / "000000000001.jsonl.gz", out_of_turn_within_a_second("office").landed())
    write_lines(history / "_recording.json", [recording_of_history("office")])
    # One more source does not change the tables of the others, and so reopens no day.
    assert not plan(RunRequest(Folder(str(events)), Folder(str(out)))).again
    second = pipeline(events, out, index_lag_seconds=None)
    found = {row["queue"]: (row["inversions"], row["index_lag_seconds"]) for row in second["queues"]}
    assert found == {"cloud": (0, 1.0), "office": (1, 0.0)}
    assert (first["inversions"], first["index_lag_seconds"]) == (0, 1.0)
    given = RunRequest(Folder(str(events)), Folder(str(out)), Options(index_lag_seconds=0.25))
    assert given.index_lag() == IndexLag(0.25)
    assert plan(given).again
    (history / "_recording.json").write_text('{"queue": "office", "index_lag_seconds": "1"}')
    with pytest.raises(BadInput, match=r"_recording\.json"):
        pipeline(events, out, index_lag_seconds=None)


def test_replay_and_report(
    spark: SparkSession, pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_events(tmp_path / "in", 6000, files=2, seed=3)
    tape = Recording()
    for at, task in enumerate(("m1", "m2")):
        tape.put(at, task, queue="mail")
        tape.take(at + 0.25, task)
        tape.settle(at + 0.5, task, "SUCCESS")
    tape.put(2, "not due", queue="mail", delay=86_400)
    write_lines(tmp_path / "in/mail.json", tape.landed())
    summary = pipeline(tmp_path / "in", tmp_path / "out")
    out = Folder(str(tmp_path / "out"))
    result = replay_published(spark, out, Grid((Order.FIFO,), (1.0, 2.0)), DayRange())
    assert result["check"]["within"], result["check"]
    assert result["record"]["service_times_imputed"] > 0
    assert [row["queue"] for row in result["scenarios"]] == ["default"] * 3 + ["mail"] * 3
    load = summary["queues"][0]["tasks"] - summary["cancelled"]
    assert [one["record"]["tasks"] for one in result["queues"]] == [load, 2]
    with pytest.raises(BadInput, match=r"no queue 'post', only 'default', 'mail'"):
        replay_published(spark, out, Grid(queue="post"), DayRange())
    with monkeypatch.context() as patched:
        patched.setattr("freshq_pipeline.replays.replaying.MAX_TASKS", load - 1)
        with pytest.raises(BadInput, match="from 2026-01-01 to "):
            replay_published(spark, out, Grid(queue="default"), DayRange())
    with pytest.raises(BadInput, match=r"no task .* 2030-01-01 .* 2030-01-01"):
        replay_published(spark, out, Grid(), DayRange(since="2030-01-01", until="2030-01-01"))
    lifo, fifo, doubled = result["scenarios"][:3]
    assert fifo["served_in_time"] < lifo["served_in_time"] < doubled["served_in_time"]
    assert last_replay(out) == result
    write_report(out)
    page = (tmp_path / "out/report.html").read_text()
    assert "Replay under other policies" in page
    assert "src=" not in page.split("<script>")[0]
    assert "2026-01-01" in page
    # The charts over time, of shed tasks and the replay; in one queue no task waited or was shed.
    assert [page.count(f"<h3>Queue {name}</h3>") for name in ("default", "mail")] == [6, 4]
    assert "Queue default, at its recorded capacity: lifo completes" in page


def test_the_headline_is_of_all_days_and_the_charts_of_the_newest(
    two_days_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("page", "tables"):
        monkeypatch.setattr(f"freshq_pipeline.report.{module}.MAX_DAYS", 1)
    out = Folder(str(two_days_folder / "out"))
    headlines = write_report(out)
    shown = relations({"manifest": out.at("tables/manifest.json")})["tasks"]
    counted = f"select queue, count_if(in_time) / count(*) as ratio from {shown} group by 1"
    ratios = {row["queue"]: row["ratio"] for row in query(counted)}
    assert {queue: said.split("%")[0] for queue, said in headlines.items()} == {
        queue: f"{100 * ratio:.0f}" for queue, ratio in ratios.items()
    }
    assert "on the newest 1 of 2 days" in (two_days_folder / "out/report.html").read_text()


@pytest.mark.timeout(600)  # another start of Spark, on a machine that may be busy
def test_a_killed_stream_ends_like_a_batch(spark: SparkSession, pipeline: Pipeline, tmp_path: Path) -> None:
    events = small().landed()
    request = RunRequest(Folder(str(tmp_path / "in")), Folder(str(tmp_path / "out")))
    checkpoint = str(tmp_path / "checkpoint")
    write_lines(tmp_path / "in/0.json.gz", events[::2] + events[:2])
    stream(spark, request, checkpoint)
    write_lines(tmp_path / "in/1.json.gz", events[1::2] + events[:2])
    command = [
        sys.executable, "-m", "freshq_pipeline", "stream", "--events", str(tmp_path / "in"), "--json",
        "--out", str(tmp_path / "out"), "--checkpoint", checkpoint,
        "--files-per-batch", "1", "--master", "local[2]", "--memory", "1g",
    ]  # fmt: skip
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True, env=environment)
    until = time.monotonic() + PATIENCE_SECONDS
    # In the middle of a run: the second batch has written its events, but is not published.
    while len(list((tmp_path / "out").glob("silver/*"))) < 2 and time.monotonic() < until:
        assert killed.poll() is None
        time.sleep(0.02)  # between polls
    os.killpg(killed.pid, signal.SIGKILL)  # Python and its Java
    assert killed.wait() == -signal.SIGKILL
    known = json.loads((tmp_path / "out/_current.json").read_text())
    assert len(known["files"]) == 1
    stream(spark, request, checkpoint)
    streamed = json.loads((tmp_path / "out/summary.json").read_text())
    batch = pipeline(tmp_path / "in", tmp_path / "batch", index_lag_seconds=None)
    assert without_names(streamed) == without_names(batch)
    assert all_rows(streamed) == all_rows(batch)
    assert streamed["as_of_ms"] == (START_SECONDS + 400) * 1000
