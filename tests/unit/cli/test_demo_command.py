"""`freshq demo`: the same overload, newest first and first in, first out."""

import json
from io import StringIO

import pytest
from rich.console import Console
from typer.testing import CliRunner

from freshq.cli.commands.demo import Plan, Standing, frame, verdict
from freshq.cli.main import app

PLAN = Plan(total_seconds=20.0)
FRESH = Standing(in_time=316, late=1, shed=523, waiting=0, wait_p50_seconds=0.012, last_wait_seconds=0.3)
FIFO = Standing(in_time=84, late=308, shed=0, waiting=448, wait_p50_seconds=6.53, last_wait_seconds=13.2)


def test_every_task_of_both_queues_has_one_fate() -> None:
    done = CliRunner().invoke(app, ["demo", "--seconds", "3", "--json"])
    assert done.exit_code == 0, done.stderr
    figures = json.loads(done.stdout)
    for order in ("lifo", "fifo"):
        fates = figures[order]
        assert fates["in_time"] + fates["late"] + fates["shed"] + fates["waiting"] == figures["tasks"]
        assert fates["in_time"] + fates["late"] > 0
    assert figures["fifo"]["shed"] == 0
    assert figures["fifo"]["wait_p50_seconds"] > figures["lifo"]["wait_p50_seconds"]


def test_the_sentence_has_the_figures_of_both() -> None:
    assert verdict(FRESH, FIFO).splitlines()[0] == (
        "Of 840 tasks, newest first did 316 in time after a median wait of 0.01 s; first in, first out did "
        "84 in time and 308 too late, after a median wait of 6.5 s, and left 448 waiting."
    )


@pytest.mark.parametrize("width", [40, 60, 120])
def test_a_frame_fits_the_terminal(width: int) -> None:
    console = Console(file=StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(frame(PLAN, 5.0, {"newest first (freshq)": FRESH, "fifo": FIFO}, width))
    assert isinstance(console.file, StringIO)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    shed = next(line for line in lines if line.startswith("shed"))
    waiting = [line for line in lines if line.startswith("waiting")][1]
    assert shed.count("█") > waiting.count("█") > 0


def test_a_wrong_duration_is_refused() -> None:
    done = CliRunner().invoke(app, ["demo", "--seconds", "1"])
    assert done.exit_code == 2
    assert "seconds" in done.stderr
