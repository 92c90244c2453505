"""Commands as help lists them. The module of a command is loaded when the command runs, and not before."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any

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

    def load(self) -> Any:  # noqa: ANN401 - Typer does not export the type of its commands
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
    def loaded(self) -> Any:  # noqa: ANN401 - Typer does not export the type of its commands
        """The command itself."""
        return self._listed.load()

    @override
    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Return a context of the command itself, in which its arguments are parsed."""
        return self.loaded.make_context(*args, **kwargs)


def lazy_commands(commands: Iterable[Listed]) -> dict[str, Any]:
    """Return the commands of a group by name."""
    return {listed.name: LazyCommand(listed) for listed in commands}
