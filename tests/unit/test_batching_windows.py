"""What the emulator's process changes: batching windows, and filters of what is missing."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from local.ministack_process import BatchingWindows, mend_filters

from freshq.testing import ManualClock


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


@pytest.mark.parametrize(
    ("record", "matches"),
    [
        ({"old": {}, "new": {"status": {"S": "PENDING"}}}, True),
        ({"new": {"status": {"S": "PENDING"}}}, True),
        ({"old": {"status": {"S": "TAKEN"}}, "new": {"status": {"S": "PENDING"}}}, False),
        ({"old": {}, "new": {}}, False),
        ({"old": {}}, False),
    ],
)
def test_what_is_not_there_does_not_exist_whatever_else_is_missing(
    record: dict[str, Any], *, matches: bool
) -> None:
    from ministack.services import lambda_svc  # type: ignore[import-untyped]  # noqa: PLC0415 - it is large

    mappings = SimpleNamespace(_match_esm_filter=lambda_svc._match_esm_filter)
    mend_filters(mappings)
    pattern = {"old": {"status": {"S": [{"exists": False}]}}, "new": {"status": {"S": ["PENDING"]}}}
    assert mappings._match_esm_filter(record, pattern) is matches
