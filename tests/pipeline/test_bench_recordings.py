"""What the benchmarks of the pipeline say of a recording and of turns."""

import gzip
from pathlib import Path

from benchmarks.pipeline import Cost, inflated_bytes, ratios, recorded


def test_ratios_are_those_within_a_turn() -> None:
    ours, theirs = [Cost(2, 1), Cost(4, 3)], [Cost(1, 1), Cost(2, 2)]
    assert ratios(ours, theirs) == {"seconds": [2, 2], "processor_seconds": [1, 1.5]}


def test_the_size_of_a_recording_is_that_of_its_lines(tmp_path: Path) -> None:
    count = recorded(tmp_path, 300)
    lines = b"".join(gzip.decompress(file.read_bytes()) for file in tmp_path.iterdir())
    assert sum(map(inflated_bytes, tmp_path.iterdir())) == len(lines)
    assert count <= len(lines.splitlines()) <= count * 1.02
