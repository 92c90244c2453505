"""The test vectors of docs/wire.md: what a put stores, for programs that write it themselves.

python -m tests.support.wire    # writes docs/reference/wire.json
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from freshq import Task
from freshq.model.lifecycle import Lifecycle
from freshq.model.new_task import parse_new_task
from freshq.model.options import parse_options
from freshq.stores.dynamodb.items import CONTROL_PREFIX, Keyspace, encode, has_record, milliseconds
from freshq.stores.dynamodb.line_records import line_record
from freshq.stores.dynamodb.schema import Names, key_prefix
from freshq.stores.lines import Line
from freshq.stores.sql.rows import row_of

FILE: Final = Path(__file__).parents[2] / "docs" / "reference" / "wire.json"
NOW: Final = 1_780_000_000.123456
TRACEPARENT: Final = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
# What a vector shows, the name and the options of its queue, and the arguments of the put.
PUTS: Final[tuple[tuple[str, str, dict[str, Any], dict[str, Any]], ...]] = (
    ("the defaults", "default", {}, {"payload": {"to": "a@b", "urgent": True}}),
    (
        "every argument",
        "mail",
        {},
        {
            "payload": [1, None],
            "task_id": "order-7",
            "priority": 5,
            "max_age_seconds": 60,
            "kind": "mail",
            "group": "acme",
            "value": 2.5,
            "decay": "linear",
            "cost": 700.5,
            "trace_context": f"{TRACEPARENT} vendor=1",
        },
    ),
    ("a priority", "default", {}, {"payload": 1, "task_id": "a", "priority": 9}),
    (
        "a delay",
        "default",
        {},
        {"payload": "later", "task_id": "b", "delay_seconds": 30, "max_age_seconds": 5},
    ),
    ("a time in the past", "default", {}, {"payload": "late", "task_id": "c", "at": NOW - 10}),
    ("stale before it is put", "default", {}, {"payload": "old", "task_id": "d", "at": 0}),
    (
        "no max age",
        "patient",
        {"max_age_seconds": None, "retention_seconds": 10.5},
        {"payload": "", "task_id": "e"},
    ),
    (
        "the order by value",
        "dear",
        {"order": "value"},
        {"payload": 1, "task_id": "f", "value": 1000, "group": "acme"},
    ),
    ("the order by value, without one", "dear", {"order": "value"}, {"payload": 1, "task_id": "g"}),
    (
        "the order by deadline",
        "urgent",
        {"order": "deadline"},
        {"payload": 1, "task_id": "h", "max_age_seconds": 0.5},
    ),
    ("a group with a control character", "default", {}, {"payload": 1, "task_id": "i", "group": "\x01b"}),
    ("characters beyond ASCII", "default", {}, {"payload": 'é\0\n"😀', "task_id": "ü/#", "group": "日本"}),
)


def task_of(place: int) -> Task:
    """Return the task of a vector."""
    _says, queue, options, arguments = PUTS[place]
    life = Lifecycle(parse_options({"name": queue, **options}))  # type: ignore[typeddict-item]
    task = life.created(parse_new_task(arguments), NOW, NOW)
    task_id = arguments.get("task_id", "1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd4bed")
    return replace(task, task_id=task_id, request_token=f"{place:032x}")


def vector(place: int) -> dict[str, Any]:
    """Return a vector."""
    says, queue, options, arguments = PUTS[place]
    task = task_of(place)
    row = {name: value for name, value in row_of(task).items() if value is not None}
    item = Names(key_prefix=key_prefix(queue)).to_table(encode(task, Keyspace(1)))
    return {
        "says": says,
        "queue": queue,
        "options": options,
        "arguments": arguments,
        "now_us": round(NOW * 1e6),
        "task_id": task.task_id,
        "token": task.request_token,
        "row": row,
        "item": item,
        "before": before(task) if "pendingShard" in item else [],
    }


def before(task: Task) -> list[dict[str, Any]]:
    """Return the calls of DynamoDB that make claims look for the task, by name and arguments."""
    line = Line.of(task)
    control: dict[str, Any] = {"Key": {"taskId": {"S": CONTROL_PREFIX + task.queue}}}
    token = {":requestToken": {"S": task.request_token}}
    if not has_record(line):
        if not line.level:
            return []
        control["UpdateExpression"] = "SET requestToken = :requestToken ADD #levels :levels"
        control["ExpressionAttributeNames"] = {"#levels": "levels"}
        control["ExpressionAttributeValues"] = {":levels": {"NS": [str(line.level)]}, **token}
        return [{"update_item": control}]
    control["UpdateExpression"] = "SET grouped = :grouped, requestToken = :requestToken"
    control["ExpressionAttributeValues"] = {":grouped": {"BOOL": True}, **token}
    record = line_record(task.queue, line, NOW, task.stale_at)
    record |= {"dueAt": milliseconds(NOW), "requestToken": token[":requestToken"]}
    return [{"update_item": control}, {"put_item": {"Item": record}}]


def text() -> str:
    """Return the file."""
    return json.dumps([vector(place) for place in range(len(PUTS))], indent=1, ensure_ascii=True) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), "utf-8")
