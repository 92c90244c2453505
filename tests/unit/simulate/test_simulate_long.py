"""Comparisons of the simulator that need millions of tasks; only `make test-all` runs them."""

from statistics import fmean
from typing import Final

import pytest

from freshq.policy.order import Order
from freshq.policy.rules import OverloadRules
from freshq.simulate import Source, simulate_load, summarize
from tests.support.queueing import erlang_c
from tests.support.retrying import kella_yechiali

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
