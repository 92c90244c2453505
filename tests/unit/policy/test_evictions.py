"""Which tasks are shed for a backlog that is counted while tasks come in."""

from __future__ import annotations

import pytest

from freshq.policy.backlog_limit import BacklogLimit, CountedBacklog, Eviction, Victim, WhenFull
from freshq.policy.shedding import ShedReason

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
    # All that were stored are gone: what is left of the group came with this batch.
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
