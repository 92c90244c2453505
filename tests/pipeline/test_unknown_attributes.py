"""Attributes of an application are counted by name, and their values are not kept."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from freshq import Queue
from freshq.stores.dynamodb.items import Keyspace, encode, mutable_attributes
from freshq_pipeline.ingest.silver import MAX_UNKNOWN_FIELDS, most_frequent
from freshq_pipeline.ingest.sources import OWN, canonical_files
from freshq_pipeline.schemas import Format
from tests.pipeline.recording import Recording, small, write_lines

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.pipeline.conftest import Pipeline

MORE: dict[str, Any] = {"customer": {"S": "secret"}, "tags": {"L": [{"S": "x"}]}, "gone": {"NULL": True}}


def lines_of(tape: Recording, form: Format) -> list[Any]:
    if form is Format.EXPORT:
        return [{"Item": item} for item in tape.items.values()]
    return tape.kinesis() if form is Format.KINESIS else tape.records


def with_attributes() -> Recording:
    """Return a task that has attributes of the application when it is claimed, and one without."""
    tape = Recording()
    tape.put(0, "a")
    tape.items["a"] = tape.items["a"] | MORE
    tape.take(1, "a")
    tape.put(2, "b")
    return tape


@pytest.mark.parametrize("form", [Format.STREAMS, Format.KINESIS, Format.EXPORT])
@pytest.mark.parametrize("scan", [True, False])
def test_names_are_kept_without_values(form: Format, scan: bool, spark: SparkSession, tmp_path: Path) -> None:
    lines = lines_of(with_attributes(), form)
    write_lines(tmp_path / "a.json", lines)
    events = canonical_files(spark, [str(tmp_path / "a.json")], form, scan=scan)
    rows = events.select("task_id", "status", "problem", "unknown_fields").collect()
    assert [row["problem"] for row in rows] == [None] * len(lines)
    assert "secret" not in str(rows)
    found = {(row["task_id"], row["status"]): row["unknown_fields"] for row in rows}
    assert found.pop(("b", "PENDING")) is None
    assert found[("a", "TAKEN")] == dict.fromkeys(MORE)


def test_names_are_counted(pipeline: Pipeline, tmp_path: Path) -> None:
    tape = with_attributes()
    write_lines(tmp_path / "in/a.json", tape.records)
    summary = pipeline(tmp_path / "in", tmp_path / "out", Format.STREAMS)
    assert (summary["events_with_unknown_fields"], summary["events_distinct"]) == (1, 3)
    assert summary["unknown_fields"] == dict.fromkeys(MORE, 1)
    assert summary["other_unknown_fields"] == 0
    assert "secret" not in json.dumps(summary)
    silver = b"".join(path.read_bytes() for path in (tmp_path / "out/silver").rglob("*.parquet"))
    assert b"customer" in silver
    assert b"secret" not in silver


def test_names_beyond_the_limit_are_counted_together(pipeline: Pipeline, tmp_path: Path) -> None:
    rare = {f"rare {number}": number for number in range(MAX_UNKNOWN_FIELDS + 20)}
    events = [event | {"common": 1} for event in small().landed()[:3]]
    write_lines(tmp_path / "in/1.json", [events[0] | rare, *events[1:]])
    first = pipeline(tmp_path / "in", tmp_path / "out")
    assert len(first["unknown_fields"]) == MAX_UNKNOWN_FIELDS
    assert (first["unknown_fields"]["common"], first["other_unknown_fields"]) == (3, 21)
    more = small().landed()[3] | {f"new {number}": number for number in range(30)}
    write_lines(tmp_path / "in/2.json", [more])
    second = pipeline(tmp_path / "in", tmp_path / "out")
    assert len(second["unknown_fields"]) == MAX_UNKNOWN_FIELDS
    assert (second["unknown_fields"]["common"], second["other_unknown_fields"]) == (3, 21 + 30)


def test_the_most_frequent_names_are_kept() -> None:
    counts = {f"{number:03}": number // 2 for number in range(MAX_UNKNOWN_FIELDS + 3)}
    kept, others = most_frequent(counts)
    assert set(counts) - set(kept) == {"000", "001", "003"}
    assert others == 0 + 0 + 1
    assert most_frequent({"a": 1}) == ({"a": 1}, 0)


def test_the_attributes_of_a_task_are_known() -> None:
    queue = Queue.memory()
    task = queue.get(queue.put({"any": "work"}, group="red", kind="mail").task_id)
    assert task is not None
    task, keyspace = replace(task, trace_context="00-1"), Keyspace(1)
    assert set(OWN) == set(mutable_attributes(task, keyspace)) | set(encode(task, keyspace))
