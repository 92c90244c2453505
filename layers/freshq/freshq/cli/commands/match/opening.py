"""Opens the resources of an address, for the commands of `freshq match`."""

from __future__ import annotations

from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typing_extensions import override

from freshq.cli.addresses import HISTORY_OPTIONS, Address, Converters, dynamodb_client, split_options
from freshq.cli.command import SessionCommand
from freshq.cli.output import Output
from freshq.cli.session import confirm, is_interactive
from freshq.errors import quoted
from freshq.matching.queue import MatchQueue
from freshq.model.checks import without_password

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

OPTIONS: Final[Converters] = {"order": str, "lease_seconds": float}
ACCOUNT_OPTIONS: Final[Converters] = {"region": str, "profile": str}
DEFAULT_TABLE: Final = "resources"
RESOURCES_PANEL: Final = "Resources"


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchOptions:
    """The options that every command of `freshq match` takes."""

    queue: Annotated[
        str | None,
        typer.Option(
            envvar="FRESHQ_MATCH_QUEUE",
            metavar="URL",
            help="Where the resources are: dynamodb://TABLE?order=..&lease_seconds=.., "
            "sqlite:///FILE?history=on, postgresql://...",
            rich_help_panel=RESOURCES_PANEL,
        ),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.", rich_help_panel=RESOURCES_PANEL)] = (
        False
    )


@dataclass(frozen=True, slots=True)
class MatchSession:
    """What a command works on.

    Attributes:
        queue: The resources.
        address: Their address.
        output: Where the answer goes.
        can_ask: Whether there is a person to answer a question.
    """

    queue: MatchQueue
    address: str
    output: Output
    can_ask: bool

    def confirm(self, question: str, *, yes: bool) -> None:
        """Return if the user confirms an action that cannot be undone.

        Raises:
            ValueError: If there is nobody to ask.
            RefusedError: If the user declines.
        """
        confirm(question, yes=yes, can_ask=self.can_ask)


class MatchContext(typer.Context):
    """The context of a command of `freshq match`.

    Attributes:
        session: The resources, and where the answer goes.
    """

    session: MatchSession


@contextmanager
def _session(options: MatchOptions) -> Iterator[MatchSession]:
    """Yield a session on the resources that the options name."""
    if not options.queue:
        raise ValueError("queue: missing; give --queue URL, or set FRESHQ_MATCH_QUEUE")
    with closing(open_match_queue(options.queue)) as queue:
        output = Output(as_json=options.as_json)
        yield MatchSession(queue, without_password(options.queue), output, is_interactive())


class MatchCommand(SessionCommand):
    """A command that takes `MatchOptions` besides its own, and opens the resources that they name."""

    context_class = MatchContext
    options_class = MatchOptions

    @override
    def open_session(self, context: Any, options: Any) -> AbstractContextManager[MatchSession]:
        return _session(options)


def open_match_queue(text: str) -> MatchQueue:
    """Return the resources of an address.

    Raises:
        ValueError: If the address is wrong, or names no store that outlives a command.
        StoreError: If the store cannot be reached.
    """
    address = Address.parse(text)
    if address.scheme == "memory":
        raise ValueError(
            "queue: memory:// would forget everything when this command ends; give dynamodb://TABLE or "
            "sqlite:///FILE. In one process use MatchQueue.memory(), as `freshq example call-center` does"
        )
    on_dynamodb = address.scheme == "dynamodb"
    known = OPTIONS | (ACCOUNT_OPTIONS if on_dynamodb else HISTORY_OPTIONS)
    options, others = split_options(address.options, known)
    if not on_dynamodb:  # other options are the driver's
        table = address.table or DEFAULT_TABLE
        return MatchQueue.sql(str(replace(address, options=others)), table, **options)
    if others:
        msg = f"queue: unknown option {quoted(next(iter(others)))} in the address; use {', '.join(known)}"
        raise ValueError(msg)
    return _on_dynamodb(address.location, options)


def _on_dynamodb(table: str, options: Mapping[str, Any]) -> MatchQueue:
    account = {name: options.get(name) for name in ACCOUNT_OPTIONS}
    client = dynamodb_client(table, **account) if any(account.values()) else None
    return MatchQueue.dynamodb(table, client, **{name: options[name] for name in OPTIONS if name in options})
