"""A real night that is killed at every step of its publication: readers and the next run see whole tables.

Spark works three times: for the run before, for the night, and for the same night once more as the next run
does it. The steps of publication, from where the files are moved on, are repeated on copies.
"""

import hashlib
import json
import os
import shutil
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from freshq_pipeline.gold import build
from freshq_pipeline.runs import batch
from freshq_pipeline.runs.batch import finish_last, plan
from freshq_pipeline.runs.request import Options, RunRequest
from freshq_pipeline.schemas import TABLES
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.state import State, publish, required_current
from freshq_pipeline.storage.table_files import move_in, paths_of
from tests.pipeline.conftest import Pipeline
from tests.pipeline.killing import killed_at
from tests.pipeline.nights import differing, quiet_days
from tests.pipeline.recording import write_lines

Seen: TypeAlias = "dict[str, list[str]]"
OPTIONS: dict[str, Any] = {"keep_runs": 1, "index_lag_seconds": 0.0}


@dataclass
class Night:
    """The tables that Spark made of new events, and their publication.

    Attributes:
        out: Copy of the output folder before the first file was moved.
        moves: Arguments of `move_in`, without the folder and the run.
        state: State of the run before its publication.
        summary: Its summary.
    """

    out: Path
    moves: list[tuple[Any, ...]]
    state: State | None = None
    summary: dict[str, Any] | None = None

    def publish(self, out: Path) -> str:
        """Publish in a folder that has what Spark wrote; return the id of the run."""
        assert self.state is not None
        assert self.summary is not None
        folder, state = Folder(str(out)), deepcopy(self.state)
        for arguments in self.moves:
            move_in(folder, state.run_id, *arguments)
        publish(folder, state, self.summary, keep_runs=1)
        return state.run_id


def copied(folder: Path, to: Path) -> Path:
    """Copy an output folder as it is; its files are never changed in place, so they need no space."""
    shutil.copytree(folder, to, symlinks=True, copy_function=os.link)
    return to


def night(pipeline: Pipeline, before: Path, events: Path, folder: Path) -> Night:
    """Let Spark work for a night, but publish nothing."""
    out = copied(before, folder / "worked")
    found = Night(folder / "before", [])

    def moving(_out: Folder, run_id: str, *arguments: Any) -> dict[str, list[str]]:
        if not found.moves:
            copied(out, found.out)
        found.moves.append(arguments)
        return move_in(_out, run_id, *arguments)

    def publishing(_out: Folder, state: State, summary: dict[str, Any], *_others: Any) -> None:
        found.state, found.summary = deepcopy(state), summary

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "move_in", moving)
        patch.setattr(batch, "publish", publishing)
        pipeline(events, out, **OPTIONS)
    return found


def seen(out: Path) -> Seen:
    """Return the content of each table by a pattern, after a check that the manifest names the same."""
    named = json.loads((out / "tables/manifest.json").read_text())["tables"]
    by_pattern, by_manifest = (
        {name: sorted(map(digest, listed)) for name, listed in files.items()}
        for files in (
            {name: list((out / "tables" / name).rglob("*.parquet")) for name in TABLES},
            {name: [out / path for path in paths] for name, paths in named.items()},
        )
    )
    assert by_pattern == by_manifest
    return by_pattern


def digest(file: Path) -> str:
    """Return the folders and the content of a file of a table."""
    folders = [part for part in file.parts if part.startswith(("day=", "queue="))]
    return "/".join([*folders, hashlib.sha256(file.read_bytes()).hexdigest()])


def as_duckdb_makes_them(out: Path, events: Path) -> Seen:
    """Return the tables of a folder, which must be DuckDB's own."""
    manifest = {"manifest": out / "tables/manifest.json"}
    assert differing(manifest, events / "*.gz", out.with_name(f"duckdb-{out.name}")) == {}
    return seen(out)


@pytest.mark.timeout(600)  # three runs on Spark, on a machine that may be busy
def test_tables_of_a_killed_night_and_of_the_next_run_equal_duckdb(
    pipeline: Pipeline, tmp_path: Path
) -> None:
    events, before = quiet_days(2).landed(), tmp_path / "first"
    late = [event for event in events if event["task_id"] in ("d1-0", "d1-1", "d1-2", "d0-1")]
    write_lines(tmp_path / "in/0.json.gz", [event for event in events if event not in late])
    pipeline(tmp_path / "in", before, **OPTIONS)
    old = as_duckdb_makes_them(before, tmp_path / "in")
    write_lines(tmp_path / "in/1.json.gz", late)
    killed, again = (night(pipeline, before, tmp_path / "in", tmp_path / name) for name in ("night", "again"))
    whole, next_whole = copied(killed.out, tmp_path / "whole"), copied(again.out, tmp_path / "next-whole")
    ids = [one.publish(folder) for one, folder in ((killed, whole), (again, next_whole))]
    new = as_duckdb_makes_them(whole, tmp_path / "in")
    assert as_duckdb_makes_them(next_whole, tmp_path / "in").keys() == new.keys()
    steps, published, missed = 0, list[bool](), ["the first"]
    while missed:
        out = copied(killed.out, tmp_path / f"{steps:03}")
        with killed_at(steps) as missed:
            killed.publish(out)
        state = required_current(Folder(str(out)))
        published.append(state.run_id == ids[0])
        assert seen(out) in (old, new), steps
        assert seen(out) == old or published[-1], steps
        assert_next_run(out, again, tmp_path / "in", new if published[-1] else seen(next_whole))
        shutil.rmtree(out)
        steps += 1
    assert published == sorted(published)
    assert min(published.count(True), published.count(False)) > 10, published


def assert_next_run(out: Path, again: Night, events: Path, tables: Seen) -> None:
    """Let the next run finish or repeat the work of a killed run; check the result."""
    folder = Folder(str(out))
    request = RunRequest(Folder(str(events)), folder, Options(**OPTIONS))
    todo = plan(request)
    if todo.new:
        assert again.state is not None
        for written in again.out.glob(f"*/{again.state.run_id}"):
            copied(written, out / written.relative_to(again.out))
        again.publish(out)
    else:
        finish_last(request, todo)
    assert seen(out) == tables
    state = required_current(folder)
    needed = {path for name in state.tables for path in paths_of(state.tables, name)}
    assert {file.path for kind in ("files", "parts") for file in folder.files(kind)} == needed
    assert folder.folders("runs") == [state.run_id]
    assert set(folder.folders("silver")) == state.silver_parts()
    assert folder.read_json("summary.json")["run_id"] == state.run_id
