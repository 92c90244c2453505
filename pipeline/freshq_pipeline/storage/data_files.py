"""The tables and their files as Apache Iceberg describes them.

Spark leaves the columns that name folders out of the files. Iceberg has their values from the description of
each file, which says to which partition it belongs.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BooleanType,
    DoubleType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
)

from freshq_pipeline.schemas import BY_DAY
from freshq_pipeline.storage.table_files import FOLDERS, columns_with_day

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyiceberg.io import FileIO
    from pyiceberg.table.metadata import TableMetadata

_TYPES: Final[dict[str, IcebergType]] = {
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
}
# The folder of rows without a value.
_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
# Iceberg's numbers of partition fields begin here.
_FIRST_PARTITION_FIELD: Final = 1000
# Footers of files are read by so many threads: in a bucket each is a request.
_READERS: Final = 8


def schema_of(table: str) -> Schema:
    """Return the schema of a table, with the columns that name its folders."""
    return assign_fresh_schema_ids(Schema(*_fields(columns_with_day(table).items())))


def partitions_of(table: str, schema: Schema) -> PartitionSpec:
    """Return by which columns the files of a table are in folders."""
    names = FOLDERS if table in BY_DAY else ()
    return PartitionSpec(
        *(
            PartitionField(schema.find_field(name).field_id, number, IdentityTransform(), name)
            for number, name in enumerate(names, _FIRST_PARTITION_FIELD)
        )
    )


def data_files(io: FileIO, metadata: TableMetadata, addresses: Iterable[str]) -> list[DataFile]:
    """Return the descriptions of Parquet files, with what their footers say about the columns.

    Args:
        io: Reads files.
        metadata: Of the table.
        addresses: Where the files are.
    """
    with ThreadPoolExecutor(_READERS) as pool:
        return list(pool.map(lambda address: _data_file(io, metadata, address), addresses))


def _data_file(io: FileIO, metadata: TableMetadata, address: str) -> DataFile:
    file = io.new_input(address)
    with file.open() as stream:
        footer = pq.read_metadata(stream)
    schema = metadata.schema()
    figures = data_file_statistics_from_parquet_metadata(
        parquet_metadata=footer,
        stats_columns=compute_statistics_plan(schema, metadata.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(schema),
    )
    spec = metadata.spec()
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=address,
        file_format=FileFormat.PARQUET,
        partition=Record(*(_value_in(address, field.name) for field in spec.fields)),
        spec_id=spec.spec_id,
        file_size_in_bytes=len(file),
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
        **figures.to_serialized_dict(),
    )


def _value_in(address: str, column: str) -> str | None:
    """Return the value of a column from the folder that names it."""
    start = f"{column}="
    value = next(folder for folder in reversed(address.split("/")) if folder.startswith(start))
    value = value.removeprefix(start)
    return None if value == _NO_VALUE else unquote(value)


def _fields(columns: Iterable[tuple[str, str]]) -> list[NestedField]:
    # Their numbers are given afterwards, together with those of nested fields.
    return [NestedField(0, name, _type(kind), required=False) for name, kind in columns]


def _type(kind: str) -> IcebergType:
    """Return the type of a column of `schemas.py`, where lists are the outermost type."""
    outer, bracket, inner = kind.removesuffix(">").partition("<")
    if not bracket:
        return _TYPES[kind]
    if outer == "array":
        return ListType(element_id=0, element=_type(inner), element_required=False)
    fields = (field.split(":") for field in inner.split(","))
    return StructType(*_fields((name, of) for name, of in fields))
