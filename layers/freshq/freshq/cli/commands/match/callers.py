"""Commands for callers: they take resources and give them back."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

import typer

from freshq.cli.commands.arguments import LeaseSeconds, Yes
from freshq.cli.commands.match.answers import print_callers, print_changed, print_matches
from freshq.cli.commands.match.opening import MatchContext
from freshq.cli.commands.match.pairs import CriteriaJson, CriteriaPairs, criteria_of
from freshq.cli.commands.match.resources import ResourceId
from freshq.cli.errors import printable
from freshq.cli.texts import counted
from freshq.errors import MatchLost, RefusedError, quoted
from freshq.matching.match import held_match
from freshq.matching.resource import ResourceStatus

Limit = Annotated[int, typer.Option("--limit", "-n", help="Maximum number of matches.")]
Token = Annotated[str, typer.Option(help="The token that match printed.")]
OptionalToken = Annotated[str | None, typer.Option(help="The token that match printed.")]
OptionalId = Annotated[str | None, typer.Argument(metavar="[ID]", help="The resource.")]
CallerId = Annotated[str, typer.Argument(metavar="CALLER", help="The caller's own id.")]
CallersLimit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of callers.")]
AllMatched = Annotated[
    bool, typer.Option("--all", help="Every matched resource, also those whose callers still have them.")
]


def match(
    context: MatchContext, pairs: CriteriaPairs = None, criteria: CriteriaJson = None, limit: Limit = 1
) -> None:
    """Take the resources that fit and have waited longest. Exits with status 1 if there is none."""
    session = context.session
    matches = session.queue.match(criteria_of(pairs, criteria), limit)
    print_matches(session, matches)
    if not matches:
        raise RefusedError("no resource that fits is waiting")


def wait(
    context: MatchContext, caller_id: CallerId, pairs: CriteriaPairs = None, criteria: CriteriaJson = None
) -> None:
    """Join the line of callers, or ask again. Exits with status 1 as long as the caller waits."""
    session = context.session
    match = session.queue.wait(criteria_of(pairs, criteria), caller_id)
    print_matches(session, [] if match is None else [match])
    if match is None:
        msg = f"caller {quoted(caller_id)}: waits in line; repeat the command to ask again"
        raise RefusedError(msg)


def callers(context: MatchContext, limit: CallersLimit = 100) -> None:
    """List the callers who wait in line, in order."""
    session = context.session
    found = list(islice(session.queue.callers(), limit + 1))
    print_callers(session, found[:limit], more=len(found) > limit)


def abandon(context: MatchContext, caller_id: CallerId) -> None:
    """Take a waiting caller out of the line."""
    session = context.session
    if not session.queue.abandon(caller_id):
        msg = f"caller {quoted(caller_id)}: does not wait"
        raise RefusedError(msg)
    session.output.answer({"abandoned": caller_id}, f"caller {printable(caller_id)}: waits no longer")


def release(
    context: MatchContext,
    resource_id: OptionalId = None,
    token: OptionalToken = None,
    every: AllMatched = False,
    yes: Yes = False,
) -> None:
    """Give a resource back: available, not yet waiting."""
    session = context.session
    if every:
        if resource_id is not None or token is not None:
            raise ValueError("id: give either a resource with --token, or --all")
        session.confirm("Release every matched resource, also those in use?", yes=yes)
        released = _release_all(context)
        session.output.answer({"released": released}, f"{counted(released, 'resource')} released")
        return
    if resource_id is None or token is None:
        raise ValueError("token: missing; give ID --token TOKEN as match printed them, or --all")
    print_changed(session, session.queue.release(session.queue.held(resource_id, token)))


def _release_all(context: MatchContext) -> int:
    queue = context.session.queue
    released = 0
    for resource in list(queue.resources(ResourceStatus.MATCHED)):
        try:
            queue.release(held_match(resource))
        except MatchLost:  # its caller was faster
            continue
        released += 1
    return released


def extend(
    context: MatchContext, resource_id: ResourceId, token: Token, lease_seconds: LeaseSeconds = None
) -> None:
    """Extend the lease of a match, from now."""
    session = context.session
    held = session.queue.held(resource_id, token)
    print_matches(session, [session.queue.extend(held, lease_seconds)])


def recover(context: MatchContext) -> None:
    """Return the resources of callers whose leases have expired to their old positions."""
    session = context.session
    recovered = session.queue.recover()
    session.output.answer({"recovered": recovered}, f"{counted(recovered, 'resource')} recovered")
