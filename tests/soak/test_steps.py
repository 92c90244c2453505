"""The time of day of processes is set while they use a queue: it goes by the store's clock.

`make soak` sets FRESHQ_SOAK_SECONDS, for each store; without it, this is the short form of `make test-all`.
"""

import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa

from freshq.queue.core import core_of
from tests.soak import history
from tests.soak.actors import Place
from tests.soak.cast import alive
from tests.soak.history import OK, balance, check, read, traced
from tests.soak.test_soak import SOAK_SECONDS, _table_at, drain
from tests.support.machine import on_machine, set_ahead
from tests.support.readings import within_seconds

ACTORS: Final = 4
SEED: Final = 20_290_000
# Shortest and longest time between two steps, in which the processes act.
STEP_SECONDS: Final = 0.5
LONGEST_STEP_SECONDS: Final = 86_400
START_SECONDS: Final = 120.0
# Minimum number of answered calls of each process.
CALLS: Final = 40


@dataclass(frozen=True)
class Rules:
    """The clock differences that a store allows.

    Attributes:
        slack_seconds: How far they may differ.
        lease_seconds: Length of the leases.
    """

    slack_seconds: float
    lease_seconds: float


# DynamoDB reports whole seconds (docs/decisions/0014-clocks.md); the other stores are asked.
ASKED: Final = Rules(slack_seconds=0.5, lease_seconds=2.0)
RULES: Final = {"postgres": ASKED, "mariadb": ASKED, "dynamodb_local": Rules(3.0, 8.0)}


@pytest.fixture(params=RULES)
def place(request: pytest.FixtureRequest) -> Place:
    """Return an empty queue on a server."""
    lease_seconds = RULES[request.param].lease_seconds
    if request.param == "dynamodb_local":
        url = request.getfixturevalue("dynamodb_local").meta.endpoint_url
        return Place(url, _table_at(url, None), lease_seconds=lease_seconds)
    engine: sa.Engine = request.getfixturevalue(f"{request.param}_engine")
    return Place(engine.url.render_as_string(hide_password=False), lease_seconds=lease_seconds)


@contextmanager
def acting(place: Place, folder: Path, *more: str) -> Iterator[list[Path]]:
    """Let processes act on a queue, each on a machine of its own; yield the clocks of the machines."""
    epoch = time.time() - time.monotonic()
    clocks = [folder / f"clock{seed}" for seed in range(ACTORS)]
    table = [] if place.table is None else ["--table", place.table]
    with ExitStack() as actors:
        for seed, clock in enumerate(clocks):
            set_ahead(clock, 0.0)
            given = [place.url, str(folder / f"actor{seed}.jsonl"), str(seed), str(place.lease_seconds)]
            command = [sys.executable, "-m", "tests.soak.stepped", *given, str(epoch), *table, *more]
            actors.enter_context(alive(command, os.environ | on_machine(clock=clock)))
        yield clocks


def answered(folder: Path) -> int:
    """Return how many calls of the process that made the fewest were answered."""
    journals = [folder / f"actor{seed}.jsonl" for seed in range(ACTORS)]
    return min(path.read_bytes().count(b'"outcome": "ok"') if path.exists() else 0 for path in journals)


def stepped(place: Place, folder: Path, *more: str) -> int:
    """Let processes act on a queue, and set their clocks; return how often."""
    rng, steps = random.Random(SEED), 0
    with acting(place, folder, *more) as clocks:
        assert within_seconds(START_SECONDS, lambda: answered(folder) > 0)
        begun = time.monotonic()
        while time.monotonic() < begun + SOAK_SECONDS or answered(folder) < CALLS:
            assert time.monotonic() < begun + SOAK_SECONDS + START_SECONDS
            set_ahead(
                rng.choice(clocks),
                0.0,
                rng.choice((0, 3, rng.randrange(LONGEST_STEP_SECONDS))) * rng.choice((1, -1)),
            )
            steps += 1
            time.sleep(STEP_SECONDS)
    return steps


@pytest.fixture
def rules(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Rules:
    """Return the rules by which the histories of this place are checked."""
    found = RULES[request.node.callspec.params["place"]]
    monkeypatch.setattr(history, "CLOCK_SLACK_SECONDS", found.slack_seconds)
    return found


@pytest.mark.timeout(2 * SOAK_SECONDS + 3 * START_SECONDS)
def test_no_step_of_a_clock_breaks_a_rule(place: Place, rules: Rules, tmp_path: Path) -> None:
    assert stepped(place, tmp_path)
    time.sleep(rules.lease_seconds + rules.slack_seconds)  # every lease that is left expires
    with closing(place.open(None)) as queue:
        queue.admin.recover()
        tasks = {task.task_id: task for task in core_of(queue).store.scan(queue.name)}
        drained = drain(queue)
        ended = {
            task.task_id: task.status_at(queue.admin.now()) for task in core_of(queue).store.scan(queue.name)
        }
    events = read(tmp_path.glob("*.jsonl"))
    broken = [each for each in check(events, tasks) if each.rule != "used-up lease"]

    assert [str(violation) for violation in [*broken, *traced(events, tasks)]] == []
    assert [str(violation) for violation in balance(events, ended, drained)] == []
    assert {event.verb for event in events if event.outcome == OK} >= {"put", "claim", "complete", "extend"}


@pytest.mark.usefixtures("rules")
@pytest.mark.timeout(2 * SOAK_SECONDS + 3 * START_SECONDS)
def test_a_process_that_trusts_its_time_of_day_takes_running_leases(place: Place, tmp_path: Path) -> None:
    assert stepped(place, tmp_path, "--trusting")

    assert check(read(tmp_path.glob("*.jsonl")), {}), "a control: the steps matter"
