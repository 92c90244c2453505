"""The history of a queue: one event for each change, in the transaction of the change."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa

from freshq import Queue, Reject, Retry, Settlement
from freshq.errors import TableMissing
from freshq.policy import BacklogLimit
from freshq.queue.core import core_of
from freshq.stores.sql import SqlStore, history
from freshq.stores.sql.migrations import Triggers
from tests.conftest import Clock
from tests.support.histories import KEPT_SECONDS, Life, changed, fates, keeping, pulled, versions
from tests.support.patience import PATIENCE_SECONDS
from tests.support.refusals import refused
from tests.support.verbs import VERBS, prepared


@pytest.fixture
def kept(engine: sa.Engine) -> Iterator[SqlStore]:
    """Return a store whose queue keeps a history."""
    store = keeping(engine)
    yield store
    store.history.end("default")  # also drops the triggers, which other tests do not expect


@pytest.fixture
def queue(kept: SqlStore, clock: Clock) -> Queue:
    return Queue(kept, clock=clock)


def kinds(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Return the change and the status of each event."""
    return [(event["change"], event["status"]) for event in events]


def test_every_change_of_a_task_leaves_exactly_one_event(queue: Queue, kept: SqlStore) -> None:
    wrong = {}
    for verb, call in VERBS.items():
        queue.resume()
        queue.purge(confirm="default")
        claim = prepared(queue)
        before, earlier = versions(kept), len(pulled(kept))
        call(queue, claim)
        events = [(event["task_id"], event["change"]) for event in pulled(kept)[earlier:]]
        expected = changed(before, versions(kept))
        if sorted(events) != sorted(expected):
            wrong[verb] = (events, expected)
    assert wrong == {}


class TestEvents:
    def test_they_have_the_state_after_the_change(self, queue: Queue, kept: SqlStore, clock: Clock) -> None:
        queue.put("secret", task_id="a", priority=3, group="g", kind="k", max_age_seconds=60)
        (claim,) = queue.claim(lease_seconds=30)
        put, claimed = pulled(kept)
        now_ms = clock.now * 1000
        expected = {
            "schema_version": 1, "change": "INSERT", "ttl_removal": False, "task_id": "a", "queue": "default",
            "status": "PENDING", "group": "g", "kind": "k", "priority": 3, "attempts": 0,
            "created_ms": now_ms, "updated_ms": now_ms, "put_ms": now_ms, "deadline_ms": now_ms + 60_000,
        }  # fmt: skip
        assert {name: put[name] for name in expected} == expected
        assert abs(put["stream_ms"] / 1000 - time.time()) < 60
        assert claimed["lease_until_ms"] == now_ms + 30_000
        assert claimed["worker"] == claim.token.rpartition(":")[0]
        assert claim.token not in str(claimed)
        assert "secret" not in str([put, claimed])
        assert int(put["sequence"]) < int(claimed["sequence"])

    def test_a_run_and_its_successor_have_each_their_events(self, queue: Queue, kept: SqlStore) -> None:
        queue.put("old", task_id="a")
        (claim,) = queue.claim()
        for number in range(2):
            queue.put(number, task_id="a", priority=3, on_conflict="after")
        lease = pulled(kept)[-1]["lease"]
        queue.retry(claim)
        events = pulled(kept)
        assert kinds(events) == [
            ("INSERT", "PENDING"), ("MODIFY", "TAKEN"), ("MODIFY", "CANCELLED"), ("MODIFY", "PENDING")
        ]  # fmt: skip
        assert [event["priority"] for event in events] == [0, 0, 0, 3]
        assert events[2]["updated_ms"] < events[3]["updated_ms"]
        (claim,) = queue.claim()
        queue.put("again", task_id="a", on_conflict="after")
        queue.extend(claim)
        leases = [event.get("lease") for event in pulled(kept)[4:]]
        assert lease not in leases
        assert len({*leases}) == 1

    def test_a_group_is_erased_from_the_events_of_its_tasks(self, queue: Queue, kept: SqlStore) -> None:
        queue.put("x", task_id="a", group="g")
        queue.put("x", task_id="b", group="g")
        queue.put("x", task_id="c", group="other")
        queue.purge(task_ids=["a"], confirm=queue.name)
        found = list(kept.erase(queue.name, ["a"], None))
        assert found[0].text == "the group erased from 2 events"
        assert {event["task_id"] for event in pulled(kept) if event.get("group") == "g"} == {"b"}
        assert kept.history.forget(queue.name, (), "g") == 1
        assert [event["group"] for event in pulled(kept) if "group" in event] == ["other"]
        assert len(pulled(kept)) == 4
        assert "@" in kept.caller()

    def test_a_removal_after_the_retention_is_as_that_of_ttl(self, kept: SqlStore) -> None:
        now = [time.time()]
        by_hand = Queue(kept, clock=lambda: now[0])
        by_hand.put("x", task_id="a")
        by_hand.cancel("a", dead=True, error="r")
        by_hand.purge(status="FAILURE", task_ids=["a"], confirm=by_hand.name)
        queue = Queue(kept, clock=lambda: now[0], retention_seconds=0, override=True)
        queue.put("x", task_id="b")
        queue.complete(queue.claim()[0])
        assert [event["ttl_removal"] for event in pulled(kept) if event["change"] == "REMOVE"] == [False]
        time_over = pulled(kept)[-1]["expires_s"]
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.time() <= time_over:  # the database's own time decides
            assert time.monotonic() < deadline
            time.sleep(0.05)
        now[0] = time.time()
        queue.admin.recover()
        removed = pulled(kept)[-1]
        assert (removed["change"], removed["status"], removed["ttl_removal"]) == ("REMOVE", "SUCCESS", True)
        assert "updated_ms" not in removed

    def test_settling_together_leaves_one_event_each(self, queue: Queue, kept: SqlStore) -> None:
        queue.put_many([{"payload": number} for number in range(40)])
        one, two, three, *others = queue.claim(limit=40)
        queue.settle_many([Settlement.fail(one), Settlement.retry(two), Settlement.release(three)])
        queue.settle_many([Settlement.complete(claim) for claim in others])
        assert Counter(kinds(pulled(kept))) == {
            ("INSERT", "PENDING"): 40,
            ("MODIFY", "TAKEN"): 40,
            ("MODIFY", "PENDING"): 2,
            ("MODIFY", "FAILURE"): 1,
            ("MODIFY", "SUCCESS"): 37,
        }

    def test_a_stale_task_that_leaves_its_line_has_not_changed(
        self, queue: Queue, kept: SqlStore, clock: Clock
    ) -> None:
        queue.put("x", max_age_seconds=10)
        clock.advance(11)
        queue.admin.recover()
        assert queue.stats().shed == 1
        assert kinds(pulled(kept)) == [("INSERT", "PENDING")]

    def test_shed_tasks_and_expired_leases(self, kept: SqlStore, clock: Clock) -> None:
        queue = Queue(kept, clock=clock, max_attempts=1, lease_seconds=10, backlog=BacklogLimit(1))
        queue.put("x", task_id="shed")
        clock.advance(1)
        queue.put("x", task_id="lost")
        assert [claim.task.task_id for claim in queue.claim(limit=2)] == ["lost"]
        clock.advance(11)
        queue.admin.recover()
        events = pulled(kept)
        assert [event["status"] for event in events if event["task_id"] == "lost"] == [
            *("PENDING", "TAKEN", "FAILURE")
        ]
        shed = [event for event in events if event["task_id"] == "shed"]
        assert [event["status"] for event in shed] == ["PENDING", "SHED"]
        assert shed[-1]["shed_reason"] == "overflow"


class TestTransactions:
    def test_what_is_rolled_back_leaves_none(self, queue: Queue, kept: SqlStore, engine: sa.Engine) -> None:
        with engine.begin() as connection:
            queue.put("kept", task_id="a", connection=connection)
        with pytest.raises(LookupError), engine.begin() as connection:
            queue.put("undone", task_id="b", connection=connection)
            raise LookupError
        assert [event["task_id"] for event in pulled(kept)] == ["a"]

    def test_a_task_done_in_a_transaction_was_claimed_too(
        self, queue: Queue, kept: SqlStore, clock: Clock
    ) -> None:
        queue.put("x", task_id="a")
        with queue.transaction() as work:
            assert work is not None
            clock.advance(2)
        put, claimed, done = pulled(kept)
        assert kinds([put, claimed, done])[1:] == [("MODIFY", "TAKEN"), ("MODIFY", "SUCCESS")]
        assert (claimed["updated_ms"], done["updated_ms"]) == ((clock.now - 2) * 1000, clock.now * 1000)
        assert (claimed["attempts"], done["attempts"]) == (1, 1)
        assert len({event["event_id"] for event in (put, claimed, done)}) == 3
        assert int(put["sequence"]) < int(claimed["sequence"]) < int(done["sequence"])

    @pytest.mark.parametrize(
        ("error", "status"), [(Retry("later", delay_seconds=0), "PENDING"), (Reject("no"), "FAILURE")]
    )
    def test_a_failed_attempt_was_claimed_too(
        self, error: Exception, status: str, queue: Queue, kept: SqlStore
    ) -> None:
        queue.put("x")
        with queue.transaction() as work:
            assert work is not None
            fail(error)
        assert [event["status"] for event in pulled(kept)] == ["PENDING", "TAKEN", status]

    def test_events_that_commit_late_are_in_a_later_batch(
        self, queue: Queue, kept: SqlStore, engine: sa.Engine
    ) -> None:
        if engine.dialect.name == "sqlite":
            pytest.skip("SQLite has one writer at a time")
        with engine.begin() as connection:
            queue.put("first in number", task_id="late", connection=connection)
            queue.put("last in number", task_id="early")
            assert [event["task_id"] for event in pulled(kept)] == ["early"]
        early, late = pulled(kept)
        assert [early["task_id"], late["task_id"]] == ["early", "late"]
        assert int(late["sequence"]) < int(early["sequence"])


def fail(error: Exception) -> None:
    raise error


class TestSwitch:
    def test_it_is_off_by_default(self, engine: sa.Engine, clock: Clock) -> None:
        queue = Queue(SqlStore(engine, queue="default"), clock=clock)
        queue.create_table()
        queue.put("x")
        history = core_of(queue).store.history
        assert history is not None
        assert history.kept("default") is None

    def test_it_holds_for_one_queue_and_for_every_program(
        self, kept: SqlStore, engine: sa.Engine, clock: Clock
    ) -> None:
        Queue(SqlStore(engine), clock=clock).put("from a program without the option", task_id="a")
        Queue(SqlStore(engine), name="other", clock=clock).put("of another queue", task_id="b")
        assert [event["task_id"] for event in pulled(kept)] == ["a"]

    @pytest.mark.parametrize("name", ["order", "MyTasks"])
    def test_any_name_of_a_table_will_do(self, name: str, engine: sa.Engine, clock: Clock) -> None:
        store = SqlStore(engine, name, queue="default", history_seconds=KEPT_SECONDS)
        store.create_table()
        queue = Queue(store, clock=clock)
        queue.put("x", task_id="a")
        queue.complete(queue.claim()[0])
        queue.purge(confirm="default")
        assert [event["change"] for event in pulled(store)] == ["INSERT", "MODIFY", "MODIFY", "REMOVE"]
        store.history.end("default")
        store.schema.metadata.drop_all(engine)

    def test_to_begin_it_twice_changes_only_how_long_it_is_kept(
        self, queue: Queue, kept: SqlStore, engine: sa.Engine
    ) -> None:
        queue.put("x")
        before = pulled(kept)
        again = keeping(engine, seconds=5.0)
        assert pulled(again) == before

    def test_to_begin_it_again_restores_missing_triggers(
        self, queue: Queue, kept: SqlStore, engine: sa.Engine
    ) -> None:
        with engine.begin() as connection:
            Triggers.of(kept.schema, connection).drop(connection)
        queue.put("unseen", task_id="a")
        keeping(engine, "other")
        queue.put("x", task_id="b")
        with engine.begin() as connection:
            Triggers.of(kept.schema, connection).drop(connection)
        queue.put("unseen", task_id="c")
        keeping(engine)
        queue.put("x", task_id="d")
        SqlStore(engine).history.end("other")
        queue.put("x", task_id="e")
        assert [event["task_id"] for event in pulled(kept)] == ["b", "d", "e"]

    def test_events_name_the_parents_of_tasks(self, queue: Queue, kept: SqlStore) -> None:
        queue.put("x", task_id="root")
        (root,) = queue.claim()
        queue.put("x", task_id="child", parent=root)
        (child,) = queue.claim()
        queue.put("x", task_id="grandchild", parent=child)
        named = {event["task_id"]: (event.get("parent"), event.get("root")) for event in pulled(kept)}
        assert named == {"root": (None, None), "child": ("root", "root"), "grandchild": ("child", "root")}

    def test_events_have_the_value_of_tasks(self, queue: Queue, kept: SqlStore) -> None:
        queue.put("x", task_id="dear", value=2.000001, decay="linear")
        queue.put("x", task_id="plain")
        queue.put("x", task_id="largest", value=1e12)
        queue.claim(3)
        found = [(event["task_id"], event.get("value"), event.get("decay")) for event in pulled(kept)]
        put = [("dear", 2.000001, "linear"), ("plain", None, None), ("largest", 1e12, None)]
        assert sorted(found, key=str) == sorted(2 * put, key=str)

    def test_events_have_the_cost_of_tasks_and_of_their_runs(self, queue: Queue, kept: SqlStore) -> None:
        queue.put("x", task_id="plain")
        queue.put("x", task_id="dear", cost=700.5)
        for claim in queue.claim(2):
            claim.task.set_cost(512.25)
            queue.complete(claim)
        costs: dict[str, list[float | None]] = {"dear": [], "plain": []}
        for event in pulled(kept):
            costs[event["task_id"]].append(event.get("cost"))
        assert costs == {"dear": [700.5, 700.5, 512.25], "plain": [None, None, 512.25]}

    def test_a_queue_that_should_keep_one_and_does_not_is_refused(
        self, engine: sa.Engine, clock: Clock
    ) -> None:
        store = SqlStore(engine, queue="default", history_seconds=KEPT_SECONDS)
        queue = Queue(store, clock=clock)
        with pytest.raises(TableMissing):
            queue.put("x")
        with engine.begin() as connection, pytest.raises(TableMissing):
            queue.put("x", connection=connection)
        assert SqlStore(engine, queue="default").get("x") is None
        try:
            queue.create_table()
            queue.put("x")
            assert len(pulled(store)) == 1
        finally:
            store.history.end("default")

    def test_threads_that_begin_together_all_find_that_it_is_missing(self, sqlite_engine: sa.Engine) -> None:
        """The check of one may take long, and fail after the table was created in another."""
        store = SqlStore(sqlite_engine, queue="default", history_seconds=KEPT_SECONDS)
        checks, created = threading.Event(), threading.Event()
        requirement = store.database.requirement
        assert requirement is not None

        def fail_late() -> None:
            if checks.is_set():
                requirement()
            checks.set()
            assert created.wait(PATIENCE_SECONDS)
            raise TableMissing("late")

        store.database.requirement = fail_late
        with ThreadPoolExecutor(1) as threads:
            first = threads.submit(store.get, "x")
            assert checks.wait(PATIENCE_SECONDS)
            with pytest.raises(TableMissing, match="keeps none yet"):
                store.get("x")
            store.create_table()
            created.set()
            with pytest.raises(TableMissing, match="late"):
                first.result()
        assert store.get("x") is None

    def test_to_end_it_deletes_the_events_and_a_new_one_has_another_id(
        self, queue: Queue, kept: SqlStore, engine: sa.Engine
    ) -> None:
        queue.put("x", task_id="a")
        first = kept.history.kept("default")
        assert first is not None
        ending = SqlStore(engine, queue="default", history_seconds=0)
        ending.create_table()
        assert ending.history.kept("default") is None
        queue.put("unseen", task_id="b")
        again = keeping(engine)
        queue.put("x", task_id="c")
        assert [event["task_id"] for event in pulled(again)] == ["c"]
        second = again.history.kept("default")
        assert second is not None
        assert second.history_id != first.history_id

    @pytest.mark.parametrize(
        ("options", "name"),
        [
            ({"history": "yes"}, "history"),
            ({"history_seconds": 5}, "history_seconds"),
            ({"history": True, "history_seconds": 0}, "history_seconds"),
        ],
    )
    def test_wrong_options_are_refused(self, options: dict[str, Any], name: str) -> None:
        with refused(name):
            Queue.sql("sqlite:///nowhere.db", **options)


class TestRetention:
    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(history, "BATCH_EVENTS", 10)
        monkeypatch.setattr(history, "STATEMENT_EVENTS", 3)

    def test_old_events_are_deleted_in_portions(self, kept: SqlStore) -> None:
        now = time.time()
        queue = Queue(kept, clock=lambda: now, retention_seconds=1e6)
        queue.put_many([{"payload": number} for number in range(25)])
        assert len(pulled(kept)) == 25
        later = now + KEPT_SECONDS + 60
        assert kept.history.prune("default", later, 2) == 2
        assert len(kept_batches(kept)) == 2  # of the first batch, some are gone
        assert kept.history.prune("default", later, 100) == 17
        assert kept.history.prune("default", later, 100) == 0
        assert kept_batches(kept) == range(4, 4)

    def test_upkeep_deletes_them(self, kept: SqlStore) -> None:
        now = [time.time()]
        queue = Queue(kept, clock=lambda: now[0], retention_seconds=1e6)
        queue.put("x")
        now[0] += KEPT_SECONDS - 60
        queue.admin.recover()
        assert len(pulled(kept)) == 1
        now[0] += 180
        queue.admin.recover()
        assert pulled(kept) == []

    def test_what_was_never_in_a_batch_uses_up_a_number(self, kept: SqlStore) -> None:
        now = time.time()
        queue = Queue(kept, clock=lambda: now)
        queue.put("x")
        assert len(pulled(kept)) == 1
        queue.put("never pulled")
        assert kept.history.prune("default", now + KEPT_SECONDS + 60, 10) == 2
        queue.put("y")
        pulled(kept)
        assert kept_batches(kept) == range(3, 4)


def kept_batches(store: SqlStore) -> range:
    """Return the numbers of the batches that are kept."""
    kept = store.history.kept("default")
    assert kept is not None
    return range(kept.first_batch, kept.last_batch + 1)


@pytest.mark.parametrize("seed", range(4))
def test_the_events_of_a_random_life_say_what_stats_say(
    seed: int, kept: SqlStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "BATCH_EVENTS", 50)
    queue = Queue(
        kept, clock=clock, max_age_seconds=60, max_attempts=2, lease_seconds=15, retention_seconds=1e6
    )
    Life(queue, clock, seed).live(150)
    stats = queue.stats()
    events = pulled(kept)
    assert len(events) > 150
    assert len({event["event_id"] for event in events}) == len(events)
    assert fates(events, clock.now) == {
        "pending": stats.pending + stats.delayed,
        **{name: getattr(stats, name) for name in ("taken", "success", "failure", "cancelled", "shed")},
    }
