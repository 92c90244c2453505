"""The data files of DynamoDB exports, as their manifests list them."""

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
    """Return the paths of the data files of all exports below a folder, each with its number of items.

    Incremental exports share one data folder, so only the manifests say which file belongs to which.

    Args:
        folder: Folder with the exports.

    Raises:
        BadInput: If there is no manifest, a manifest is invalid, or a listed file is missing or damaged.
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
