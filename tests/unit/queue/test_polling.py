"""The waits of a poll between two claims."""

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from freshq import Queue
from freshq.queue import polling
from freshq.stores.memory import MemoryStore
from freshq.stores.notifier import Signal
from tests.conftest import Clock
from tests.support.readings import payloads

MOST_WAITS = 9


class PassingSignal(Signal):
    """Notes how long it is to wait, and lets the time pass instead."""

    def __init__(self, time: Clock) -> None:
        """Start with nothing waited for."""
        super().__init__()
        self.time = time
        self.waits: list[float] = []

    def wait(self, seen: int, seconds: float) -> None:
        """Let the time pass."""
        assert seen == self.count
        self.waits.append(round(seconds, 5))
        assert len(self.waits) < MOST_WAITS
        self.time.advance(seconds)


class WaitingStore(MemoryStore):
    """Lets the time of a wait pass immediately."""

    def __init__(self, time: Clock) -> None:
        """Start with nothing waited for."""
        super().__init__()
        self.signal = PassingSignal(time)
        self.notifier.line = lambda queue: self.signal  # type: ignore[method-assign]  # noqa: ARG005
        self.after_claim: Callable[[], object] = lambda: None

    def tidy(self, queue: str, now: float, limit: int) -> int:
        """Do the last step of a claim, then let the test act."""
        tidied = super().tidy(queue, now, limit)
        self.after_claim()
        return tidied


@pytest.fixture
def store(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> WaitingStore:
    """Return a store that shares its clock with the timeouts of polls."""
    monkeypatch.setattr(polling, "time", SimpleNamespace(monotonic=clock))
    return WaitingStore(clock)


@pytest.fixture
def queue(store: WaitingStore, clock: Clock) -> Queue:
    return Queue(store, clock=clock)


def test_it_waits_until_a_delay_ends(queue: Queue, store: WaitingStore) -> None:
    queue.put("later", delay_seconds=3.5)
    assert payloads(queue.claim(wait_seconds=None)) == ["later"]
    assert store.signal.waits == [3.5]


def test_it_waits_no_longer_than_its_timeout(queue: Queue, store: WaitingStore) -> None:
    assert queue.claim(wait_seconds=2.5) == []
    assert store.signal.waits == [2.5]


def test_it_looks_at_once_for_what_became_due_during_the_claim(
    queue: Queue, store: WaitingStore, clock: Clock
) -> None:
    queue.put("later", delay_seconds=1)
    store.after_claim = lambda: clock.advance(2)
    assert payloads(queue.claim(wait_seconds=None)) == ["later"]
    assert store.signal.waits == [0.0]


def test_it_claims_one_task_unless_told_otherwise(queue: Queue, store: WaitingStore) -> None:
    queue.put_many([{"payload": 1}, {"payload": 2}, {"payload": 3}])
    assert [len(queue.claim(wait_seconds=None)), len(queue.claim(2, wait_seconds=None))] == [1, 2]
    assert store.signal.waits == []
