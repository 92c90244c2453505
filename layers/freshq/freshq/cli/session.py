"""What every command of a queue shares: how it finds its queue, and what its exit status says."""

from __future__ import annotations

import functools
import inspect
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer
from typer.core import TyperGroup

from freshq.cli.addresses import open_queue, stack_queue
from freshq.cli.output import Output, printable
from freshq.errors import RefusedError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from freshq.model.answers import Claim
    from freshq.queue.base import BaseQueue

REFUSED_STATUS: Final = 1
WRONG_USE_STATUS: Final = 2
UNREACHABLE_STATUS: Final = 3
# Typer's own errors of wrong use; it names only this one of them in public.
UsageProblem: Final = cast("type[Exception]", typer.BadParameter.__bases__[0])


@dataclass
class Session:
    """A queue in use by one command, or by all commands of a shell.

    Attributes:
        queue: The queue.
        output: Where answers go.
        can_ask: Whether there is somebody to answer a question.
        address: How the queue was found; None if not by an address.
        current: Id of the task that commands are about unless they say otherwise; the shell's.
        claims: What is held, by task id.
        seen: Ids that were met, the latest last.
    """

    queue: BaseQueue
    output: Output
    can_ask: bool
    address: str | None = None
    current: str | None = None
    claims: dict[str, Claim] = field(default_factory=dict)
    seen: dict[str, None] = field(default_factory=dict)

    def task_id(self, given: str | None) -> str:
        """Return the task that a command is about."""
        task_id = given or self.current
        if not task_id:
            raise ValueError("task_id: missing; say which task")
        return task_id

    def claim(self, given: str | None, token: str | None) -> Claim:
        """Return the claim that a command is to settle.

        Raises:
            ValueError: If there is no token to prove it with.
            RefusedError: If it holds its task no more.
        """
        task_id = self.task_id(given)
        held = self.claims.get(task_id)
        if token is None and held is None:
            msg = f"token: missing for task {printable(task_id)!r}; claim printed it (--token TOKEN)"
            raise ValueError(msg)
        return (
            held
            if held is not None and token in (None, held.token)
            else self.queue.held(task_id, token or "")
        )

    def hold(self, *claims: Claim) -> None:
        """Remember claims; the last one's task becomes the current one."""
        for claim in claims:
            self.claims[claim.task.task_id] = claim
            self.current = claim.task.task_id
            self.see(claim.task.task_id)

    def see(self, *task_ids: str) -> None:
        """Remember ids, to be completed when they are typed."""
        for task_id in task_ids:
            self.seen.pop(task_id, None)
            self.seen[task_id] = None

    def make_sure(self, question: str, *, yes: bool) -> None:
        """Return if what cannot be undone is meant.

        Raises:
            ValueError: If it was not said, and nobody can be asked.
            RefusedError: If it is not meant.
        """
        if yes:
            return
        if not self.can_ask:
            raise ValueError("yes: nobody can be asked here; add --yes if it is meant. Nothing was done")
        if not typer.confirm(question, err=True):
            raise RefusedError("not confirmed; nothing was done")


def is_interactive() -> bool:
    """Return whether a person is at the other end of the standard input."""
    return sys.stdin.isatty()


def print_error(problem: object) -> None:
    """Print one line to standard error."""
    typer.echo(f"freshq: {printable(' '.join(str(problem).split()))}", err=True)


def status_of(error: Exception) -> int:
    """Return the exit status that an error stands for."""
    if isinstance(error, StoreError):
        return UNREACHABLE_STATUS
    return REFUSED_STATUS if isinstance(error, RefusedError) else WRONG_USE_STATUS


class OneLineErrors(TyperGroup):
    """Commands whose errors are one line each."""

    def main(self, args: Sequence[str] | None = None, *_: Any, **extra: Any) -> Any:  # noqa: ANN401 - Typer's
        """Run a command and end the process with its status."""
        extra.pop("standalone_mode", None)
        sys.exit(self.status(args, **extra))

    def status(self, args: Sequence[str] | None = None, **extra: Any) -> int:  # noqa: ANN401 - Typer's own form
        """Run a command and return its status."""
        try:
            status = super().main(args, standalone_mode=False, **extra)
        except UsageProblem as error:
            # A group that was called without a command has printed its help already.
            if message := cast("Any", error).format_message():
                print_error(message)
            return WRONG_USE_STATUS
        except typer.Abort:
            print_error("stopped; nothing was done")
            return REFUSED_STATUS
        return status if isinstance(status, int) else 0


# What every command takes besides its own arguments.
SHARED: Final[dict[str, tuple[Any, Any]]] = {
    "queue": (
        Annotated[
            str | None,
            typer.Option(
                envvar="FRESHQ_QUEUE",
                metavar="URL",
                help="The queue: dynamodb://TABLE?name=..&order=.., sqlite:///FILE, postgresql+psycopg://...",
            ),
        ],
        None,
    ),
    "stack": (
        Annotated[str | None, typer.Option(help="The queue of this deployed stack, instead of --queue.")],
        None,
    ),
    "name": (Annotated[str | None, typer.Option(help="Name of the queue there.")], None),
    "as_json": (Annotated[bool, typer.Option("--json", help="Print JSON.")], False),
}


def verb(function: Callable[..., None]) -> Callable[..., None]:
    """Return the command that calls a function of a session and of its own arguments."""
    own = [
        parameter
        for parameter in inspect.signature(function, eval_str=True).parameters.values()
        if parameter.name != "session"
    ]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in SHARED.items()
    ]
    context = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)
    keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]

    @functools.wraps(function)
    def command(*, context: typer.Context, **given: Any) -> None:  # noqa: ANN401 - as typed
        place = {name: given.pop(name) for name in SHARED}
        try:
            _run(context, place, functools.partial(function, **given))
        except (ValueError, RefusedError, StoreError) as error:
            print_error(error)
            raise typer.Exit(status_of(error)) from error

    parameters = [context, *keyword, *shared]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _run(context: typer.Context, place: dict[str, Any], function: Callable[[Session], None]) -> None:
    if isinstance(context.obj, Session):
        _refuse_other_queue(context)
        shell: Session = context.obj
        outer, shell.output = shell.output, Output(as_json=place["as_json"] or shell.output.as_json)
        try:
            function(shell)
        finally:
            shell.output = outer
        return
    address = None if place["stack"] else place["queue"]
    output = Output(as_json=place["as_json"])
    session = Session(_find(context, place), output, can_ask=is_interactive(), address=address)
    try:
        function(session)
    finally:
        session.queue.close()


def _find(context: typer.Context, place: dict[str, Any]) -> BaseQueue:
    address, stack, name = place["queue"], place["stack"], place["name"]
    if stack is not None:
        if _typed(context, "queue"):
            raise ValueError("stack: give either --queue or --stack")
        return stack_queue(stack, name)
    if not address:
        raise ValueError("queue: missing; give --queue URL or --stack NAME, or set FRESHQ_QUEUE")
    return open_queue(address, name)


def _refuse_other_queue(context: typer.Context) -> None:
    for option in ("queue", "stack", "name"):
        if _typed(context, option):
            msg = f"{option}: the shell has its queue already; leave --{option} out"
            raise ValueError(msg)


def _typed(context: typer.Context, option: str) -> bool:
    source = context.get_parameter_source(option)
    return source is not None and source.name == "COMMANDLINE"
