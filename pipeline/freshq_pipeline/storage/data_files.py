"""Describe the tables and their files to Apache Iceberg.

Spark does not write the columns that name subfolders into the files. Iceberg takes their values from the
description of each file, which names its partition.
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
# Hive's folder for rows whose value is null.
_NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"
# Iceberg numbers partition fields from here.
_FIRST_PARTITION_FIELD: Final = 1000
# Threads that read the footers of files; in a bucket each footer is a request.
_READERS: Final = 8


def schema_of(table: str) -> Schema:
    """Return the schema of a table, including the columns that name its subfolders."""
    return assign_fresh_schema_ids(Schema(*_fields(columns_with_day(table).items())))


def partitions_of(table: str, schema: Schema) -> PartitionSpec:
    """Return the partitioning of a table's files."""
    names = FOLDERS if table in BY_DAY else ()
    return PartitionSpec(
        *(
            PartitionField(schema.find_field(name).field_id, number, IdentityTransform(), name)
            for number, name in enumerate(names, _FIRST_PARTITION_FIELD)
        )
    )


def data_files(io: FileIO, metadata: TableMetadata, addresses: Iterable[str]) -> list[DataFile]:
    """Describe Parquet files, with the statistics in their footers.

    Args:
        io: Reads files.
        metadata: Metadata of the table.
        addresses: Addresses of the files.
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
    """Return the value of a column from the name of its subfolder."""
    start = f"{column}="
    value = next(folder for folder in reversed(address.split("/")) if folder.startswith(start))
    value = value.removeprefix(start)
    return None if value == _NO_VALUE else unquote(value)


def _fields(columns: Iterable[tuple[str, str]]) -> list[NestedField]:
    # `assign_fresh_schema_ids` replaces these ids, and also numbers nested fields.
    return [NestedField(0, name, _type(kind), required=False) for name, kind in columns]


def _type(kind: str) -> IcebergType:
    """Return the Iceberg type of a column type of `schemas.py`, where only the outermost type is a list."""
    outer, bracket, inner = kind.removesuffix(">").partition("<")
    if not bracket:
        return _TYPES[kind]
    if outer == "array":
        return ListType(element_id=0, element=_type(inner), element_required=False)
    fields = (field.split(":") for field in inner.split(","))
    return StructType(*_fields((name, of) for name, of in fields))
