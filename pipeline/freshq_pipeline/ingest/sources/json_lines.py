"""Files of JSON lines, and the records in them."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

# The boundary of two records without a delimiter. Quotation marks inside JSON strings are escaped, so it
# cannot match within a value.
BOUNDARY: Final = r'(?<=\})\s*(?=\{\s*"[A-Za-z])'
CORRUPT: Final = {"columnNameOfCorruptRecord": "_broken"}


def read_lines(spark: SparkSession, files: Sequence[str]) -> DataFrame:
    """Return the lines of files, each with the name of its file."""
    return spark.read.text(list(files)).select("value", _file())


def irregular_files(spark: SparkSession, files: Sequence[str], unknown_name: str | None) -> list[str]:
    """Return the files in which some line may hold several records, no object, or one with unknown fields.

    Searching for adjacent braces and for names is much cheaper than splitting and parsing every line.

    Args:
        spark: The session.
        files: Addresses of the files.
        unknown_name: Pattern of the names of unknown fields; None if they do not matter.
    """
    # Of an array Spark's reader makes a record for each element, and it skips lines of whitespace. Line by
    # line, each of these is one unusable record, unless it is empty.
    irregular = _several() | ~F.col("value").startswith("{")
    if unknown_name is not None:
        irregular |= F.col("value").rlike(unknown_name)
    # Adding the file name to the matching lines only halves the time.
    found = spark.read.text(list(files)).where(irregular).select(_file()).distinct()
    return sorted(row["file"] for row in found.collect())


def _file() -> Column:
    return F.col("_metadata.file_path").alias("file")


def _several() -> Column:
    return F.col("value").contains("}{") | F.col("value").contains("} {")


def one_of(names: Iterable[str]) -> str:
    """Return a pattern of some names, which compares each character only once."""
    by_first = groupby(sorted(names), key=lambda name: name[:1])
    parts = [first + one_of(name[1:] for name in same) if first else "" for first, same in by_first]
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"


def records(lines: DataFrame) -> DataFrame:
    """Return a row for each record of each line, without empty lines.

    By default Firehose puts no delimiter between records; Spark reads only the first JSON object of a line.
    """
    parts = F.when(_several(), F.split("value", BOUNDARY)).otherwise(F.array("value"))
    kept = [name for name in lines.columns if name != "value"]
    return lines.where(F.trim("value") != "").select(*kept, F.explode(parts).alias("value"))


def parsed(lines: DataFrame, schema: str) -> DataFrame:
    """Return the records parsed into `r`; `r._broken` has the text of a record that is not valid JSON."""
    kept = [name for name in lines.columns if name != "value"]
    return records(lines).select(*kept, F.from_json("value", schema, CORRUPT).alias("r"), "value")


def read_records(spark: SparkSession, files: Sequence[str], schema: str) -> DataFrame:
    """Return the records of files with one record per line, as `parsed` does but without `value`.

    Spark's JSON reader parses bytes, which takes half as long as decoding them to text first.
    """
    reader = spark.read.schema(schema).options(**CORRUPT)
    rows = reader.json(list(files))
    return rows.select(_file(), F.struct(*rows.columns).alias("r"))


def micros(milliseconds: Column) -> Column:
    """Return milliseconds as whole microseconds."""
    # Adding a half and rounding down is exact for times within centuries of now, and faster than round().
    return F.floor(milliseconds * 1000 + 0.5).cast("bigint")
