"""How the cost of a claim grows with the queue, on each store: calls, units, rows and time.

    python -m benchmarks.growth [--stores NAME,...] [--sizes N,...] [--groups N,...] [--rounds N]

Each situation is a queue of its own for each size. The sizes take turns, and a ratio of time is the median
of the ratios to the smallest size in the same turn. The figures of a store go to
benchmarks/results/growth_STORE.json, unless sizes, groups or rounds are given.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import uuid
from collections import defaultdict
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from operator import truediv
from typing import TYPE_CHECKING, Any, Final

from local.servers import DynamoDBLocal, Postgres
from rich.console import Console

from benchmarks import figures
from benchmarks.growth_page import STORES, growth_sections
from benchmarks.growth_places import DynamoDBPlace, Place, SqlPlace, options
from benchmarks.passed_over import drain
from benchmarks.render import markdown
from freshq import Order, Queue, TaskStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

PACKAGES: Final[Mapping[str, Sequence[str]]] = {
    "memory": (),
    "sqlite": ("sqlalchemy",),
    "postgresql": ("sqlalchemy", "psycopg"),
    "dynamodb": ("boto3",),
}
SIZES: Final = (1_000, 100_000, 1_000_000)
# DynamoDB Local takes minutes for more. These are more than the 17,000 that a claim passes over at most.
DYNAMODB_SIZES: Final = (1_000, 30_000)
GROUPS: Final = (1, 100, 10_000)
SHARDS: Final = (1, 4, 16)
CLAIMERS: Final = 4
SHARD_TASKS: Final = 150
LIMITS: Final = (1, 10)
ROUNDS: Final = 25
LEAST_ROUNDS: Final = 2
# Calls and units are counted; times in an emulator say little.
DYNAMODB_ROUNDS: Final = 7
# Claims whose cost is counted, after those that are timed.
COUNTED: Final = 3
# More than all claims of a situation take.
LIVE: Final = 1_000
# Age of tasks that are older, and of those that are younger, in seconds.
OLD, YOUNG = 3600.0, 60.0


@dataclass(frozen=True)
class Situation:
    """What waits beside the tasks that are claimed.

    Attributes:
        name: For the page.
        order: Order of the queue.
        fill: Fills a queue, given the size.
    """

    name: str
    order: Order
    fill: Callable[[Place, int], None]


def beside_stale_newer(place: Place, size: int) -> None:
    """Let stale tasks precede the live ones, newest first."""
    place.fill(LIVE, OLD)
    place.fill(size, YOUNG, left_seconds=-1.0)


def beside_stale_older(place: Place, size: int) -> None:
    """Let stale tasks precede the live ones, oldest first."""
    place.fill(size, OLD, left_seconds=-1.0)
    place.fill(LIVE, YOUNG)


def beside_finished(place: Place, size: int) -> None:
    """Let finished tasks be kept."""
    place.fill(size, OLD, status=TaskStatus.SUCCESS)
    place.fill(LIVE, YOUNG)


def in_groups(place: Place, groups: int) -> None:
    """Let tasks wait in some groups, at least one in each."""
    tasks = range(max(groups, LIVE))
    place.queue.put_many([{"payload": {"work": 1}, "group": f"group-{number % groups}"} for number in tasks])


SITUATIONS: Final = (
    Situation("waiting", Order.LIFO, lambda place, size: place.fill(size, OLD)),
    Situation("beside stale, LIFO", Order.LIFO, beside_stale_newer),
    Situation("beside stale, FIFO", Order.FIFO, beside_stale_older),
    Situation("beside finished", Order.LIFO, beside_finished),
    Situation("groups", Order.LIFO, in_groups),
)


@dataclass(frozen=True)
class Figure:
    """What a claim costs in one situation.

    Attributes:
        store: Name of the store.
        situation: Name of the situation.
        size: Its size: tasks, or groups.
        limit: Tasks that the claim asks for.
        seconds: Median time.
        ratio: Median of the ratios of that time to the smallest size's in the same turn.
        ratio_quartiles: The lower and the upper quartile of these ratios.
        short: Share of the claims that found fewer tasks than they asked for.
        found: Tasks that a claim found, on average.
        amounts: Calls, units, statements, rows, pages or steps per claim.
        plans: Plan of each statement.
    """

    store: str
    situation: str
    size: int
    limit: int
    seconds: float
    ratio: float
    ratio_quartiles: tuple[float, float]
    short: float
    found: float
    amounts: dict[str, float]
    plans: dict[str, str]


def measured(
    store: str, situation: Situation, new_place: Callable[[Order], Place], sizes: Sequence[int], rounds: int
) -> list[Figure]:
    """Return the figures of one situation, the sizes in turns."""
    places = {}
    for size in sizes:
        places[size] = new_place(situation.order)
        situation.fill(places[size], size)
    timed = _timed(places, rounds)
    found = []
    for size, place in places.items():
        for limit in LIMITS:
            with place.counted() as cost:
                for _ in range(COUNTED):
                    place.queue.claim(limit)
            claims, smallest = timed[size, limit], timed[sizes[0], limit]
            lower, ratio, upper = statistics.quantiles(
                map(truediv, claims.seconds, smallest.seconds), n=4, method="inclusive"
            )
            found.append(
                Figure(
                    store, situation.name, size, limit, statistics.median(claims.seconds),
                    ratio=ratio,
                    ratio_quartiles=(lower, upper),
                    short=statistics.mean(tasks < limit for tasks in claims.found),
                    found=statistics.mean(claims.found),
                    amounts=cost.each(COUNTED),
                    plans=cost.plans if size == sizes[-1] and limit == LIMITS[0] else {},
                )
            )  # fmt: skip
    for place in places.values():
        place.drop()
    return found


@dataclass
class _Timed:
    """Claims of one limit at one size: how long each took, and how many tasks it found."""

    seconds: list[float] = field(default_factory=list)
    found: list[int] = field(default_factory=list)


def _timed(places: Mapping[int, Place], rounds: int) -> Mapping[tuple[int, int], _Timed]:
    """Return the claims by size and limit."""
    timed: defaultdict[tuple[int, int], _Timed] = defaultdict(_Timed)
    for number in range(rounds):
        for limit in LIMITS:
            for size, place in sorted(places.items(), reverse=bool(number % 2)):
                began = time.perf_counter()
                claims = place.queue.claim(limit)
                timed[size, limit].seconds.append(time.perf_counter() - began)
                timed[size, limit].found.append(len(claims))
    return timed


def shard_figures(server: DynamoDBLocal) -> list[dict[str, Any]]:
    """Return how far claims depart from the order, and what a claim costs, by shards."""
    found = []
    for shards in SHARDS:
        place = DynamoDBPlace(server.client(), _name(), Order.LIFO, shards)
        place.fill(LIVE)
        place.queue.claim()
        with place.counted() as cost:
            for _ in range(COUNTED):
                place.queue.claim(max(LIMITS))
        departed = drain(server.client(), CLAIMERS, SHARD_TASKS, shards)
        found.append(asdict(departed) | {"shards": shards, "amounts": cost.each(COUNTED)})
    return found


def _name() -> str:
    return f"growth_{uuid.uuid4().hex[:12]}"


def of_store(store: str, sizes: Sequence[int], groups: Sequence[int], rounds: int) -> dict[str, Any]:
    """Measure all situations on one store."""
    with ExitStack() as running:
        new_place: Callable[[Order], Place]
        report: dict[str, Any] = {}
        if store == "memory":
            new_place = lambda order: Place(Queue.memory(**options(order)))  # noqa: E731 - one of four
        elif store == "dynamodb":
            server = running.enter_context(DynamoDBLocal())
            new_place = lambda order: DynamoDBPlace(server.client(), _name(), order)  # noqa: E731 - one of four
            report["shards"] = shard_figures(server)
        elif store == "postgresql":
            url = running.enter_context(Postgres(durable=True)).url
            new_place = lambda order: SqlPlace(url, _name(), order)  # noqa: E731 - one of four
        else:
            folder = running.enter_context(tempfile.TemporaryDirectory())
            new_place = lambda order: SqlPlace(f"sqlite:///{folder}/{_name()}.db", "tasks", order)  # noqa: E731 - one of four
        found: list[Figure] = []
        for situation in SITUATIONS:
            of_situation = groups if situation.fill is in_groups else sizes
            found += measured(store, situation, new_place, of_situation, rounds)
            ratios = [round(figure.ratio, 2) for figure in found[-2 * len(of_situation) :]]
            Console().print(f"{store}, {situation.name}, ratios by size and limit: {ratios}")
        return report | {"figures": [asdict(figure) for figure in found]}


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _rounds(text: str) -> int:
    rounds = int(text)
    if rounds < LEAST_ROUNDS:
        msg = f"must be at least {LEAST_ROUNDS}, as ratios have quartiles; got {rounds}"
        raise argparse.ArgumentTypeError(msg)
    return rounds


def main() -> None:
    """Measure the stores, write the figures of those that were measured in full, and print their page."""
    parser = argparse.ArgumentParser(description="Measure how the cost of a claim grows.")
    parser.add_argument("--stores", default=",".join(STORES), help="stores to measure")
    parser.add_argument("--sizes", type=_numbers, help="numbers of tasks, the smallest first")
    parser.add_argument("--groups", type=_numbers, help="numbers of groups, the smallest first")
    parser.add_argument("--rounds", type=_rounds, help="claims of each kind, at least 2")
    arguments = parser.parse_args()
    report: dict[str, Any] = {}
    for store in arguments.stores.split(","):
        sizes = arguments.sizes or (DYNAMODB_SIZES if store == "dynamodb" else SIZES)
        rounds = arguments.rounds or (DYNAMODB_ROUNDS if store == "dynamodb" else ROUNDS)
        report[store] = of_store(store, sizes, arguments.groups or GROUPS, rounds)
        if not (arguments.sizes or arguments.groups or arguments.rounds):
            figures.write(f"growth_{store}", report[store], PACKAGES[store])
    sections = growth_sections(report, figures.figures_of("capacity"))
    print("\n\n".join(map(markdown, sections.values())))


if __name__ == "__main__":
    main()
