"""Commands for resources: who they are, and whether they wait."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from freshq.cli.commands.arguments import Yes
from freshq.cli.commands.match.answers import print_changed, print_depths, print_resources
from freshq.cli.commands.match.opening import MatchContext
from freshq.cli.commands.match.pairs import AttributePairs, AttributesJson, attributes_of
from freshq.cli.errors import printable
from freshq.cli.texts import counted
from freshq.errors import ResourceNotFound, WrongResourceState
from freshq.matching.resource import ResourceStatus

ResourceId = Annotated[str, typer.Argument(metavar="ID", help="The resource.")]
ResourceIds = Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="The resources.")]
AllAvailable = Annotated[bool, typer.Option("--all", help="Every available resource.")]
Status = Annotated[
    str | None, typer.Option(metavar="STATUS", help="Only these: AVAILABLE, QUEUED or MATCHED.")
]
ListLimit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of resources.")]
AtMost = Annotated[int, typer.Option(help="Where to stop counting in each combination.")]


def create(context: MatchContext) -> None:
    """Create the table, unless it exists."""
    session = context.session
    session.queue.create_table()
    session.output.answer({"created": True}, "The table is ready.")


def delete(context: MatchContext, yes: Yes = False) -> None:
    """Delete the table with every resource."""
    session = context.session
    session.confirm(f"Delete {session.address} and every resource in it?", yes=yes)
    session.queue.delete_table()
    session.output.answer({"deleted": True}, "The table is deleted.")


def register(
    context: MatchContext,
    resource_id: ResourceId,
    pairs: AttributePairs = None,
    attributes: AttributesJson = None,
) -> None:
    """Register a resource, available and not yet waiting; or give an available one other attributes."""
    session = context.session
    print_changed(session, session.queue.register(resource_id, attributes_of(pairs, attributes)))


def unregister(context: MatchContext, resource_id: ResourceId) -> None:
    """Delete an available resource."""
    session = context.session
    session.queue.unregister(resource_id)
    session.output.answer(
        {"unregistered": resource_id}, f"resource {printable(resource_id)}: not registered any more"
    )


def enqueue(context: MatchContext, resource_ids: ResourceIds = None, every: AllAvailable = False) -> None:
    """Let available resources wait, behind all that wait already."""
    session = context.session
    if bool(resource_ids) is every:
        raise ValueError("id: missing; give either resources or --all")
    for resource_id in resource_ids or ():
        print_changed(session, session.queue.enqueue(resource_id))
    if every:
        enqueued = _enqueue_all(context)
        session.output.answer({"enqueued": enqueued}, f"{counted(enqueued, 'resource')} enqueued")


def _enqueue_all(context: MatchContext) -> int:
    queue = context.session.queue
    enqueued = 0
    # Read to the end first: a store may not see its own changes while it reads.
    available = sorted(resource.resource_id for resource in queue.resources(ResourceStatus.AVAILABLE))
    for resource_id in available:
        try:
            queue.enqueue(resource_id)
        except (WrongResourceState, ResourceNotFound):  # enqueued or unregistered in between
            continue
        enqueued += 1
    return enqueued


def leave(context: MatchContext, resource_id: ResourceId) -> None:
    """Stop a resource from waiting; it stays registered."""
    session = context.session
    print_changed(session, session.queue.leave(resource_id))


def ls(context: MatchContext, status: Status = None, limit: ListLimit = 100) -> None:
    """List resources."""
    session = context.session
    found = list(islice(session.queue.resources(status), limit + 1))
    shown = sorted(found[:limit], key=lambda resource: resource.resource_id)
    print_resources(session, shown, more=len(found) > limit)


def depths(context: MatchContext, at_most: AtMost = 1000) -> None:
    """Show how many resources wait for each combination of values."""
    session = context.session
    print_depths(session, session.queue.depths(at_most), at_most)
