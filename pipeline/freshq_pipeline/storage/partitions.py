"""The files of the tables: written aside by a run, then moved to where they stay, and named in a manifest.

A file that a manifest names never changes, and is deleted only after the run that wrote the manifest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from freshq_pipeline.schemas import BY_DAY, TABLES

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from freshq_pipeline.storage.folder import Folder

# Paths below the output folder, by table and day.
Files: TypeAlias = "dict[str, dict[str, list[str]]]"
MANIFEST: Final = "manifest.json"
# Where the files of all kept runs are: those of the tables, and what only the next run reads.
FILES: Final = "files"
INTERNAL: Final = "parts"
# Where the tables of a run are seen: those of the current one below the output folder, others below theirs.
PUBLISHED: Final = "tables"
WHOLE: Final = ""
PARQUET: Final = ".parquet"
# The columns that name the folders of tables by day.
FOLDERS: Final = ("day", "queue")
_DAY: Final = "day="


def draft_path(run_id: str, table: str) -> str:
    """Return where a run writes a table or a part of it."""
    return f"runs/{run_id}/{table}"


def place(table: str) -> str:
    """Return the folder with the files of a table, of all kept runs, below the output folder."""
    return f"{FILES if table in TABLES else INTERNAL}/{table}"


def manifest_path(run_id: str) -> str:
    """Return where the manifest of a run is, below the output folder."""
    return f"runs/{run_id}/{PUBLISHED}/{MANIFEST}"


def move_in(
    out: Folder, run_id: str, table: str, only: Collection[str] | None = None
) -> dict[str, list[str]]:
    """Move the files of a table that a run wrote to where they stay, and return them by day.

    Args:
        out: The output folder.
        run_id: Id of the run.
        table: Name of the table.
        only: Move the files of these days, and delete others; None: move all.
    """
    draft = draft_path(run_id, table)
    moved: dict[str, list[str]] = {}
    for file in out.files(draft):
        below = file.path.removeprefix(f"{draft}/")
        *folders, _name = below.split("/")
        day = _day_of(below)
        if only is not None and day not in only:
            continue
        paths = moved.setdefault(day, [])
        target = "/".join((place(table), *folders, f"{run_id}-{len(paths):04}{PARQUET}"))
        out.move(file.path, target)
        paths.append(target)
    out.delete(draft)
    return moved


def replaced(known: Files, made: Files, days: Mapping[str, Collection[str] | None]) -> Files:
    """Return the files of all tables after a run.

    Args:
        known: Files before the run.
        made: Files that the run made.
        days: Days whose files the run replaces, by table; None: all.
    """
    after: Files = {}
    for table, files in made.items():
        gone = days.get(table)
        kept = (
            {} if gone is None else {day: old for day, old in known.get(table, {}).items() if day not in gone}
        )
        after[table] = dict(sorted((kept | files).items()))
    return after


def manifest(run_id: str, files: Files) -> dict[str, Any]:
    """Return the manifest of a run: the files of each table below the output folder."""
    return {"run_id": run_id, "tables": {table: paths_of(files, table) for table in TABLES}}


def published_paths(out: Folder, run_id: str, table: str) -> list[str]:
    """Return the paths of the files of a table as a run left it.

    Args:
        out: The output folder.
        run_id: Id of the run.
        table: Name of the table.
    """
    files: list[str] = out.read_json(manifest_path(run_id))["tables"][table]
    return files


def newest_days(paths: list[str], days: int) -> dict[str, list[str]]:
    """Return the files of a table on the newest days that it has, by day, in the order of time.

    Args:
        paths: Paths of the files of a table by day.
        days: How many days.
    """
    by_day: dict[str, list[str]] = {}
    for path in paths:
        by_day.setdefault(_day_of(path), []).append(path)
    return {day: by_day[day] for day in sorted(by_day)[-days:]}


def _day_of(path: str) -> str:
    """Return the day of a file of a table, `WHOLE` if the table is not by day."""
    return next((one.removeprefix(_DAY) for one in path.split("/") if one.startswith(_DAY)), WHOLE)


def paths_of(files: Files, table: str) -> list[str]:
    """Return the paths of all files of a table."""
    return [path for paths in files.get(table, {}).values() for path in paths]


def columns_with_day(table: str) -> dict[str, str]:
    """Return the columns of a table, with the day that its files are partitioned by."""
    return TABLES[table] | (dict.fromkeys(FOLDERS, "string") if table in BY_DAY else {})
