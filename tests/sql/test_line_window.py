"""A claim reads a bounded number of lines, even if very many groups wait; it takes what its choice says."""

from collections import Counter

import pytest

from freshq import Queue
from freshq.queue.core import claim_request, core_of
from freshq.queue.lines import WINDOW_LINES
from freshq.stores.lines import END, Choice
from freshq.stores.sql import SqlStore
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


ODD_GROUPS = [
    *("x", "x ", " x", 'a"b', "a'b", "a\\b", "a\\u0041", "[]", "%s", ":a", ":of_queue", "{tasks}", "--"),
    *("\x01", "\x7f", "\u2028", "\ufffd", "\u00e9", "e\u0301", "\u00df", "\u65e5\u672c", "\U0001f600"),
    "\U0010ffff",
]


@pytest.mark.parametrize("limit", [1, 4, 100])
def test_a_group_may_have_any_text(queue: Queue, limit: int) -> None:
    queue.put_many([{"payload": group, "group": group} for group in ODD_GROUPS])
    served = []
    while claims := queue.claim(limit):
        served += [claim.task.group for claim in claims]
    assert sorted(map(str, served)) == sorted(ODD_GROUPS)


# The lines that a claim chooses, with how many tasks of each; how many in all; where no line may be; and
# how many it takes of each group. Three tasks wait in each of the lines 0a, 0b and 0c.
CHOICES: list[tuple[dict[str, int], int, tuple[tuple[str, str], ...], dict[str, int]]] = [
    ({"0b": 2}, 9, (), {"b": 2}),
    ({"0b": 9}, 2, (), {"b": 2}),
    ({"0b": 9}, 9, (("0", "0a"), ("1", END)), {"b": 3}),
    ({"0b": 2}, 9, (("1", END),), {"b": 2}),
    ({"0b": 9}, 9, (("0", "0b"), ("1", END)), {}),
    ({"0b": 9}, 9, (("1", END), ("0b\x01", "1")), {}),
    ({"0b": 2}, 9, (("0", "0a"), ("1", "2"), ("2", END)), {"b": 2}),
    ({"0b": 9}, 9, (("0", "0a"), ("1", "2"), ("0b\x01", "1")), {}),
    ({"0c": 1, "0a": 2}, 9, (), {"c": 1, "a": 2}),
    ({"0c": 2, "0a": 2}, 3, (), {"c": 2, "a": 1}),
    ({"0c": 9, "0x": 9, "0a": 1}, 9, (("1", END),), {"c": 3, "a": 1}),
    ({"0c": 1, "0a": 2}, 9, (("1", END), ("0a\x01", "0c")), {}),
    ({"0x": 1}, 9, (), {}),
]


@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_choice_of_lines_takes_the_best_of_each_unless_there_is_a_better_line(
    request: pytest.FixtureRequest, kind: str, newest_first: bool
) -> None:
    queue = Queue(SqlStore(request.getfixturevalue(f"{kind}_engine")))
    core = core_of(queue)
    for lines, limit, unless, expected in CHOICES:
        queue.put_many([{"payload": number, "group": group} for number in range(3) for group in "abc"])
        choice = Choice(lines, newest_first, limit, unless)
        taken = core.store.take(claim_request(core, limit, lease_seconds=30), choice)
        assert Counter(task.group for task in taken) == expected, choice
        numbers = (2, 1, 0) if newest_first else (0, 1, 2)
        best = {group: sorted(numbers[:count]) for group, count in expected.items()}
        found = {group: sorted(task.payload for task in taken if task.group == group) for group in expected}
        assert found == best
        queue.purge(confirm="default")
