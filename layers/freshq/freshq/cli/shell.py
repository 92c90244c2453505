"""`freshq shell`: work on a queue interactively, or run commands from a pipe."""

from __future__ import annotations

import difflib
import json
import shlex
import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import typer

from freshq.addresses import open_queue, with_account
from freshq.cli.command import (
    OneLineErrors,
    QueueContext,
)
from freshq.cli.commands.verbs import print_receipt
from freshq.cli.errors import ExitStatus, exit_status, print_error
from freshq.cli.main import ALIASES as WORDS
from freshq.cli.main import VERBS, lazy_commands
from freshq.cli.output import compact_json, details, state
from freshq.cli.session import is_interactive
from freshq.errors import FreshqError, RefusedError, needs, printable
from freshq.model.task import TaskStatus
from freshq.queue.attached import AttachedQueue
from freshq.queue.core import core_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from freshq.cli.session import Session
    from freshq.model.task import Task

TEST_IDS: Final = ("A-101", "A-202", "A-303", "A-404")
TEST_ITEMS: Final = 3
READY_TO_SHIP: Final = "READY_TO_SHIP"
# Most of them are command names of the AWS article on priority queues, whose peek claims.
ALIASES: Final = {
    "?": "help", "h": "help", "q": "quit", "exit": "quit",
    "peek": "claim", "next": "peek", "invalid": "fail", "remove": "cancel",
    "en": "enqueue", "ct": "create-test", "system": "sys",
    "qstat": "stats", "qstats": "stats", "stat": "stats",
}  # fmt: skip
# The commands that only the shell has; `Shell` has a method for each.
OWN: Final = (
    *("id", "info", "data", "sys", "create-test", "ready", "update", "reset", "enqueue", "restore"),
    *("aws", "help", "quit"),
)
# JSON after these commands needs no quotes.
TAKE_JSON: Final = frozenset({"put", "enqueue", "en", "record put", "record upsert"})
# Shown below the list of commands.
HINTS: Final = (
    "COMMAND --help shows the arguments of a command. Without an id, commands use the current task.",
    "In put and record put, {...} and [...] need no quotes around them.",
)


@dataclass
class Draft:
    """A record that is not in the queue yet.

    Attributes:
        task_id: The id that its task will have.
        payload: The payload that its task will have.
        status: Whether it may be put.
    """

    task_id: str
    payload: Any
    status: TaskStatus = TaskStatus.UNDER_CONSTRUCTION


def shipment(task_id: str) -> dict[str, Any]:
    """Return the payload of a test record."""
    return {
        "id": task_id,
        "items": [{"sku": f"Item-{number}", "packed": True} for number in range(1, TEST_ITEMS + 1)],
    }


# For tasks in the queue, not for drafts.
ON_TASKS: Final = frozenset(
    ("complete", "fail", "retry", "release", "extend", "get", "wait", "cancel", "reprioritize")
)
TASK_VERBS: Final = ON_TASKS | {
    alias for alias, words in WORDS[""].items() if words.split()[0] in ON_TASKS or "--current" in words
}


class Shell:
    """Runs lines as commands of one queue.

    Attributes:
        session: The queue, and values that commands remember, such as the current task.
        worst_status: The highest exit status of the lines run.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.worst_status = 0
        self._ended = False
        # The records that are not in the queue yet.
        self._drafts: dict[str, Draft] = {}
        self._own: dict[str, Callable[[list[str]], None]] = {
            name: getattr(self, f"_{name.replace('-', '_')}") for name in OWN
        }
        self._verbs = lazy_commands(VERBS)
        self._group = OneLineErrors(commands=self._verbs)

    @property
    def names(self) -> list[str]:
        """Names of all commands, aliases included."""
        return sorted({*self._own, *self._verbs, *ALIASES})

    def options(self, name: str) -> list[str]:
        """Return the options and subcommands of a command."""
        lazy = self._verbs.get(ALIASES.get(name, name))
        command = getattr(lazy, "loaded", lazy)
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
            if not is_interactive():
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
        self._verb(name, *arguments)
        if name in {"list", "ls"} and not arguments:
            self._list_drafts()

    def _before_verb(self, name: str, arguments: list[str]) -> None:
        """Refuse a verb for tasks on a draft, named or current.

        Raises:
            RefusedError: If the task is a draft; the message has its status.
        """
        named = [argument for argument in arguments if not argument.startswith("-")]
        draft = self._draft(named)
        if draft is not None and name in TASK_VERBS and "--help" not in arguments:
            msg = f"record {draft.task_id!r}: cannot {name} a record that is {draft.status}; enqueue it first"
            raise RefusedError(msg)

    def _list_drafts(self) -> None:
        """Print the records that are not in the queue yet."""
        if self.session.output.as_json:
            return
        for draft in self._drafts.values():
            typer.echo(f"not queued: {printable(draft.task_id)}  {draft.status}")

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
        """List the commands."""
        console = self.session.output.console
        width = min(console.width, shutil.get_terminal_size().columns)
        helps = {name: verb.help for name, verb in self._verbs.items() if not verb.hidden}
        helps |= {name: str(command.__doc__) for name, command in self._own.items()}
        shown = {}
        for name, text in helps.items():
            own = [] if name in ALIASES else [name]
            shown[", ".join([*own, *(alias for alias, of in ALIASES.items() if of == name)])] = text
        console.print(details(shown), "", *HINTS, sep="\n", width=width)

    def _quit(self, _: list[str]) -> None:
        """Leave the shell."""
        self._ended = True

    def _verb(self, *words: str) -> None:
        status = self.run_verb(list(words))
        if status:
            raise typer.Exit(status)

    def _task(self, arguments: list[str]) -> Task:
        task_id = self.session.task_id(arguments[0] if arguments else None)
        task = core_of(self.session.queue).found(task_id)
        self.session.see(task_id)
        return task

    def _draft(self, arguments: list[str]) -> Draft | None:
        return self._drafts.get(arguments[0] if arguments else self.session.current or "")

    def _id(self, arguments: list[str]) -> None:
        """Make a task the current one and show it. Without an id, clear the current task."""
        if not arguments:
            self.session.current = None
            self.session.output.answer({"current": None}, "no current task")
            return
        self._info(arguments)
        self.session.current = arguments[0]

    def _info(self, arguments: list[str]) -> None:
        """Show everything about the current task or record."""
        draft = self._draft(arguments)
        if draft is None:
            self.session.output.task(self._task(arguments), self.session.queue.admin.now())
            return
        status = draft.status.value
        answer = {"task_id": draft.task_id, "status": status, "payload": draft.payload}
        facts = {"record": draft.task_id, "status": status, "payload": compact_json(draft.payload)}
        self.session.output.answer(answer, facts)

    def _data(self, arguments: list[str]) -> None:
        """Show the payload of the current task or record."""
        shown = self._draft(arguments) or self._task(arguments)
        self.session.output.console.print_json(data=shown.payload)

    def _sys(self, arguments: list[str]) -> None:
        """Show the state of the current task or record."""
        draft = self._draft(arguments)
        if draft is not None:
            facts = {"status": draft.status.value}
        else:
            facts = state(self._task(arguments), self.session.queue.admin.now())
        self.session.output.answer(facts, facts)

    def _create_test_records(self, queue: AttachedQueue) -> None:
        """Write missing test records into an attached table, under construction."""
        answer, lines = [], []
        for record_id in TEST_IDS:
            if new := queue.records.get(record_id) is None:
                queue.records.put(shipment(record_id) | queue.records.key(record_id))
                queue.records.hold(record_id)
            record = queue.get(record_id)
            status = "in another queue" if record is None else record.status.value
            answer.append({"task_id": record_id, "status": status})
            lines.append(f"record {record_id}: {status}" + ("" if new else ", existed already"))
        self.session.output.answer(answer, *lines)

    def _create_test(self, _: list[str]) -> None:
        """Make four test records under construction: in an attached table, else known to this shell only."""
        if isinstance(self.session.queue, AttachedQueue):
            self._create_test_records(self.session.queue)
        else:
            self._create_drafts()
        self.session.see(*TEST_IDS)

    def _create_drafts(self) -> None:
        queued = [task for task in map(self.session.queue.get, TEST_IDS) if task is not None]
        taken = {task.task_id for task in queued}
        made = {task_id: Draft(task_id, shipment(task_id)) for task_id in TEST_IDS if task_id not in taken}
        self._drafts |= made
        known: list[Draft | Task] = [*made.values(), *queued]
        answer = [{"task_id": each.task_id, "status": each.status.value} for each in known]
        lines = [f"record {draft.task_id}: {draft.status}" for draft in made.values()]
        lines += [f"task {task.task_id}: already in the queue, {task.status}" for task in queued]
        hint = [f"not queued yet: use id {min(made)}, then enqueue"] if made else []
        self.session.output.answer(answer, *lines, *hint)

    def _ready(self, arguments: list[str]) -> None:
        """Make a record ready, or return a dead letter or a claimed task to the queue."""
        draft = self._draft(arguments)
        if draft is not None:
            self._mark(draft, TaskStatus.READY)
            return
        task = self._task(arguments)
        if task.status is TaskStatus.FAILURE:
            self._verb("redrive", task.task_id)
        elif task.status is TaskStatus.TAKEN:
            self._verb("release", task.task_id)
        elif isinstance(self.session.queue, AttachedQueue):
            self._verb("ready", task.task_id)
        else:
            msg = f"task {task.task_id!r}: cannot make ready a task that is {task.status}"
            raise RefusedError(msg + "; ready needs a record, a dead letter or a claimed task")

    def _mark(self, draft: Draft, status: TaskStatus) -> None:
        draft.status = status
        answer = {"task_id": draft.task_id, "status": draft.status.value}
        self.session.output.answer(answer, f"record {draft.task_id}: {draft.status}")

    def _update(self, arguments: list[str]) -> None:
        """With READY_TO_SHIP, make the current record ready."""
        if [argument.upper() for argument in arguments] != [READY_TO_SHIP]:
            msg = f"status: must be {READY_TO_SHIP}, got {' '.join(arguments)!r}"
            raise ValueError(msg)
        self._ready([])

    def _reset(self, arguments: list[str]) -> None:
        """Put a record under construction again."""
        draft = self._draft(arguments)
        if draft is not None:
            self._mark(draft, TaskStatus.UNDER_CONSTRUCTION)
            return
        task = self._task(arguments)
        if not isinstance(self.session.queue, AttachedQueue):
            msg = f"task {task.task_id!r}: cannot reset a task that is {task.status}; it is in the queue"
            raise RefusedError(msg)
        self._verb("hold", task.task_id)

    def _enqueue(self, arguments: list[str]) -> None:
        """Put a record, or a new task, into the queue."""
        draft = self._draft(arguments)
        if draft is not None:
            receipt = self.session.queue.put(draft.payload, task_id=draft.task_id)
            del self._drafts[draft.task_id]
            print_receipt(self.session, receipt)
        elif isinstance(self.session.queue, AttachedQueue):
            record_id = self.session.task_id(arguments[0] if arguments else None)
            record = self.session.queue.get(record_id)
            if record is not None and record.status is TaskStatus.UNDER_CONSTRUCTION:
                self._verb("ready", record_id)
            self._verb("put", "--task-id", record_id, *arguments[1:])
        elif arguments:
            self._verb("put", *arguments)
        else:
            task = self._task([])
            msg = f"task {task.task_id!r}: already queued, it is {task.status}; nothing was changed"
            raise RefusedError(msg)

    def _restore(self, arguments: list[str]) -> None:
        """Return tasks to their lines as if they were put now. Claims of this shell need no --force."""
        self._before_verb("restore", arguments)
        named = [argument for argument in arguments if not argument.startswith("-")]
        for task_id in named or filter(None, [self.session.current]):
            if task_id in self.session.claims:
                self._verb("release", task_id)
        self._verb("restore", *arguments)

    def _aws(self, arguments: list[str]) -> None:
        """Reopen the same queue with other credentials: aws PROFILE [REGION]."""
        if not 1 <= len(arguments) <= 2:  # noqa: PLR2004 - as the message says
            raise ValueError("aws: must look like aws PROFILE [REGION]")
        account = dict(zip(("profile", "region"), arguments, strict=False))
        queue = open_queue(with_account(self.session.address, account), self.session.queue.name)
        stats = queue.stats(approximate=True)
        self.session.queue.close()
        self.session.queue = queue
        answer = {"profile": arguments[0], "pending": stats.pending}
        self.session.output.answer(answer, f"connected: {stats.pending:,} tasks pending")


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


def shell(context: QueueContext) -> None:
    """Type these commands at a prompt, or pipe them in.

    Exits with the worst status of the commands.
    """
    session = context.session
    running = Shell(session)
    if is_interactive():
        with needs("cli"):
            from freshq.cli.prompt import prompted

        typer.echo(f"queue {session.queue.name}; help lists the commands, quit leaves")
        running.run_all(prompted(session, running.names, running.options))
    elif status := running.run_all(sys.stdin):
        raise typer.Exit(status)
