"""Failures of DynamoDB, the network or a process lose no task and are never read as "queue empty"."""

import socket
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from botocore.retries.standard import ExponentialBackoff
from local.faults import (
    BEFORE,
    Died,
    client_at,
    counted,
    crash,
    halved,
    hooked,
    items,
    lagging_indexes,
    meanwhile,
    one_by_one,
    refused,
    replies_lost,
    replies_lost_to_the_sdk,
)
from local.servers import load
from types_boto3_dynamodb import DynamoDBClient

from freshq import Claim, LeaseLost, PutOutcome, Queue, StoreError, TaskStatus
from freshq.errors import PutIncomplete, Throttled, Unreachable
from freshq.policy.retry import Backoff, CallRetry
from freshq.stores.dynamodb import calls
from freshq.stores.dynamodb.batches import PUT_THREADS
from tests.conftest import Clock, StoreUnderTest, on_table
from tests.support.one_thread_patch import confined
from tests.support.readings import counts, ids, known, payloads, total
from tests.support.verbs import VERBS, prepared

LEASE_SECONDS = 60.0
THROTTLED = "ProvisionedThroughputExceededException"


@pytest.fixture
def queue(table: StoreUnderTest) -> Queue:
    return table.queue()


def recovered_claims(table: StoreUnderTest, seconds: float = LEASE_SECONDS, **options: Any) -> list[Claim]:
    """Let the leases of dead processes expire, sweep, and return the tasks that another process can claim."""
    table.clock.advance(seconds)
    other = table.queue(**options)
    other.admin.recover()
    assert other.stats().taken == 0
    return other.claim(limit=30)


class TestLostReplyAfterTheSDK:
    """The write happened, the SDK's retries are spent, and the client call raises."""

    def test_put_says_created(self, queue: Queue, client: DynamoDBClient) -> None:
        with replies_lost(client, "PutItem"):
            assert queue.put("work", task_id="a").outcome is PutOutcome.CREATED
        assert total(queue) == 1

    def test_put_says_created_even_if_a_worker_was_faster(
        self, queue: Queue, client: DynamoDBClient, table: StoreUnderTest
    ) -> None:
        assert queue.claim() == []  # so that the first write is the put's
        with replies_lost(client, "PutItem"), done_before_the_second_put(client, table.queue()):
            assert queue.put("work", task_id="a").outcome is PutOutcome.CREATED
        assert counts(queue.stats()) == {"success": 1}

    def test_claim_holds_what_it_took(self, queue: Queue, client: DynamoDBClient) -> None:
        queue.put("work")
        with replies_lost(client, "UpdateItem"):
            (claim,) = queue.claim()
        assert claim.task.attempts == 1
        assert queue.complete(claim).status is TaskStatus.SUCCESS
        assert counts(queue.stats()) == {"success": 1}

    def test_complete_succeeds(self, queue: Queue, client: DynamoDBClient) -> None:
        queue.put("work", task_id="a")
        (claim,) = queue.claim()
        with replies_lost(client, "UpdateItem"):
            queue.complete(claim, result="done")
        assert known(queue, "a").result == "done"

    def test_retry_counts_once(self, queue: Queue, client: DynamoDBClient, table: StoreUnderTest) -> None:
        queue.put("work", task_id="a")
        (claim,) = queue.claim()
        with replies_lost(client, "UpdateItem"):
            queue.retry(claim, error="broken", delay_seconds=5)
        assert known(queue, "a").attempts == 1
        table.clock.advance(5)
        assert queue.claim()[0].task.attempts == 2

    def test_release_and_extend_succeed(self, queue: Queue, client: DynamoDBClient) -> None:
        queue.put("work", task_id="a")
        (claim,) = queue.claim()
        with replies_lost(client, "UpdateItem"):
            claim = queue.extend(claim, lease_seconds=90)
        assert known(queue, "a").lease_until == claim.lease_until
        with replies_lost(client, "UpdateItem"):
            queue.release(claim)
        assert known(queue, "a").attempts == 0

    def test_a_sweep_moves_once(self, queue: Queue, client: DynamoDBClient, table: StoreUnderTest) -> None:
        queue.put("work")
        queue.claim(lease_seconds=10)
        table.clock.advance(10)
        with replies_lost(client, "UpdateItem"):
            assert table.queue().admin.recover() == 1

    def test_when_no_reply_ever_comes_the_call_fails_and_the_task_comes_back(
        self, queue: Queue, client: DynamoDBClient, table: StoreUnderTest
    ) -> None:
        queue.put("work", task_id="a")
        with replies_lost(client, "UpdateItem", times=2), pytest.raises(Unreachable):
            queue.claim()
        assert known(queue, "a").status is TaskStatus.TAKEN
        assert [claim.task.attempts for claim in recovered_claims(table)] == [2]

    def test_once_a_write_of_many_is_never_answered_no_other_begins(
        self, queue: Queue, client: DynamoDBClient, table: StoreUnderTest
    ) -> None:
        queue.put_many([{"payload": number, "delay_seconds": 5} for number in range(50)])
        table.clock.advance(6)
        most = 2 * PUT_THREADS  # each that is under way is sent twice
        lost = replies_lost(client, "UpdateItem", times=1000)
        with lost, counted(client) as calls, pytest.raises(Unreachable):
            queue.admin.recover()
        assert 0 < calls.operations.count("UpdateItem") <= most
        with one_by_one(client):
            queue.put_many([{"payload": number} for number in range(2)])
        lost = replies_lost(client, "PutItem", times=1000)
        with lost, counted(client) as calls, pytest.raises(PutIncomplete) as incomplete:
            queue.put_many([{"payload": number} for number in range(50)])
        assert all(isinstance(receipt, Unreachable) for receipt in incomplete.value.receipts)
        assert 0 < calls.operations.count("PutItem") <= most


def done_before_the_second_put(client: DynamoDBClient, worker: Queue) -> Any:
    """Let a worker do the task between a put and its second try."""
    puts = 0

    def work(**_rest: Any) -> None:
        nonlocal puts
        puts += 1
        if puts == 2:
            worker.complete(worker.claim()[0])

    return hooked(client, BEFORE, work, "PutItem")


class TestLostReplyWithinTheSDK:
    """The write happened, the connection broke, and the SDK sent the same request again by itself."""

    @pytest.fixture
    def client(self, dynamodb_local: DynamoDBClient, monkeypatch: pytest.MonkeyPatch) -> DynamoDBClient:
        """Return a client that retries as the library's own does, without the pauses."""
        monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda _self, _context: 0.0)
        return client_at(dynamodb_local.meta.endpoint_url, attempts=3)

    @pytest.fixture
    def table(self, client: DynamoDBClient) -> StoreUnderTest:
        return on_table("dynamodb_local", client)

    def test_put_says_created(self, queue: Queue, client: DynamoDBClient) -> None:
        queue.put("work", task_id="first")  # it stores the queue's options
        with replies_lost_to_the_sdk(client, "PutItem") as sent:
            assert queue.put("work", task_id="a").outcome is PutOutcome.CREATED
        assert len(sent) == 2
        assert total(queue) == 2

    def test_the_first_put_stores_the_options_and_says_created(
        self, queue: Queue, client: DynamoDBClient
    ) -> None:
        with replies_lost_to_the_sdk(client, "PutItem") as sent:
            assert queue.put("work", task_id="a").outcome is PutOutcome.CREATED
        assert len(sent) == 3
        assert total(queue) == 1

    def test_claim_holds_what_it_took(self, queue: Queue, client: DynamoDBClient) -> None:
        queue.put_many([{"payload": number} for number in range(3)])
        with one_by_one(client), replies_lost_to_the_sdk(client, "UpdateItem", times=2) as sent:
            claims = queue.claim(limit=3)
        assert len(sent) == 5
        assert payloads(claims) == [2, 1, 0]
        assert {claim.task.attempts for claim in claims} == {1}
        for claim in claims:
            queue.complete(claim)

    @pytest.mark.parametrize("verb", ["complete", "fail", "retry", "release"])
    def test_settling_succeeds(self, queue: Queue, client: DynamoDBClient, verb: str) -> None:
        queue.put("work", task_id="a")
        (claim,) = queue.claim()
        with replies_lost_to_the_sdk(client, "UpdateItem") as sent:
            settled = getattr(queue, verb)(claim)
        assert len(sent) == 2
        assert known(queue, "a") == settled


class TestRefused:
    def test_throttling_that_goes_on_is_an_error_of_every_verb(
        self, table: StoreUnderTest, client: DynamoDBClient
    ) -> None:
        queue = table.queue()
        claim = prepared(queue)
        before = items(client, str(table.table))
        for verb in VERBS.values():
            with (
                refused(client, code=THROTTLED),
                pytest.raises((Throttled, PutIncomplete), match=str(table.table)),
            ):
                verb(queue, claim)
        assert items(client, str(table.table)) == before

    @pytest.mark.parametrize("operation", ["GetItem", "Query", "PutItem", "UpdateItem"])
    def test_a_claim_never_reads_throttling_of_any_of_its_calls_as_empty(
        self, table: StoreUnderTest, client: DynamoDBClient, operation: str
    ) -> None:
        table.queue().put("work")
        with refused(client, operation, code=THROTTLED), pytest.raises(Throttled):
            table.queue().claim(limit=3)
        assert payloads(table.queue().claim(limit=3)) == ["work"]

    def test_not_even_while_it_looks_for_what_is_due(self, queue: Queue, client: DynamoDBClient) -> None:
        with refused(client, "Query", code=THROTTLED, let_pass=1), pytest.raises(Throttled):
            queue.claim()

    @pytest.mark.parametrize(
        ("code", "error"),
        [
            ("ThrottlingException", Throttled),
            ("InternalServerError", Unreachable),
            ("UnrecognizedClientException", Unreachable),
            ("ValidationException", StoreError),
        ],
    )
    def test_every_refusal_has_its_error(
        self, queue: Queue, client: DynamoDBClient, code: str, error: type[Exception]
    ) -> None:
        with refused(client, code=code), pytest.raises(error, match=code):
            queue.claim()

    def test_a_batch_of_which_some_were_refused_says_which(
        self, queue: Queue, client: DynamoDBClient
    ) -> None:
        batch = [{"payload": number, "task_id": str(number)} for number in range(10)]
        assert queue.claim() == []  # so that the first write is the put's
        with (
            one_by_one(client),
            refused(client, "PutItem", code=THROTTLED, let_pass=4),
            pytest.raises(PutIncomplete) as caught,
        ):
            queue.put_many(batch)
        assert sum(isinstance(entry, Throttled) for entry in caught.value.receipts) == 6
        assert total(queue) == 4
        assert {str(receipt.outcome) for receipt in queue.put_many(batch)} == {"CREATED", "DUPLICATE"}
        assert total(queue) == 10

    def test_a_closed_port_is_unreachable_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pauses: list[float] = []
        monkeypatch.setattr(time, "sleep", confined(pauses.append, time.sleep))
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            queue = Queue.dynamodb(
                "Tasks", client_at(f"http://127.0.0.1:{closed.getsockname()[1]}", attempts=1)
            )
            for call in (queue.claim, queue.stats, queue.admin.recover, lambda: queue.put("work")):
                with pytest.raises(Unreachable):
                    call()
        assert sum(pauses) < 5


class TestCutShort:
    """A failure in the middle of a claim."""

    @pytest.fixture
    def claims(self, queue: Queue, client: DynamoDBClient) -> list[Claim]:
        with one_by_one(client):
            queue.put_many([{"payload": number} for number in range(5)])
        with refused(client, code=THROTTLED, operation="UpdateItem", let_pass=3):
            return queue.claim(limit=5)

    def test_what_was_taken_reaches_its_worker(self, queue: Queue, claims: list[Claim]) -> None:
        assert payloads(claims) == [4, 3, 2]
        for claim in claims:
            queue.complete(claim)
        assert payloads(queue.claim(limit=5)) == [1, 0]

    def test_even_if_the_store_stays_down(self, queue: Queue, client: DynamoDBClient) -> None:
        """The search for due tasks, which follows a claim that got too few, fails as well."""
        with one_by_one(client):
            queue.put_many([{"payload": number} for number in range(5)])
        queue.admin.recover()  # a first claim would look before it takes; this reads the control record, too
        calls_before_the_third_task = 4  # query, lease record, two tasks
        with refused(client, code=THROTTLED, let_pass=calls_before_the_third_task):
            assert payloads(queue.claim(limit=5)) == [4, 3]
            with pytest.raises(Throttled):
                queue.claim(limit=5)

    def test_everything_is_recoverable(
        self, queue: Queue, client: DynamoDBClient, table: StoreUnderTest, claims: list[Claim]
    ) -> None:
        with refused(client, code=THROTTLED), pytest.raises(Throttled):
            queue.claim(limit=5)
        assert sorted(map(str, payloads(recovered_claims(table)))) == list("01234")
        with pytest.raises(LeaseLost):
            queue.complete(claims[0])


def busy(queue: Queue, clock: Clock) -> Claim:
    """Leave something of every kind: a lease that ran out, a due delay, a stale head, live tasks, a hold."""
    queue.put("expired")
    queue.claim(lease_seconds=10)
    queue.put("delayed", delay_seconds=15)
    queue.put("held")
    (held,) = queue.claim(lease_seconds=LEASE_SECONDS)
    queue.put_many([{"payload": "waits", "task_id": f"{queue.name}-waits"}, {"payload": "waits too"}])
    queue.put("stale", max_age_seconds=5)
    clock.advance(20)
    return held


def complete_and_close(queue: Queue, held: Claim) -> None:
    queue.complete(held)
    queue.close()


MORTAL: dict[str, Callable[[Queue, Claim], object]] = {
    "claim": lambda queue, _: queue.claim(limit=4),
    "complete": lambda queue, held: queue.complete(held, result="done"),
    "retry": lambda queue, held: queue.retry(held, error="again", delay_seconds=1),
    "release": lambda queue, held: queue.release(held),
    "extend": lambda queue, held: queue.extend(held, lease_seconds=2 * LEASE_SECONDS),
    "recover": lambda queue, _: queue.admin.recover(),
    "complete and close": complete_and_close,
    "claims in a row": lambda queue, held: (
        queue.claim(),
        queue.complete(held),
        queue.claim(),
        queue.claim(),
    ),
    "put over what waits": lambda queue, _: queue.put(
        "new", task_id=f"{queue.name}-waits", on_conflict="update"
    ),
    "put over what is held": lambda queue, held: queue.put(
        "new", task_id=held.task.task_id, priority=2, group="g", on_conflict="update"
    ),
    "put over what is done": lambda queue, held: (
        queue.complete(held),
        queue.put("new", task_id=held.task.task_id, delay_seconds=1, on_conflict="ignore"),
    ),
    "cancel": lambda queue, _: queue.cancel(f"{queue.name}-waits"),
    "redrive as new": lambda queue, _: queue.redrive([f"{queue.name}-waits"], as_new=True),
    "reprioritize": lambda queue, _: queue.reprioritize(f"{queue.name}-waits", priority=4),
}


@pytest.mark.parametrize("verb", MORTAL.values(), ids=MORTAL.keys())
def test_a_process_may_die_after_any_call(
    table_store: StoreUnderTest, verb: Callable[[Queue, Claim], object]
) -> None:
    """Dying before a call equals dying after the previous call: the table is the same."""
    assert table_store.client is not None
    deaths = 0
    for number in count(1):
        name = f"queue-{number}"
        victim = table_store.queue(name=name)
        held = busy(victim, table_store.clock)
        try:
            with crash(table_store.client, number):
                verb(victim, held)
        except Died:
            deaths += 1
        claims = recovered_claims(table_store, 2 * LEASE_SECONDS, name=name)
        rescuer = table_store.queue(name=name)
        fates = counts(rescuer.stats())
        assert len(set(ids(claims))) == len(claims) == fates.get("taken", 0)
        assert sum(fates.values()) == 6
        assert fates.get("pending", 0) == fates.get("delayed", 0) == 0
        assert all(claim.task.attempts <= 3 for claim in claims)
        for claim in claims:
            rescuer.complete(claim)
        assert counts(rescuer.stats()).keys() <= {"success", "failure", "cancelled", "shed"}
        if deaths < number:
            break
    assert deaths


class TestLeaseRecord:
    """The record of the tasks that a process holds stays right under concurrent calls."""

    def test_a_stale_settlement_does_not_hide_the_next_claim(
        self, queue: Queue, table: StoreUnderTest
    ) -> None:
        """The process lost a task, claimed it again, and only then its first runner came back."""
        queue.put("other")
        queue.put("work")
        (stale,) = queue.claim(lease_seconds=10)
        table.clock.advance(10)
        queue.admin.recover()
        assert payloads(queue.claim()) == ["work"]
        with pytest.raises(LeaseLost):
            queue.complete(stale)
        queue.claim()  # rewrites the record
        assert sorted(map(str, payloads(recovered_claims(table)))) == ["other", "work"]

    def test_a_stale_settlement_does_not_delete_the_record(self, queue: Queue, table: StoreUnderTest) -> None:
        queue.put("work")
        (stale,) = queue.claim(lease_seconds=10)
        table.clock.advance(10)
        queue.admin.recover()
        queue.claim()
        with pytest.raises(LeaseLost):
            queue.complete(stale)
        queue.close()
        assert payloads(recovered_claims(table)) == ["work"]

    def test_a_lagging_index_does_not_hide_what_is_held(
        self, queue: Queue, client: DynamoDBClient, table: StoreUnderTest
    ) -> None:
        """The index still shows a task that this very process holds."""
        queue.put("older")
        queue.put("work")
        with lagging_indexes(client, str(table.table)):
            assert payloads(queue.claim()) == ["work"]
            assert payloads(queue.claim()) == ["older"]
        assert sorted(map(str, payloads(recovered_claims(table)))) == ["older", "work"]

    def test_a_lagging_index_does_not_lengthen_what_is_held(
        self, queue: Queue, client: DynamoDBClient, table: StoreUnderTest
    ) -> None:
        queue.put("older")
        queue.put("work")
        with lagging_indexes(client, str(table.table)):
            queue.claim(lease_seconds=10)
            queue.claim(lease_seconds=1000)
        table.clock.advance(10)
        assert table.queue().admin.recover() == 1

    def test_a_race_lost_to_another_thread_does_not_hide_what_that_one_holds(
        self, queue: Queue, client: DynamoDBClient, table: StoreUnderTest
    ) -> None:
        queue.put("older")
        queue.put("work")
        with meanwhile(client, "UpdateItem", queue.claim):
            assert payloads(queue.claim()) == ["older"]
        assert sorted(map(str, payloads(recovered_claims(table)))) == ["older", "work"]

    def test_a_sweep_and_its_process_may_write_it_at_once(
        self, queue: Queue, client: DynamoDBClient, table: StoreUnderTest
    ) -> None:
        """The sweep finds a record that names nothing held; its process claims before it is deleted."""
        queue.put_many([{"payload": number} for number in range(2)])
        queue.complete(queue.claim(lease_seconds=10)[0])
        table.clock.advance(10_000)
        sweep = table.queue(max_age_seconds=100_000, override=True)
        worker = queue
        with meanwhile(client, "DeleteItem", lambda: worker.put("late") and worker.claim()):
            sweep.admin.recover()
        table.clock.advance(LEASE_SECONDS)
        assert table.queue().admin.recover() == 1

    def test_a_sweep_between_naming_a_task_and_taking_it(
        self, queue: Queue, client: DynamoDBClient, table: StoreUnderTest
    ) -> None:
        """The process stalls there until its record is due, takes the task after all, and dies."""
        queue.put_many([{"payload": number} for number in range(2)])
        (first,) = queue.claim(lease_seconds=60)
        table.clock.advance(20)
        queue.complete(first)

        def stall() -> None:
            table.clock.advance(45)
            table.queue().admin.recover()

        with meanwhile(client, "UpdateItem", stall):
            assert len(queue.claim(lease_seconds=60)) == 1
        assert len(recovered_claims(table)) == 1

    def test_a_task_taken_when_its_lease_had_run_out_already(
        self, queue: Queue, client: DynamoDBClient, table: StoreUnderTest
    ) -> None:
        queue.put("work")

        def stall() -> None:
            table.clock.advance(LEASE_SECONDS + 1)
            table.queue().admin.recover()

        with meanwhile(client, "UpdateItem", stall):
            assert len(queue.claim()) == 1
        assert len(recovered_claims(table, 1000)) == 1

    def test_records_without_tasks_do_not_delay_the_others(self, table: StoreUnderTest) -> None:
        """More empty records than the sweep reads at a time are due before a record with tasks."""
        producer = table.queue()
        for number in range(30):
            worker = table.queue()
            producer.put(number)
            worker.complete(worker.claim(lease_seconds=10)[0])
        table.clock.advance(1)
        producer.put("work")
        table.queue().claim(lease_seconds=10)
        table.clock.advance(1000)
        assert table.queue().admin.recover() == 1

    def test_nothing_is_left_in_the_end(
        self, queue: Queue, client: DynamoDBClient, table: StoreUnderTest
    ) -> None:
        queue.put_many([{"payload": number, "task_id": str(number)} for number in range(3)])
        queue.claim(limit=2)  # and dies
        for _ in range(3):
            table.clock.advance(1000)
            table.queue().admin.recover()
        left = [item["taskId"]["S"] for item in items(client, str(table.table))]
        assert sorted(left) == ["0", "1", "2", "freshq#record#default#freshq#options"]


class TestLaggingIndex:
    """The indexes show tasks that are gone, and do not show new ones yet."""

    def test_nothing_is_claimed_twice_and_nothing_passed_over(
        self, client: DynamoDBClient, table: StoreUnderTest
    ) -> None:
        first, second = table.queue(), table.queue()
        first.put_many([{"payload": number} for number in range(40)])
        with lagging_indexes(client, str(table.table)) as catch_up:
            taken = payloads(first.claim(limit=20))
            first.put("new")
            assert taken == list(range(39, 19, -1))
            # After meeting tasks of other claimers, it takes any of the next tasks, each of them once.
            found = payloads(second.claim(limit=3))
            assert len(found) == 3
            found += payloads(second.claim(limit=30))
            assert set(found) == set(range(20))
            assert len(found) == 20
            assert second.claim() == []
            catch_up()
            assert payloads(second.claim(limit=2)) == ["new"]
        assert counts(first.stats()) == {"taken": 41}

    def test_the_sweep_ends(self, client: DynamoDBClient, table: StoreUnderTest) -> None:
        queue = table.queue()
        queue.put_many([{"payload": number} for number in range(5)])
        queue.put_many([{"payload": number, "delay_seconds": 5} for number in range(30)])
        queue.claim(limit=5, lease_seconds=5)
        table.clock.advance(5)
        with lagging_indexes(client, str(table.table)):
            assert table.queue().admin.recover() in range(25, 36)
            moved = table.queue().admin.recover() + table.queue().admin.recover()
        assert table.queue().admin.recover() <= 35 - moved
        assert counts(queue.stats()) == {"pending": 35}

    def test_a_cancelled_task_that_is_still_shown_is_not_claimed(
        self, client: DynamoDBClient, table: StoreUnderTest
    ) -> None:
        queue = table.queue()
        queue.put("work", task_id="a")
        with lagging_indexes(client, str(table.table)):
            queue.cancel("a")
            assert queue.claim() == []
        assert known(queue, "a").status is TaskStatus.CANCELLED

    def test_a_purged_task_that_is_still_shown_does_not_come_to_life(
        self, client: DynamoDBClient, table: StoreUnderTest
    ) -> None:
        queue = table.queue()
        queue.put("work", task_id="a")
        with lagging_indexes(client, str(table.table)):
            queue.purge(confirm="default")
            assert queue.claim() == []
        assert total(queue) == 0


class TestUnprocessed:
    @pytest.fixture(autouse=True)
    def _no_pauses(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(calls, "BATCH_RETRY", CallRetry(10, Backoff(1e-9, 1e-9)))

    def test_the_rest_of_a_read_is_read(
        self, queue: Queue, client: DynamoDBClient, table: StoreUnderTest
    ) -> None:
        queue.put_many([{"payload": number} for number in range(20)])
        queue.claim(limit=20, lease_seconds=10)
        table.clock.advance(10)
        with halved(client) as batches:
            assert table.queue().admin.recover() == 20
        assert batches.operations.count("BatchGetItem") > 4

    def test_the_rest_of_a_purge_is_deleted(self, queue: Queue, client: DynamoDBClient) -> None:
        queue.put_many([{"payload": number} for number in range(60)])
        with halved(client) as batches:
            assert queue.purge(confirm="default") == 60
        assert len(batches) > 10
        assert total(queue) == 0

    def test_what_stays_unprocessed_is_an_error(self, queue: Queue, client: DynamoDBClient) -> None:
        queue.put_many([{"payload": number} for number in range(20)])
        with halved(client), pytest.MonkeyPatch.context() as patch:
            patch.setattr(calls, "BATCH_RETRY", CallRetry(2, Backoff(1e-9, 1e-9)))
            with pytest.raises(Throttled):
                queue.purge(confirm="default")


def test_the_longest_ids_are_claimed_and_recovered_by_the_hundred(table: StoreUnderTest) -> None:
    """The lease record of one claim would not fit into one item of DynamoDB: 400 KB."""
    assert table.client is not None
    queue, count = table.queue(), 410
    task = known(queue, queue.put(None, task_id=f"{0:01000d}").task_id)
    copies = [replace(task, task_id=f"{number:01000d}") for number in range(1, count)]
    load(table.client, str(table.table), copies)
    assert len(queue.claim(limit=count, lease_seconds=10)) == count
    table.clock.advance(20)
    assert table.queue().admin.recover() == count
