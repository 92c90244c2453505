"""Tables in an Iceberg catalog of Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException

from freshq_pipeline.errors import BadInput, NotRegistered
from freshq_pipeline.runs import batch, spark_catalog
from freshq_pipeline.runs.batch import RunPlan, changed_options, execute
from freshq_pipeline.runs.request import Options, RunRequest
from freshq_pipeline.runs.spark_catalog import copy, require
from freshq_pipeline.schemas import TABLES
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.recording import IndexLag
from freshq_pipeline.storage.state import State, required_current
from tests.pipeline.killing import KilledError
from tests.pipeline.recording import small, write_lines

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.pipeline.conftest import Pipeline

# Path of iceberg-spark-runtime-4.1_2.13 from Apache; PyPI has no jar for Spark 4.1.
JAR = "FRESHQ_ICEBERG_JAR"


def test_a_catalog_that_spark_does_not_have(pipeline: Pipeline, tmp_path: Path) -> None:
    write_lines(tmp_path / "in/a.json", small().landed())
    with pytest.raises(BadInput, match=r"no catalog 'lake'.*spark\.sql\.catalog\.lake"):
        pipeline(tmp_path / "in", tmp_path / "out", iceberg="lake.freshq")
    assert not list(tmp_path.glob("out/*/*"))


def test_a_catalog_that_cannot_be_loaded(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.catalog.lost", "org.example.NoSuchCatalog")
    try:
        with pytest.raises(BadInput, match=r"'lost'.*NoSuchCatalog"):
            require(spark, "lost.freshq")
    finally:
        spark.conf.unset("spark.sql.catalog.lost")


class FakeSpark:
    """A fake of Spark with a catalog that has the properties and the rows, here files, of each table."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, Any]] = {}
        self.namespaces: list[str] = []
        self.commits: list[str] = []
        self.kill_before: int | None = None
        self.catalog = SimpleNamespace(
            databaseExists=self.namespaces.__contains__, tableExists=self.tables.__contains__
        )

    def sql(self, statement: str) -> Any:
        words = statement.split()
        if words[:2] == ["SHOW", "TBLPROPERTIES"]:
            listed = self.tables[words[-1]].items()
            return SimpleNamespace(collect=lambda: [{"key": key, "value": value} for key, value in listed])
        assert words[:-1] == ["CREATE", "NAMESPACE", "IF", "NOT", "EXISTS"]
        self.namespaces.append(words[-1])
        return None

    def rows(self, paths: list[str]) -> Any:
        """Return what is read from files, which can be written as a table."""
        properties: dict[str, Any] = {"files": paths}

        def writer(name: str) -> Any:
            found = SimpleNamespace()
            found.using = lambda kind: found if kind == "iceberg" else pytest.fail(kind)
            found.tableProperty = lambda key, value: properties.update({key: value}) or found
            found.createOrReplace = lambda: self.commit(name, properties)
            return found

        return SimpleNamespace(writeTo=writer)

    def commit(self, name: str, properties: dict[str, Any]) -> None:
        if self.kill_before == len(self.commits):
            raise KilledError
        self.commits.append(name)
        self.tables[name] = properties


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(spark_catalog, "read_table", lambda spark, _out, paths, _name: spark.rows(paths))
    return FakeSpark()


def state(run_id: str) -> State:
    files = {name: {"": [f"files/{name}/{run_id}-0000.parquet"]} for name in TABLES}
    return State(run_id, "in", "landed", tables=files)


def runs_in(fake: FakeSpark, namespace: str = "lake.freshq") -> dict[str, str]:
    """Return the run of each table, after a check that it has the files of this run."""
    for name in TABLES:
        table = fake.tables[f"{namespace}.{name}"]
        assert table["files"] == [f"files/{name}/{table['freshq.run-id']}-0000.parquet"]
    return {name: fake.tables[f"{namespace}.{name}"]["freshq.run-id"] for name in TABLES}


def test_every_table_is_replaced_in_one_commit_unless_it_is_of_the_run(fake: Any, tmp_path: Path) -> None:
    out = Folder(str(tmp_path))
    for run_id in ("1", "2", "2"):
        copy(fake, out, state(run_id), "lake.freshq")
        assert runs_in(fake) == dict.fromkeys(TABLES, run_id)
    names = [f"lake.freshq.{name}" for name in TABLES]
    assert fake.commits == names * 2
    assert fake.namespaces == ["lake.freshq"]
    # Another catalog, which has no tables yet.
    copy(fake, out, state("2"), "lake.other")
    assert runs_in(fake, "lake.other") == dict.fromkeys(TABLES, "2")
    assert len(fake.commits) == 3 * len(TABLES)
    copy(fake, out, state("3"), None)
    assert len(fake.commits) == 3 * len(TABLES)


def test_a_killed_copy_is_made_up_for_by_a_run_that_finds_nothing_new(fake: Any, tmp_path: Path) -> None:
    """Whatever was killed, the tables that follow are those that the pointer names."""
    out, events = Folder(str(tmp_path / "out")), tmp_path / "in"
    write_lines(events / "a.json", [{}])
    request = RunRequest(Folder(str(events)), out, Options(iceberg="lake.freshq"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spark_catalog, "require", lambda _spark, _namespace: None)
        copy(fake, out, state("0"), "lake.freshq")
        fake.kill_before = len(TABLES) + 3

        def work(_spark: Any, request: RunRequest, todo: RunPlan, made: State, _watch: Any) -> dict[str, Any]:
            assert fake.commits == [f"lake.freshq.{name}" for name in TABLES]  # nothing before the pointer
            for name in TABLES:
                request.out.write(f"files/{name}/{made.run_id}-0000.parquet", "")
            made.tables, made.files = (
                state(made.run_id).tables,
                {path: list(todo.files[path]) for path in todo.new},
            )
            return {"run_id": made.run_id, "queues": []}

        patch.setattr(batch, "_work", work)
        with pytest.raises(KilledError):
            execute(request, lambda _tuning: nullcontext(fake))
        known = required_current(out)
        assert list(runs_in(fake).values()) == [known.run_id] * 3 + ["0"] * (len(TABLES) - 3)
        fake.kill_before = None
        patch.setattr(batch, "_work", lambda *_arguments: pytest.fail("there are no new events"))
        execute(request, lambda _tuning: nullcontext(fake))
        assert runs_in(fake) == dict.fromkeys(TABLES, known.run_id)
        assert len(fake.commits) == 2 * len(TABLES)


def test_the_run_of_a_table_is_its_property(spark: SparkSession, tmp_path: Path) -> None:
    made = f"create table {{}} (x int) using parquet location '{tmp_path}/{{}}'"
    spark.sql(made.format("of_run", "a") + " tblproperties ('freshq.run-id' = '7')")
    spark.sql(made.format("of_others", "b"))
    try:
        names = ("of_run", "of_others", "of_nobody")
        assert [spark_catalog._run_of(spark, name) for name in names] == ["7", None, None]
    finally:
        for name in ("of_run", "of_others"):
            spark.sql(f"drop table {name}")


def test_the_option_changes_no_table() -> None:
    """So no day is computed because it is given once, or left out once."""
    with_copies = Options(iceberg="lake.freshq")
    before = State("1", "in", "landed", options=with_copies.of_tables())
    assert changed_options(before, Options(), IndexLag()) == []
    assert with_copies.of_tables() == Options().of_tables()


def test_a_catalog_that_fails_leaves_the_tables_published(fake: Any, tmp_path: Path) -> None:
    def fail(_name: str) -> bool:
        raise AnalysisException("no more space")

    fake.catalog.tableExists = fail
    with pytest.raises(NotRegistered, match=r"lake\.freshq.*: no more"):
        copy(fake, Folder(str(tmp_path)), state("1"), "lake.freshq")


@pytest.mark.timeout(600)  # another start of Spark, on a machine that may be busy
def test_tables_in_a_real_catalog(tmp_path: Path) -> None:
    jar = os.environ.get(JAR)
    if jar is None or not Path(jar).is_file():
        pytest.skip(f"{JAR} names no iceberg-spark-runtime for this Spark")
    write_lines(tmp_path / "in/a.json", small().landed())
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/spark-defaults.conf").write_text(
        f"spark.jars {jar}\n"
        "spark.sql.catalog.lake org.apache.iceberg.spark.SparkCatalog\n"
        "spark.sql.catalog.lake.type hadoop\n"
        f"spark.sql.catalog.lake.warehouse {tmp_path}/warehouse\n"
    )
    command = [sys.executable, "-m", "freshq_pipeline", "run", "--iceberg", "lake.freshq", "--json"]
    command += ["--events", str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--master", "local[2]"]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=500,
        env=os.environ | {"SPARK_CONF_DIR": str(tmp_path / "conf")},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    run_id = json.loads(ended.stdout)["run_id"]
    assert list((tmp_path / "warehouse/freshq/tasks").glob("data/*.parquet"))
    newest = max((tmp_path / "warehouse/freshq/tasks/metadata").glob("*.metadata.json"))
    assert json.loads(newest.read_text())["properties"]["freshq.run-id"] == run_id
