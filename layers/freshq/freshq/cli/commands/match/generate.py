"""`freshq match generate`: made-up people to try matching with."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Annotated

import typer

from freshq.cli.commands.example.people import agents, callers
from freshq.cli.commands.match.answers import attributes_text
from freshq.cli.commands.match.opening import MatchContext
from freshq.cli.texts import compact_json

if TYPE_CHECKING:
    from freshq.cli.commands.example.people import Caller
    from freshq.matching.match import Match

Agents = Annotated[int, typer.Option("--agents", min=0, max=10_000, help="Number of agents to register.")]
Callers = Annotated[int, typer.Option("--callers", min=0, max=10_000, help="Number of callers who ask.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same people.")]


def generate(
    context: MatchContext, agent_count: Agents = 5, caller_count: Callers = 0, seed: Seed = 1
) -> None:
    """Register made-up agents, who speak one to three languages, and have made-up callers ask for them."""
    session = context.session
    rng = random.Random(seed)  # noqa: S311 - made-up people
    staff = agents(agent_count, rng)
    registered = [session.queue.register(agent.agent_id, agent.attributes) for agent in staff]
    people = callers(caller_count, max(agent_count, 1), rng)
    matches = [session.queue.wait(caller.criteria, caller.name) for caller in people]
    session.output.answer(
        {
            "agents": [resource.resource_id for resource in registered],
            "callers": {
                caller.name: None if match is None else match.resource_id
                for caller, match in zip(people, matches, strict=True)
            },
        },
        *(f"agent {resource.resource_id}: {attributes_text(resource.attributes)}" for resource in registered),
        *(_caller_text(caller, match) for caller, match in zip(people, matches, strict=True)),
    )


def _caller_text(caller: Caller, match: Match | None) -> str:
    outcome = "waits" if match is None else f"has {match.resource_id}"
    return f"caller {caller.name}: {outcome}, asked {compact_json(caller.criteria)}"
