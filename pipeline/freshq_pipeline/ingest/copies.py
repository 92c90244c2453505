"""Decide which files Spark reads directly, and copy the records of all other files, with line numbers.

Spark's readers go by the names of files, read only the first record of a line, and give up at a damaged byte.
So Spark reads only files directly for which this makes no difference. Of all other files Spark reads copies,
which have one record per line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from freshq_pipeline.ingest.groups import in_groups
from freshq_pipeline.ingest.inflation import (
    CODEC_SUFFIXES,
    GZIP_SUFFIX,
    MAX_INFLATION,
    Damage,
    Unbounded,
    blocks,
    reading,
)
from freshq_pipeline.ingest.records import Lines, is_regular, records_of
from freshq_pipeline.schemas import Format
from freshq_pipeline.storage.results import DamagedFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from freshq_pipeline.ingest.groups import Group
    from freshq_pipeline.ingest.inflation import Reading
    from freshq_pipeline.storage.folder import Folder

OVERSIZED: Final = f"inflates more than {MAX_INFLATION} times"
# Bytes of a copy that are written at a time.
_WRITTEN_BYTES: Final = 1 << 20


@dataclass(slots=True)
class Prepared:
    """A file as Spark is to read it.

    Attributes:
        path: Path of the file.
        digest: Digest of its bytes.
        copy: Path of the copy of its records, below the output folder; None if Spark reads the file itself,
            or none of its lines could be read.
        damage: The problem of the file, and the part that was read; None if it was read to its end.
        silver: Files of silver with the events of a damaged file.
    """

    path: str
    digest: str
    copy: str | None = None
    damage: DamagedFile | None = None
    silver: list[str] = field(default_factory=list)


def prepare(
    spark: SparkSession,
    events: Folder,
    sizes_bytes: Mapping[str, int],
    form: Format,
    out: Folder,
    copies: str,
) -> list[Prepared]:
    """Write the copies of files that need one; return the files for Spark to read.

    Args:
        spark: The session.
        events: Folder with the files.
        sizes_bytes: Size of each file, by path.
        form: Format of the files.
        out: The output folder.
        copies: Path of the folder for the copies, below `out`.
    """
    work = partial(_prepared, events, form, out, f"{copies}/needed")
    return [one for group in in_groups(spark, sizes_bytes, work) for one in group]


def copy(
    spark: SparkSession, events: Folder, sizes_bytes: Mapping[str, int], out: Folder, copies: str
) -> list[Prepared]:
    """Write copies of files that Spark could read directly; return their paths."""
    work = partial(_prepared, events, None, out, f"{copies}/wanted")
    return [one for group in in_groups(spark, sizes_bytes, work) for one in group]


def _prepared(events: Folder, form: Format | None, out: Folder, copies: str, group: Group) -> list[Prepared]:
    """Prepare the files of a group. A second attempt writes the same copies."""
    number, files = group
    found = []
    for place, (path, size_bytes) in enumerate(files):
        digest = None if form is None else _regular_digest(events, path, size_bytes, form)
        if digest is not None:
            found.append(Prepared(path, digest))
        else:
            found.append(_copied(events, path, size_bytes, out, f"{copies}/{number}-{place}.txt"))
    return found


def _regular_digest(events: Folder, path: str, size_bytes: int, form: Format) -> str | None:
    """Return the digest of a file if Spark's reader of JSON lines reads it correctly; otherwise None."""
    if form is Format.LANDED:
        return None  # Arrow reads regular files of this format
    try:
        with reading(events, path, size_bytes) as file:
            if not all(map(is_regular, blocks(file.chunks()))):
                return None
            plain = not file.layers and not path.endswith(CODEC_SUFFIXES)
            fits = plain or (file.is_one_gzip() and path.endswith(GZIP_SUFFIX))
            return file.digest() if fits else None
    except (Damage, Unbounded):
        return None


def _copied(events: Folder, path: str, size_bytes: int, out: Folder, target: str) -> Prepared:
    """Copy the records of a file, each with the number of its line and the address of the file."""
    with reading(events, path, size_bytes) as file:
        copying = _Copying(file, events.at(path))
        out.write_chunks(target, copying.rows())
        digest = file.digest()
    if copying.problem is None:
        return Prepared(path, digest, target)
    lines = copying.lines
    if not lines.count or copying.problem == OVERSIZED:
        out.delete_files([target])
        return Prepared(path, digest, damage=DamagedFile(copying.problem))
    read = DamagedFile(copying.problem, lines.count, lines.size_bytes, lines.digest())
    return Prepared(path, digest, target, read)


class _Copying:
    """The copy of a file while it is written.

    Attributes:
        lines: The lines that were read.
        problem: Why the rest cannot be read; None if the file was read to its end.
    """

    def __init__(self, file: Reading, address: str) -> None:
        self._file = file
        # Spaces and signs stay readable; a tab or a newline would end the field.
        self._address = quote(address, safe="/:").encode()
        self.lines = Lines()
        self.problem: str | None = None

    def rows(self) -> Iterator[bytes]:
        """Yield the rows of the copy: the line, the address of the file, and the record."""
        held, held_bytes = [], 0
        try:
            for number, line in self.lines.of(self._file.chunks()):
                held += [b"%d\t%b\t%b\n" % (number, self._address, one) for one in records_of(line)]
                held_bytes += len(line)
                if held_bytes > _WRITTEN_BYTES:
                    yield b"".join(held)
                    held, held_bytes = [], 0
        except Damage as error:
            self.problem = str(error)
        except Unbounded:
            self.problem = OVERSIZED
        yield b"".join(held)
