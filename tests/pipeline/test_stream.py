"""A stream publishes all events of its folder, whatever its checkpoint knows, and fails as a run does."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from freshq_pipeline.errors import BadInput, NotRegistered
from freshq_pipeline.runs import stream as stream_module
from freshq_pipeline.runs.request import RunRequest
from freshq_pipeline.runs.stream import stream
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.state import current
from tests.pipeline.recording import small, write_lines

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.pipeline.conftest import Pipeline


@pytest.mark.timeout(200)  # several runs of Spark, on a machine that may be busy
def test_files_that_only_the_checkpoint_knows_are_read(
    spark: SparkSession, pipeline: Pipeline, tmp_path: Path
) -> None:
    events = small().landed()
    summaries: list[dict[str, Any]] = []

    def follow(out: str) -> list[int]:
        """Stream; return how many events each published run had."""
        summaries.clear()
        request = RunRequest(Folder(str(tmp_path / "in")), Folder(str(tmp_path / out)))
        stream(spark, request, str(tmp_path / "checkpoint"), published=summaries.append)
        return [one["events_distinct"] for one in summaries]

    write_lines(tmp_path / "in/0.json", events[:5])
    pipeline(tmp_path / "in", tmp_path / "restored")
    write_lines(tmp_path / "in/1.json", events[5:12])
    assert follow("out") == [12]
    # Another output, or one that was deleted: all files, the new one included.
    shutil.rmtree(tmp_path / "out")
    write_lines(tmp_path / "in/2.json", events[12:])
    assert follow("out") == [len(events)]
    # The query has nothing to deliver.
    assert follow("restored") == [len(events)]
    assert follow("restored") == []


@pytest.mark.timeout(200)
def test_a_stream_says_why_it_failed_as_a_run_does(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lines(tmp_path / "in/a.json", ["garbage"] * 9)
    out = Folder(str(tmp_path / "out"))
    request = RunRequest(Folder(str(tmp_path / "in")), out)
    with pytest.raises(BadInput, match=r"^events: 9 of 9 records are unusable .* Is the format right\?"):
        stream(spark, request, str(tmp_path / "checkpoint"))
    assert current(out) is None

    def not_registered(*_arguments: object) -> None:
        msg = "the tables are published, but not all are registered"
        raise NotRegistered(msg)

    monkeypatch.setattr(stream_module, "execute_plan", not_registered)
    with pytest.raises(NotRegistered, match="the tables are published"):
        stream(spark, request, str(tmp_path / "checkpoint"))
