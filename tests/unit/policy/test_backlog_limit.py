"""The bounded backlog: tasks that it sheds, and the division of a concurrency limit among workers."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from freshq.policy.backlog_limit import (
    BacklogLimit,
    CountedBacklog,
    Eviction,
    Share,
    Victim,
    WhenFull,
    WorkerShares,
)
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


def test_the_noisiest_group_is_the_one_whose_tasks_take_the_most_time() -> None:
    limit = BacklogLimit(10, group_share=0.5)
    waiting: dict[str | None, int] = {"short": 9, "long": 2}
    by_time = limit.eviction(11, waiting, lambda group: 20.0 if group == "long" else 1.0)
    by_number = limit.eviction(11, waiting)
    assert by_time is not None
    assert by_number is not None
    assert (by_time.group, by_number.group) == ("long", "short")


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


OVERFLOW = Eviction(ShedReason.OVERFLOW, Victim.OLDEST)


def noisy(group: str) -> Eviction:
    return Eviction(ShedReason.GROUP, Victim.OLDEST_OF_GROUP, group)


def test_tasks_fit_until_the_bound() -> None:
    assert CountedBacklog(BacklogLimit(3), {"a": 1}).room == 2
    backlog = CountedBacklog(BacklogLimit(3), {"a": 1}, of_any_group=1)
    assert backlog.room == 1
    assert backlog.admit("b") is None
    assert backlog.room == 0
    assert [backlog.admit("b") for _ in range(3)] == [OVERFLOW] * 3
    assert backlog.room == 0


def test_a_newcomer_that_is_refused_is_not_counted() -> None:
    backlog = CountedBacklog(BacklogLimit(2, WhenFull.REFUSE_NEWEST, group_share=0.9), {"a": 1, "b": 1})
    refused = Eviction(ShedReason.OVERFLOW, Victim.NEWCOMER)
    # If refused tasks of "b" were counted, "b" would be a noisy group.
    assert [backlog.admit("b") for _ in range(3)] == [noisy("b"), refused, refused][:1] + [
        Eviction(ShedReason.GROUP, Victim.NEWCOMER)
    ] * 2
    assert backlog.admit("c") == refused


def test_the_noisiest_group_loses_its_stored_tasks_and_then_its_newcomers() -> None:
    backlog = CountedBacklog(BacklogLimit(4, group_share=0.5), {"loud": 3, "quiet": 1})
    assert [backlog.admit(group) for group in ("quiet", "loud", "loud")] == [noisy("loud")] * 3
    # All stored tasks are gone: the remaining tasks of the group came with this batch.
    assert backlog.admit("loud") == Eviction(ShedReason.GROUP, Victim.NEWCOMER)
    assert backlog.admit("quiet") == noisy("quiet")
    assert backlog.admit("other") == OVERFLOW


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(BacklogLimit(2), [OVERFLOW] * 2), (BacklogLimit(3, group_share=0.4), [noisy("a")])],
)
def test_an_excess_is_shed_down_to_the_bound(limit: BacklogLimit, expected: list[Eviction]) -> None:
    backlog = CountedBacklog(limit, {"a": 3, None: 1})
    assert list(backlog.excess()) == expected
    assert backlog.room == 0


NEW = Share(until=100.0, slots=0, peak=0)


def test_shares_are_equal_and_the_first_by_name_take_the_remainder() -> None:
    shares = WorkerShares({})
    for _ in range(2):
        for worker in ("b", "a", "c"):
            shares, _ = shares.taken(worker, NEW, limit=8, wanted=10, in_flight=0)
    assert {worker: share.slots for worker, share in shares.shares.items()} == {"a": 3, "b": 3, "c": 2}


def test_a_share_is_bounded_by_what_is_wanted_and_by_what_is_in_use() -> None:
    assert WorkerShares({}).taken("a", NEW, limit=8, wanted=3, in_flight=0)[1] == 3
    others = WorkerShares({"b": Share(100.0, 8, 0)})
    assert others.taken("a", NEW, limit=8, wanted=3, in_flight=0)[1] == 0
    assert others.taken("a", NEW, limit=8, wanted=3, in_flight=2)[1] == 2


def test_expired_shares_are_dropped() -> None:
    shares = WorkerShares({"a": Share(10.0, 3, 2), "b": Share(20.0, 4, 1), "c": Share(30.0, 1, 7)})
    live = WorkerShares.of(shares.values(), now=10.0)
    assert live.shares == {"b": Share(20.0, 4, 1), "c": Share(30.0, 1, 7)}
    assert live.peak_of_others("b") == 7
    assert live.without("c").shares.keys() == {"b"}


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 12)), max_size=60), st.integers(1, 12))
def test_workers_that_take_turns_never_hold_more_than_the_limit(
    turns: list[tuple[str, int]], limit: int
) -> None:
    shares = WorkerShares({})
    for worker, wanted in turns:
        shares, _ = shares.taken(worker, NEW, limit, wanted, in_flight=0)
        assert sum(share.slots for share in shares.shares.values()) <= limit
