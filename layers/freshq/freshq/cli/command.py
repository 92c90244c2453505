"""Arguments that commands share, and the exit of a command."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import closing, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, cast, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup
from typing_extensions import override

from freshq.cli.errors import (
    CheckedOutput,
    ExitStatus,
    OutputLost,
    checked_output,
    code_of,
    exit_status,
    print_error,
    unwound_by_signals,
)
from freshq.cli.output import Output
from freshq.cli.session import Session, note
from freshq.errors import FreshqError, TableMissing, Unreachable, is_shortage, quoted
from freshq.model.task import storable_text
from freshq.model.validation import parsed_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import TypeVar

    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

    from freshq.queue.base import BaseQueue

    Command = TypeVar("Command", bound=Callable[..., None])

# Variables that name the queue; the first one set counts.
QUEUE_VARIABLES: Final = ("FRESHQ_QUEUE", "DATABASE_URL")
# Maximum number of ids that shells complete.
COMPLETED_IDS: Final = 100


def complete_task_id(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return ids of tasks in the queue of a command that is typed, for the completion of shells."""
    address = ctx.params.get("queue") or next(filter(None, map(os.environ.get, QUEUE_VARIABLES)), None)
    if address is None:
        return []
    with quick_imports():
        from freshq.addresses import open_queue
    try:
        with closing(open_queue(address, ctx.params.get("name"))) as queue:
            return [
                task.task_id
                for task in queue.list(limit=COMPLETED_IDS)
                if task.task_id.startswith(incomplete)
            ]
    except (FreshqError, ValueError):  # the line is not complete; the command itself will say what is wrong
        return []


TaskId = Annotated[
    str | None,
    typer.Argument(
        metavar="TASK_ID",
        help="The task. In the shell, the current task by default.",
        autocompletion=complete_task_id,
    ),
]
Token = Annotated[
    str | None,
    typer.Option(help="The token printed by claim. The shell remembers its own claims."),
]
Error = Annotated[str | None, typer.Option(help="Reason of the failure, stored with the task.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Limit = Annotated[int, typer.Option("--limit", "-n", help="Maximum number of tasks.")]
Cursor = Annotated[str | None, typer.Option(help="Continue after the previous page.")]
LeaseSeconds = Annotated[
    float | None, typer.Option(help="Seconds until the lease expires. By default, the queue's lease.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Port = Annotated[int, typer.Option(min=0, max=65_535, help="Port to serve on; 0 for a free one.")]
# Commands that the audit record of a queue lists, and those of them that only show something without
# arguments.
NOTED: Final = frozenset(
    ("cancel", "configure", "forget", "pause", "purge", "redrive", "reprioritize", "resume", "set", "unset")
)
SHOWING: Final = frozenset({"configure"})
# Typer exports only one subclass of its usage errors, not their base class.
UsageProblem: Final = cast("type[Exception]", typer.BadParameter.__bases__[0])
QUEUE_PANEL: Final = "Queue"
# Width of the help of a group, and the space between its columns.
HELP_CHARS: Final = 80
GAP_CHARS: Final = 3
MAX_INTERVAL_SECONDS: Final = 3600.0
# How help shows the value of a time, and of a number, that may be none.
SECONDS_OR_NONE: Final = "FLOAT|none"
COUNT_OR_NONE: Final = "INTEGER|none"


def parsed(argument: str, text: str) -> Any:
    """Parse JSON from the command line.

    Raises:
        ValueError: If it is not JSON; names the argument.
    """
    try:
        return parsed_json(text)
    except ValueError as error:
        msg = f"{argument}: must be JSON ({error}), got {quoted(text)}; quote a string, or use --text"
        raise ValueError(msg) from error


def instant(argument: str, text: str) -> datetime:
    """Parse an ISO 8601 time from the command line.

    Raises:
        ValueError: If it is not an ISO 8601 time with a time zone; names the argument.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        msg = f"{argument}: must be a time such as 2026-12-01T08:00Z, got {text:.60}"
        raise ValueError(msg) from None
    if moment.tzinfo is None:
        msg = f"{argument}: needs a time zone, got {text:.60}; append Z for UTC, or an offset such as +01:00"
        raise ValueError(msg)
    return moment


@contextmanager
def application_imports() -> Iterator[str]:
    """Allow imports from the current folder inside this block.

    Their output goes to standard error, so that standard output contains only the command's lines.

    Yields:
        Advice for the error if a module is missing.
    """
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    with redirect_stdout(sys.stderr):
        yield f"run the command in its folder (this is {folder}), or set PYTHONPATH"


class PlainFlags:
    """Hides the type `<bool>` of flags in help: they take no value. Joins the lines of a paragraph."""

    def __init__(self, *args: Any, help: str | None = None, **kwargs: Any) -> None:  # noqa: A002 - Typer's name
        paragraphs = ("" if help is None else help).split("\n\n")
        text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        super().__init__(*args, help=text, **kwargs)  # type: ignore[call-arg] # of the class it is mixed into

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options and arguments of a command."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_flag", False) and param.metavar is None:
                param.metavar = ""
        return params


class PlainCommand(PlainFlags, TyperCommand):
    """A command without the options of a queue."""

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; refuse text that is not UTF-8, which no queue can hold."""
        rest = super().parse_args(ctx, args)
        for param in self.params:
            value = ctx.params.get(param.name)
            for text in value if isinstance(value, list | tuple) else [value]:
                if isinstance(text, str) and storable_text(text) != text:
                    raise typer.BadParameter("it is not UTF-8, or the locale is not", ctx, cast("Any", param))
        return rest


class Group(PlainFlags, TyperGroup):
    """A group of commands, whose help has one line for each."""

    @override
    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help as plain text: whatever the terminal, it fits on one screen of 80 columns."""
        usage, text = f"Usage: {ctx.command_path} COMMAND [ARGUMENTS] [--help]", self.help or ""
        between = "  " if len(usage) + len("  ") + len(text) <= HELP_CHARS else "\n"
        formatter.write(f"{usage}{between}{text}\n")
        shown = {name: command for name, command in self.commands.items() if not command.hidden}
        headings = {name: getattr(command, "rich_help_panel", None) or "" for name, command in shown.items()}
        chars = max(map(len, shown), default=0) + GAP_CHARS
        heading_chars = max(map(len, headings.values()), default=0)
        heading_chars += GAP_CHARS if heading_chars else 0
        last = None
        for name, command in shown.items():
            new = headings[name] != last
            last = headings[name]
            text = command.get_short_help_str(HELP_CHARS - heading_chars - chars)
            line = f"{last if new else '':{heading_chars}}{name:{chars}}{text}"
            formatter.write(f"{line}\n")

    @override
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; without any, print the help."""
        if args or ctx.resilient_parsing or not self.no_args_is_help:
            return super().parse_args(ctx, args)
        typer.echo(ctx.get_help())
        raise typer.Exit(ExitStatus.WRONG_USE)


class OneLineErrors(Group):
    """A group of commands that prints each error as one line and maps it to an exit status."""

    @override
    def main(self, args: Sequence[str] | None = None, *_: Any, **extra: Any) -> Any:
        """Run a command and exit with its status."""
        extra.pop("standalone_mode", None)
        with unwound_by_signals(), checked_output() as output:
            status = flushed(self.status(args, **extra), output)
        sys.exit(status)

    def status(self, args: Sequence[str] | None = None, **extra: Any) -> int:
        """Run a command and return its status."""
        try:
            status = super().main(args, standalone_mode=False, **extra)
        except UsageProblem as error:
            # Pydantic puts "Value error" before a reason.
            print_error(cast("Any", error).format_message().replace("Value error, ", ""))
            return ExitStatus.WRONG_USE
        except typer.Abort:
            print_error("aborted; nothing was done")
            return ExitStatus.REFUSED
        except (ValueError, FreshqError) as error:
            print_error(error)
            if isinstance(error, FreshqError) and sys.stderr.isatty():
                print_error(f"`freshq explain {code_of(error)}` says what that means")
            return exit_status(error)
        except OutputLost as error:
            return not_printed(error)
        except (OSError, RuntimeError, MemoryError) as error:
            return of_system(error)
        return status if isinstance(status, int) else 0


def of_system(error: OSError | RuntimeError | MemoryError) -> int:
    """Report an error of the system, and return its status; raise others."""
    if not isinstance(error, OSError) and not is_shortage(error):
        raise error
    print_error(str(error) or "the system has no memory left")
    return ExitStatus.UNREACHABLE


def flushed(status: int, output: CheckedOutput) -> int:
    """Flush the answer of a command, and return its status, or a failure status if the answer is lost."""
    if status == ExitStatus.NOT_PRINTED:
        output.drop()
        return status
    try:
        output.flush()
    except OutputLost as error:
        output.drop()
        return status or not_printed(error)
    return status


def not_printed(error: OutputLost) -> int:
    """Report that standard output failed."""
    if error.errno != errno.EPIPE:  # the reader closed the pipe: it has read enough
        print_error(f"the answer could not be printed: {error.strerror}")
    return ExitStatus.NOT_PRINTED


@contextmanager
def quick_imports() -> Iterator[None]:
    """Turn off Pydantic's plugins for freshq's models: searching for them reads all installed packages."""
    name = "PYDANTIC_DISABLE_PLUGINS"
    before = os.environ.get(name)
    os.environ[name] = "__all__"
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFlags:
    """The options of every command on a queue."""

    queue: Annotated[
        str | None,
        typer.Option(
            envvar=list(QUEUE_VARIABLES),
            metavar="URL",
            help="Address of the queue: dynamodb://TABLE?name=.., sqlite:///FILE, postgresql://...; or a "
            "queue of the application, such as app:queue.",
            rich_help_panel=QUEUE_PANEL,
        ),
    ] = None
    stack: Annotated[
        str | None,
        typer.Option(help="Use the queue of this deployed stack.", rich_help_panel=QUEUE_PANEL),
    ] = None
    name: Annotated[
        str | None,
        typer.Option(help="Name of the queue in its table.", rich_help_panel=QUEUE_PANEL),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.", rich_help_panel=QUEUE_PANEL)] = False


class QueueContext(typer.Context):
    """The context of a command on a queue.

    Attributes:
        session: The queue, and the output of the answer.
    """

    session: Session


class SessionCommand(PlainCommand):
    """A command with shared options besides its own; it runs with the session that they open.

    Attributes:
        options_class: A dataclass of the shared options, each annotated for Typer.
    """

    options_class: ClassVar[type[Any]]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Make the command that Typer describes, with the shared options added."""
        super().__init__(*args, **kwargs)
        app = typer.Typer(add_completion=False)
        app.command()(self.options_class)
        own = {param.name for param in self.params}
        shared = typer.main.get_command(app).params
        self.params = [*self.params, *(param for param in shared if param.name not in own)]
        self._shared = {param.name for param in shared} - own

    @override
    def invoke(self, ctx: Any) -> Any:
        """Run the command with a session in its context."""
        options = self.options_class(**{name: ctx.params.pop(name) for name in self._shared})
        with self.open_session(ctx, options) as ctx.session:
            return super().invoke(ctx)

    def open_session(self, context: Any, options: Any) -> AbstractContextManager[Any]:
        """Return the session that the options open, for a `with` block."""
        raise NotImplementedError


@contextmanager
def _session(context: typer.Context, options: QueueFlags) -> Iterator[Session]:
    """Yield the session of the shell that runs the command, or a new one on the options' queue."""
    if isinstance(context.obj, Session):
        shell = context.obj
        _refuse_other_queue(context)
        outer, shell.output = shell.output, Output(as_json=options.as_json or shell.output.as_json)
        try:
            yield shell
        finally:
            shell.output = outer
        return
    with quick_imports():
        from freshq.queue.core import core_of
    with closing(_open(context, options)) as queue:
        with suppress(ValueError):  # verbs report the same, and `configure` may correct it
            core_of(queue).options.follow()
        address = None if options.stack else options.queue
        output = Output(as_json=options.as_json)
        yield Session(queue, output, address=address, stack=options.stack)


class QueueCommand(SessionCommand):
    """A command on a queue: takes `QueueFlags` besides its own flags, and opens the queue they name."""

    context_class = QueueContext
    options_class = QueueFlags

    @override
    def open_session(self, context: Any, options: Any) -> AbstractContextManager[Session]:
        if "queue" not in self._shared:  # a command that takes several; the session is on the first
            of_environment = filter(None, map(os.environ.get, QUEUE_VARIABLES))
            first = next(iter(context.params["queue"] or of_environment), None)
            options = replace(options, queue=first)
        return _session(context, options) if self.name not in NOTED else _noted(context, options)


@contextmanager
def _noted(context: typer.Context, options: QueueFlags) -> Iterator[Session]:
    """Yield the session, and record the command's outcome in the queue's audit record."""
    given = {name: value for name, value in context.params.items() if is_given(context, name)}
    with _session(context, options) as session:
        outcome = "done"
        try:
            yield session
        except BaseException as ended:
            outcome = _outcome_of(ended)
            raise
        finally:
            verb = str(context.command.name)
            if outcome and (given or verb not in SHOWING):
                words = f"group {verb}" if verb in ("set", "unset") else verb
                note(session.queue, words, given, outcome)


def _outcome_of(ended: BaseException) -> str:
    """Return the outcome for the audit record; empty if the store is missing and cannot take a record."""
    if isinstance(ended, typer.Exit):
        return f"status {ended.exit_code}" if ended.exit_code else "done"
    return "" if isinstance(ended, (TableMissing, Unreachable)) else type(ended).__name__


def _open(context: typer.Context, options: QueueFlags) -> BaseQueue:
    with quick_imports():
        from freshq.addresses import names_object, open_queue
        from freshq.cli.stacks import Stack
    if (own := _queue_of_worker(context)) is not None:
        return own
    if options.stack is not None:
        if is_given(context, "queue"):
            raise ValueError("stack: give either --queue or --stack")
        return Stack.describe(options.stack).queue(options.name)
    if not options.queue:
        raise ValueError(
            "queue: missing; give --queue URL or --stack NAME, or set FRESHQ_QUEUE or DATABASE_URL"
        )
    if not names_object(options.queue):
        return open_queue(options.queue, options.name)
    if options.name is not None:
        raise ValueError("name: the application's queue has a name; leave out --name")
    queues = queues_of_application(options.queue)
    if len(queues) > 1 and context.command.name != "work":
        msg = f"queue: {options.queue} has {len(queues)} queues, `freshq work` alone takes several; name one"
        raise ValueError(msg)
    return queues[0]


def queues_of_application(name: str) -> list[BaseQueue]:
    """Return the queue that a name such as `app:queue` refers to, or the queues of a list.

    Raises:
        ValueError: If there is no such object, or it is no queue.
    """
    with quick_imports():
        from freshq.queue.base import blocking_queue
        from freshq.worker.runner import load_object
    with application_imports() as advice:
        found = load_object("queue", name, advice, what="queue", example="app:queue")
        queues = found if isinstance(found, list) and found else [found]
        return [*map(blocking_queue, queues)]


def _queue_of_worker(context: typer.Context) -> BaseQueue | None:
    """Return the queue of the worker that `freshq work` names; None if it names a runner."""
    name = context.params.get("runner")
    if name is None:
        return None
    with quick_imports():
        from freshq.worker.worker import load_worker, made_with
    with application_imports() as advice:
        worker = load_worker(name, advice)
    if worker is None:
        return None
    for option in ("queue", "stack", "name"):
        if is_given(context, option):
            msg = f"{option}: {name} is a worker, which has its own queue; leave out --{option}"
            raise ValueError(msg)
    return made_with(worker)[0]


def _refuse_other_queue(context: typer.Context) -> None:
    for option in ("queue", "stack", "name"):
        if is_given(context, option):
            msg = f"{option}: not allowed here, the shell works on one queue; leave out --{option}"
            raise ValueError(msg)


def help_of(model: type[BaseModel], name: str) -> str:
    """Return the help text of an option."""
    return str(model.model_fields[name].description)


def with_flags(
    model: type[BaseModel],
    panels: Mapping[str, str | None],
    *,
    show_defaults: bool = True,
) -> Callable[[Command], Command]:
    """Replace a command's `**options` with a flag for each option.

    Args:
        model: The options.
        panels: The options that get flags, each with the heading that help lists it under.
        show_defaults: Whether a flag has the option's default; otherwise it is None unless the user gives it.
    """

    def decorate(command: Command) -> Command:
        hints = get_type_hints(command, include_extras=True)
        own = [
            each.replace(annotation=hints[each.name], kind=Parameter.KEYWORD_ONLY)
            for each in signature(command).parameters.values()
            if each.kind is not Parameter.VAR_KEYWORD
        ]
        flags = [
            _flag(name, model.model_fields[name], panel, show_default=show_defaults)
            for name, panel in panels.items()
        ]
        vars(command)["__signature__"] = Signature([*own, *flags])
        return command

    return decorate


def _flag(name: str, option: FieldInfo, panel: str | None, *, show_default: bool) -> Parameter:
    from freshq.model.storable_options import RULES, QueueRules, count_or_none, seconds_or_none
    from freshq.policy.groups import GroupRules
    from freshq.policy.rules import ReserveRule

    # Options that are not numbers, switches or enumerations are written as text.
    rules = (ReserveRule, GroupRules, *(QueueRules.model_fields[name].annotation for name in RULES))
    written: Any = str if option.annotation in rules else option.annotation
    flag = f"--{name.replace('_', '-')}"  # else a switch would also have --no-...
    parsing: dict[str, Any] = {}
    default = option.default if show_default else None
    if option.annotation == float | None:
        default = None if default is None else f"{default:g}"
        parsing = {"parser": seconds_or_none, "metavar": SECONDS_OR_NONE}
    elif option.annotation == int | None:
        default = None if default is None else str(default)
        parsing = {"parser": count_or_none, "metavar": COUNT_OR_NONE}
    described = typer.Option(flag, help=option.description, rich_help_panel=panel, **parsing)
    return Parameter(
        name,
        Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[written if show_default else written | None, described],
    )


def checked_interval(every_seconds: float) -> float:
    """Return the time between two readings of a queue.

    Raises:
        ValueError: If it is not above 0, or longer than an hour.
    """
    if not 0 < every_seconds <= MAX_INTERVAL_SECONDS:
        msg = f"every_seconds: must be above 0 and at most {MAX_INTERVAL_SECONDS:.0f}, got {every_seconds}"
        raise ValueError(msg)
    return every_seconds


def is_given(context: typer.Context, option: str) -> bool:
    """Return whether an option was given on the command line, not by default or in the environment."""
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"
