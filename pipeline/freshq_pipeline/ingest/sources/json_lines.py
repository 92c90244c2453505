"""Lines of text, and the records in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

# Between two records without a delimiter. Inside a JSON text a quotation mark is escaped, so that this
# cannot be part of a value.
BOUNDARY: Final = r'(?<=\})\s*(?=\{\s*"[A-Za-z])'
CORRUPT: Final = {"columnNameOfCorruptRecord": "_broken"}


def read_lines(spark: SparkSession, files: Sequence[str], *, salvage: bool = False) -> DataFrame:
    """Return the lines of files with the file each is from.

    Args:
        spark: The session.
        files: Which.
        salvage: Whether to keep what can be read of a truncated file instead of failing.
    """
    reader = spark.read.option("ignoreCorruptFiles", str(salvage).lower())
    return reader.text(list(files)).select("value", _file())


def files_with_crowded_lines(spark: SparkSession, files: Sequence[str]) -> list[str]:
    """Return the files in which some line holds several records, or may do so.

    To look for two braces is much cheaper than to take every line for several records.
    """
    # The file is named only where it matters: beside every line that would take as long as the look.
    crowded = spark.read.text(list(files)).where(_several()).select(_file()).distinct()
    return sorted(row["file"] for row in crowded.collect())


def _file() -> Column:
    return F.col("_metadata.file_path").alias("file")


def _several() -> Column:
    return F.col("value").contains("}{") | F.col("value").contains("} {")


def records(lines: DataFrame) -> DataFrame:
    """Return a row for each record of non-empty lines, also of those that hold several.

    Firehose puts no delimiter between records unless it is told to, and Spark reads the first JSON
    object of a line and forgets the rest.
    """
    parts = F.when(_several(), F.split("value", BOUNDARY)).otherwise(F.array("value"))
    kept = [name for name in lines.columns if name != "value"]
    return lines.where(F.trim("value") != "").select(*kept, F.explode(parts).alias("value"))


def parsed(lines: DataFrame, schema: str) -> DataFrame:
    """Return the records parsed into `r`; `r._broken` is what could not be parsed."""
    kept = [name for name in lines.columns if name != "value"]
    return records(lines).select(*kept, F.from_json("value", schema, CORRUPT).alias("r"), "value")


def read_records(spark: SparkSession, files: Sequence[str], schema: str) -> DataFrame:
    """Return the records of files with one in each line, as `parsed` does, but for their text.

    Spark's own reader of JSON parses the bytes of a file as they come, which takes half as long as to
    make text of them first.
    """
    reader = spark.read.schema(schema).options(**CORRUPT)
    rows = reader.json(list(files))
    return rows.select(_file(), F.struct(*rows.columns).alias("r"))


def micros(milliseconds: Column) -> Column:
    """Return milliseconds as whole microseconds."""
    # Adding a half and cutting is exact for the times of some centuries, and faster than round().
    return F.floor(milliseconds * 1000 + 0.5).cast("bigint")
