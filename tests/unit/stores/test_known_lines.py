"""Which lines a claim on DynamoDB looks into, and when a line is closed."""

from collections.abc import Callable

from freshq.stores.dynamodb.line_records import (
    EMPTY_CHECK_SECONDS,
    EMPTY_IN_WINDOW,
    OUTDATED_SECONDS,
    QUIET_SECONDS,
    WINDOW,
    KnownLines,
)
from freshq.stores.lines import Line

A, B = (0, "a"), (0, "b")


def knowing(count: int) -> KnownLines:
    known = KnownLines()
    known.announced([((0, f"g{number}"), float(number)) for number in range(count)])
    return known


def test_all_groups_of_a_level_are_in_the_window_up_to_its_size() -> None:
    assert len(knowing(WINDOW).window(0, 0.0)) == WINDOW
    assert len(knowing(3 * WINDOW).window(0, 0.0)) == WINDOW


def test_more_groups_than_the_window_come_in_turn() -> None:
    known = knowing(200)
    turns = []
    for _ in range(400):
        line = known.window(1, 0.0)[0]
        known.served(line)
        turns.append(line)
    assert len(set(turns[:200])) == len(set(turns[200:])) == 200


def test_served_groups_keep_half_of_the_window_beside_a_stream_of_new_ones() -> None:
    known = knowing(200)
    for line in known.lines()[:100]:
        known.served(line)
    window = known.window(0, 0.0)
    assert sum(int(str(group).removeprefix("g")) >= 100 for _level, group in window) in range(1, WINDOW)
    known.announced([((0, "new"), 1.0)])
    assert len(known.window(0, 0.0)) == WINDOW


def asking(known: KnownLines, room: Callable[[list[Line]], bool]) -> tuple[list[Line], list[Line]]:
    """Return the window of a claim, and the lines whose groups it asked about; `room` judges the last one."""
    asked: list[Line] = []

    def has_room(group: str | None) -> bool:
        asked.append((0, group))
        return room(asked)

    return known.window(1, 0.0, has_room), asked


def test_a_claim_asks_about_every_group_until_it_finds_one_with_room() -> None:
    known = knowing(50 * WINDOW)
    assert asking(known, lambda asked: len(asked) == 49 * WINDOW)[0] != []
    window, asked = asking(known, lambda _asked: False)
    assert window == []
    assert set(asked) == set(known.lines())


def test_a_claim_that_found_a_group_with_room_asks_about_few_others() -> None:
    known = knowing(50 * WINDOW)
    window, asked = asking(known, lambda asked: len(asked) == 1)
    assert window == asked[:1]
    assert len(asked) <= 3 * WINDOW


def test_a_drained_line_is_closed_at_once_if_it_is_quiet() -> None:
    known = knowing(0)
    known.announced([(A, 1.0), (B, 1.0)])
    known.drained(A, 0.0, quiet=True)
    known.drained(B, 0.0, quiet=False)
    assert known.to_close(1, 9, 0.0) == {A: True}
    assert known.lines() == [B]
    known.closed([A])
    known.announced([(A, 1.0)])
    assert set(known.lines()) == {A, B}


def test_an_empty_line_is_looked_at_again_before_it_is_closed() -> None:
    known = knowing(0)
    known.announced([(A, 1.0)])
    known.found_empty(A, 0.0)
    assert known.window(1, 0.0) == []
    assert known.window(1, EMPTY_CHECK_SECONDS) == [A]
    known.found_empty(A, EMPTY_CHECK_SECONDS)
    assert known.to_close(1, 9, EMPTY_CHECK_SECONDS) == {}
    known.found_empty(A, QUIET_SECONDS)
    assert known.to_close(1, 9, QUIET_SECONDS) == {A: False}


def test_a_claim_looks_again_into_few_empty_lines() -> None:
    known = knowing(100)
    for line in known.lines():
        known.found_empty(line, 0.0)
    assert len(known.window(10, 10.0)) == EMPTY_IN_WINDOW


def test_a_line_that_was_not_closed_in_time_is_looked_at_again() -> None:
    known = knowing(0)
    known.announced([(A, 1.0)])
    known.drained(A, 0.0, quiet=True)
    assert known.to_close(2, 9, 0.0) == {}
    assert known.to_close(1, 9, OUTDATED_SECONDS + 0.1) == {}
    assert known.window(1, OUTDATED_SECONDS + 0.1) == [A]


def test_a_new_announcement_opens_a_line_that_is_being_closed() -> None:
    known = knowing(0)
    known.announced([(A, 1.0)])
    known.drained(A, 0.0, quiet=True)
    known.announced([(A, 1.0)])
    assert known.to_close(1, 9, 0.0) == {A: True}
    known.announced([(A, 2.0)])
    known.closed([A])
    assert known.lines() == known.window(1, 0.0) == [A]


def test_after_a_second_look_a_claim_checks_all_lines_found_empty_once() -> None:
    known = knowing(2 * EMPTY_IN_WINDOW)
    for line in known.lines():
        known.found_empty(line, 0.0)
    assert known.window(1, EMPTY_CHECK_SECONDS / 2) == []
    known.look_again()
    assert known.window(1, EMPTY_CHECK_SECONDS / 2) == known.lines()
    assert len(known.window(1, EMPTY_CHECK_SECONDS / 2)) == EMPTY_IN_WINDOW
    for line in known.lines():
        known.found_empty(line, EMPTY_CHECK_SECONDS / 2)
    assert known.window(1, EMPTY_CHECK_SECONDS / 2) == []
