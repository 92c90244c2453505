"""The JSON that each command on a queue prints with `--json`: run here, described as a JSON Schema.

python -m local.answers    # write docs/reference/answers.json and docs/reference/json.md
"""

from __future__ import annotations

import json
import tempfile
from itertools import chain
from pathlib import Path
from typing import Any, Final

from typer.testing import CliRunner

from freshq import Queue, Worker
from freshq.cli.main import app

PROJECT: Final = Path(__file__).resolve().parent.parent
SCHEMAS: Final = PROJECT / "docs" / "reference" / "answers.json"
PAGE: Final = PROJECT / "docs" / "reference" / "json.md"
# Values of the application, and objects whose names are data.
ANY: Final = frozenset({"payload", "result"})
MAPS: Final = frozenset({"shed_by_reason", "bounded", "ids", "groups", "given"})
# What the names are whose values are null here.
NUMBERS: Final = frozenset(
    {"progress_fraction", "oldest_snapshot_seconds", "dead_rows", "retry_after_seconds"}
    | {"service_seconds", "wanted_servers", "not_before", "lease_until", "dead_at", "first_due"}
    | {"weight", "max_running", "rate_per_second", "oldest_dead_seconds"}
)
TASK: Final = {"$ref": "#/$defs/task"}
# Each line is a command; TOKEN stands for the token of the last claim, CAUSE for the last dead letter.
COMMANDS: Final = (
    "put 1 --task-id a --kind mail --group g",
    "put 2 --task-id b --delay-seconds 60",
    "put --lines FILE",
    "get a",
    "get b",
    "get dead",
    "list",
    "list --status FAILURE",
    "peek",
    "stats",
    "pressure",
    "claim",
    "get TASK",
    "extend TASK --token TOKEN",
    "complete TASK --token TOKEN --result 1",
    "get TASK",
    "wait TASK",
    "claim",
    "retry TASK --token TOKEN --error busy",
    "claim",
    "release TASK --token TOKEN",
    "claim",
    "fail TASK --token TOKEN --error no",
    "list --top --status FAILURE",
    "redrive TASK",
    "reprioritize b --priority 3",
    "cancel b",
    "put 7 --task-id c",
    "put 8 --task-id d",
    "cancel c d --yes",
    "pause",
    "resume",
    "configure",
    "configure --max-attempts 4",
    "group ls",
    "group set g --weight 2",
    "group ls",
    "recover",
    "doctor",
    "audit",
    "forget --group g --yes",
    "purge --yes",
)
INTRODUCTION: Final = """# JSON of the commands

<!-- made by python -m local.answers -->

What the commands on a queue print with `--json`, one value, or for `wait` one a line.
[answers.json](answers.json) has a JSON Schema for each; a test runs the commands and compares. Names may be
added, and none is removed or changes its type in a minor version. `?` marks what may be missing or null.
Times are in seconds since the epoch, unless they are text. `freshq work` prints
[events](../worker.md#output) instead.

| command | value |
| --- | --- |
"""


def merged(values: list[Any], tasks: list[Any], name: str = "") -> dict[str, Any]:
    """Return the schema that fits some values.

    Args:
        values: The values.
        tasks: Takes the tasks among them, whose schema is one.
        name: Their name in an object; empty for a whole answer.
    """
    objects = [value for value in values if isinstance(value, dict)]
    if objects and "attempt_log" in objects[0] and name != "task":
        tasks += objects
        return TASK
    if name in ANY:
        return {}
    schema: dict[str, Any] = {"type": _types_of(values, name)}
    if objects:
        schema |= _of_names(objects, tasks, name)
    return schema | _of_items([value for value in values if isinstance(value, list)], tasks)


def _of_items(lists: list[list[Any]], tasks: list[Any]) -> dict[str, Any]:
    items = list(chain.from_iterable(lists))
    return {"items": merged(items, tasks)} if items else {}


def _types_of(values: list[Any], name: str) -> str | list[str]:
    types = {_type(value) for value in values} | ({"number", "null"} if name in NUMBERS else set())
    if types == {"null"}:
        types.add("string")
    found = sorted(types - {"integer"} if "number" in types else types)
    return found[0] if len(found) == 1 else found


def _of_names(objects: list[dict[str, Any]], tasks: list[Any], name: str) -> dict[str, Any]:
    """Return what a schema says of the names in objects, or of their values if the names are data."""
    if name in MAPS:
        inner = list(chain.from_iterable(each.values() for each in objects))
        return {"additionalProperties": merged(inner, tasks) if inner else {}}
    names = list(dict.fromkeys(chain.from_iterable(objects)))
    given = {key: [each[key] for each in objects if key in each] for key in names}
    return {
        "properties": {key: merged(values, tasks, key) for key, values in given.items()},
        "required": [key for key, values in given.items() if len(values) == len(objects)],
        "additionalProperties": False,
    }


def _type(value: object) -> str:
    if value is None:
        return "null"
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names[type(value)]


def answers() -> dict[str, list[Any]]:
    """Run the commands on a queue in SQLite; return the values that each prints."""
    found: dict[str, list[Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder) / "lines"
        lines.write_text("3\n4\n5\n6\n")
        url = f"sqlite:///{folder}/tasks.db"
        with Queue.sql(url, max_age_seconds=3600, max_attempts=1) as queue:
            queue.create_table()
            queue.put("work", task_id="dead", kind="mail")
            Worker(queue, _fails, idle_exit_seconds=0.05, poll_seconds=0.01).run()
        held: dict[str, str] = {"FILE": str(lines)}
        for line in COMMANDS:
            words = [held.get(word, word) for word in line.split()]
            done = CliRunner().invoke(app, [*words, "--json", "--queue", url])
            if done.exit_code:
                msg = f"{line}: status {done.exit_code}: {done.stderr}"
                raise RuntimeError(msg)
            values = [json.loads(text) for text in done.stdout.splitlines()]
            if line == "claim":
                (claim,) = values[0]["claims"] if "claims" in values[0] else values[0]
                held |= {"TASK": claim["task_id"], "TOKEN": claim["token"]}
            found.setdefault(_name(words), []).extend(values)
    return found


def _fails(_task: object) -> None:
    raise KeyError("ABC")


def _name(words: list[str]) -> str:
    """Return the name of a command, with the flag that changes what it prints."""
    if words[0] == "group":
        return " ".join(words[:2])
    flags = [word for word in words if word in ("--lines", "--top")]
    several = words[0] == "cancel" and "--yes" in words
    return " ".join([words[0], *flags, *(["(several)"] if several else [])])


def schemas() -> dict[str, Any]:
    """Return the schema of each command's answer, by the command."""
    tasks: list[Any] = []
    found = {name: merged(values, tasks) for name, values in sorted(answers().items())}
    return {"$defs": {"task": merged(tasks, [], "task")}, "commands": found}


def shape(schema: dict[str, Any]) -> str:
    """Return a schema as a short text: names of an object, `?` behind those that may be missing or null."""
    kinds = [each for each in _types(schema) if each != "null"]
    if schema == TASK:
        return "task"
    if "object" in kinds:
        names = schema.get("properties", {}).items()
        return f"{{{', '.join(_name_shape(schema, name, inner) for name, inner in names) or '…'}}}"
    if "array" in kinds:
        return f"[{shape(schema['items'])}]" if "items" in schema else "[…]"
    return " or ".join(kinds)


def _name_shape(schema: dict[str, Any], name: str, inner: dict[str, Any]) -> str:
    types = _types(inner)
    mark = "" if name in schema["required"] and "null" not in types else "?"
    has_parts = inner == TASK or "object" in types or "array" in types
    return f"{name}{mark}: {shape(inner)}" if has_parts else f"{name}{mark}"


def _types(schema: dict[str, Any]) -> list[str]:
    types = schema.get("type", [])
    return [types] if isinstance(types, str) else types


def page(found: dict[str, Any]) -> str:
    """Return the page that describes schemas."""
    named = {"task": found["$defs"]["task"], **{f"`{name}`": one for name, one in found["commands"].items()}}
    return INTRODUCTION + "".join(f"| {name} | `{shape(schema)}` |\n" for name, schema in named.items())


if __name__ == "__main__":
    described = schemas()
    SCHEMAS.write_text(json.dumps(described, indent=1) + "\n", "utf-8")
    PAGE.write_text(page(described), "utf-8")
