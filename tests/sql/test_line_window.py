"""A claim reads a bounded number of lines, even if very many groups wait."""

from freshq import Queue
from freshq.queue.lines import WINDOW_LINES
from tests.conftest import StoreUnderTest
from tests.support.readings import payloads


def test_up_to_a_window_of_groups_take_turns(queue: Queue, store: StoreUnderTest) -> None:
    queue.put_many([{"payload": number % 40, "group": f"{number % 40}"} for number in range(80)])
    assert set(payloads(queue.claim(limit=40))) == set(range(40))
    assert set(payloads(store.queue().claim(limit=40))) == set(range(40))


def test_a_task_of_a_higher_level_is_claimed_next(queue: Queue, store: StoreUnderTest) -> None:
    queue.put_many([{"payload": "low", "group": f"{number:05}"} for number in range(WINDOW_LINES // 4)])
    assert payloads(queue.claim()) == ["low"]
    store.queue().put("high", priority=1)
    assert payloads(queue.claim(limit=2)) == ["high", "low"]


def test_a_group_that_another_process_puts_takes_its_turn(queue: Queue, store: StoreUnderTest) -> None:
    for few in (1, 2, 8, WINDOW_LINES - 1):
        queue.put_many([{"payload": "old", "group": f"{n % few:05}"} for n in range(3 * few)])
        assert payloads(queue.claim(limit=few)) == ["old"] * few
        store.queue().put("new", group=f"another-{few}")
        assert "new" in payloads(queue.claim())
        queue.purge(confirm="default")
