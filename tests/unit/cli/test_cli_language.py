"""The commands speak the library's language: its verbs, with its arguments, and few more words."""

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import typer
from typer.testing import CliRunner

from freshq import Queue
from freshq.cli.main import ALIASES, COMMANDS, Listed, app
from freshq.model.pass_options import PassOptions
from freshq.model.storable_options import StoredOptions

# Differences of a command's flags from the arguments of its verb: more, and fewer.
CLAIM: Final = ({"task_id", "token"}, {"claim"})
FILTERS: Final = ("kind", "group", "error", "since")
DIFFERENCES: Final[dict[str, tuple[set[str], set[str]]]] = {
    "put": ({"text", "lines", "as_tasks"}, {"trace_context", "parent", "connection"}),
    "claim": ({"dead", "complete"}, set()),
    **dict.fromkeys(("complete", "fail", "retry", "release", "extend"), CLAIM),
    "wait": ({"task_ids"}, {"task_id"}),
    "list": ({*FILTERS, "top"}, set()),
    "cancel": ({*FILTERS, "task_ids", "yes"}, {"task_id"}),
    "redrive": ({*FILTERS, "all_dead", "yes", "current"}, {"where"}),
    "stats": ({"exact"}, set()),
    "pressure": ({"value"}, set()),
    "purge": ({*FILTERS, "yes"}, {"confirm", "where"}),
    "configure": (
        {*StoredOptions.model_fields, *PassOptions.model_fields} - {"shards"},
        {"options"},
    ),
}
OF_QUEUE: Final = {"queue", "stack", "name", "as_json", "help"}


def leaves(command: Any, path: str = "") -> Iterator[str]:
    """Yield the visible commands below a group by their words."""
    for name, inner in command.commands.items():
        if not inner.hidden:
            loaded = getattr(inner, "loaded", inner)
            words = f"{path} {name}".strip()
            if hasattr(loaded, "commands"):
                yield from leaves(loaded, words)
            else:
                yield words


def test_there_are_few_commands() -> None:
    found = list(leaves(typer.main.get_command(app)))
    assert len([words for words in found if words.startswith("match ")]) <= 12, found
    # 45, plus commands for operators: copy, advise, recording, replay, group ls|set|unset, audit and others.
    assert len(found) <= 62, found


@pytest.mark.parametrize("group", [[], ["table"], ["record"], ["match"], ["dlq"]])
def test_help_is_one_screen(group: list[str]) -> None:
    lines = CliRunner().invoke(app, [*group, "--help"]).stdout.splitlines()
    assert len(lines) <= 45
    assert max(map(len, lines)) <= 80
    assert not any(line.endswith("...") for line in lines)


@pytest.mark.parametrize(
    "listed",
    [each for each in COMMANDS if hasattr(Queue, each.name)],
    ids=lambda listed: listed.name,
)
def test_a_command_has_the_arguments_of_its_verb(listed: Listed) -> None:
    flags = {each.name for each in listed.load().params} - OF_QUEUE
    verb = inspect.signature(getattr(Queue, listed.name)).parameters
    more, less = DIFFERENCES.get(listed.name, (set(), set()))
    assert flags == (set(verb) - {"self"} - less) | more


def test_help_and_the_page_list_every_command() -> None:
    shown = CliRunner().invoke(app, ["--help"]).stdout
    page = Path("docs/cli.md").read_text()
    table = page[page.index("## Commands") : page.index("## Options stored")]
    for listed in COMMANDS:
        assert f" {listed.name} " in shown
        assert f"`{listed.name}" in table


def test_every_alias_stands_for_a_command() -> None:
    for words in ALIASES.values():
        for alias, meaning in words.items():
            done = CliRunner().invoke(app, [*meaning.split(), "--help"])
            assert done.exit_code == 0, alias
