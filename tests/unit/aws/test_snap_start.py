"""Environments restored from one snapshot, simulated by forks of an initialized function."""

import json
import os
import uuid
from typing import Any, Final

import pytest
from types_boto3_dynamodb import DynamoDBClient

from freshq import Queue
from tests.support.function_chain import ENVIRONMENT
from tests.support.functions import PROJECT
from tests.support.programs import python

# In each fork memory, connections and random numbers go on from those of the snapshot. Prints a line a fork.
PROGRAM: Final = """
import json, os, random, sys
import app
from freshq.aws.wakeup import Ring
from freshq.queue.core import core_of

connect = getattr(app, sys.argv[1])
snapshot, state = connect(), random.getstate()
for _environment in range(2):
    child = os.fork()
    if child == 0:
        random.setstate(state)  # a fork seeds it, a restore does not
        if sys.argv[2] == "restored":
            from awslambdaric.lambda_runtime_hooks_runner import run_after_restore
            run_after_restore()
        queue = connect()[0] if isinstance(connect(), tuple) else connect().queue
        (held,) = queue.claim()
        core = core_of(queue)
        print(json.dumps({
            "task": held.task.task_id,
            "token": held.token,
            "worker": core.known_config.worker_name,
            "jitter": core.uniform(),
            "random": random.random(),
            "chain": Ring().chain,
            "is_new": connect() is not snapshot,
        }), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""
CONNECTIONS: Final = {
    "create_tasks": "_connections",
    "sweep": "_connections",
    "process_tasks": "_connections",
}
UNIQUE: Final = {"task", "token", "worker", "jitter", "random", "chain"}


def environments(client: DynamoDBClient, function: str, hooks: str) -> tuple[list[dict[str, Any]], int]:
    """Return what two environments of a function have, and the number of lease records that they wrote."""
    table = f"snapshot-{uuid.uuid4().hex}"
    with_tasks = Queue.dynamodb(table, client)
    with_tasks.create_table()
    with_tasks.put_many([{"payload": number} for number in range(2)])
    with_tasks.close()
    settings = {
        **os.environ,
        **ENVIRONMENT,
        "AWS_LAMBDA_FUNCTION_NAME": function,
        "AWS_LAMBDA_INITIALIZATION_TYPE": "snap-start",
        # The client's tables: DynamoDB Local keeps them by access key and region.
        "AWS_ACCESS_KEY_ID": "local",
        "AWS_SECRET_ACCESS_KEY": "local",
        "AWS_REGION": client.meta.region_name,
        "AWS_ENDPOINT_URL_DYNAMODB": client.meta.endpoint_url,
        "FRESHQ_TABLE": table,
        "PYTHONPATH": os.pathsep.join([str(PROJECT / "functions" / function), str(PROJECT)]),
    }
    done = python("-c", PROGRAM, CONNECTIONS[function], hooks, env=settings, check=False)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(found) == 2, done.stdout
    records = client.scan(TableName=table)["Items"]
    return found, sum(record["taskId"]["S"].startswith("freshq#lease#") for record in records)


@pytest.mark.parametrize("function", CONNECTIONS)
def test_restored_environments_share_no_token_no_name_and_no_random_number(
    dynamodb_local: DynamoDBClient, function: str
) -> None:
    (one, other), lease_records = environments(dynamodb_local, function, "restored")
    assert {name for name in one if one[name] != other[name]} == UNIQUE
    assert one["is_new"], "connections of the snapshot are dead"
    assert lease_records == 2


def test_without_the_hook_they_would_share_names_and_random_numbers(dynamodb_local: DynamoDBClient) -> None:
    """So the forks are like restored environments."""
    (one, other), _lease_records = environments(dynamodb_local, "process_tasks", "as they are")
    assert {name for name in one if one[name] == other[name]} == {"worker", "jitter", "random", "is_new"}
    assert not one["is_new"]


@pytest.mark.parametrize(
    "function", ["archive", "create_tasks", "http_api", "process_tasks", "sweep", "trigger"]
)
def test_every_function_makes_its_connections_anew(function: str) -> None:
    program = "import app; from snapshot_restore_py import get_after_restore; print(get_after_restore())"
    settings = {
        **os.environ,
        **ENVIRONMENT,
        "AWS_LAMBDA_FUNCTION_NAME": function,
        "AWS_LAMBDA_INITIALIZATION_TYPE": "snap-start",
        "FRESHQ_TABLE": "QueueTable",
        "PYTHONPATH": os.pathsep.join([str(PROJECT / "functions" / function), str(PROJECT)]),
    }
    done = python("-c", program, env=settings)
    assert "function renew" in done.stdout
