"""A stream publishes all events of its folder, even beyond its checkpoint, and fails like a run."""

import shutil
import signal
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pyspark.sql import SparkSession

from freshq_pipeline.errors import BadInput, NotRegistered
from freshq_pipeline.report.ending import Ending
from freshq_pipeline.runs import stream as stream_module
from freshq_pipeline.runs.request import RunRequest
from freshq_pipeline.runs.stopping import asked_to_stop, ended_by_signals
from freshq_pipeline.runs.stream import stream
from freshq_pipeline.spark.interrupts import SIGNALS, held_signals
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.results import NEW
from freshq_pipeline.storage.state import current
from tests.pipeline.conftest import Pipeline
from tests.pipeline.recording import small, write_lines


@pytest.mark.timeout(600)  # several runs of Spark, on a machine that may be busy
def test_files_that_only_the_checkpoint_knows_are_read(
    spark: SparkSession, pipeline: Pipeline, tmp_path: Path
) -> None:
    events = small().landed()
    summaries: list[dict[str, Any]] = []
    settings = dict(spark.conf.getAll)

    def follow(out: str) -> list[int]:
        """Run a stream; return the number of events of each published run."""
        summaries.clear()
        request = RunRequest(Folder(str(tmp_path / "in")), Folder(str(tmp_path / out)))
        checkpoint = str(tmp_path / "checkpoint")
        stream(spark, request, checkpoint, published=summaries.append, files_per_batch=2)
        return [one["events_distinct"] for one in summaries]

    write_lines(tmp_path / "in/0.json", events[:5])
    pipeline(tmp_path / "in", tmp_path / "restored")
    write_lines(tmp_path / "in/1.json", events[5:12])
    assert follow("out") == [12]
    # Another output, or one that was deleted: all files, the new one included, at most two in a batch.
    shutil.rmtree(tmp_path / "out")
    write_lines(tmp_path / "in/2.json", events[12:])
    assert follow("out") == [12, len(events)]
    # The query has nothing to deliver.
    assert follow("restored") == [len(events)]
    assert follow("restored") == []
    # The settings for small batches are of a session of their own.
    assert dict(spark.conf.getAll) == settings


@pytest.mark.timeout(600)
def test_a_stream_says_why_it_failed_as_a_run_does(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lines(tmp_path / "in/a.json", ["garbage"] * 9)
    out = Folder(str(tmp_path / "out"))
    request = RunRequest(Folder(str(tmp_path / "in")), out)
    with pytest.raises(BadInput, match=r"^events: 9 of 9"):
        stream(spark, request, str(tmp_path / "checkpoint"))
    assert current(out) is None

    stop = Event()

    def not_registered(*_arguments: object) -> None:
        stop.set()
        msg = "the tables are published, but not all are registered"
        raise NotRegistered(msg)

    monkeypatch.setattr(stream_module, "execute_plan", not_registered)
    with pytest.raises(NotRegistered):
        stream(spark, request, str(tmp_path / "checkpoint"), stop=stop)


@pytest.mark.timeout(600)
def test_a_stream_that_is_to_stop_ends_after_its_batch(spark: SparkSession, tmp_path: Path) -> None:
    events = small().landed()
    write_lines(tmp_path / "in/0.json", events[:12])
    write_lines(tmp_path / "in/1.json", events[12:])
    request = RunRequest(Folder(str(tmp_path / "in")), Folder(str(tmp_path / "out")))
    stop, seen = Event(), list[int]()

    def published(summary: dict[str, Any]) -> None:
        seen.append(summary["events_distinct"])
        stop.set()

    checkpoint = str(tmp_path / "checkpoint")
    stream(spark, request, checkpoint, 3600, published, files_per_batch=1, stop=stop)
    assert len(seen) == 1
    stream(spark, request, checkpoint, 3600, published, files_per_batch=1, stop=stop)
    assert len(seen) == 1
    # The batch that did not begin is not taken for read.
    stop.clear()
    stream(spark, request, checkpoint, 3600, published, stop=stop)
    assert seen[1:] == [len(events)]


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_asks_and_the_second_ends(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(number)
    with asked_to_stop() as stop:
        assert not stop.is_set()
        signal.raise_signal(number)
        assert stop.is_set()
        assert capsys.readouterr().err.startswith("freshq-pipeline: ends after the batch in progress")
        with pytest.raises(SystemExit) as ended:
            signal.raise_signal(number)
    assert ended.value.code == 128 + number
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_a_command_with_its_status_whatever_fails_on_the_way_out(
    number: signal.Signals,
) -> None:
    before = signal.getsignal(number)
    cleaning = ExitStack()
    cleaning.callback([].pop)  # as a call to Java after one that was cut off
    with pytest.raises(SystemExit) as ended, ended_by_signals(), cleaning:
        signal.raise_signal(number)
    assert ended.value.code == 128 + number
    assert signal.getsignal(number) is before
    with pytest.raises(IndexError), ended_by_signals():
        [].pop()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_waits_until_what_it_must_not_cut_off_is_done(number: signal.Signals) -> None:
    seen, hurried = list[int](), list[int]()
    before = signal.signal(number, lambda number, _frame: seen.append(number))
    try:
        with held_signals(lambda: hurried.append(number)):
            signal.raise_signal(number)
            signal.raise_signal(number)
            assert seen == []
        assert (seen, hurried) == ([number], [number, number])
        with held_signals():
            signal.signal(number, signal.SIG_DFL)  # as PySpark sets its own
        signal.raise_signal(number)
        assert seen == [number, number]
    finally:
        signal.signal(number, before)


def test_nohup_keeps_a_closed_terminal_from_ending_a_command() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_by_signals():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_second_signal_kills_java_and_does_not_cut_cleaning_off(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = list[str]()
    monkeypatch.setattr("freshq_pipeline.runs.stopping.kill_java", lambda: done.append("killed"))

    def clean() -> None:
        signal.raise_signal(number)
        signal.raise_signal(number)
        done.append("cleaned")

    def stream() -> None:
        with ended_by_signals(), ExitStack() as cleaning, asked_to_stop():
            cleaning.callback(clean)
            signal.raise_signal(number)
            signal.raise_signal(number)

    with pytest.raises(SystemExit) as ended:
        stream()
    assert ended.value.code == 128 + number
    assert done == ["killed", "killed", "cleaned"]


def test_each_batch_is_reported_and_the_new_violations_are_those_of_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def write_report(_out: Folder) -> dict[str, str]:
        msg = "no disk"
        raise OSError(msg)

    monkeypatch.setattr("freshq_pipeline.report.page.write_report", write_report)
    begun = list[str]()
    batches = Ending(Folder(str(tmp_path)), begun.append, of_each_batch=True)
    for mail, ship, total in ((2, 0, 2), (0, 0, 2), (1, 4, 7)):
        queues = [{"queue": name, NEW: new} for name, new in (("mail", mail), ("ship", ship))]
        batches.batch({"queues": queues[: 1 + bool(ship)], NEW: mail + ship, "ledger_violations": total})
    assert batches.summary == {
        "queues": [{"queue": "mail", NEW: 3}, {"queue": "ship", NEW: 4}], NEW: 7, "ledger_violations": 7,
    }  # fmt: skip
    problem = f"freshq-pipeline: the tables in {tmp_path} are published, but the report is not: no disk; "
    problem += f"run `freshq-pipeline report --out {tmp_path}`"
    assert capsys.readouterr().err.splitlines() == [
        "freshq-pipeline: ledger violations: 2 new, 2 in all; see the table violations",
        problem, problem,
        "freshq-pipeline: ledger violations: 5 new, 7 in all; see the table violations",
        problem,
    ]  # fmt: skip
    assert (begun, batches.problems) == (["report"] * 3, [])
