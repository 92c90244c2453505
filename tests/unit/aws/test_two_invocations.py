"""Two invocations at the same time in one process, as Lambda Managed Instances may run them."""

import io
import itertools
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pytest
from types_boto3_dynamodb import DynamoDBClient

from freshq.stores.dynamodb.items import LEASE_PREFIX
from tests.support.function_chain import Chain, chain_on, ring_event
from tests.support.functions import Context, load_event, load_function
from tests.support.patience import PATIENCE_SECONDS
from tests.unit.aws.test_function_logs import log as log  # noqa: PLC0414 - a fixture
from tests.unit.aws.test_function_metrics import emitted

CONCURRENCY: Final = 2
MEETINGS: Final[list[threading.Barrier]] = []
NUMBERS: Final[list[Any]] = []
RAN: Final[list[str]] = []


def run(task: Any) -> str:
    """In the first runs of all invocations, wait for each other."""
    (meeting,), (numbers,) = MEETINGS, NUMBERS
    if next(numbers) < meeting.parties:
        meeting.wait(PATIENCE_SECONDS)
    RAN.append(task.task_id)
    return str(task.task_id)


def canary(_task: Any) -> None:
    """Run a canary during the other invocations."""
    (meeting,) = MEETINGS
    meeting.wait(PATIENCE_SECONDS)


def lease_records(chain: Chain) -> list[Any]:
    found = chain.client.scan(TableName=chain.table)["Items"]
    return [item for item in found if item["taskId"]["S"].startswith(LEASE_PREFIX)]


def meet(number: int) -> None:
    MEETINGS[:], NUMBERS[:] = [threading.Barrier(number)], [itertools.count()]
    RAN.clear()


def at_once(function: str, *events: Any) -> list[tuple[Context, Any]]:
    """Invoke a function several times at the same time, in one environment."""
    handler = load_function(function).handler
    contexts = [Context(function_name=f"{function}-{number}") for number in range(len(events))]
    with ThreadPoolExecutor(len(events)) as threads:
        return list(zip(contexts, threads.map(handler, events, contexts), strict=True))


def lines_of(log: io.StringIO, context: Context) -> list[dict[str, Any]]:
    lines = map(json.loads, log.getvalue().splitlines())
    return [line for line in lines if line.get("function_request_id") == context.aws_request_id]


def total(lines: list[dict[str, Any]], metric: str) -> float:
    return sum(sum(line.get(metric, [])) for line in lines)


@pytest.mark.parametrize("passes", [2, 3])
def test_worker_passes(
    dynamodb_local: DynamoDBClient, log: io.StringIO, capsys: pytest.CaptureFixture[str], passes: int
) -> None:
    meet(passes * CONCURRENCY)
    with chain_on(dynamodb_local) as chain:
        chain.set("FRESHQ_RUNNER", f"{__name__}:run")
        chain.configure(worker_passes=passes, concurrency=CONCURRENCY, idle_exit_seconds=0.5)
        names = sorted(f"t{number}" for number in range(6 * passes))
        chain.queue.put_many([{"payload": 1, "task_id": name} for name in names])
        capsys.readouterr()
        rings = [ring_event({"hop": hop, "chain": f"chain-{hop}"}) for hop in range(passes)]
        answers = at_once("process_tasks", *rings)
        # On a busy machine, a claimed task that waits too long for a thread goes back, and is claimed again.
        assert sum(answer["claimed"] - answer["given_back"] for _context, answer in answers) == len(names)
        assert all(answer["claimed"] >= CONCURRENCY for _context, answer in answers)
        assert sorted(RAN) == names
        assert chain.queue.stats().success == len(names)
        # A copy of their claim may arrive late, so the sweep, not the pass, deletes a record that names them.
        returned = any(answer["given_back"] for _context, answer in answers)
        assert chain.queue.stats(approximate=True).taken == 0 or returned
        chain.ahead.seconds += 10_000
        chain.sweep()
        assert lease_records(chain) == []
        assert chain.queue.stats(approximate=True).taken == 0
    for hop, (context, answer) in enumerate(answers):
        lines = lines_of(log, context)
        assert {(line["hop"], line["chain"], line["function_name"]) for line in lines} == {
            (hop, f"chain-{hop}", context.function_name)
        } | ({(None,) * 3} if not lines else set())
        said = [line["message"] for line in lines]
        assert (said.count("task claimed"), said.count("task settled")) == (answer["claimed"],) * 2
        assert said.count("pass ended") == 1
        claimed, settled = (
            sorted(line["task_id"] for line in lines if line["message"] == message)
            for message in ("task claimed", "task settled")
        )
        assert claimed == settled
    written = emitted(capsys.readouterr().out)
    claimed_for_good = total(written, "TasksClaimed") - total(written, "TasksGivenBack")
    assert claimed_for_good == total(written, "TasksSucceeded") == len(names)
    assert total(written, "Passes") == passes
    assert {line["queue"] for line in written} == {"default"}


def test_a_canary_beside_a_worker_pass_has_a_queue_and_metrics_of_its_own(
    dynamodb_local: DynamoDBClient, capsys: pytest.CaptureFixture[str]
) -> None:
    meet(2)
    with chain_on(dynamodb_local) as chain:
        chain.set("FRESHQ_RUNNER", f"{__name__}:run")
        chain.configure(worker_passes=2)
        chain.queue.put("work", task_id="mine")
        task = {"task_id": "canary-1", "kind": "canary", "payload": None}
        chain.invoke("create_tasks", {"canary": "canary-1", "event": {"tasks": [task]}})
        capsys.readouterr()
        event = load_event("process_tasks-doorbell")
        (_one, of_canary), (_two, of_pass) = at_once(
            "process_tasks", {"canary": "canary-1", "event": event}, event
        )
        assert (of_canary["succeeded"], of_pass["succeeded"]) == (1, 1)
        assert RAN == ["mine"]
        found = chain.queue.get("mine")
        assert found is not None
        assert found.result == "mine"
    written = emitted(capsys.readouterr().out)
    for queue in ("default", "canary"):
        of_queue = [line for line in written if line["queue"] == queue]
        assert total(of_queue, "TasksSucceeded") == total(of_queue, "Passes") == 1


def test_the_other_functions(dynamodb_local: DynamoDBClient, capsys: pytest.CaptureFixture[str]) -> None:
    with chain_on(dynamodb_local) as chain:
        events = [{"tasks": [{"payload": 1, "task_id": f"{part}{n}"} for n in range(60)]} for part in "abcd"]
        answers = at_once("create_tasks", *events)
        assert [answer["created"] for _context, answer in answers] == [60] * 4
        assert chain.queue.stats().pending == 240
        answers = at_once("sweep", {}, {}, {})
        assert [answer["stats"]["pending"] for _context, answer in answers] == [240] * 3
        answers = at_once("trigger", *[chain.inserted(f"a{number}") for number in range(3)])
        assert [answer["rang"] for _context, answer in answers] == [True] * 3
        assert len(chain.rings()) == 6
    written = emitted(capsys.readouterr().out)
    assert (total(written, "TasksCreated"), total(written, "Rings")) == (240, 3)
