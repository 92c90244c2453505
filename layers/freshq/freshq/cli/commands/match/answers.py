"""The output of the `freshq match` commands."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from freshq.cli.errors import printable
from freshq.cli.texts import compact_json, span

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from freshq.cli.commands.match.opening import MatchSession
    from freshq.matching.callers import Caller
    from freshq.matching.match import Match
    from freshq.matching.places import Attributes
    from freshq.matching.resource import Resource


def resource_fields(resource: Resource) -> dict[str, Any]:
    """Return a resource as JSON has it, without the token, which only its holder may know."""
    known = asdict(resource)
    del known["token"]
    return known


def print_changed(session: MatchSession, resource: Resource) -> None:
    """Print the new state of a resource."""
    caller = "" if resource.caller_id is None else f" to caller {printable(resource.caller_id)}"
    line = f"resource {printable(resource.resource_id)}: {resource.status}{caller}"
    session.output.answer(resource_fields(resource), line)


def print_resources(session: MatchSession, resources: Sequence[Resource], *, more: bool) -> None:
    """Print a listing.

    Args:
        session: Where the answer goes.
        resources: What to list.
        more: Whether there are more.
    """
    now = session.queue.now()
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("resource", "state", "waiting", "attributes"):
        table.add_column(heading, overflow="fold")
    for resource in resources:
        waiting = "-" if resource.since is None else span(max(0.0, now - resource.since))
        table.add_row(
            printable(resource.resource_id), resource.status, waiting, attributes_text(resource.attributes)
        )
    session.output.answer(
        {"resources": [resource_fields(resource) for resource in resources], "more": more},
        table if resources else "no resources",
        *(["more: raise --limit"] if more else []),
    )


def print_matches(session: MatchSession, matches: Sequence[Match]) -> None:
    """Print matches, their tokens in full."""
    now = session.queue.now()
    shown = [
        {
            "resource": printable(match.resource_id),
            "token": match.token,
            "held for": span(match.lease_until - now),
            "attributes": attributes_text(match.attributes),
            "preference": str(match.rank + 1),
        }
        for match in matches
    ]
    session.output.answer([asdict(match) for match in matches], *shown)


def print_callers(session: MatchSession, callers: Sequence[Caller], *, more: bool) -> None:
    """Print the line of callers.

    Args:
        session: Where the answer goes.
        callers: The callers, in order.
        more: Whether there are more.
    """
    now = session.queue.now()
    table = Table("caller", "waiting", "asks", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for caller in callers:
        asks = compact_json([list(rank) for rank in caller.ranks])
        table.add_row(printable(caller.caller_id), span(max(0.0, now - caller.since)), asks)
    fields = [
        {"caller_id": caller.caller_id, "since": caller.since, "asks": caller.ranks} for caller in callers
    ]
    session.output.answer(
        {"callers": fields, "more": more},
        table if callers else "no caller waits",
        *(["more: raise --limit"] if more else []),
    )


def print_depths(session: MatchSession, depths: Mapping[str, int], at_most: int) -> None:
    """Print how many resources wait for each combination of values, of which each was counted to a bound."""
    table = Table("combination", "waiting", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    table.columns[1].justify = "right"
    for combination, depth in depths.items():
        table.add_row(
            printable(combination) or "(no attributes)",
            f"{depth:,}" + (" or more" if depth >= at_most else ""),
        )
    session.output.answer(
        {"depths": dict(depths), "at_most": at_most}, table if depths else "no resource waits"
    )


def attributes_text(attributes: Attributes) -> str:
    """Return attributes as a command line takes them."""
    return " ".join(f"{printable(name)}={printable(','.join(values))}" for name, values in attributes.items())
