"""The pipeline's benchmarks: their recordings, and the figures of their turns."""

import gzip
import json
from pathlib import Path

from benchmarks.lives import START_MS, write_events
from benchmarks.pipeline import Cost, inflated_bytes, ratios, recorded


def test_ratios_are_those_within_a_turn() -> None:
    ours, theirs = [Cost(2, 1), Cost(4, 3)], [Cost(1, 1), Cost(2, 2)]
    assert ratios(ours, theirs) == {"seconds": [2, 2], "processor_seconds": [1, 1.5]}


def test_the_size_of_a_recording_is_that_of_its_lines(tmp_path: Path) -> None:
    count = recorded(tmp_path, 300)
    lines = b"".join(gzip.decompress(file.read_bytes()) for file in tmp_path.iterdir())
    assert sum(map(inflated_bytes, tmp_path.iterdir())) == len(lines)
    assert count <= len(lines.splitlines()) <= count * 1.02


def test_a_recording_of_some_hours_has_an_even_load(tmp_path: Path) -> None:
    write_events(tmp_path, 600, files=1, hours=6)
    text = b"".join(gzip.decompress(file.read_bytes()) for file in tmp_path.iterdir())
    created_ms = {event["task_id"]: event["created_ms"] for event in map(json.loads, text.splitlines())}
    by_hour = [0] * 6
    for moment_ms in created_ms.values():
        by_hour[int(moment_ms - START_MS) // 3_600_000] += 1
    assert min(by_hour) > max(by_hour) / 3
    assert abs(len(text.splitlines()) / 600 - 1) < 0.2
