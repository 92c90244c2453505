"""Combinations that make sense, and those that do not."""

from typing import Any

import pytest

from freshq.model.options import parse_options
from freshq.policy.backlog_limit import BacklogLimit, WhenFull
from freshq.policy.order import Order
from freshq.policy.reserve import FixedReserve, QuantileReserve
from freshq.policy.rules import CodelRule, OverloadRules, ReserveRule
from freshq.policy.shedding import Codel
from tests.support.refusals import refused

CODEL = CodelRule(0.5, 1.0)


def test_rules_make_the_objects_that_decide() -> None:
    rules = OverloadRules(10.0, Order.FIFO, ReserveRule(1.0), CODEL)
    assert isinstance(rules.new_reserve(), FixedReserve)
    assert isinstance(rules.new_codel(), Codel)
    assert not rules.new_order().newest_first
    assert isinstance(OverloadRules(10.0, reserve=ReserveRule(quantile=0.9)).new_reserve(), QuantileReserve)
    assert OverloadRules(10.0).new_codel() is None


@pytest.mark.parametrize("order", [Order.LIFO, Order.ADAPTIVE])
def test_codel_beside_newest_first_cannot_be_configured(order: Order) -> None:
    with refused("codel"):
        OverloadRules(10.0, order, codel=CODEL)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"deadline_seconds": 0.0}, "deadline_seconds"),
        ({"deadline_seconds": float("inf")}, "deadline_seconds"),
        ({"deadline_seconds": 10.0, "reserve": ReserveRule(10.0)}, "reserve"),
        ({"deadline_seconds": 10.0, "backlog": BacklogLimit(5, group_share=0.5)}, "group_share"),
        (
            {"deadline_seconds": 10.0, "order": Order.FIFO, "codel": CodelRule(0.0, 1.0)},
            "codel.target_seconds",
        ),
    ],
)
def test_senseless_rules(options: dict[str, Any], name: str) -> None:
    with refused(name):
        OverloadRules(**options)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("0.5", ReserveRule(0.5)),
        ("p90", ReserveRule(quantile=0.9)),
        ("auto", ReserveRule(automatic=True)),
        ("0", ReserveRule()),
    ],
)
def test_a_reserve_is_written_as_text(text: str, rule: ReserveRule) -> None:
    assert ReserveRule.parse(text) == rule
    assert str(rule) == text


@pytest.mark.parametrize("text", ["", "p", "p0", "p100", "-1", "nan", "inf", "p90%", "soon"])
def test_a_senseless_reserve(text: str) -> None:
    with refused("reserve"):
        ReserveRule.parse(text)


@pytest.mark.parametrize(
    ("order", "max_age_seconds", "reserve", "rule"),
    [
        ("fifo", 60.0, None, ReserveRule(quantile=0.9)),
        ("adaptive", 60.0, "auto", ReserveRule(quantile=0.9)),
        ("lifo", 60.0, None, ReserveRule()),
        ("lifo", 60.0, "auto", ReserveRule()),
        ("fifo", None, None, ReserveRule()),
        ("fifo", 60.0, "none", ReserveRule()),
        ("fifo", 60.0, 0, ReserveRule()),
        ("lifo", 60.0, "p90", ReserveRule(quantile=0.9)),
    ],
)
def test_the_order_decides_about_a_reserve_that_is_not_named(
    order: str, max_age_seconds: float | None, reserve: str | float | None, rule: ReserveRule
) -> None:
    options = parse_options({"order": order, "max_age_seconds": max_age_seconds, "reserve": reserve})
    assert options.rules().reserve == rule
    if reserve is None:
        assert parse_options({"order": order, "max_age_seconds": max_age_seconds}).rules().reserve == rule


def test_what_to_shed_may_be_its_value_and_nothing_unknown() -> None:
    given: Any = "refuse-newest"
    assert BacklogLimit(1, given).when_full is WhenFull.REFUSE_NEWEST
    wrong: Any = "refuse_newest"
    with refused("when_full"):
        BacklogLimit(1, wrong)
