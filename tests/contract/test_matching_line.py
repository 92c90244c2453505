"""The line of callers, on every store: first come, first served, by a match from either side."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest
from benchmarks.capacity import match_metered
from local.faults import client_at, meanwhile, replies_lost

from freshq import MatchQueue
from freshq.errors import IllegalTransition, LeaseLost, Unreachable
from freshq.matching import Match, ResourceStatus, line
from tests.support.matching import Desk, join, one
from tests.support.refusals import refused

THREADS: Final = 16
CALLS: Final = 2
DEADLINE_SECONDS: Final = 240.0
SPANISH: Final = {"language": "Spanish"}
ENGLISH: Final = {"language": "English"}


def line_of(queue: MatchQueue) -> list[str]:
    return [caller.caller_id for caller in queue.callers()]


def got(queue: MatchQueue, criteria: Any, caller_id: str) -> Match:
    """Return the match of a caller, which must exist."""
    match = queue.request(criteria, caller_id=caller_id)
    assert match is not None
    return match


@pytest.fixture
def questions_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have resources find callers by their questions alone, as they do behind the first of a long line."""
    monkeypatch.setattr(line, "CALLERS_A_QUESTION", 0)


@pytest.fixture(params=["the line", "questions"])
def found_by(request: pytest.FixtureRequest) -> None:
    """Have resources find callers in each of two ways."""
    if request.param == "questions":
        request.getfixturevalue("questions_only")


@pytest.mark.usefixtures("found_by")
def test_callers_are_served_in_the_order_in_which_they_came(desk: Desk) -> None:
    queue = desk.queue()
    for caller_id in ("zoe", "ann", "bob"):
        assert queue.request(SPANISH, caller_id=caller_id) is None
    assert queue.request(ENGLISH, caller_id="cy") is None
    assert line_of(queue) == ["zoe", "ann", "bob", "cy"]
    assert queue.request(SPANISH, caller_id="ann") is None  # keeps its place
    queue.register("Ellen", attributes={"language": {"Spanish", "English"}, "gender": "F"})
    ellen = queue.offer("Ellen")
    assert (ellen.status, ellen.caller_id) == (ResourceStatus.MATCHED, "zoe")
    assert queue.depths() == {}
    assert queue.request(SPANISH, caller_id="ann") is None
    match = got(queue, SPANISH, "zoe")
    assert (match.resource_id, match.caller_id, match.rank, match.criteria) == ("Ellen", "zoe", 0, SPANISH)
    assert got(queue, SPANISH, "zoe") == match  # until it ends
    queue.complete(match)
    assert queue.offer("Ellen").caller_id == "ann"
    assert line_of(queue) == ["bob", "cy"]


@pytest.mark.usefixtures("found_by")
def test_a_caller_whom_nobody_fits_blocks_no_one(desk: Desk) -> None:
    queue = desk.queue()
    for number in range(line.FIRST_PAGE_CALLERS + 3):
        assert queue.request({"language": "French"}, caller_id=f"french-{number}") is None
    wish = {"language": ["Greek", {"Spanish", "English"}, None], "gender": "F"}
    assert queue.request(wish, caller_id="ann") is None
    join(queue, "Ellen", {"language": "Spanish", "gender": "F"})
    match = got(queue, wish, "ann")
    assert (match.rank, match.criteria) == (1, {"language": "Spanish", "gender": "F"})
    assert len(line_of(queue)) == line.FIRST_PAGE_CALLERS + 3


def test_a_caller_takes_who_is_queued_and_does_not_wait(desk: Desk) -> None:
    queue = desk.staffed()
    match = got(queue, {"language": ["Spanish"], "gender": "M"}, "ann")
    assert (match.resource_id, match.since) == ("Billy", desk.clock.now - 4)
    assert line_of(queue) == []
    assert queue.waiting() == 4
    assert got(queue, SPANISH, "ann") == match
    queue.complete(match)
    assert got(queue, SPANISH, "ann").resource_id == "Christine"  # a new call


def test_an_abandoned_caller_is_not_served(desk: Desk) -> None:
    queue = desk.queue()
    assert queue.request(SPANISH, caller_id="ann") is None
    assert queue.abandon("ann") is True
    assert queue.abandon("ann") is False
    join(queue, "Ellen", SPANISH)
    assert queue.waiting() == 1
    match = got(queue, SPANISH, "ann")
    with pytest.raises(IllegalTransition):
        queue.abandon("ann")
    queue.complete(queue.extend(match))
    assert queue.abandon("ann") is False


@pytest.mark.usefixtures("found_by")
def test_the_resource_of_a_caller_who_never_asked_again_serves_the_next(desk: Desk) -> None:
    queue = desk.queue(lease_seconds=30)
    assert queue.request(SPANISH, caller_id="gone") is None
    join(queue, "Ellen", SPANISH)
    assert queue.request(SPANISH, caller_id="ann") is None
    desk.clock.advance(30)
    late = got(desk.queue(), SPANISH, "gone")  # nobody has recovered it yet
    assert queue.admin.recover() == 1
    with pytest.raises(LeaseLost):
        queue.complete(late)
    assert got(queue, SPANISH, "ann").resource_id == "Ellen"
    assert queue.request(SPANISH, caller_id="gone") is None  # at the end of the line again
    desk.clock.advance(30)
    assert got(queue, SPANISH, "gone").resource_id == "Ellen"  # asking recovers, too
    desk.clock.advance(30)
    assert queue.offer("Ellen").status is ResourceStatus.QUEUED
    assert line_of(queue) == []


@pytest.mark.usefixtures("found_by")
def test_a_released_resource_serves_the_first_caller_whom_it_fits(desk: Desk) -> None:
    queue = desk.queue()
    join(queue, "Ellen", SPANISH)
    match = one(queue, SPANISH)
    for caller_id, criteria in (("cy", ENGLISH), ("ann", SPANISH), ("bob", SPANISH)):
        assert queue.request(criteria, caller_id=caller_id) is None
    desk.clock.advance(5)
    served = queue.release(match)
    assert (served.status, served.caller_id, served.since) == (ResourceStatus.MATCHED, "ann", match.since)
    with pytest.raises(LeaseLost):
        queue.release(match)
    assert queue.release(got(queue, SPANISH, "ann")).caller_id == "bob"
    assert queue.request(SPANISH, caller_id="ann") is None  # forgotten with the match: at the end of the line
    assert line_of(queue) == ["cy", "ann"]


def test_other_criteria_under_the_same_id_are_refused(desk: Desk) -> None:
    queue = desk.queue()
    assert queue.request(SPANISH, caller_id="ann") is None
    with pytest.raises(IllegalTransition):
        queue.request(ENGLISH, caller_id="ann")
    for wrong in ("", 7, "é" * 129):
        with refused("caller_id"):
            queue.request(SPANISH, caller_id=wrong)  # type: ignore[arg-type]
    with refused("criteria"):
        queue.request([], caller_id="bob")
    assert line_of(queue) == ["ann"]


def test_a_resource_with_the_most_entries_can_be_matched_to_a_waiting_caller(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = desk.queue()
    assert queue.request({"a": "3"}, caller_id="ann") is None
    # One name: as many entries as values.
    join(dying(desk, monkeypatch), "wide", {"a": {str(n) for n in range(97)}})
    assert got(queue, {"a": "3"}, "ann").resource_id == "wide"


@pytest.mark.usefixtures("found_by")
def test_two_at_the_same_time_see_each_other(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """One side joins after the other has looked and before it has written."""
    queue, other = desk.queue(), desk.queue()
    queue.register("Ellen", attributes=SPANISH)
    queue.register("Billy", attributes=SPANISH)
    before_commit(monkeypatch, queue, lambda: other.request(SPANISH, caller_id="ann"))
    assert queue.offer("Ellen").caller_id == "ann"
    before_commit(monkeypatch, queue, lambda: other.offer("Billy"))
    assert got(queue, SPANISH, "bob").resource_id == "Billy"
    assert line_of(queue) == []
    assert queue.waiting() == 0


@pytest.mark.usefixtures("found_by")
def test_a_caller_who_sees_a_resource_leaves_it_to_who_came_first(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = desk.queue()
    for caller_id in ("first", "second"):
        assert queue.request(SPANISH, caller_id=caller_id) is None
    join(dying(desk, monkeypatch), "Ellen", SPANISH)
    assert queue.request(SPANISH, caller_id="second") is None
    assert got(queue, SPANISH, "first").resource_id == "Ellen"


def dying(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> MatchQueue:
    """Return a queue whose process dies after it has queued a resource, before it looks for callers."""
    queue = desk.queue()
    monkeypatch.setattr(queue._line, "_serve", lambda *_: None)
    return queue


def before_commit(monkeypatch: pytest.MonkeyPatch, queue: MatchQueue, act: Callable[[], object]) -> None:
    """Run an action once, before the next commit of a queue."""
    store: Any = queue._store
    commit = store.commit

    def commit_after(change: Any) -> None:
        monkeypatch.setattr(store, "commit", commit)
        act()
        commit(change)

    monkeypatch.setattr(store, "commit", commit_after)


@pytest.mark.usefixtures("found_by")
def test_16_threads_of_resources_and_16_of_callers(desk: Desk) -> None:
    """Each resource has one caller at a time, and every caller is served once a call."""
    lock, busy, twice, calls = threading.Lock(), set[str](), list[str](), Counter[str]()
    deadline = time.monotonic() + DEADLINE_SECONDS
    done = threading.Event()

    def work(number: int) -> None:
        queue, name = desk.queue(clock=time.time), f"agent-{number}"
        join(queue, name, {"language": {"English", "Spanish"} if number % 2 else {"Spanish"}})
        while not done.wait(0.01) and time.monotonic() < deadline:
            resource = queue.get(name)
            if resource is not None and resource.status is ResourceStatus.AVAILABLE:
                queue.offer(name)

    def call(number: int) -> None:
        queue = desk.queue(clock=time.time)
        for attempt in range(CALLS):
            caller_id = f"caller-{number}-{attempt}"
            criteria = {"language": ["English", "Spanish"] if number % 2 else "Spanish"}
            while (match := queue.request(criteria, caller_id=caller_id)) is None:
                assert time.monotonic() < deadline, f"{caller_id} was not served"
                time.sleep(0.01)
            with lock:
                twice.extend({match.resource_id} & busy)
                busy.add(match.resource_id)
                calls[caller_id] += 1
            with lock:
                busy.discard(match.resource_id)
            queue.complete(match)

    with ThreadPoolExecutor(2 * THREADS) as pool:
        working = [pool.submit(work, number) for number in range(THREADS)]
        calling = [pool.submit(call, number) for number in range(THREADS)]
        for future in calling:
            future.result()
        done.set()
        for future in working:
            future.result()
    assert twice == []
    assert set(calls.values()) == {1}
    assert len(calls) == THREADS * CALLS
    assert line_of(desk.queue()) == []


@pytest.mark.usefixtures("questions_only")
def test_behind_a_long_line_the_first_who_fits_is_found_by_the_questions(desk: Desk) -> None:
    queue = desk.queue()
    wishes: list[Any] = [
        {"language": "French"},
        {"language": ["Spanish", None], "gender": "M"},
        [{"language": "Spanish", "gender": "F"}, {"gender": "F"}],
        {"language": {"Spanish", "English"}, "gender": "F"},
        {},
        {"language": "Spanish"},
    ]
    for number, wish in enumerate(wishes):
        assert queue.request(wish, caller_id=f"c{number}") is None
    fitting = ["c2", "c3", "c4", "c5"]
    for number, caller_id in enumerate(fitting):
        join(queue, f"Ellen-{number}", {"language": {"Spanish", "English"}, "gender": "F"})
        assert got(queue, wishes[int(caller_id[1:])], caller_id).resource_id == f"Ellen-{number}"
    assert line_of(queue) == ["c0", "c1"]
    assert queue.offer(register(queue, "Fay", {"gender": "F"})).status is ResourceStatus.QUEUED
    assert queue.offer(register(queue, "Max", {"gender": "M"})).caller_id == "c1"


def register(queue: MatchQueue, resource_id: str, attributes: dict[str, Any]) -> str:
    queue.register(resource_id, attributes=attributes)
    return resource_id


def test_a_caller_with_the_most_questions_waits_and_is_served(desk: Desk) -> None:
    queue = desk.queue()
    wish = {"a": [str(number) for number in range(98)]}
    with refused("criteria"):
        queue.request({"a": [*wish["a"], "98"]}, caller_id="ann")
    assert queue.request(wish, caller_id="ann") is None
    join(queue, "Ellen", {"a": "97"})
    assert got(queue, wish, "ann").rank == 97


# --- costs and lost replies, on DynamoDB Local


@pytest.mark.usefixtures("questions_only")
def test_the_questions_of_who_left_in_between_are_deleted_by_who_finds_them(
    table_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, dying_queue = table_desk.queue(), table_desk.queue()
    for caller_id in ("gone", "ann"):
        assert queue.request({"language": ["Spanish", "English"]}, caller_id=caller_id) is None
    store: Any = dying_queue._store
    # The process dies between its transaction and what follows it.
    monkeypatch.setattr(store, "_forget_questions", lambda _caller: None)
    assert dying_queue.abandon("gone") is True
    left: Any = queue._store
    assert [len(left.line_keys(f"language={name}", 10, None)) for name in ("Spanish", "English")] == [2, 2]
    join(queue, "Ellen", SPANISH)
    assert got(queue, {"language": ["Spanish", "English"]}, "ann").resource_id == "Ellen"
    assert [len(left.line_keys(f"language={name}", 10, None)) for name in ("Spanish", "English")] == [0, 1]
    assert queue.request({"language": ["Spanish", "English"]}, caller_id="gone") is None
    join(queue, "Remy", ENGLISH)
    assert got(queue, {"language": ["Spanish", "English"]}, "gone").resource_id == "Remy"
    assert [len(left.line_keys(f"language={name}", 10, None)) for name in ("Spanish", "English")] == [0, 0]


@pytest.mark.usefixtures("questions_only")
def test_the_question_of_a_caller_who_is_just_joining_stays(
    table_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A query may see the items of a transaction before a read of the caller sees her."""
    queue = table_desk.queue()
    assert queue.request(SPANISH, caller_id="ann") is None
    reading = table_desk.queue()
    seen: list[str] = []
    monkeypatch.setattr(reading._store, "caller", seen.append)  # returns None, as if before the transaction
    join(reading, "Ellen", SPANISH)
    assert seen == ["ann"] * 2  # by `offer`, before and after it queues her
    queue.register("Billy", attributes=SPANISH)
    assert queue.offer("Billy").caller_id == "ann"


def test_that_a_question_stays_in_the_table_is_no_error(
    table_desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = table_desk.queue()
    assert queue.request(SPANISH, caller_id="ann") is None

    def fail(*_: str) -> None:
        raise Unreachable("no answer")

    monkeypatch.setattr(queue._store, "_forget_question", fail)
    assert queue.abandon("ann") is True
    assert "caller 'ann': questions are left in the table" in caplog.text


def test_what_a_resource_reads_does_not_grow_with_the_line(table_desk: Desk) -> None:
    assert table_desk.client is not None
    queue = table_desk.queue()
    queue.register("Ellen", attributes={"language": "Spanish", "gender": "F"})
    spent = []
    for begin, end in ((0, 45), (45, 150)):
        for number in range(begin, end):
            queue.request({"language": "French", "gender": "F"}, caller_id=f"french-{number}")
        with match_metered(table_desk.client) as meter:
            assert queue.offer("Ellen").status is ResourceStatus.QUEUED
        spent.append((meter.calls, meter.read_units))
        queue.withdraw("Ellen")
    # Twice: two pages of the line, and each of the four questions that she answers.
    calls, read_units = spent[0]
    assert calls == {"GetItem": 2, "Query": 2 * (2 + 4), "TransactWriteItems": 1}
    assert spent[1][0] == calls
    assert read_units == spent[1][1] <= 2 * (5 + 4 + 1)


@pytest.mark.parametrize("languages", [1, 3])
def test_what_the_line_costs(table_desk: Desk, languages: int) -> None:
    assert table_desk.client is not None
    queue = table_desk.queue()
    spoken = {"English", "French", "Spanish"} if languages == 3 else {"Spanish"}
    queue.register("Ellen", attributes={"language": spoken, "gender": "F"})
    with match_metered(table_desk.client) as join_line:
        assert queue.request(SPANISH, caller_id="ann") is None
    # The caller, the place in the line, and the question.
    assert (join_line.actions, join_line.write_units) == (3, 6)
    with match_metered(table_desk.client) as ask_again:
        assert queue.request(SPANISH, caller_id="ann") is None
    assert (ask_again.write_units, ask_again.calls) == (0, {"GetItem": 1, "Query": 2})
    with match_metered(table_desk.client) as served:
        assert queue.offer("Ellen").caller_id == "ann"
    assert (served.actions, served.write_units) == (3, 7)
    assert served.calls == {"GetItem": 1, "Query": 1, "TransactWriteItems": 1, "DeleteItem": 1}
    match = got(queue, SPANISH, "ann")
    with match_metered(table_desk.client) as complete:
        queue.complete(match)
    assert (complete.actions, complete.write_units) == (2, 4)
    queue.offer("Ellen")
    with match_metered(table_desk.client) as at_once:
        got(queue, SPANISH, "ann")
    assert at_once.write_units == 4 * languages + 4
    assert at_once.calls == {"GetItem": 1, "Query": 1, "TransactWriteItems": 1}


def test_the_line_survives_lost_replies(table_desk: Desk) -> None:
    assert table_desk.client is not None
    client = client_at(table_desk.client.meta.endpoint_url)
    queue = MatchQueue.dynamodb(table_desk.table, client, clock=table_desk.clock)
    queue.register("Ellen", attributes=SPANISH)
    with replies_lost(client, "TransactWriteItems"):
        assert queue.request(SPANISH, caller_id="ann") is None
    with replies_lost(client, "TransactWriteItems"):
        assert queue.offer("Ellen").caller_id == "ann"
    with replies_lost(client, "TransactWriteItems"):
        queue.release(got(queue, SPANISH, "ann"))
    with replies_lost(client, "TransactWriteItems"):
        queue.complete(got(queue, SPANISH, "ann"))
    assert queue.request(SPANISH, caller_id="bob") is None
    with replies_lost(client, "TransactWriteItems"):
        assert queue.abandon("bob") is True
    assert line_of(queue) == []


def test_a_caller_that_abandons_while_it_is_served_leaves_the_resource_to_the_next(table_desk: Desk) -> None:
    assert table_desk.client is not None
    client = client_at(table_desk.client.meta.endpoint_url)
    queue = MatchQueue.dynamodb(table_desk.table, client, clock=table_desk.clock)
    queue.register("Ellen", attributes=SPANISH)
    for caller_id in ("ann", "bob"):
        assert queue.request(SPANISH, caller_id=caller_id) is None
    with meanwhile(client, "TransactWriteItems", lambda: table_desk.queue().abandon("ann")):
        assert queue.offer("Ellen").caller_id == "bob"
