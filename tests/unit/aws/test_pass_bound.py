"""A worker pass ends in time even if every clock of the process stands still."""

from __future__ import annotations

import json

import pytest

from tests.support.patience import PATIENCE_SECONDS
from tests.support.programs import python

PROGRAM = """
import json, sys, threading, time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any
from freshq import Queue
from freshq.aws.worker_pass import Connections, work
from freshq.model.pass_options import PassOptions

hangs = sys.argv[1] == "hangs"
options = PassOptions(pass_seconds=1, idle_exit_seconds=800, settle_seconds=2, concurrency=1)
stored = SimpleNamespace(current=lambda: options, watched=lambda *_: nullcontext())
queue = Queue.memory()
queue.put("work", task_id="a")
runner = (lambda task: threading.Event().wait()) if hangs else (lambda task: None)
now = time.time()
time.monotonic, time.time = (lambda: 5.0), (lambda: now)
report = work(Connections(queue, runner, SimpleNamespace(options=stored)), 4.0)
print(json.dumps({"claimed": report.claimed, "given_back": report.given_back}))
sys.stdout.flush()
import os
os._exit(0)
"""


@pytest.mark.parametrize("way", ["returns", "hangs"])
def test_a_pass_ends_while_its_clocks_stand_still(way: str) -> None:
    ended = python("-c", PROGRAM, way, timeout=PATIENCE_SECONDS)
    assert json.loads(ended.stdout) == {"claimed": 1, "given_back": ["a"] if way == "hangs" else []}
