"""Limits by group: tasks in work, and starts per second."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshq import GroupRule, GroupRules
from freshq.policy.groups import GroupRoom, RunningCounts, StartLog, rate_window


@pytest.mark.parametrize(
    ("rate", "window"), [(3.0, (3, 1.0)), (2.5, (2, 0.8)), (1.0, (1, 1.0)), (0.25, (1, 4.0))]
)
def test_a_rate_allows_some_starts_in_about_a_second(rate: float, window: tuple[int, float]) -> None:
    assert rate_window(rate) == window


@given(
    st.lists(st.floats(0.001, 0.7), min_size=30, max_size=60), st.sampled_from([0.5, 1.0, 2.5, 20.0, 200.0])
)
def test_no_window_has_more_starts_than_the_rate_allows(gaps: list[float], rate: float) -> None:
    log, rules = StartLog(), GroupRules(GroupRule(rate_per_second=rate))
    started, now = list[float](), 0.0
    for gap in gaps:
        now += gap
        while log.room("a", rate, now) > 0:
            log.add("a", rate, now)
            started.append(now)
        # As another process reads it.
        log = StartLog(json.loads(json.dumps(log.values(rules, now))))
    most, window_seconds = rate_window(rate)
    for first in started:
        assert len([at for at in started if first <= at < first + window_seconds - 1e-9]) <= most
    assert len(started) >= most


def test_a_log_forgets_what_no_longer_counts() -> None:
    log, rules = StartLog(), GroupRules(of={"a": GroupRule(rate_per_second=2)})
    for name in ("a", "unlimited"):
        log.add(name, 2.0, 10.0)
        log.add(name, 2.0, 10.01)
    assert log.values(rules, 10.5) == {"a": [[10.01, 2]]}
    assert log.values(rules, 11.5) == {}
    with pytest.raises((TypeError, ValueError)):
        StartLog({"a": [["x"]]})


def test_the_starts_of_a_claim_count_from_its_end() -> None:
    room = GroupRoom(GroupRules(GroupRule(rate_per_second=1)), Counter[str]().__getitem__, StartLog(), 5.0)
    room.start("a")
    room.log.delay(room.rated, 5.7)
    assert (room.log.room("a", 1, 6.6), room.log.room("a", 1, 6.7)) == (0, 1)
    room.log.delay(room.rated, 5.0)
    assert room.log.room("a", 1, 6.6) == 0, "never earlier"


def test_a_group_is_full_if_it_or_its_parent_is() -> None:
    rules = GroupRules(of={"acme": GroupRule(max_running=2), "b": GroupRule(max_running=1)}, separator="/")
    running = RunningCounts()
    for group in ("acme/1", "acme/2", "b", "c", None):
        running.add(group, 1)
    full = {group: running.full(group, rules) for group in ("acme/1", "acme/9", "acme", "b", "c", None)}
    assert full == {"acme/1": "acme", "acme/9": "acme", "acme": "acme", "b": "b", "c": None, None: None}
    running.add("acme/1", -1)
    assert running.full("acme/9", rules) is None


def room_of(rules: GroupRules, running: dict[str, int]) -> GroupRoom:
    return GroupRoom(rules, Counter(running).__getitem__, StartLog(), 0.0)


def test_a_group_has_room_until_it_or_its_parent_is_at_its_limit() -> None:
    rules = GroupRules(
        GroupRule(max_running=3), {"acme": GroupRule(max_running=2), "free": GroupRule()}, separator="/"
    )
    room = room_of(rules, {"acme": 1, "acme/a": 1, "other": 2, "free": 99})
    assert room.allows("acme/b")
    before = room.started
    room.start("acme/b")
    assert (before, room.started) == (False, True)
    assert not room.allows("acme/a")
    assert not room.allows("acme")
    assert room.full == {"acme/a", "acme"}
    assert room.allows("free")
    assert room.allows(None)
    room.start(None)
    room.start("other")
    assert not room.allows("other")
    assert "other" in room.full


def test_a_group_without_starts_left_has_no_room() -> None:
    room = room_of(GroupRules(GroupRule(rate_per_second=2)), {})
    for _ in range(2):
        assert room.allows("a")
        room.start("a")
    assert not room.allows("a")
    assert room.full == {"a"}
    assert room.allows("b")


def test_tasks_in_work_are_counted_by_group_and_parent() -> None:
    running = RunningCounts()
    for group in ("acme/a", "acme/a", "acme/b", "acme", "acme-2", None):
        running.add(group, 1)
    running.add("acme/b", -1)
    assert running.of("acme", None) == 1
    assert running.of("acme", "/") == 3
    assert running.of("acme/a", "/") == 2
    assert running.of("acme/b", "/") == 0
    assert running.by_group() == {"acme/a": 2, "acme": 1, "acme-2": 1}
