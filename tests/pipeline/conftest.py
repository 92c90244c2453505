"""One Spark session for all tests, because it takes seconds to start."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import duckdb
import pytest

from freshq_pipeline.run.batch import execute
from freshq_pipeline.run.request import Options, RunRequest
from freshq_pipeline.schemas import Format
from freshq_pipeline.spark.session import spark_session
from freshq_pipeline.storage.folder import Folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
def _no_sockets_left() -> Iterator[None]:
    """Close Py4J's sockets here, so that no unrelated test gets the warnings."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with spark_session("local[2]", "1g") as session:
        # For a few rows, compiling plans takes longer than interpreting them.
        session.conf.set("spark.sql.codegen.wholeStage", "false")
        session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        session.conf.set("spark.sql.adaptive.enabled", "false")
        yield session


@pytest.fixture(scope="session")
def pipeline(spark: SparkSession) -> Pipeline:
    """Return a function that runs the pipeline and returns its summary."""

    @contextmanager
    def same() -> Iterator[SparkSession]:
        yield spark

    def call(events: Path, out: Path, form: Format = Format.LANDED, **options: Any) -> dict[str, Any]:
        return execute(RunRequest(Folder(str(events)), Folder(str(out)), Options(form, **options)), same)

    return call


def uncompiled(folder: Path) -> dict[str, str]:
    """Return environment variables that make Spark interpret plans, as in the tests.

    Args:
        folder: New folder for the settings.
    """
    folder.mkdir()
    lines = ("spark.sql.codegen.wholeStage false", "spark.sql.codegen.factoryMode NO_CODEGEN")
    (folder / "spark-defaults.conf").write_text("\n".join(lines) + "\n")
    return {"SPARK_CONF_DIR": str(folder)}


def table(summary: dict[str, Any], name: str, order: str) -> Rows:
    """Return the rows of a table of a run, read with DuckDB."""
    return query(f"select * from read_parquet('{summary['tables'][name]}/*.parquet') order by {order}")


def query(sql: str) -> Rows:
    """Return the rows of a query in DuckDB."""
    with duckdb.connect() as connection:
        found = connection.execute(sql)
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]
