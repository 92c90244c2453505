"""Two runs never work in one output folder at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Never
from unittest.mock import Mock

import pytest

from freshq_pipeline.errors import FAILED_STATUS, Overtaken, PipelineError
from freshq_pipeline.runs import batch
from freshq_pipeline.runs.batch import execute, execute_plan, plan
from freshq_pipeline.runs.progress import Stopwatch
from freshq_pipeline.runs.request import RunRequest
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.state import LOCK, State, current, only_run, publish
from tests.pipeline.recording import write_lines

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pyspark.sql import SparkSession

    from freshq_pipeline.spark.tuning import Tuning


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
    # Its end is the end of the lock.
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
    published = current(out)
    assert published is not None
    assert published.run_id == "1"


def test_a_run_that_fails_at_once_leaves_no_folder(request_of_one_file: RunRequest, tmp_path: Path) -> None:
    def no_java(_tuning: Tuning) -> Never:
        msg = "no Java"
        raise PipelineError(msg)

    with pytest.raises(PipelineError, match="no Java"):
        execute(request_of_one_file, no_java)
    assert not (tmp_path / "out").exists()
