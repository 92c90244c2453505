"""Read files in chunks or in blocks of whole lines, decompressed as their bytes demand, in bounded memory."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from freshq_pipeline.storage.folder import Folder


GZIP_SUFFIX: Final = ".gz"
# Hadoop decompresses files with these suffixes, whatever their content.
CODEC_SUFFIXES: Final = (GZIP_SUFFIX, ".bz2", ".deflate", ".lz4", ".snappy", ".zst", ".zstd", ".xz")
CHUNK_BYTES: Final = 1 << 20
# Recorded events inflate about elevenfold.
MAX_INFLATION: Final = 100
# Files that inflate to at most this size are read at any ratio.
HARMLESS_BYTES: Final = 64 << 20
# Tools may compress a compressed file again by accident; more levels are an attack.
_MAX_LAYERS: Final = 3
_DIGEST_BYTES: Final = 16
_SIZE_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class _Compression:
    """A format of compression.

    Attributes:
        name: Its name.
        magic: The bytes that its files begin with.
        reader: Opens such a file, given a binary stream; None if it is not supported.
    """

    name: str
    magic: bytes
    reader: Callable[[Any], Any] | None = None


_GZIP: Final = "gzip"
_COMPRESSIONS: Final = (
    _Compression(_GZIP, b"\x1f\x8b", lambda stream: gzip.GzipFile(fileobj=stream, mode="rb")),
    _Compression("bzip2", b"BZh", bz2.BZ2File),
    _Compression("xz", b"\xfd7zXZ\x00", lzma.LZMAFile),
    _Compression("zstd", b"\x28\xb5\x2f\xfd"),
    _Compression("lz4", b"\x04\x22\x4d\x18"),
    _Compression("snappy", b"\xff\x06\x00\x00sNaPpY"),
    _Compression("zip", b"PK\x03\x04"),
)
_MAGIC_BYTES: Final = max(len(one.magic) for one in _COMPRESSIONS)


class Damage(ValueError):
    """The rest of a compressed file cannot be read. Its text says why."""


class Unbounded(ValueError):
    """The file inflates beyond the limit, or has a line that is too long."""


class _Pieces(io.RawIOBase):
    """Reads a decompressor piece by piece, so that an error does not lose the readable part before it."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data: bytes = self._file.read1(len(buffer))
        buffer[: len(data)] = data
        return len(data)


class _Tee(io.RawIOBase):
    """Reads a file, and keeps the digest and the last bytes of the part read."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.digest = blake2b(digest_size=_DIGEST_BYTES)
        self.last = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data: bytes = self._file.read(len(buffer))
        buffer[: len(data)] = data
        self.digest.update(data)
        self.last = (self.last + data[-_SIZE_BYTES:])[-_SIZE_BYTES:]
        return len(data)


class Reading:
    """An open file, decompressed as its bytes demand.

    Attributes:
        layers: The names of the formats in which it is compressed, the outermost first; known once
            `chunks` began.
    """

    def __init__(self, file: Any, limit_bytes: int) -> None:
        """Begin at the start of a file.

        Args:
            file: The file, open for reading.
            limit_bytes: Size up to which it may inflate.
        """
        self._tee = _Tee(file)
        self._limit_bytes, self._seen_bytes = limit_bytes, 0
        self._stored: Any = io.BufferedReader(self._tee, CHUNK_BYTES)
        self._content: Any = self._stored
        self.layers: list[str] = []

    def chunks(self) -> Iterator[bytes]:
        """Yield the content in chunks of at most `CHUNK_BYTES`.

        Raises:
            Damage: If the rest cannot be read.
            Unbounded: If it inflates beyond the limit.
        """
        while (found := self._compression()) is not None:
            self._decompress(found)
        while chunk := self._checked(lambda: self._content.read1(CHUNK_BYTES)):
            self._seen_bytes += len(chunk)
            if self.layers and self._seen_bytes > self._limit_bytes:
                raise Unbounded
            yield chunk

    def _compression(self) -> _Compression | None:
        start = self._checked(lambda: self._content.peek(_MAGIC_BYTES))
        return next((one for one in _COMPRESSIONS if start.startswith(one.magic)), None)

    def _decompress(self, found: _Compression) -> None:
        if found.reader is None:
            msg = f"{found.name}, which is not supported: decompress it, or compress it with gzip"
            raise Damage(msg)
        if len(self.layers) == _MAX_LAYERS:
            msg = f"compressed more than {_MAX_LAYERS} times"
            raise Damage(msg)
        self.layers.append(found.name)
        self._content = io.BufferedReader(_Pieces(found.reader(self._content)), CHUNK_BYTES)

    def _checked(self, read: Callable[[], bytes]) -> bytes:
        """Read; raise Damage for the errors of the decompressors, but no error of the disk or network."""
        name = self.layers[-1] if self.layers else ""
        try:
            return read()
        except EOFError as error:
            msg = f"truncated {name}"
            raise Damage(msg) from error
        except (zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
            msg = f"damaged {name}"
            raise Damage(msg) from error
        except OSError as error:
            # The decompressor of bzip2 raises a bare OSError.
            if error.errno is not None or not self.layers:
                raise
            msg = f"damaged {name}"
            raise Damage(msg) from error

    def digest(self) -> str:
        """Return the digest of the whole stored file, after reading its rest."""
        while self._stored.read1(CHUNK_BYTES):
            pass
        return self._tee.digest.hexdigest()

    def is_one_gzip(self) -> bool:
        """Return whether a file that was read to its end is one gzip member, without padding behind it.

        A member ends with the size of its content, modulo 2^32 (RFC 1952, section 2.3.1).
        """
        size = self._seen_bytes % (1 << 8 * _SIZE_BYTES)
        return self.layers == [_GZIP] and self._tee.last == size.to_bytes(_SIZE_BYTES, "little")


@contextmanager
def reading(events: Folder, path: str, size_bytes: int) -> Iterator[Reading]:
    """Open a file.

    Args:
        events: Folder with the file.
        path: Path of the file.
        size_bytes: Size of the file, from which the limit of its inflation follows.

    Raises:
        OSError: If it cannot be opened.
    """
    with events.open(path) as file:
        yield Reading(file, inflation_limit(size_bytes))


def stored_digest(events: Folder, path: str) -> str:
    """Return the digest of a file's bytes, as they are stored."""
    with reading(events, path, 0) as file:
        return file.digest()


def inflation_limit(size_bytes: int) -> int:
    """Return the size up to which a compressed file may inflate, given its compressed size."""
    return max(HARMLESS_BYTES, MAX_INFLATION * size_bytes)


# Larger blocks are not faster.
BLOCK_BYTES: Final = 4 << 20
# Landed events have a few hundred bytes.
MAX_LINE_BYTES: Final = 16 << 20


def blocks(chunks: Iterator[bytes]) -> Iterator[bytes]:
    r"""Yield the content of a file in blocks of whole lines, which end with \n.

    Args:
        chunks: The content.

    Raises:
        Unbounded: If a line is longer than `MAX_LINE_BYTES`.
    """
    held, held_bytes = [], 0
    for chunk in chunks:
        held.append(chunk)
        held_bytes += len(chunk)
        if held_bytes >= BLOCK_BYTES:
            whole, newline, rest = b"".join(held).rpartition(b"\n")
            if newline:
                yield whole + newline
            elif held_bytes > MAX_LINE_BYTES:
                raise Unbounded
            held, held_bytes = [rest], len(rest)
    if last := b"".join(held):
        yield last
