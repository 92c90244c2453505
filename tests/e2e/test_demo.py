"""The demonstration, run as a newcomer runs it."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from local.demo import FOLDER_VARIABLE, LOAD_SECONDS, OVERLOAD
from local.emulator import PROJECT
from local.facts import CALM_GOODPUT_SHARE

from tests.e2e.conftest import group, wait_until
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.timeout(600), pytest.mark.usefixtures("template")]

COMMAND = [sys.executable, "-m", "local.demo"]


def start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        COMMAND,
        cwd=PROJECT,
        env=os.environ | {FOLDER_VARIABLE: str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def descendants(pid: int) -> list[int]:
    """Return the processes below one, whatever group they are in."""
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text("utf-8").split()):
            found += [child, *descendants(child)]
    return found


def test_it_accounts_for_every_task_and_serves_the_newest(tmp_path: Path) -> None:
    # Its paths are longer than a line of a terminal.
    folder = tmp_path / ("a long folder " * 7).strip()
    process = start(folder)
    output, _ = process.communicate(timeout=500)
    assert process.returncode == 0, output
    assert group(process.pid) == []
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text("utf-8"))
    fates = ("success", "failure", "cancelled", "shed", "pending", "taken")
    assert sum(summary[fate] for fate in fates) == summary["created"] > 0
    assert (summary["pending"], summary["taken"], summary["duplicates_run"]) == (0, 0, 0)
    assert summary["created"] == pytest.approx(
        OVERLOAD * LOAD_SECONDS * summary["capacity_per_second"], rel=0.01
    )
    # The data pipeline computes the same from the archive.
    facts: dict[str, Any] = json.loads((folder / "pipeline" / "summary.json").read_text("utf-8"))
    assert {fate: facts[fate] for fate in fates} == {fate: summary[fate] for fate in fates}
    assert (facts["ledger_violations"], facts["events_quarantined"]) == (0, 0)
    assert (folder / "pipeline" / "report.html").stat().st_size > 100_000
    assert summary["shed"] > summary["success"] > 0
    assert summary["newest_first_ratio"] >= 0.95
    assert summary["wait_p50_seconds"] < summary["max_age_seconds"] / 2
    assert summary["goodput_per_second"] <= summary["capacity_per_second"] * 1.01
    # How much is done in time depends on the machine; the demonstration says so where it is little.
    calm = summary["goodput_per_second"] >= summary["capacity_per_second"] * CALM_GOODPUT_SHARE
    assert ("too busy" in output) == (not calm)
    assert f"freshq did {summary['done_in_time']} tasks in time" in output
    assert 0 < summary["done_in_time_fifo_simulated"] < summary["created"] / 2
    assert (folder / "picture.png").read_bytes().startswith(b"\x89PNG")
    printed = output.splitlines()
    for written in ("picture.png", "summary.json", "pipeline/report.html"):
        assert str(folder / written) in printed
    assert "dashboard, while tasks are left: http://127.0.0.1:" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_leaves_nothing_running_when_it_is_stopped(number: signal.Signals, tmp_path: Path) -> None:
    process = start(tmp_path)
    below = wait_until(lambda: descendants(process.pid))
    os.kill(process.pid, number)
    process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == (130 if number is signal.SIGINT else 128 + number)
    # The init process may take a moment to reap them.
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below))
