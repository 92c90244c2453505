"""Find the files to read, also through the manifests of exports; salvage and recognize damaged files."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from freshq_pipeline.errors import BadInput
from freshq_pipeline.ingest.inflation import GZIP_SUFFIX, HARMLESS_BYTES, chunks, inflated
from freshq_pipeline.schemas import Format
from freshq_pipeline.storage.addresses import check_no_pattern
from freshq_pipeline.storage.results import DamagedFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from freshq_pipeline.storage.folder import Folder


@dataclass(frozen=True, slots=True)
class Damaged:
    """A compressed file that was not read to its end.

    Attributes:
        path: Path of the file.
        file: The problem, and the readable part.
        salvaged: Path of a copy of the readable lines; None if the file was not read at all.
        silver: Files of silver with their events.
    """

    path: str
    file: DamagedFile
    salvaged: str | None = None
    silver: list[str] = field(default_factory=list)


def input_files(folder: Folder, form: Format) -> dict[str, tuple[int, int]]:
    """Return the files to read, with their sizes in bytes and times in nanoseconds since the epoch.

    Raises:
        BadInput: If the folder is missing or empty, or Spark cannot read a file because of its name.
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
    for path in found:
        _check_name(folder, path)
    return found


def _check_name(folder: Folder, path: str) -> None:
    """Raise BadInput if Spark cannot read a file because of its name."""
    check_no_pattern("events", path)
    # Hadoop looks for a checksum file next to a local file, and reads the part before the colon as a scheme.
    if folder.local and ":" in path.rpartition("/")[2]:
        msg = f"events: the name of {folder.at(path)} has a colon, with which Spark cannot read it; rename it"
        raise BadInput(msg)


def damaged_files(events: Folder, paths: list[str], out: Folder, salvage: str) -> list[Damaged]:
    """Return the compressed files that cannot be read to their end, and copy their readable lines.

    Args:
        events: Folder with the files.
        paths: Paths of the files to check.
        out: The output folder.
        salvage: Path of the folder for the copies, below `out`.
    """
    damaged = []
    for number, path in enumerate(paths):
        if path.endswith(GZIP_SUFFIX):
            problem = _why_unreadable(events, path)
            if problem is not None:
                lines, target = _WholeLines(), f"{salvage}/{number}.txt"
                out.write_chunks(target, lines.of(events, path))
                read = DamagedFile(problem, lines.count, lines.size_bytes, lines.digest.hexdigest())
                damaged.append(Damaged(path, read, target))
    return damaged


def is_redelivered(events: Folder, path: str, before: DamagedFile) -> bool:
    """Return whether a file still begins with the lines that were read from it when it was damaged."""
    digest, rest_bytes = hashlib.sha256(), before.text_bytes
    try:
        for chunk in chunks(events, path):
            digest.update(chunk[:rest_bytes])
            rest_bytes -= min(len(chunk), rest_bytes)
            if not rest_bytes:
                break
    except (EOFError, zlib.error):
        return False  # the damage begins earlier than before
    return not rest_bytes and digest.hexdigest() == before.text_sha256


def _why_unreadable(events: Folder, path: str) -> str | None:
    try:
        for _ in inflated(events, path):
            pass
    except EOFError:
        return "truncated gzip"
    except zlib.error:
        return "damaged gzip"
    return None


def longest_line(events: Folder, paths: Iterable[str]) -> tuple[str, int]:
    """Return the file with the longest line, and the length of that line in bytes, in bounded memory."""
    return max(((path, _longest_line(events, path)) for path in paths), key=lambda found: found[1])


def _longest_line(events: Folder, path: str) -> int:
    longest = last = 0
    try:
        for chunk in chunks(events, path):
            first, *others = map(len, chunk.split(b"\n"))
            longest = max(longest, last + first, *others)
            last = others[-1] if others else last + first
    except (EOFError, zlib.error):
        pass  # Spark also stops reading here
    return longest


class _WholeLines:
    """The whole lines of a damaged file, read in bounded memory."""

    def __init__(self) -> None:
        self.count = self.size_bytes = 0
        self.digest = hashlib.sha256()

    def of(self, events: Folder, path: str) -> Iterator[bytes]:
        """Yield the lines before the damage, and count them."""
        rest = b""
        try:
            for chunk in inflated(events, path):
                whole, newline, rest = (rest + chunk).rpartition(b"\n")
                self.count += whole.count(b"\n") + bool(newline)
                self.size_bytes += len(whole + newline)
                self.digest.update(whole + newline)
                yield whole + newline
                if len(rest) > HARMLESS_BYTES:
                    return  # no event is that long
        except (EOFError, zlib.error):
            pass  # expected: the file is damaged


MANIFEST_SUMMARY: Final = "manifest-summary.json"
CHUNK_BYTES: Final = 1 << 20


def exported_files(folder: Folder) -> list[str]:
    """Return the data files of all exports below a folder.

    Incremental exports share one data folder, so only their manifests tell which file belongs to which
    export.

    Raises:
        BadInput: If there is no manifest, a manifest is invalid, or a listed file is missing or damaged.
    """
    present = {found.path for found in folder.files()}
    summaries = sorted(path for path in present if path.rsplit("/", 1)[-1] == MANIFEST_SUMMARY)
    if not summaries:
        msg = f"events: no {MANIFEST_SUMMARY} below {folder.uri}; give the folder of the export"
        raise BadInput(msg)
    chosen = []
    for summary in summaries:
        listed = _resolve(str(_object(folder, summary).get("manifestFilesS3Key", "")), present, summary)
        for entry in _entries(folder, listed):
            path = _resolve(str(entry.get("dataFileS3Key", "")), present, summary)
            _verify(folder, path, entry.get("md5Checksum"))
            if entry.get("itemCount", 1):
                chosen.append(path)
    return chosen


def _object(folder: Folder, path: str) -> dict[str, Any]:
    try:
        value = folder.read_json(path)
    except BadInput as error:
        msg = f"{path}: not a manifest ({error.__cause__})"
        raise BadInput(msg) from error
    if not isinstance(value, dict) or "manifestFilesS3Key" not in value:
        msg = f"{path}: not a manifest, manifestFilesS3Key is missing"
        raise BadInput(msg)
    return value


def _entries(folder: Folder, path: str) -> list[dict[str, Any]]:
    """Return the entries of a list of files, which has one JSON object per line."""
    try:
        with folder.open(path) as file:
            return [json.loads(line) for line in file.read().splitlines() if line.strip()]
    except ValueError as error:
        msg = f"{path}: not a list of files ({error})"
        raise BadInput(msg) from error


def _resolve(key: str, present: set[str], summary: str) -> str:
    """Return the path of an object, given its key in the bucket, whose prefix the copy may lack."""
    parts = key.split("/")
    base = summary.split("/AWSDynamoDB/", maxsplit=1)[0]
    paths = ["/".join(parts[skipped:]) for skipped in range(len(parts))]
    for path in (*paths, f"{base}/{key[key.find('AWSDynamoDB') :]}"):
        if path in present:
            return path
    msg = f"{summary}: lists {key!r}, which does not exist; copy the whole export"
    raise BadInput(msg)


def _verify(folder: Folder, path: str, md5: str | None) -> None:
    if md5 is None:
        return
    digest = hashlib.md5(usedforsecurity=False)  # the manifest's kind of digest
    with folder.open(path) as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    if base64.b64encode(digest.digest()).decode() != md5:
        msg = f"{path}: does not match the checksum in its manifest; copy it again"
        raise BadInput(msg)
