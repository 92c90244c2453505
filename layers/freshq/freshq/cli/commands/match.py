"""`freshq match`: resources, callers and matches."""

from __future__ import annotations

import random
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Column, Table
from typing_extensions import override

from freshq.addresses import MATCH_OPTIONS, open_match_queue, split_options
from freshq.cli.command import Group, SessionCommand, Yes, parsed
from freshq.cli.output import Output, compact_json, counted, span
from freshq.cli.people import made_up_agents, made_up_callers
from freshq.cli.session import confirm
from freshq.errors import RefusedError, printable, quoted, without_secrets
from freshq.matching.match import held_match
from freshq.matching.queue import MatchQueue
from freshq.matching.resource import ResourceStatus
from freshq.model.checks import MAX_COUNT
from freshq.model.codec import holder
from freshq.model.storable_options import as_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from freshq.matching.match import Match
    from freshq.matching.places import Attributes
    from freshq.matching.resource import Caller, Resource

RESOURCES_PANEL: Final = "Resources"
# How long a match without a lease is held.
HELD: Final = "until it is completed or released"
Limit = Annotated[int, typer.Option("--limit", "-n", help="Maximum number of matches.")]
StoredOrder = Annotated[
    str | None, typer.Option("--order", metavar="ORDER", help="The order of the resources: fifo or lifo.")
]
Token = Annotated[str, typer.Option(help="The token that match printed.")]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Settle without a token, whoever holds the resource: for a supervisor, when the holder is gone.",
    ),
]
OptionalToken = Annotated[str | None, typer.Option(help="The token that match printed.")]
OptionalId = Annotated[str | None, typer.Argument(metavar="[ID]", help="The resource.")]
CallerId = Annotated[str, typer.Argument(metavar="CALLER", help="The id of the caller.")]
AllMatched = Annotated[
    bool, typer.Option("--all", help="Every matched resource, including those that callers still use.")
]
ResourceId = Annotated[str, typer.Argument(metavar="ID", help="The resource.")]
ResourceIds = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="The resources.")]
AllAvailable = Annotated[bool, typer.Option("--all", help="Every available resource.")]
Status = Annotated[
    str | None,
    typer.Option(metavar="STATUS", help="Only resources with this status: AVAILABLE, QUEUED or MATCHED."),
]
ListLimit = Annotated[
    int | None,
    typer.Option(
        "--limit",
        "-n",
        min=1,
        max=MAX_COUNT,
        help="Maximum number, by default 100; with --depths largest count, 1000.",
    ),
]
InLine = Annotated[bool, typer.Option("--callers", help="List the callers who wait in line, in order.")]
Depths = Annotated[
    bool, typer.Option("--depths", help="Count the waiting resources for each combination of values.")
]
Agents = Annotated[int, typer.Option("--agents", min=0, max=10_000, help="Number of agents to register.")]
Callers = Annotated[int, typer.Option("--callers", min=0, max=10_000, help="Number of callers who ask.")]
Seed = Annotated[int, typer.Option(help="Seed of the random people.")]
MOST_LISTED: Final = 100
MOST_COUNTED: Final = 1000
ANY: Final = "*"
OTHER: Final = ","
EQUAL: Final = "/"
AttributePairs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME=VALUE,...]...", help="Attributes that callers can ask for: language=English,Spanish."
    ),
]
AttributesJson = Annotated[
    str | None,
    typer.Option("--attributes", metavar="JSON", help="Attributes as JSON, for values that contain a comma."),
]
Data = Annotated[
    str | None,
    typer.Option(
        metavar="JSON", help="What callers need but do not ask for, returned with the match; any JSON."
    ),
]
CriteriaPairs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME=VALUE,...]...",
        help="Wishes of the caller, best first: language=Spanish,English. A / separates equally good "
        "values, and * is any value. A name that is left out does not matter.",
    ),
]
CriteriaJson = Annotated[
    str | None,
    typer.Option(
        "--criteria",
        metavar="JSON",
        help="Criteria as JSON: a list is in order of preference, an inner list has equally good values, "
        "and null is any value.",
    ),
]
app = typer.Typer(
    cls=Group,
    help="Match callers to resources, such as call-center agents.\n\n"
    "Five more are for the table: create, configure, generate, recover, delete.",
    add_completion=False,
    no_args_is_help=True,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchOptions:
    """The options of every command of `freshq match`."""

    queue: Annotated[
        str | None,
        typer.Option(
            envvar="FRESHQ_MATCH_QUEUE",
            metavar="URL",
            help="Address of the resources: dynamodb://TABLE?order=..&lease_seconds=.., "
            "sqlite:///FILE?history=on, postgresql://...",
            rich_help_panel=RESOURCES_PANEL,
        ),
    ] = None
    lease: Annotated[
        str | None,
        typer.Option(
            "--lease",
            "--lease-seconds",
            metavar="SECONDS|none",
            help="How long the matches of this command hold their resources; none: until they are completed "
            "or released. By default an hour.",
            rich_help_panel=RESOURCES_PANEL,
        ),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.", rich_help_panel=RESOURCES_PANEL)] = (
        False
    )


@dataclass(frozen=True, slots=True)
class MatchSession:
    """The resources of a command, and its output.

    Attributes:
        queue: The resources.
        address: Their address.
        output: Prints the answer.
        lease: The lease that the command line names.
    """

    queue: MatchQueue
    address: str
    output: Output
    lease: str | None = None

    def listing(
        self,
        headings: Sequence[str | Column],
        rows: Iterable[Sequence[str]],
        fields: dict[str, Any],
        nothing: str,
    ) -> None:
        """Print a table, or the same as JSON.

        Args:
            headings: The headings of the columns.
            rows: The rows of the table.
            fields: The values for JSON; `more` says whether there are more rows.
            nothing: The output if there are no rows.
        """
        table = Table(*headings, box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for column in table.columns:
            column.overflow = "fold"
        for row in rows:
            table.add_row(*row)
        more = ["more: raise --limit"] if fields.get("more") else []
        self.output.answer(fields, table if table.rows else nothing, *more)


class MatchContext(typer.Context):
    """The context of a command of `freshq match`.

    Attributes:
        session: The resources, and the output of the answer.
    """

    session: MatchSession


class MatchCommand(SessionCommand):
    """A command that takes `MatchOptions` besides its own, and opens the resources that they name."""

    context_class = MatchContext
    options_class = MatchOptions

    @override
    @contextmanager
    def open_session(self, context: Any, options: Any) -> Iterator[MatchSession]:
        if not options.queue:
            raise ValueError("queue: missing; give --queue URL, or set FRESHQ_MATCH_QUEUE")
        with open_match_queue(options.queue, options.lease) as queue:
            output = Output(as_json=options.as_json)
            yield MatchSession(queue, without_secrets(options.queue), output, options.lease)


def resource_fields(resource: Resource) -> dict[str, Any]:
    """Return a resource as values for JSON, without the token, which is a secret of the holder."""
    known = asdict(resource)
    del known["token"], known["data_json"]
    held = resource.token if resource.status is ResourceStatus.MATCHED else None
    return known | {"data": resource.data} | holder(held)


def match_fields(match: Match) -> dict[str, Any]:
    """Return a match as values for JSON."""
    known = asdict(match)
    del known["data_json"]
    return known | {"data": match.data}


def print_changed(session: MatchSession, resource: Resource) -> None:
    """Print the new state of a resource."""
    caller = "" if resource.caller_id is None else f" to caller {printable(resource.caller_id)}"
    line = f"resource {printable(resource.resource_id)}: {resource.status}{caller}"
    session.output.answer(resource_fields(resource), line)


def print_resources(session: MatchSession, resources: Sequence[Resource], *, more: bool) -> None:
    """Print a listing of resources; `more` says whether there are more."""
    now = session.queue.admin.now()
    rows = (
        (
            printable(resource.resource_id),
            resource.status.value,
            "-" if resource.since is None else span(max(0.0, now - resource.since)),
            attributes_text(resource.attributes),
            _held_by(resource, now),
        )
        for resource in resources
    )
    fields = {"resources": [resource_fields(resource) for resource in resources], "more": more}
    session.listing(("resource", "state", "waiting", "attributes", "held by"), rows, fields, "no resources")


def _held_by(resource: Resource, now: float) -> str:
    """Return the caller of a matched resource, the worker that named itself, and the rest of its lease."""
    if resource.status is not ResourceStatus.MATCHED:
        return "-"
    worker = holder(resource.token).get("worker")
    who = " at ".join(printable(name) for name in (resource.caller_id, worker) if name is not None) or "?"
    if resource.lease_until is None:
        return f"{who}, no lease"
    left = resource.lease_until - now
    return f"{who}, {span(left)} left" if left > 0 else f"{who}, expired"


def print_matches(session: MatchSession, matches: Sequence[Match]) -> None:
    """Print matches with their full tokens."""
    now = session.queue.admin.now()
    shown = [
        {
            "resource": printable(match.resource_id),
            "token": match.token,
            "held for": HELD if match.lease_until is None else span(match.lease_until - now),
            "attributes": attributes_text(match.attributes),
            **({} if match.data_json is None else {"data": compact_json(match.data)}),
            "preference": str(match.rank + 1),
        }
        for match in matches
    ]
    session.output.answer([match_fields(match) for match in matches], *shown)


def print_callers(session: MatchSession, callers: Sequence[Caller], *, more: bool) -> None:
    """Print waiting callers in order; `more` says whether there are more."""
    now = session.queue.admin.now()
    rows = (
        (printable(caller.caller_id), span(max(0.0, now - caller.since)), compact_json(caller.ranks))
        for caller in callers
    )
    fields = [
        {"caller_id": caller.caller_id, "since": caller.since, "asks": caller.ranks} for caller in callers
    ]
    session.listing(("caller", "waiting", "asks"), rows, {"callers": fields, "more": more}, "no caller waits")


def print_depths(session: MatchSession, depths: Mapping[str, int], limit: int) -> None:
    """Print the number of waiting resources for each combination of values, each counted up to a bound."""
    rows = (
        (
            printable(combination) or "(no attributes)",
            f"{depth:,}" + (" or more" if depth >= limit else ""),
        )
        for combination, depth in depths.items()
    )
    headings = ("combination", Column("waiting", justify="right"))
    session.listing(headings, rows, {"depths": dict(depths), "at_most": limit}, "no resource waits")


def attributes_text(attributes: Attributes) -> str:
    """Return attributes in the form of the command line."""
    return " ".join(f"{printable(name)}={printable(','.join(values))}" for name, values in attributes.items())


def match(
    context: MatchContext, pairs: CriteriaPairs = None, criteria: CriteriaJson = None, limit: Limit = 1
) -> None:
    """Take the fitting resources that waited longest.

    Exits with status 1 if there are none.
    """
    session = context.session
    matches = session.queue.match(criteria_of(pairs, criteria), limit=limit)
    print_matches(session, matches)
    if not matches:
        raise RefusedError("no resource that fits is waiting")


def request(
    context: MatchContext, caller_id: CallerId, pairs: CriteriaPairs = None, criteria: CriteriaJson = None
) -> None:
    """Ask for a resource; wait in line if none is free.

    Exits with status 1 while the caller waits; repeat the command to ask again.
    """
    session = context.session
    match = session.queue.request(criteria_of(pairs, criteria), caller_id=caller_id)
    print_matches(session, [] if match is None else [match])
    if match is None:
        msg = f"caller {quoted(caller_id)}: waits in line; repeat the command to ask again"
        raise RefusedError(msg)


def abandon(context: MatchContext, caller_id: CallerId) -> None:
    """Take a waiting caller out of the line."""
    session = context.session
    if not session.queue.abandon(caller_id):
        msg = f"caller {quoted(caller_id)}: does not wait"
        raise RefusedError(msg)
    session.output.answer({"abandoned": caller_id}, f"caller {printable(caller_id)}: no longer waits")


def held(session: MatchSession, resource_id: str, token: str | None, *, force: bool) -> Match:
    """Return the match with this token, or with `force` the current match of the resource.

    Raises:
        ValueError: If there is neither a token nor `force`, or both.
    """
    if (token is None) is not force:
        raise ValueError(
            "token: missing; give ID --token TOKEN as match printed them, or ID --force to free it from "
            "whoever holds it"
            if token is None
            else "force: not with --token, which says whose match it is"
        )
    return session.queue.admin.held(resource_id, token)


def release(
    context: MatchContext, resource_id: ResourceId, token: OptionalToken = None, force: Force = False
) -> None:
    """Give a resource back unused.

    It waits in its old position.
    """
    session = context.session
    print_changed(session, session.queue.release(held(session, resource_id, token, force=force)))


def complete(
    context: MatchContext,
    resource_id: OptionalId = None,
    token: OptionalToken = None,
    force: Force = False,
    every: AllMatched = False,
    yes: Yes = False,
) -> None:
    """End a match.

    Its resource is then available, but does not wait yet.
    """
    session = context.session
    if every:
        if resource_id is not None or token is not None or force:
            raise ValueError("id: give either a resource with --token, or --all")
        confirm("Complete every match, including those in use?", yes=yes)
        matched = session.queue.resources(ResourceStatus.MATCHED)
        completed = _changed(lambda resource: session.queue.complete(held_match(resource)), matched)
        session.output.answer({"released": completed}, f"{counted(completed, 'resource')} completed")
        return
    if resource_id is None:
        raise ValueError("token: missing; give ID --token TOKEN as match printed them, ID --force, or --all")
    print_changed(session, session.queue.complete(held(session, resource_id, token, force=force)))


def _changed(change: Callable[[Resource], object], resources: Iterable[Resource]) -> int:
    """Change resources; return how many, not counting resources that something else changed in between."""
    changed = 0
    # Read to the end first: a store may not see its own changes while it reads.
    for resource in sorted(resources, key=lambda resource: resource.resource_id):
        with suppress(RefusedError):
            change(resource)
            changed += 1
    return changed


def extend(context: MatchContext, resource_id: ResourceId, token: Token) -> None:
    """Extend the lease of a match.

    The new lease counts from now.
    """
    session = context.session
    held = session.queue.admin.held(resource_id, token)
    print_matches(session, [session.queue.extend(held)])


def recover(context: MatchContext) -> None:
    """Return resources with expired leases to their old positions."""
    session = context.session
    recovered = session.queue.admin.recover()
    session.output.answer({"recovered": recovered}, f"{counted(recovered, 'resource')} recovered")


def create(context: MatchContext) -> None:
    """Create the table, unless it exists."""
    session = context.session
    session.queue.create_table()
    session.output.answer({"created": True}, "The table is ready.")


def configure(context: MatchContext, order: StoredOrder = None) -> None:
    """Show the order and the lease, or store those of --order and --lease.

    Every process that uses the resources follows them within a minute. An option in the address that differs
    from the stored one is an error, unless the address has override=on.
    """
    session = context.session
    given: dict[str, Any] = {} if order is None else {"order": order}
    if session.lease is not None:
        given |= split_options({"lease_seconds": session.lease}, MATCH_OPTIONS)[0]
    config = session.queue.configure(**given)
    session.output.answer(asdict(config), {name: as_text(value) for name, value in asdict(config).items()})


def delete(context: MatchContext, yes: Yes = False) -> None:
    """Delete the table and every resource in it."""
    session = context.session
    question = f"Delete {session.address} and every resource in it?"
    confirm(question, yes=yes)
    session.queue.delete_table()
    session.output.answer({"deleted": True}, "The table is deleted.")


def register(
    context: MatchContext,
    resource_id: ResourceId,
    pairs: AttributePairs = None,
    attributes: AttributesJson = None,
    data: Data = None,
) -> None:
    """Register a resource, or change its attributes and data.

    It does not wait yet. The attributes and data of a resource change only while it is available.
    """
    session = context.session
    value = None if data is None else parsed("data", data)
    wanted = attributes_of(pairs, attributes)
    print_changed(session, session.queue.register(resource_id, attributes=wanted, data=value))


def unregister(context: MatchContext, resource_id: ResourceId) -> None:
    """Delete an available resource."""
    session = context.session
    session.queue.unregister(resource_id)
    session.output.answer(
        {"unregistered": resource_id}, f"resource {printable(resource_id)}: no longer registered"
    )


def offer(context: MatchContext, resource_ids: ResourceIds = None, every: AllAvailable = False) -> None:
    """Let available resources wait in line.

    They wait behind all waiting resources.
    """
    session = context.session
    if bool(resource_ids) is every:
        raise ValueError("id: missing; give either resources or --all")
    for resource_id in resource_ids or ():
        print_changed(session, session.queue.offer(resource_id))
    if every:
        available = session.queue.resources(ResourceStatus.AVAILABLE)
        offered = _changed(lambda resource: session.queue.offer(resource.resource_id), available)
        session.output.answer({"enqueued": offered}, f"{counted(offered, 'resource')} offered")


def withdraw(context: MatchContext, resource_id: ResourceId) -> None:
    """Take a resource out of the line.

    It stays registered.
    """
    session = context.session
    print_changed(session, session.queue.withdraw(resource_id))


def list_(
    context: MatchContext,
    status: Status = None,
    limit: ListLimit = None,
    callers: InLine = False,
    depths: Depths = False,
) -> None:
    """List resources, callers in line, or depths of lines."""
    session = context.session
    if callers + depths + (status is not None) > 1:
        raise ValueError("status: give one of --status, --callers and --depths")
    most = limit or (MOST_COUNTED if depths else MOST_LISTED)
    if depths:
        print_depths(session, session.queue.depths(limit=most), most)
    elif callers:
        line = list(islice(session.queue.callers(), most + 1))
        print_callers(session, line[:most], more=len(line) > most)
    else:
        found = list(islice(session.queue.resources(status), most + 1))
        shown = sorted(found[:most], key=lambda resource: resource.resource_id)
        print_resources(session, shown, more=len(found) > most)


def generate(
    context: MatchContext, agent_count: Agents = 5, caller_count: Callers = 0, seed: Seed = 1
) -> None:
    """Register made-up agents, whom made-up callers ask for."""
    session = context.session
    rng = random.Random(seed)  # noqa: S311 - made-up people
    staff = made_up_agents(agent_count, rng)
    registered = [session.queue.register(agent.agent_id, attributes=agent.attributes) for agent in staff]
    people = made_up_callers(caller_count, max(agent_count, 1), rng)
    lines = [f"agent {each.resource_id}: {attributes_text(each.attributes)}" for each in registered]
    found: dict[str, str | None] = {}
    for caller in people:
        match = session.queue.request(caller.criteria, caller_id=caller.name)
        found[caller.name] = None if match is None else match.resource_id
        outcome = "waits" if match is None else f"has {match.resource_id}"
        lines.append(f"caller {caller.name}: {outcome}, asked {compact_json(caller.criteria)}")
    answer = {"agents": [each.resource_id for each in registered], "callers": found}
    session.output.answer(answer, *lines)


def attributes_of(pairs: Sequence[str] | None, text: str | None) -> dict[str, Any]:
    """Return the attributes from a command line, for `MatchQueue.register`.

    Raises:
        ValueError: If their form is wrong.
    """
    if text is None:
        return {name: set(values.split(OTHER)) for name, values in _split("attributes", pairs).items()}
    _only_one("attributes", pairs)
    value = parsed("attributes", text)
    if not isinstance(value, dict):
        msg = f"attributes: must be a JSON object of names and values, got {quoted(text)}"
        raise ValueError(msg)
    return value


def criteria_of(pairs: Sequence[str] | None, text: str | None) -> Any:
    """Return the criteria from a command line, for `MatchQueue.match`.

    Raises:
        ValueError: If their form is wrong.
    """
    if text is None:
        split = _split("criteria", pairs)
        return {name: [_level(level) for level in levels.split(OTHER)] for name, levels in split.items()}
    _only_one("criteria", pairs)
    value = parsed("criteria", text)
    if isinstance(value, list):
        return [_with_sets(alternative) for alternative in value]
    return _with_sets(value)


def _split(argument: str, pairs: Sequence[str] | None) -> dict[str, str]:
    split: dict[str, str] = {}
    for pair in pairs or ():
        name, equals, values = pair.partition("=")
        if not (name and equals and values):
            msg = f"{argument}: must look like NAME=VALUE,VALUE, got {quoted(pair)}"
            raise ValueError(msg)
        if name in split:
            msg = f"{argument}: {quoted(name)} at most once; put its values into one list, A,B"
            raise ValueError(msg)
        split[name] = values
    return split


def _level(text: str) -> str | set[str] | None:
    if text == ANY:
        return None
    return set(text.split(EQUAL)) if EQUAL in text else text


def _with_sets(value: Any) -> Any:
    """Return criteria from JSON, which has no sets."""
    if not isinstance(value, dict):
        return value

    def with_set(level: Any) -> Any:
        texts = isinstance(level, list) and all(isinstance(each, str) for each in level)
        return set(level) if texts else level

    return {
        name: [*map(with_set, levels)] if isinstance(levels, list) else levels
        for name, levels in value.items()
    }


def _only_one(argument: str, pairs: Sequence[str] | None) -> None:
    if pairs:
        msg = f"{argument}: give either NAME=VALUE or --{argument}"
        raise ValueError(msg)


# Commands by their heading in help, which does not list those on the table.
TABLE: Final = "Table"
VERBS: Final[dict[str, tuple[Callable[..., None], ...]]] = {
    TABLE: (create, configure, generate, recover, delete),
    "Resources": (register, offer, withdraw, unregister, list_),
    "Callers": (match, request, abandon, complete, release, extend),
}


for _panel, _verbs in VERBS.items():
    for _verb in _verbs:
        _name = _verb.__name__.strip("_")
        app.command(_name, cls=MatchCommand, rich_help_panel=_panel, hidden=_panel == TABLE)(_verb)
