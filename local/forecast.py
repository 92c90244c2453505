"""Simulates the recorded arrivals, in their own order and FIFO."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Final

from freshq import Order
from freshq.policy.rules import OverloadRules
from freshq.simulate import Load, simulate_load, summarize

if TYPE_CHECKING:
    from collections.abc import Sequence

    from local.facts import Life

# A FIFO queue without deadlines sheds nothing; no recording is as long as this.
NEVER_SECONDS: Final = 1e9


@dataclass(frozen=True, slots=True)
class Service:
    """One task that was served, in seconds from the first put.

    Attributes:
        put: When it was put.
        started: When it was started.
        in_time: Whether it ended by its deadline.
    """

    put: float
    started: float
    in_time: bool


def slot_seconds(lives: Sequence[Life], servers: int) -> float:
    """Return how long a task occupied its slot: its run, and the time until the slot was taken again."""
    done = [(life.claims[-1].taken, life.ended) for life in lives if life.ended is not None and life.claims]
    taken = sorted(start for start, _end in done)
    ended = sorted(end for _start, end in done)
    # While tasks wait, the k-th end makes room for the claim that follows the first ones.
    gaps = [start - end for start, end in zip(taken[servers:], ended, strict=False)]
    return fmean(end - start for start, end in done) + (median(gaps) if gaps else 0.0)


def served_in_time(
    lives: Sequence[Life], servers: int, load_seconds: float, order: Order, priorities: Sequence[int] = b""
) -> int:
    """Return how many of the recorded arrivals the simulator does in time, in an order, with their deadlines.

    Args:
        lives: The recorded tasks, in order of arrival; at least one was done.
        servers: Tasks in work at a time.
        load_seconds: How long tasks arrived.
        order: The order of service.
        priorities: Their priorities; empty if all are 0.
    """
    load = _recorded(lives, servers, load_seconds, [life.deadline for life in lives], priorities)
    rules = OverloadRules(lives[0].deadline - lives[0].created, order)
    return summarize(simulate_load(load, rules, servers)).served_in_time


def first_in_first_out(lives: Sequence[Life], servers: int, load_seconds: float) -> list[Service]:
    """Return when a queue without deadlines would have served each of the recorded arrivals."""
    never = [life.created + NEVER_SECONDS for life in lives]
    load = _recorded(lives, servers, load_seconds, never)
    simulation = simulate_load(load, OverloadRules(NEVER_SECONDS, Order.FIFO), servers)
    start = lives[0].created
    return [
        Service(put, started, in_time=started + seconds <= life.deadline - start)
        for life, put, started, seconds in zip(
            lives, load.created, simulation.starts, load.service, strict=True
        )
    ]


def _recorded(
    lives: Sequence[Life],
    servers: int,
    load_seconds: float,
    deadlines: Sequence[float],
    priorities: Sequence[int] = b"",
) -> Load:
    start = lives[0].created
    return Load(
        created=array("d", [life.created - start for life in lives]),
        service=array("d", [slot_seconds(lives, servers)] * len(lives)),
        deadline=array("d", [deadline - start for deadline in deadlines]),
        duration_seconds=load_seconds,
        levels=bytes(priorities),
        groups=[],
    )
