"""Find the files to read, also through the manifests of exports; recognize files that arrive again."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING, Any, Final

from freshq_pipeline.errors import BadInput
from freshq_pipeline.ingest.inflation import Damage, Unbounded, reading
from freshq_pipeline.schemas import Format
from freshq_pipeline.storage.addresses import check_no_pattern

if TYPE_CHECKING:
    from freshq_pipeline.storage.folder import Folder
    from freshq_pipeline.storage.results import DamagedFile


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


def is_redelivered(events: Folder, path: str, size_bytes: int, before: DamagedFile) -> bool:
    """Return whether a file still begins with the lines that were read from it when it was damaged."""
    digest, rest_bytes = hashlib.sha256(), before.text_bytes
    try:
        with reading(events, path, size_bytes) as file:
            for chunk in file.chunks():
                digest.update(chunk[:rest_bytes])
                rest_bytes -= min(len(chunk), rest_bytes)
                if not rest_bytes:
                    break
    except (Damage, Unbounded):
        return False  # the damage begins earlier than before
    return not rest_bytes and digest.hexdigest() == before.text_sha256


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
