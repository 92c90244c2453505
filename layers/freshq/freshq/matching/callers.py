"""A caller that waits in line for a resource, and its versions. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from freshq.matching.places import END_OF_GROUP, fits, question_of
from freshq.model.lifecycle import new_token
from freshq.model.stamps import MICROSECONDS

if TYPE_CHECKING:
    from freshq.matching.criteria import Ask
    from freshq.matching.places import Attributes
    from freshq.matching.resource import Resource


class CallerStatus(StrEnum):
    """The state of a caller.

    WAITING: in line, with an entry in it. SERVED: a resource is matched to the caller.
    """

    WAITING = "WAITING"
    SERVED = "SERVED"


@dataclass(frozen=True, slots=True)
class Caller:
    """One version of a caller.

    Attributes:
        caller_id: The caller's own id.
        status: Its state.
        token: New with every change of status; of a served caller, that of the match.
        ranks: What it asks, by rank, best first.
        since: When it came, in seconds since the epoch.
        resource_id: The resource that serves it.
        rank: Rank of the ask that the resource answers.
        criteria: That ask.
    """

    caller_id: str
    status: CallerStatus
    token: str
    ranks: tuple[tuple[Ask, ...], ...] = ()
    since: float = 0.0
    resource_id: str | None = None
    rank: int = 0
    criteria: Ask | None = None

    @property
    def sort_key(self) -> str:
        """The key within the line: time, then id, so that no two are equal."""
        return f"{round(self.since * MICROSECONDS):016d}{END_OF_GROUP}{self.caller_id}"

    @property
    def questions(self) -> list[str]:
        """The asks as strings, without each that another ask is part of: who answers it answers that."""
        asks = {frozenset(ask.items()) for rank in self.ranks for ask in rank}
        least = (ask for ask in asks if not any(other < ask for other in asks))
        return sorted(question_of(dict(ask)) for ask in least)

    def preference(self, attributes: Attributes) -> tuple[Ask, int] | None:
        """Return the best ask that a resource with these attributes answers, and its rank; None if none."""
        for rank, asks in enumerate(self.ranks):
            for ask in asks:
                if fits(ask, attributes):
                    return ask, rank
        return None

    def served(self, resource: Resource, ask: Ask, rank: int) -> Caller:
        """Return the version that a matched resource serves."""
        return replace(
            self,
            status=CallerStatus.SERVED,
            token=resource.token,
            resource_id=resource.resource_id,
            rank=rank,
            criteria=ask,
        )


def caller_id_of(sort_key: str) -> str:
    """Return the id in a key within the line."""
    return sort_key.partition(END_OF_GROUP)[2]


def waiting_caller(caller_id: str, ranks: tuple[tuple[Ask, ...], ...], since: float) -> Caller:
    """Return a caller at the end of the line."""
    return Caller(caller_id, CallerStatus.WAITING, new_token(), ranks, since)


def caller_of(resource: Resource) -> Caller | None:
    """Return the served caller of a resource, as recorded in the resource; None if it has none."""
    if resource.caller_id is None:
        return None
    return Caller(resource.caller_id, CallerStatus.SERVED, resource.token, resource_id=resource.resource_id)
