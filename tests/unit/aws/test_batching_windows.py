"""What the emulator's process changes: batching windows, filters of what is missing, unpacked layers."""

import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from local.emulator import BatchingWindows, mend_filters, unpack_once

from freshq.testing import ManualClock
from tests.support.patience import PATIENCE_SECONDS


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


def test_what_a_client_reads_meanwhile_is_not_held_back() -> None:
    emulator = Emulator({"UUID": "slow", "MaximumBatchingWindowInSeconds": 5})
    emulator.records = [1, 2]
    with ThreadPoolExecutor(1) as client:
        for _mapping in emulator.mappings._iter_all_esms():
            assert emulator.streams.stream_records_since("table", 0, 10) == []
            asked = client.submit(emulator.streams.stream_records_since, "table", 0, 10)
            assert asked.result(PATIENCE_SECONDS) == [1, 2]


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


def test_a_package_is_unpacked_once_for_all_processes(tmp_path: Path) -> None:
    runtime = SimpleNamespace()
    (tmp_path / "kept").mkdir()
    unpack_once(runtime, tmp_path / "kept")

    def unpack(text: str, name: str) -> Path:
        with zipfile.ZipFile(tmp_path / "layer.zip", "w") as layer:
            layer.writestr("python/module/a.py", text)
            layer.writestr("b.py", "b")
        process = tmp_path / name
        process.mkdir()
        with runtime.zipfile.ZipFile(tmp_path / "layer.zip") as layer:
            layer.extractall(process)
        assert (process / "python/module/a.py").read_text() == text
        assert (process / "b.py").read_text() == "b"
        return (process / "python").resolve()

    first, second, changed = unpack("1", "first"), unpack("1", "second"), unpack("2", "changed")
    assert first == second
    assert changed != first
    assert {path.parent.parent for path in (first, changed)} == {tmp_path / "kept"}
    (tmp_path / "broken.zip").write_text("no package")
    with pytest.raises(runtime.zipfile.BadZipFile):
        runtime.zipfile.ZipFile(tmp_path / "broken.zip")
