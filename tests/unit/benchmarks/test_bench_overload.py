"""The figures that `benchmarks.overload` computes from simulations and the lives of tasks."""

import random
from collections.abc import Sequence

import pytest
from benchmarks import library_pages, overload, overload_setting
from benchmarks.overload import figures_of, simulated_ends
from benchmarks.overload_setting import (
    BURST_SECONDS,
    BURST_STARTS,
    FIRST_SECONDS,
    MEASURED_DEADLINE_SECONDS,
    MEASURED_SECONDS,
    MEASURED_TASK_SECONDS,
    SERVERS,
    SPANS,
    burst_figures,
    counts_of,
    ratio,
    recovery_seconds,
)
from benchmarks.pictures import ORDERS as DRAWN
from local.facts import Life, TaskClaim

from freshq import Order, TaskStatus

BEGAN = 1_000.0
SECONDS = 90.0


def arrivals(load: float) -> list[float]:
    """Return when tasks arrive in the time of a load."""
    rng, at, found = random.Random(5), 0.0, []
    while (at := at + rng.expovariate(load * SERVERS / MEASURED_TASK_SECONDS)) < SECONDS:
        found.append(BEGAN + at)
    return found


def served(created: float, started: float) -> Life:
    ended = started + MEASURED_TASK_SECONDS
    claims = (TaskClaim(started, counted=True),)
    return Life(str(created), created, created + MEASURED_DEADLINE_SECONDS, claims, TaskStatus.SUCCESS, ended)


def shed(created: float) -> Life:
    deadline = created + MEASURED_DEADLINE_SECONDS
    return Life(str(created), created, deadline, (), TaskStatus.SHED, deadline)


def newest_first(moments: Sequence[float]) -> list[Life]:
    """Serve arrivals newest first by slots that need no time between tasks."""
    waiting: list[float] = []
    starts: dict[float, float] = {}
    free = [BEGAN] * SERVERS
    for moment in [*moments, BEGAN + SECONDS]:
        while waiting and min(free) <= moment:
            slot = free.index(min(free))
            created = waiting.pop()
            starts[created] = max(free[slot], created)
            free[slot] = starts[created] + MEASURED_TASK_SECONDS
        waiting.append(moment)
        if min(free) <= moment:
            starts[waiting.pop()] = moment
            free[free.index(min(free))] = moment + MEASURED_TASK_SECONDS
    return [served(moment, starts[moment]) if moment in starts else shed(moment) for moment in moments]


def test_the_application_stands_beside_the_same_arrivals_simulated() -> None:
    """If the application does what the simulator does, both figures are the same."""
    lives = newest_first(arrivals(4.0))
    figure = figures_of(lives, Order.LIFO, BEGAN, SECONDS, 4.0)
    counted = [life for life in lives if life.created >= BEGAN + FIRST_SECONDS]
    assert figure["arrived"] == len(counted)
    assert figure["done"] == pytest.approx((SECONDS - FIRST_SECONDS) * SERVERS / MEASURED_TASK_SECONDS, abs=1)
    assert figure["simulated_done"] == pytest.approx(figure["done"], abs=1)
    assert figure["goodput"] == pytest.approx(1.0, abs=0.02)
    assert figure["simulated_goodput"] <= 1.0
    assert figure["wait_p99_seconds"] < MEASURED_DEADLINE_SECONDS / 2
    assert figures_of(lives, Order.FIFO, BEGAN, SECONDS, 4.0)["simulated_done"] < 0.1 * figure["done"]


def test_what_the_application_loses_is_not_lost_in_the_simulation() -> None:
    moments = arrivals(0.5)
    lives = [served(moment, moment) for moment in moments]
    late = [shed(life.created) if number % 4 == 0 else life for number, life in enumerate(lives)]
    figure = figures_of(late, Order.LIFO, BEGAN, SECONDS, 0.5)
    assert figure["done"] == pytest.approx(0.75 * figure["arrived"], abs=2)
    assert figure["simulated_done"] == pytest.approx(figure["arrived"], abs=3)
    assert figure["simulated_goodput"] > figure["goodput"]


def test_a_simulated_end_is_in_time_and_of_the_same_clock() -> None:
    lives = newest_first(arrivals(1.0))
    ends = simulated_ends(lives, Order.LIFO, BEGAN, MEASURED_TASK_SECONDS)
    assert min(ends) >= lives[0].created + MEASURED_TASK_SECONDS
    assert max(ends) <= lives[-1].deadline
    assert len(ends) <= len(lives)


def test_the_application_is_measured_up_to_ten_times_the_capacity_in_every_order_with_a_line() -> None:
    assert max(MEASURED_SECONDS) == 10.0
    assert set(MEASURED_SECONDS) <= set(overload.LOADS)
    assert min(MEASURED_SECONDS.values()) > FIRST_SECONDS + MEASURED_DEADLINE_SECONDS
    assert set(overload.RULES) < set(DRAWN)


def test_the_share_of_seeds_is_of_all_arrivals_and_its_interval_is_of_the_seeds() -> None:
    """A seed with ten times the arrivals counts ten times; seeds that agree leave no doubt."""
    agreed = ratio([(10, 5), (100, 50), (0, 0)])
    assert agreed == {"mean": 0.5, "half_width": 0.0}
    assert ratio([(10, 0), (100, 100)])["mean"] == pytest.approx(100 / 110, abs=1e-4)
    apart, more = ratio([(10, 0), (10, 10)] * 10), ratio([(10, 0), (10, 10)] * 40)
    # A standard deviation of 0.5, by the root of the number of seeds.
    assert apart["half_width"] == pytest.approx(overload_setting.T_OF_SEEDS * 0.5 / 20**0.5, rel=0.05)
    assert more["half_width"] == pytest.approx(apart["half_width"] / 2, rel=0.05)


def seconds_after(*shares: float) -> list[dict[str, float]]:
    return [
        {"second": number + BURST_SECONDS, "mean": share, "half_width": 0.0}
        for number, share in enumerate(shares)
    ]


@pytest.mark.parametrize(
    ("shares", "seconds"),
    [
        ((0.97, 0.97, 0.99), 0.0),
        ((0.2, 0.97, 0.99), 1.0),
        ((0.97, 0.5, 0.97, 0.97), 2.0),  # only what lasts is a recovery
        ((0.97, 0.97, 0.5), None),
    ],
)
def test_a_recovery_lasts(shares: tuple[float, ...], seconds: float | None) -> None:
    assert recovery_seconds(seconds_after(*shares), before=0.98) == seconds


def test_a_burst_is_counted_by_the_second_of_arrival() -> None:
    created = [BURST_STARTS - 0.5, BURST_STARTS + 0.5, BURST_STARTS + 0.9, 2 * BURST_STARTS + BURST_SECONDS]
    assert counts_of(created, {0, 2, 3}) == {-1: (1, 1), 0: (2, 1)}


def test_a_burst_has_figures_by_second_by_span_and_a_recovery() -> None:
    everything = dict.fromkeys(range(-30, 60), (4, 4))
    nothing_in_burst = everything | dict.fromkeys(range(20), (40, 5))
    figures = burst_figures({"LIFO": [nothing_in_burst, nothing_in_burst]})
    (after,) = figures["after_burst"]
    assert after["recovery_seconds"] == 0.0
    assert after["spans"].keys() == SPANS.keys()
    assert after["spans"]["in the burst"] == {"mean": 0.125, "half_width": 0.0}
    assert [each["second"] for each in figures["by_second_of_burst"]] == list(range(-30, 60))


def test_no_mean_share_is_above_one() -> None:
    assert overload.interval([1.02, 1.01, 1.03])["mean"] == 1.0
    assert overload.interval([0.9, 1.0, 1.01])["mean"] == pytest.approx(0.97)


def test_an_order_that_does_not_recover_is_said_not_to() -> None:
    assert library_pages.recovery({"recovery_seconds": None}) == "not within 55 s"
    assert library_pages.recovery({"recovery_seconds": 16.0}) == "16 s"
