"""The crew of a worker: what a burst frees is reported once, and is reported even while a call settles."""

import threading
from typing import Any

import pytest

from freshq.worker import crew
from freshq.worker.crew import Crew
from tests.support.patience import PATIENCE_SECONDS


class Watched:
    """A crew whose runs end at once, and what it did in order."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.settling = threading.Event()
        self.may_settle = threading.Event()
        self.freed = threading.Semaphore(0)
        self.settled = threading.Semaphore(0)
        self.crew = Crew(self.run, self.settle, self.on_freed)

    def run(self, run: Any) -> None:
        self.happened.append("run")
        self.crew.settle(run)

    def settle(self, ended: list[Any]) -> None:
        self.happened.append(f"settle {len(ended)}")
        self.settling.set()
        assert self.may_settle.wait(PATIENCE_SECONDS)
        for _ in ended:
            self.settled.release()

    def on_freed(self) -> None:
        self.happened.append("freed")
        self.freed.release()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(crew, "SLOW_CALL_SECONDS", PATIENCE_SECONDS)
    watched = Watched()
    yield watched
    watched.may_settle.set()
    watched.crew.close()


def run_of_task() -> Any:
    return object()


def test_freed_slots_are_reported_before_the_runs_are_settled(watched: Watched) -> None:
    watched.crew.start([run_of_task()])
    watched.crew.wake()
    assert watched.settling.wait(PATIENCE_SECONDS)
    assert watched.happened == ["run", "freed", "settle 1"]


def test_a_slot_that_is_freed_while_a_call_settles_is_reported_at_once(watched: Watched) -> None:
    watched.crew.start([run_of_task()])
    watched.crew.wake()
    assert watched.settling.wait(PATIENCE_SECONDS)
    assert watched.freed.acquire(timeout=PATIENCE_SECONDS)
    watched.crew.start([run_of_task()])
    watched.crew.wake()
    assert watched.freed.acquire(timeout=PATIENCE_SECONDS)
    assert watched.happened == ["run", "freed", "settle 1", "run", "freed"]


def test_every_run_of_a_burst_is_settled(watched: Watched) -> None:
    watched.may_settle.set()
    watched.crew.start([run_of_task() for _ in range(200)])
    watched.crew.wake()
    for _ in range(200):
        assert watched.settled.acquire(timeout=PATIENCE_SECONDS)
    assert watched.happened.count("run") == 200
    assert watched.freed.acquire(timeout=PATIENCE_SECONDS)


def test_a_wake_without_work_starts_no_thread(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[threading.Thread] = []
    monkeypatch.setattr(threading.Thread, "start", started.append)
    watched.crew.wake()
    assert started == []
