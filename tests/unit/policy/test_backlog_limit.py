"""The bounded backlog."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshq.policy.backlog_limit import BacklogLimit, Victim, WhenFull
from freshq.policy.shedding import ShedReason
from tests.support.refusals import refused


def test_a_backlog_that_is_not_full_sheds_nothing() -> None:
    assert BacklogLimit(3).eviction(3, {}) is None


def test_a_full_backlog_drops_the_oldest_or_refuses_the_newest() -> None:
    drop = BacklogLimit(3).eviction(4, {})
    refuse = BacklogLimit(3, WhenFull.REFUSE_NEWEST).eviction(4, {})
    assert drop is not None
    assert refuse is not None
    assert (drop.reason, drop.victim) == (ShedReason.OVERFLOW, Victim.OLDEST)
    assert (refuse.reason, refuse.victim) == (ShedReason.OVERFLOW, Victim.NEWCOMER)


@pytest.mark.parametrize("when_full", list(WhenFull))
def test_the_noisiest_group_gives_way_first(when_full: WhenFull) -> None:
    limit = BacklogLimit(10, when_full, group_share=0.5)
    eviction = limit.eviction(11, {"quiet": 2, None: 3, "noisy": 6})
    assert eviction is not None
    assert eviction.reason is ShedReason.GROUP
    assert (eviction.victim, eviction.group) == (Victim.OLDEST_OF_GROUP, "noisy")


def test_without_a_noisy_group_the_backlog_overflows_as_usual() -> None:
    eviction = BacklogLimit(10, group_share=0.5).eviction(11, {"a": 4, "b": 4, "c": 3})
    assert eviction is not None
    assert eviction.reason is ShedReason.OVERFLOW


@given(st.lists(st.sampled_from("aabc" + "n" * 12), max_size=200), st.sampled_from(WhenFull))
def test_the_bound_holds_and_quiet_groups_are_spared(arrivals: list[str], when_full: WhenFull) -> None:
    limit = BacklogLimit(8, when_full, group_share=0.25)
    waiting: list[str] = []
    for group in arrivals:
        waiting.append(group)
        counts: Counter[str | None] = Counter(waiting)
        eviction = limit.eviction(len(waiting), counts)
        if eviction is None:
            continue
        if max(counts.values()) > 2:
            assert eviction.group is not None
            assert counts[eviction.group] == max(counts.values())
            waiting.remove(eviction.group)
        else:
            assert eviction.reason is ShedReason.OVERFLOW
            waiting.pop(-1 if eviction.victim is Victim.NEWCOMER else 0)
        assert len(waiting) <= 8


@pytest.mark.parametrize(
    ("options", "name"), [((0,), "max_waiting"), ((5, WhenFull.DROP_OLDEST, 1.0), "group_share")]
)
def test_a_senseless_backlog(options: tuple[int, WhenFull, float], name: str) -> None:
    with refused(name):
        BacklogLimit(*options)
