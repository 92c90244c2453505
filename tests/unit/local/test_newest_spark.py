"""The run on the newest Spark repeats a session that Spark itself stopped, but not a failure."""

import os
import sys
from pathlib import Path

import pytest
from local.packages import allowed, run_tests

STOPPED = "SparkException: Job 78 cancelled because SparkContext was shut down"


def program(tmp_path: Path, *, fails: int, says: str) -> list[str]:
    """Return a command that says something and fails so many times, and then succeeds."""
    runs = tmp_path / "runs"
    code = (
        f"import pathlib, sys; runs = pathlib.Path({str(runs)!r});"
        "done = len(runs.read_text()) if runs.exists() else 0; runs.write_text('x' * (done + 1));"
        f"failed = done < {fails}; print({says!r} if failed else 'passed'); sys.exit(failed)"
    )
    return [sys.executable, "-c", code]


@pytest.mark.parametrize(
    ("fails", "says", "status", "runs"),
    [(0, STOPPED, 0, 1), (1, STOPPED, 0, 2), (2, STOPPED, 1, 2), (1, "assert 1 == 2", 1, 1)],
)
def test_only_a_session_that_spark_stopped_is_tried_once_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fails: int, says: str, status: int, runs: int
) -> None:
    assert run_tests(program(tmp_path, fails=fails, says=says), os.environ) == status
    assert (tmp_path / "runs").read_text() == "x" * runs
    shown = capsys.readouterr().out
    assert ("once more" in shown) == (runs == 2)
    assert (says in shown) == (fails > 0)


def test_the_newest_spark_is_the_one_that_the_project_allows() -> None:
    assert allowed().startswith("pyspark>=")
