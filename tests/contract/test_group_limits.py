"""Limits by group: tasks in work and starts per second, of a group and of its parent."""

import random
from collections import Counter
from collections.abc import Iterable
from threading import Thread

import pytest

from freshq import Claim, GroupRule, GroupRules, Queue
from freshq.queue.claim import has_claimable
from freshq.queue.core import core_of
from tests.conftest import StoreUnderTest


def put(queue: Queue, *groups: str | None, each: int = 10) -> None:
    queue.put_many([{"payload": number, "group": group} for number in range(each) for group in groups])


def groups_of(claims: Iterable[Claim]) -> Counter[str | None]:
    return Counter(claim.task.group for claim in claims)


def test_a_group_at_its_limit_is_skipped_until_one_of_its_tasks_ends(store: StoreUnderTest) -> None:
    rules = GroupRules(GroupRule(max_running=2), {"wide": GroupRule(max_running=4)})
    queue, other = store.queue(groups=rules), store.queue(groups=rules)
    queue.create_table()
    put(queue, "a", "wide", None, each=8)
    claims = [*queue.claim(9), *other.claim(20)]
    assert groups_of(claims) == {"a": 2, "wide": 4, None: 8}
    assert other.claim(5) == []
    done = next(claim for claim in claims if claim.task.group == "a")
    queue.complete(done)
    (claim,) = other.claim(5)
    assert claim.task.group == "a"
    other.release(claim)
    assert groups_of(queue.claim(5)) == {"a": 1}


def test_a_claim_finds_the_one_group_with_room_beside_many_at_their_limit(store: StoreUnderTest) -> None:
    rules = GroupRules(GroupRule(max_running=1))
    holder, queue = store.queue(groups=rules), store.queue(groups=rules)
    holder.create_table()
    full = [f"full-{number}" for number in range(150)]
    put(holder, *full, each=1)
    held = [claim for _ in range(20) for claim in holder.claim(len(full))]
    assert groups_of(held) == dict.fromkeys(full, 1)
    put(holder, *full, "free", each=2)
    (claim,) = queue.claim(1)
    assert claim.task.group == "free"


def test_a_parent_has_a_limit_of_its_own(store: StoreUnderTest) -> None:
    rules = GroupRules(
        of={"acme": GroupRule(max_running=3), "acme/1": GroupRule(max_running=1)}, separator="/"
    )
    queue = store.queue(groups=rules)
    queue.create_table()
    put(queue, "acme", "acme/1", "acme/2", "acme2", each=5)
    claims = queue.claim(20)
    assert groups_of(claims)["acme/1"] <= 1
    assert sum(number for group, number in groups_of(claims).items() if group != "acme2") == 3
    assert groups_of(claims)["acme2"] == 5


def test_the_limits_of_killed_workers_come_back_with_their_leases(store: StoreUnderTest) -> None:
    rules = GroupRules(GroupRule(max_running=1))
    queue = store.queue(groups=rules, lease_seconds=10)
    queue.create_table()
    put(queue, "a", each=2)
    assert len(queue.claim(5)) == 1
    assert queue.claim(5) == []
    store.clock.advance(11)
    again = store.queue()
    again.admin.recover()
    assert len(again.claim(5)) == 1


def test_starts_per_second_are_bounded(store: StoreUnderTest) -> None:
    rules = GroupRules(of={"a": GroupRule(rate_per_second=3), "slow": GroupRule(rate_per_second=0.5)})
    queue, other = store.queue(groups=rules), store.queue(groups=rules)
    queue.create_table()
    put(queue, "a", "slow", each=8)
    assert groups_of(queue.claim(8)) == {"a": 3, "slow": 1}
    store.clock.advance(0.5)
    assert other.claim(8) == []
    store.clock.advance(0.51)
    assert groups_of(other.claim(8)) == {"a": 3}
    store.clock.advance(1.01)
    assert groups_of(queue.claim(8)) == {"a": 2, "slow": 1}


def test_slow_claims_keep_a_rate_too(store: StoreUnderTest) -> None:
    """A search takes time, and starts count from its end: those of the next window come a second later."""
    if not core_of(store.queue()).store.counts_groups:
        pytest.skip("here claims are judged after they are made")
    dice = random.Random(5)

    def ticking() -> float:
        store.clock.advance(dice.choice((0.0001, 0.03)))
        return store.clock.now

    queue = store.queue(groups=GroupRules(of={"a": GroupRule(rate_per_second=5)}), clock=ticking)
    queue.create_table()
    put(queue, "a", each=60)
    starts = [claim.task.updated for _ in range(60) for claim in queue.claim(3)]
    assert len(starts) > 20
    assert max(sum(at <= each < at + 1 for each in starts) for at in starts) == 5


def test_a_change_of_the_limits_counts_for_the_next_claims(store: StoreUnderTest) -> None:
    queue = store.queue(groups=GroupRules(GroupRule(max_running=1)))
    queue.create_table()
    put(queue, "a", "b")
    assert groups_of(queue.claim(9)) == {"a": 1, "b": 1}
    queue.configure(groups=GroupRules(GroupRule(max_running=1), {"a": GroupRule(max_running=3)}))
    assert groups_of(queue.claim(9)) == {"a": 2}
    queue.configure(groups=GroupRules())
    assert len(queue.claim(30)) == 16


def test_many_groups_at_their_limit_hide_no_other(store: StoreUnderTest) -> None:
    queue = store.queue(groups=GroupRules(GroupRule(max_running=1)))
    queue.create_table()
    names = [f"g{number:03}" for number in range(150)]
    put(queue, *names, each=2)
    taken: Counter[str | None] = Counter()
    for _ in range(40):
        taken += groups_of(queue.claim(10))
    assert taken == dict.fromkeys(names, 1)
    put(queue, "late", each=2)
    assert groups_of([claim for _ in range(5) for claim in queue.claim(3)]) == {"late": 1}


@pytest.mark.parametrize("limit", [1, 3])
def test_concurrent_claims_never_exceed_a_limit(store: StoreUnderTest, limit: int) -> None:
    rules = GroupRules(GroupRule(max_running=limit))
    queue = store.queue(groups=rules)
    queue.create_table()
    put(queue, "a", "b", each=20)
    claims: list[Claim] = []

    def claim() -> None:
        mine = store.queue()
        for _ in range(3):
            claims.extend(mine.claim(2))

    threads = [Thread(target=claim) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert groups_of(claims) == {"a": limit, "b": limit}


def test_a_transaction_cannot_keep_limits(store: StoreUnderTest) -> None:
    queue = store.queue(groups=GroupRules(GroupRule(max_running=1)))
    queue.create_table()
    with (
        pytest.raises(ValueError, match=r"groups: a transaction|transaction: needs"),
        queue.transaction(),
    ):
        pass


def test_a_lease_that_is_extended_counts_until_its_new_end(store: StoreUnderTest) -> None:
    queue = store.queue(groups=GroupRules(GroupRule(max_running=1)), lease_seconds=10)
    queue.create_table()
    put(queue, "a", each=2)
    (claim,) = queue.claim(2)
    queue.extend(claim, lease_seconds=30)
    store.clock.advance(20)
    other = store.queue()
    other.admin.recover()
    assert other.claim(2) == []
    store.clock.advance(11)
    other.admin.recover()
    assert len(other.claim(2)) == 1


def test_a_look_finds_only_tasks_that_a_claim_would(store: StoreUnderTest) -> None:
    queue = store.queue(groups=GroupRules(GroupRule(max_running=1)))
    core = core_of(queue)
    assert not has_claimable(core)
    queue.put("later", delay_seconds=60)
    assert not has_claimable(core)
    queue.put("work", group="acme")
    assert has_claimable(core)
    queue.pause()
    assert not has_claimable(core)
    queue.resume()
    assert has_claimable(core)
    queue.claim()
    assert not has_claimable(core)
    queue.put("work", group="acme")
    # Other stores judge limits only while they claim.
    assert has_claimable(core) is core.store.counts_groups
