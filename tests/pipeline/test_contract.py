"""The contract of the tables says what the code makes, in a form that validators and dbt read."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from jsonschema import Draft201909Validator

from freshq_pipeline.errors import BAD_INPUT_STATUS
from freshq_pipeline.report.contract import contract, contract_text, dbt_source, described
from freshq_pipeline.schemas import BY_DAY, OUTCOMES, TABLES
from tests.pipeline.conftest import Pipeline, query
from tests.pipeline.recording import small, write_lines
from tests.pipeline.test_chains import recorded
from tests.pipeline.wandering import wandering

COMMAND: Final = Path(sys.executable).parent / "freshq-pipeline"
# The schema of the standard, github.com/bitol-io/open-data-contract-standard (Apache License 2.0).
STANDARD: Final = Path(__file__).with_name("odcs-v3.1.0.schema.json")
LOGICAL: Final = {"string": "string", "int": "integer", "bigint": "integer", "double": "number"}
LOGICAL_TYPES: Final = LOGICAL | {"boolean": "boolean"}
TABLES_OF_CONTRACT: Final = {table["name"]: table for table in contract()["schema"]}
# Units by the end of a name.
UNITS: Final = {
    "_ms": "milliseconds since 1970-01-01T00:00:00Z",
    "_seconds": "seconds",
    "_share": "part of 1",
    "jain_index": "part of 1",
    "jain_index_of_demand": "part of 1",
}


def columns_in_code(name: str) -> dict[str, str]:
    """Return the columns of a table with their types, with the columns that name folders."""
    return TABLES[name] | ({"day": "string"} if name in BY_DAY else {})


def key(table: dict[str, Any]) -> list[str]:
    """Return the columns that no two rows have in common."""
    for check in table.get("quality", []):
        assert (check["metric"], check["mustBe"]) == ("duplicateValues", 0)
        return list(check["arguments"]["properties"])
    return []


def physical(column: dict[str, Any]) -> str:
    """Return the type of a column, from its elements if it has any."""
    if column["logicalType"] != "array":
        return str(column["physicalType"])
    item = column["items"]
    if item["logicalType"] != "object":
        return f"array<{physical(item)}>"
    fields = ",".join(f"{one['name']}:{physical(one)}" for one in item["properties"])
    return f"array<struct<{fields}>>"


def test_it_follows_the_standard() -> None:
    schema = json.loads(STANDARD.read_text("utf-8"))
    validator = Draft201909Validator(schema)
    assert [error.message for error in validator.iter_errors(contract())] == []
    wrong = contract() | {"schema": [{"name": "tasks", "colour": "red"}]}
    assert list(validator.iter_errors(wrong))


def test_it_has_the_tables_and_columns_of_the_code_and_no_others() -> None:
    assert list(TABLES_OF_CONTRACT) == list(TABLES)
    for name, table in TABLES_OF_CONTRACT.items():
        found = {column["name"]: column["physicalType"] for column in table["properties"]}
        assert found == columns_in_code(name), name
        assert len(found) == len(table["properties"])


@pytest.mark.parametrize("name", TABLES)
def test_each_column_has_a_type_a_unit_and_a_description(name: str) -> None:
    for column in TABLES_OF_CONTRACT[name]["properties"]:
        kind = column["physicalType"]
        assert column["logicalType"] == LOGICAL_TYPES.get(kind, "array")
        assert physical(column) == kind
        for one in (column, *column.get("items", {}).get("properties", [])):
            assert one["description"].endswith((".", "`."))
            unit = next((unit for end, unit in UNITS.items() if one["name"].endswith(end)), None)
            assert unit is None or described(one).endswith(f" Unit: {unit}."), one["name"]
        partition = (column.get("partitioned"), column.get("partitionKeyPosition"))
        folders = ("day", "queue") if name in BY_DAY else ()
        place = folders.index(column["name"]) + 1 if column["name"] in folders else None
        assert partition == (None if place is None else True, place)
    outcomes = {"tasks": [*OUTCOMES], "chains": [one for one in OUTCOMES if one != "taken"]}
    for column in TABLES_OF_CONTRACT[name]["properties"]:
        if column["name"] == "outcome":
            assert column["quality"][0]["arguments"]["validValues"] == outcomes[name]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["small", "wandering", "chains"])
def test_tables_keep_it(kind: str, pipeline: Pipeline, tmp_path: Path) -> None:
    chains = kind == "chains"
    tape = small() if kind == "small" else wandering(200, 1)
    write_lines(tmp_path / "in/a.json", recorded(1)[0] if chains else tape.landed())
    pipeline(tmp_path / "in", tmp_path / "out")
    made = {path.name for path in (tmp_path / "out/tables").iterdir() if path.is_dir()}
    assert made == (TABLES.keys() if chains else TABLES.keys() - {"chains"})
    for name in made:
        table = TABLES_OF_CONTRACT[name]
        files = f"{tmp_path}/out/tables/{name}/**/*.parquet"
        rows = query(f"from read_parquet('{files}', hive_types_autocast = false)")
        required = [column["name"] for column in table["properties"] if column.get("required")]
        nulls = {column for row in rows for column in required if row[column] is None}
        assert nulls == set(), name
        keys = Counter(tuple(row[column] for column in key(table)) for row in rows)
        assert not key(table) or set(keys.values()) <= {1}, name
        assert rows == [] or set(rows[0]) == set(columns_in_code(name))


def print_contract(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(COMMAND), "contract", *options], check=False, capture_output=True, text=True)


@pytest.mark.timeout(600)
def test_the_command_prints_it_for_validators_and_for_dbt(pipeline: Pipeline, tmp_path: Path) -> None:
    assert print_contract().stdout == contract_text()
    write_lines(tmp_path / "in/a.json", small().landed())
    out = tmp_path / "it's out"
    pipeline(tmp_path / "in", out)
    printed = yaml.safe_load(print_contract("--out", str(out)).stdout)
    (server,) = printed["servers"]
    assert list(Draft201909Validator(json.loads(STANDARD.read_text("utf-8"))).iter_errors(printed)) == []
    # Without chains, there are no files of them.
    assert [table["name"] for table in printed["schema"]] == [name for name in TABLES if name != "chains"]
    (source,) = yaml.safe_load(print_contract("--out", str(out), "--dbt").stdout)["sources"]
    location = source["config"]["meta"]["external_location"]
    for table in source["tables"]:
        # As dbt-duckdb reads it, and as a validator does.
        found = query(f"from {location.format(name=table['name'])}")
        assert all(set(row) == {column["name"] for column in table["columns"]} for row in found)
        files = server["path"].format(model=table["name"]).replace("'", "''")
        assert len(query(f"from '{files}'")) == len(found)
    tasks = source["tables"][0]["columns"][0]
    assert tasks == {
        "name": "task_id", "description": "Id of the task, unique within its queue and life.",
        "data_type": "string", "data_tests": ["not_null"],
    }  # fmt: skip
    everything = yaml.safe_load(dbt_source(None))["sources"][0]
    assert [table["name"] for table in everything["tables"]] == list(TABLES)
    assert "config" not in everything


def test_a_folder_without_tables_is_refused(tmp_path: Path) -> None:
    done = print_contract("--out", str(tmp_path / "none"))
    assert (done.returncode, done.stdout) == (BAD_INPUT_STATUS, "")
    assert done.stderr == f"freshq-pipeline: out: {tmp_path / 'none'} has no run; run the pipeline first\n"
    assert not (tmp_path / "none").exists()
