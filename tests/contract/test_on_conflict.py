"""Putting a task over one with the same id, and putting a delayed task, on every store."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from botocore.exceptions import ConnectionClosedError
from local.faults import AFTER, hooked, meanwhile, refused
from types_boto3_dynamodb import DynamoDBClient

from freshq import LeaseLost, PutOutcome, Queue, TaskStatus
from freshq.errors import LostRace, PutIncomplete, Throttled
from tests.conftest import Clock, StoreUnderTest
from tests.contract.test_concurrency import at_once
from tests.support.readings import counts, ids, known, payloads, total

EITHER = pytest.mark.parametrize("on_conflict", ["ignore", "update"])


def outcomes(receipts: list[Any]) -> list[str]:
    return [str(receipt.outcome) for receipt in receipts]


class TestDebounce:
    def put(self, queue: Queue, payload: Any, **options: Any) -> str:
        given: dict[str, Any] = {"delay_seconds": 5, "on_conflict": "update", "debounce_max_seconds": 12}
        return str(queue.put(payload, task_id="a", **given | options).outcome)

    def test_each_put_moves_the_start_up_to_the_bound(self, queue: Queue, store: StoreUnderTest) -> None:
        first = store.clock.now
        assert self.put(queue, 0) == "CREATED"
        for number, due_after in enumerate([9, 12, 12], 1):
            store.clock.advance(4 if number < 3 else 1)
            assert self.put(queue, number) == "UPDATED"
            task = known(queue, "a")
            assert task.first_due == task.not_before == pytest.approx(first + due_after, abs=1e-3)
            assert (task.put_at, task.created) == pytest.approx((first, first + due_after), abs=1e-3)
            assert task.deadline == pytest.approx(first + due_after + 3600, abs=1e-3)  # aged from then
        assert self.put(queue, 3) == "DUPLICATE"  # the same work at the same time
        store.clock.advance(2.99)
        assert queue.claim() == []
        store.clock.advance(0.02)
        assert payloads(queue.claim(5)) == [3]

    def test_past_the_bound_a_put_is_due_at_once(self, queue: Queue, store: StoreUnderTest) -> None:
        self.put(queue, 0)
        store.clock.advance(20)  # it is due, and nobody has claimed it
        assert self.put(queue, 1) == "UPDATED"
        task = known(queue, "a")
        assert task.not_before is None
        assert task.created == pytest.approx(store.clock.now, abs=1e-3)
        assert payloads(queue.claim(5)) == [1]

    def test_without_a_bound_a_put_starts_anew(self, queue: Queue, store: StoreUnderTest) -> None:
        self.put(queue, 0)
        for number in range(1, 4):
            store.clock.advance(4)
            self.put(queue, number, debounce_max_seconds=None)
        assert known(queue, "a").first_due == pytest.approx(store.clock.now + 5, abs=1e-3)
        began = store.clock.now
        store.clock.advance(4)
        self.put(queue, 4)
        store.clock.advance(4)
        self.put(queue, 5)
        assert known(queue, "a").first_due == pytest.approx(began + 12, abs=1e-3)

    @pytest.mark.parametrize("ends", ["taken", "done", "stale"])
    def test_after_the_task_was_claimed_or_ended_it_starts_anew(
        self, queue: Queue, store: StoreUnderTest, ends: str
    ) -> None:
        self.put(queue, 0, max_age_seconds=2)
        store.clock.advance(5)
        if ends == "stale":
            store.clock.advance(3)
        else:
            (claim,) = queue.claim()
            if ends == "done":
                queue.complete(claim)
            else:
                store.clock.advance(4)
        self.put(queue, 1)
        task = known(queue, "a")
        assert task.put_at == pytest.approx(store.clock.now, abs=1e-3)
        assert task.first_due == pytest.approx(store.clock.now + 5, abs=1e-3)

    def test_in_a_batch_each_task_may_have_its_own(self, queue: Queue, store: StoreUnderTest) -> None:
        first = store.clock.now
        tasks = [
            {"payload": 1, "task_id": name, "delay_seconds": 5, "debounce_max_seconds": bound}
            for name, bound in {"a": 6, "b": None}.items()
        ]
        queue.put_many(tasks, on_conflict="update")
        store.clock.advance(4)
        queue.put_many([{**task, "payload": 2} for task in tasks], on_conflict="update")
        assert known(queue, "a").first_due == pytest.approx(first + 6, abs=1e-3)
        assert known(queue, "b").first_due == pytest.approx(first + 9, abs=1e-3)
        with pytest.raises(ValueError, match=r"tasks\[1\]\.debounce_max_seconds: needs on_conflict"):
            queue.put_many([{"payload": 3}, tasks[0]])

    def test_the_deadline_of_a_parent_stays(self, queue: Queue, store: StoreUnderTest) -> None:
        queue.put("parent", task_id="p", max_age_seconds=30)
        (parent,) = queue.claim()
        for number in range(3):
            self.put(queue, number, parent=parent)
            store.clock.advance(4)
        task = known(queue, "a")
        assert task.deadline == parent.task.deadline
        assert task.first_due == pytest.approx(store.clock.now, abs=1e-3)


class TestWhileItLives:
    @pytest.mark.parametrize("order", ["lifo", "value"])
    @pytest.mark.parametrize("change", [{"value": 20}, {"decay": "linear"}, {"priority": 3}, {"kind": "k"}])
    def test_each_change_of_the_work_updates_it(
        self, store: StoreUnderTest, change: dict[str, Any], order: str
    ) -> None:
        queue = store.queue(order=order, max_age_seconds=60)
        queue.put("work", task_id="a", value=1)
        assert queue.put("work", task_id="a", on_conflict="update").outcome is PutOutcome.DUPLICATE
        assert queue.put("work", task_id="a", on_conflict="update", **change).outcome is PutOutcome.UPDATED
        (claim,) = queue.claim()
        assert {name: getattr(claim.task, name) for name in change} == change
        assert queue.claim() == []

    def test_a_batch_has_an_outcome_for_each_task(self, queue: Queue) -> None:
        queue.put("old", task_id="b")
        tasks = [{"payload": "new", "task_id": name} for name in ("a", "b", "c")]
        ignored = queue.put_many(tasks, on_conflict="ignore")
        assert outcomes(ignored) == ["CREATED", "DUPLICATE", "CREATED"]
        assert known(queue, "b").payload == "old"
        updated = queue.put_many(tasks, on_conflict="update")
        assert outcomes(updated) == ["DUPLICATE", "UPDATED", "DUPLICATE"]  # a and c are new already
        assert payloads(queue.claim(limit=5)) == ["new", "new", "new"]
        assert total(queue) == 3

    def test_one_duplicate_in_a_large_batch_costs_no_other_task(self, queue: Queue) -> None:
        queue.put("old", task_id="150")
        tasks = [{"payload": number, "task_id": str(number)} for number in range(300)]
        receipts = queue.put_many([*tasks, tasks[7]], on_conflict="ignore")
        duplicates = [receipt.task_id for receipt in receipts if receipt.outcome is PutOutcome.DUPLICATE]
        assert duplicates == ["150", "7"]
        assert total(queue) == 300

    def test_each_task_of_a_batch_may_have_its_own(self, queue: Queue) -> None:
        queue.put_many([{"payload": "old", "task_id": name} for name in ("a", "b", "c", "d")])
        (claim,) = queue.claim()
        queue.complete(claim)  # d
        own = {"a": "ignore", "b": "update", "c": None, "d": "ignore", "e": "update"}
        tasks = [
            {"payload": "new", "task_id": name, "on_conflict": conflict} for name, conflict in own.items()
        ]
        assert outcomes(queue.put_many(tasks)) == ["DUPLICATE", "UPDATED", "DUPLICATE", "CREATED", "CREATED"]
        assert {task.task_id: task.payload for task in queue.list()} == {
            "a": "old", "b": "new", "c": "old", "d": "new", "e": "new"
        }  # fmt: skip
        again = [{**task, "payload": "newest"} for task in tasks]
        assert outcomes(queue.put_many(again, on_conflict="update")) == [
            "DUPLICATE", "UPDATED", "UPDATED", "DUPLICATE", "UPDATED"
        ]  # fmt: skip

    def test_those_of_one_id_keep_their_order(self, queue: Queue) -> None:
        conflicts = [None, "update", "ignore", "update", None]
        tasks = [
            {"payload": number, "task_id": "a", "on_conflict": conflict}
            for number, conflict in enumerate(conflicts)
        ]
        assert outcomes(queue.put_many(tasks)) == ["CREATED", "UPDATED", "DUPLICATE", "UPDATED", "DUPLICATE"]
        assert known(queue, "a").payload == 3

    def test_a_wrong_one_is_named_before_anything_is_written(self, queue: Queue) -> None:
        tasks: list[dict[str, Any]] = [{"payload": 1}, {"payload": 2, "on_conflict": "replace"}]
        with pytest.raises(ValueError, match="on_conflict"):
            queue.put_many(tasks)
        assert total(queue) == 0

    def test_within_a_batch_the_last_task_of_an_id_wins(self, queue: Queue) -> None:
        tasks = [{"payload": number, "task_id": str(number % 2)} for number in range(20)]
        receipts = queue.put_many(tasks, on_conflict="update")
        assert outcomes(receipts) == ["CREATED"] * 2 + ["UPDATED"] * 18
        assert {task.task_id: task.payload for task in queue.list()} == {"0": 18, "1": 19}

    def test_an_update_replaces_all_of_a_waiting_task(self, queue: Queue, store: StoreUnderTest) -> None:
        queue.put("old", task_id="a", priority=3, group="g", max_age_seconds=60)
        queue.retry(queue.claim()[0], error="broken", delay_seconds=5)
        store.clock.advance(1)
        assert queue.put("new", task_id="a", on_conflict="update").outcome is PutOutcome.UPDATED
        task = known(queue, "a")
        assert (task.payload, task.priority, task.group, task.attempts) == ("new", 0, None, 0)
        assert (task.error, task.not_before, task.deadline) == (None, None, store.clock.now + 3600)
        assert task.created == pytest.approx(store.clock.now, abs=1e-3)
        assert counts(queue.stats()) == {"pending": 1}
        assert payloads(queue.claim(limit=2)) == ["new"]

    def test_it_moves_to_its_new_level_group_and_time(self, queue: Queue, store: StoreUnderTest) -> None:
        queue.put("old", task_id="a", priority=9)
        queue.put("new", task_id="a", group="g", delay_seconds=20, on_conflict="update")
        assert queue.claim() == []
        queue.put("newer", task_id="a", group="h", delay_seconds=10, on_conflict="update")
        store.clock.advance(10)
        (claim,) = queue.claim(limit=3)
        assert (claim.task.payload, claim.task.priority, claim.task.group) == ("newer", 0, "h")
        store.clock.advance(10)
        assert queue.admin.recover() == 0

    def test_an_update_of_a_taken_task_ends_its_claim(self, queue: Queue, store: StoreUnderTest) -> None:
        queue.put("old", task_id="a", priority=3)
        (claim,) = queue.claim()
        producer = store.queue()
        assert producer.put("new", task_id="a", on_conflict="update").outcome is PutOutcome.UPDATED
        before = known(queue, "a")
        assert (before.payload, before.priority, before.attempts) == ("new", 0, 0)
        assert (before.status, before.lease_token, before.lease_until) == (TaskStatus.PENDING, None, None)
        for settle in (queue.complete, queue.fail, queue.retry, queue.release):
            with pytest.raises(LeaseLost):
                settle(claim)
        with pytest.raises(LeaseLost):
            queue.extend(claim, lease_seconds=90)
        assert known(queue, "a") == before
        (claim,) = queue.claim()
        assert (claim.task.payload, claim.redelivered) == ("new", False)
        queue.complete(claim)
        store.clock.advance(60)
        assert queue.admin.recover() == 0
        assert counts(queue.stats()) == {"success": 1}

    def test_ignore_leaves_a_taken_task_alone(self, queue: Queue) -> None:
        queue.put("old", task_id="a")
        (claim,) = queue.claim()
        assert queue.put("new", task_id="a", on_conflict="ignore").outcome is PutOutcome.DUPLICATE
        queue.complete(claim)
        assert known(queue, "a").payload == "old"

    def test_an_equal_task_is_no_update(self, queue: Queue, store: StoreUnderTest) -> None:
        at = store.clock.now + 50.123456
        work, reordered = {"n": 1, "m": [2.5]}, {"m": [2.5], "n": 1}
        assert queue.put(work, task_id="a", at=at).outcome is PutOutcome.CREATED
        for again in (work, reordered):
            assert queue.put(again, task_id="a", at=at, on_conflict="update").outcome is PutOutcome.DUPLICATE
        later = queue.put(work, task_id="a", at=at + 1e-6, on_conflict="update")
        assert later.outcome is PutOutcome.UPDATED
        assert known(queue, "a").not_before == round(at + 1e-6, 6)

    def test_an_equal_task_does_not_end_the_claim(self, queue: Queue) -> None:
        queue.put("work", task_id="a")
        (claim,) = queue.claim()
        assert queue.put("work", task_id="a", on_conflict="update").outcome is PutOutcome.DUPLICATE
        assert queue.complete(claim).status is TaskStatus.SUCCESS


def done(queue: Queue, _clock: Clock) -> None:
    queue.put("old", task_id="a")
    queue.complete(queue.claim()[0], result="result")


def dead(queue: Queue, _clock: Clock) -> None:
    queue.put("old", task_id="a")
    queue.fail(queue.claim()[0], error="error")


def cancelled(queue: Queue, _clock: Clock) -> None:
    queue.put("old", task_id="a", group="g")
    queue.cancel("a")


def stale(queue: Queue, clock: Clock) -> None:
    queue.put("old", task_id="a", max_age_seconds=10)
    clock.advance(10)


@EITHER
@pytest.mark.parametrize("end", [done, dead, cancelled, stale])
def test_the_id_of_a_task_that_is_over_is_free(
    store: StoreUnderTest, end: Callable[[Queue, Clock], None], on_conflict: Any
) -> None:
    queue = store.queue()
    end(queue, store.clock)
    assert queue.put("new", task_id="a").outcome is PutOutcome.DUPLICATE
    assert queue.put("new", task_id="a", on_conflict=on_conflict).outcome is PutOutcome.CREATED
    (claim,) = queue.claim(limit=2)
    task = claim.task
    assert (task.payload, task.result, task.error, task.group, task.attempts) == ("new", None, None, None, 1)
    assert counts(queue.stats()) == {"taken": 1}


@EITHER
def test_another_queues_task_is_never_touched(store: StoreUnderTest, on_conflict: Any) -> None:
    """Ids are unique per queue in a SQL database, and per table elsewhere."""
    there, here = store.queue(name="there"), store.queue(name="here")
    there.put("theirs", task_id="a")
    there.complete(there.claim()[0])
    outcome = here.put("ours", task_id="a", on_conflict=on_conflict).outcome
    shared = store.kind in ("memory", "dynamodb_local", "dynamodb_double")
    assert outcome is (PutOutcome.DUPLICATE if shared else PutOutcome.CREATED)
    assert counts(there.stats()) == {"success": 1}
    assert payloads(here.claim()) == ([] if shared else ["ours"])


def test_of_concurrent_updates_one_creates_and_the_last_one_wins(store: StoreUnderTest) -> None:
    queues = [store.queue() for _ in range(4)]

    def put(number: int) -> PutOutcome:
        return queues[number].put(number, task_id="a", on_conflict="update").outcome

    seen = Counter(at_once(*(lambda number=number: put(number) for number in range(4))))
    assert seen == {PutOutcome.CREATED: 1, PutOutcome.UPDATED: 3}
    (claim,) = queues[0].claim(limit=5)
    assert claim.task.payload in range(4)
    assert counts(queues[0].stats()) == {"taken": 1}


@contextmanager
def first_write_unanswered(client: DynamoDBClient, act: Callable[[], object]) -> Iterator[None]:
    """Lose the reply of the first put, and act before the put is repeated."""
    lost = False

    def lose(http_response: Any, **_rest: Any) -> None:
        nonlocal lost
        if not lost and http_response.status_code == 200:
            lost = True
            act()
            raise ConnectionClosedError(endpoint_url="http://dynamodb")

    with hooked(client, AFTER, lose, "PutItem"):
        yield
    assert lost


class TestOnDynamoDB:
    """Faults between freshq and the table."""

    @pytest.fixture
    def queue(self, table: StoreUnderTest) -> Queue:
        return table.queue()

    @pytest.mark.parametrize(
        ("before", "outcome"),
        [(None, "CREATED"), ("done", "CREATED"), ("waiting", "UPDATED"), ("held", "UPDATED")],
    )
    def test_the_outcome_is_known_when_a_reply_is_lost(
        self, table: StoreUnderTest, client: DynamoDBClient, before: str | None, outcome: str
    ) -> None:
        queue = table.queue()
        if before is not None:
            queue.put("old", task_id="a")
        if before in ("held", "done"):
            (claim,) = queue.claim()
        if before == "done":
            queue.complete(claim)
        with first_write_unanswered(client, lambda: None):
            receipt = queue.put("new", task_id="a", on_conflict="update")
        assert str(receipt.outcome) == outcome
        assert counts(queue.stats()) == {"pending": 1}
        assert payloads(queue.claim(limit=2)) == ["new"]

    @pytest.mark.parametrize("old", ["done", "waiting"])
    def test_a_repeated_put_does_not_undo_what_a_worker_did_meanwhile(
        self, table: StoreUnderTest, client: DynamoDBClient, old: str
    ) -> None:
        queue, worker = table.queue(), table.queue()
        queue.put("old", task_id="a")
        if old == "done":
            queue.complete(queue.claim()[0])
        runs: list[object] = []

        def work() -> None:
            for claim in worker.claim():
                runs.append(claim.task.payload)
                worker.complete(claim)

        with first_write_unanswered(client, work):
            queue.put("new", task_id="a", on_conflict="update")
        work()
        assert runs == ["new"]
        assert counts(queue.stats()) == {"success": 1}

    @pytest.mark.parametrize(
        ("old", "on_conflict", "outcome"),
        [(None, None, "CREATED"), (None, "update", "CREATED"), ("old", "update", "UPDATED")],
    )
    def test_a_repeated_put_does_not_replace_a_later_one(
        self, table: StoreUnderTest, client: DynamoDBClient, old: str | None, on_conflict: Any, outcome: str
    ) -> None:
        queue, other = table.queue(), table.queue()
        assert queue.claim() == []  # so that the first write is the put's
        if old is not None:
            queue.put(old, task_id="a")

        def put_later() -> None:
            for payload in ("later", "last"):
                assert other.put(payload, task_id="a", on_conflict="update").outcome is PutOutcome.UPDATED

        with first_write_unanswered(client, put_later):
            receipt = queue.put("new", task_id="a", on_conflict=on_conflict)
        assert str(receipt.outcome) == outcome
        assert known(queue, "a").payload == "last"

    def test_a_claim_between_the_read_and_the_update_is_noticed(
        self, table: StoreUnderTest, client: DynamoDBClient
    ) -> None:
        queue, worker = table.queue(), table.queue()
        queue.put("old", task_id="a")
        looks = 0

        def claim(**_rest: Any) -> None:
            nonlocal looks
            looks += 1
            if looks == 1:
                assert ids(worker.claim()) == ["a"]

        with hooked(client, AFTER, claim, "PutItem"):
            assert queue.put("new", task_id="a", on_conflict="update").outcome is PutOutcome.UPDATED
        assert counts(queue.stats()) == {"pending": 1}
        assert payloads(worker.claim()) == ["new"]

    def test_a_task_that_is_done_in_between_leaves_its_id_free(
        self, table: StoreUnderTest, client: DynamoDBClient
    ) -> None:
        queue = table.queue()
        queue.put("old", task_id="a")
        (claim,) = queue.claim()
        done = False

        def complete(**_rest: Any) -> None:
            nonlocal done
            if not done:
                done = True
                queue.complete(claim)

        with hooked(client, AFTER, complete, "PutItem"):
            assert queue.put("new", task_id="a", on_conflict="update").outcome is PutOutcome.CREATED
        assert payloads(queue.claim()) == ["new"]

    def test_a_task_that_changes_all_the_time_is_a_lost_race(
        self, table: StoreUnderTest, client: DynamoDBClient
    ) -> None:
        queue, other = table.queue(), table.queue()
        queue.put("old", task_id="a")
        with (
            hooked(client, AFTER, lambda **_: other.redrive(["a"], as_new=True), "PutItem"),
            pytest.raises(LostRace),
        ):
            queue.put("new", task_id="a", on_conflict="update")
        assert known(queue, "a").payload == "old"

    def test_a_batch_that_was_partly_written_says_which_tasks(
        self, queue: Queue, client: DynamoDBClient
    ) -> None:
        batch = [{"payload": number, "task_id": str(number)} for number in range(10)]
        assert queue.claim() == []  # so that the first write is the put's
        with (
            refused(client, "PutItem", code="ProvisionedThroughputExceededException", let_pass=4),
            pytest.raises(PutIncomplete) as caught,
        ):
            queue.put_many(batch, on_conflict="update")
        assert sum(isinstance(entry, Throttled) for entry in caught.value.receipts) == 6
        assert sorted(outcomes(queue.put_many(batch, on_conflict="update"))) == (
            ["CREATED"] * 6 + ["DUPLICATE"] * 4
        )

    def test_a_purge_in_between_frees_the_id(self, table: StoreUnderTest, client: DynamoDBClient) -> None:
        queue = table.queue()
        queue.put("old", task_id="a")
        with meanwhile(client, "PutItem", lambda: table.queue().purge(confirm="default")):
            assert queue.put("new", task_id="a", on_conflict="update").outcome is PutOutcome.CREATED
        assert total(queue) == 1


class TestWhen:
    def test_at_an_instant(self, queue: Queue, store: StoreUnderTest) -> None:
        moment = datetime.fromtimestamp(store.clock.now, UTC) + timedelta(seconds=30, microseconds=123457)
        queue.put("later", task_id="a", at=moment.astimezone())
        queue.put("past", at=store.clock.now - 5)
        assert known(queue, "a").not_before == moment.timestamp()
        assert payloads(queue.claim(limit=2)) == ["past"]
        store.clock.advance(30.123456)
        assert queue.claim() == []
        store.clock.advance(0.000001)
        assert payloads(queue.claim()) == ["later"]

    def test_each_task_of_a_batch_at_its_own_time(self, queue: Queue, store: StoreUnderTest) -> None:
        now = store.clock.now
        queue.put_many(
            [{"payload": "at", "at": now + 20}, {"payload": "delay", "delay_seconds": 10}, {"payload": "now"}]
        )
        assert counts(queue.stats()) == {"pending": 1, "delayed": 2}
        for expected in ("now", "delay", "at"):
            assert payloads(queue.claim(limit=3)) == [expected]
            store.clock.advance(10)

    def test_a_redelivery_is_recognized(self, queue: Queue, store: StoreUnderTest) -> None:
        queue.put_many([{"payload": number} for number in range(2)])
        assert not queue.claim(lease_seconds=5)[0].redelivered
        store.clock.advance(5)
        queue.admin.recover()
        assert [claim.redelivered for claim in queue.claim(limit=2)] == [True, False]


def test_a_table_whose_key_is_a_key_and_a_kind_is_imported_whole(store: StoreUnderTest) -> None:
    """The primary key of a delayed queue is (pKey, pKind): with both in the id, no pair meets another."""
    queue = store.queue()
    pairs = [(key, kind) for key in ("7", "8", "7/mail") for kind in ("mail", "quote", "sms")]
    rows = [
        {"payload": [key, kind], "task_id": f"{kind}/{key}", "kind": kind, "delay_seconds": 5}
        for key, kind in pairs
    ]
    for _ in range(2):  # a repeated import changes nothing
        queue.put_many(rows, on_conflict="update")
    assert queue.stats().delayed == len(pairs)
    queue.put("new", task_id="mail/7", kind="mail", on_conflict="update")
    other = queue.get("quote/7")
    assert other is not None
    assert (other.payload, other.kind) == (["7", "quote"], "quote")
