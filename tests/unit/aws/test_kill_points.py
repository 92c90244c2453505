"""Every point of a task's life at which a process may be killed: docs/contributing/kill-points.md.

At each, a function is killed. Then the mechanism that the page names brings the task back, within the time
that it names.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest
from local.faults import AFTER, BEFORE
from types_boto3_dynamodb import DynamoDBClient

from freshq import TaskStatus
from freshq.stores.dynamodb.passes import SLOT_LEASE_SECONDS
from tests.support.function_chain import LEASE_SECONDS, RUNS, Chain, Seam, chain_on, ring_event
from tests.support.functions import PROJECT, Context, load_event
from tests.support.http_events import event_of
from tests.support.readings import known

PAGE: Final = PROJECT / "docs" / "contributing" / "kill-points.md"
TASK: Final = "task-a"
PUT: Final = {"tasks": [{"payload": 1, "task_id": TASK}]}
REQUEST: Final = event_of("POST", "/v1/tasks", {"payload": 1, "task_id": TASK})

# Dead invocations counted nothing.
pytestmark = pytest.mark.filterwarnings("ignore:No application metrics to publish")

Act = Callable[[Chain], None]


@dataclass(frozen=True)
class KillPoint:
    """A row of the page.

    Attributes:
        kill: Leads a task to the point, and kills there.
        remedy: The mechanism that brings the task back.
        runs: How often the task runs in all.
        seen: Status of the task after the kill; None if it is not there.
    """

    kill: Act
    remedy: Act
    runs: int
    seen: TaskStatus | None


def in_pass(moment: str, operation: str, writes: str = "", number: int = 1) -> Act:
    """Return how to kill the pass that does the task."""

    def kill(chain: Chain) -> None:
        chain.queue.put("work", task_id=TASK)
        seam = Seam(moment, operation, writes, number)
        chain.kill("process_tasks", ring_event({}), seam, Context(aws_request_id="request"))

    return kill


def in_trigger(moment: str) -> Act:
    """Return how to kill the trigger at its ring."""

    def kill(chain: Chain) -> None:
        chain.queue.put("work", task_id=TASK)
        chain.kill("trigger", chain.inserted(TASK), Seam(moment, "Publish"))

    return kill


def in_create_tasks(moment: str) -> Act:
    """Return how to kill the producer at its put."""
    context = Context(aws_request_id="request")
    return lambda chain: chain.kill("create_tasks", PUT, Seam(moment, "PutItem", TASK), context)


def in_http_api(moment: str) -> Act:
    """Return how to kill the HTTP interface at its put."""
    return lambda chain: chain.kill("http_api", REQUEST, Seam(moment, "PutItem", TASK))


def in_sweep(moment: str, operation: str) -> Act:
    """Return how to kill the sweep, for a task whose worker died."""

    def kill(chain: Chain) -> None:
        chain.queue.put("work", task_id=TASK)
        chain.queue.claim()
        chain.ahead.seconds += LEASE_SECONDS + 1
        chain.kill("sweep", {}, Seam(moment, operation))

    return kill


def lose_the_ring(chain: Chain) -> None:
    chain.queue.put("work", task_id=TASK)
    chain.invoke("trigger", chain.inserted(TASK))
    assert len(chain.rings()) == 1


def put_again(chain: Chain) -> None:
    """Repeat the invocation as Lambda does, under its request id; the stream has the task once."""
    chain.invoke("create_tasks", PUT, Context(aws_request_id="request"))
    batch_again(chain)


def request_again(chain: Chain) -> None:
    """Repeat the request, as its caller does, who got no answer."""
    assert chain.invoke("http_api", REQUEST)["statusCode"] in (200, 201)
    batch_again(chain)


def batch_again(chain: Chain) -> None:
    """Repeat the batch, as the event source does."""
    chain.invoke("trigger", chain.inserted(TASK))
    chain.ring_on()


def pass_again(chain: Chain) -> None:
    """Repeat the invocation, as Lambda does a minute later."""
    chain.invoke("process_tasks", ring_event({}), Context(aws_request_id="request"))
    chain.ring_on()


def sweep(chain: Chain) -> None:
    assert chain.sweep()["rang"]


def sweep_after(seconds: float) -> Act:
    """Return how the sweep brings the task back, which it cannot do before."""

    def remedy(chain: Chain) -> None:
        chain.ahead.seconds += seconds - 2
        assert not chain.sweep()["rang"]
        chain.ahead.seconds += 2.1
        assert chain.sweep()["rang"]

    return remedy


def nothing(chain: Chain) -> None:
    assert chain.sweep()["skipped"] == "no claimable tasks"


PENDING: Final = TaskStatus.PENDING
POINTS: Final[dict[str, KillPoint]] = {
    "CreateTasks, before it writes the task": KillPoint(in_create_tasks(BEFORE), put_again, 1, None),
    "CreateTasks, after it wrote the task": KillPoint(in_create_tasks(AFTER), put_again, 1, PENDING),
    "HttpApi, before it writes the task": KillPoint(in_http_api(BEFORE), request_again, 1, None),
    "HttpApi, after it wrote the task": KillPoint(in_http_api(AFTER), request_again, 1, PENDING),
    "Trigger, before its ring": KillPoint(in_trigger(BEFORE), batch_again, 1, PENDING),
    "Trigger, after its ring": KillPoint(in_trigger(AFTER), batch_again, 1, PENDING),
    "the ring is lost, or its retries are used up": KillPoint(lose_the_ring, sweep, 1, PENDING),
    "ProcessTasks, before it has a pass slot": KillPoint(
        in_pass(AFTER, "GetParameter"), pass_again, 1, PENDING
    ),
    "ProcessTasks, in its slot, before it claims": KillPoint(
        in_pass(AFTER, "PutItem", "freshq#pass"), pass_again, 1, PENDING
    ),
    "the same, and Lambda does not repeat it": KillPoint(
        in_pass(AFTER, "PutItem", "freshq#pass"), sweep_after(SLOT_LEASE_SECONDS), 1, PENDING
    ),
    "ProcessTasks, after its lease record, before it takes the task": KillPoint(
        in_pass(AFTER, "PutItem", "freshq#lease"), pass_again, 1, PENDING
    ),
    "ProcessTasks, after it took the task, before the run": KillPoint(
        in_pass(AFTER, "UpdateItem", TASK), sweep_after(LEASE_SECONDS), 1, TaskStatus.TAKEN
    ),
    "ProcessTasks, in the run or before it settles the task": KillPoint(
        in_pass(BEFORE, "UpdateItem", TASK, number=2), sweep_after(LEASE_SECONDS), 2, TaskStatus.TAKEN
    ),
    "ProcessTasks, after it settled the task": KillPoint(
        in_pass(AFTER, "UpdateItem", TASK, number=2), nothing, 1, TaskStatus.SUCCESS
    ),
    "Sweep, before it returns the task": KillPoint(
        in_sweep(BEFORE, "UpdateItem"), sweep, 1, TaskStatus.TAKEN
    ),
    "Sweep, before its ring": KillPoint(in_sweep(BEFORE, "Publish"), sweep, 1, PENDING),
}
# Points after the end of the task, or about other tasks.
OTHER_POINTS: Final = {
    "ProcessTasks, before its tail call",
    "ProcessTasks, after its tail call",
    "Archive, before it delivers",
    "Archive, after it delivered",
}


@pytest.fixture
def chain(dynamodb_local: DynamoDBClient) -> Iterator[Chain]:
    with chain_on(dynamodb_local) as chain:
        yield chain


@pytest.mark.parametrize("point", POINTS.values(), ids=POINTS)
def test_a_task_survives(chain: Chain, point: KillPoint) -> None:
    point.kill(chain)
    seen = chain.queue.get(TASK)
    assert (seen.status if seen else None) == point.seen
    point.remedy(chain)
    task = known(chain.queue, TASK)
    assert (task.status, RUNS[TASK]) == (TaskStatus.SUCCESS, point.runs)
    assert chain.queue.stats().success == 1


@pytest.mark.parametrize(
    ("seam", "remedy"),
    [
        pytest.param(Seam(BEFORE, "Publish"), sweep, id="ProcessTasks, before its tail call"),
        pytest.param(Seam(AFTER, "Publish"), Chain.ring_on, id="ProcessTasks, after its tail call"),
    ],
)
def test_the_work_that_a_pass_leaves_behind_survives(
    chain: Chain, seam: Seam, remedy: Callable[[Chain], Any]
) -> None:
    chain.set("FRESHQ_RUNNER", "tests.support.function_chain:outlast_the_pass")
    chain.queue.put_many([{"payload": 1, "task_id": f"task-{number}"} for number in range(3)])
    chain.kill("process_tasks", ring_event({}), seam)
    assert chain.queue.stats().success == 1
    remedy(chain)
    assert chain.queue.stats().success == 3
    assert set(RUNS.values()) == {1}


@pytest.mark.parametrize(
    ("moment", "delivered_before"),
    [
        pytest.param(BEFORE, 0, id="Archive, before it delivers"),
        pytest.param(AFTER, 4, id="Archive, after it delivered"),
    ],
)
def test_every_change_is_archived(chain: Chain, moment: str, delivered_before: int) -> None:
    def delivered() -> list[bytes]:
        return [line for data in chain.stub.delivered for line in data.splitlines()]

    chain.kill("archive", load_event("archive-life"), Seam(moment, "PutRecordBatch"))
    assert len(delivered()) == delivered_before
    chain.invoke("archive", load_event("archive-life"))
    assert len(delivered()) == delivered_before + 4
    assert len(set(delivered())) == 4  # the pipeline counts equal events once


def test_the_page_has_the_points_that_are_tested() -> None:
    rows = re.findall(r"^\| ([^|]+?) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    assert set(rows) - {"killed here", "---"} == POINTS.keys() | OTHER_POINTS
