"""Which lines a claim on DynamoDB may look into, and when a line is closed."""

import threading
from collections import Counter
from types import SimpleNamespace
from typing import Any

from freshq.queue.lines import WINDOW_LINES, LineBook
from freshq.stores.dynamodb.line_records import (
    CLOSING_LINES,
    EMPTY_CHECK_SECONDS,
    EMPTY_CHECKS,
    OUTDATED_SECONDS,
    QUIET_SECONDS,
    KnownLines,
)
from freshq.stores.dynamodb.lines import DynamoReader
from freshq.stores.lines import END, LevelSchedulers, Line, parse_line

A, B = Line(0, "a"), Line(0, "b")


def knowing(count: int) -> KnownLines:
    known = KnownLines()
    known.announced([(Line(0, f"g{number}"), float(number)) for number in range(count)])
    return known


def view(known: KnownLines | None, *more: str) -> DynamoReader:
    """Return what a claim sees of known lines, and of lines with these keys."""
    records = SimpleNamespace(view=lambda _queue, _clock: (sorted(more), threading.Lock(), known))
    store: Any = SimpleNamespace(line_records=records)
    request: Any = SimpleNamespace(queue="q", clock=None, limit=0)
    return DynamoReader(store, request)


def looked_into(known: KnownLines, now: float) -> list[Line]:
    """Return the lines that the next claim looks into, first those that may have work."""
    return [*map(parse_line, known.between("", END)), *known.due_checks(EMPTY_CHECKS, now)]


def test_lines_of_groups_and_of_no_group_are_found_by_their_keys() -> None:
    known = KnownLines()
    known.announced([(Line(0, "a"), 1.0), (Line(5, "a"), 1.0), (Line(5, "c"), 1.0)])
    found = view(known, "0", "9", "5b")
    assert found.lines("", END, 9) == ["0", "0a", "5a", "5b", "5c", "9"]
    assert found.lines("0", "5c", 2) == ["0a", "5a"]
    assert [found.last_line(until) for until in (END, "9", "5c", "5a", "0")] == ["9", "5c", "5b", "0a", None]


def test_without_groups_only_the_levels_are_shown() -> None:
    levels = view(None, "0", "7")
    assert levels.lines("", END, 9) == ["0", "7"]
    assert levels.lines("", END, 1) == ["0"]
    assert [levels.last_line(until) for until in (END, "7", "0")] == ["7", "0", None]
    assert levels.begin("0", "7") == "0"


def test_processes_that_know_many_lines_begin_at_different_ones() -> None:
    known = [knowing(1000) for _ in range(20)]
    begun = {view(each).begin("0", END) for each in known}
    assert len(begun) > 10
    assert begun <= {line.key for line in known[0].lines()}
    assert view(known[0]).begin("1", END) == "1"
    assert view(known[0]).begin("0", END) == view(known[0]).begin("0", END)


def test_more_groups_than_a_window_come_in_turn() -> None:
    schedulers = LevelSchedulers()
    book, known = LineBook(schedulers), knowing(200)
    served: Counter[str | None] = Counter()
    for _ in range(1000):
        (level,) = book.levels(view(known))
        assert len(level.keys) == WINDOW_LINES
        served[next(schedulers.interleave(0, {group: iter([group]) for group in level.keys}))] += 1
    assert len(served) == 200
    assert 4 <= min(served.values()) <= max(served.values()) <= 6


def test_a_larger_claim_sees_as_many_more_lines() -> None:
    reader, book = view(knowing(200)), LineBook(LevelSchedulers())
    reader.more_lines = 100
    (level,) = book.levels(reader)
    assert len(level.keys) == WINDOW_LINES + 100
    reader.more_lines = 200
    assert [len(level.keys) for level in book.levels(reader)] == [200]


def test_a_drained_line_is_closed_at_once_if_it_is_quiet() -> None:
    known = knowing(0)
    known.announced([(A, 1.0), (B, 1.0)])
    known.drained(A, 0.0, quiet=True)
    known.drained(B, 0.0, quiet=False)
    assert known.to_close(1, 9, 0.0) == {A: True}
    assert known.lines() == [B]
    known.closed([A], [A], 0.0)
    known.announced([(A, 1.0)])
    assert set(known.lines()) == {A, B}


def test_an_empty_line_is_looked_at_again_before_it_is_closed() -> None:
    known = knowing(0)
    known.announced([(A, 1.0)])
    known.found_empty(A, 0.0)
    assert looked_into(known, 0.0) == []
    assert looked_into(known, EMPTY_CHECK_SECONDS) == [A]
    known.found_empty(A, EMPTY_CHECK_SECONDS)
    assert known.to_close(1, 9, EMPTY_CHECK_SECONDS) == {}
    known.found_empty(A, QUIET_SECONDS)
    assert known.to_close(1, 9, QUIET_SECONDS) == {A: False}


def test_a_claim_looks_again_into_few_empty_lines() -> None:
    known = knowing(100)
    for line in known.lines():
        known.found_empty(line, 0.0)
    assert len(looked_into(known, 10.0)) == EMPTY_CHECKS


def test_a_line_that_was_not_closed_in_time_is_looked_at_again() -> None:
    known = knowing(0)
    known.announced([(A, 1.0)])
    known.drained(A, 0.0, quiet=True)
    assert known.to_close(2, 9, 0.0) == {}
    assert known.to_close(1, 9, OUTDATED_SECONDS + 0.1) == {}
    assert looked_into(known, OUTDATED_SECONDS + 0.1) == [A]


def test_a_new_announcement_opens_a_line_that_is_being_closed() -> None:
    known = knowing(0)
    known.announced([(A, 1.0)])
    known.drained(A, 0.0, quiet=True)
    known.announced([(A, 1.0)])
    assert known.to_close(1, 9, 0.0) == {A: True}
    known.announced([(A, 2.0)])
    known.closed([A], [A], 0.0)
    assert known.lines() == looked_into(known, 0.0) == [A]


def test_after_a_second_look_every_line_found_empty_is_due_once() -> None:
    known = knowing(2 * EMPTY_CHECKS)
    for line in known.lines():
        known.found_empty(line, 0.0)
    assert known.has_many_empty()
    assert known.due_checks(9, EMPTY_CHECK_SECONDS / 2) == []
    known.look_again()
    assert known.due_checks(9, EMPTY_CHECK_SECONDS / 2) == known.lines()
    assert len(looked_into(known, EMPTY_CHECK_SECONDS / 2)) == EMPTY_CHECKS
    for line in known.lines():
        known.found_empty(line, EMPTY_CHECK_SECONDS / 2)
    assert known.due_checks(9, EMPTY_CHECK_SECONDS / 2) == []


def test_a_line_that_was_closed_here_is_looked_into_once_more_unless_it_is_known_again() -> None:
    known = knowing(3)
    closing, closed_here, again = known.lines()
    for line in known.lines():
        known.drained(line, 0.0, quiet=True)
    known.closed([closing, closed_here, again], [closed_here, again], 1.0)
    known.may_have_work(again)
    assert known.closed_before(0.9) == []
    assert known.closed_before(1.0) == [closed_here]
    assert known.closed_before(9.0) == []
    known.closed([], [A], 2.0)
    known.look_again()
    assert known.closed_before(1.0) == [A]


def test_only_the_lines_that_were_closed_last_are_looked_into_once_more() -> None:
    known = knowing(0)
    lines = [Line(0, f"g{number}") for number in range(CLOSING_LINES + 2)]
    known.closed([], lines, 1.0)
    assert known.closed_before(1.0) == lines[2:]
    assert known.closed_before(2.0) == []
