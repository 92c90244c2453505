"""Folders, on a disk or in a bucket, by one interface."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyarrow import fs
from pyarrow.dataset import dataset

from freshq_pipeline.errors import BadInput
from freshq_pipeline.storage.s3 import located

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Found:
    """A file.

    Attributes:
        path: Where it is, below the folder that was listed.
        size_bytes: Its size.
        modified_ns: When it was written, in nanoseconds since the Unix epoch.
    """

    path: str
    size_bytes: int
    modified_ns: int


class Folder:
    """A folder by its path or its s3:// address.

    Attributes:
        uri: As Spark takes it.
    """

    def __init__(self, address: str) -> None:
        """Find the folder; it need not exist.

        Args:
            address: A path, or s3://BUCKET/PREFIX.

        Raises:
            BadInput: If the address is of another kind.
        """
        scheme, separator, _ = address.partition("://")
        if not separator:
            address = str(Path(address).absolute())
        elif scheme not in ("s3", "s3a", "file"):
            msg = f"{address}: must be a folder or begin with s3://"
            raise BadInput(msg)
        self.uri = address.rstrip("/")
        self._files, self._root = fs.FileSystem.from_uri(located(address))
        self._root = self._root.rstrip("/")
        self.local = isinstance(self._files, fs.LocalFileSystem)

    def at(self, path: str) -> str:
        """Return the address of something below, as Spark takes it."""
        return f"{self.uri}/{path}"

    def exists(self, path: str = "") -> bool:
        """Return whether there is a file or a folder."""
        return self._info(path).type is not fs.FileType.NotFound

    def is_folder(self) -> bool:
        """Return whether the folder itself is there."""
        return self._info("").type is fs.FileType.Directory

    def files(self, path: str = "") -> list[Found]:
        """Return all files below, in the order of their paths; hidden ones are not there."""
        chosen = fs.FileSelector(self._path(path), allow_not_found=True, recursive=True)
        skip = len(self._root) + 1
        found = [
            Found(info.path[skip:], info.size or 0, info.mtime_ns or 0)
            for info in self._files.get_file_info(chosen)
            if info.type is fs.FileType.File
        ]
        return sorted((one for one in found if not _hidden(one.path)), key=lambda one: one.path)

    def folders(self, path: str) -> list[str]:
        """Return the names of the folders directly below."""
        chosen = fs.FileSelector(self._path(path), allow_not_found=True)
        infos = self._files.get_file_info(chosen)
        return sorted(info.base_name for info in infos if info.type is fs.FileType.Directory)

    def open(self, path: str) -> Any:  # noqa: ANN401 - PyArrow has no types
        """Return a file opened for reading bytes, as it is stored."""
        return self._files.open_input_stream(self._path(path), compression=None)

    def read_json(self, path: str) -> Any:  # noqa: ANN401 - any JSON value
        """Return what a JSON file holds."""
        with self.open(path) as file:
            return json.loads(file.read())

    def table(self, path: str, columns: list[str]) -> Any:  # noqa: ANN401 - PyArrow has no types
        """Return columns of the Parquet files in a folder, as one PyArrow table."""
        return dataset(self._path(path), filesystem=self._files, format="parquet").to_table(columns=columns)

    def write(self, path: str, text: str) -> None:
        """Write a whole file, or nothing: readers see the old one or the new one."""
        if not self.local:
            with self._files.open_output_stream(self._path(path)) as file:
                file.write(text.encode())
            return
        target = Path(self._path(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with draft.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)

    def write_json(self, path: str, value: Mapping[str, Any]) -> None:
        """Write a JSON file, whole or not at all."""
        self.write(path, json.dumps(value, indent=2, allow_nan=False) + "\n")

    def delete(self, path: str) -> None:
        """Delete a folder and what is in it; it need not be there."""
        if self.exists(path):
            self._files.delete_dir(self._path(path))

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _info(self, path: str) -> Any:  # noqa: ANN401 - PyArrow has no types
        return self._files.get_file_info(self._path(path))


def _hidden(path: str) -> bool:
    return any(part.startswith((".", "_")) for part in path.split("/"))
