"""The published tables in Iceberg catalogs of PyIceberg: one commit a table, whatever is killed."""

import threading
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from local.facts import comparable, differing_rows, make_tables, relations, rows_that_differ, write_tables
from moto import mock_aws
from pyiceberg.catalog.glue import GlueCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from freshq_pipeline.errors import BadInput, NotRegistered
from freshq_pipeline.runs.batch import execute_plan, plan
from freshq_pipeline.runs.progress import Stopwatch
from freshq_pipeline.runs.request import Options, RunRequest
from freshq_pipeline.schemas import BY_DAY, TABLES
from freshq_pipeline.storage.data_files import schema_of
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.registration import RUN_ID, open_catalog, registry_of
from freshq_pipeline.storage.state import (
    State,
    current,
    end_publication,
    publish,
    published_runs,
    required_current,
)
from freshq_pipeline.storage.table_files import FOLDERS, move_in, published_paths, replaced
from tests.pipeline.conftest import Pipeline
from tests.pipeline.killing import killed_at
from tests.pipeline.nights import nights, recorded
from tests.pipeline.recording import write_lines
from tests.support.snippets import snippets
from tests.support.worker_threads import wait_until

PAGE = Path(__file__).parents[2] / "docs/pipeline.md"
DAYS = ("2026-01-01", "2026-01-02")
# As Spark names the folders of queues.
QUEUES = {"a": "a", "b%2Fc": "b/c", "__HIVE_DEFAULT_PARTITION__": None}
SOME_TABLES = ("tasks", "ledger")
WRITES = (
    (Folder, ("write_json", "delete", "_delete_file")),
    (SqlCatalog, ("create_namespace", "create_table", "commit_table")),
)


@pytest.fixture(autouse=True)
def _no_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the catalogs that the user of this machine has configured."""
    for name in ("HOME", "PYICEBERG_HOME"):
        monkeypatch.setenv(name, str(tmp_path))


@pytest.fixture
def few_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave tables out to save time, because all are treated alike."""
    some = {name: TABLES[name] for name in SOME_TABLES}
    for module in ("registration", "state", "table_files"):
        monkeypatch.setattr(f"freshq_pipeline.storage.{module}.TABLES", some)


@pytest.fixture
def out(tmp_path: Path) -> Folder:
    return Folder(str(tmp_path / "out put"))


def run(
    out: Folder, run_id: str, days: tuple[str, ...] = DAYS, keep_runs: int = 5, catalog: str | None = "local"
) -> None:
    """Publish tables of some days and register them, without Spark; each row has the id of the run."""
    before = current(out)
    moved = {}
    for table in SOME_TABLES:
        folders = (
            [f"day={day}/queue={queue}/" for day in days for queue in QUEUES] if table in BY_DAY else [""]
        )
        for folder in folders:
            write(out, f"runs/{run_id}/{table}/{folder}part-0.parquet", table, run_id)
        moved[table] = move_in(out, run_id, table)
    state = State(run_id, "in", "landed", published=published_runs(out))
    state.tables = replaced({} if before is None else before.tables, moved, {"tasks": days})
    publish(out, state, {"run_id": run_id}, keep_runs, registry_of(out, catalog))


def write(out: Folder, path: str, table: str, run_id: str) -> None:
    """Write a file as Spark does, with one row; its only value is the id of a run."""
    fields = [one for one in schema_of(table).as_arrow() if table not in BY_DAY or one.name not in FOLDERS]
    columns = {one.name: pa.array([None], one.type) for one in fields}
    columns["task_id" if table == "tasks" else "queue"] = pa.array([run_id], pa.string())
    out.make(path.rpartition("/")[0])
    pq.write_table(pa.table(columns), out.at(path))


def rows(table: Table, snapshot_id: int | None = None, chosen: str = "true") -> set[tuple[Any, ...]]:
    """Return day, queue and run of each row of `tasks`."""
    found = table.scan(chosen, snapshot_id=snapshot_id).to_arrow()
    names = ("day", "queue", "task_id")
    listed = [tuple(row[name] for name in names) for row in found.select(names).to_pylist()]
    assert len(set(listed)) == len(listed)
    return set(listed)


def made_by(first: str, second: str) -> set[tuple[Any, ...]]:
    """Return the rows of `tasks` whose days are of two runs."""
    runs = dict(zip(DAYS, (first, second), strict=True))
    return {(day, queue, run_id) for day, run_id in runs.items() for queue in QUEUES.values()}


def seen(out: Folder) -> tuple[set[tuple[Any, ...]], list[str], list[str | None]]:
    """Return the rows of `tasks` and `ledger` that a reader of the catalog sees, and all runs of `tasks`."""
    with open_catalog(out, "local") as catalog:
        tasks, ledger = (catalog.load_table(("freshq", name)) for name in SOME_TABLES)
        of_ledger = ledger.scan().to_arrow()["queue"].to_pylist()
        return rows(tasks), of_ledger, runs_of(tasks)


def runs_of(table: Table) -> list[str | None]:
    """Return the run of each snapshot, by time."""
    return [
        one.summary.additional_properties.get(RUN_ID) if one.summary else None for one in table.snapshots()
    ]


@pytest.mark.usefixtures("few_tables")
def test_each_run_is_a_snapshot_of_its_own(out: Folder) -> None:
    run(out, "1")
    run(out, "2", DAYS[1:])
    assert seen(out) == (made_by("1", "2"), ["2"], ["1", "2"])
    with open_catalog(out, "local") as catalog:
        table = catalog.load_table("freshq.tasks")
        assert rows(table, chosen="queue = 'b/c' and day > '2026-01-01'") == {(DAYS[1], "b/c", "2")}
        assert rows(table, chosen="queue is null and task_id = '1'") == {(DAYS[0], None, "1")}
        assert rows(table, table.snapshots()[0].snapshot_id) == made_by("1", "1")
        # DuckDB reads it, too; its own extension for Iceberg may be missing.
        found = (
            table.scan().to_duckdb("tasks").execute("select day, count(*) from tasks group by 1 order by 1")
        )
        assert found.fetchall() == [(day, 3) for day in DAYS]
    # Without a new run nothing is committed again.
    state = required_current(out)
    end_publication(out, state, 5, registry_of(out, None))
    assert seen(out)[2] == ["1", "2"]


@pytest.mark.usefixtures("few_tables")
def test_a_killed_registration_is_made_up_for_and_never_seen_by_half(tmp_path: Path) -> None:
    steps, currents = 0, Counter[str]()
    while True:
        out = Folder(str(tmp_path / f"{steps:02}"))
        run(out, "1")
        with killed_at(steps, WRITES) as killed:
            run(out, "2", DAYS[1:])
        tasks, ledger, _runs = seen(out)
        assert tasks in (made_by("1", "1"), made_by("1", "2")), steps
        assert ledger in (["1"], ["2"]), steps
        state = required_current(out)
        currents[state.run_id] += 1
        # A run that finds nothing new completes the one before; a run with new files replaces both.
        end_publication(out, state, 5, registry_of(out, None))
        assert seen(out)[:2] == (made_by("1", state.run_id), [state.run_id]), steps
        run(out, "3", DAYS[:1], keep_runs=1, catalog=None)
        assert seen(out) == (made_by("3", state.run_id), ["3"], ["3"]), steps
        assert [file.path for file in out.files("files/tasks")] == sorted(published_paths(out, "3", "tasks"))
        if not killed:
            break
        steps += 1
    assert min(currents["1"], currents["2"]) > 4, currents


@pytest.mark.usefixtures("few_tables")
def test_snapshots_expire_with_their_runs_and_a_tag_keeps_its_files(out: Folder) -> None:
    run(out, "1")
    with open_catalog(out, "local") as catalog:
        table = catalog.load_table("freshq.tasks")
        table.manage_snapshots().create_tag(table.snapshots()[0].snapshot_id, "before the change").commit()
    for run_id in ("2", "3", "4"):
        run(out, run_id, keep_runs=2)
    assert seen(out) == (made_by("4", "4"), ["4"], ["1", "3", "4"])
    kept = {file.path.rpartition("/")[2].partition("-")[0] for file in out.files("files/tasks")}
    assert kept == {"1", "3", "4"}
    with open_catalog(out, "local") as catalog:
        table = catalog.load_table("freshq.tasks")
        for run_id, snapshot in zip(("1", "3", "4"), table.snapshots(), strict=True):
            assert rows(table, snapshot.snapshot_id) == made_by(run_id, run_id)
        ledger = catalog.load_table("freshq.ledger")
        assert runs_of(ledger) == ["3", "4"]
        # Files that only expired snapshots needed are deleted.
        lists = [file.path for file in out.files("catalog/freshq/ledger") if "/snap-" in file.path]
        assert len(lists) == len(ledger.snapshots())
        table.manage_snapshots().remove_tag("before the change").commit()
    run(out, "5", keep_runs=2)
    assert seen(out)[2] == ["4", "5"]
    assert len(out.files("files/tasks")) == 2 * len(QUEUES) * len(DAYS)


@pytest.mark.usefixtures("few_tables")
def test_the_lists_of_files_do_not_grow_with_the_runs(out: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("freshq_pipeline.storage.registration.MAX_MANIFESTS", 3)
    counts = []
    for number in range(6):
        run(out, str(number), DAYS[1:] if number else DAYS)
        with open_catalog(out, "local") as catalog:
            table = catalog.load_table("freshq.tasks")
            snapshot = table.current_snapshot()
            assert snapshot is not None
            counts.append(len(snapshot.manifests(table.io)))
            assert rows(table) == made_by("0", str(number))
    assert max(counts) < 4, counts


@pytest.mark.usefixtures("few_tables")
def test_what_others_wrote_is_replaced_by_the_next_run(out: Folder) -> None:
    run(out, "1")
    with open_catalog(out, "local") as catalog:
        table = catalog.load_table("freshq.tasks")
        table.delete("queue = 'a'")
        assert len(rows(table)) < len(made_by("1", "1"))
    run(out, "2", DAYS[1:])
    assert seen(out)[0] == made_by("1", "2")


@pytest.mark.usefixtures("few_tables")
def test_a_reader_sees_whole_runs_while_they_are_replaced(out: Folder) -> None:
    run(out, "0")
    ended, found = threading.Event(), list[str]()
    wrong = list[object]()

    def read() -> None:
        with open_catalog(out, "local") as catalog:
            while not ended.is_set():
                tasks = rows(catalog.load_table("freshq.tasks"))
                (of_first,) = {run_id for day, _queue, run_id in tasks if day == DAYS[0]} or {""}
                if tasks != made_by(of_first, of_first):
                    wrong.append(tasks)
                found.append(of_first)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(1, 6):
            wait_until(lambda number=number: found != [] and found[-1] == str(number - 1))  # type: ignore[misc]
            run(out, str(number), keep_runs=9)
    finally:
        ended.set()
        reader.join()
    assert wrong == []
    assert found == sorted(found)


@pytest.mark.usefixtures("few_tables")
def test_a_catalog_that_fails_is_made_up_for(out: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    run(out, "1")
    with monkeypatch.context() as patch:
        patch.setattr(SqlCatalog, "commit_table", failing)
        with pytest.raises(NotRegistered) as error:
            run(out, "2")
    assert error.value.status == 6
    state = required_current(out)
    assert state.run_id == "2"
    assert seen(out)[0] == made_by("1", "1")
    run(out, "3", catalog=None)
    assert seen(out)[0] == made_by("3", "3")


def test_a_run_that_fails_after_its_publication_stays(
    out: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pointer names it; only unpublished files are deleted."""
    write_lines(tmp_path / "in/a.json", [{}])
    request = RunRequest(Folder(str(tmp_path / "in")), out, Options(catalog="local"))

    def work(_spark: Any, _request: Any, _todo: Any, state: State, _watch: Any) -> dict[str, Any]:
        out.write(f"silver/{state.run_id}/a", "")
        return {"run_id": state.run_id}

    with monkeypatch.context() as patch:
        patch.setattr("freshq_pipeline.runs.batch._work", work)
        patch.setattr(SqlCatalog, "create_table", failing)
        with pytest.raises(NotRegistered):
            execute_plan(Mock(), request, plan(request), Stopwatch())
    state = required_current(out)
    assert out.read_json(f"runs/{state.run_id}/summary.json")["catalog"] == "local.freshq"
    with monkeypatch.context() as patch:
        patch.setattr("freshq_pipeline.runs.batch._work", failing)
        with pytest.raises(OSError, match="out of"):
            execute_plan(Mock(), request, plan(request), Stopwatch())
    assert out.folders("runs") == [state.run_id]


def failing(*_arguments: object, **_named: object) -> None:
    raise OSError("out of\nspace")


@pytest.mark.usefixtures("few_tables")
def test_catalogs_that_cannot_be_used(out: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for wanted, message in (
        ("a.b.c", "catalog: must be NAME or NAME.NAMESPACE"),
        (
            "lake",
            "has no catalog 'lake'; configure it in .pyiceberg.yaml or by PYICEBERG_CATALOG__LAKE__TYPE, or",
        ),
    ):
        with pytest.raises(BadInput, match=message):
            registry_of(out, wanted)
    bucket = Folder(str(tmp_path / "bucket"))
    bucket.local, bucket.uri = False, "s3://bucket/out"
    with pytest.raises(BadInput, match="s3://bucket/out"):
        registry_of(bucket, "local")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:////{tmp_path}/none/lake.db")
    with pytest.raises(BadInput, match=r"catalog: 'lake'.* unable to open"):
        registry_of(out, "lake")
    assert not out.exists()
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/lake.db")
    run(out, "1", catalog="lake.nights")
    assert registry_of(out, None) == registry_of(out, "lake.nights")
    with pytest.raises(BadInput, match=r"lake\.nights"):
        registry_of(out, "local")
    other = Folder(str(tmp_path / "other"))
    with pytest.raises(BadInput, match=rf"catalog: lake\.nights .* file://{out.uri}"):
        registry_of(other, "lake.nights")
    assert not other.exists()


def test_a_table_without_rows_has_a_file_without_row_groups(out: Folder) -> None:
    """PyIceberg would warn of the missing statistics of each column."""
    schema = pa.schema([("queue", pa.string())])
    out.write_parquet("a.parquet", pa.table({"queue": []}, schema).to_batches(), schema)
    assert pq.read_metadata(out.at("a.parquet")).num_row_groups == 0
    assert pq.read_table(out.at("a.parquet")).schema == schema


def test_a_new_column_is_added_to_the_tables(out: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    old = {"tasks": {name: kind for name, kind in TABLES["tasks"].items() if name != "kind"}}
    for tables in (old, {"tasks": TABLES["tasks"]}):
        for module in ("registration", "state", "table_files"):
            monkeypatch.setattr(f"freshq_pipeline.storage.{module}.TABLES", tables)
        monkeypatch.setattr("tests.pipeline.test_registration.SOME_TABLES", tuple(tables))
        run(out, f"{len(tables['tasks'])}", DAYS[:1] if tables is old else DAYS[1:])
    with open_catalog(out, "local") as catalog:
        table = catalog.load_table("freshq.tasks")
        assert set(table.schema().column_names) >= {*TABLES["tasks"], "day"}
        count = len(TABLES["tasks"])
        assert rows(table) == {
            (day, queue, f"{number}")
            for day, number in zip(DAYS, (count - 1, count), strict=True)
            for queue in QUEUES.values()
        }


@mock_aws
@pytest.mark.usefixtures("few_tables")
def test_tables_in_glue(out: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    run(out, "1", catalog="glue.nights")
    run(out, "2", DAYS[1:], catalog=None)
    with open_catalog(out, "glue") as catalog:
        assert isinstance(catalog, GlueCatalog)
        table = catalog.load_table("nights.tasks")
        assert rows(table) == made_by("1", "2")
        assert runs_of(table) == ["1", "2"]
    assert out.read_json("_catalog.json") == {"catalog": "glue", "namespace": "nights"}


@pytest.mark.timeout(900)  # two runs on Spark, on a machine that may be busy
def test_two_nights_equal_duckdb_as_published_and_as_registered(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark's own files, with every type of column, by two runs of which the second replaces some days."""
    out = Folder(str(tmp_path / "OUT"))
    summaries = []
    parts = nights(recorded(60, seed=2, days=3), count=2, late=0.05, seed=2)
    for number, part in enumerate(parts):
        write_lines(tmp_path / f"in/{number}.json.gz", part)
        summary = pipeline(tmp_path / "in", tmp_path / "OUT", catalog="local" if number == 0 else None)
        assert summary["catalog"] == "local.freshq"
        assert differing(out, summary, tmp_path / "in/*.gz", tmp_path / f"duckdb-{number}") == {}, number
        summaries.append(summary)
    with open_catalog(out, "local") as catalog:
        snapshots = {name: runs_of(catalog.load_table(("freshq", name))) for name in TABLES}
    assert snapshots == dict.fromkeys(TABLES, out.folders("runs"))
    monkeypatch.chdir(tmp_path)
    (shown,) = (one for one in snippets(PAGE) if "load_catalog" in one.code)
    exec(compile(shown.code, shown.place, "exec"), {})
    first, second = summaries
    assert f"{first['run_id']} {first['tasks']} tasks" in capsys.readouterr().out
    assert 0 < first["tasks"] < second["tasks"]


def differing(out: Folder, summary: dict[str, Any], files: Path, folder: Path) -> dict[str, int]:
    """Return how many rows are not DuckDB's own, by table and reader, without those that do not differ."""
    with open_catalog(out, "local") as catalog, duckdb.connect() as oracle:
        make_tables(oracle, str(files))
        theirs = write_tables(oracle, folder)
        off = Counter[str]()
        scans = {name: catalog.load_table(("freshq", name)).scan() for name in TABLES}
        for name, scan in scans.items():
            oracle.register(f"{name}_read_by_pyiceberg", scan.to_arrow())
        for name, columns in TABLES.items():
            paths = [task.file.file_path.removeprefix("file://") for task in scans[name].plan_files()]
            hive = f"hive_partitioning = {name in BY_DAY}, hive_types_autocast = false"
            # PyIceberg reads a list of structs that is null as an empty one (apache/iceberg-python#3833).
            plain = [one for one, kind in columns.items() if "struct" not in kind]
            readers = {f"{name}_read_by_pyiceberg": plain}
            if paths:
                readers[f"read_parquet({paths}, {hive})"] = list(columns)
            for ours, names in readers.items():
                pair = (
                    comparable(oracle, f"(select {', '.join(names)} from {relation})")
                    for relation in (ours, f"read_parquet('{theirs[name]}/*')")
                )
                off[ours] = differing_rows(oracle, *pair)
        shown = rows_that_differ(oracle, relations(summary), theirs)
        off.update({f"{name} as published": rows for name, rows in shown.items()})
    assert len(off) == 3 * len(TABLES)
    return {ours: count for ours, count in off.items() if count}
