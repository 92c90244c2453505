"""Copy the tables to an Iceberg catalog of Spark.

Copies follow publication, like registration by PyIceberg. One commit replaces each table and stores the id of
its run, so the next run completes the copies of a killed one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from freshq_pipeline.errors import BadInput, NotRegistered
from freshq_pipeline.schemas import TABLES
from freshq_pipeline.spark.failures import SPARK_ERRORS, innermost_cause
from freshq_pipeline.storage.table_files import paths_of, read_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from freshq_pipeline.storage.folder import Folder
    from freshq_pipeline.storage.state import State

FORMAT: Final = "iceberg"
RUN_ID: Final = "freshq.run-id"


def require(spark: SparkSession, namespace: str | None) -> None:
    """Check that Spark can use a catalog.

    Args:
        spark: The session.
        namespace: CATALOG.NAMESPACE; None: do nothing.

    Raises:
        BadInput: If Spark does not know the catalog or cannot load it.
    """
    if namespace is None:
        return
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


def copy(spark: SparkSession, out: Folder, state: State, namespace: str | None) -> None:
    """Replace the tables of a catalog that do not belong to the current run.

    Args:
        spark: The session.
        out: The output folder.
        state: State of the current run.
        namespace: CATALOG.NAMESPACE; None: do nothing.

    Raises:
        NotRegistered: If the catalog failed; some tables may be copied.
    """
    if namespace is None:
        return
    try:
        if not spark.catalog.databaseExists(namespace):
            spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
        for table in TABLES:
            name = f"{namespace}.{table}"
            if _run_of(spark, name) != state.run_id:
                rows = read_table(spark, out, paths_of(state.tables, table), table)
                rows.writeTo(name).using(FORMAT).tableProperty(RUN_ID, state.run_id).createOrReplace()
    except SPARK_ERRORS as error:
        msg = f"the tables are published, but not all are copied to {namespace}; run again: "
        msg += innermost_cause(error)
        raise NotRegistered(msg) from error


def _run_of(spark: SparkSession, name: str) -> str | None:
    """Return the id of the run that made a table of the catalog; None if no run did."""
    if not spark.catalog.tableExists(name):
        return None
    found = spark.sql(f"SHOW TBLPROPERTIES {name}").collect()
    return {row["key"]: row["value"] for row in found}.get(RUN_ID)
