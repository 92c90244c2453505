"""Comparisons of the simulator that need millions of tasks; only `make test-all` runs them."""

from array import array
from random import Random
from statistics import fmean
from typing import Any, Final

import pytest

from freshq.policy.order import Order
from freshq.policy.rules import OverloadRules
from freshq.simulate import (
    Burst,
    Objective,
    Recording,
    ServiceDistribution,
    Settings,
    Source,
    advise,
    replay,
    simulate_load,
    summarize,
)
from freshq.simulate.advice import Samples, Threshold, candidates, read_settings
from tests.support.forecast_cases import held
from tests.support.queueing import erlang_c
from tests.support.retrying_clients import kella_yechiali

SERVERS: Final = 10
NO_DEADLINE: Final = 1e9


def test_waits_by_level_are_within_two_percent_of_kella_and_yechiali() -> None:
    """Mean waits of both levels, and the second moment of the higher one, at a load of 0.9."""
    expected = kella_yechiali(SERVERS, [0.45, 0.45], erlang_c(SERVERS, 0.9))
    runs = []
    for seed in range(1, 9):
        load = Source(9.0, 100_000.0, NO_DEADLINE, priorities={9: 0.5, 0: 0.5}, seed=seed).load()
        runs.append(summarize(simulate_load(load, OverloadRules(NO_DEADLINE, Order.FIFO), SERVERS)).by_level)
    for level, (mean, second), within in (("9", expected[0], 0.02), ("0", expected[1], 0.06)):
        waits = [run[level].wait_mean_seconds or 0.0 for run in runs]
        squares = [run[level].wait_second_moment_square_seconds or 0.0 for run in runs]
        assert fmean(waits) == pytest.approx(mean, rel=0.02)
        assert fmean(squares) == pytest.approx(second, rel=within)


def random_recording(rng: Random, seed: int) -> Recording:
    """Return a recording of 10 servers below, at and above their capacity, with and without bursts."""
    rate, tasks = rng.choice((5.0, 8.0, 9.0, 9.5, 10.0, 12.0, 15.0, 20.0, 30.0)), rng.choice((8000, 20_000))
    deadline_seconds, seconds = rng.choice((2.0, 5.0, 10.0)), tasks / rate
    burst = Burst(rng.choice((2, 5)), 0.4 * seconds, 0.05 * seconds) if rng.random() < 0.5 else None
    levels = {9: 0.2, 0: 0.8} if rng.random() < 0.3 else {}
    service = rng.choice(list(ServiceDistribution))
    load = Source(
        rate, seconds, deadline_seconds, service=service, burst=burst, priorities=levels, seed=seed
    ).load()
    count = len(load)
    return Recording(
        load.created,
        load.service,
        array("d", [deadline_seconds]) * count,
        bytearray(load.levels or bytes(count)),
        [None] * count,
        [None] * count,
    )


@pytest.mark.parametrize("seed", range(1, 11))
def test_advice_on_the_first_half_is_good_in_the_second(seed: int) -> None:
    """Within 2 % of the best of all that were compared."""
    today = Settings(servers=SERVERS)
    whole = random_recording(Random(seed), seed)
    middle = whole.duration_seconds / 2
    halves = [
        [place for place, at in enumerate(whole.at) if (at < middle) == first] for first in (True, False)
    ]
    first, second = (
        whole.chosen(places, [whole.at[place] for place in places]).in_order() for places in halves
    )
    advice = advise(first, today, Objective(), seed)
    samples = Samples(second, Objective(), seed)
    grid = [today, *candidates(today, samples.max_age_seconds, Objective())]
    best = max(samples.outcome(each).share for each in grid)
    assert samples.outcome(advice.settings).share >= 0.98 * best


REGRESSIONS: Final[tuple[dict[str, Any], ...]] = (
    {"order": "fifo", "reserve": "none"},
    {"order": "fifo", "reserve": "p50"},
    {"backlog": "2"},
    {"backlog": "5,refuse-newest"},
    {"servers": 9},
    {"servers": 8},
    {"max_age_seconds": 1.5},
    {"reserve": "8"},
    {"order": "fifo", "codel": "0.02,0.05"},
    {"order": "adaptive", "servers": 9},
)


@pytest.mark.parametrize("changes", REGRESSIONS)
def test_ten_of_ten_planted_regressions_are_caught(changes: dict[str, Any]) -> None:
    load = Source(11.0, 2000.0, 10.0, seed=3).load()
    count = len(load)
    ages = array("d", [10.0]) * count
    recording = Recording(load.created, load.service, ages, bytearray(count), [None] * count, [None] * count)
    now, new = Settings(servers=SERVERS), read_settings({"servers": SERVERS, **changes})
    assert replay(recording, now, new, Threshold.parse("in_time<-1%")).fails


def test_no_false_alarm_in_100_seeds() -> None:
    """For equally good settings; equal ones are the same simulation (`test_no_false_alarm`)."""
    now, new = Settings(servers=SERVERS), read_settings({"servers": SERVERS, "backlog": "1000"})
    for seed in range(100):
        recording = random_recording(Random(seed), seed)
        part = recording.chosen(range(4000), recording.at[:4000])
        assert not replay(part, now, new, Threshold.parse("in_time<-1%"), seed).fails, seed


def test_intervals_of_forecasts_hold_nine_in_ten_times() -> None:
    for name, count in held(range(200)).items():
        assert len(count) > 100
        assert 0.85 <= sum(count) / len(count) <= 0.95, name
