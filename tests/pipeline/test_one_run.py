"""One run at a time works in an output folder, and always on the same events."""

import os
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Never
from unittest.mock import Mock

import pytest
from pyspark.sql import SparkSession

from freshq_pipeline.errors import FAILED_STATUS, BadInput, Overtaken, PipelineError
from freshq_pipeline.ingest.inflation import stored_digest
from freshq_pipeline.ingest.inputs import input_files
from freshq_pipeline.runs import batch
from freshq_pipeline.runs.batch import execute, execute_plan, missing_named, plan
from freshq_pipeline.runs.progress import Stopwatch
from freshq_pipeline.runs.request import Options, RunRequest
from freshq_pipeline.schemas import Format
from freshq_pipeline.spark.tuning import Tuning
from freshq_pipeline.storage.days import Day
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.state import LOCK, State, only_run, publish, required_current
from tests.pipeline.recording import write_lines


def no_session(_tuning: Tuning) -> AbstractContextManager[SparkSession]:
    pytest.fail("Spark started")


@pytest.fixture
def request_of_one_file(tmp_path: Path) -> RunRequest:
    write_lines(tmp_path / "in/a.json", [{}])
    return RunRequest(Folder(str(tmp_path / "in")), Folder(str(tmp_path / "out")))


def test_a_second_run_is_refused_before_anything_is_written(
    request_of_one_file: RunRequest, tmp_path: Path
) -> None:
    refused = pytest.raises(PipelineError, match=r"another run .*/out")
    with only_run(request_of_one_file.out):
        with refused as no:
            execute(request_of_one_file, no_session)
        assert [path.name for path in (tmp_path / "out").iterdir()] == [LOCK]
    assert no.value.status == FAILED_STATUS
    # When the process ends, the lock is released.
    with only_run(request_of_one_file.out):
        pass


def test_a_run_that_ended_after_another_looked_for_files_is_noticed(
    request_of_one_file: RunRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(request: RunRequest) -> batch.RunPlan:
        planned = plan(request)
        publish(request.out, State("1", request.events.uri, "landed"), {"run_id": "1"}, keep_runs=1)
        return planned

    monkeypatch.setattr(batch, "plan", late)
    with pytest.raises(Overtaken):
        execute(request_of_one_file, no_session)


def test_a_run_whose_files_another_one_deleted_says_so(
    request_of_one_file: RunRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, planned = request_of_one_file.out, plan(request_of_one_file)

    def work(*_arguments: Any) -> Never:
        publish(out, State("1", request_of_one_file.events.uri, "landed"), {"run_id": "1"}, keep_runs=1)
        msg = "[PATH_NOT_FOUND] silver"
        raise OSError(msg)

    monkeypatch.setattr(batch, "_work", work)
    with pytest.raises(Overtaken):
        execute_plan(Mock(), request_of_one_file, planned, Stopwatch())
    published = required_current(out)
    assert published.run_id == "1"


def test_a_run_that_fails_at_once_leaves_no_folder(request_of_one_file: RunRequest, tmp_path: Path) -> None:
    def no_java(_tuning: Tuning) -> Never:
        msg = "no Java"
        raise PipelineError(msg)

    with pytest.raises(PipelineError, match="no Java"):
        execute(request_of_one_file, no_java)
    assert not (tmp_path / "out").exists()


@pytest.fixture
def made(tmp_path: Path) -> RunRequest:
    """Return the request of a run that has read three files."""
    for name in "abc":
        write_lines(tmp_path / f"in/{name}.json", [{}])
    request = RunRequest(Folder(str(tmp_path / "in")), Folder(str(tmp_path / "out")))
    files = {
        path: [*seen, stored_digest(request.events, path)]
        for path, seen in input_files(request.events, Format.LANDED).items()
    }
    state = State("1", request.events.uri, "landed", files=files, options=request.options.of_tables())
    publish(request.out, state, {"run_id": "1"}, keep_runs=1)
    return request


def refused(request: RunRequest, tmp_path: Path) -> str:
    """Run; return why it is refused, after a check that nothing was written."""
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(BadInput) as why:
        execute(request, no_session)
    assert sorted(tmp_path.rglob("*")) == before
    assert "\n" not in str(why.value)
    return str(why.value)


def test_other_events_are_refused(made: RunRequest, tmp_path: Path) -> None:
    write_lines(tmp_path / "other/x.json", [{}])
    other = replace(made, events=Folder(str(tmp_path / "other")))
    assert refused(other, tmp_path) == (
        f"events: {tmp_path}/out was made from {tmp_path}/in, not from {tmp_path}/other; "
        "use another --out, or make all tables anew with `run --full-refresh`"
    )
    streams = replace(made, options=Options(Format.STREAMS))
    assert refused(streams, tmp_path).startswith(
        f"format: {tmp_path}/out has landed events, not streams; give --format landed, use"
    )
    # Another spelling of the same folder is the same folder.
    assert plan(replace(made, events=Folder(f"file://{tmp_path}/in/"))).new == []
    anew = plan(replace(other, options=Options(full_refresh=True)))
    assert (anew.before, anew.new) == (None, ["x.json"])


def test_files_that_changed_are_refused_and_files_that_are_gone_do_not_matter(
    made: RunRequest, tmp_path: Path
) -> None:
    (tmp_path / "in/c.json").unlink()
    assert plan(made).new == []
    os.utime(tmp_path / "in/a.json", (1, 1))
    assert plan(made).new == []
    write_lines(tmp_path / "in/a.json", [{"a": 1}])
    assert refused(made, tmp_path) == (
        f"events: files in {tmp_path}/in changed after {tmp_path}/out was made from them: a.json; "
        "use another --out, or make all tables anew with `run --full-refresh`, which loses the events of "
        "files that are gone: 1"
    )
    write_lines(tmp_path / "in/b.json", [{}, {}])
    assert "made from them: a.json and 1 more; use" in refused(made, tmp_path)


def test_what_is_missing_of_an_earlier_run_is_named(tmp_path: Path) -> None:
    out = Folder(str(tmp_path))
    days = {0: Day(silver={"1": 1}), 1: Day()}
    before = State("2", "in", "landed", days=days, tables={"totals": {"": ["parts/totals/a.parquet"]}})
    write_lines(tmp_path / "silver/1/day=1970-01-01/a.parquet", [])

    def failing(error: Exception) -> None:
        with missing_named(out, before):
            raise error

    with pytest.raises(BadInput, match=r"parts/totals/a\.parquet"):
        failing(FileNotFoundError())
    # An error that says what to do stays.
    with pytest.raises(Overtaken):
        failing(Overtaken("out"))
    write_lines(tmp_path / "parts/totals/a.parquet", [])
    with pytest.raises(ValueError, match="a defect"):
        failing(ValueError("a defect"))
    (tmp_path / "silver/1/day=1970-01-01/a.parquet").unlink()
    with pytest.raises(BadInput, match="silver/1/day=1970-01-01"):
        failing(FileNotFoundError())
