"""The retry budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshq.policy.limits import RetryBudget
from tests.support.refusals import refused


@given(st.lists(st.booleans(), max_size=500), st.floats(0.01, 1), st.integers(0, 20))
def test_retries_stay_a_fraction_of_first_attempts(
    retries: list[bool], fraction: float, reserve: int
) -> None:
    budget, first_attempts, spent = RetryBudget(fraction, reserve, cap=50), 0, 0
    for retry in retries:
        if retry:
            spent += budget.spend()
        else:
            budget.deposit()
            first_attempts += 1
        assert spent <= reserve + fraction * first_attempts + 1e-6
        assert 0 <= budget.balance <= 50


def test_a_budget_with_another_balance_has_the_same_rules() -> None:
    budget = RetryBudget(0.5, reserve=3, cap=4)
    other = budget.at(9.0)
    assert (budget.balance, other.balance) == (3.0, 4.0)
    assert other.spend()
    other.deposit()
    assert other.balance == 3.5
    other.deposit(9)
    assert other.balance == 4.0
    assert budget.at(1.0).balance == 1.0
    assert RetryBudget(0.5, reserve=0, cap=0.5).at(1.0).balance == 0.5
    assert RetryBudget(0.5, reserve=4, cap=4).balance == 4.0


def test_a_calm_day_does_not_pay_for_a_storm() -> None:
    budget = RetryBudget(0.1, reserve=0, cap=5)
    budget.deposit(1_000_000)
    assert sum(budget.spend() for _ in range(100)) == 5


@pytest.mark.parametrize(("arguments", "name"), [((0.0,), "fraction"), ((0.1, 10, 5), "reserve")])
def test_a_senseless_budget(arguments: tuple[float, ...], name: str) -> None:
    with refused(name):
        RetryBudget(*arguments)
