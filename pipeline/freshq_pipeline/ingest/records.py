"""The lines of a file, and the records of a line: the one notion that counts, reads and quarantines.

A line ends with LF, CR or CRLF. A record is a JSON value; text that cannot be one is also a record, and is
quarantined. Several records may share a line: by default, Firehose puts no delimiter between them.
"""

from __future__ import annotations

import json
import re
from hashlib import sha256
from typing import TYPE_CHECKING, Final

import numpy as np

from freshq_pipeline.ingest.inflation import MAX_LINE_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

# Between records: JSON's white space, commas, the record separator of RFC 7464, and what text tools pad with.
_BETWEEN: Final = " \t\r\n\v\f,\x1e\x00"
_GAP: Final = re.compile(f"[{_BETWEEN}]*")
# Between two records, behind the end of an object. Quotation marks inside JSON strings are escaped, so it
# cannot match inside a value; a list in DynamoDB's JSON has objects whose only name is a type.
_NEXT_OBJECT: Final = rf'[{_BETWEEN}]*(?=\{{\s*"(?!(?:S|N|B|M|L|SS|NS|BS|BOOL|NULL)")[A-Za-z])'
_NEXT_RECORD: Final = re.compile(rf"(?<=\}}){_NEXT_OBJECT}")
_NEXT_RECORD_BYTES: Final = re.compile(_NEXT_RECORD.pattern.encode())
# A byte order mark in UTF-8, read as Latin-1.
_MARK: Final = "\xef\xbb\xbf"
_DECODER: Final = json.JSONDecoder(strict=False)


def records_of(line: bytes) -> list[bytes]:
    """Return the records of a line; none if it is blank.

    Text that is no JSON value reaches to the next record of the line, or to its end.
    """
    # In Latin-1 a character is a byte, and JSON's own characters are ASCII.
    text = line.decode("latin-1").strip(_BETWEEN).removeprefix(_MARK)
    found, at = [], _start(text, 0)
    while at < len(text):
        end = _end(text, at)
        found.append(text[at:end].encode("latin-1"))
        at = _start(text, end)
    return found


def _start(text: str, at: int) -> int:
    """Return where the next record starts."""
    gap = _GAP.match(text, at)
    return at if gap is None else gap.end()


def _end(text: str, at: int) -> int:
    """Return where the record that starts at a place ends."""
    try:
        return _DECODER.raw_decode(text, at)[1]
    except (ValueError, RecursionError):
        following = _NEXT_RECORD.search(text, at)
        return len(text) if following is None else following.start()


class Lines:
    """Reads the lines of a file in bounded memory.

    Attributes:
        count: Number of lines that ended, so far.
        size_bytes: Their size.
    """

    def __init__(self) -> None:
        """Start before the first line."""
        self.count = self.size_bytes = 0
        self._digest = sha256()
        self._rest = b""
        self._skips = False

    def digest(self) -> str:
        """Return a digest of the lines that ended, so far."""
        return self._digest.hexdigest()

    def of(self, chunks: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
        """Yield the lines of a file with their numbers, the last one even if it does not end.

        A line longer than `MAX_LINE_BYTES` comes in parts, cut between records. If a record is that long,
        only its beginning is yielded.
        """
        for chunk in chunks:
            data = self._rest + chunk
            lines = data.splitlines(keepends=True)
            # A CR at the end may be the first half of a CRLF.
            self._rest = b"" if not lines or lines[-1].endswith(b"\n") else lines.pop()
            ended_bytes = len(data) - len(self._rest)
            self._digest.update(data[:ended_bytes])
            self.size_bytes += ended_bytes
            for line in lines:
                self.count += 1
                if self._skips:
                    self._skips = False
                else:
                    yield self.count, line
            if len(self._rest) > MAX_LINE_BYTES:
                yield from self._cut()
        if self._rest and not self._skips:
            yield self.count + 1, self._rest

    def _cut(self) -> Iterator[tuple[int, bytes]]:
        """Yield the beginning of a line that is too long to be held."""
        cut = 0
        if not self._skips:
            for following in _NEXT_RECORD_BYTES.finditer(self._rest):
                cut = following.start()
        part, self._rest = (self._rest[:cut], self._rest[cut:]) if cut else (self._rest, b"")
        self._digest.update(part)
        self.size_bytes += len(part)
        if not self._skips:
            self._skips = not cut
            yield self.count + 1, part


_DEPTHS: Final = np.zeros(256, np.int8)
_DEPTHS[ord("{")], _DEPTHS[ord("}")] = 1, -1


def is_regular(block: bytes) -> bool:
    """Return whether each line of a block of DynamoDB's JSON is one record, to every reader of JSON lines.

    A brace in a string may make it false where it could be true; then the file is read more slowly.
    """
    if not block.startswith(b"{") or b"\r" in block or b"\x00" in block:
        return False
    text = np.frombuffer(block.removesuffix(b"\n"), np.uint8)
    depth = np.cumsum(_DEPTHS[text], dtype=np.int32)
    closed = np.flatnonzero(depth == 0)
    # Each line closes its object with its last character, and not before.
    ends = np.append(np.flatnonzero(text == ord("\n")), len(text))
    if len(closed) != 2 * len(ends) - 1 or depth[ends - 1].any() or (text[ends - 1] != ord("}")).any():
        return False
    return not (text[ends[:-1] + 1] != ord("{")).any() and not _shares_line(block)


def _shares_line(block: bytes) -> bool:
    """Return whether a line has several records, ignoring braces in strings."""
    return any(
        b"\n" not in block[found.start() : found.end()] for found in _NEXT_RECORD_BYTES.finditer(block)
    )
