"""Imports of commands: packages and parts of freshq that a command does not use would slow each start."""

import json
import os
from pathlib import Path

import pytest

from freshq import Queue
from freshq.cli.main import COMMANDS, VERBS, Listed
from freshq.cli.shell import ON_TASKS
from tests.support.programs import python

PROGRAM = """
import json, sys
from freshq.cli.__main__ import main
try:
    main()
finally:
    print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""
# Stands for the token of a claim.
HELD = "..."
CLOUD = {"boto3", "botocore", "aws_lambda_powertools"}
OTHER_DIALECTS = {"sqlalchemy.dialects.postgresql", "sqlalchemy.dialects.mysql", "psycopg", "pymysql"}
UNUSED_BY_VERBS = {
    "rich",
    "prompt_toolkit",
    "freshq.worker",
    "freshq.simulate",
    "freshq.matching",
    "freshq.feeds",
    "opentelemetry",
}


def loaded(*arguments: str) -> set[str]:
    """Return the modules that a command has loaded at its end."""
    done = python(
        "-c",
        PROGRAM,
        *arguments,
        env={name: value for name, value in os.environ.items() if name != "COLUMNS"},
    )
    return set(json.loads(done.stderr))


def test_help_loads_no_command() -> None:
    modules = loaded("--help")
    assert sorted(modules & (CLOUD | {"sqlalchemy", "freshq.queue", "freshq.stores", "prompt_toolkit"})) == []
    assert "freshq.cli.main" in modules
    assert [name for name in modules if name.startswith("freshq.cli.commands.")] == []


@pytest.mark.parametrize("arguments", [("put", "1"), ("claim",), ("complete", "held", "--token", HELD)])
def test_a_verb_on_sqlite_loads_sqlite_and_nothing_else(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    url = f"sqlite:///{tmp_path / 'tasks.db'}"
    queue = Queue.sql(url)
    queue.create_table()
    queue.put("work", task_id="held")
    token = queue.claim()[0].token if arguments[0] == "complete" else ""
    queue.close()
    words = [token if word == HELD else word for word in arguments]
    modules = loaded(*words, "--queue", url)
    assert "sqlalchemy.dialects.sqlite" in modules
    assert sorted(modules & (CLOUD | OTHER_DIALECTS | UNUSED_BY_VERBS)) == []


@pytest.mark.parametrize("listed", COMMANDS, ids=lambda listed: listed.name)
def test_help_lists_what_the_command_says_of_itself(listed: Listed) -> None:
    command = listed.load()
    assert command.help.split("\n\n")[0].replace("\n", " ") == listed.help


@pytest.mark.parametrize("listed", VERBS, ids=lambda listed: listed.name)
def test_a_verb_is_listed_for_tasks_if_it_takes_the_id_of_one(listed: Listed) -> None:
    arguments = {each.name for each in listed.load().params if each.param_type_name == "argument"}
    of_all = listed.name in {"redrive", "purge"}  # without an id they take all tasks, not the current one
    assert (listed.name in ON_TASKS) is (bool(arguments & {"task_id", "task_ids"}) and not of_all)
