"""The sketch: its error, merging, and forgetting."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshq.policy.reserve import GAMMA, QuantileSketch
from tests.support.refusals import refused

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


def test_rescaling_changes_neither_the_weights_nor_the_answer() -> None:
    sketch = QuantileSketch(half_life=1)
    for _ in range(100):  # the weights are rescaled after 40 values
        sketch.add([5.0])
        assert sketch.quantile(0.5) == pytest.approx(5.0, rel=0.06)
    assert sketch.total == pytest.approx(1.0)  # 1/2, 1/4, ...


def test_merged_weights_are_in_units_of_the_newest_value() -> None:
    one, other = QuantileSketch(half_life=2), QuantileSketch(half_life=2)
    one.add([1.0, 2.0, 3.0])
    other.add([3.0, 4.0])
    before = one.total
    one.merge(other.counts())
    assert one.total == pytest.approx(before + other.total)
    assert sum(one.counts().values()) == pytest.approx(one.total)


@pytest.mark.parametrize("exponent", range(-50, 50, 7))
def test_a_value_just_above_the_end_of_a_bucket_counts_in_the_next(exponent: int) -> None:
    sketch = QuantileSketch()
    value = GAMMA**exponent * (1 + 1e-11)
    sketch.add([value])
    answer = sketch.quantile(1.0)
    assert answer is not None
    assert answer >= value


def test_empty_zero_and_senseless() -> None:
    sketch = QuantileSketch()
    assert sketch.quantile(0.5) is None
    sketch.add([0.0])
    assert sketch.quantile(1.0) == pytest.approx(1e-6, rel=0.06)
    for share in (0.0, 1.01):
        with refused("share"):
            sketch.quantile(share)
    with refused("half_life"):
        QuantileSketch(half_life=0.5)
