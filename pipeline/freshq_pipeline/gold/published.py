"""The published tables as DataFrames."""

from __future__ import annotations

from typing import TYPE_CHECKING

from freshq_pipeline.schemas import ddl
from freshq_pipeline.storage.partitions import columns_with_day, place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from freshq_pipeline.storage.folder import Folder


def read_table(spark: SparkSession, out: Folder, paths: list[str], name: str) -> DataFrame:
    """Return a table of a run; tables by day with the column `day`.

    Args:
        spark: The session.
        out: The output folder.
        paths: Paths of its files below the output folder.
        name: Name of the table.
    """
    columns = columns_with_day(name)
    reader = spark.read.schema(ddl(columns)).option("basePath", out.at(place(name)))
    return reader.parquet(*(out.at(path) for path in paths)).select(*columns)
