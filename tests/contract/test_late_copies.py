"""A write may arrive twice, the copy long after later writes. No copy may strand a task, or take one back."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from freshq import Claim, Queue, Settlement, TaskStatus
from freshq.queue.filters import with_fresh_leases
from freshq.stores.dynamodb.leases import LATE_CLAIM_SECONDS
from freshq.stores.dynamodb.store import DynamoDBStore
from tests.conftest import StoreUnderTest
from tests.support.readings import known

LEASE_SECONDS = 60.0
WRITES = frozenset({"put_item", "update_item", "batch_execute_statement"})
Write = tuple[str, dict[str, Any]]


@dataclass(eq=False)
class Copies:
    """A client that keeps every write, so that a copy of it can be sent later."""

    client: Any
    sent: list[Write] = field(default_factory=list)
    before_update: Callable[[], object] = int

    def __getattr__(self, name: str) -> Any:
        call = getattr(self.client, name)

        def write(**arguments: Any) -> Any:
            self.sent.append((name, arguments))
            if name == "update_item":
                self.before_update()
            return call(**arguments)

        return write if name in WRITES else call

    def claims(self) -> list[Write]:
        """Return the claims that were sent."""
        return [
            write for write in self.sent if ":leaseToken" in write[1].get("ExpressionAttributeValues", ())
        ]

    def lease_records(self) -> list[Write]:
        """Return the versions of the lease record that were sent."""
        return [write for write in self.sent if "heldUntil" in write[1].get("Item", ())]

    def arrive(self, sent: list[Write]) -> None:
        """Send copies of writes."""
        assert sent
        for name, arguments in sent:
            try:
                getattr(self.client, name)(**arguments)
            except ClientError as error:
                if error.response["Error"]["Code"] != "ConditionalCheckFailedException":
                    raise


@pytest.fixture
def copies(table: StoreUnderTest) -> Copies:
    return Copies(table.client)


@pytest.fixture
def queue(table: StoreUnderTest, copies: Copies) -> Queue:
    client: Any = copies
    return Queue(
        DynamoDBStore(table.table or "", client),
        clock=table.clock,
        lease_seconds=LEASE_SECONDS,
        max_attempts=9,
    )


def claimed(queue: Queue) -> Claim:
    (claim,) = queue.claim()
    return claim


def recovered(queue: Queue, table: StoreUnderTest) -> int:
    """Return how many tasks come back once every lease has ended."""
    table.clock.advance(LEASE_SECONDS + 1)
    return queue.admin.recover()


RETURNS: dict[str, Callable[[Queue, Claim], object]] = {
    "release": lambda queue, claim: queue.release(claim),
    "retry": lambda queue, claim: queue.retry(claim, delay_seconds=0),
    "settle_many": lambda queue, claim: queue.settle_many([Settlement.release(claim)]),
}


@pytest.mark.parametrize("verb", RETURNS)
def test_a_copy_of_a_claim_does_not_take_the_task_that_its_lease_has_left(
    queue: Queue, copies: Copies, verb: str
) -> None:
    queue.put("work", task_id="a")
    claim = claimed(queue)
    RETURNS[verb](queue, claim)
    copies.arrive(copies.claims())
    assert claimed(queue).token != claim.token


def test_nor_after_the_sweep_ended_the_lease(queue: Queue, copies: Copies, table: StoreUnderTest) -> None:
    queue.put("work", task_id="a")
    claim = claimed(queue)
    assert recovered(queue, table) == 1
    copies.arrive(copies.claims())
    assert claimed(queue).token != claim.token


def test_a_copy_of_a_claim_does_not_take_a_later_task_of_the_same_id(
    queue: Queue, copies: Copies, table: StoreUnderTest
) -> None:
    queue.put("first", task_id="a")
    claim = claimed(queue)
    queue.complete(claim)
    table.clock.advance(1)
    queue.put("second", task_id="a", on_conflict="ignore")
    copies.arrive(copies.claims())
    assert claimed(queue).task.payload == "second"


def test_a_task_that_a_copy_of_an_older_claim_takes_comes_back_when_its_lease_ends(
    queue: Queue, copies: Copies, table: StoreUnderTest
) -> None:
    queue.put("work", task_id="a")
    queue.release(claimed(queue))
    older = copies.claims()
    queue.retry(claimed(queue), delay_seconds=1)
    # The next version of the lease record still names the task, although it is in no line.
    queue.put("other", task_id="b")
    queue.complete(claimed(queue))
    table.clock.advance(2)
    assert queue.admin.recover() == 1
    copies.arrive(older)
    assert queue.claim() == []
    assert recovered(queue, table) == 1
    assert claimed(queue).task.task_id == "a"


def other(table: StoreUnderTest) -> Queue:
    return Queue(
        DynamoDBStore(table.table or "", table.client),
        clock=table.clock,
        lease_seconds=LEASE_SECONDS,
        max_attempts=9,
    )


def rewrite_its_lease_record(queue: Queue) -> None:
    """Claim among enough newer tasks that the record names no older task ahead."""
    queue.put_many([{"payload": number} for number in range(20)])
    queue.complete(claimed(queue))


def test_a_copy_of_a_claim_arrives_when_nobody_remembers_the_task(
    queue: Queue, copies: Copies, table: StoreUnderTest
) -> None:
    """Two claims of one task have ended, and both processes wrote their lease records anew since then."""
    second = other(table)
    queue.put("work", task_id="a")
    queue.release(claimed(queue))
    older = copies.claims()
    second.release(claimed(second))
    table.clock.advance(LEASE_SECONDS + 1)
    rewrite_its_lease_record(queue)
    rewrite_its_lease_record(second)
    copies.arrive(older)
    assert known(queue, "a").status is TaskStatus.TAKEN
    table.clock.advance(LATE_CLAIM_SECONDS)
    assert queue.admin.recover() == 1
    assert known(queue, "a").status is TaskStatus.PENDING


def test_a_copy_of_a_refused_claim_arrives_when_nobody_remembers_the_task(
    queue: Queue, copies: Copies, table: StoreUnderTest
) -> None:
    """The first copy of a claim is slow; the second one is refused, because another process was faster."""
    second = other(table)
    queue.put("work", task_id="a")
    held: list[Claim] = []

    def lose_the_first_copy() -> None:
        if not held:
            held.extend(second.claim())
            raise ReadTimeoutError(endpoint_url="table")

    copies.before_update = lose_the_first_copy
    assert queue.claim() == []
    older = copies.claims()[:1]
    second.release(held[0])
    table.clock.advance(1)
    rewrite_its_lease_record(queue)
    table.clock.advance(LEASE_SECONDS)
    rewrite_its_lease_record(second)
    copies.arrive(older)
    assert known(queue, "a").status is TaskStatus.TAKEN
    table.clock.advance(LATE_CLAIM_SECONDS)
    assert queue.admin.recover() == 1
    assert known(queue, "a").status is TaskStatus.PENDING


def test_a_copy_of_an_older_lease_record_does_not_replace_a_newer_one(
    queue: Queue, copies: Copies, table: StoreUnderTest
) -> None:
    for number in range(4):
        queue.put(number)
        claimed(queue)
        table.clock.advance(1)
    copies.arrive(copies.lease_records()[:1])
    assert recovered(queue, table) == 4


def test_a_slow_claim_does_not_shorten_a_lease_that_was_extended(queue: Queue, table: StoreUnderTest) -> None:
    queue.put("work", task_id="a")
    claim = claimed(queue)
    extended = queue.extend(claim, lease_seconds=10 * LEASE_SECONDS)
    table.clock.advance(LEASE_SECONDS / 2)
    (fresh,), _ = with_fresh_leases(queue._core, [claim], LEASE_SECONDS, began=table.clock.now)
    assert known(queue, "a").lease_until == fresh.lease_until == extended.lease_until


def test_after_a_stalled_claim_its_task_comes_back_within_a_lease(
    queue: Queue, copies: Copies, table: StoreUnderTest
) -> None:
    """The sweep looks at the lease record while the claim is under way, and finds nothing held."""
    queue.put("work", task_id="a")
    sweeper = table.queue(lease_seconds=LEASE_SECONDS)
    stalls = iter([LEASE_SECONDS * 1.25])

    def stall() -> None:
        if seconds := next(stalls, 0):
            table.clock.advance(seconds)
            assert sweeper.admin.recover() == 0

    copies.before_update = stall
    (claim,) = queue.claim()
    assert claim.lease_until == pytest.approx(table.clock.now + LEASE_SECONDS)
    table.clock.advance(LEASE_SECONDS + 1)
    assert sweeper.admin.recover() == 1
