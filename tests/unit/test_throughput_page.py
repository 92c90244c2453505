"""The benchmark of the worker measures what it says."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
from benchmarks import worker
from benchmarks.worker_page import HAND, WORKER, ratios
from benchmarks.worker_peers import NOT_INSTALLED, PAYLOAD, main

from freshq import Queue
from tests.support.readings import counts

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("measure", [worker.by_hand, worker.by_worker])
def test_everything_is_done_when_it_is_measured(tmp_path: Path, measure: worker.Measure) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    figure = measure(url, 30, 4)
    assert figure["seconds"] > 0
    assert figure["processor_seconds"] > 0
    queue = Queue.sql(url)
    assert counts(queue.stats()) == {"success": 31 if measure is worker.by_hand else 30}
    queue.close()


def test_payloads_have_a_kilobyte() -> None:
    assert 1000 <= len(json.dumps(PAYLOAD)) <= 1024


def test_a_ratio_is_the_median_of_those_of_each_round() -> None:
    def rounds(*rates: float) -> list[dict[str, float]]:
        return [{"tasks_per_second": rate} for rate in rates]

    figures = {"8": {WORKER: rounds(100, 300, 100), HAND: rounds(50, 100, 100)}, "1": {WORKER: rounds(1)}}
    assert ratios(figures, HAND) == {"8": 2.0}


def test_a_peer_that_is_missing_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "huey", None)
    assert main("huey", "unused", 1, 1) == NOT_INSTALLED
    assert "huey" in capsys.readouterr().err
