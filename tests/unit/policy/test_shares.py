"""How workers divide a concurrency limit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from freshq.policy.backlog_limit import Share, WorkerShares

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
