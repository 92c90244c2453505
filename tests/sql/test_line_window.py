"""A claim looks at a bounded number of lines, however many groups wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

from freshq.stores.sql.line_window import WINDOW_LINES
from tests.support.readings import counts, payloads

if TYPE_CHECKING:
    from freshq import Queue
    from tests.conftest import StoreUnderTest


def _statements_and_lines(queue: Queue, engine: sa.Engine, groups: int) -> tuple[int, int]:
    """Return how many statements a claim sends that takes one of as many groups, and lines it finds."""
    queue.put_many([{"payload": number, "group": f"{number:05}"} for number in range(groups)])
    sent: list[str] = []
    found: list[int] = []

    def count(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        sent.append(statement)

    def count_lines(_self: object, *_given: object) -> list[str]:
        keys: list[str] = following(_self, *_given)
        found.append(len(keys))
        return keys

    window = queue.store._window  # type: ignore[attr-defined]
    following = type(window)._following
    sa.event.listen(engine, "before_cursor_execute", count)
    type(window)._following = count_lines
    try:
        assert len(queue.claim()) == 1
    finally:
        type(window)._following = following
        sa.event.remove(engine, "before_cursor_execute", count)
    queue.purge(confirm="default")
    return len(sent), sum(found)


def test_a_claim_costs_the_same_at_any_number_of_groups(queue: Queue, engine: sa.Engine) -> None:
    few, _lines = _statements_and_lines(queue, engine, 2)
    many, lines = _statements_and_lines(queue, engine, 100)
    most, most_lines = _statements_and_lines(queue, engine, 1_500)
    assert many == most <= few + 4
    assert lines == most_lines == 2 * WINDOW_LINES + 1


def test_every_group_has_its_turn(queue: Queue) -> None:
    groups = 3 * WINDOW_LINES + 5
    queue.put_many([{"payload": number, "group": f"{number:05}"} for number in range(groups)])
    while queue.claim(limit=30):
        pass
    assert counts(queue.stats()) == {"taken": groups}


def test_the_higher_level_is_served_first_beyond_the_window(queue: Queue) -> None:
    for level in (0, 3, 9):
        queue.put_many(
            [
                {"payload": level, "group": f"{level}-{number}", "priority": level}
                for number in range(WINDOW_LINES + 2)
            ]
        )
    for level in (9, 3, 0):
        for _ in range(WINDOW_LINES + 2):
            assert payloads(queue.claim()) == [level]
    assert queue.claim() == []


def test_up_to_a_window_of_groups_take_turns(queue: Queue, store: StoreUnderTest) -> None:
    queue.put_many([{"payload": number % 40, "group": f"{number % 40}"} for number in range(80)])
    assert set(payloads(queue.claim(limit=40))) == set(range(40))
    assert set(payloads(store.queue().claim(limit=40))) == set(range(40))
