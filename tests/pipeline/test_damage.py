"""A gzip file that cannot be read to its end holds a run back, is named first, and can be delivered again."""

import gzip
import json
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from freshq_pipeline.errors import BadInput
from freshq_pipeline.ingest.copies import prepare
from freshq_pipeline.ingest.inputs import is_redelivered
from freshq_pipeline.report.ending import show_summary
from freshq_pipeline.report.page import write_report
from freshq_pipeline.schemas import Format
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.results import DamagedFile, damage_text
from freshq_pipeline.storage.state import current
from tests.pipeline.conftest import Pipeline, all_rows, without_names
from tests.pipeline.recording import write_lines
from tests.pipeline.two_days import two_days

UNUSABLE = ["not json", '{"schema_version": 1}']


def write_events(folder: Path) -> bytes:
    """Write a sound file, and one with unusable lines and unknown fields; return the latter's content."""
    landed = two_days().landed()
    half = len(landed) // 2
    landed[half]["color"] = landed[half + 1]["color"] = "green"
    write_lines(folder / "a.json.gz", landed[:half])
    write_lines(folder / "b.json.gz", [*UNUSABLE, *(json.dumps(event) for event in landed[half:]), *UNUSABLE])
    return (folder / "b.json.gz").read_bytes()


@pytest.mark.parametrize("keep_days", [None, 1])
def test_a_file_that_arrives_again_replaces_its_damaged_copy(
    keep_days: int | None, pipeline: Pipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = write_events(tmp_path / "in")
    damaged, out = tmp_path / "in/b.json.gz", tmp_path / "out"
    expected = pipeline(tmp_path / "in", tmp_path / "whole", max_reject_ratio=1.0)
    damaged.write_bytes(whole[: len(whole) // 2])
    options = {"max_reject_ratio": 1.0, "keep_silver_days": keep_days}
    with pytest.raises(
        BadInput, match=r"1 of 2 files is damaged, .* b\.json\.gz \(truncated gzip, \d+ whole"
    ):
        pipeline(tmp_path / "in", out, **options)
    assert not (out / "_current.json").exists()
    partly = pipeline(tmp_path / "in", out, accept_damaged=True, **options)
    assert (partly["files_read"], partly["files_damaged"]) == (2, 1)
    assert 0 < partly["damaged_share"] < 1
    assert partly["events_distinct"] < expected["events_distinct"]
    show_summary(partly, {"mail": "All done."})
    shown = capsys.readouterr().out
    assert shown.startswith("1 of 2 files is damaged, ")
    assert shown.index("damaged") < shown.index("All done.")
    write_report(Folder(str(out)))
    assert "1 of 2 files is damaged, " in (out / "report.html").read_text()
    damaged.write_bytes(whole)
    again = pipeline(tmp_path / "in", out, **options)
    assert without_names(again) == without_names(expected)
    assert all_rows(again) == all_rows(expected)
    state = current(Folder(str(out)))
    assert state is not None
    assert state.damaged == {}
    damaged.write_bytes(whole[:-9])
    with pytest.raises(BadInput, match=re.escape("changed after")):  # it was read to its end
        pipeline(tmp_path / "in", out, accept_damaged=True, **options)


def test_only_a_file_with_the_same_beginning_replaces_a_damaged_one(
    spark: SparkSession, tmp_path: Path
) -> None:
    lines = b"".join(b"%d\n" % number for number in range(10_000))
    file, events, out = tmp_path / "a.gz", Folder(str(tmp_path)), Folder(str(tmp_path / "out"))
    whole = gzip.compress(lines)
    file.write_bytes(whole[: len(whole) // 2])
    (cut,) = prepare(spark, events, {"a.gz": len(whole)}, Format.LANDED, out, "salvage")
    assert cut.damage is not None
    assert 0 < cut.damage.lines < 10_000
    contents = {
        "whole": (whole, True),
        "longer": (whole[:-100], True),
        "shorter": (whole[: len(whole) // 4], False),
        "other": (gzip.compress(b"0" + lines), False),
        "empty": (gzip.compress(b""), False),
    }
    for name, (content, expected) in contents.items():
        file.write_bytes(content)
        assert is_redelivered(events, "a.gz", len(content), cut.damage) is expected, name
    assert is_redelivered(events, "a.gz", 0, DamagedFile("unread"))


def test_the_largest_damaged_file_is_named_and_none_if_none_is() -> None:
    figures = {
        "files_read": 1200, "files_damaged": 3, "damaged_share": 0.05,
        "damaged_files": [{"file": "x.gz", "problem": "damaged gzip", "lines": 1000}],
    }  # fmt: skip
    assert damage_text(figures) == (
        "3 of 1,200 files are damaged, 5.0% of the bytes: x.gz (damaged gzip, 1,000 whole lines readable) "
        "and 2 more"
    )
    assert damage_text({"files_damaged": 0}) is None
