"""The table of stored fields agrees with tasks, their rows and the table in SQL."""

from dataclasses import fields

import pytest

from freshq.model.fields import FIELDS, NEVER, without_missing
from freshq.model.task import Task, TaskStatus
from freshq.policy.shedding import ShedReason
from freshq.stores.sql.rows import COLUMNS, PUT_COLUMNS, row_of, task_of
from freshq.stores.sql.schema import schema

# Every field has a value of its own.
TASK = Task(
    task_id="id",
    queue="queue",
    status=TaskStatus.SHED,
    created=1.5,
    updated=2.5,
    deadline=3.5,
    expires=4,
    request_token="0" * 32,
    payload={"work": 5},
    priority=6,
    group="group",
    attempts=7,
    not_before=8.5,
    lease_token="lease",
    lease_until=9.5,
    error="error",
    result={"result": 10},
    shed_reason=ShedReason.CODEL,
    put_at=11.5,
    first_due=12.5,
    kind="kind",
    first_claim_at=13.5,
    last_claim_at=14.5,
    dead_at=15.5,
    progress_fraction=0.25,
    progress_step="step",
    trace_context="trace",
    value=2.5,
    decay="linear",
    cost=700.0,
    line_class="83zl",
    parent_id="parent",
    root_id="root",
    attempt_record="[]",
    successor_record="{}",
)


def test_every_field_of_a_task_is_in_the_table() -> None:
    assert {field.field for field in FIELDS} == {each.name for each in fields(Task)} - {"version"}


def test_no_name_stands_for_two_fields() -> None:
    for names in ([field.column for field in FIELDS], [field.name for field in FIELDS]):
        assert len(set(names)) == len(FIELDS)


def test_a_put_sets_every_column() -> None:
    assert set(PUT_COLUMNS) == set(schema("tasks", "sqlite").tasks.c.keys())


def test_a_row_has_every_field_of_its_task() -> None:
    row = row_of(TASK)
    assert task_of([row[column] for column in COLUMNS]) == TASK


@pytest.mark.parametrize("field", [field.field for field in FIELDS])
def test_the_task_of_these_tests_has_every_field(field: str) -> None:
    assert getattr(TASK, field) is not None


def test_an_event_lacks_what_its_task_lacks_and_the_deadline_of_one_that_is_never_stale() -> None:
    assert without_missing({"kind": None, "attempts": 0, "deadline_ms": 5_000}) == {
        "attempts": 0,
        "deadline_ms": 5_000,
    }
    assert without_missing({"deadline_ms": 1000 * NEVER}) == {}
    assert without_missing({"deadline_ms": 1000 * NEVER - 1}) == {"deadline_ms": 1000 * NEVER - 1}
