"""Tasks in work by group, counted in a shared record."""

from math import inf
from typing import Any

import pytest

from freshq import Claim, LeaseLost, Queue
from freshq.policy.groups import GroupRule, GroupRules
from freshq.queue.claim import within_limits
from freshq.queue.core import core_of
from freshq.queue.shared.limits import SharedRunning
from freshq.stores.memory import MemoryStore
from tests.conftest import Clock
from tests.support.readings import known

RULES = GroupRules(of={"acme": GroupRule(max_running=1)})


def test_two_processes_start_no_more_than_the_limit() -> None:
    store = MemoryStore()
    queue = Queue(store)
    queue.put_many([{"payload": number, "group": "acme"} for number in range(3)])
    core = core_of(queue)
    one, other = SharedRunning(store, queue.name), SharedRunning(store, queue.name)
    first, second = queue.claim(2)
    now = core.now()
    assert one.admitted([first], RULES, now) == [first]
    assert other.admitted([second], RULES, now) == []
    assert not other.room(RULES, now).allows("acme")
    one.extended([first.task], now)
    one.ended([first.task], now)
    assert other.room(RULES, now).allows("acme")


def test_what_is_beyond_a_limit_returns() -> None:
    store = MemoryStore()
    queue = Queue(store, groups=RULES)
    queue.put(1, group="acme")
    core, running = core_of(queue), SharedRunning(store, "default")
    claims = queue.claim(1)
    assert within_limits(core, running, claims) == claims
    assert within_limits(core, SharedRunning(store, "default"), claims) == []
    assert queue.stats().pending == 1


def test_tasks_of_a_kind_without_room_come_back_one_after_the_other() -> None:
    store, clock = MemoryStore(), Clock()
    rules = GroupRules(kinds={"embed": GroupRule(units_per_second=10, burst_units=20)})
    queue = Queue(store, clock=clock)
    queue.put_many([{"payload": n, "task_id": f"{n}", "kind": "embed", "cost": 40} for n in range(4)])
    claims = queue.claim(4)
    queue.configure(groups=rules)
    running = SharedRunning(store, "default")
    assert within_limits(core_of(queue), running, claims) == claims[:1]
    # 20 units are owed, and a twentieth of the burst is awaited; then they come at twice the rate.
    waits = [running.put_off[claim.task.task_id] for claim in claims[1:]]
    assert waits == pytest.approx([2.1, 4.1, 6.1])
    due = [known(queue, claim.task.task_id).not_before for claim in claims[1:]]
    assert due == pytest.approx([clock.now + wait for wait in waits])
    assert running.room(rules, clock.now).wait_seconds == inf
    assert running.put_off == {}
    core_of(queue).stopped_running([claims[0].task])
    running.correct([(None, "embed", -40)], rules, clock.now)
    assert running.room(rules, clock.now).allows_kind("embed")


class NotCounting(MemoryStore):
    """Leaves the limits to the shared record, as DynamoDB does."""

    counts_groups = False


def test_a_lease_extended_after_its_end_keeps_no_place_in_its_group() -> None:
    """Others may have started a task in its place."""
    store, clock = NotCounting(), Clock()
    queue, other = (Queue(store, clock=clock, lease_seconds=10, groups=RULES) for _ in range(2))
    queue.put_many([{"payload": number, "group": "acme"} for number in range(2)])
    (claim,) = queue.claim(2)
    claim = queue.extend(claim, lease_seconds=20)
    clock.advance(21)
    with pytest.raises(LeaseLost):
        queue.extend(claim)
    assert len(other.claim(2)) == 1
    assert other.stats().taken == 1


def test_a_slow_claim_gives_back_what_others_may_have_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    store, clock = NotCounting(), Clock()
    queue = Queue(store, clock=clock, lease_seconds=10, groups=RULES)
    queue.put(1, group="acme")
    admitted = SharedRunning.admitted

    def slowly(*given: Any) -> list[Claim]:
        claims = admitted(*given)
        clock.advance(11)
        return claims

    monkeypatch.setattr(SharedRunning, "admitted", slowly)
    assert queue.claim(1) == []
    assert queue.stats().pending == 1
