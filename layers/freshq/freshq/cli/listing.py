"""The list of commands for help. The module of a command is loaded when it runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import typer
from typer.core import TyperCommand
from typing_extensions import override

from freshq.cli.command import PlainCommand, QueueCommand, quick_imports
from freshq.errors import needs

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Listed:
    """A command as help lists it.

    Attributes:
        name: The word that the user types.
        panel: The heading that help lists it under.
        target: A function or a Typer application, as `module:name` below `freshq.cli`.
        help: The first paragraph of its help; a test compares the two.
        on_queue: Whether it is a function that takes the options of a queue.
        on_task: Whether it takes the id of a task in the queue; drafts of the shell are not in the queue.
        extra: The extra that it needs, besides `cli`.
    """

    name: str
    panel: str
    target: str
    help: str
    on_queue: bool = False
    on_task: bool = False
    extra: str = "cli"

    def load(self) -> Any:
        """Return the command itself."""
        module, _, attribute = self.target.partition(":")
        with needs(self.extra), quick_imports():
            found = getattr(import_module(f"freshq.cli.{module}"), attribute)
        if isinstance(found, typer.Typer):
            return typer.main.get_command(found)
        app = typer.Typer(add_completion=False)
        app.command(self.name, cls=QueueCommand if self.on_queue else PlainCommand)(found)
        return typer.main.get_command(app)


class LazyCommand(TyperCommand):
    """Stands for a command in listings, and passes arguments on to it."""

    def __init__(self, listed: Listed) -> None:
        super().__init__(name=listed.name, help=listed.help, rich_help_panel=listed.panel)
        self._listed = listed

    @cached_property
    def loaded(self) -> Any:
        """The command itself."""
        return self._listed.load()

    @override
    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Return a context of the command itself, which parses the arguments."""
        return self.loaded.make_context(*args, **kwargs)


def lazy_commands(commands: Iterable[Listed]) -> dict[str, Any]:
    """Return the commands of a group by name."""
    return {listed.name: LazyCommand(listed) for listed in commands}


def _on_queue(
    panel: str, module: str, on_task: str = "", extra: str = "cli", **helps: str
) -> tuple[Listed, ...]:
    """Return the commands on a queue that are functions of a module, by name with their help.

    Args:
        panel: The heading that help lists them under.
        module: Below `freshq.cli`.
        on_task: The names of the commands that take the id of a task.
        extra: The extra that they need.
        helps: The help of each command, by its name.
    """
    tasks = on_task.split()
    return tuple(
        Listed(name, panel, f"{module}:{name}", text, on_queue=True, on_task=name in tasks, extra=extra)
        for name, text in helps.items()
    )


# Commands that the shell also has.
VERBS: Final[tuple[Listed, ...]] = (
    *_on_queue(
        "Work",
        "commands.put",
        put="Put a task into the queue. A duplicate changes nothing and exits with status 1.",
    ),
    *_on_queue(
        "Work",
        "commands.claims",
        on_task="done fail retry release extend",
        claim="Claim tasks in the queue's order. Exits with status 1 if there is nothing to claim.",
        dequeue="Claim tasks and settle them as SUCCESS in one step: at most once. "
        "Exits with 1 if there are none.",
        done="Settle a claim as SUCCESS.",
        fail="Settle a claim as FAILURE: the task becomes a dead letter, even if attempts remain.",
        retry="Return a task for a later attempt. After its last attempt it becomes a dead letter.",
        release="Return a task, claimable at once. The attempt does not count.",
        extend="Extend the lease of a task, counted from now.",
    ),
    *_on_queue(
        "Tasks",
        "commands.tasks",
        on_task="get touch reprioritize cancel bury restore",
        get="Show everything about a task.",
        ls="List tasks.",
        stats="Count tasks by state, and show the ages of pending tasks.",
        touch="Set the creation time of a pending task to now.",
        reprioritize="Move a pending task to another priority level. Its creation time stays.",
        cancel="Cancel pending tasks; with --force, also claimed ones.",
        bury="Turn pending tasks into dead letters; with --force, also claimed ones.",
        restore="Return dead letters and pending tasks to their lines as if they were put now.",
    ),
    *_on_queue(
        "Queue",
        "commands.tasks",
        pause="Suspend claims on every worker within seconds. Tasks can still be put and settled.",
        resume="Allow claims again.",
        purge="Delete every task of the queue, including claimed ones.",
    ),
    Listed("dlq", "Queue", "commands.dlq:app", "Dead letters: list, claim, redrive, restore, delete, index."),
    Listed(
        "record",
        "Attached tables",
        "commands.attach:app",
        "Records of an attached table: write, read, delete.",
    ),
    *_on_queue(
        "Attached tables",
        "commands.attach",
        hold="Put a record of an attached table under construction. It cannot be queued until it is ready.",
        ready="Make a record of an attached table READY, from under construction or from a final status.",
    ),
)
COMMANDS: Final[tuple[Listed, ...]] = (
    *VERBS,
    *_on_queue(
        "Work",
        "commands.work",
        work="Work the queue until SIGTERM or Ctrl-C. "
        "One lets running tasks finish, a second gives them back.",
    ),
    *_on_queue(
        "Work",
        "commands.cron",
        cron="Put a task for each tick of schedules until SIGTERM or Ctrl-C. Several nodes may run it.",
    ),
    *_on_queue(
        "Queue",
        "commands.watch",
        watch="Watch a queue live: rates, backlog by age, claimed tasks, last dead letters. Ctrl-C ends it.",
    ),
    *_on_queue(
        "Queue",
        "dashboard.server",
        extra="dashboard",
        dashboard="Serve a page that shows the queue live, to this machine only, until Ctrl-C.",
    ),
    *_on_queue(
        "Queue",
        "commands.metrics",
        extra="metrics",
        metrics="Serve the gauges of the queue to Prometheus until SIGTERM or Ctrl-C.",
    ),
    Listed(
        "shell",
        "Queue",
        "shell:shell",
        "Work on a queue interactively, or run commands from a pipe. Exits with their worst status.",
        on_queue=True,
    ),
    *_on_queue(
        "Queue",
        "commands.tables",
        configure="Store options with a queue, so that addresses need not repeat them. Without options, show "
        "them.",
    ),
    Listed(
        "relay",
        "Queue",
        "commands.relay:relay",
        "Forward tasks to another queue, at least once. Ids are kept, so repeats are ignored.",
    ),
    Listed(
        "attach",
        "Attached tables",
        "commands.attach:attach",
        "Add freshq's indexes to a table in use. Safe to repeat.",
    ),
    Listed(
        "match",
        "Matching",
        "commands.match:app",
        "Match callers to resources, such as the agents of a call center.",
    ),
    Listed("sql", "Tables", "commands.tables:sql", "Tables in a SQL database."),
    Listed("table", "Tables", "commands.tables:app", "Tables of a new queue, or from a description file."),
    Listed(
        "simulate",
        "Other",
        "commands.simulate:app",
        "Simulate a queue under load, and measure how much is completed in time.",
    ),
    Listed(
        "demo",
        "Other",
        "commands.demo:demo",
        "Overload two queues in memory alike: newest first beside first in, first out. Needs no setup.",
    ),
    Listed("version", "Other", "main:version", "Print the version."),
)
