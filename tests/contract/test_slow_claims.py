"""A claim on any slow store gives fresh leases and makes a bounded number of calls."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from freshq import Claim, Queue, StoreError, Task, TaskStatus, Worker
from freshq.queue.claim import Search
from freshq.queue.core import core_of
from freshq.queue.polling import Fetcher
from freshq.queue.upkeep import SMALL_PORTION
from freshq.stores.base import Due, Store
from freshq.stores.dynamodb import queries
from tests.conftest import Clock, StoreUnderTest
from tests.support.counting import counted_calls
from tests.support.readings import known

LEASE_SECONDS = 60.0
MIN_LEFT_SECONDS = 0.9 * LEASE_SECONDS


class TickingClock:
    """A clock that advances at each reading."""

    def __init__(self, clock: Clock, step_seconds: float) -> None:
        """Start at the time of another clock."""
        self._clock = clock
        self._step_seconds = step_seconds

    def __call__(self) -> float:
        self._clock.advance(self._step_seconds)
        return self._clock.now


def after_first_claim(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Act when the first claim has taken its tasks."""
    original = Search.run
    acted = False

    def run(search: Search, store: Store) -> list[Task]:
        nonlocal acted
        tasks = original(search, store)
        if not acted:
            acted = True
            act()
        return tasks

    monkeypatch.setattr(Search, "run", run)


def slow_extensions(
    queue: Queue,
    store: StoreUnderTest,
    patched: pytest.MonkeyPatch,
    takes_seconds: Iterable[float] = (0.8 * LEASE_SECONDS,) * 100,
) -> None:
    """Have extensions and releases of leases take long, by default most of a lease each."""
    original = core_of(queue).store.replace_many
    durations_seconds = iter(takes_seconds)

    def slow(changes: Any) -> Any:
        stored = original(changes)
        store.clock.advance(next(durations_seconds, 0.0))
        return stored

    patched.setattr(core_of(queue).store, "replace_many", slow)


class TestFreshLeases:
    def test_each_lease_counts_from_the_write_that_took_the_task(self, store: StoreUnderTest) -> None:
        queue = store.queue(clock=TickingClock(store.clock, 0.1), lease_seconds=LEASE_SECONDS)
        queue.put_many([{"payload": number} for number in range(10)])
        claims = queue.claim(10)
        assert len(claims) == 10
        for claim in claims:
            assert claim.lease_until == pytest.approx(claim.task.updated + LEASE_SECONDS)
            assert claim.lease_until == claim.task.lease_until
        if store.client is not None:  # all were taken by one call
            assert len({claim.lease_until for claim in claims}) == 1

    def test_a_claim_that_took_long_has_its_leases_extended(
        self, store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = store.queue(lease_seconds=LEASE_SECONDS)
        queue.put_many([{"payload": number} for number in range(3)])
        after_first_claim(monkeypatch, lambda: store.clock.advance(LEASE_SECONDS * 0.8))
        claims = queue.claim(3)
        assert [claim.lease_until - store.clock.now for claim in claims] == [LEASE_SECONDS] * 3
        store.clock.advance(LEASE_SECONDS * 0.8)
        assert store.queue().claim(3) == []
        for claim in claims:
            assert queue.complete(claim).attempts == 1

    def test_every_lease_is_fresh_when_each_task_takes_a_while(self, store: StoreUnderTest) -> None:
        queue = store.queue(clock=TickingClock(store.clock, 1.0), lease_seconds=LEASE_SECONDS)
        queue.put_many([{"payload": number} for number in range(30)])
        claims = queue.claim(30)
        assert len(claims) == 30
        assert min(claim.lease_until for claim in claims) >= store.clock.now + MIN_LEFT_SECONDS

    def test_a_lease_is_fresh_when_the_process_last_looks_at_the_time(
        self, store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = store.queue(clock=TickingClock(store.clock, 1.9), lease_seconds=LEASE_SECONDS)
        queue.put("work")
        after_first_claim(monkeypatch, lambda: store.clock.advance(LEASE_SECONDS * 0.8))
        (claim,) = queue.claim()
        assert claim.lease_until >= store.clock.now + MIN_LEFT_SECONDS

    def test_a_lease_is_fresh_though_it_took_long_to_give_others_back(
        self, store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = store.queue(lease_seconds=LEASE_SECONDS)
        queue.put("stale", max_age_seconds=1)
        queue.put("live")
        slow_extensions(queue, store, monkeypatch, [LEASE_SECONDS * 0.2])
        after_first_claim(monkeypatch, lambda: store.clock.advance(1))
        (claim,) = queue.claim(2)
        assert claim.task.payload == "live"
        assert claim.lease_until >= store.clock.now + MIN_LEFT_SECONDS

    def test_a_task_that_was_lost_meanwhile_is_not_returned(
        self, store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue, other = store.queue(lease_seconds=LEASE_SECONDS), store.queue()
        queue.put_many([{"payload": "first"}, {"payload": "second"}])
        claimed_elsewhere: list[Claim] = []

        def lose() -> None:
            store.clock.advance(LEASE_SECONDS + 1)
            claimed_elsewhere.extend(other.claim())

        after_first_claim(monkeypatch, lose)
        assert queue.claim(2) == []
        assert [claim.task.payload for claim in claimed_elsewhere] == ["second"]
        (claim,) = queue.claim(2)
        assert claim.task.payload == "first"

    def test_a_task_that_cannot_be_extended_is_dropped(
        self, store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = store.queue(lease_seconds=LEASE_SECONDS)
        queue.put("work")
        after_first_claim(monkeypatch, lambda: store.clock.advance(LEASE_SECONDS * 0.8))

        def no_answer(_changes: Any) -> None:
            raise StoreError("no answer")

        with monkeypatch.context() as patched:
            patched.setattr(core_of(queue).store, "replace_many", no_answer)
            with pytest.raises(StoreError, match="no answer"):
                queue.claim()
        store.clock.advance(LEASE_SECONDS)
        assert len(queue.claim()) == 1

    def test_a_task_whose_extension_took_too_long_goes_back(
        self, store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = store.queue(lease_seconds=LEASE_SECONDS)
        queue.put("work")
        after_first_claim(monkeypatch, lambda: store.clock.advance(LEASE_SECONDS * 0.8))
        with monkeypatch.context() as patched:
            slow_extensions(queue, store, patched)
            assert queue.claim() == []
        (claim,) = queue.claim()
        assert claim.task.attempts == 1

    def test_claims_too_slow_for_their_leases_warn_once_a_minute(
        self, store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        queue = store.queue(lease_seconds=LEASE_SECONDS)
        queue.put("work")
        slow_extensions(queue, store, monkeypatch)
        original = Search.run

        def slow_claim(search: Search, taken_from: Store) -> list[Task]:
            tasks = original(search, taken_from)
            store.clock.advance(7)
            return tasks

        monkeypatch.setattr(Search, "run", slow_claim)
        assert queue.claim() == []
        (warning,) = caplog.messages
        # Seven seconds, two extensions and a release of 48 s each.
        assert "a claim took 151 s, too long for lease_seconds=60, and gave up 1 of its tasks" in warning
        assert "set lease_seconds to 1510 or more" in warning
        core_of(queue).warned_of_slow_claim_at += 151  # as if the next claim had ended with the warning
        assert queue.claim() == []
        assert len(caplog.messages) == 1
        assert queue.claim() == []
        assert len(caplog.messages) == 2


class TestDeadlines:
    """No claim returns a task whose deadline passed while it waited for its store."""

    @pytest.mark.parametrize("lease_seconds", [3, LEASE_SECONDS])
    @pytest.mark.parametrize("wait_seconds", [0, 0.001])
    def test_a_task_that_went_stale_meanwhile_is_shed(
        self,
        store: StoreUnderTest,
        monkeypatch: pytest.MonkeyPatch,
        lease_seconds: float,
        wait_seconds: float,
    ) -> None:
        queue = store.queue(max_age_seconds=60, lease_seconds=lease_seconds)
        queue.put("old", task_id="old")
        store.clock.advance(58)
        queue.put("own", task_id="own", max_age_seconds=1)
        queue.put("live", task_id="live")
        after_first_claim(monkeypatch, lambda: store.clock.advance(2))
        claims = queue.claim(3, wait_seconds=wait_seconds)
        assert [claim.task.task_id for claim in claims] == ["live"]
        for task_id in ("old", "own"):
            task = known(queue, task_id)
            assert (task.status, task.attempts, task.lease_token) == (TaskStatus.SHED, 0, None)
        stats = queue.stats()
        assert (stats.shed, stats.taken, stats.pending) == (2, 1, 0)
        assert stats.shed_by_reason == {"expired": 2}
        queue.complete(claims[0])
        store.clock.advance(100)
        assert queue.admin.recover() == 0

    def test_a_task_that_goes_stale_while_others_are_given_back_is_not_returned(
        self, store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = store.queue(lease_seconds=LEASE_SECONDS)
        for seconds in (1, 2):
            queue.put("work", max_age_seconds=seconds)
        slow = core_of(queue).store.replace_many

        def replace_many(changes: Any) -> Any:
            store.clock.advance(1)
            return slow(changes)

        monkeypatch.setattr(core_of(queue).store, "replace_many", replace_many)
        after_first_claim(monkeypatch, lambda: store.clock.advance(1))
        assert queue.claim(2) == []
        assert queue.stats().shed == 2

    def test_what_cannot_be_given_back_returns_when_its_lease_expires(
        self, store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        queue = store.queue(lease_seconds=LEASE_SECONDS)
        queue.put("work", max_age_seconds=1)
        after_first_claim(monkeypatch, lambda: store.clock.advance(1))

        def no_answer(_changes: Any) -> None:
            raise StoreError("no answer")

        with monkeypatch.context() as patched:
            patched.setattr(core_of(queue).store, "replace_many", no_answer)
            assert queue.claim() == []
        assert "could not release 1 tasks; each returns when its lease expires" in caplog.text
        assert queue.stats().taken == 1
        store.clock.advance(LEASE_SECONDS)
        assert queue.claim() == []
        assert queue.stats().shed == 1


def backlog(store: StoreUnderTest, kind: str, count: int, name: str = "default") -> None:
    """Put tasks that are stale by their own max age, delayed and due, or held under expired leases."""
    queue = store.queue(name=name, lease_seconds=LEASE_SECONDS)
    options: dict[str, Any] = {"stale": {"max_age_seconds": 10}, "due": {"delay_seconds": 10}, "expired": {}}[
        kind
    ]
    queue.put_many([{"payload": number, **options} for number in range(count)])
    if kind == "expired":
        while queue.claim(1000):
            pass
    store.clock.advance(LEASE_SECONDS + 1)


class TestBoundedClaims:
    @pytest.mark.parametrize("kind", ["stale", "due", "expired"])
    def test_no_backlog_makes_a_claim_send_more(self, store: StoreUnderTest, kind: str) -> None:
        # On SQL, few are more than a claim takes out of a line.
        few = 70 if store.client is not None else 600
        many = 140 if store.client is not None else 2000
        sent = []
        for name, count in (("few", few), ("many", many)):
            backlog(store, kind, count, name)
            queue = store.queue(name=name)
            queue.paused  # noqa: B018 - read once, whichever claim comes first
            with counted_calls(queue, store) as calls:
                claims = queue.claim(2)
            assert len(claims) == (0 if kind == "stale" else 2)
            sent.append(len(calls))
            left = queue.stats()
            if kind == "due":
                assert left.delayed == count - SMALL_PORTION
            elif kind == "expired":
                assert left.taken == count - SMALL_PORTION + 2
        assert sent[1] <= sent[0] + 3  # pauses and levels are read again now and then
        assert sent[1] <= 200

    def test_recover_does_the_rest(self, store: StoreUnderTest) -> None:
        count = 60 if store.client is not None else 1500
        backlog(store, "due", count)
        queue = store.queue()
        assert len(queue.claim(2)) == 2
        with counted_calls(queue, store) as calls:
            assert queue.admin.recover() == count - SMALL_PORTION
        assert queue.stats().delayed == 0
        assert queue.admin.recover() == 0
        if store.client is None:
            assert len(calls) <= 2 * 8  # for each thousand: what is due, its change, what is untidy

    def test_recover_ends_though_more_and_more_falls_due(
        self, store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        queue = store.queue()
        queue.put_many([{"payload": number, "delay_seconds": number} for number in range(1, 9)])
        store.clock.advance(2)
        original = core_of(queue).store.due

        def slow(*arguments: Any) -> Due:
            found = original(*arguments)
            store.clock.advance(1)
            return found

        monkeypatch.setattr(core_of(queue).store, "due", slow)
        assert queue.admin.recover() == 2
        assert queue.admin.recover() > 0


class TestLooks:
    """A claim looks for due tasks once a quarter of a lease, even if it finds enough without them."""

    def test_an_abandoned_head_returns_to_its_place_while_claims_fill(self, store: StoreUnderTest) -> None:
        queue = store.queue(order="fifo")
        queue.put_many([{"payload": number} for number in range(30)])
        queue.claim(lease_seconds=2)
        served = []
        for _ in range(29):
            store.clock.advance(0.4)
            (claim,) = queue.claim()
            queue.complete(claim)
            served.append(claim.task.payload)
        assert served.index(0) <= (2 + 2 / 4) / 0.4 + 1
        assert [number for number in served if number] == list(range(1, 29))

    def test_a_short_lease_ends_while_nobody_claims(self, store: StoreUnderTest) -> None:
        queue = store.queue(order="fifo")
        queue.put_many([{"payload": number} for number in range(5)])
        queue.claim(lease_seconds=2)
        queue.claim(lease_seconds=60)
        store.clock.advance(10)
        assert queue.claim()[0].task.payload == 0

    def test_looks_are_rare(self, store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
        queue = store.queue(lease_seconds=LEASE_SECONDS)
        queue.put_many([{"payload": number} for number in range(62)])
        looks: list[float] = []
        original = core_of(queue).store.due

        def due(*arguments: Any) -> Due:
            looks.append(store.clock.now)
            return original(*arguments)

        monkeypatch.setattr(core_of(queue).store, "due", due)
        began = store.clock.now
        for _ in range(61):
            assert len(queue.claim()) == 1
            store.clock.advance(0.5)
        assert [look - began for look in looks] == [0, 15, 30]


class TestMore:
    """A claim reports whether it ended before it had searched every line."""

    def test_a_claim_that_searched_every_line_says_no(self, queue: Queue) -> None:
        assert not queue.claim().more
        queue.put_many([{"payload": number, "group": str(number % 3)} for number in range(5)])
        claims = queue.claim(10)
        assert (len(claims), claims.more) == (5, False)
        queue.pause()
        assert not queue.claim().more

    @pytest.fixture
    def behind_stale_work(self, store: StoreUnderTest, monkeypatch: pytest.MonkeyPatch) -> Queue:
        """Return a queue with one live task behind more stale ones than one claim passes."""
        monkeypatch.setattr(queries, "LARGER_PAGES_KEYS", (20,))
        producer = store.queue()
        producer.put("live")
        count = 200 if store.client is not None else 1600
        producer.put_many([{"payload": "stale", "max_age_seconds": 5} for _ in range(count)])
        store.clock.advance(10)
        return store.queue()

    def test_empty_answers_say_so_until_the_task_behind_stale_ones_is_found(
        self, behind_stale_work: Queue, store: StoreUnderTest
    ) -> None:
        answers = [behind_stale_work.claim()]
        while not answers[-1]:
            assert answers[-1].more
            answers.append(behind_stale_work.claim())
        assert answers[-1][0].task.payload == "live"
        assert len(answers) > 1 or store.kind == "memory"  # which passes stale chunks in one step

    def test_a_claim_that_waits_goes_on_at_once(
        self, behind_stale_work: Queue, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Fetcher, "seconds", lambda _self: pytest.fail("it waits"))
        (claim,) = behind_stale_work.claim(wait_seconds=None)
        assert claim.task.payload == "live"

    def test_a_worker_goes_on_at_once_and_is_not_idle(self, behind_stale_work: Queue) -> None:
        seen: list[object] = []
        worker = Worker(behind_stale_work, lambda task: seen.append(task.payload), idle_exit_seconds=0)
        worker.run()
        assert seen == ["live"]

    def test_more_due_tasks_than_a_claim_brings_in(self, store: StoreUnderTest) -> None:
        backlog(store, "due", SMALL_PORTION + 5)
        queue = store.queue()
        claims = queue.claim(100)
        assert (len(claims), claims.more) == (SMALL_PORTION, True)
        claims = queue.claim(100)
        assert (len(claims), claims.more) == (5, False)
