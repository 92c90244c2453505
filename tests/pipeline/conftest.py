"""One Spark session for all tests, because it takes seconds to start."""

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import duckdb
import pytest
from local.facts import relations
from pyspark.sql import SparkSession

from freshq_pipeline.runs.batch import execute
from freshq_pipeline.runs.request import Options, RunRequest
from freshq_pipeline.schemas import Format
from freshq_pipeline.spark.session import spark_session
from freshq_pipeline.spark.tuning import LARGE, SMALL, Tuning, tuning_for
from freshq_pipeline.storage.folder import Folder
from tests.pipeline.recording import write_lines
from tests.pipeline.two_days import two_days

# Java of a test session runs longer than one of a small input: it collects garbage less often, and does not
# look for compiled code to discard.
LASTING_JAVA = ("-Xmn400m", "-XX:ReservedCodeCacheSize=240m")
CACHE = str(Path(__file__).parents[2] / ".cache")
Rows: TypeAlias = list[dict[str, Any]]
Pipeline: TypeAlias = Callable[..., dict[str, Any]]


# Py4J leaves the sockets for rows open until garbage collection.
SOCKETS = (
    "ignore:unclosed <socket:ResourceWarning",
    "ignore:.*socket.socket:pytest.PytestUnraisableExceptionWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore the warnings about Py4J's sockets in this folder."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            for warning in SOCKETS:
                item.add_marker(pytest.mark.filterwarnings(warning))


@pytest.fixture(autouse=True)
def _cache_and_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache in the repository what is made once per machine, and do not wait for the disk."""
    monkeypatch.setenv("XDG_CACHE_HOME", CACHE)
    monkeypatch.setattr("os.fsync", lambda _file: None)  # the tests kill processes, not the machine


@pytest.fixture(autouse=True)
def _no_sockets_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Close Py4J's sockets after a test with Spark, so that no unrelated test gets the warnings."""
    yield
    if "spark" in request.fixturenames:
        gc.collect()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", CACHE)
        tuning = tuning_for(0)
        lasting = replace(tuning, java=(*tuning.java, *LASTING_JAVA))
        with spark_session("local[2]", "1g", lasting) as session:
            # With one partition, rows that must meet would always do.
            session.conf.set("spark.sql.shuffle.partitions", "2")
            yield session


@contextmanager
def tuned(spark: SparkSession, tuning: Tuning) -> Iterator[None]:
    """Give a session Spark's settings for inputs of another size, but as many partitions as it has."""
    names = (SMALL.spark.keys() | LARGE.spark.keys()) - {"spark.sql.shuffle.partitions"}
    before = {name: spark.conf.get(name, None) for name in names}
    try:
        _set(spark, {name: tuning.spark.get(name) for name in names})
        yield
    finally:
        _set(spark, before)


def _set(spark: SparkSession, settings: dict[str, str | None]) -> None:
    for name, value in settings.items():
        if value is None:
            spark.conf.unset(name)
        else:
            spark.conf.set(name, value)


@pytest.fixture(scope="session")
def pipeline(spark: SparkSession) -> Pipeline:
    """Return a function that runs the pipeline and returns its summary."""

    @contextmanager
    def same(_tuning: Tuning) -> Iterator[SparkSession]:
        yield spark

    def call(events: Path, out: Path, form: Format = Format.LANDED, **options: Any) -> dict[str, Any]:
        # Recordings of the tests have no index that lags, as DuckDB assumes.
        chosen = Options(form, **({"index_lag_seconds": 0.0} | options))
        return execute(RunRequest(Folder(str(events)), Folder(str(out)), chosen), same)

    return call


@pytest.fixture(scope="session")
def two_days_folder(pipeline: Pipeline, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the recording of two days, `events`, and the tables of a run over it, `out`."""
    folder = tmp_path_factory.mktemp("two-days")
    write_lines(folder / "events/1.json", two_days().landed())
    pipeline(folder / "events", folder / "out", index_lag_seconds=1)
    return folder


def table(summary: dict[str, Any], name: str, order: str) -> Rows:
    """Return the rows of a table of a run, read with DuckDB."""
    return query(f"from {relations(summary)[name]} order by {order}")


def query(sql: str) -> Rows:
    """Return the rows of a query in DuckDB."""
    with duckdb.connect() as connection:
        found = connection.execute(sql)
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def all_rows(summary: dict[str, Any]) -> dict[str, Counter[str]]:
    """Return how often each table has each row."""
    return {name: Counter(map(repr, query(f"from {rows}"))) for name, rows in relations(summary).items()}


def without_names(summary: dict[str, Any]) -> dict[str, Any]:
    """Return a summary without the fields that differ in every run."""
    return {name: value for name, value in summary.items() if name not in ("run_id", "tables", "manifest")}
