"""Tasks in work by group, counted in a shared record."""

from collections import deque
from collections.abc import Callable
from math import inf
from threading import Thread
from typing import Any

import pytest

from freshq import Claim, LeaseLost, Queue, StoreError
from freshq.model.forks import drained
from freshq.policy.groups import GroupRule, GroupRules
from freshq.queue.core import claim_request, core_of
from freshq.queue.filters import within_limits
from freshq.queue.shared.limits import RUNNING, Admission, SharedRunning
from freshq.stores.memory import MemoryStore
from tests.conftest import Clock
from tests.support.readings import known
from tests.support.worker_threads import wait_until

RULES = GroupRules(of={"acme": GroupRule(max_running=1)})


def test_two_processes_start_no_more_than_the_limit() -> None:
    store = MemoryStore()
    queue = Queue(store)
    queue.put_many([{"payload": number, "group": "acme"} for number in range(3)])
    core = core_of(queue)
    one, other = SharedRunning(store, queue.name), SharedRunning(store, queue.name)
    first, second = queue.claim(2)
    now = core.now()
    assert one.admitted([first], RULES, now).claims == [first]
    assert other.admitted([second], RULES, now).claims == []
    assert not other.room(RULES, now).allows("acme")
    one.extended([first.task], now)
    one.ended([first.task], now)
    assert other.room(RULES, now).allows("acme")


class NotCounting(MemoryStore):
    """Leaves the limits to the shared record, as DynamoDB does."""

    counts_groups = False


def beyond_limits(queue: Queue, claims: list[Claim]) -> list[Claim]:
    """Return the claims that the limits of a queue refuse; its search is incomplete if any is put off."""
    core = core_of(queue)
    core.begin()
    request = claim_request(core, len(claims))
    core.limits.prepare(request)
    assert request.room is not None
    admitted = within_limits(core, request, request.room, claims)
    waits = request.room_in_seconds < inf
    assert request.search_incomplete is waits
    return [claim for claim in claims if claim not in admitted]


def test_what_is_beyond_a_limit_returns() -> None:
    store = NotCounting()
    queue = Queue(store)
    queue.put_many([{"payload": number, "group": "acme"} for number in range(2)])
    claims = queue.claim(2)
    queue.configure(groups=RULES)
    assert beyond_limits(queue, claims) == claims[1:]
    assert (queue.stats().pending, queue.stats().taken) == (1, 1)


def test_tasks_of_a_kind_without_room_come_back_one_after_the_other() -> None:
    store, clock = NotCounting(), Clock()
    rules = GroupRules(kinds={"embed": GroupRule(units_per_second=10, burst_units=20)})
    queue = Queue(store, clock=clock)
    queue.put_many([{"payload": n, "task_id": f"{n}", "kind": "embed", "cost": 40} for n in range(4)])
    claims = queue.claim(4)
    running = SharedRunning(store, "default")
    admission = running.admitted(claims, rules, clock.now)
    assert admission.claims == claims[:1]
    # 20 units are owed, and a twentieth of the burst is awaited; then they come at twice the rate.
    waits = [admission.put_off[claim.task.task_id] for claim in claims[1:]]
    assert waits == pytest.approx([2.1, 4.1, 6.1])
    assert admission.wait_seconds == pytest.approx(2.1)
    running.ended([claims[0].task], clock.now)
    running.correct([(None, "embed", -40)], rules, clock.now)
    assert running.room(rules, clock.now).allows_kind("embed")


def test_a_task_of_a_slow_kind_is_put_off_by_a_minute_so_that_new_rules_reach_it() -> None:
    store, clock = NotCounting(), Clock()
    rules = GroupRules(kinds={"embed": GroupRule(rate_per_second=1 / 3600)})
    queue = Queue(store, clock=clock)
    queue.put_many([{"payload": n, "kind": "embed"} for n in range(3)])
    admission = SharedRunning(store, "default").admitted(queue.claim(3), rules, clock.now)
    assert len(admission.claims) == 1
    assert [*admission.put_off.values()] == pytest.approx([60, 60])


def test_tasks_of_a_kind_without_room_go_back_with_a_delay() -> None:
    store, clock = NotCounting(), Clock()
    rules = GroupRules(kinds={"embed": GroupRule(units_per_second=10, burst_units=20)})
    queue = Queue(store, clock=clock)
    queue.put_many([{"payload": n, "task_id": f"{n}", "kind": "embed", "cost": 40} for n in range(3)])
    claims = queue.claim(3)
    queue.configure(groups=rules)
    assert beyond_limits(queue, claims) == claims[1:]
    due = [known(queue, claim.task.task_id).not_before for claim in claims[1:]]
    assert due == pytest.approx([clock.now + 2.1, clock.now + 4.1])


class Interrupted(NotCounting):
    """Calls a function once, right after it has written a shared record."""

    then: Callable[[], object] | None = None
    writes = 0

    def write_record(self, *given: Any) -> bool:
        written = super().write_record(*given)
        self.writes += written
        then, self.then = self.then, None
        if then is not None:
            then()
        return written


class Failing(NotCounting):
    """Fails once when a shared record is written, before or after the write."""

    fails: str | None = None

    def write_record(self, *given: Any) -> bool:
        fails, self.fails = self.fails, None
        written = fails != "before" and super().write_record(*given)
        if fails:
            raise StoreError("no answer")
        return written


@pytest.mark.parametrize("fails", ["before", "after"])
@pytest.mark.parametrize("call", ["admitted", "ended"])
def test_a_process_whose_write_failed_corrects_the_counts_at_its_next_claim(call: str, fails: str) -> None:
    store = Failing()
    queue = Queue(store)
    queue.put(1, group="acme")
    (claim,) = queue.claim(1)
    now = core_of(queue).now()
    one, other = SharedRunning(store, queue.name), SharedRunning(store, queue.name)
    if call == "ended":
        one.admitted([claim], RULES, now)
        store.fails = fails
        one.ended([claim.task], now)
    else:
        store.fails = fails
        with pytest.raises(StoreError):
            one.admitted([claim], RULES, now)
    assert other.room(RULES, now).allows("acme") is (
        (call, fails) in {("admitted", "before"), ("ended", "after")}
    )
    assert one.room(RULES, now).allows("acme")
    assert other.room(RULES, now).allows("acme")


def beside(work: Callable[[], None]) -> Callable[[], None]:
    """Return a function that starts work in a thread and gives it time to go as far as it can."""
    thread = Thread(target=work)

    def start() -> None:
        thread.start()
        thread.join(0.05)

    return start


def test_two_threads_start_no_more_than_the_limit() -> None:
    store = Interrupted()
    queue = Queue(store)
    queue.put_many([{"payload": number, "group": "acme"} for number in range(2)])
    first, second = queue.claim(2)
    running, now = SharedRunning(store, queue.name), core_of(queue).now()
    later: list[list[Claim]] = []
    store.then = beside(lambda: later.append(running.admitted([second], RULES, now).claims))
    assert running.admitted([first], RULES, now).claims == [first]
    wait_until(lambda: bool(later))
    assert later == [[]]


def test_a_task_that_ends_beside_a_claim_leaves_the_claimed_one_counted() -> None:
    store = Interrupted()
    queue = Queue(store)
    queue.put_many([{"payload": number, "group": f"{number}"} for number in range(2)])
    first, second = queue.claim(2)
    rules, now = GroupRules(default=GroupRule(max_running=1)), core_of(queue).now()
    running, other = SharedRunning(store, queue.name), SharedRunning(store, queue.name)
    running.admitted([first], rules, now)
    ended: list[bool] = []

    def end() -> None:
        running.ended([first.task], now)
        ended.append(True)

    store.then = beside(end)
    running.admitted([second], rules, now)
    wait_until(lambda: bool(ended))
    room = other.room(rules, now)
    assert [room.allows(claim.task.group) for claim in (first, second)] == [True, False]


def test_threads_whose_tasks_end_together_share_a_write() -> None:
    store = Interrupted()
    queue = Queue(store)
    queue.put_many([{"payload": number, "group": "acme"} for number in range(5)])
    claims = queue.claim(5)
    rules, now = GroupRules(default=GroupRule(max_running=5)), core_of(queue).now()
    running = SharedRunning(store, queue.name)
    running.admitted(claims, rules, now)
    threads = [Thread(target=running.ended, args=([claim.task], now)) for claim in claims[1:]]

    def end_all() -> None:
        for thread in threads:
            thread.start()
        wait_until(lambda: not any(map(running.counts, [claim.task for claim in claims])))

    store.then, store.writes = end_all, 0
    running.ended([claims[0].task], now)
    for thread in threads:
        thread.join()
    record = store.read_record(queue.name, RUNNING)
    assert record is not None
    assert (record.values["held"], store.writes) == ({}, 2)


def test_the_end_of_a_lost_claim_leaves_the_next_claim_of_its_task_counted() -> None:
    store, clock = NotCounting(), Clock()
    queue = Queue(store, clock=clock, lease_seconds=10)
    queue.put(1, group="acme")
    running = SharedRunning(store, queue.name)
    (lost,) = queue.claim(1)
    running.admitted([lost], RULES, clock.now)
    clock.advance(11)
    queue.admin.recover()
    (again,) = queue.claim(1)
    assert running.admitted([again], RULES, clock.now).claims == [again]
    running.ended([lost.task], clock.now)
    assert not running.room(RULES, clock.now).allows("acme")
    assert (running.counts(lost.task), running.counts(again.task)) == (False, True)


def test_a_forked_child_counts_beside_its_parent() -> None:
    """With one name for both, each would overwrite what the other runs."""
    store = NotCounting()
    queue = Queue(store, groups=RULES)
    queue.put_many([{"payload": number, "group": "acme"} for number in range(2)])
    assert len(queue.claim(1)) == 1
    limits = core_of(queue).limits
    limits.units_due.append(("acme", None, 1.0))
    limits.forget_parent()  # what a fork calls in the child
    assert not limits.units_due
    assert queue.claim(1) == []


def test_each_element_is_taken_by_one_thread() -> None:
    noted = deque(range(3))
    first = drained(noted)
    assert [next(first), *drained(noted), *first] == [0, 1, 2]


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

    def slowly(*given: Any) -> Admission:
        admission = admitted(*given)
        clock.advance(11)
        return admission

    monkeypatch.setattr(SharedRunning, "admitted", slowly)
    assert queue.claim(1) == []
    assert queue.stats().pending == 1
