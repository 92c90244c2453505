"""Effects of a clock that is wrong for a moment, or in one process, on every store."""

import json
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any, Final

import pytest
from local.faults import BEFORE, client_at, counted, hooked
from types_boto3_dynamodb import DynamoDBClient

from freshq import LeaseLost, Queue, TaskStatus
from freshq.queue.core import core_of
from freshq.stores.dynamodb.clock import NO_ITEM
from freshq.stores.dynamodb.schema import KEY
from freshq.stores.sql import SqlStore
from tests.conftest import StoreUnderTest, on_table
from tests.support.readings import known

HOUR_SECONDS: Final = 3600.0


class TestOneMomentAhead:
    """For one reading the clock of a process is an hour ahead."""

    def test_creation_times_return_to_the_true_time(self, store: StoreUnderTest) -> None:
        queue = store.queue(max_age_seconds=2 * HOUR_SECONDS)
        store.clock.advance(HOUR_SECONDS)
        queue.put("ahead", task_id="ahead")
        store.clock.advance(-HOUR_SECONDS)
        queue.put("true", task_id="true")

        assert known(queue, "ahead").created == store.clock.now + HOUR_SECONDS
        assert known(queue, "true").created == store.clock.now

    def test_a_touched_task_keeps_its_max_age(self, store: StoreUnderTest) -> None:
        queue = store.queue(max_age_seconds=2 * HOUR_SECONDS)
        queue.put("work", task_id="a", max_age_seconds=60)
        store.clock.advance(HOUR_SECONDS)
        queue.put("ahead")
        store.clock.advance(-HOUR_SECONDS)
        for _ in range(2):
            queue.redrive(["a"], as_new=True)

        task = known(queue, "a")
        assert task.status is TaskStatus.PENDING
        assert task.deadline == pytest.approx(store.clock.now + 60)
        assert task.stale_at - task.created == pytest.approx(60)

    def test_times_stay_in_order_when_the_clock_goes_back_a_little(self, store: StoreUnderTest) -> None:
        queue = store.queue()
        queue.put("first", task_id="first")
        store.clock.advance(-0.5)
        queue.put("second", task_id="second")

        assert known(queue, "second").created > known(queue, "first").created


class TestExtend:
    """A lease is never shortened."""

    def test_a_slow_clock_does_not_shorten_a_lease(self, store: StoreUnderTest) -> None:
        queue = store.queue()
        queue.put("work", task_id="a")
        (claim,) = queue.claim(lease_seconds=60)
        store.clock.advance(-40)
        extended = queue.extend(claim, lease_seconds=60)

        assert extended.lease_until == claim.lease_until == known(queue, "a").lease_until

    def test_an_old_claim_does_not_shorten_what_another_thread_extended(self, store: StoreUnderTest) -> None:
        queue = store.queue()
        queue.put("work", task_id="a")
        (claim,) = queue.claim(lease_seconds=10)
        longer = queue.extend(claim, lease_seconds=100)

        assert (
            queue.extend(claim, lease_seconds=20).lease_until
            == longer.lease_until
            == known(queue, "a").lease_until
        )
        assert queue.extend(claim, lease_seconds=200).lease_until == store.clock.now + 200

    def test_an_old_claim_does_not_extend_what_somebody_else_holds(self, store: StoreUnderTest) -> None:
        queue = store.queue()
        queue.put("work", task_id="a")
        (claim,) = queue.claim(lease_seconds=10)
        store.clock.advance(10)
        queue.admin.recover()
        (other,) = queue.claim(lease_seconds=10)

        with pytest.raises(LeaseLost):
            queue.extend(claim, lease_seconds=100)
        assert known(queue, "a").lease_until == other.lease_until


@pytest.fixture(params=["sqlite", "postgres", "dynamodb_local"])
def shared_store(request: pytest.FixtureRequest) -> StoreUnderTest:
    """Return an empty store with a clock of its own, or one that its processes share."""
    if request.param == "dynamodb_local":
        return on_table("dynamodb_local", request.getfixturevalue("dynamodb_local"))
    engine = request.getfixturevalue(f"{request.param}_engine")
    return StoreUnderTest(request.param, lambda _shards: SqlStore(engine))


def ahead_by(seconds: float) -> Callable[[], float]:
    """Return a clock that runs, and is wrong."""
    return lambda: time.time() + seconds


def only_the_time(queue: Queue) -> None:
    """Read the time and nothing else."""
    core_of(queue).now()


class TestPassedClocks:
    """A queue uses a clock that its caller passes, and corrects nothing."""

    @pytest.mark.parametrize("seconds", [66.0, -66.0])
    def test_a_running_clock_that_differs_from_the_stores_is_used_as_it_is(
        self, shared_store: StoreUnderTest, seconds: float
    ) -> None:
        queue = shared_store.queue(clock=ahead_by(seconds))
        queue.put("work", task_id="a")
        assert known(queue, "a").created == pytest.approx(time.time() + seconds, abs=10)

    def test_a_clock_that_stands_still_is_used_as_it_is(self, shared_store: StoreUnderTest) -> None:
        queue = shared_store.queue()
        queue.put("work", task_id="a")
        assert known(queue, "a").created == shared_store.clock.now

    def test_queues_without_a_clock_share_the_stores_time(self, shared_store: StoreUnderTest) -> None:
        first, second = (Queue(shared_store.make_store(1), lease_seconds=60) for _ in range(2))
        first.put("work", task_id="a")
        (claim,) = first.claim()
        assert claim.lease_until == pytest.approx(time.time() + 60, abs=10)
        assert second.admin.recover() == 0
        assert second.claim() == []


class TestDate:
    """The time of DynamoDB comes from its answers."""

    @pytest.mark.parametrize("minutes", [2, -2])
    def test_a_machine_whose_clock_is_wrong_uses_the_servers_time(
        self, table_store: StoreUnderTest, dynamodb_local: DynamoDBClient, minutes: int
    ) -> None:
        client = client_at(dynamodb_local.meta.endpoint_url)

        def change(response_dict: dict[str, Any], **_event: Any) -> None:
            response_dict["headers"]["Date"] = formatdate(time.time() + 60 * minutes, usegmt=True)

        client.meta.events.register_first("response-received.dynamodb", change)
        queue = Queue.dynamodb(str(table_store.table), client)
        with counted(client) as calls:
            queue.put("work", task_id="a")
            queue.put("work")

        # The first put of the queue stores its options.
        assert calls.operations == ["GetItem", "PutItem", "PutItem", "PutItem"]
        assert known(queue, "a").created == pytest.approx(time.time() + 60 * minutes, abs=100)

    @pytest.mark.parametrize(("verb", "calls_for_the_time"), [(Queue.claim, 0), (only_the_time, 1)])
    def test_a_claim_makes_no_call_for_the_time(
        self,
        table_store: StoreUnderTest,
        dynamodb_local: DynamoDBClient,
        verb: Callable[[Queue], object],
        calls_for_the_time: int,
    ) -> None:
        client = client_at(dynamodb_local.meta.endpoint_url)
        read: list[str] = []

        def note(params: dict[str, Any], **_event: Any) -> None:
            read.append(json.loads(params["body"])["Key"][KEY]["S"])

        with hooked(client, BEFORE, note, "GetItem"):
            verb(Queue.dynamodb(str(table_store.table), client))

        assert read.count(NO_ITEM) == calls_for_the_time
