"""Whose turn it is."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshq.policy.fairness import GroupTurns


@given(st.integers(1, 7), st.integers(0, 60))
def test_groups_that_always_have_work_take_turns(groups: int, turns: int) -> None:
    rotation = GroupTurns([str(group) for group in range(groups)], half_life=10)
    expected = [str(turn % groups) for turn in range(turns)]
    assert [rotation.next() for _ in range(turns)] == expected


@given(
    st.lists(st.tuples(st.sampled_from(["add", "discard", "next"]), st.sampled_from("abcd")), max_size=200)
)
def test_only_groups_with_work_are_served(steps: list[tuple[str, str]]) -> None:
    turns, working = GroupTurns(half_life=3), set[str]()
    for verb, group in steps:
        if verb == "add":
            turns.add(group)
            working.add(group)
        elif verb == "discard":
            turns.discard(group)
            working.discard(group)
        elif working:
            assert turns.next() in working
        assert len(turns) == len(working)


def test_nobody_has_work() -> None:
    turns = GroupTurns(["a"])
    turns.discard("a")
    with pytest.raises(LookupError, match="no group"):
        turns.next()


def test_a_quiet_group_is_served_at_once_and_for_some_tasks_in_a_row() -> None:
    turns = GroupTurns(["flood"])
    for _ in range(1000):
        turns.next()
    turns.add("quiet")
    assert [turns.next() for _ in range(20)] == ["quiet"] * 20


def test_a_group_that_begins_to_flood_does_not_starve_the_others_for_long() -> None:
    turns = GroupTurns(["old"], half_life=100)
    for _ in range(5000):
        turns.next()
    turns.add("new")
    served = Counter(turns.next() for _ in range(400))
    assert 100 <= served["old"] <= 200
    served = Counter(turns.next() for _ in range(400))
    assert served["old"] == served["new"] == 200


def test_what_a_group_does_not_use_goes_to_the_others() -> None:
    turns = GroupTurns(["a", "b", "idle"])
    turns.discard("idle")
    assert Counter(turns.next() for _ in range(100)) == {"a": 50, "b": 50}


def test_groups_of_long_ago_are_forgotten() -> None:
    turns = GroupTurns(half_life=1)
    for number in range(1000):
        turns.add(str(number))
        turns.next()
        turns.discard(str(number))
    assert len(turns._served) < 100
    assert len(turns._queue) < 100


def test_a_senseless_half_life() -> None:
    with pytest.raises(ValueError, match="half_life"):
        GroupTurns(half_life=0)
