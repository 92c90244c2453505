"""Commands as help lists them; the module of a command is loaded when it runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import typer
from typer.core import TyperCommand
from typing_extensions import override

from freshq.cli.command import Command, QueueCommand, quick_imports
from freshq.errors import needs

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class Listed:
    """A command as help lists it.

    Attributes:
        name: What the user types.
        panel: The heading that help lists it under.
        target: Where it is, `module:name` below `freshq.cli`: a function, or a Typer application.
        help: The first paragraph of its help; a test compares the two.
        on_queue: Whether it is a function that takes the options of a queue.
        on_task: Whether it takes the id of a task in the queue, which a draft of the shell is not.
    """

    name: str
    panel: str
    target: str
    help: str
    on_queue: bool = False
    on_task: bool = False

    def load(self) -> Any:
        """Return the command itself."""
        module, _, attribute = self.target.partition(":")
        with needs("cli"), quick_imports():
            found = getattr(import_module(f"freshq.cli.{module}"), attribute)
        if isinstance(found, typer.Typer):
            return typer.main.get_command(found)
        app = typer.Typer(add_completion=False)
        app.command(self.name, cls=QueueCommand if self.on_queue else Command)(found)
        return typer.main.get_command(app)


class LazyCommand(TyperCommand):
    """Stands for a command in lists, and passes arguments on to it."""

    def __init__(self, listed: Listed) -> None:
        super().__init__(name=listed.name, help=listed.help, rich_help_panel=listed.panel)
        self._listed = listed

    @cached_property
    def loaded(self) -> Any:
        """The command itself."""
        return self._listed.load()

    @override
    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Return a context of the command itself, in which its arguments are parsed."""
        return self.loaded.make_context(*args, **kwargs)


def lazy_commands(commands: Iterable[Listed]) -> dict[str, Any]:
    """Return the commands of a group by name."""
    return {listed.name: LazyCommand(listed) for listed in commands}


_work = partial(Listed, panel="Work", on_queue=True)


_on_held = partial(_work, on_task=True)


_tasks = partial(Listed, panel="Tasks", on_queue=True)


_on_task = partial(_tasks, on_task=True)


_queue = partial(Listed, panel="Queue", on_queue=True)


_attached = partial(Listed, panel="Attached tables", on_queue=True)


VERBS: Final[tuple[Listed, ...]] = (
    _work(
        "put",
        target="commands.put:put",
        help="Put a task into the queue. A duplicate changes nothing and exits with status 1.",
    ),
    _work(
        "claim",
        target="commands.claims:claim",
        help="Claim tasks in the queue's order. Exits with status 1 if there is nothing to claim.",
    ),
    _work(
        "dequeue",
        target="commands.claims:dequeue",
        help="Claim tasks and settle them as SUCCESS in one: at most once. "
        "Exits with status 1 if there are none.",
    ),
    _on_held("done", target="commands.claims:done", help="Settle a claim as SUCCESS."),
    _on_held(
        "fail",
        target="commands.claims:fail",
        help="Settle a claim as FAILURE: the task becomes a dead letter, even if attempts remain.",
    ),
    _on_held(
        "retry",
        target="commands.claims:retry",
        help="Return a task to be tried again later. After its last attempt it becomes a dead letter.",
    ),
    _on_held(
        "release",
        target="commands.claims:release",
        help="Return a task, claimable at once. The attempt does not count.",
    ),
    _on_held("extend", target="commands.claims:extend", help="Extend the lease of a task, from now."),
    _on_task("get", target="commands.tasks:get", help="Show everything about a task."),
    _tasks("ls", target="commands.tasks:ls", help="List tasks."),
    _tasks(
        "stats",
        target="commands.tasks:stats",
        help="Count tasks by state, and show the ages of pending ones.",
    ),
    _on_task("touch", target="commands.tasks:touch", help="Set the creation time of a pending task to now."),
    _on_task(
        "reprioritize",
        target="commands.tasks:reprioritize",
        help="Move a pending task to another priority level. Its creation time stays.",
    ),
    _on_task(
        "cancel",
        target="commands.tasks:cancel",
        help="Cancel pending tasks, with --force also those that are held.",
    ),
    _on_task(
        "bury",
        target="commands.tasks:bury",
        help="Turn pending tasks into dead letters, with --force also those that are held.",
    ),
    _on_task(
        "restore",
        target="commands.tasks:restore",
        help="Return dead letters and pending tasks to their lines as if they were put now.",
    ),
    _queue(
        "pause",
        target="commands.tasks:pause",
        help="Suspend claims, within seconds on every worker. Tasks can still be put and settled.",
    ),
    _queue("resume", target="commands.tasks:resume", help="Allow claims again."),
    _queue(
        "purge",
        target="commands.tasks:purge",
        help="Delete every task of the queue, including those being worked on.",
    ),
    Listed("dlq", "Queue", "commands.dlq:app", "Dead letters: list, claim, redrive, restore, delete, index."),
    Listed(
        "record",
        "Attached tables",
        "commands.attach:app",
        "Records of an attached table: write, read, delete.",
    ),
    _attached(
        "hold",
        target="commands.attach:hold",
        help="Put a record of an attached table under construction. It cannot be queued until it is ready.",
    ),
    _attached(
        "ready",
        target="commands.attach:ready",
        help="Make a record of an attached table READY, from under construction or from a final status.",
    ),
)
