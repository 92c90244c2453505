"""Several conditional writes in one call, on DynamoDB Local: the answers of single writes, in fewer calls."""

import logging
from typing import Any

import pytest
from botocore.exceptions import ConnectionClosedError
from local.faults import (
    AFTER,
    Died,
    client_at,
    counted,
    crash,
    hooked,
    items,
    meanwhile,
    one_by_one,
    refused,
    replies_lost,
    replies_lost_to_the_sdk,
    statements_left,
)
from types_boto3_dynamodb import DynamoDBClient

from freshq import Claim, LeaseLost, PutOutcome, Queue, Settlement, TaskStatus
from freshq.errors import PutIncomplete, Throttled, Unreachable
from freshq.policy.retry import Backoff, CallRetry
from freshq.stores.dynamodb import batches
from tests.conftest import StoreUnderTest, on_table
from tests.support.readings import counts, known, payloads, total

BATCH = "BatchExecuteStatement"
LEASE_SECONDS = 60.0
CODES = sorted(batches.TRANSIENT_CODES)


@pytest.fixture
def client(dynamodb_local: DynamoDBClient) -> DynamoDBClient:
    return dynamodb_local


@pytest.fixture
def table(dynamodb_local: DynamoDBClient) -> StoreUnderTest:
    return on_table("dynamodb_local", dynamodb_local)


@pytest.fixture
def queue(table: StoreUnderTest) -> Queue:
    return table.queue()


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    retry = CallRetry(3, Backoff(base_seconds=0.001, cap_seconds=0.001))
    monkeypatch.setattr(batches, "BATCH_RETRY", retry)


def put(queue: Queue, number: int) -> list[PutOutcome | None]:
    receipts = queue.put_many([{"payload": each, "task_id": str(each)} for each in range(number)])
    return [receipt.outcome for receipt in receipts]


def held(queue: Queue, number: int) -> list[Claim]:
    put(queue, number)
    claims = queue.claim(number)
    assert len(claims) == number
    return claims


def completed(claims: list[Claim]) -> list[Settlement]:
    return [Settlement.complete(claim, claim.task.payload) for claim in claims]


class TestCalls:
    @pytest.mark.usefixtures("read_once")
    def test_thirty_tasks_take_two_calls_a_step(self, queue: Queue, client: DynamoDBClient) -> None:
        queue.claim()  # makes the reads that a process makes once
        with counted(client) as calls:
            assert put(queue, 30) == [PutOutcome.CREATED] * 30
            assert calls.operations.count(BATCH) == 2
            claims = queue.claim(30)
            assert payloads(claims) == list(reversed(range(30)))
            assert calls.operations.count(BATCH) == 4
            queue.settle_many(completed(claims))
            assert calls.operations.count(BATCH) == 6
            assert "UpdateItem" not in calls.operations
        assert counts(queue.stats()) == {"success": 30}

    def test_only_claims_have_the_items_returned(self, queue: Queue, client: DynamoDBClient) -> None:
        returned: list[int] = []

        def note(parsed: Any, **_rest: Any) -> None:
            returned.append(sum("Item" in response for response in parsed["Responses"]))

        with hooked(client, AFTER, note, BATCH):
            queue.settle_many(completed(held(queue, 5)))
        assert returned == [0, 5, 0]

    @pytest.mark.usefixtures("read_once")
    def test_a_task_alone_is_written_as_ever(self, queue: Queue, client: DynamoDBClient) -> None:
        with counted(client) as calls:
            (claim,) = held(queue, 1)
            queue.complete(claim)
        assert BATCH not in calls.operations

    def test_both_forms_write_the_same_items(self, table: StoreUnderTest, client: DynamoDBClient) -> None:
        together = items_after_a_life(table, client)
        with one_by_one(client):
            alone = items_after_a_life(on_table("dynamodb_local", client), client)
        assert len(together) == 6
        assert together == alone


def items_after_a_life(table: StoreUnderTest, client: DynamoDBClient) -> list[dict[str, Any]]:
    """Lead tasks through all that is written together, and return their items without the random tokens."""
    queue = table.queue(worker_name="worker")
    put(queue, 6)
    claims = queue.claim(5)
    queue.settle_many(
        [
            Settlement.complete(claims[0], {"ok": True}),
            Settlement.fail(claims[1], "no"),
            Settlement.retry(claims[2], "later", 5),
            Settlement.release(claims[3]),
        ]
    )
    random = ("requestToken", "putToken", "leaseToken", "endedToken")
    return [
        {name: value for name, value in item.items() if name not in random}
        for item in items(client, str(table.table))
        if "taskStatus" in item
    ]


class TestOneWriteOfABatch:
    @pytest.mark.usefixtures("read_once")
    def test_ids_that_are_taken_cost_one_read(self, queue: Queue, client: DynamoDBClient) -> None:
        put(queue, 4)
        with counted(client) as calls:
            assert put(queue, 4) == [PutOutcome.DUPLICATE] * 4
        assert calls.operations == [BATCH, "BatchGetItem"]

    def test_an_answer_that_cannot_be_had_is_not_read_as_a_taken_id(
        self, queue: Queue, client: DynamoDBClient
    ) -> None:
        put(queue, 2)
        code = "ProvisionedThroughputExceededException"
        with refused(client, "BatchGetItem", code=code), pytest.raises(PutIncomplete) as caught:
            put(queue, 3)
        written = [isinstance(receipt, Throttled) for receipt in caught.value.receipts]
        assert written == [True, True, False]

    def test_an_id_that_is_taken_harms_no_other(self, queue: Queue) -> None:
        queue.put("first", task_id="2")
        outcomes = put(queue, 4)
        assert outcomes == [PutOutcome.CREATED, PutOutcome.CREATED, PutOutcome.DUPLICATE, PutOutcome.CREATED]
        assert known(queue, "2").payload == "first"

    def test_an_id_that_occurs_twice_is_put_once(self, queue: Queue) -> None:
        batch = [{"payload": number, "task_id": "same"} for number in range(3)] + [{"payload": 3}]
        outcomes = [receipt.outcome for receipt in queue.put_many(batch)]
        assert outcomes == [PutOutcome.CREATED, *[PutOutcome.DUPLICATE] * 2, PutOutcome.CREATED]
        assert known(queue, "same").payload == 0

    def test_a_task_that_another_took_is_not_claimed_twice(
        self, table: StoreUnderTest, queue: Queue, client: DynamoDBClient
    ) -> None:
        put(queue, 5)
        rival = Queue.dynamodb(
            str(table.table), client_at(client.meta.endpoint_url), clock=table.clock, name=queue.name
        )
        taken: list[Claim] = []
        with meanwhile(client, BATCH, lambda: taken.extend(rival.claim())):
            claims = queue.claim(5)
        assert payloads(taken) == [4]
        assert payloads(claims) == [3, 2, 1, 0]
        for claim in claims:
            queue.complete(claim)

    def test_a_lease_that_was_lost_harms_no_other(self, queue: Queue) -> None:
        claims = held(queue, 3)
        queue.cancel(claims[1].task.task_id, force=True)
        answers = queue.settle_many(completed(claims))
        assert [isinstance(answer, LeaseLost) for answer in answers] == [False, True, False]
        assert counts(queue.stats()) == {"success": 2, "cancelled": 1}

    @pytest.mark.parametrize("code", CODES)
    def test_what_is_left_out_is_sent_again(self, queue: Queue, client: DynamoDBClient, code: str) -> None:
        with statements_left(client, code) as sizes:
            assert put(queue, 4) == [PutOutcome.CREATED] * 4
        assert sizes == [4, 3]
        with statements_left(client, code) as sizes:
            claims = queue.claim(4)
        assert (len(claims), sizes) == (4, [4, 3])
        with statements_left(client, code) as sizes:
            queue.settle_many(completed(claims))
        assert sizes == [4, 3]
        assert counts(queue.stats()) == {"success": 4}

    def test_what_stays_left_out_is_reported_and_not_read_as_a_lost_race(
        self, queue: Queue, client: DynamoDBClient
    ) -> None:
        with (
            statements_left(client, "ThrottlingError", times=1000) as sizes,
            pytest.raises(PutIncomplete) as caught,
        ):
            put(queue, 6)
        assert sizes == [6, 5, 4]
        assert sum(isinstance(receipt, Throttled) for receipt in caught.value.receipts) == 3
        put(queue, 6)
        claims = queue.claim(6)
        with statements_left(client, "ThrottlingError", times=1000):
            answers = queue.settle_many(completed(claims))
        assert [isinstance(answer, Throttled) for answer in answers] == [False] * 3 + [True] * 3
        assert counts(queue.stats()) == {"success": 3, "taken": 3}
        again = queue.settle_many(completed(claims[3:]))
        assert not any(isinstance(answer, Exception) for answer in again)

    def test_what_was_taken_reaches_its_worker(
        self, table: StoreUnderTest, queue: Queue, client: DynamoDBClient
    ) -> None:
        put(queue, 5)
        with statements_left(client, "ThrottlingError", times=1000):
            claims = queue.claim(5)
        assert payloads(claims) == [4, 3, 2]
        table.clock.advance(LEASE_SECONDS)
        assert table.queue().admin.recover() == 3
        assert table.queue().stats().pending == 5

    def test_a_call_that_is_refused_takes_nothing(self, queue: Queue, client: DynamoDBClient) -> None:
        put(queue, 3)
        with (
            refused(client, BATCH, code="ProvisionedThroughputExceededException"),
            pytest.raises(Throttled),
        ):
            queue.claim(3)
        assert queue.stats().pending == 3


class TestLostReplies:
    def test_nothing_is_done_twice_or_taken_for_anothers(self, queue: Queue, client: DynamoDBClient) -> None:
        with replies_lost(client, BATCH):
            assert put(queue, 4) == [PutOutcome.CREATED] * 4
        with replies_lost(client, BATCH):
            claims = queue.claim(4)
        assert [claim.task.attempts for claim in claims] == [1] * 4
        with replies_lost(client, BATCH):
            answers = queue.settle_many(completed(claims))
        assert not any(isinstance(answer, Exception) for answer in answers)
        assert counts(queue.stats()) == {"success": 4}

    def test_also_if_the_sdk_repeats_the_call(self, table: StoreUnderTest, client: DynamoDBClient) -> None:
        patient = client_at(client.meta.endpoint_url, attempts=3)
        queue = Queue.dynamodb(str(table.table), patient, clock=table.clock)
        with replies_lost_to_the_sdk(patient, BATCH) as sent:
            claims = held(queue, 4)
        assert len(sent) == 3  # the put twice, the claim once
        with replies_lost_to_the_sdk(patient, BATCH):
            queue.settle_many(completed(claims))
        assert counts(queue.stats()) == {"success": 4}

    def test_a_successor_may_be_claimed_before_the_settlement_is_repeated(
        self, table: StoreUnderTest, queue: Queue, client: DynamoDBClient
    ) -> None:
        claims = held(queue, 2)
        rival = Queue.dynamodb(
            str(table.table), client_at(client.meta.endpoint_url), clock=table.clock, name=queue.name
        )
        rival.put("next", task_id="1", on_conflict="after")
        taken: list[Claim] = []

        def lose(**_rest: Any) -> None:
            if not taken:
                taken.extend(rival.claim())
                raise ConnectionClosedError(endpoint_url="http://dynamodb")

        settlements = completed(claims)
        with hooked(client, AFTER, lose, "PutItem"):
            answers = queue.settle_many(settlements)
        assert payloads(taken) == ["next"]
        for each in (answers, queue.settle_many(settlements)):
            assert not any(isinstance(answer, Exception) for answer in each)
        rival.complete(taken[0])

    @pytest.mark.usefixtures("read_once")
    def test_once_a_batch_is_never_answered_no_other_begins(
        self, queue: Queue, client: DynamoDBClient
    ) -> None:
        with (
            replies_lost(client, BATCH, times=1000),
            counted(client) as calls,
            pytest.raises(PutIncomplete) as incomplete,
        ):
            put(queue, 60)
        assert all(isinstance(receipt, Unreachable) for receipt in incomplete.value.receipts)
        assert calls.operations.count(BATCH) == 2
        assert total(queue) == 25


class TestKilled:
    def test_tasks_of_a_worker_that_dies_as_it_claims_come_back(
        self, table: StoreUnderTest, queue: Queue, client: DynamoDBClient
    ) -> None:
        put(queue, 4)
        for number in range(1, 12):  # after every call at which it may die
            dying = table.queue()
            try:
                with crash(client, number):
                    dying.claim(4)
            except Died:
                table.clock.advance(2 * LEASE_SECONDS)
                table.queue().admin.recover()
                assert table.queue().stats().pending == 4
            else:
                break
        assert number > 3

    def test_tasks_of_a_worker_that_dies_as_it_settles_are_settled_or_come_back(
        self, table: StoreUnderTest, queue: Queue, client: DynamoDBClient
    ) -> None:
        claims = held(queue, 4)
        with crash(client, 1), pytest.raises(Died):
            queue.settle_many(completed(claims))
        table.clock.advance(2 * LEASE_SECONDS)
        table.queue().admin.recover()
        assert counts(table.queue().stats()) == {"success": 4}


class TestNotAllowed:
    @pytest.mark.parametrize("code", ["AccessDeniedException", "UnknownOperationException"])
    def test_tasks_are_written_one_by_one_and_the_log_says_so_once(
        self, queue: Queue, client: DynamoDBClient, caplog: pytest.LogCaptureFixture, code: str
    ) -> None:
        with (
            caplog.at_level(logging.INFO, "freshq"),
            statements_left(client, "not sent", times=0) as sizes,
            refused(client, BATCH, code=code),
        ):
            queue.settle_many(completed(held(queue, 3)))
        assert counts(queue.stats()) == {"success": 3}
        assert sizes == [3]
        (line,) = [record for record in caplog.records if "one by one" in record.getMessage()]
        assert "dynamodb:PartiQLUpdate" in line.getMessage()
        assert line.levelname == ("WARNING" if code == "AccessDeniedException" else "INFO")

    @pytest.mark.parametrize("code", ["AccessDenied", "ValidationError"])
    def test_also_if_statements_are_refused(self, queue: Queue, client: DynamoDBClient, code: str) -> None:
        with statements_left(client, code, times=1000, fitting=1) as sizes:
            claims = held(queue, 3)
            queue.settle_many(completed(claims))
        assert sizes == [3]
        assert counts(queue.stats()) == {"success": 3}

    def test_also_if_the_endpoint_fails_in_its_own_way_and_the_log_says_so_in_one_line(
        self,
        account_client: DynamoDBClient,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        def fail(**_arguments: object) -> None:
            raise TypeError("no such statement")

        caplog.set_level(logging.DEBUG, "freshq")
        monkeypatch.setattr(account_client, "batch_execute_statement", fail, raising=False)
        queue = Queue.dynamodb("Tasks", account_client)
        queue.create_table()
        queue.put_many([{"payload": number} for number in range(3)])
        queue.settle_many(completed(queue.claim(3)))
        assert {task.status for task in queue.list()} == {TaskStatus.SUCCESS}
        heard = [record for record in caplog.records if record.levelno >= logging.INFO]
        (line,) = [record for record in heard if "one by one" in record.getMessage()]
        assert (line.levelname, line.exc_info) == ("WARNING", None)
        assert "the endpoint raised TypeError" in line.getMessage()
        assert not [record for record in heard if record.exc_info]
        assert len([record for record in caplog.records if record.exc_info]) == 1  # for who looks for it
