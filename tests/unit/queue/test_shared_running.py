"""Tasks in work by group, counted in a shared record."""

from freshq import Queue
from freshq.policy.groups import GroupRule, GroupRules
from freshq.queue.claim import within_limits
from freshq.queue.core import core_of
from freshq.queue.shared.limits import SharedRunning
from freshq.stores.memory import MemoryStore

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
