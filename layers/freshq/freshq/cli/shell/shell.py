"""Runs lines as commands of one queue, with a current task."""

from __future__ import annotations

import difflib
import json
import shlex
import shutil
from typing import TYPE_CHECKING, Final

import typer

from freshq.cli.command import OneLineErrors
from freshq.cli.commands.verbs import VERBS
from freshq.cli.errors import ExitStatus, exit_status, print_error, printable
from freshq.cli.listing import lazy_commands
from freshq.cli.output import details
from freshq.cli.shell.drafts import Drafts
from freshq.cli.shell.shell_commands import ShellCommands
from freshq.errors import FreshqError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from freshq.cli.session import Session

# Most of them are the names of the seed article's priority queue.
ALIASES: Final = {
    "?": "help", "h": "help", "q": "quit", "exit": "quit",
    "peek": "claim", "complete": "done", "invalid": "fail", "remove": "cancel",
    "en": "enqueue", "ct": "create-test", "system": "sys",
    "qstat": "stats", "qstats": "stats", "stat": "stats",
}  # fmt: skip
# After these a payload or a record needs no quotes.
TAKE_JSON: Final = frozenset({"put", "enqueue", "en", "record put", "record upsert"})
HELP: Final = (
    ("id [TASK_ID]", "make a task the current one and show it; without an id, clear the current task"),
    ("info, data, sys", "the current task: everything, its payload, its state"),
    ("put JSON [--id ID]", "put a task; {...} and [...] need no quotes around them"),
    (
        "create-test, ct",
        "make four test records, under construction: in an attached table, or known to this shell until put",
    ),
    (
        "ready, update READY_TO_SHIP",
        "make a record ready; return a dead letter or claimed task to the queue",
    ),
    ("reset", "put a record under construction again"),
    ("enqueue, en [ID]", "put a record into the queue"),
    ("claim, peek", "claim the next task; it becomes the current one"),
    ("done, fail (invalid)", "settle the claim as SUCCESS, or as a dead letter"),
    ("retry, release, extend", "return the task for later, return it uncounted, or extend its lease"),
    ("restore", "return a claimed task or a dead letter to the queue, as if it were put now"),
    ("dequeue", "claim and done in one: at most once"),
    ("touch, reprioritize N, cancel (remove)", "a pending task: make it new, move it, cancel it"),
    ("bury", "make a dead letter of a pending task; --force, also of cancel: of a held one"),
    ("ls, get, stats (qstat)", "look; ls --status FAILURE, --limit N"),
    ("dlq [ls | claim | redrive | restore | purge]", "dead letters: list, claim, redrive, restore, delete"),
    ("hold, ready [ID]", "on an attached table: put a record under construction, make it ready"),
    ("record [put | upsert | get | delete]", "on an attached table: the record itself"),
    ("pause, resume, purge", "suspend claims, allow them, delete everything"),
    ("aws PROFILE [REGION]", "reopen the same queue with other credentials"),
    ("COMMAND --help", "the arguments of a command"),
    ("quit", "leave"),
)


class Shell:
    """Runs lines as commands of one queue.

    Attributes:
        session: The queue, and what the commands remember.
        worst_status: The highest exit status of the lines run.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.worst_status = 0
        self._ended = False
        own = ShellCommands(session, Drafts(), self.run_verb)
        self._own: dict[str, Callable[[list[str]], None]] = {
            **own.commands(),
            "help": self._help,
            "quit": self._quit,
        }
        self._verbs = lazy_commands(VERBS)
        self._group = OneLineErrors(commands=self._verbs)
        self._before_verb = own.before_verb
        self._list_drafts = own.list_drafts

    @property
    def names(self) -> list[str]:
        """Names of all commands, aliases included."""
        return sorted({*self._own, *self._verbs, *ALIASES})

    def options(self, name: str) -> list[str]:
        """Return what may follow a command: its options, or its subcommands."""
        lazy = self._verbs.get(ALIASES.get(name, name))
        command = None if lazy is None else lazy.loaded
        inner = list(getattr(command, "commands", {}))
        hidden = {"--queue", "--stack", "--name"}
        options = [option for parameter in getattr(command, "params", []) for option in parameter.opts]
        return inner + [option for option in options if option.startswith("--") and option not in hidden]

    def run_all(self, lines: Iterable[str]) -> int:
        """Run lines to the end or until quit; return the worst status."""
        for line in lines:
            self.worst_status = max(self.worst_status, self.run(line))
            if self._ended:
                break
        return self.worst_status

    def run(self, line: str) -> int:
        """Run one line and return its status. Errors are printed, not raised."""
        try:
            self._run(split(line))
        except (ValueError, FreshqError) as error:
            print_error(error)
            return exit_status(error)
        except typer.Exit as ended:
            return ended.exit_code
        except KeyboardInterrupt:
            if not self.session.can_ask:
                raise
            print_error("interrupted")
            return ExitStatus.REFUSED
        return 0

    def _run(self, words: list[str]) -> None:
        if not words:
            return
        typed, *arguments = words
        name = ALIASES.get(typed.lower(), typed.lower())
        if name in self._own:
            self._own[name](arguments)
        elif name in self._verbs:
            self._run_listed(name, arguments)
        else:
            raise ValueError(self._unknown(typed))

    def _run_listed(self, name: str, arguments: list[str]) -> None:
        self._before_verb(name, arguments)
        if status := self.run_verb([name, *arguments]):
            raise typer.Exit(status)
        if name == "ls" and not arguments:
            self._list_drafts()

    def run_verb(self, words: list[str]) -> int:
        """Run a command of the command line on the shell's queue and return its status."""
        if words == ["dlq"]:
            words = ["dlq", "ls"]
        return self._group.status(words, prog_name="", obj=self.session)

    def _unknown(self, typed: str) -> str:
        near = difflib.get_close_matches(typed.lower(), self.names, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "help lists the commands"
        return f"unknown command {printable(typed)!r}; {hint}"

    def _help(self, _: list[str]) -> None:
        console = self.session.output.console
        console.print(details(dict(HELP)), width=min(console.width, shutil.get_terminal_size().columns))

    def _quit(self, _: list[str]) -> None:
        self._ended = True


def split(line: str) -> list[str]:
    """Return the words of a line. The JSON after the commands of `TAKE_JSON` needs no quotes.

    Raises:
        ValueError: If a quotation is not closed.
    """
    stripped = line.strip()
    if not stripped or stripped.startswith("#"):
        return []
    first, _, rest = stripped.partition(" ")
    rest = rest.lstrip()
    if first.lower() == "record":
        verb, _, rest = rest.partition(" ")
        first, rest = f"{first} {verb}", rest.lstrip()
    if first.lower() in TAKE_JSON and rest[:1] in {"{", "["}:
        try:
            _, end = json.JSONDecoder().raw_decode(rest)
        except ValueError as error:
            msg = f"payload: must be JSON ({error})"
            raise ValueError(msg) from error
        return [*first.split(), rest[:end], *_words(rest[end:])]
    return _words(stripped)


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError as error:
        msg = f"line: {error}"
        raise ValueError(msg) from error
