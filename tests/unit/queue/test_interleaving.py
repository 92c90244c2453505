"""Processes of a queue in many orders on three stores, and queues that lack one of their guards."""

import os
from typing import Final

import pytest

from tests.support.interleaving import explore, minimized, replayed
from tests.support.planted_bugs import PLANTED
from tests.support.scenarios import SCENARIOS, WORLDS

# `make test` tries one order of each store and scenario, `make test-all` 500 in all, `make soak` 100,000.
SOAKED: Final = "FRESHQ_SCHEDULES" in os.environ
# Schedules that failed, because of the code, a scenario or a rule. Defects of the code are planted bugs.
FAILED: Final = [
    ("batches", "sqlite", 448),
    ("copies", "sqlite", 134),
    ("copies", "dynamodb", 5),
    ("copies", "dynamodb", 11),
    ("slow puts over", "dynamodb", 36),
    ("slow puts over", "dynamodb", 1330),
    ("stale", "dynamodb", 239),
    ("groups", "sqlite", 349),
    ("slow puts", "sqlite", 148),
    ("options", "dynamodb", 1038),
    ("programs", "memory", 17),
    ("programs", "memory", 1000),
    ("puts over", "dynamodb", 5),
    ("puts over", "dynamodb", 1025),
    ("schedules", "dynamodb", 15),
]


def seeds(config: pytest.Config) -> range:
    """Return the seeds for one store and one scenario."""
    cases = len(WORLDS) * len(SCENARIOS)
    total = int(os.environ.get("FRESHQ_SCHEDULES", "500")) if SOAKED or config.getoption("all") else cases
    return range(-(-total // cases))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_no_order_of_calls_breaks_a_rule(world: str, scenario: str, pytestconfig: pytest.Config) -> None:
    assert explore(SCENARIOS[scenario](WORLDS[world]), seeds(pytestconfig)) is None


@pytest.mark.parametrize(("scenario", "world", "seed"), FAILED)
def test_an_order_that_failed_once_breaks_no_rule(scenario: str, world: str, seed: int) -> None:
    assert explore(SCENARIOS[scenario](WORLDS[world]), [seed]) is None


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str) -> None:
    # A change of the code may move it to another schedule.
    planted = PLANTED[name]
    assert planted.found([planted.seed, *range(10_000)]) is not None


def test_a_schedule_repeats_and_shrinks() -> None:
    planted = PLANTED["a fence by attempt"]
    found = planted.found([planted.seed, *range(10_000)])
    assert found is not None
    made = SCENARIOS[planted.scenario](WORLDS[planted.world])
    with planted.in_the_code():
        assert replayed(made, found.seed, found.steps) == found.problems
        least = minimized(made, found)
        assert replayed(made, found.seed, least.steps, least.without) == least.problems != []
        for place in range(len(least.steps)):
            fewer = least.steps[:place] + least.steps[place + 1 :]
            assert not replayed(made, found.seed, fewer, least.without)
    assert len(least.steps) < len(found.steps)
    assert replayed(made, found.seed, least.steps, least.without) == []
