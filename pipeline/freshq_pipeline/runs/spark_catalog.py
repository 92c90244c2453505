"""Copies of the tables in an Iceberg catalog of Spark.

The run's own folder stays: the report and the next run read it. Each table of the run replaces the previous
one in one commit. No commit covers several tables, so the summary lists the snapshots that belong together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from freshq_pipeline.errors import BadInput
from freshq_pipeline.gold.published import read_table
from freshq_pipeline.schemas import TABLES
from freshq_pipeline.spark.failures import SPARK_ERRORS, innermost_cause
from freshq_pipeline.storage.partitions import paths_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from freshq_pipeline.storage.folder import Folder
    from freshq_pipeline.storage.state import State

FORMAT: Final = "iceberg"
RUN_ID: Final = "freshq.run-id"


def require(spark: SparkSession, namespace: str) -> None:
    """Check that Spark can use a catalog.

    Args:
        spark: The session.
        namespace: CATALOG.NAMESPACE.

    Raises:
        BadInput: If Spark has no such catalog, or cannot load it.
    """
    name = namespace.split(".", 1)[0]
    if spark.conf.get(f"spark.sql.catalog.{name}", None) is None:
        msg = f"iceberg: this Spark has no catalog {name!r}; configure spark.sql.catalog.{name}, "
        msg += "as docs/pipeline.md says"
        raise BadInput(msg)
    try:
        spark.sql(f"SHOW NAMESPACES IN {name}").first()
    except SPARK_ERRORS as error:
        msg = f"iceberg: the catalog {name!r} cannot be used: {innermost_cause(error)}"
        raise BadInput(msg) from None


def commit(spark: SparkSession, out: Folder, state: State, namespace: str) -> dict[str, Any]:
    """Replace the tables of a catalog by those of a run.

    Args:
        spark: The session.
        out: Output folder with the run.
        state: State of the run.
        namespace: CATALOG.NAMESPACE.

    Returns:
        For the summary: the names of the `tables`, and the ids of their `snapshots`.
    """
    if not spark.catalog.databaseExists(namespace):
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
    names = {table: f"{namespace}.{table}" for table in TABLES}
    for table, name in names.items():
        rows = read_table(spark, out, paths_of(state.tables, table), table)
        rows.writeTo(name).using(FORMAT).tableProperty(RUN_ID, state.run_id).createOrReplace()
    return {"tables": names, "snapshots": {table: _newest(spark, name) for table, name in names.items()}}


def _newest(spark: SparkSession, name: str) -> int | None:
    row = spark.table(f"{name}.snapshots").orderBy(F.desc("committed_at")).first()
    return None if row is None else int(row["snapshot_id"])
