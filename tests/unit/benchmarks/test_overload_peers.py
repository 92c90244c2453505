"""Clients, workers and measures of the part `overload-peers`."""

import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from benchmarks.figures import figures_of
from benchmarks.library_pages import possible_ratio
from benchmarks.overload_peers import (
    CONTENDERS,
    RETRIES,
    SCENARIOS,
    SLOTS,
    Outcome,
    Program,
    Scenario,
    drive,
    recovery_seconds,
)
from benchmarks.peers import PEERS, TASK_SECONDS
from benchmarks.worker import fill_peer

from tests.support.one_thread_patch import confined
from tests.support.patience import PATIENCE_SECONDS


def test_each_contender_is_a_peer_and_each_load_has_its_rate() -> None:
    assert {contender.peer.partition("@")[0] for contender in CONTENDERS.values()} == PEERS.keys()
    for scenario in SCENARIOS.values():
        arrivals = scenario.arrivals(100.0, 1)
        assert arrivals == sorted(arrivals) == scenario.arrivals(100.0, 1) != scenario.arrivals(100.0, 2)
        expected = sum(scenario.loads) * 100.0 * SLOTS / TASK_SECONDS
        assert len(arrivals) == pytest.approx(expected, rel=0.1)


def test_a_client_is_happy_if_any_of_its_tasks_is_done_in_time() -> None:
    # The client of 0.5 s puts twice, and the second task is done in time; that of 1.5 s is served late.
    puts, runs = [(0, 10.5), (1, 11.5), (0, 11.6)], {0: (11.5, 11.55), 1: (12.6, 12.65), 2: (11.6, 11.65)}
    found = Outcome([0.5, 1.5], puts, runs, left=4).measures(2.0, 1)
    assert found == {
        "in_time": 0.5,
        "median_seconds": 0.05,
        "wasted": pytest.approx(2 / 3, abs=0.001),
        "left": 4,
        "puts": 3,
        "by_second": [1.0, 0.0],
        "recovery_seconds": None,
    }
    nothing = Outcome([0.5], [(0, 10.5)], {}, left=1).measures(1.0, 2)
    assert (nothing["in_time"], nothing["median_seconds"], nothing["wasted"]) == (0.0, None, 0.0)


@pytest.mark.parametrize(
    ("shares", "seconds"),
    [([1, 1, 1], 0), ([0, 1, 0.9, 1], 1), ([1, 0.8, 1, 1], None), ([0, 1, 1], None)],
)
def test_goodput_is_back_if_it_stays_for_three_seconds(shares: list[float], seconds: int | None) -> None:
    assert recovery_seconds(shares) == seconds


def test_the_readme_says_what_was_measured() -> None:
    runs = figures_of("overload_peers")["contenders"]
    shares = {name: f"{possible_ratio(of['3'], 3.0):.0%}" for name, of in runs.items()}
    others = [name for name in runs if not name.startswith("freshq")]
    best = max(others, key=lambda name: possible_ratio(runs[name]["3"], 3.0))
    readme = " ".join(Path("README.md").read_text("utf-8").split())
    said = f"did {shares['freshq, newest first']} of the possible work in time, the best of four others "
    assert f"{said}{shares[best]}" in readme


def test_above_the_capacity_a_share_is_of_what_is_possible() -> None:
    runs = [{"in_time": share} for share in (0.2, 0.3, 0.1)]
    assert possible_ratio(runs, 3.0) == pytest.approx(0.6)
    assert possible_ratio(runs, 0.5) == 0.2


class Dead(Program):
    """A worker that does nothing, and a producer that puts nothing."""

    def __init__(self) -> None:
        self.runs = {}
        self.given: list[object] = []

    def tell(self, line: object) -> None:
        self.given.append(line)


def test_a_client_that_has_no_answer_puts_its_task_again(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", confined(lambda: now[0], time.monotonic))
    monkeypatch.setattr(
        time, "sleep", confined(lambda seconds: now.__setitem__(0, now[0] + seconds), time.sleep)
    )
    producer, worker = Dead(), Dead()
    puts = drive(producer, worker, Scenario((1.0,), RETRIES), [0.0, 0.1])
    assert producer.given == [*range(2 * (1 + RETRIES))]
    for client in (0, 1):
        own = [at for who, at in puts if who == client]
        assert all(1.0 <= later - earlier <= 1.5 for earlier, later in pairwise(own))
    worker.runs = {0: (0.0, 0.0)}
    assert len(drive(producer, worker, Scenario((1.0,), RETRIES), [0.0, 0.1])) == 1 + 1 + RETRIES
    assert len(drive(producer, worker, Scenario((1.0,)), [0.0, 0.1])) == 2


def test_freshq_serves_what_is_offered(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tasks.db"
    assert fill_peer(sys.executable, "freshq@lifo", url, 0) is not None
    worker, producer = (Program(sys.executable, verb, "freshq@lifo", url) for verb in ("serve", "offer"))
    producer.tell(7)
    until = time.monotonic() + PATIENCE_SECONDS
    while not worker.runs and time.monotonic() < until:
        time.sleep(0.01)
    producer.end()
    worker.end()
    ((number, (began, ended)),) = worker.runs.items()
    assert number == 7
    assert ended - began >= TASK_SECONDS
    assert producer.left == 0
