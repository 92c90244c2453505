"""The sketch: its error, merging, and forgetting."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshq.policy.quantile import GAMMA, QuantileSketch

values = st.lists(st.floats(min_value=1e-5, max_value=1e6), min_size=1, max_size=200)
shares = st.floats(min_value=0.01, max_value=1)


def exact(numbers: list[float], share: float) -> float:
    return sorted(numbers)[max(0, math.ceil(share * len(numbers)) - 1)]


@given(values, shares)
def test_an_answer_is_never_too_low_and_little_too_high(numbers: list[float], share: float) -> None:
    sketch = QuantileSketch(half_life=math.inf)
    sketch.add(numbers)
    answer = sketch.quantile(share)
    assert answer is not None
    assert exact(numbers, share) <= answer <= exact(numbers, share) * GAMMA * (1 + 1e-6)


@given(values, values, shares)
def test_merging_is_counting_together(some: list[float], others: list[float], share: float) -> None:
    together, one, other = (QuantileSketch(half_life=math.inf) for _ in range(3))
    together.add(some + others)
    one.add(some)
    other.add(others)
    one.merge(other.counts())
    assert one.quantile(share) == together.quantile(share)


def test_old_values_fade() -> None:
    sketch = QuantileSketch(half_life=100)
    sketch.add([1.0] * 10_000)
    sketch.add([5.0] * 100)
    assert sketch.quantile(0.4) == pytest.approx(1.0, rel=0.06)
    sketch.add([5.0] * 400)
    assert sketch.quantile(0.4) == pytest.approx(5.0, rel=0.06)


def test_memory_and_numbers_stay_bounded() -> None:
    sketch = QuantileSketch(half_life=1)
    sketch.add([1.05**step for step in range(2000)])
    assert len(sketch.counts()) < 100
    assert all(0 < weight < 2 for weight in sketch.counts().values())


def test_empty_zero_and_senseless() -> None:
    sketch = QuantileSketch()
    assert sketch.quantile(0.5) is None
    sketch.add([0.0])
    assert sketch.quantile(1.0) == pytest.approx(1e-6, rel=0.06)
    with pytest.raises(ValueError, match="share"):
        sketch.quantile(0.0)
    with pytest.raises(ValueError, match="half_life"):
        QuantileSketch(half_life=0.5)
