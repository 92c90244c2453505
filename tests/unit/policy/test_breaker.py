"""The breaker of a worker: when it opens, which runs may probe, and when it closes."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshq.policy.breaker import OPEN_AFTER, PROBE_BACKOFF, Breaker, BreakerState


def opened() -> Breaker:
    breaker = Breaker(lambda: 0.0)
    for number in range(OPEN_AFTER):
        assert breaker.room(0.0) == inf
        change = breaker.ended(number, 0.0, succeeded=False)
        assert (change is not None) == (number == OPEN_AFTER - 1)
    assert (breaker.state, breaker.room(0.0)) == (BreakerState.OPEN, 0)
    return breaker


def test_a_success_in_between_keeps_it_closed() -> None:
    breaker = Breaker(lambda: 0.0)
    for number in range(10 * OPEN_AFTER):
        breaker.ended(number, 0.0, succeeded=number % OPEN_AFTER == 0)
    assert breaker.state is BreakerState.CLOSED


def test_ends_that_say_nothing_neither_open_nor_close_it() -> None:
    breaker = Breaker(lambda: 0.0)
    for number in range(10 * OPEN_AFTER):
        assert breaker.ended(number, 0.0, succeeded=None) is None
    assert breaker.state is BreakerState.CLOSED


def test_one_run_probes_and_a_success_closes_it() -> None:
    breaker = opened()
    assert breaker.room(0.5) == 1
    assert not breaker.allows("late")
    breaker.probe("probe", 0.5)
    assert (breaker.state, breaker.room(0.6)) == (BreakerState.HALF_OPEN, 0)
    assert breaker.allows("probe")
    assert not breaker.allows("late")
    change = breaker.ended("probe", 0.7, succeeded=True)
    assert change is not None
    assert (change.state, change.failures, breaker.room(0.7)) == (BreakerState.CLOSED, OPEN_AFTER, inf)


def test_pauses_grow_to_their_cap() -> None:
    breaker, now, pauses = opened(), 0.0, list[float]()
    for number in range(15):
        while not breaker.room(now):
            now += 0.25
        breaker.probe(number, now)
        change = breaker.ended(number, now, succeeded=False)
        assert change is not None
        assert not change.opened
        pauses.append(change.pause_seconds)
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (1.0, PROBE_BACKOFF.cap_seconds / 2)


def test_a_probe_that_hangs_prevents_no_other_and_stragglers_do_not_lengthen_the_pause() -> None:
    breaker = opened()
    breaker.probe("hangs", 0.5)
    assert breaker.room(0.9) == 0
    assert breaker.room(1.0) == 1
    assert breaker.ended("straggler", 1.0, succeeded=False) is None
    assert breaker.room(1.0) == 1


def test_a_probe_that_says_nothing_makes_room_for_the_next() -> None:
    breaker = opened()
    breaker.probe("rejected", 0.5)
    assert breaker.ended("rejected", 0.6, succeeded=None) is None
    assert breaker.room(0.6) == 1


@given(st.lists(st.tuples(st.sampled_from([True, False, None]), st.floats(0, 100)), max_size=200))
def test_it_is_never_stuck(ends: list[tuple[bool | None, float]]) -> None:
    breaker, now = Breaker(lambda: 0.5), 0.0
    for number, (succeeded, seconds) in enumerate(ends):
        now += seconds
        if breaker.room(now):
            breaker.probe(number, now)
        breaker.ended(number, now, succeeded=succeeded)
        assert breaker.room(now + PROBE_BACKOFF.cap_seconds) >= 1
        assert (breaker.room(now) == inf) == (breaker.state is BreakerState.CLOSED)


@pytest.mark.parametrize("uniform", [0.0, 0.999])
def test_a_day_of_failures_costs_few_runs(uniform: float) -> None:
    breaker, now, runs = Breaker(lambda: uniform), 0.0, 0
    while now < 86_400:
        if breaker.room(now):
            runs += 1
            breaker.probe(runs, now)
            breaker.ended(runs, now, succeeded=False)
        now += 1
    assert runs <= 600
