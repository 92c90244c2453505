"""Which group has the next turn."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshq.policy import fairness
from freshq.policy.fairness import GroupTurns, fair_share
from freshq.stores.lines import LineTurns
from tests.support.refusals import refused


def served(turns: GroupTurns, groups: Sequence[str | None], count: int) -> list[str | None]:
    """Let groups that always have work take turns; return which had them."""
    taken = []
    for _ in range(count):
        group = turns.next_group(groups)
        turns.record(group)
        taken.append(group)
    return taken


@given(st.integers(1, 7), st.integers(0, 60))
def test_groups_that_always_have_work_take_turns(groups: int, turns: int) -> None:
    names = [str(group) for group in range(groups)]
    expected = [str(turn % groups) for turn in range(turns)]
    assert served(GroupTurns(half_life=10), names, turns) == expected


def test_a_quiet_group_is_served_at_once_and_for_some_tasks_in_a_row() -> None:
    turns = GroupTurns()
    served(turns, ["flood"], 1000)
    assert served(turns, ["flood", "quiet"], 20) == ["quiet"] * 20


def test_a_group_that_begins_to_flood_does_not_starve_the_others_for_long() -> None:
    turns = GroupTurns(half_life=100)
    served(turns, ["old"], 5000)
    first = Counter(served(turns, ["old", "new"], 400))
    assert 100 <= first["old"] <= 200
    assert Counter(served(turns, ["old", "new"], 400)) == {"old": 200, "new": 200}


def test_what_a_group_does_not_use_goes_to_the_others() -> None:
    turns = GroupTurns()
    served(turns, ["a", "b", None], 3)
    assert Counter(served(turns, ["a", "b"], 100)) == {"a": 50, "b": 50}


def test_groups_of_long_ago_are_forgotten() -> None:
    turns = GroupTurns(half_life=1)
    for number in range(1000):
        served(turns, [str(number)], 1)
    assert len(turns) < 100


def test_scaling_does_not_change_whose_turn_it_is() -> None:
    scaled, plain = GroupTurns(half_life=3), GroupTurns(half_life=3)
    names = ["a", "b", "c"]
    served(scaled, ["b"], 150)  # past the largest weight
    served(plain, ["b"], 60)
    assert served(scaled, names, 50) == served(plain, names, 50)


@given(st.lists(st.sampled_from(["a", "b", "c", None]), max_size=30), st.integers(0, 40))
def test_a_plan_is_what_the_turns_will_be(before: list[str | None], count: int) -> None:
    turns, groups = GroupTurns(half_life=5), ["a", "b", None, "d"]
    for group in before:
        turns.record(group)
    plan = turns.plan(groups, count)
    assert turns.plan(groups, count) == plan
    coming = served(turns, groups, count)
    assert Counter(plan) == Counter(coming)
    assert [group for group, number in plan.items() if number] == list(dict.fromkeys(coming))
    assert set(plan) == set(groups)
    assert turns.plan([], 3) == {}


def test_half_life_must_be_a_turn_or_more() -> None:
    with refused("half_life"):
        GroupTurns(half_life=0)


def test_rescaled_weights_change_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights grow until they are rescaled; here that is after 20 turns, and without it never."""
    rng = random.Random(3)
    working = [rng.sample("abc", 2) for _ in range(400)]

    def taken() -> list[str | None]:
        turns = GroupTurns(half_life=2)
        return [group for groups in working for group in served(turns, groups, 1)]

    plain = taken()
    monkeypatch.setattr(fairness, "LARGEST_WEIGHT", 1e3)
    assert taken() == plain


def test_a_new_group_goes_before_one_whose_turns_have_nearly_faded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fairness, "LARGEST_WEIGHT", 1000.0)
    turns = GroupTurns(half_life=1)
    served(turns, ["old"], 2)
    served(turns, ["busy"], 8)  # the weights are rescaled by the last one
    assert turns.next_group(["old", "new"]) == "new"


# --- as the stores use it


@given(st.lists(st.lists(st.sampled_from("abcd"), min_size=1, unique=True), max_size=60))
def test_claims_of_a_store_take_the_turns_of_the_policy(working: list[list[str]]) -> None:
    """Each claim sees other groups with work, as under churn."""
    turns, lines = GroupTurns(), LineTurns()
    for groups in working:
        (claimed,) = islice(lines.interleave(0, {group: iter([group]) for group in groups}), 1)
        assert [claimed] == served(turns, groups, 1)


def test_a_group_without_candidates_uses_no_turn() -> None:
    lines = LineTurns()
    lines.record(0, "b", 2)
    found = lines.interleave(0, {"a": iter(()), "b": iter(["b1", "b2"]), "c": iter(["c1", "c2", "c3"])})
    assert list(found) == ["c1", "c2", "b1", "c3", "b2"]
    assert list(lines.interleave(1, {"b": iter(["b1"]), "c": iter(["c1"])})) == ["b1", "c1"]


@pytest.mark.parametrize(
    ("demands", "capacity", "share"),
    [([], 10.0, math.inf), ([5.0, 5.0], 10.0, math.inf), ([200.0, 5.0], 20.0, 15.0),
     ([9.0, 9.0, 1.0], 10.0, 4.5), ([3.0], 0.0, 0.0)],
)  # fmt: skip
def test_who_asks_for_less_than_the_fair_share_gets_it(
    demands: list[float], capacity: float, share: float
) -> None:
    assert fair_share(demands, capacity) == share
