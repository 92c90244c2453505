"""All commands of `freshq`, as help lists them. The module of a command is loaded when it runs."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import version as installed
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typing_extensions import override

from freshq.cli.command import Group, OneLineErrors, PlainCommand, QueueCommand, quick_imports
from freshq.cli.errors import OneLineLog
from freshq.errors import needs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Listed:
    """A command as help lists it.

    Attributes:
        name: The word that the user types.
        heading: The heading that help lists it under.
        target: A function or a Typer application, as `module:name` below `freshq.cli`.
        help: The first paragraph of its help; a test compares the two.
        on_queue: Whether it is a function that takes the options of a queue.
        extra: The extra that it needs, besides `cli`.
    """

    name: str
    heading: str
    target: str
    help: str
    on_queue: bool = False
    extra: str = "cli"

    def load(self) -> Any:
        """Return the command itself."""
        module, _, attribute = self.target.partition(":")
        with needs(self.extra), quick_imports():
            found = getattr(import_module(f"freshq.cli.{module}"), attribute)
        if isinstance(found, typer.Typer):
            command = typer.main.get_command(found)
            if isinstance(command, TyperGroup):
                command.commands = {**command.commands, **aliases(self.name, COMMANDS)}
            return command
        app = typer.Typer(add_completion=False)
        app.command(self.name, cls=QueueCommand if self.on_queue else PlainCommand)(found)
        return typer.main.get_command(app)


class LazyCommand(PlainCommand):
    """Stands for a command in listings, and passes arguments on to it, after the alias's own arguments."""

    def __init__(self, listed: Listed, alias: str = "", first: Sequence[str] = ()) -> None:
        super().__init__(
            name=alias or listed.name,
            help=f"The same as {' '.join([listed.name, *first])}." if alias else listed.help,
            rich_help_panel=listed.heading,
            hidden=bool(alias),
        )
        self._listed = listed
        self._first = first

    @cached_property
    def loaded(self) -> Any:
        """The command itself."""
        return self._listed.load()

    @override
    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> Any:
        """Return a context of the command itself, which parses the arguments."""
        return self.loaded.make_context(info_name, [*self._first, *args], *rest, **extra)


def lazy_commands(commands: Sequence[Listed]) -> dict[str, Any]:
    """Return commands by name, with the aliases of these commands."""
    lazy: dict[str, Any] = {listed.name: LazyCommand(listed) for listed in commands}
    for group in ALIASES.keys() - lazy.keys() - {""}:
        inner = aliases(group, commands)
        if inner:
            for command in inner.values():
                command.hidden = False
            text = "Other words for some commands."
            lazy[group] = Group(name=group, commands=inner, hidden=True, help=text, no_args_is_help=True)
    return lazy | aliases("", commands)


def aliases(group: str, commands: Iterable[Listed]) -> dict[str, Any]:
    """Return the aliases of commands in a group, by name."""
    known = {listed.name: listed for listed in commands}
    words = ((alias, meaning.split()) for alias, meaning in ALIASES.get(group, {}).items())
    return {alias: LazyCommand(known[name], alias, first) for alias, (name, *first) in words if name in known}


def _on_queue(heading: str, module: str, extra: str = "cli", **helps: str) -> tuple[Listed, ...]:
    """Return the commands on a queue that are functions of a module, by name with their help.

    Args:
        heading: The heading that help lists them under.
        module: Below `freshq.cli`.
        extra: The extra that they need.
        helps: The help of each command, by its name; list_ is `list`.
    """
    return tuple(
        Listed(function.strip("_"), heading, f"{module}:{function}", text, on_queue=True, extra=extra)
        for function, text in helps.items()
    )


# Words of other systems and their meaning: a command, and the arguments that come first. By group.
ALIASES: Final[Mapping[str, Mapping[str, str]]] = {
    "": {
        "done": "complete",
        "ls": "list",
        "dequeue": "claim --complete",
        "bury": "cancel --dead",
        "touch": "redrive --as-new --current",
        "restore": "redrive --as-new --current",
        "hold": "record hold",
        "ready": "record ready",
        "cron": "schedule",
    },
    "dlq": {
        "ls": "list --status FAILURE",
        "list": "list --status FAILURE",
        "claim": "claim --dead",
        "redrive": "redrive",
        "restore": "redrive --as-new",
        "top": "list --status FAILURE --top",
        "purge": "purge --status FAILURE",
    },
    "record": {"upsert": "record put --merge"},
    "match": {"callers": "match list --callers", "depths": "match list --depths"},
}
# Commands that the shell also has.
VERBS: Final[tuple[Listed, ...]] = (
    *_on_queue(
        "Tasks",
        "commands.verbs",
        put="Put a task, or one for each line of a file.",
        claim="Take the next tasks, each under a lease.",
        complete="Settle a claimed task as SUCCESS.",
        fail="Settle a claimed task as FAILURE, a dead letter.",
        retry="Return a claimed task for a later attempt.",
        release="Return a claimed task without counting the attempt.",
        extend="Extend the lease of a claimed task.",
    ),
    *_on_queue(
        "Tasks",
        "commands.tasks",
        get="Show everything about a task.",
        list_="List tasks, all or by status.",
        peek="Show the next tasks without claiming them.",
        wait="Wait until tasks have ended, and print each.",
        cancel="Cancel tasks, or make them dead letters.",
        redrive="Return dead letters to their lines.",
        reprioritize="Move a waiting task to another priority level.",
    ),
    *_on_queue(
        "Queue",
        "commands.tasks",
        stats="Count tasks by state, and show their ages.",
        pressure="Show the load, and a new task's chance to be in time.",
        pause="Suspend claims on every worker.",
        resume="Allow claims again.",
        purge="Delete tasks of the queue.",
        recover="Return tasks with expired leases to their lines.",
    ),
    *_on_queue("Queue", "commands.configure", configure="Show the options of the queue, or store some."),
    *_on_queue("Queue", "commands.doctor", forget="Erase tasks, and their group wherever it is kept."),
    *_on_queue("Queue", "commands.doctor", doctor="Look for what is wrong with a queue, and say what to do."),
    Listed("record", "Other", "commands.tables:records", "Records of an attached table."),
)
COMMANDS: Final[tuple[Listed, ...]] = (
    *VERBS[:-1],
    Listed("group", "Queue", "commands.configure:group", "Weights and limits of groups."),
    *_on_queue("Queue", "commands.doctor", audit="Show what operators did to the queue, the latest last."),
    *_on_queue("Run", "commands.work", work="Run a function for each task."),
    *_on_queue("Run", "commands.schedule", schedule="Put tasks at set times."),
    Listed("relay", "Run", "commands.relay:relay", "Forward tasks to another queue."),
    Listed("copy", "Run", "commands.relay:copy", "Copy tasks unchanged to another queue, on any store."),
    *_on_queue("Run", "commands.watch", watch="Show the queue live in the terminal."),
    *_on_queue("Run", "dashboard.server", extra="dashboard", dashboard="Show the queue live in a browser."),
    *_on_queue(
        "Run",
        "commands.serve",
        extra="http",
        serve="Serve the queue over HTTP, to producers in any language.",
    ),
    *_on_queue(
        "Run", "commands.metrics", extra="metrics", metrics="Serve the gauges of a queue to Prometheus."
    ),
    Listed("shell", "Run", "shell:shell", "Type these commands at a prompt, or pipe them in.", on_queue=True),
    Listed("table", "Other", "commands.tables:app", "Tables: create, update, attach."),
    VERBS[-1],
    Listed(
        "match",
        "Other",
        "commands.match:app",
        "Match callers to resources, such as call-center agents.",
    ),
    Listed("archive", "Other", "commands.relay:archive", "The archive of a stack."),
    Listed("recording", "Other", "commands.recording:recording", "Save the load of a queue, to simulate it."),
    Listed("advise", "Other", "commands.recording:advise", "Recommend settings for a recorded load."),
    Listed("replay", "Other", "commands.recording:replay", "Fail if new settings serve a load worse."),
    Listed("simulate", "Other", "commands.simulate:simulate", "Simulate a queue under load."),
    Listed("explain", "Other", "commands.doctor:explain", "Say what an error means, and what to do."),
    Listed(
        "demo",
        "Other",
        "commands.demo:demo",
        "Overload two queues: one newest first, one oldest first.",
    ),
)


class Freshq(OneLineErrors):
    """The group of all commands."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Make the group that Typer describes, with the commands added."""
        super().__init__(*args, **kwargs)
        self.commands = lazy_commands(COMMANDS)


app = typer.Typer(
    cls=Freshq,
    help="A queue for work that loses value.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def print_version(wanted: bool) -> None:
    """Print the version and exit, if requested."""
    if wanted:
        typer.echo(installed("freshq"))
        raise typer.Exit


@app.callback()
def main(
    *,
    _version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Print the library's warnings like the errors of commands."""
    logger = logging.getLogger("freshq")
    if not any(isinstance(handler, OneLineLog) for handler in logger.handlers):
        logger.addHandler(OneLineLog(logging.WARNING))
