"""Gzip files that inflate beyond all bounds are found, in little memory."""

from __future__ import annotations

import gzip
import random
import re
import tracemalloc
import zlib
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from freshq_pipeline.errors import BadInput
from freshq_pipeline.ingest import silver
from freshq_pipeline.ingest.inflation import inflated, oversized_files
from freshq_pipeline.ingest.inputs import damaged_files, longest_line
from freshq_pipeline.schemas import Format
from freshq_pipeline.storage.folder import Folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from freshq_pipeline.ingest.silver import Ingested

MIB = 1 << 20


@pytest.fixture
def peak_mib() -> Callable[[], float]:
    """Measure the peak of Python's memory from here on."""
    tracemalloc.start()

    def peak() -> float:
        used = tracemalloc.get_traced_memory()[1] / MIB
        tracemalloc.stop()
        return used

    return peak


def test_oversized_files_are_found(tmp_path: Path, peak_mib: Callable[[], float]) -> None:
    noise = random.Random(1).randbytes(MIB // 4)
    zeros = gzip.compress(bytes(32 * MIB))
    contents = {
        "many members.gz": zeros * 8,
        "ordinary ends.gz": gzip.compress(noise) + zeros * 8 + gzip.compress(noise),
        "ordinary head.gz": gzip.compress(noise + bytes(64 * MIB)),
        "cut.gz": (zeros * 8)[:-9],
        "ordinary.gz": gzip.compress(noise * 2),
        "little.gz": gzip.compress(bytes(32 * MIB)),  # to 32 MiB: harmless
        "cut and ordinary.gz": gzip.compress(noise)[:-4] + b"\xff" * 4,
        "no gzip.gz": noise,
        "text": bytes(2 * MIB),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    events = Folder(str(tmp_path))
    tracemalloc.reset_peak()
    found = oversized_files(events, {one.path: one.size_bytes for one in events.files()})
    assert peak_mib() < 48  # of 16 threads at most; all members together have 256 MiB
    assert sorted(found) == ["cut.gz", "many members.gz", "ordinary ends.gz", "ordinary head.gz"]


def test_the_lines_of_a_damaged_file_are_salvaged_in_little_memory(
    tmp_path: Path, peak_mib: Callable[[], float]
) -> None:
    line = b"x" * 99 + b"\n"
    (tmp_path / "cut.gz").write_bytes(gzip.compress(line * (64 * MIB // 100))[:-9])
    events, out = Folder(str(tmp_path)), Folder(str(tmp_path / "out"))
    tracemalloc.reset_peak()
    (cut,) = damaged_files(events, ["cut.gz"], out, "salvage")
    assert peak_mib() < 16
    salvaged = (tmp_path / "out" / str(cut.salvaged)).read_bytes()
    assert salvaged == line * cut.lines
    assert cut.lines > 600_000
    with pytest.raises((EOFError, zlib.error)):
        list(inflated(events, "cut.gz"))


def test_a_file_that_takes_all_memory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [b"x" * 99, b"y" * 3 * MIB, b"z" * 50]
    contents = {
        "long.gz": gzip.compress(b"\n".join(lines)),
        "short.json": b"x\n" * 3 * MIB,
        "no gzip.gz": b"x",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    events = Folder(str(tmp_path))
    assert longest_line(events, contents) == ("long.gz", 3 * MIB)
    assert longest_line(events, ["short.json"]) == ("short.json", 1)

    def fail(*_: object) -> Ingested:
        raise PySparkException("scala.MatchError: java.lang.OutOfMemoryError: Java heap space")

    monkeypatch.setattr(silver, "_by_spark", fail)
    sizes = {one.path: one.size_bytes for one in events.files()}
    message = (
        f"the longest line, 3.0 MiB, is in {tmp_path}/long.gz, and the largest file is {tmp_path}/short.json"
    )
    with pytest.raises(BadInput, match=re.escape(message)):
        silver.ingest(None, events, sizes, Format.STREAMS, Folder(str(tmp_path / "out")), "run", 0.2)  # type: ignore[arg-type]  # without a session nothing is read
