"""Read files in chunks or in blocks of whole lines, in bounded memory; inflate gzip files up to a limit."""

from __future__ import annotations

import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from freshq_pipeline.storage.folder import Folder


GZIP_SUFFIX: Final = ".gz"
# A gzip member: zlib's largest window, plus zlib's marker for a gzip header.
_WINDOW_BITS: Final = 16 + zlib.MAX_WBITS
CHUNK_BYTES: Final = 1 << 20
# Recorded events inflate about elevenfold.
MAX_INFLATION: Final = 100
# Files that inflate to no more than this are read whatever their ratio.
HARMLESS_BYTES: Final = 64 << 20
# The maximum for deflate: https://zlib.net/zlib_tech.html
_MOST_INFLATION: Final = 1032
_THREADS: Final = 16


def oversized_files(events: Folder, sizes_bytes: Mapping[str, int]) -> list[str]:
    """Return the gzip files that inflate beyond their `inflation_limit`.

    It inflates the files: one file may have several members, each with its own trailer, so no trailer holds
    the size of the whole.

    Args:
        events: Folder with the files.
        sizes_bytes: Size of each file, by path.
    """
    candidates = [
        path
        for path, size_bytes in sizes_bytes.items()
        if path.endswith(GZIP_SUFFIX) and size_bytes * _MOST_INFLATION > HARMLESS_BYTES
    ]
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="inflation") as pool:
        found = pool.map(lambda path: _is_oversized(events, path, sizes_bytes[path]), candidates)
        return [path for path, oversized in zip(candidates, found, strict=True) if oversized]


def inflation_limit(size_bytes: int) -> int:
    """Return the size up to which a gzip file may inflate, given its compressed size."""
    return max(HARMLESS_BYTES, MAX_INFLATION * size_bytes)


def _is_oversized(events: Folder, path: str, size_bytes: int) -> bool:
    """Return whether the members of a file together inflate beyond the limit."""
    try:
        for _ in _bounded(events, path, size_bytes):
            pass
    except Unbounded:
        return True
    except (EOFError, zlib.error):
        pass  # its readable lines are salvaged later
    return False


def chunks(events: Folder, path: str) -> Iterator[bytes]:
    """Yield the content of a file, inflated if its name ends with .gz, in chunks of at most `CHUNK_BYTES`.

    Raises:
        EOFError: If a gzip file ends inside a member.
        zlib.error: If it is not a gzip file.
    """
    if path.endswith(GZIP_SUFFIX):
        yield from inflated(events, path)
        return
    with events.open(path) as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def inflated(events: Folder, path: str) -> Iterator[bytes]:
    """Yield the content of a gzip file, which may have several members, in chunks of at most `CHUNK_BYTES`.

    Raises:
        EOFError: If the file ends inside a member.
        zlib.error: If it is not a gzip file.
    """
    member = zlib.decompressobj(_WINDOW_BITS)
    begun = False
    with events.open(path) as file:
        while data := file.read(CHUNK_BYTES):
            while data:
                yield member.decompress(data, CHUNK_BYTES)
                begun, data = True, member.unconsumed_tail or member.unused_data
                if member.eof:
                    member, begun = zlib.decompressobj(_WINDOW_BITS), False
    if begun:
        raise EOFError(path)


# Larger blocks are not faster.
BLOCK_BYTES: Final = 4 << 20
# Landed events have a few hundred bytes.
MAX_LINE_BYTES: Final = 16 << 20


class Unbounded(ValueError):
    """The file inflates beyond the limit, or has a line that is too long."""


def blocks(events: Folder, path: str, size_bytes: int) -> Iterator[bytes]:
    """Yield the content of a file, inflated if its name ends with .gz, in blocks of whole lines.

    Args:
        events: Folder with the file.
        path: Path of the file.
        size_bytes: Size of the file.

    Raises:
        EOFError: If a gzip file ends inside a member.
        zlib.error: If it is not a gzip file.
        Unbounded: If it inflates beyond the limit, or a line is longer than `MAX_LINE_BYTES`.
        OSError: If the file cannot be read.
    """
    held, held_bytes = [], 0
    for chunk in _bounded(events, path, size_bytes):
        held.append(chunk)
        held_bytes += len(chunk)
        if held_bytes >= BLOCK_BYTES:
            whole, newline, rest = b"".join(held).rpartition(b"\n")
            if newline:
                yield whole + newline
            elif held_bytes > MAX_LINE_BYTES:
                raise Unbounded(path)
            held, held_bytes = [rest], len(rest)
    if last := b"".join(held):
        yield last


def _bounded(events: Folder, path: str, size_bytes: int) -> Iterator[bytes]:
    """Yield the content of a file in chunks; raise Unbounded beyond the limit."""
    limit_bytes, seen_bytes = inflation_limit(size_bytes), 0
    for chunk in chunks(events, path):
        seen_bytes += len(chunk)
        if seen_bytes > limit_bytes:
            raise Unbounded(path)
        yield chunk
