"""The files to read, and what can be salvaged of damaged ones."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from freshq_pipeline.errors import BadInput
from freshq_pipeline.ingest.inflation import GZIP_SUFFIX, HARMLESS_BYTES, chunks, inflated
from freshq_pipeline.schemas import Format
from freshq_pipeline.storage.addresses import check_no_pattern

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from freshq_pipeline.storage.folder import Folder


@dataclass(frozen=True, slots=True)
class Damaged:
    """A compressed file that is not read to its end.

    Attributes:
        path: Path of the file.
        lines: How many whole lines are readable.
        salvaged: Path of a copy of these lines; None if it was not read at all.
        problem: What is wrong with the file.
    """

    path: str
    lines: int
    salvaged: str | None
    problem: str


def input_files(folder: Folder, form: Format) -> dict[str, tuple[int, int]]:
    """Return the files to read, each with its size in bytes and its time in nanoseconds since the epoch.

    Raises:
        BadInput: If the folder does not exist or has no files, or Spark cannot read one by its name.
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
    """Raise BadInput if Spark cannot read a file with this name."""
    check_no_pattern("events", path)
    # Hadoop looks for a checksum beside a local file, and takes what is before the colon for a scheme.
    if folder.local and ":" in path.rpartition("/")[2]:
        msg = f"events: the name of {folder.at(path)} has a colon, with which Spark cannot read it; rename it"
        raise BadInput(msg)


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
                lines, target = _WholeLines(), f"{salvage}/{number}.txt"
                out.write_chunks(target, lines.of(events, path))
                damaged.append(Damaged(path, lines.count, target, problem))
    return damaged


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
    """Return which of some files has the longest line, and its bytes. It takes little memory."""
    return max(((path, _longest_line(events, path)) for path in paths), key=lambda found: found[1])


def _longest_line(events: Folder, path: str) -> int:
    longest = last = 0
    try:
        for chunk in chunks(events, path):
            first, *others = map(len, chunk.split(b"\n"))
            longest = max(longest, last + first, *others)
            last = others[-1] if others else last + first
    except (EOFError, zlib.error):
        pass  # Spark reads no further
    return longest


class _WholeLines:
    """The whole lines of a damaged file; bounded in memory, whatever the file contains."""

    def __init__(self) -> None:
        self.count = 0

    def of(self, events: Folder, path: str) -> Iterator[bytes]:
        """Yield the lines before the damage, and count them."""
        rest = b""
        try:
            for chunk in inflated(events, path):
                whole, newline, rest = (rest + chunk).rpartition(b"\n")
                self.count += whole.count(b"\n") + bool(newline)
                yield whole + newline
                if len(rest) > HARMLESS_BYTES:
                    return  # no event is as long as that
        except (EOFError, zlib.error):
            pass  # expected: the file is damaged


MANIFEST_SUMMARY: Final = "manifest-summary.json"
CHUNK_BYTES: Final = 1 << 20


def exported_files(folder: Folder) -> dict[str, int]:
    """Return the paths of the data files of all exports below a folder, each with its number of items.

    Incremental exports share one data folder, so only the manifests say which file belongs to which.

    Args:
        folder: Folder with the exports.

    Raises:
        BadInput: If there is no manifest, a manifest is invalid, or a listed file is missing or damaged.
    """
    present = {found.path for found in folder.files()}
    summaries = sorted(path for path in present if path.rsplit("/", 1)[-1] == MANIFEST_SUMMARY)
    if not summaries:
        msg = f"events: no {MANIFEST_SUMMARY} below {folder.uri}; give the folder of the export"
        raise BadInput(msg)
    chosen: dict[str, int] = {}
    for summary in summaries:
        described = _object(folder, summary)
        for entry in _entries(
            folder, _resolve(str(described.get("manifestFilesS3Key", "")), present, summary)
        ):
            path = _resolve(str(entry.get("dataFileS3Key", "")), present, summary)
            _verify(folder, path, entry.get("md5Checksum"))
            if entry.get("itemCount", 1):
                chosen[path] = int(entry.get("itemCount", 0))
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
    """Return the path of a key of the bucket; the export may have been copied without the key's prefix."""
    parts = key.split("/")
    for skipped in range(len(parts)):
        path = "/".join(parts[skipped:])
        if path in present:
            return path
    base = summary.split("/AWSDynamoDB/", maxsplit=1)[0]
    if f"{base}/{key[key.find('AWSDynamoDB') :]}" in present:
        return f"{base}/{key[key.find('AWSDynamoDB') :]}"
    msg = f"{summary}: lists {key!r}, which does not exist; copy the whole export"
    raise BadInput(msg)


def _verify(folder: Folder, path: str, md5: str | None) -> None:
    if md5 is None:
        return
    digest = hashlib.md5(usedforsecurity=False)  # the digest in the manifest
    with folder.open(path) as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    if base64.b64encode(digest.digest()).decode() != md5:
        msg = f"{path}: does not match the checksum in its manifest; copy it again"
        raise BadInput(msg)
