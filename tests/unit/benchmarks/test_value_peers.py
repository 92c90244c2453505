"""Tasks, measures and contenders of the part `value-peers`."""

import re
import sys
import time
from collections import Counter
from pathlib import Path
from statistics import median

import pytest
from benchmarks.figures import figures_of
from benchmarks.library_pages import VALUE_LOADS
from benchmarks.overload_peers import SLOTS, Program
from benchmarks.peers import PEERS, VALUES, rank
from benchmarks.value_peers import (
    CONTENDERS,
    LIMIT_SECONDS,
    LOADS,
    SHARES,
    TASK_SECONDS,
    Arrival,
    arrivals,
    delivered,
    drive,
    most_value,
)
from benchmarks.worker import fill_peer

from tests.support.patience import PATIENCE_SECONDS


def test_each_contender_is_a_peer_and_each_load_has_its_rate_and_values() -> None:
    assert {peer.partition("@")[0] for peer in CONTENDERS.values()} == PEERS.keys()
    assert tuple(f"{load:g}" for load in LOADS) == VALUE_LOADS
    for load in LOADS:
        tasks = arrivals(load, 100.0, 1)
        assert tasks == sorted(tasks) == arrivals(load, 100.0, 1) != arrivals(load, 100.0, 2)
        assert len(tasks) == pytest.approx(load * 100.0 * SLOTS / TASK_SECONDS, rel=0.1)
        counts = Counter(task.value for task in tasks)
        assert [counts[value] / len(tasks) for value in VALUES] == pytest.approx(SHARES, rel=0.2)


def test_the_most_is_the_dearest_tasks_that_the_slots_have_time_for() -> None:
    tasks = [Arrival(0.0, value) for value in VALUES * 100]
    seconds = 150 / SLOTS * TASK_SECONDS - LIMIT_SECONDS
    assert most_value(tasks, seconds) == 100 * 10 + 50 * 4
    assert most_value(tasks[:3], seconds) == 15


def test_a_task_that_is_done_late_is_worth_nothing() -> None:
    tasks = [Arrival(0.0, value) for value in VALUES]
    assert delivered(tasks, [5.0, 5.0, 5.0], {0: (5.0, 9.1), 1: (5.0, 9.0)}) == 4


def test_priorities_follow_values() -> None:
    assert [rank({"value": value}) for value in VALUES] == [0, 1, 2]
    assert rank({"number": 1}) == 0


@pytest.mark.matrix("peer")
@pytest.mark.parametrize("peer", [each for each in CONTENDERS.values() if each.startswith("freshq")])
def test_freshq_serves_what_is_offered_with_its_value(peer: str, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    assert fill_peer(sys.executable, peer, url, 0) is not None
    worker, producer = (Program(sys.executable, verb, peer, url) for verb in ("serve", "offer"))
    puts = drive(producer, tasks := [Arrival(0.0, 4.0), Arrival(0.1, 10.0)])
    until = time.monotonic() + PATIENCE_SECONDS
    while len(worker.runs) < len(tasks) and time.monotonic() < until:
        time.sleep(0.01)
    producer.end()
    worker.end()
    assert worker.runs.keys() == {0, 1}
    assert all(ended - began >= TASK_SECONDS for began, ended in worker.runs.values())
    assert len(puts) == 2
    assert producer.left == 0


@pytest.mark.parametrize("load", VALUE_LOADS)
def test_the_first_page_says_what_was_measured(load: str) -> None:
    found = figures_of("value_peers")["contenders"]
    shares = {name: round(100 * median(of[load])) for name, of in found.items()}
    others = [share for name, share in shares.items() if not name.startswith("freshq")]
    said = f"{min(others)} to {max(others)}%" if min(others) < max(others) else f"{max(others)}%"
    own = shares["freshq, by value"]
    row = re.compile(rf"\| {said}[^|]*\| (\*\*)?{own}%(\*\*)? \|")
    assert row.search(Path("docs/index.md").read_text("utf-8"))
