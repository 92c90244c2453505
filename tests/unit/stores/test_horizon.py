"""Ranges that claims skip beside an old snapshot, without a database."""

from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from freshq import Queue, Task
from freshq.queue.core import core_of
from freshq.stores.base import Stats
from freshq.stores.sql.database import Database
from freshq.stores.sql.horizon import (
    CHECK_SECONDS,
    COMMIT_US,
    EMPTY_SECONDS,
    EVER_US,
    FULL_SECONDS,
    LOOKUP_SECONDS,
    MAX_KNOWN,
    MAX_RANGES,
    OLD_TRANSACTIONS,
    PROBE_SECONDS,
    SEARCH_PART,
    EmptyParts,
    Horizon,
)
from tests.conftest import Clock

LINE = "0"
QUEUE = "default"


class Snapshots:
    """A stub of a database with a given age of its oldest snapshot."""

    def __init__(self, transactions: int, dialect: str = "postgresql") -> None:
        self.transactions = transactions
        self.dialect = dialect
        self.asked = 0

    def rows(self, _statement: object, _parameters: object) -> list[Any]:
        self.asked += 1
        return [SimpleNamespace(transactions=self.transactions, seconds=60, dead_rows=3_000)]


def horizon_of(snapshots: Snapshots, clock: Clock) -> Horizon:
    return Horizon(cast(Database, snapshots), "tasks", clock)


@pytest.fixture
def parts() -> EmptyParts:
    return EmptyParts(began=0.0)


def found(
    parts: EmptyParts,
    until_us: int,
    best_us: int | None,
    *,
    newest_first: bool = True,
    entered_us: int | None = None,
) -> None:
    """Let it look up the best task of a line, while another task enters the line."""

    def probe(spans: Mapping[str, Sequence[tuple[int, int]]]) -> dict[str, int]:
        assert all(low < high <= until_us for low, high in spans[LINE])
        if entered_us is not None:
            parts.enter(LINE, entered_us)
        return {} if best_us is None else {LINE: best_us}

    parts.find_out([LINE], (5, until_us), probe, newest_first=newest_first)


def pending(created: float, **options: Any) -> Task:
    """Return a waiting task."""
    with Queue.memory(clock=lambda: created) as queue:
        receipt = queue.put("work", **options)
        task = core_of(queue).store.get(receipt.task_id)
    assert task is not None
    return task


def test_everything_young_enough_is_searched_at_first(parts: EmptyParts) -> None:
    assert parts.spans(LINE, 5, newest_first=True) == [(5, EVER_US)]


@pytest.mark.parametrize("newest_first", [True, False])
def test_what_is_better_than_the_best_task_is_passed_over(parts: EmptyParts, *, newest_first: bool) -> None:
    found(parts, 1_000, 300, newest_first=newest_first)
    left = {True: [(999, EVER_US), (5, 301)], False: [(299, EVER_US)]}
    assert parts.spans(LINE, 5, newest_first=newest_first) == left[newest_first]
    assert parts.spans("1", 5, newest_first=newest_first) == [(5, EVER_US)]


def test_of_an_empty_line_only_the_newest_part_is_searched(parts: EmptyParts) -> None:
    found(parts, 1_000, None, newest_first=True)
    assert parts.spans(LINE, 5, newest_first=True) == [(999, EVER_US)]


def test_tasks_that_may_not_have_been_committed_are_searched_again(parts: EmptyParts) -> None:
    found(parts, 1_000, 999)
    assert parts.spans(LINE, 5, newest_first=True) == [(5, EVER_US)]
    found(parts, 1_000, None)
    assert parts.spans(LINE, 5, newest_first=True) == [(999, EVER_US)]
    assert parts.spans(LINE, 2_000, newest_first=True) == [(2_000, EVER_US)]


def test_neighbouring_ranges_are_one(parts: EmptyParts) -> None:
    found(parts, 500, 400, newest_first=True)
    found(parts, 900, 800, newest_first=True)
    assert parts.spans(LINE, 5, newest_first=True) == [(899, EVER_US), (499, 801), (5, 401)]
    found(parts, 1_000, 300, newest_first=True)
    assert parts.spans(LINE, 5, newest_first=True) == [(999, EVER_US), (5, 301)]


def test_a_task_that_enters_a_line_is_not_passed_over(parts: EmptyParts) -> None:
    found(parts, 1_000, None, newest_first=True)
    parts.enter(LINE, 300)
    assert parts.spans(LINE, 5, newest_first=True) == [(999, EVER_US), (299, 301)]
    # A search that has begun may not see it.
    found(parts, 1_000, None, entered_us=400)
    assert parts.spans(LINE, 5, newest_first=True) == [(999, EVER_US), (399, 401)]
    found(parts, 1_000, None)
    assert parts.spans(LINE, 5, newest_first=True) == [(999, EVER_US)]


def test_only_the_widest_ranges_are_kept(parts: EmptyParts) -> None:
    found(parts, 100_000, None, newest_first=True)
    for number in range(1, 2 * MAX_RANGES):
        parts.enter(LINE, number * 1_000)
    spans = parts.spans(LINE, 5, newest_first=False)
    assert len(parts.lines[LINE]) == MAX_RANGES
    assert all(any(low < number * 1_000 < high for low, high in spans) for number in range(1, 2 * MAX_RANGES))


def test_a_line_is_probed_now_and_then(parts: EmptyParts) -> None:
    assert parts.to_probe([LINE, "1"], 10.0) == [LINE, "1"]
    assert parts.to_probe([LINE, "2"], 10.0) == ["2"]
    assert parts.to_probe([LINE], 10.0 + PROBE_SECONDS) == [LINE]


def test_lines_are_looked_up_once_a_second(parts: EmptyParts) -> None:
    answers: list[list[str]] = [["0"], [], ["1"]]

    def look_up(now: float) -> list[str]:
        return [*parts.look_up(lambda _name, _where: answers.pop(0), now, "following", {"of_after": ""})]

    assert look_up(10.0) == ["0"]
    assert look_up(10.1) == ["0"]
    # Nothing waits: then the line that had a task last is the likeliest to have the next one.
    assert look_up(10.0 + LOOKUP_SECONDS) == ["0"]
    assert look_up(10.0 + 2 * LOOKUP_SECONDS) == ["1"]
    parts.enter("2", 300)
    assert not parts.lookups


def test_without_an_old_snapshot_nothing_is_passed_over(clock: Clock) -> None:
    snapshots = Snapshots(OLD_TRANSACTIONS - 1)
    horizon = horizon_of(snapshots, clock)
    assert horizon.empty_parts(QUEUE) is horizon.known(QUEUE) is None
    assert not horizon.searches_again(QUEUE)
    horizon.entered([pending(clock.now)])
    snapshots.transactions += 1
    assert horizon.empty_parts(QUEUE) is None  # found out a moment ago
    assert snapshots.asked == 1
    clock.advance(CHECK_SECONDS)
    assert horizon.empty_parts(QUEUE) is horizon.known(QUEUE) is not None
    snapshots.transactions = 0
    clock.advance(CHECK_SECONDS)
    assert horizon.empty_parts(QUEUE) is horizon.known(QUEUE) is None


def test_other_databases_are_not_asked(clock: Clock) -> None:
    snapshots = Snapshots(OLD_TRANSACTIONS, "sqlite")
    assert horizon_of(snapshots, clock).empty_parts(QUEUE) is None
    assert not snapshots.asked


def test_stats_say_what_an_old_snapshot_keeps(clock: Clock) -> None:
    stats = horizon_of(Snapshots(OLD_TRANSACTIONS), clock).with_dead_rows(Stats())
    assert (stats.oldest_snapshot_seconds, stats.dead_rows) == (60.0, 3_000)
    stats = horizon_of(Snapshots(OLD_TRANSACTIONS, "sqlite"), clock).with_dead_rows(Stats())
    assert (stats.oldest_snapshot_seconds, stats.dead_rows) == (None, None)


def test_everything_is_searched_again_after_some_seconds(clock: Clock) -> None:
    horizon = horizon_of(Snapshots(OLD_TRANSACTIONS), clock)
    first = horizon.empty_parts(QUEUE)
    assert first is not None
    first.look_up(lambda _name, _where: ["0"], clock.now, "following", {})
    clock.advance(FULL_SECONDS / 2)
    assert horizon.empty_parts(QUEUE) is first
    clock.advance(FULL_SECONDS / 2)
    second = horizon.empty_parts(QUEUE)
    assert second is not None
    assert second is not first
    assert second.lookups == first.lookups


def test_a_claim_that_finds_nothing_searches_everything_but_not_all_the_time(clock: Clock) -> None:
    horizon = horizon_of(Snapshots(OLD_TRANSACTIONS), clock)
    parts = horizon.empty_parts(QUEUE)
    assert parts is not None
    parts.search_seconds = 2 * EMPTY_SECONDS * SEARCH_PART
    clock.advance(EMPTY_SECONDS)
    assert not horizon.searches_again(QUEUE)
    clock.advance(EMPTY_SECONDS)
    assert horizon.searches_again(QUEUE)
    assert not horizon.searches_again(QUEUE)
    clock.advance(EMPTY_SECONDS)
    assert horizon.searches_again(QUEUE)


def test_a_returned_task_is_found_again(clock: Clock) -> None:
    horizon = horizon_of(Snapshots(OLD_TRANSACTIONS), clock)
    parts = horizon.empty_parts(QUEUE)
    assert parts is not None
    found(parts, int(clock.now * 1e6), None)
    before = parts.spans(LINE, 5, newest_first=True)
    horizon.entered([None, pending(clock.now - 60, delay_seconds=10)])
    assert parts.spans(LINE, 5, newest_first=True) == before
    horizon.entered([pending(clock.now - 60)])
    assert len(parts.spans(LINE, 5, newest_first=True)) == len(before) + 1


def test_upkeep_does_not_look_twice_where_nothing_is_due(clock: Clock) -> None:
    horizon = horizon_of(Snapshots(OLD_TRANSACTIONS), clock)
    where = horizon.past(QUEUE, "due", clock.now)
    now_us = round(clock.now * 1e6)
    assert where == {"of_queue": QUEUE, "agenda": "due", "from_us": -EVER_US, "now_us": now_us}
    horizon.none_past(where)
    assert horizon.past(QUEUE, "due", clock.now)["from_us"] == where["now_us"] - COMMIT_US
    assert horizon.past(QUEUE, "stale", clock.now)["from_us"] == -EVER_US


def asks(answers: dict[tuple[str, str], list[str]], asked: list[tuple[str, str]]) -> Any:
    """Return a search that answers by the range of lines."""

    def find(_name: str, where: Mapping[str, Any]) -> list[str]:
        asked.append((where["of_after"], where["of_until"]))
        return answers.get(asked[-1], [])

    return find


def test_between_looks_for_all_lines_only_the_gaps_beside_the_known_ones_are_read(parts: EmptyParts) -> None:
    asked: list[tuple[str, str]] = []
    answers = {("", ":"): ["0", "3"], ("3", ":"): ["9"]}

    def look_up(now: float) -> list[str]:
        find = partial(parts.find_lines, asks(answers, asked), now)
        where = {"of_after": "", "of_until": ":", "of_queue": QUEUE, "count": 65}
        return [*parts.look_up(find, now, "lines", where)]

    assert look_up(10.0) == ["0", "3"]
    assert look_up(10.1) == ["0", "3"]
    assert asked == [("", ":")]
    assert look_up(10.0 + LOOKUP_SECONDS) == ["0", "3", "9"]
    assert asked[1:] == [("", "0"), ("0", "3"), ("3", ":")]
    assert [*parts.known_lines(10.0 + LOOKUP_SECONDS)] == ["0", "3", "9"]
    assert [*parts.known_lines(10.0 + 2 * LOOKUP_SECONDS)] == []
    asked.clear()
    answers[("", ":")] = ["9"]
    assert look_up(10.0 + FULL_SECONDS) == ["9"]
    assert asked == [("", ":")]
    # Many lines have many gaps.
    answers[("", ":")] = [f"0{number}" for number in range(MAX_KNOWN + 1)]
    assert look_up(10.0 + 2 * FULL_SECONDS) == answers[("", ":")]
    asked.clear()
    assert look_up(10.0 + 2 * FULL_SECONDS + LOOKUP_SECONDS) == answers[("", ":")]
    assert asked == [("", ":")]
    assert [*parts.known_lines(10.0 + 2 * FULL_SECONDS + LOOKUP_SECONDS)] == []


def test_when_the_next_task_is_due_is_read_once_a_second_or_when_it_is(parts: EmptyParts) -> None:
    answers: list[float | None] = [5.0, None, 7.0]

    def next_due(monotonic: float, now: float) -> float | None:
        return parts.next_due(lambda: answers.pop(0), monotonic, now)

    assert next_due(10.0, 1.0) == 5.0
    assert next_due(10.9, 4.9) == 5.0
    assert next_due(10.9, 5.0) is None
    assert next_due(11.0, 6.0) is None
    assert next_due(10.9 + LOOKUP_SECONDS, 6.0) == 7.0


def test_which_tasks_expire_first_is_read_as_often_as_everything_is_searched(parts: EmptyParts) -> None:
    answers = [[(1, 2)], []]
    assert [parts.first_to_expire(lambda: answers.pop(0), now) for now in (10.0, 9.9 + FULL_SECONDS)] == [
        [(1, 2)],
        [(1, 2)],
    ]
    assert parts.first_to_expire(lambda: answers.pop(0), 10.0 + FULL_SECONDS) == []


def test_a_delayed_task_of_this_process_is_due_when_it_says(clock: Clock) -> None:
    horizon = horizon_of(Snapshots(OLD_TRANSACTIONS), clock)
    parts = horizon.empty_parts(QUEUE)
    assert parts is not None
    assert parts.next_due(lambda: None, clock(), clock.now) is None
    horizon.entered([pending(clock.now, delay_seconds=0.1), None])
    assert parts.next_due(lambda: 7.0, clock(), clock.now) == 7.0


def test_outside_of_a_claim_only_a_recent_search_counts(clock: Clock) -> None:
    horizon = horizon_of(Snapshots(OLD_TRANSACTIONS), clock)
    assert horizon.recent(QUEUE) is None
    parts = horizon.empty_parts(QUEUE)
    assert horizon.recent(QUEUE) is parts is not None
    clock.advance(FULL_SECONDS)
    assert horizon.recent(QUEUE) is None
    assert horizon.known(QUEUE) is parts
