"""The uploaded package on a standalone master with two workers."""

import json
import os
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from benchmarks.lives import write_events
from local import packages

from freshq_pipeline.cluster.emr import ARCHIVE
from tests.pipeline.conftest import Pipeline, all_rows, without_names
from tests.support.spark_cluster import QUICK_JAVA, SparkCluster

# For packing, unpacking on each worker, and a run, on a machine that may be busy.
PATIENCE_SECONDS = 300
SETTINGS = {
    "spark.executor.memory": "600m",
    "spark.sql.shuffle.partitions": "2",
    # As in the session of the tests: for a few rows, compiling plans takes longer than interpreting them.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": QUICK_JAVA,
    "spark.executor.extraJavaOptions": QUICK_JAVA,
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
}


@pytest.mark.cluster
@pytest.mark.timeout(500)
def test_a_cluster_makes_the_tables_of_an_embedded_run(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The interpreter without the packages of this environment, so that only the archive has them.
    bare = Path(sys.base_prefix) / "bin"
    monkeypatch.setenv("PATH", f"{bare}{os.pathsep}{os.environ['PATH']}")
    write_events(tmp_path / "in", 2000, files=4, seed=3)
    with ThreadPoolExecutor(1) as other:
        packing = other.submit(packages.make, tmp_path / "package", packages.NATIVE, compression=0)
        embedded = pipeline(tmp_path / "in", tmp_path / "embedded")
        package = packing.result()
    archive = package / ARCHIVE
    # The driver runs on this machine, where Spark does not unpack the archive.
    with tarfile.open(archive) as packed:
        assert not [name for name in packed.getnames() if name.startswith("site-packages/pyspark")]
        packed.extractall(tmp_path / "environment", filter="data")
    settings = SETTINGS | {
        "spark.pyspark.driver.python": f"{tmp_path}/environment/bin/python",
        "spark.pyspark.python": "./environment/bin/python",
    }
    monkeypatch.setenv("FRESHQ_VERDICT", f"file://{tmp_path}/verdict.json")
    with SparkCluster(tmp_path / "cluster", workers=2) as cluster:
        ended = cluster.submit(
            [
                "--archives", f"{archive}#environment",
                *(text for name, value in settings.items() for text in ("--conf", f"{name}={value}")),
                str(package / "main.py"), "run", "--json",
                "--events", f"file://{tmp_path}/in", "--out", f"file://{tmp_path}/out",
                "--index-lag-seconds", "0",
            ],
            PATIENCE_SECONDS,
        )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert json.loads((tmp_path / "verdict.json").read_text()) == {"status": 0, "message": ""}
    summary = json.loads(ended.stdout)
    assert summary.pop("problems") == []
    assert without_names(summary) == without_names(embedded)
    assert all_rows(summary) == all_rows(embedded)
    assert "vegaEmbed" in (tmp_path / "out/report.html").read_text()
    # Both workers took part.
    work = [list((tmp_path / f"cluster/work{number}").glob("app-*/*")) for number in range(2)]
    assert all(work)
