"""The files to read, and what can be salvaged of damaged ones."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from freshq_pipeline.errors import BadInput
from freshq_pipeline.ingest.manifests import exported_files
from freshq_pipeline.schemas import Format

if TYPE_CHECKING:
    from collections.abc import Iterator

    from freshq_pipeline.storage.folder import Folder

GZIP_SUFFIX: Final = ".gz"
# A gzip member: zlib's largest window, plus zlib's marker for a gzip header.
GZIP_WINDOW_BITS: Final = 16 + zlib.MAX_WBITS
CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Damaged:
    """A compressed file that cannot be read to its end.

    Attributes:
        path: Path of the file.
        lines: How many whole lines are readable.
        salvaged: Path of a copy of these lines.
        problem: What is wrong with the file.
    """

    path: str
    lines: int
    salvaged: str
    problem: str


def input_files(folder: Folder, form: Format) -> dict[str, tuple[int, int]]:
    """Return the files to read, each with its size in bytes and its time in nanoseconds since the epoch.

    Raises:
        BadInput: If the folder does not exist or has no files.
    """
    if not folder.is_folder():
        msg = f"events: there is no folder {folder.uri}"
        raise BadInput(msg)
    found = {one.path: (one.size_bytes, one.modified_ns) for one in folder.files()}
    if form is Format.EXPORT:
        found = {path: found[path] for path in exported_files(folder)}
    if not found:
        msg = f"events: the folder {folder.uri} is empty"
        raise BadInput(msg)
    return found


def damaged_files(events: Folder, paths: list[str], out: Folder, salvage: str) -> list[Damaged]:
    """Return the compressed files that end too early, and copy their readable lines.

    Args:
        events: Folder with the files.
        paths: Paths of the files to check.
        out: Folder for the copies.
        salvage: Path of the copies in it.
    """
    damaged = []
    for number, path in enumerate(paths):
        if path.endswith(GZIP_SUFFIX):
            problem = _why_unreadable(events, path)
            if problem is not None:
                text, lines = _readable(events, path)
                target = f"{salvage}/{number}.txt"
                out.write(target, text)
                damaged.append(Damaged(path, lines, target, problem))
    return damaged


def _why_unreadable(events: Folder, path: str) -> str | None:
    try:
        for _ in _inflated(events, path):
            pass
    except EOFError:
        return "truncated gzip"
    except zlib.error:
        return "damaged gzip"
    return None


def _readable(events: Folder, path: str) -> tuple[str, int]:
    """Return the whole lines before the damage, and their number."""
    chunks = []
    try:
        for chunk in _inflated(events, path):
            chunks.append(chunk)  # noqa: PERF402 - what came before the error is kept
    except (EOFError, zlib.error):
        pass  # expected: the file is damaged
    whole, newline, _ = b"".join(chunks).rpartition(b"\n")
    return (whole + newline).decode(errors="replace"), whole.count(b"\n") + bool(newline)


def _inflated(events: Folder, path: str) -> Iterator[bytes]:
    """Yield the content of a gzip file, which may have several members.

    Raises:
        EOFError: If the file ends within a member.
        zlib.error: If it is not a gzip file.
    """
    member = zlib.decompressobj(GZIP_WINDOW_BITS)
    begun = False
    with events.open(path) as file:
        while data := file.read(CHUNK_BYTES):
            while data:
                yield member.decompress(data)
                begun, data = True, member.unused_data
                if member.eof:
                    member, begun = zlib.decompressobj(GZIP_WINDOW_BITS), False
    if begun:
        raise EOFError(path)
