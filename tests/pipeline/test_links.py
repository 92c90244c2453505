"""`OUT/tables` as readers see it: one run, on disks with and without links, in copies, while runs end."""

import errno
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from freshq_pipeline.errors import BadInput, Unfinished
from freshq_pipeline.runs.batch import plan
from freshq_pipeline.runs.request import RunRequest
from freshq_pipeline.storage import table_files
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.state import State, current, publish, published_runs, required_current, show
from freshq_pipeline.storage.table_files import check_tables, has_links, move_in, published_paths, replaced
from tests.support.snippets import Reader, snippets
from tests.support.worker_threads import wait_until

PAGE = Path(__file__).parents[2] / "docs/pipeline.md"
DAYS = ("2026-01-01", "2026-01-02", "2026-01-03")
ROWS = 5


@pytest.fixture
def out(tmp_path: Path) -> Folder:
    return Folder(str(tmp_path / "OUT"))


def run(out: Folder, run_id: str, days: tuple[str, ...] = DAYS, keep_runs: int = 9) -> None:
    """Publish tables of some days, without Spark; each row of `tasks` has the id of the run.

    All runs have the same folders. A pattern may miss new files if a run ends while it lists.
    """
    before = current(out)
    rows = pa.table({"outcome": ["success"] * ROWS, "run": [run_id] * ROWS})
    for day in days:
        folder = f"runs/{run_id}/tasks/day={day}/queue=a"
        out.make(folder)
        pq.write_table(rows, out.at(f"{folder}/part-0.parquet"))
    moved = {"tasks": move_in(out, run_id, "tasks")}
    state = State(run_id, "in", "landed", published=published_runs(out))
    state.tables = replaced({} if before is None else before.tables, moved, {"tasks": days})
    publish(out, state, {"run_id": run_id}, keep_runs)


def counted(files: str | list[str]) -> dict[str, dict[str, int]]:
    """Return how many rows of each run DuckDB finds in each day."""
    with duckdb.connect() as connection:
        found = connection.execute(
            "select day, run, count(*) from read_parquet($files, hive_types_autocast = false, "
            "hive_partitioning = true) group by all",
            {"files": files},
        ).fetchall()
    days: dict[str, dict[str, int]] = {}
    for day, run_id, rows in found:
        days.setdefault(day, {})[run_id] = rows
    return days


def by_pattern(out: Folder) -> dict[str, dict[str, int]]:
    """Read like a newcomer who does not know about runs."""
    return counted(out.at("tables/tasks/*/*/*.parquet"))


def by_resolved_link(out: Folder) -> dict[str, dict[str, int]]:
    """Read the folder to which the link was resolved."""
    return counted(f"{Path(out.at('tables')).resolve()}/tasks/**/*.parquet")


def by_manifest(out: Folder) -> dict[str, dict[str, int]]:
    """Read the files that the manifest names."""
    return counted([out.at(path) for path in out.read_json("tables/manifest.json")["tables"]["tasks"]])


READERS = (by_pattern, by_resolved_link, by_manifest)


def made_by(*runs: str) -> dict[str, dict[str, int]]:
    """Return the rows of each day, which one of some runs wrote."""
    return {day: {run_id: ROWS} for day, run_id in zip(DAYS, runs, strict=True)}


def test_a_pattern_finds_the_files_of_one_run(out: Folder) -> None:
    run(out, "1")
    run(out, "2", DAYS[1:])
    run(out, "3", DAYS[2:], keep_runs=2)
    assert [reader(out) for reader in READERS] == [made_by("1", "2", "3")] * 3
    assert str(Path(out.at("tables")).readlink()) == "runs/3/tables"
    # The previous run is there in the same form, the first run is not.
    assert counted(out.at("runs/*/tables/tasks/day=2026-01-03/*/*.parquet")) == {DAYS[2]: {"2": 5, "3": 5}}
    assert counted(out.at("runs/2/tables/tasks/*/*/*.parquet")) == made_by("1", "2", "2")
    # Second names take no space.
    assert min(Path(out.at(path)).stat().st_nlink for path in published_paths(out, "2", "tasks")) > 1


def test_the_links_of_a_run_that_is_not_kept_are_used_again(out: Folder) -> None:
    """Otherwise each night would make and delete links for all recorded days."""
    for run_id in ("1", "2", "3"):
        run(out, run_id, DAYS if run_id == "1" else DAYS[2:], keep_runs=2)
    spare = Path(out.at(".tables.spare"))
    known = {path.name: path.stat().st_ino for path in spare.rglob("*=*")}
    # It is repaired after any change by others.
    next(spare.glob("tasks/day=2026-01-01/*/*")).unlink()
    (spare / "tasks/day=2026-01-02/queue=b").mkdir()
    (spare / "tasks/day=2026-01-02/queue=b/stray.parquet").touch()
    run(out, "4", DAYS[2:], keep_runs=2)
    assert [reader(out) for reader in READERS] == [made_by("1", "1", "4")] * 3
    tables = Path(out.at("tables"))
    assert {path.name: path.stat().st_ino for path in tables.resolve().rglob("*=*")} == known
    assert {path.name for path in spare.rglob("*.parquet")} == {"1-0000.parquet", "2-0000.parquet"}


@pytest.mark.parametrize("reader", READERS)
def test_who_reads_while_runs_end_sees_whole_runs(
    out: Folder, reader: Callable[[Folder], dict[str, dict[str, int]]]
) -> None:
    run(out, "00")
    ended, found, failed, wrong = threading.Event(), list[str](), Counter[str](), list[object]()

    def read() -> None:
        while not ended.is_set():
            try:
                days = reader(out)
            except duckdb.IOException as error:
                failed["a file is gone" if "No such file" in str(error) else str(error)] += 1
                continue
            newest = max(*days[DAYS[1]], *days[DAYS[2]])
            even = f"{int(newest) // 2 * 2:02}"  # the last run that replaced the first two days
            if days != made_by(even, even, newest):
                wrong.append(days)
            found.append(newest)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        wait_until(lambda: found != [])  # it reads before the runs, and while they end
        for number in range(1, 21):
            run(out, f"{number:02}", DAYS[2:] if number % 2 else DAYS, keep_runs=21)
            if number % 5 == 0:
                wait_until(lambda number=number: found[-1] == f"{number:02}")  # type: ignore[misc]
    finally:
        ended.set()
        thread.join()
    assert wrong == []
    assert found == sorted(found)
    assert set(failed) <= ({"a file is gone"} if reader is by_pattern else set())


def test_a_disk_without_links_is_read_by_the_manifest(out: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    run(out, "1")
    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refuse(errno.EPERM))
        assert not has_links(out)
        # The link went with the copy to such a disk, which lost it.
        Path(out.at("tables")).unlink()
        run(out, "2", DAYS[:1])
        assert by_manifest(out) == made_by("2", "1", "1")
        with pytest.raises(duckdb.IOException):
            by_pattern(out)
        check_tables(out)
        show(out, "2")
    # Back on the first disk.
    run(out, "3", DAYS[1:])
    assert [reader(out) for reader in READERS] == [made_by("2", "3", "3")] * 3
    monkeypatch.setattr(os, "link", refuse(errno.ENOSPC))
    with pytest.raises(OSError, match="No space left"):
        has_links(out)
    assert {path.name for path in Path(out.uri).iterdir()} == {
        "_current.json", "files", "runs", "summary.json", "tables",
    }  # fmt: skip


def refuse(number: int) -> Callable[..., None]:
    """Return a function that fails as a file system does."""

    def fail(*_arguments: Any) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("keeps_links", [True, False])
def test_a_copy_of_the_output_goes_on(out: Folder, tmp_path: Path, *, keeps_links: bool) -> None:
    run(out, "1")
    run(out, "2", DAYS[:1])
    copy = Folder(str(tmp_path / "copy"))
    shutil.copytree(out.uri, copy.uri, symlinks=keeps_links)
    shutil.rmtree(out.uri)
    assert [reader(copy) for reader in READERS] == [made_by("2", "1", "1")] * 3
    check_tables(copy)
    run(copy, "3", DAYS[1:2], keep_runs=2)
    assert [reader(copy) for reader in READERS] == [made_by("2", "3", "1")] * 3
    assert Path(copy.at("tables")).is_symlink()
    assert copy.folders("runs") == ["2", "3"]
    hidden = [path.name for path in Path(copy.uri).iterdir() if path.name.startswith(".")]
    assert hidden == [".tables.spare"]


def test_a_folder_of_others_is_not_replaced(out: Folder, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.json").touch()
    out.write("tables/mine.sql", "")
    request = RunRequest(Folder(str(tmp_path / "in")), out)
    with pytest.raises(BadInput, match=r"out: .*/tables"):
        plan(request)
    assert [path.name for path in Path(out.uri).iterdir()] == ["tables"]
    other = Folder(str(tmp_path / "other"))
    other.make("")
    Path(other.at("tables")).symlink_to(out.at("tables"))
    with pytest.raises(BadInput, match=r"out: .*/tables"):
        check_tables(other)


def test_a_file_that_is_gone_is_named_before_anything_is_published(out: Folder) -> None:
    run(out, "1")
    gone = published_paths(out, "1", "tasks")[0]
    Path(out.at(gone)).unlink()
    with pytest.raises(BadInput, match=gone):
        run(out, "2", DAYS[1:])
    state = required_current(out)
    assert state.run_id == "1"
    assert by_pattern(out) == made_by("1", "1", "1")  # under their second names


def test_a_link_that_was_not_replaced_is_made_up_for(out: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    run(out, "1")
    with monkeypatch.context() as patch:
        patch.setattr(table_files, "_point", refuse(errno.EIO))
        with pytest.raises(Unfinished):
            run(out, "2")
    assert by_pattern(out) == made_by("1", "1", "1")
    show(out, "2")
    assert by_pattern(out) == made_by("2", "2", "2")


def test_the_page_reads_the_tables_in_three_ways(out: Folder, tmp_path: Path) -> None:
    run(out, "1", DAYS)
    run(out, "2", DAYS[1:])
    mine = [
        replace(one, not_run=None)
        for one in snippets(PAGE)
        if "import duckdb" in one.code and "catalog" not in one.code
    ]
    check = 'assert duckdb.sql("select day, count(*) from tasks group by 1 order by 1").fetchall() == E'
    expected = [(day, ROWS) for day in DAYS]
    assert len(mine) == 3
    for one in mine:
        reader = Reader(tmp_path, stand_ins={"OUT/": f"{out.uri}/", "== E": f"== {expected!r}"})
        reader.follow([one, replace(one, code=check)])


def test_pandas_reads_the_tables_of_events_without_a_queue(out: Folder, tmp_path: Path) -> None:
    run(out, "1")
    nobody = Path(out.at("tables/tasks"), f"day={DAYS[0]}", "queue=__HIVE_DEFAULT_PARTITION__")
    nobody.mkdir()
    pq.write_table(pa.table({"outcome": ["shed"], "run": ["1"]}), nobody / "0.parquet")
    (page,) = (replace(one, not_run=None) for one in snippets(PAGE) if "import pandas" in one.code)
    check = f"""assert (len(tasks), tasks["queue"].isna().sum()) == ({3 * ROWS + 1}, 1)
assert tasks.dtypes[["day", "queue"]].map(str).to_list() == ["object", "object"]"""
    reader = Reader(tmp_path, stand_ins={"OUT/": f"{out.uri}/"})
    reader.follow([page, replace(page, code=check)])
