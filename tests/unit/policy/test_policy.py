"""Pure policy: backoff and token bucket."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshq import Queue
from freshq.policy.limits import TokenBucket
from freshq.policy.retry import Backoff
from tests.support.refusals import refused


class TestBackoff:
    @given(attempts=st.integers(1, 10_000), uniform=st.floats(0, 1, exclude_max=True))
    def test_the_delay_stays_within_its_bounds(self, attempts: int, uniform: float) -> None:
        backoff = Backoff(base_seconds=2, cap_seconds=60)
        delay_seconds = backoff.delay_seconds(attempts, uniform)
        assert 0 <= delay_seconds <= min(60, 2 * 2 ** min(attempts - 1, 10))

    def test_the_bound_doubles_until_the_cap(self) -> None:
        backoff = Backoff(base_seconds=1, cap_seconds=10)
        nearly_one = 1 - 1e-12
        bounds = [round(backoff.delay_seconds(attempts, nearly_one), 6) for attempts in range(1, 7)]
        assert bounds == [1, 2, 4, 8, 10, 10]

    @pytest.mark.parametrize("field", ["base_seconds", "cap_seconds"])
    @pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
    def test_a_bound_that_is_not_positive_is_named(self, field: str, value: float) -> None:
        with refused(f"backoff.{field}"):
            Queue.memory(backoff=Backoff(**{field: value}))


class TestTokenBucket:
    @given(
        rate_per_second=st.floats(0.1, 1000),
        burst=st.integers(1, 100),
        steps=st.lists(st.tuples(st.floats(0, 10), st.integers(0, 50)), max_size=50),
    )
    def test_it_never_admits_more_than_burst_and_rate_allow(
        self, rate_per_second: float, burst: int, steps: list[tuple[float, int]]
    ) -> None:
        now, admitted = 0.0, 0
        bucket = TokenBucket(rate_per_second, burst, now)
        for elapsed_seconds, wanted in steps:
            now += elapsed_seconds
            taken = min(wanted, bucket.available(now))
            bucket.take(taken)
            admitted += taken
            assert admitted <= burst + rate_per_second * now + 1e-6 * (1 + len(steps))

    def test_it_admits_the_rate_once_the_burst_is_spent(self) -> None:
        bucket = TokenBucket(10, 5, now=0.0)
        assert bucket.available(0.0) == 5
        bucket.take(5)
        assert bucket.available(0.0) == 0
        assert bucket.seconds_until_next() == pytest.approx(0.1)
        assert bucket.available(0.1) == 1
        assert bucket.available(100.0) == 5

    def test_a_clock_that_runs_backwards_adds_nothing(self) -> None:
        bucket = TokenBucket(10, 5, now=100.0)
        bucket.take(bucket.available(100.0))
        assert bucket.available(50.0) == 0
        assert bucket.available(100.1) == 1
