"""Iceberg tables in a catalog that the cluster has, beside the Parquet of the run.

A run's own folder stays what it is: the report and the next run need it, and a catalog has no commit over
several tables. Here each table of a finished run replaces the one of the run before, in one commit of its
own. The summary names the snapshots that belong together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from freshq_pipeline.errors import BadInput
from freshq_pipeline.schemas import TABLES, ddl
from freshq_pipeline.spark.session import innermost
from freshq_pipeline.storage.state import table_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from freshq_pipeline.storage.folder import Folder

FORMAT: Final = "iceberg"
RUN_ID: Final = "freshq.run-id"


def require(spark: SparkSession, namespace: str) -> None:
    """Make sure that there is such a catalog, before anything is written.

    Args:
        spark: The session.
        namespace: The catalog's name, a dot, and the namespace in it.

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
    except (PySparkException, Py4JJavaError) as error:
        msg = f"iceberg: the catalog {name!r} cannot be used: {innermost(str(error))}"
        raise BadInput(msg) from None


def commit(spark: SparkSession, out: Folder, run_id: str, namespace: str) -> dict[str, Any]:
    """Replace the tables of a catalog by those of a run.

    Args:
        spark: The session.
        out: Where the run is.
        run_id: Which.
        namespace: The catalog's name, a dot, and the namespace in it.

    Returns:
        What the summary says of them: `tables`, and `snapshots`, the id of each as it is now.
    """
    if not spark.catalog.databaseExists(namespace):
        spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {namespace}")
    names = {table: f"{namespace}.{table}" for table in TABLES}
    for table, name in names.items():
        rows = spark.read.schema(ddl(TABLES[table])).parquet(out.at(table_path(run_id, table)))
        rows.writeTo(name).using(FORMAT).tableProperty(RUN_ID, run_id).createOrReplace()
    return {"tables": names, "snapshots": {table: _newest(spark, name) for table, name in names.items()}}


def _newest(spark: SparkSession, name: str) -> int | None:
    row = spark.table(f"{name}.snapshots").orderBy(F.desc("committed_at")).first()
    return None if row is None else int(row["snapshot_id"])
