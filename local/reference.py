"""Write docs/reference from the code: options, names, and the JSON that commands print.

    python -m local.reference options   # the tables of options, and the page of all names
    python -m local.reference json      # answers.json, a JSON Schema of each answer, and json.md

The commands run here, so the schemas describe what they really print with `--json`.
"""

from __future__ import annotations

import inspect
import json
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import fields
from enum import StrEnum
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any, Final, cast
from unittest.mock import patch
from urllib.request import urlopen

import boto3
import typer
from annotated_types import Ge, Gt, Le
from moto import mock_aws
from typer.main import get_command
from typer.testing import CliRunner

from freshq import FreshqError, MatchQueue, Queue, Worker, errors
from freshq.cli.commands import relay
from freshq.cli.main import ALIASES
from freshq.cli.main import app as cli
from freshq.cli.stacks import Stack
from freshq.feeds import Relay, Scheduler
from freshq.matching import MatchAdmin
from freshq.model.options import QueueConfig
from freshq.model.task import MAX_SECONDS
from freshq.policy.groups import GroupRule
from freshq.policy.retry import Backoff
from freshq.policy.rules import ReserveRule
from freshq.queue.admin import Admin
from freshq.queue.attached import Records
from freshq.worker.options import WorkerConfig

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pydantic import BaseModel
    from pydantic.fields import FieldInfo


PROJECT: Final = Path(__file__).resolve().parent.parent
REFERENCE: Final = PROJECT / "docs" / "reference"
OPTION_PAGES: Final[dict[str, type[BaseModel]]] = {"queue.md": QueueConfig, "worker.md": WorkerConfig}
SECTION: Final = re.compile(r"(?<=<!-- made by make options -->\n).*(?=<!-- end -->)", re.DOTALL)
# Code of defaults that are objects; the help texts explain the rest.
WRITTEN: Final[dict[type, str]] = {ReserveRule: "`auto`", Backoff: "`Backoff(1, 300)`"}


def option_page(name: str) -> str:
    """Return a reference page with a new table of options."""
    text = (REFERENCE / name).read_text("utf-8")
    return SECTION.sub(lambda _: f"\n{option_table(OPTION_PAGES[name])}\n\n", text)


def option_table(model: type[BaseModel]) -> str:
    """Return the options of a model as a table in Markdown."""
    rows = [
        f"| `{name}` | {_default(option)} | {_allowed(option)} | {option.description} |"
        for name, option in model.model_fields.items()
    ]
    return "\n".join(["| option | default | allowed | meaning |", "| --- | --- | --- | --- |", *rows])


def _default(option: FieldInfo) -> str:
    value = option.default
    if value is None or isinstance(value, bool):
        return f"`{value}`"
    if isinstance(value, int | float):
        return f"{value:,.15g}"
    return f'`"{value}"`' if isinstance(value, str) else WRITTEN.get(type(value), "")


def _allowed(option: FieldInfo) -> str:
    """Return the bounds of a number, the pattern of a name, or the members of an enumeration."""
    if isinstance(option.annotation, type) and issubclass(option.annotation, StrEnum):
        return ", ".join(f"`{member}`" for member in option.annotation)
    return ", ".join(filter(None, map(_bound, option.metadata)))


def _bound(constraint: Any) -> str:
    match constraint:
        case Gt(gt=least):
            return f"above {least:,}"
        case Ge(ge=least):
            return f"{least:,} or more"
        case Le(le=most):
            # Every time has this bound; it only keeps numbers finite.
            return "" if most == MAX_SECONDS else f"at most {most:,}"
    pattern = getattr(constraint, "pattern", None)
    return f"`{pattern}`" if pattern else ""


SURFACE: Final = REFERENCE / "surface.md"
SURFACE_HEAD: Final = """# All names on one page

Every verb, name, error and command. A command takes the arguments of its verb as flags; `AsyncQueue` and
`AsyncMatchQueue` have the same verbs, awaited.
"""
WIDTH: Final = 110
# The order of a first application; other names follow alphabetically.
FIRST: Final = (
    *("put", "put_many", "claim", "complete", "fail", "retry", "release", "settle_many", "extend", "get"),
    *("list", "peek", "stats", "pressure", "wait", "wait_many", "cancel", "redrive", "purge", "reprioritize"),
    *("register", "offer", "match", "request"),
)
ROOMS: Final = ("policy", "matching", "feeds", "telemetry", "worker", "model", "stores", "queue", "testing")


def signature_line(name: str, function: Any) -> str:
    """Return the names of a verb's arguments and its result, on lines that fit."""
    signature = inspect.signature(function)
    names, is_named = [], False
    for each in [*signature.parameters.values()]:
        if each.name in ("self", "cls"):
            continue
        if each.kind is each.KEYWORD_ONLY and not is_named:
            names.append("*")
            is_named = True
        names.append(f"**{each.name}" if each.kind is each.VAR_KEYWORD else each.name)
    result = "" if signature.return_annotation in ("None", None) else f" -> {signature.return_annotation}"
    return textwrap.fill(f"{name}({', '.join(names)}){result}", WIDTH, subsequent_indent="    ")


def verbs_of(owner: type, name: str = "") -> Iterator[str]:
    """Yield a line for each public method of a class, in the order of a first application."""
    public = [verb for verb in dir(owner) if verb[0] != "_" and callable(getattr(owner, verb))]
    for verb in sorted(public, key=lambda verb: (*FIRST, verb).index(verb)):
        yield signature_line(f"{name}.{verb}" if name else verb, getattr(owner, verb))


def code_block(*lines: str) -> list[str]:
    """Return lines as a block of text."""
    return ["", "```text", *lines, "```"]


def error_lines(base: type[FreshqError] = FreshqError, depth: int = 0) -> Iterator[str]:
    """Yield the tree of errors."""
    yield "    " * depth + base.__name__
    below: list[type[FreshqError]] = base.__subclasses__()
    for error in sorted(below, key=lambda each: each.__name__):
        if error.__name__ in dir(errors):
            yield from error_lines(error, depth + 1)


def names_of(package: str) -> str:
    """Return the public names of a package on lines that fit."""
    names = ", ".join(dir(import_module(package)))
    return textwrap.fill(f"{package}: {names}", WIDTH, subsequent_indent="    ")


def command_lines() -> Iterator[str]:
    """Yield the visible commands by the headings of help, with the commands of a group after its name."""
    app: Any = get_command(cli)
    by_heading: dict[str, list[str]] = {}
    for name, command in app.commands.items():
        if command.hidden:
            continue
        inner = getattr(getattr(command, "loaded", command), "commands", {})
        visible = ", ".join(each for each, found in inner.items() if not found.hidden)
        heading = str(getattr(command, "rich_help_panel", "") or "")
        by_heading.setdefault(heading, []).append(f"{name} ({visible})" if visible else name)
    for heading, names in by_heading.items():
        yield textwrap.fill(f"{heading}: {', '.join(names)}", WIDTH, subsequent_indent="    ")


def surface_page() -> str:
    """Return the page of all names."""
    lines = [SURFACE_HEAD, "## Queue"]
    lines += code_block(*verbs_of(Queue), *verbs_of(Admin, "admin"), *verbs_of(Records, "records"))
    lines += ["", "## MatchQueue", *code_block(*verbs_of(MatchQueue), *verbs_of(MatchAdmin, "admin"))]
    running = (Worker, Scheduler, Relay)
    runs = (f"{each.__name__}.{verb}" for each in running for verb in dir(each) if verb[0] != "_")
    lines += ["", "## What runs", *code_block(textwrap.fill(", ".join(runs), WIDTH))]
    lines += ["", "## Names", *code_block(*map(names_of, ("freshq", *(f"freshq.{room}" for room in ROOMS))))]
    lines += ["", "## Errors", *code_block(*error_lines())]
    return "\n".join([*lines, "", "## Commands", *code_block(*command_lines())]) + "\n"


COMMANDS: Final = REFERENCE / "commands.md"
COMMANDS_HEAD: Final = """# All commands

The help of each command. Commands on a queue also take the [options that find it](../cli.md).
"""
# Options that the page on the command line describes, once for all commands.
COMMON: Final = {"--help", "--queue", "--stack", "--name", "--json"}


def visible_commands(group: Any, prefix: str = "freshq") -> Iterator[tuple[str, Any]]:
    """Yield the commands of a group, and of the groups below it, with their full names."""
    for name, each in group.commands.items():
        command = getattr(each, "loaded", each)
        if not each.hidden:
            yield f"{prefix} {name}", command
            yield from visible_commands(command, f"{prefix} {name}") if hasattr(command, "commands") else ()


def parameter_rows(command: Any) -> Iterator[str]:
    """Yield the arguments and options of a command as rows of Markdown."""
    with typer.Context(command) as context:
        for each in command.params:
            record = each.get_help_record(context)  # None of a hidden option
            if record and not COMMON & {*each.opts}:
                shown, text = (" ".join(part.split()).replace("|", "\\|") for part in record)
                yield f"| `{shown}` | {text} |"


def commands_page() -> str:
    """Return the page of all commands."""
    lines = [COMMANDS_HEAD]
    for name, command in visible_commands(get_command(cli)):
        lines += [f"## {name}", "", inspect.cleandoc(command.help or "").partition("\f")[0].strip(), ""]
        if rows := [*parameter_rows(command)]:
            lines += ["| argument | meaning |", "| --- | --- |", *rows, ""]
    return "\n".join(lines)


def write_options() -> int:
    """Write the pages; return 0."""
    COMMANDS.write_text(commands_page(), "utf-8")
    for name in OPTION_PAGES:
        (REFERENCE / name).write_text(option_page(name), "utf-8")
    SURFACE.write_text(surface_page(), "utf-8")
    return 0


SCHEMAS: Final = REFERENCE / "answers.json"
JSON_PAGE: Final = REFERENCE / "json.md"
# Values of the application, and objects with data as names.
ANY: Final = frozenset({"payload", "result", "data", "record get"})
MAPS: Final = frozenset(
    {"shed_by_reason", "bounded", "ids", "groups", "given", "by_level", "by_group", "attributes", "depths"}
    | {"callers", "copied", "skipped", "left", "change", "settings", "alike", "outcomes", "criteria", "asks"}
    | {"group set", "group unset", "kinds", "of"}
)
# Lists of such objects.
LISTS_OF_MAPS: Final = frozenset({"alike", "asks"})
# Commands whose lines are events, each with its own names.
EVENTS: Final = frozenset({"work", "schedule"})
# Names of objects that are not data, whatever holds them.
PARTS: Final = ("goodput_ratio", "estimate")
# The meaning of the names whose values are null here.
NUMBERS: Final = frozenset(
    {"progress_fraction", "oldest_snapshot_seconds", "dead_rows", "retry_after_seconds"}
    | {"service_seconds", "wanted_servers", "not_before", "lease_until", "dead_at", "first_due"}
    | {"oldest_dead_seconds", "since", "health_port"}
    | {"wait_p50_seconds", "wait_p99_seconds", "last_wait_seconds", "recovery_seconds", "enough_servers"}
    | {"tips_over_seconds", "longest_seconds", "claimed_per_second", "younger_than_seconds"}
    | {"in_time_share", "today_in_time_share", "in_time_before", "in_time_after"}
    | {"value_offered_per_second", "value_delivered_per_second", "value_lost_ratio", "own_max_age_seconds"}
    | {"value_delivered", "value_lost"}
)
NULLS: Final = frozenset(
    {"forecast", "backlog_in_time_ratio", "backlog_over_seconds", "command", "stack_command", "deadline"}
    | {"oldest_pending_seconds", "newest_pending_seconds", "started"}
)
# A rule has the names that someone gave it.
RULE_NAMES: Final = frozenset(each.name for each in fields(GroupRule))
NULL_OBJECTS: Final = frozenset({"better_ratio"})
TASK: Final = {"$ref": "#/$defs/task"}
RULES: Final = {
    "default": {"max_running": 9},
    "of": {"h": {"weight": 2.5}},
    "separator": "/",
    "kinds": {"mail": {"rate_per_second": 2.5}, "text": {"units_per_second": 3.5, "burst_units": 4.5}},
    "share": "units",
}
# Each line is a command. TASK and TOKEN are the last claim or match, other capitals files and addresses.
ON_QUEUE: Final = (
    "put 1 --task-id a --kind mail --group g",
    "put 2 --task-id b --delay-seconds 60",
    "put --lines FILE",
    "get a",
    "get b",
    "get dead",
    "list",
    "list --status FAILURE",
    "peek",
    "work json:dumps --dry-run",
    "stats",
    "pressure",
    "pressure --value 12",
    "claim",
    "get TASK",
    "extend TASK --token TOKEN",
    "complete TASK --token TOKEN --result 1",
    "get TASK",
    "wait TASK",
    "claim",
    "watch --once",
    "retry TASK --token TOKEN --error busy",
    "claim",
    "release TASK --token TOKEN",
    "claim",
    "fail TASK --token TOKEN --error no",
    "list --top --status FAILURE",
    "redrive TASK",
    "reprioritize b --priority 3",
    "cancel b",
    "put 7 --task-id c --value 2 --decay linear",
    "put 8 --task-id d",
    "cancel c d --yes",
    "schedule SCHEDULES --dry-run",
    "schedule SCHEDULES --once",
    "pause",
    "resume",
    "configure",
    "configure --max-attempts 4",
    "group ls",
    f"configure --groups {json.dumps(RULES, separators=(',', ':'))}",
    "group set g --weight 2 --max-running 3 --rate 4 --units 5 --burst 6",
    "group ls",
    "group unset g",
    "recover",
    "doctor",
    "audit",
    "recording --out LOAD",
    "forget --group g --yes",
    "purge --yes",
)
MATCHES: Final = (
    "match create",
    "match configure",
    "match register a language=English,Spanish --data 7",
    "match register b language=French",
    "match offer a",
    "match list --depths",
    "match match language=Spanish",
    "match list",
    "match extend TASK --token TOKEN",
    "match release TASK --token TOKEN",
    "match withdraw a",
    "match offer --all",
    "match request ann language=Spanish",
    "match complete TASK --token TOKEN",
    "match recover",
    "match unregister a",
    "match generate --agents 2 --callers 3",
    "match list --callers",
    "match abandon LINE",
    "match complete --all --yes",
    "match delete --yes",
)
# On an attached table.
RECORDS: Final = (
    'record put {"id":"A","n":1}',
    "record get A",
    "record hold A",
    "record ready A",
    "record delete A --yes",
)
WITHOUT_QUEUE: Final = (
    "copy --from URL --to COPY",
    "simulate --rate 12 --duration 20 --client-timeout 2 --client-retries 1 --burst 10@5+5",
    "simulate --groups acme=10@3,other=5 --duration 20 --values 2=1@5,1=1",
    "simulate --duration 2 --sweep",
    "simulate --duration 2 --sweep --values 2=1@5,1=1",
    "advise MADE --settings SETTINGS --servers 1 --outage",
    "replay MADE --settings SETTINGS --against SETTINGS",
)
# The stack of an archive, and its stream's answers.
ARCHIVED: Final = SimpleNamespace(
    outputs={"QueueTableName": "Shipments", relay.DELIVERY_STREAM: "archive"}, parameters={}
)
REPLAYED: Final[dict[str, Any]] = {"_stream_of": lambda *_: "arn", "_replay": lambda *_: (3, [])}
# They handle signals, so each runs in its own process.
PROGRAMS: Final = (
    "demo --seconds 3",
    "dashboard --port 0 --queue COPY",
    "metrics --port 0 --queue COPY",
    "serve --port 0 --queue COPY",
    "schedule SCHEDULES --queue OUTBOX",
    "work app:run --idle-exit-seconds 0.2 --status-seconds 0.05 --verbose --queue WORK",
    "relay --from OUTBOX --to COPY --idle-exit-seconds 0.1",
)
# Output after which such a program gets the signal to end; other programs end by themselves.
SERVES: Final = {"dashboard": "url", "metrics": "url", "serve": "url", "schedule": "fired"}
# The page of a server that answers once it handles signals.
PAGES: Final = {"dashboard": "", "serve": "/healthz"}
# Options that change a command's output.
FORMS: Final = frozenset(
    {"put --lines", "list --top", "work --dry-run", "schedule --dry-run", "simulate --sweep"}
    | {"match list --callers", "match list --depths", "match complete --all", "match offer --all"}
)
INTRODUCTION: Final = """# JSON of the commands

<!-- made by python -m local.reference json -->

What the commands print with `--json`: one value; `wait`, `watch`, `schedule`, `match offer` and
[`work`](../worker.md#output) print one a line. [answers.json](answers.json) has a JSON Schema for each; a
test runs the commands and compares. Names may be added, and none is removed or changes its type in a minor
version. `?` marks what may be missing or null. Times are in seconds since the epoch, unless they are text.

| command | value |
| --- | --- |
"""


def merged(values: list[Any], tasks: list[Any], name: str = "") -> dict[str, Any]:
    """Return the schema that fits the given values.

    Args:
        values: The values.
        tasks: Takes the tasks among them, which share one schema.
        name: Their name in an object; the command of a whole answer.
    """
    objects = [value for value in values if isinstance(value, dict)]
    if name != "task" and any("attempt_log" in each for each in objects):
        tasks += objects
        return TASK
    if name in ANY and not _is_part(objects):
        return {}
    parts = _of_names(objects, tasks, name) if objects else {}
    return {"type": _types_of(values, name), **parts, **_of_items(values, tasks, name)}


def _is_part(objects: list[dict[str, Any]]) -> bool:
    """Return whether objects have the names of an object of freshq, whatever name they are under."""
    return bool(objects) and any(part in objects[0] for part in PARTS)


def _of_items(values: list[Any], tasks: list[Any], name: str) -> dict[str, Any]:
    items = list(chain.from_iterable(value for value in values if isinstance(value, list)))
    return {"items": merged(items, tasks, name if name in LISTS_OF_MAPS else "")} if items else {}


def _types_of(values: list[Any], name: str) -> str | list[str]:
    types = {_type(value) for value in values} | ({"number", "null"} if name in NUMBERS else set())
    types |= ({"null"} if name in NULLS else set()) | ({"null", "object"} if name in NULL_OBJECTS else set())
    if types == {"null"}:
        types.add("string")
    found = sorted(types - {"integer"} if "number" in types else types)
    return found[0] if len(found) == 1 else found


def _of_names(objects: list[dict[str, Any]], tasks: list[Any], name: str) -> dict[str, Any]:
    """Return a schema's description of the names in objects, or of their values if the names are data."""
    if name in MAPS and not _is_part(objects):
        inner = list(chain.from_iterable(each.values() for each in objects))
        return {"additionalProperties": merged(inner, tasks) if inner else {}}
    given: dict[str, list[Any]] = {}
    for each in objects:
        for key, value in each.items():
            given.setdefault(key, []).append(value)
    return {
        "properties": {key: merged(values, tasks, key) for key, values in given.items()},
        "required": [key for key, values in given.items() if _is_always_given(key, values, objects)],
        "additionalProperties": name in EVENTS,
    }


def _is_always_given(name: str, values: list[Any], objects: list[dict[str, Any]]) -> bool:
    return len(values) == len(objects) and name not in RULE_NAMES


def _type(value: object) -> str:
    if value is None:
        return "null"
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names[type(value)]


def answers() -> dict[str, list[Any]]:
    """Run the commands; return the values that each prints."""
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor() as threads:
        folder = Path(name)
        files = _prepared(folder)
        begun = {line: threads.submit(_printed, line, files, folder) for line in PROGRAMS}
        found: dict[str, list[Any]] = {}
        _collect(ON_QUEUE, files, found, "--queue", files["URL"])
        _collect(MATCHES, files, found, "--queue", f"sqlite:///{folder}/agents.db")
        _collect(WITHOUT_QUEUE, files, found)
        with _attached() as address:
            _collect(RECORDS, files, found, "--queue", address)
            with patch.object(Stack, "describe", return_value=ARCHIVED), patch.multiple(relay, **REPLAYED):
                _collect(["archive replay-stream"], files, found, "--stack", "app")
        for line, printed in begun.items():
            found.setdefault(name_of(line), []).extend(parsed(printed.result()))
    return found


def _prepared(folder: Path) -> dict[str, str]:
    """Return the stand-ins for files and addresses in a folder, after making them."""
    made = [{"at_seconds": n / 5, "service_seconds": 0.3, "deadline_seconds": 3.0} for n in range(200)]
    texts = {
        "FILE": ("lines", "3\n4\n5\n6\n"),
        "SCHEDULES": ("schedules.toml", '[[schedule]]\nname = "report"\nevery_seconds = 0.5\npayload = 1\n'),
        "SETTINGS": ("settings.toml", 'order = "fifo"\nreserve = "none"\nservers = 1\n'),
        "MADE": ("made.jsonl", "\n".join(map(json.dumps, made))),
        "APP": ("app.py", "def run(task):\n    return 1 / task.payload\n"),
    }
    for name, text in texts.values():
        (folder / name).write_text(text)
    paths = {word: str(folder / name) for word, (name, _text) in texts.items()}
    addresses = {word: f"sqlite:///{folder}/{word}.db" for word in ("URL", "COPY", "WORK", "OUTBOX")}
    for address in addresses.values():
        with Queue.sql(address, max_age_seconds=3600, max_attempts=1, history=True) as queue:
            queue.create_table()
            if address != addresses["URL"]:
                queue.put_many([{"payload": number, "kind": "number"} for number in range(2)])
    with Queue.sql(addresses["URL"], history=True) as queue:
        queue.put("work", task_id="dead", kind="mail")
        Worker(queue, _fails, idle_exit_seconds=0.05, poll_seconds=0.01).run()
    return paths | addresses | {"LOAD": str(folder / "load.jsonl")}


def _fails(_task: object) -> None:
    raise KeyError("ABC")


def _collect(
    lines: Iterable[str], files: Mapping[str, str], found: dict[str, list[Any]], *options: str
) -> None:
    """Run commands in this process, and add the values that each prints."""
    held = dict(files)
    for line in lines:
        words = [held.get(word, word) for word in line.split()]
        done = CliRunner().invoke(cli, [*words, "--json", *options])
        if done.exit_code:
            msg = f"{line}: status {done.exit_code}: {done.stderr or done.exception!r}"
            raise RuntimeError(msg)
        values = parsed(done.stdout)
        found.setdefault(name_of(line), []).extend(values)
        held |= _held(values[0])


def _held(value: Any) -> dict[str, str]:
    """Return the id and the token of the claim or match in an answer, or the first caller in line."""
    several = value.get("callers") if isinstance(value, dict) else value
    if not isinstance(several, list) or not several:
        return {}
    (first, *_others) = several
    if "token" in first:
        return {"TASK": first.get("task_id") or first["resource_id"], "TOKEN": first["token"]}
    return {"LINE": first["caller_id"]} if "caller_id" in first else {}


@contextmanager
def _attached() -> Iterator[str]:
    """Yield the address of an attached table in an account that ends with the block."""
    account = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with patch.dict("os.environ", account), mock_aws():
        boto3.client("dynamodb").create_table(
            TableName="Shipments",
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        done = CliRunner().invoke(cli, ["table", "attach", "Shipments", "--key", "id"])
        if done.exit_code:
            raise RuntimeError(done.stderr)
        yield "dynamodb://Shipments?key=id"


def _printed(line: str, files: Mapping[str, str], folder: Path) -> str:
    """Run a command in its own process, and return its output; a serving command gets a signal to end."""
    words = [files.get(word, word) for word in line.split()]
    program = [sys.executable, "-m", "freshq", *words, "--json"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, cwd=folder) as process:
        printed = ""
        for line_of_output in cast("IO[str]", process.stdout):
            printed += line_of_output
            if f'"{SERVES.get(words[0])}"' in line_of_output:
                if words[0] in PAGES:
                    page = json.loads(printed)["url"].partition("#")[0]
                    urlopen(page + PAGES[words[0]]).close()  # noqa: S310 - it serves then  # nosec B310
                process.send_signal(signal.SIGINT)
    if process.returncode:
        msg = f"{line}: status {process.returncode}"
        raise RuntimeError(msg)
    return printed


def parsed(printed: str) -> list[Any]:
    """Return the values in a text, one after the other."""
    decoder, values, text = json.JSONDecoder(), [], printed.strip()
    while text:
        value, end = decoder.raw_decode(text)
        values.append(value)
        text = text[end:].lstrip()
    return values


def name_of(line: str) -> str:
    """Return the name of a command, with the flag that changes its output."""
    words = line.split()
    length = 2 if words[0] in ("archive", "group", "match", "record") else 1
    name = " ".join(words[:length])
    if name == "cancel" and "--yes" in words:
        return "cancel (several)"
    return next((form for word in words if (form := f"{name} {word}") in FORMS), name)


def described_command(name: str) -> str:
    """Return the command of an answer, without the flag that changes its output."""
    return re.split(r" (?=--|\()", name)[0]


def commands_with_json() -> set[str]:
    """Return the commands that take `--json`, except the shell, which prints its commands' output."""
    return set(_with_json(get_command(cli), ())) - {"shell"}


def _with_json(command: Any, words: tuple[str, ...]) -> Iterator[str]:
    loaded = getattr(command, "loaded", command)
    if any("--json" in param.opts for param in loaded.params):
        yield " ".join(words)
    aliases = ALIASES.get(" ".join(words), {})
    for name, inner in getattr(loaded, "commands", {}).items():
        if name not in aliases:
            yield from _with_json(inner, (*words, name))


def schemas() -> dict[str, Any]:
    """Return the schema of each command's answer, by the command."""
    tasks: list[Any] = []
    found = {name: merged(values, tasks, name) for name, values in sorted(answers().items())}
    return {"$defs": {"task": merged(tasks, [], "task")}, "commands": found}


def shape(schema: dict[str, Any]) -> str:
    """Return a schema as a short text: names of an object, `?` after optional or nullable ones."""
    kinds = [each for each in _types(schema) if each != "null"]
    if schema == TASK:
        return "task"
    if "object" in kinds:
        return _object_shape(schema)
    if "array" in kinds:
        return f"[{shape(schema['items'])}]" if "items" in schema else "[…]"
    return " or ".join(kinds) or "…"


def _object_shape(schema: dict[str, Any]) -> str:
    names = schema.get("properties", {}).items()
    return f"{{{', '.join(_name_shape(schema, name, inner) for name, inner in names) or '…'}}}"


def _name_shape(schema: dict[str, Any], name: str, inner: dict[str, Any]) -> str:
    types = _types(inner)
    mark = "" if name in schema["required"] and "null" not in types else "?"
    has_parts = inner == TASK or "object" in types or "array" in types
    return f"{name}{mark}: {shape(inner)}" if has_parts else f"{name}{mark}"


def _types(schema: dict[str, Any]) -> list[str]:
    types = schema.get("type", [])
    return [types] if isinstance(types, str) else types


def json_page(found: dict[str, Any]) -> str:
    """Return the page that describes schemas."""
    named = {"task": found["$defs"]["task"], **{f"`{name}`": one for name, one in found["commands"].items()}}
    return INTRODUCTION + "".join(f"| {name} | `{shape(schema)}` |\n" for name, schema in named.items())


def write_json() -> int:
    """Run the commands, and write the schemas and their page; return 0."""
    described = schemas()
    SCHEMAS.write_text(json.dumps(described, indent=1) + "\n", "utf-8")
    JSON_PAGE.write_text(json_page(described), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit({"options": write_options, "json": write_json}[sys.argv[1]]())
