"""The files of the tables: drafted by a run, moved to their final place, listed in a manifest, and linked.

A file listed in a manifest never changes, and outlives the run that wrote the manifest. Each run has a folder
of hard links to its files, and `OUT/tables` is a symbolic link to the folder of the current run, so that a
glob matches the files of one run. Buckets and some disks have no links; there `OUT/tables` has only the
manifest.
"""

from __future__ import annotations

import errno
import os
from itertools import chain, groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from freshq_pipeline.errors import BadInput
from freshq_pipeline.schemas import BY_DAY, TABLES, ddl

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from freshq_pipeline.storage.folder import Folder


# Paths below the output folder, by table and day.
Files: TypeAlias = "dict[str, dict[str, list[str]]]"
MANIFEST: Final = "manifest.json"
# Folders with the files of all kept runs: of published tables, and of tables that only the next run reads.
FILES: Final = "files"
INTERNAL: Final = "parts"
# The folder in which readers find the tables of a run, below the output folder or the folder of the run.
PUBLISHED: Final = "tables"
WHOLE: Final = ""
PARQUET: Final = ".parquet"
# The columns that name the subfolders of tables by day.
FOLDERS: Final = ("day", "queue")
_DAY: Final = "day="


def draft_path(run_id: str, table: str) -> str:
    """Return the folder in which a run drafts a table."""
    return f"runs/{run_id}/{table}"


def place(table: str) -> str:
    """Return the folder with the files of a table."""
    return f"{FILES if table in TABLES else INTERNAL}/{table}"


def manifest_path(run_id: str) -> str:
    """Return the path of a run's manifest."""
    return f"runs/{run_id}/{PUBLISHED}/{MANIFEST}"


def move_in(out: Folder, run_id: str, table: str) -> dict[str, list[str]]:
    """Move the files of a table from a run's draft to their final place; return them by day."""
    draft = draft_path(run_id, table)
    by_day: dict[str, list[str]] = {}
    targets: dict[str, str] = {}
    for file in out.files(draft):
        below = file.path.removeprefix(f"{draft}/")
        *folders, _name = below.split("/")
        paths = by_day.setdefault(_day_of(below), [])
        targets[file.path] = "/".join((place(table), *folders, f"{run_id}-{len(paths):04}{PARQUET}"))
        paths.append(targets[file.path])
    out.move_files(targets)
    out.delete(draft)
    return by_day


def keep_rows(out: Folder, run_id: str, table: str, paths: Iterable[str], where: Any) -> None:
    """Add rows of files of a table to a run's draft: a file for each folder by day.

    Args:
        out: The output folder.
        run_id: Id of the run.
        table: Name of the table.
        paths: The files.
        where: Condition for the rows.
    """
    for folder, files in groupby(sorted(paths), lambda path: path.rpartition("/")[0]):
        rows = out.scan(list(files), None, None, where)
        batches = (batch for batch in rows.to_batches() if batch.num_rows)
        first = next(batches, None)
        if first is not None:
            target = f"{draft_path(run_id, table)}/{folder.removeprefix(f'{place(table)}/')}/kept{PARQUET}"
            out.write_parquet(target, chain([first], batches), rows.projected_schema)


def replaced(known: Files, made: Files, days: Mapping[str, Collection[str] | None]) -> Files:
    """Return the files of all tables after a run.

    Args:
        known: Files before the run.
        made: Files that the run wrote.
        days: Days that the run replaces, by table; None: all.
    """
    after: Files = {}
    for table, files in made.items():
        gone, before = days.get(table), known.get(table, {})
        kept = {} if gone is None else {day: old for day, old in before.items() if day not in gone}
        after[table] = dict(sorted((kept | files).items()))
    return after


def manifest(run_id: str, files: Files) -> dict[str, Any]:
    """Return the manifest of a run: the files of each table."""
    return {"run_id": run_id, "tables": {table: paths_of(files, table) for table in TABLES}}


def published_paths(out: Folder, run_id: str, table: str) -> list[str]:
    """Return the files of a table that the manifest of a run lists."""
    files: list[str] = out.read_json(manifest_path(run_id))["tables"][table]
    return files


def newest_days(paths: list[str], days: int) -> dict[str, list[str]]:
    """Return the files of a table on its newest days, by day in ascending order."""
    by_day: dict[str, list[str]] = {}
    for path in paths:
        by_day.setdefault(_day_of(path), []).append(path)
    return {day: by_day[day] for day in sorted(by_day)[-days:]}


def _day_of(path: str) -> str:
    """Return the day in the path of a file; `WHOLE` if the table is not by day."""
    return next((one.removeprefix(_DAY) for one in path.split("/") if one.startswith(_DAY)), WHOLE)


def paths_of(files: Files, table: str) -> list[str]:
    """Return all files of a table."""
    return [path for paths in files.get(table, {}).values() for path in paths]


def columns_with_day(table: str) -> dict[str, str]:
    """Return the columns of a table, including those that name its subfolders."""
    return TABLES[table] | (dict.fromkeys(FOLDERS, "string") if table in BY_DAY else {})


def missing_file(address: str) -> BadInput:
    """Return the error for a missing file that an earlier run wrote."""
    return BadInput(f"out: {address} is missing; restore it, or run once with --full-refresh")


def read_table(spark: SparkSession, out: Folder, paths: list[str], name: str) -> DataFrame:
    """Return a table as a DataFrame; tables by day have the column `day`.

    Args:
        spark: The session.
        out: The output folder.
        paths: Files of the table.
        name: Name of the table.
    """
    columns = columns_with_day(name)
    if not paths:
        return spark.createDataFrame([], ddl(columns))
    reader = spark.read.schema(ddl(columns)).option("basePath", out.at(place(name)))
    return reader.parquet(*(out.at(path) for path in paths)).select(*columns)


# Errors of file systems without links. FAT raises EPERM.
_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
# The link while it is made, and the folder that it replaces, if any. The lock lets only one run use them.
_NEXT: Final = f".{PUBLISHED}.next"
_LAST: Final = f".{PUBLISHED}.last"
# The links of a run that is no longer kept. The next run reuses them instead of recreating all links.
_SPARE: Final = f".{PUBLISHED}.spare"


def has_links(out: Folder) -> bool:
    """Return whether the folder's file system has hard and symbolic links, by creating some."""
    root = out.on_disk("")
    if root is None:
        return False
    out.make("")
    with TemporaryDirectory(prefix=".links-", dir=root) as scratch:
        file = Path(scratch, "file")
        file.touch()
        try:
            os.link(file, file.with_name("second"))
            file.with_name("link").symlink_to(file.name)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            return False
    return True


def check_tables(out: Folder) -> None:
    """Check that `OUT/tables`, which the next run replaces, was made by a run.

    Raises:
        BadInput: If it was not.
    """
    found = out.on_disk(PUBLISHED)
    if found is None or not os.path.lexists(found):
        return
    linked = found.is_symlink()
    if not (found.readlink().parts[:1] == ("runs",) if linked else (found / MANIFEST).exists()):
        msg = f"out: {found} is not from a run; move it away, or use another folder"
        raise BadInput(msg)


def link_tables(out: Folder, run_id: str, files: Files) -> None:
    """Write the manifest of a run, and a folder of links to its files.

    Args:
        out: The output folder.
        run_id: Id of the run.
        files: Files of the tables.

    Raises:
        BadInput: If a file is missing.
    """
    named = manifest(run_id, files)
    target = manifest_path(run_id).removesuffix(f"/{MANIFEST}")
    root = out.on_disk("")
    if root is not None and has_links(out):
        wanted = (path for paths in named["tables"].values() for path in paths)
        _fill(out, root, target, {path.removeprefix(f"{FILES}/"): path for path in wanted})
    out.write_json(manifest_path(run_id), named)


def _fill(out: Folder, root: Path, target: str, wanted: dict[str, str]) -> None:
    """Make a folder hold exactly the wanted links.

    Args:
        out: The output folder.
        root: Its place on the disk.
        target: The folder to fill, which does not exist.
        wanted: Paths of the files, by path of the link below `target`.
    """
    if out.exists(_SPARE):
        out.make(target.rpartition("/")[0])
        (root / _SPARE).rename(root / target)
    below = len(f"{root}/{target}/")
    found = {f"{folder}/{file}"[below:] for folder, _, files in os.walk(root / target) for file in files}
    for name in wanted.keys() - found:
        _link(f"{root}/{wanted[name]}", f"{root}/{target}/{name}")
    for name in found - wanted.keys():
        out.delete_files([f"{target}/{name}"])
        folder = (root / target / name).parent
        while folder != root / target and not any(folder.iterdir()):
            folder.rmdir()
            folder = folder.parent


def spare_tables(out: Folder, run_id: str) -> None:
    """Keep the links of a deleted run for the next run, unless some are kept already."""
    found = out.on_disk(manifest_path(run_id).removesuffix(f"/{MANIFEST}"))
    if found is not None and found.is_dir() and not out.exists(_SPARE):
        found.rename(found.parents[2] / _SPARE)


def _link(file: str, name: str) -> None:
    """Make a hard link, and its folder if needed."""
    try:
        os.link(file, name)
    except FileNotFoundError:
        if not Path(file).exists():
            raise missing_file(file) from None
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        os.link(file, name)


def show_tables(out: Folder, run_id: str) -> None:
    """Make `OUT/tables` show the tables of a run."""
    place = out.on_disk(PUBLISHED)
    if place is not None and has_links(out):
        _point(out, place, Path(manifest_path(run_id)).parent)
        return
    seen = f"{PUBLISHED}/{MANIFEST}"
    if not out.exists(seen) or out.read_json(seen)["run_id"] != run_id:
        out.write_json(seen, out.read_json(manifest_path(run_id)))


def _point(out: Folder, place: Path, target: Path) -> None:
    """Replace a link atomically. A folder in its place comes from a copy."""
    if not place.is_symlink() or place.readlink() != target:
        if place.is_dir() and not place.is_symlink():
            check_tables(out)
            out.delete(_LAST)
            place.replace(place.with_name(_LAST))
        draft = place.with_name(_NEXT)
        draft.unlink(missing_ok=True)
        draft.symlink_to(target)
        draft.replace(place)
    out.delete(_LAST)
