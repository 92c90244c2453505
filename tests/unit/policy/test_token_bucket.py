"""A bucket, and one that workers share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshq.policy.limits import SharedBucket, TokenBucket
from tests.support.refusals import refused

steps = st.lists(st.tuples(st.floats(0, 3), st.integers(1, 20)), max_size=100)


@given(steps, st.floats(0.1, 50), st.integers(1, 30))
def test_a_bucket_admits_no_more_than_burst_and_rate(
    demand: list[tuple[float, int]], rate: float, burst: int
) -> None:
    bucket, now, admitted = TokenBucket(rate, burst, 0.0), 0.0, 0
    for gap, wanted in demand:
        now += gap
        taken = min(wanted, bucket.available(now))
        bucket.take(taken)
        admitted += taken
        assert admitted <= burst + rate * now + 1e-6


@given(steps, st.floats(0.1, 50), st.integers(1, 30), st.integers(1, 30))
def test_workers_that_lease_blocks_share_one_rate(
    demand: list[tuple[float, int]], rate: float, burst: int, block: int
) -> None:
    bucket = SharedBucket(rate, burst, min(block, burst))
    state, now, leased = bucket.full(0.0), 0.0, 0
    for gap, wanted in demand:
        now += gap
        # Clocks of workers differ.
        seen_at = max(0.0, now - (0.5 if wanted % 3 == 0 else 0.0))
        state, granted = bucket.lease(state, seen_at, wanted)
        leased += granted.count
        assert 0 <= granted.count <= min(wanted, block)
        assert (granted.count == 0) is (granted.retry_after_seconds > 0)
        assert 0 <= state.tokens <= burst
        assert leased <= burst + rate * now + 1e-6


def test_a_lease_says_when_to_come_back_and_lapses() -> None:
    bucket = SharedBucket(rate_per_second=2.0, burst=4, block=3, block_seconds=1.5)
    state, first = bucket.lease(bucket.full(10.0), 10.0, wanted=10)
    state, second = bucket.lease(state, 10.0, wanted=10)
    state, third = bucket.lease(state, 10.0, wanted=10)
    assert (first.count, first.until) == (3, 11.5)
    assert second.count == 1
    assert (third.count, third.retry_after_seconds) == (0, 0.5)
    assert bucket.lease(state, 10.5, wanted=1)[1].count == 1


@pytest.mark.parametrize(
    ("arguments", "name"), [((0.0, 1, 1), "rate_per_second"), ((1.0, 2, 3), "block"), ((1.0, 2, 0), "block")]
)
def test_a_senseless_bucket(arguments: tuple[float, int, int], name: str) -> None:
    with refused(name):
        SharedBucket(*arguments)
