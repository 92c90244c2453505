"""Files as blocks of whole lines, in bounded memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from freshq_pipeline.ingest.inflation import chunks, inflation_limit

if TYPE_CHECKING:
    from collections.abc import Iterator

    from freshq_pipeline.storage.folder import Folder

# Larger blocks take no less time.
BLOCK_BYTES: Final = 4 << 20
# A landed event has some hundred bytes.
MAX_LINE_BYTES: Final = 16 << 20


class UnboundedError(ValueError):
    """A file inflates too much, or has a line that is too long."""


def blocks(events: Folder, path: str, size_bytes: int) -> Iterator[bytes]:
    """Yield the content of a file, inflated if its name ends with .gz, in blocks of whole lines.

    Args:
        events: Folder with the file.
        path: Its path.
        size_bytes: Its size.

    Raises:
        EOFError: If a gzip file ends within a member.
        zlib.error: If it is not a gzip file.
        UnboundedError: If it inflates beyond the limit, or a line is longer than `MAX_LINE_BYTES`.
        OSError: If it cannot be read.
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
                raise UnboundedError(path)
            held, held_bytes = [rest], len(rest)
    if last := b"".join(held):
        yield last


def _bounded(events: Folder, path: str, size_bytes: int) -> Iterator[bytes]:
    """Yield the content of a file in chunks, up to the limit."""
    limit_bytes, seen_bytes = inflation_limit(size_bytes), 0
    for chunk in chunks(events, path):
        seen_bytes += len(chunk)
        if seen_bytes > limit_bytes:
            raise UnboundedError(path)
        yield chunk
