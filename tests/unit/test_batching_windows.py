"""The emulator's batching windows: a batch is delivered when it is full, or when its window is over."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from local.ministack_process import BatchingWindows

from freshq.testing import ManualClock

if TYPE_CHECKING:
    import pytest


class Emulator:
    """The two modules of the emulator that know mappings and streams, with one stream."""

    def __init__(self, *mappings: dict[str, Any]) -> None:
        self.records: list[int] = []
        self.mappings = SimpleNamespace(
            _esm_wake=threading.Event(),
            _iter_all_esms=lambda: iter([("account", "region", one) for one in mappings]),
        )
        self.streams = SimpleNamespace(
            stream_records_since=lambda _table, position, limit: self.records[position : position + limit]
        )
        self.clock = ManualClock()
        BatchingWindows(self.mappings, self.streams, self.clock)

    def poll(self, position: int = 0, limit: int = 10) -> dict[str, list[int]]:
        """Return what each mapping is given."""
        return {
            mapping["UUID"]: self.streams.stream_records_since("table", position, limit)
            for _, _, mapping in self.mappings._iter_all_esms()
        }


def test_records_wait_for_the_window_of_their_own_mapping() -> None:
    emulator = Emulator(
        {"UUID": "slow", "MaximumBatchingWindowInSeconds": 5},
        {"UUID": "quick", "MaximumBatchingWindowInSeconds": 0},
        {"UUID": "plain"},
    )
    assert emulator.poll() == {"slow": [], "quick": [], "plain": []}
    emulator.records = [1, 2]
    emulator.clock.advance(60)
    assert emulator.poll() == {"slow": [], "quick": [1, 2], "plain": [1, 2]}
    emulator.clock.advance(4.9)
    emulator.records.append(3)
    assert emulator.poll()["slow"] == []
    emulator.clock.advance(0.1)
    assert emulator.poll()["slow"] == [1, 2, 3]


def test_the_next_batch_has_a_window_of_its_own_and_a_full_one_does_not_wait() -> None:
    emulator = Emulator({"UUID": "slow", "MaximumBatchingWindowInSeconds": 5})
    emulator.records = [1]
    emulator.poll()
    emulator.clock.advance(5)
    assert emulator.poll()["slow"] == [1]
    emulator.records = [1, 2]
    assert emulator.poll(position=1)["slow"] == []
    emulator.records = list(range(11))
    assert emulator.poll(position=1)["slow"] == list(range(1, 11))


def test_the_emulator_is_woken_when_a_window_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[float, Any]] = []

    def timer(seconds: float, action: Any) -> SimpleNamespace:
        return SimpleNamespace(start=lambda: started.append((seconds, action)))

    monkeypatch.setattr("threading.Timer", timer)
    emulator = Emulator({"UUID": "slow", "MaximumBatchingWindowInSeconds": 5})
    emulator.records = [1]
    for _ in range(3):
        emulator.poll()
    ((seconds, action),) = started
    action()
    assert (seconds, emulator.mappings._esm_wake.is_set()) == (5.0, True)
