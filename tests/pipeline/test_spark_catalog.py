"""Tables in an Iceberg catalog of Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from freshq_pipeline.errors import BadInput
from freshq_pipeline.runs.spark_catalog import commit, require
from freshq_pipeline.schemas import TABLES
from freshq_pipeline.storage.folder import Folder
from freshq_pipeline.storage.state import State
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
        with pytest.raises(BadInput, match=r"'lost' cannot be used: .*NoSuchCatalog"):
            require(spark, "lost.freshq")
    finally:
        spark.conf.unset("spark.sql.catalog.lost")


class Recorder:
    """A fake Spark with a catalog that records calls and their arguments."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        if name in ("read", "catalog"):
            return self

        def call(*arguments: Any) -> Any:
            self.calls.append((name, arguments))
            return {"databaseExists": False, "first": {"snapshot_id": 7}}.get(name, self)

        return call

    def of(self, name: str) -> list[tuple[Any, ...]]:
        """Return the arguments of all calls of a method."""
        return [arguments for called, arguments in self.calls if called == name]


def test_every_table_is_replaced_in_one_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("freshq_pipeline.runs.spark_catalog.F.desc", lambda name: name)
    spark: Any = Recorder()
    files = {name: f"tables/{name}/run1-0000.parquet" for name in TABLES}
    tables = {name: {"": [file]} for name, file in files.items()}
    state = State("run1", "in", "landed", tables=tables)
    summary = commit(spark, Folder(str(tmp_path)), state, "lake.freshq")
    assert summary["tables"] == {name: f"lake.freshq.{name}" for name in TABLES}
    assert summary["snapshots"] == dict.fromkeys(TABLES, 7)
    assert [name for (name,) in spark.of("writeTo")] == list(summary["tables"].values())
    assert [path for (path,) in spark.of("parquet")] == [f"{tmp_path}/{file}" for file in files.values()]
    assert spark.of("using") == [("iceberg",)] * len(TABLES)
    assert spark.of("tableProperty") == [("freshq.run-id", "run1")] * len(TABLES)
    assert len(spark.of("createOrReplace")) == len(TABLES)
    assert spark.of("sql") == [("CREATE NAMESPACE IF NOT EXISTS lake.freshq",)]


@pytest.mark.timeout(300)  # another start of Spark, on a machine that may be busy
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
        command, capture_output=True, text=True, check=False, timeout=250,
        env=os.environ | {"SPARK_CONF_DIR": str(tmp_path / "conf")},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)
    assert summary["tables"]["tasks"] == "lake.freshq.tasks"
    assert list((tmp_path / "warehouse/freshq/tasks").glob("data/*.parquet"))
    assert summary["snapshots"]["tasks"] is not None
