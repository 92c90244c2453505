"""Which files an export consists of: those that its manifests name, and no others."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING, Any, Final

from freshq_pipeline.errors import BadInput

if TYPE_CHECKING:
    from freshq_pipeline.storage.folder import Folder

SUMMARY: Final = "manifest-summary.json"
CHUNK_BYTES: Final = 1 << 20


def exported_files(folder: Folder) -> dict[str, int]:
    """Return the paths of the data files of all exports below a folder, with their number of items.

    Increments share one data folder, in which other exports' files lie as well.

    Args:
        folder: Where the exports are.

    Raises:
        BadInput: If there is no manifest, it is broken, or a file it names is missing or damaged.
    """
    present = {found.path for found in folder.files()}
    summaries = sorted(path for path in present if path.rsplit("/", 1)[-1] == SUMMARY)
    if not summaries:
        msg = f"events: no {SUMMARY} below {folder.uri}; give the folder that the export was written to"
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
    except ValueError as error:
        msg = f"{path}: not a manifest ({error})"
        raise BadInput(msg) from error
    if not isinstance(value, dict) or "manifestFilesS3Key" not in value:
        msg = f"{path}: not a manifest, manifestFilesS3Key is missing"
        raise BadInput(msg)
    return value


def _entries(folder: Folder, path: str) -> list[dict[str, Any]]:
    """Return the entries of the list of files, which is one JSON object a line."""
    try:
        with folder.open(path) as file:
            return [json.loads(line) for line in file.read().splitlines() if line.strip()]
    except ValueError as error:
        msg = f"{path}: not a list of files ({error})"
        raise BadInput(msg) from error


def _resolve(key: str, present: set[str], summary: str) -> str:
    """Return where a key of the bucket is: the export may have been copied from below a prefix."""
    parts = key.split("/")
    for skipped in range(len(parts)):
        path = "/".join(parts[skipped:])
        if path in present:
            return path
    base = summary.split("/AWSDynamoDB/", maxsplit=1)[0]
    if f"{base}/{key[key.find('AWSDynamoDB') :]}" in present:
        return f"{base}/{key[key.find('AWSDynamoDB') :]}"
    msg = f"{summary}: names {key!r}, which is not there; copy the whole export"
    raise BadInput(msg)


def _verify(folder: Folder, path: str, md5: str | None) -> None:
    if md5 is None:
        return
    digest = hashlib.md5(usedforsecurity=False)  # what DynamoDB writes down
    with folder.open(path) as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    if base64.b64encode(digest.digest()).decode() != md5:
        msg = f"{path}: does not have the checksum in its manifest; copy it again"
        raise BadInput(msg)
