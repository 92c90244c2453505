"""A folder on a disk or in a bucket, with the same methods for both."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
from pyarrow import fs
from pyarrow.dataset import HivePartitioning, dataset
from pyarrow.parquet import ParquetWriter

from freshq_pipeline.errors import BadInput
from freshq_pipeline.storage.addresses import for_pyarrow
from freshq_pipeline.storage.whole_file import whole_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

T = TypeVar("T")
# PyArrow keeps up to 25 connections to a bucket.
_THREADS: Final = 16


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file in a listing.

    Attributes:
        path: Path below the listed folder.
        size_bytes: Size.
        modified_ns: Time of the last change, in nanoseconds since the Unix epoch.
    """

    path: str
    size_bytes: int
    modified_ns: int


class Folder:
    """A folder, given by a path or an s3:// address.

    Attributes:
        uri: Address of the folder for Spark.
        local: Whether it is on a disk.
    """

    def __init__(self, address: str) -> None:
        """Open a folder, which may not exist yet.

        Args:
            address: A path, or s3://BUCKET/PREFIX.

        Raises:
            BadInput: If the address has another scheme.
        """
        scheme, separator, _ = address.partition("://")
        if not separator:
            address = str(Path(address).absolute())
        elif scheme not in ("s3", "s3a", "file"):
            msg = f"{address}: must be a folder or begin with s3://"
            raise BadInput(msg)
        self.uri = address.rstrip("/")
        self._files, self._root = fs.FileSystem.from_uri(for_pyarrow(address))
        self._root = self._root.rstrip("/")
        self.local = isinstance(self._files, fs.LocalFileSystem)

    def at(self, path: str) -> str:
        """Return the address of a path, for Spark."""
        return f"{self.uri}/{path}"

    def on_disk(self, path: str) -> Path | None:
        """Return the path on the disk; None in a bucket."""
        return Path(self._path(path)) if self.local else None

    def make(self, path: str) -> None:
        """Make a folder with its parents, unless it exists."""
        self._files.create_dir(self._path(path))

    def exists(self, path: str = "") -> bool:
        """Return whether a file or folder exists."""
        return self._info(path).type is not fs.FileType.NotFound

    def is_folder(self) -> bool:
        """Return whether the folder itself exists."""
        return self._info("").type is fs.FileType.Directory

    def files(self, path: str = "") -> list[FileInfo]:
        """Return all files below a path, sorted by path; hidden files are left out.

        A link to a folder that it is in is not followed.
        """
        skip = len(self._root) + 1
        found = self._on_disk(self._path(path), frozenset()) if self.local else self._in_bucket(path)
        listed = (FileInfo(one.path[skip:], one.size_bytes, one.modified_ns) for one in found)
        return sorted((one for one in listed if not _hidden(one.path)), key=lambda one: one.path)

    def _in_bucket(self, path: str) -> Iterator[FileInfo]:
        chosen = fs.FileSelector(self._path(path), allow_not_found=True, recursive=True)
        for info in self._files.get_file_info(chosen):
            if info.type is fs.FileType.File:
                yield FileInfo(info.path, info.size or 0, info.mtime_ns or 0)

    def _on_disk(self, path: str, above: frozenset[tuple[int, int]]) -> Iterator[FileInfo]:
        """Yield the files below a folder, given the devices and numbers of the folders that it is in."""
        try:
            at = Path(path).stat()
            with os.scandir(path) as entries:
                found = list(entries)
        except FileNotFoundError:
            return
        here = above | {(at.st_dev, at.st_ino)}
        for entry in found:
            if entry.is_file():
                info = entry.stat()
                yield FileInfo(entry.path, info.st_size, info.st_mtime_ns)
            elif entry.is_dir() and (not entry.is_symlink() or _identity(entry) not in here):
                yield from self._on_disk(entry.path, here)

    def folders(self, path: str) -> list[str]:
        """Return the names of the folders directly below a path."""
        chosen = fs.FileSelector(self._path(path), allow_not_found=True)
        infos = self._files.get_file_info(chosen)
        return sorted(info.base_name for info in infos if info.type is fs.FileType.Directory)

    def open(self, path: str) -> Any:
        """Open a file to read its bytes, without decompression."""
        return self._files.open_input_stream(self._path(path), compression=None)

    def read_json(self, path: str) -> Any:
        """Return the content of a JSON file.

        Raises:
            BadInput: If it is not JSON.
        """
        with self.open(path) as file:
            try:
                return json.loads(file.read())
            except ValueError as error:
                msg = f"{self.at(path)} is damaged ({error}); restore it, or run once with --full-refresh"
                raise BadInput(msg) from error

    def dataset(self, paths: Sequence[str], below: str, folders: Sequence[str]) -> Any:
        """Return Parquet files as a PyArrow dataset.

        Args:
            paths: Paths of the files.
            below: Folder whose subfolders name values of columns.
            folders: These columns, in order; their values are text.
        """
        named = HivePartitioning(pa.schema([(name, pa.string()) for name in folders]))
        return dataset(
            [self._path(path) for path in paths], filesystem=self._files, format="parquet",
            partitioning=named if folders else None, partition_base_dir=self._path(below),
        )  # fmt: skip

    def scan(
        self, paths: Sequence[str], schema: Any, columns: Sequence[str] | None, where: Any = None
    ) -> Any:
        """Return a PyArrow scanner, which reads Parquet files batch by batch.

        Args:
            paths: Paths of the files.
            schema: Their PyArrow schema; None: as in the first file.
            columns: Columns to return; None: all.
            where: Condition for the rows to return; None: all rows.
        """
        found = dataset(
            [self._path(path) for path in paths], schema=schema, filesystem=self._files, format="parquet"
        )
        # Arrow would keep the metadata of every file until the scan ends.
        return found.scanner(
            columns=None if columns is None else list(columns), filter=where, cache_metadata=False
        )

    def write_parquet(self, path: str, batches: Iterable[Any], schema: Any, **options: Any) -> None:
        """Write PyArrow record batches as a Parquet file, atomically.

        Args:
            path: Path of the file.
            batches: The batches; each becomes a row group.
            schema: Their PyArrow schema.
            options: Further options of PyArrow's `ParquetWriter`.
        """
        with self._sink(path) as file, ParquetWriter(file, schema, compression="zstd", **options) as writer:
            for batch in batches:
                if batch.num_rows:  # PyIceberg warns about row groups without statistics, as empty ones are
                    writer.write_batch(batch)

    def write(self, path: str, text: str) -> None:
        """Write a file atomically: readers see the old content or the new one."""
        self.write_chunks(path, [text.encode()])

    def write_chunks(self, path: str, chunks: Iterable[bytes]) -> None:
        """Write a file atomically, chunk by chunk."""
        with self._sink(path) as file:
            for chunk in chunks:
                file.write(chunk)

    def write_json(self, path: str, value: Mapping[str, Any]) -> None:
        """Write a JSON file atomically."""
        self.write(path, json.dumps(value, indent=2, allow_nan=False) + "\n")

    def move_files(self, targets: Mapping[str, str]) -> None:
        """Move files to the paths that they map to; in a bucket, copy and delete them."""
        self._for_each(self._move, targets.items())

    def _move(self, paths: tuple[str, str]) -> None:
        file, target = map(self._path, paths)
        if self.local:
            self._files.create_dir(target.rpartition("/")[0])
        self._files.move(file, target)

    def delete_files(self, paths: Iterable[str]) -> None:
        """Delete files; ignore missing ones."""
        self._for_each(self._delete_file, paths)

    def _delete_file(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._files.delete_file(self._path(path))

    def _for_each(self, change: Callable[[T], None], files: Iterable[T]) -> None:
        """Change files: one by one on a disk, several at a time in a bucket, whose answers take longer.

        Raises:
            OSError: If a file could not be changed. The following files may also be unchanged.
        """
        if self.local:
            for file in files:
                change(file)
            return
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="bucket") as pool:
            try:
                for changed in [pool.submit(change, file) for file in files]:
                    changed.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def delete(self, path: str) -> None:
        """Delete a folder and its content, if it exists."""
        if self.exists(path):
            self._files.delete_dir(self._path(path))

    def _sink(self, path: str) -> AbstractContextManager[Any]:
        """Return a file to write, which appears when it is complete."""
        if self.local:
            return whole_file(Path(self._path(path)))
        sink: AbstractContextManager[Any] = self._files.open_output_stream(self._path(path))
        return sink

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _info(self, path: str) -> Any:
        return self._files.get_file_info(self._path(path))


def _identity(entry: os.DirEntry[str]) -> tuple[int, int]:
    """Return the device and the number of the folder that an entry leads to."""
    found = entry.stat()
    return found.st_dev, found.st_ino


def _hidden(path: str) -> bool:
    return any(part.startswith((".", "_")) for part in path.split("/"))
