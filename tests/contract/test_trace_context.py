"""A claimed task carries the trace context that it was put with, on every store."""

from collections.abc import Callable

import pytest
from benchmarks.capacity import Bench, metered
from benchmarks.figures import PAYLOAD
from types_boto3_dynamodb import DynamoDBClient

from freshq import Claim, Queue
from freshq.feeds import Relay
from freshq.model.task import MAX_TRACE_CONTEXT_BYTES, MAX_TRACESTATE_BYTES, joined
from tests.conftest import StoreUnderTest
from tests.support.attached import Shipments
from tests.support.readings import known
from tests.support.refusals import refused

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE_ID}-00f067aa0ba902b7-01"
CONTEXT = f"{PARENT} vendor=opaque value,other=1"
LONGEST = f"{PARENT} v={'x' * (MAX_TRACESTATE_BYTES - 2)}"


def test_the_context_of_the_put_is_that_of_the_claim(queue: Queue) -> None:
    queue.put(1, task_id="a", trace_context=CONTEXT)
    assert known(queue, "a").trace_context == CONTEXT
    (claim,) = queue.claim()
    assert claim.task.trace_context == CONTEXT
    assert claim.task.trace_id == TRACE_ID
    assert claim.task.trace_headers == {"traceparent": PARENT, "tracestate": "vendor=opaque value,other=1"}


def test_tasks_put_together_have_each_their_own(queue: Queue) -> None:
    queue.put_many([{"payload": 1, "trace_context": LONGEST}, {"payload": 2}, {"payload": 3}])
    claimed = {claim.task.payload: claim.task.trace_context for claim in queue.claim(3)}
    assert claimed == {1: LONGEST, 2: None, 3: None}
    assert len(LONGEST) == MAX_TRACE_CONTEXT_BYTES


def test_a_task_without_one_has_none(queue: Queue) -> None:
    queue.put(1)
    (claim,) = queue.claim()
    assert (claim.task.trace_context, claim.task.trace_id, claim.task.trace_headers) == (None, None, {})


def test_no_change_of_the_task_loses_it(store: StoreUnderTest) -> None:
    queue = store.queue(max_attempts=3)
    queue.put(1, task_id="a", trace_context=CONTEXT, delay_seconds=1)
    store.clock.advance(1)
    (claim,) = queue.claim()
    assert queue.retry(claim, delay_seconds=0).trace_context == CONTEXT
    (claim,) = queue.claim(lease_seconds=5)
    store.clock.advance(6)
    queue.admin.recover()
    (claim,) = queue.claim()
    queue.fail(claim, error="no")
    queue.redrive(["a"])
    queue.redrive(["a"], as_new=True)
    queue.reprioritize("a", priority=3)
    (claim,) = queue.claim()
    assert queue.complete(claim).trace_context == CONTEXT
    assert known(queue, "a").trace_context == CONTEXT


def test_an_update_brings_its_own(queue: Queue) -> None:
    queue.put(1, task_id="a", trace_context=CONTEXT)
    queue.put(1, task_id="a", trace_context=PARENT, on_conflict="update")  # the same work
    assert known(queue, "a").trace_context == CONTEXT
    queue.put(2, task_id="a", trace_context=PARENT, on_conflict="update")
    assert known(queue, "a").trace_context == PARENT


def test_a_relay_passes_it_on(queue: Queue) -> None:
    destination = Queue.memory()
    queue.put(1, task_id="a", trace_context=CONTEXT)
    assert Relay(queue, destination).move() == 1
    assert known(destination, "a").trace_context == CONTEXT


def test_records_carry_it_while_they_are_queued(shipments: Shipments) -> None:
    shipments.add("A")
    queue = shipments.queue()
    queue.put(task_id="A", trace_context=CONTEXT)
    assert shipments.own("A")["freshq_traceContext"] == {"S": CONTEXT}
    (claim,) = queue.claim()
    assert claim.task.trace_context == CONTEXT
    queue.complete(claim)
    queue.records.ready("A")
    assert "freshq_traceContext" not in shipments.own("A")
    queue.put(task_id="A")
    (claim,) = queue.claim()
    assert claim.task.trace_context is None
    shipments.assert_untouched("A")


@pytest.mark.usefixtures("read_once")
def test_it_costs_no_write_unit_of_a_task_of_usual_size(dynamodb_local: DynamoDBClient) -> None:
    """A put of two units, a claim of two besides its lease record, and a settlement of one."""

    def units(**options: str) -> list[float]:
        queue = Bench(dynamodb_local).queue()
        claims: list[Claim] = []
        steps: list[Callable[[], object]] = [
            lambda: queue.put(PAYLOAD, **options),  # type: ignore[arg-type]  # no other option is a text
            lambda: claims.extend(queue.claim()),
            lambda: queue.complete(claims[0]),
        ]
        written = []
        for step in steps:
            with metered(dynamodb_local) as meter:
                step()
            written.append(meter.write_units)
        return written

    without = units()
    assert (without[0], without[2]) == (2, 1)
    assert units(trace_context=PARENT) == without


def test_a_tracestate_that_is_too_long_or_no_ascii_is_refused(queue: Queue) -> None:
    for wrong in (f"{LONGEST}x", f"{PARENT} v=é", f"{PARENT} v=\n"):
        with refused("trace_context"):
            queue.put(1, trace_context=wrong)
    assert joined(PARENT, "x" * (MAX_TRACESTATE_BYTES + 1)) == PARENT
