"""The contract of the tables, for validators, and as a source of dbt.

`contract.odcs.yaml` is its only text: names, types, units, nullability, keys, and how the tables change.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

import yaml

from freshq_pipeline.errors import BadInput
from freshq_pipeline.schemas import TABLES
from freshq_pipeline.storage.state import required_current
from freshq_pipeline.storage.table_files import PUBLISHED, paths_of

if TYPE_CHECKING:
    from freshq_pipeline.storage.folder import Folder


_FILE: Final = "contract.odcs.yaml"
# The name of the source in dbt, and the default namespace of the tables in a catalog.
_SOURCE: Final = "freshq"
_WIDTH: Final = 110


def contract_text() -> str:
    """Return the contract as it ships."""
    return files(__package__).joinpath(_FILE).read_text("utf-8")


def contract() -> dict[str, Any]:
    """Return the contract, in the Open Data Contract Standard."""
    parsed: dict[str, Any] = yaml.safe_load(contract_text())
    return parsed


def contract_of(out: Folder) -> str:
    """Return the contract with the place of the tables of an output folder, as YAML.

    Raises:
        BadInput: If the folder has no tables that a pattern finds.
    """
    names, pattern = _tables_in(out)
    server = {"server": "out", "type": "local", "path": pattern.format("{model}"), "format": "parquet"}
    found = contract()
    tables = [table for table in found.pop("schema") if table["name"] in names]
    return _as_yaml(found | {"servers": [server], "schema": tables})


def dbt_source(out: Folder | None) -> str:
    """Return the tables as a source of dbt, as YAML.

    Args:
        out: Output folder with the tables, which dbt-duckdb reads; None: tables in a catalog.

    Raises:
        BadInput: If the folder has no tables that a pattern finds.
    """
    found = contract()
    source = {"name": _SOURCE, "description": found["description"]["purpose"]}
    names = {table["name"] for table in found["schema"]}
    if out is not None:
        names, pattern = _tables_in(out)
        quoted = pattern.format("{name}").replace("'", "''")
        location = f"read_parquet('{quoted}', hive_types_autocast = false)"
        source["config"] = {"meta": {"external_location": location}}
    tables = [_dbt_table(table) for table in found["schema"] if table["name"] in names]
    return _as_yaml({"version": 2, "sources": [source | {"tables": tables}]})


def _dbt_table(table: dict[str, Any]) -> dict[str, Any]:
    columns = [_dbt_column(column) for column in table["properties"]]
    text = f"{table['description']} {table['dataGranularityDescription']}"
    return {"name": table["name"], "description": text, "columns": columns}


def _dbt_column(column: dict[str, Any]) -> dict[str, Any]:
    required = {"data_tests": ["not_null"]} if column.get("required") else {}
    shown = {"description": described(column), "data_type": column["physicalType"]}
    return {"name": column["name"]} | shown | required


def described(column: dict[str, Any]) -> str:
    """Return the description of a column of the contract, with its unit."""
    text: str = column["description"]
    units = [one["value"] for one in column.get("customProperties", []) if one["property"] == "unit"]
    return f"{text} Unit: {units[0]}." if units else text


def _tables_in(out: Folder) -> tuple[set[str], str]:
    """Return the names of the tables with files, and a pattern for their files with a place for the name.

    The pattern finds the files of the current run at the time of reading. Tables without rows may have none.

    Raises:
        BadInput: If there is no run, or no pattern finds the files of one run.
    """
    tables = required_current(out).tables
    names = {name for name in TABLES if paths_of(tables, name)}
    folder = out.on_disk(PUBLISHED)
    if folder is None or not all((folder / name).is_dir() for name in names):
        msg = f"out: {out.uri} has no links to its tables; leave out --out, and read the tables by a catalog"
        raise BadInput(msg)
    return names, f"{folder}/{{}}/**/*.parquet"


def _as_yaml(value: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=_WIDTH)
    return text
