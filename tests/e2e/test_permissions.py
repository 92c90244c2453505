"""The emulator enforces the policies: without an action, what needs it fails, and says so.

It does not compare the keys of items with a policy, so statements with the same action cannot be told apart;
tests/unit/aws/test_permissions.py does that, on the calls that the functions make.
"""

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import pytest

from tests.e2e.conftest import Deployment
from tests.support.functions import load_event
from tests.support.http_events import event_of
from tests.support.readings import within_seconds

pytestmark = pytest.mark.timeout(600)


@contextmanager
def without(application: Deployment, function: str, action: str) -> Iterator[None]:
    """Take an action from the role of a function, for a while."""
    stack = application.client("cloudformation").describe_stack_resources(StackName=application.stack)
    names = {entry["LogicalResourceId"]: entry["PhysicalResourceId"] for entry in stack["StackResources"]}
    iam, role = application.client("iam"), names[f"{function}Role"]
    policies = iam.list_role_policies(RoleName=role)["PolicyNames"]
    documents = {
        name: iam.get_role_policy(RoleName=role, PolicyName=name)["PolicyDocument"] for name in policies
    }
    try:
        for name, document in documents.items():
            rest = [left for each in document["Statement"] if (left := narrowed(each, action))]
            put_policy(iam, role, name, document | {"Statement": rest})
        yield
    finally:
        for name, document in documents.items():
            put_policy(iam, role, name, document)


def narrowed(statement: dict[str, Any], action: str) -> dict[str, Any] | None:
    """Return a statement without an action; None if nothing is left."""
    actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
    left = [each for each in actions if each != action]
    return {**statement, "Action": left} if left else None


def put_policy(iam: Any, role: str, name: str, document: dict[str, Any]) -> None:
    iam.put_role_policy(RoleName=role, PolicyName=name, PolicyDocument=json.dumps(document))


def is_denied(application: Deployment, function: str, action: str, event: Any) -> bool:
    """Invoke a function; return whether its error or its log names an action that is denied."""
    client = application.client("lambda")
    name = application.outputs[f"{function}FunctionName"]
    try:
        response = client.invoke(FunctionName=name, Payload=json.dumps(event))
    except client.exceptions.TooManyRequestsException:
        return False  # of the invocations that the stream made
    error = response["Payload"].read().decode() if response.get("FunctionError") else ""
    return f"not authorized to perform: {action} " in error + json.dumps(application.log(function))


PUT: Final = {"tasks": [{"payload": 1, "delay_seconds": 600}]}


def test_a_call_that_a_role_does_not_allow_is_denied(left_alone: Deployment) -> None:
    assert not is_denied(left_alone, "CreateTasks", "dynamodb:PutItem", PUT)
    with without(left_alone, "CreateTasks", "dynamodb:PutItem"):
        assert is_denied(left_alone, "CreateTasks", "dynamodb:PutItem", PUT)
    left_alone.invoke("CreateTasks", PUT)


REQUEST: Final = event_of("POST", "/v1/tasks", {"payload": 1})
RING: Final = load_event("process_tasks-doorbell")
TAIL_CALL: Final = load_event("trigger-tail_call")
# An action, and an event for which the function needs it. Without sns:Publish nothing fails here: the topics
# of the emulator have SNS's default policy, which lets every role of the account publish.
NEEDED: Final = [
    ("CreateTasks", "dynamodb:PutItem", PUT),
    ("CreateTasks", "dynamodb:BatchGetItem", PUT),
    ("CreateTasks", "dynamodb:UpdateItem", PUT),
    ("CreateTasks", "dynamodb:Query", PUT),
    ("HttpApi", "dynamodb:PutItem", REQUEST),
    ("HttpApi", "dynamodb:UpdateItem", REQUEST),
    ("HttpApi", "dynamodb:Query", load_event("http_api-stats")),
    ("HttpApi", "dynamodb:GetItem", load_event("http_api-get")),
    ("Trigger", "ssm:GetParameter", TAIL_CALL),
    ("Trigger", "dynamodb:BatchGetItem", load_event("trigger-insert")),
    ("ProcessTasks", "ssm:GetParameter", RING),
    ("ProcessTasks", "dynamodb:PutItem", RING),
    ("ProcessTasks", "dynamodb:DeleteItem", RING),
    ("ProcessTasks", "dynamodb:Query", RING),
    ("ProcessTasks", "dynamodb:UpdateItem", RING),
    ("Sweep", "ssm:GetParameter", {}),
    ("Sweep", "dynamodb:Query", {}),
    ("Sweep", "dynamodb:UpdateItem", {}),
]


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_without_an_action_something_named_fails(deployed_alone: Callable[..., Deployment]) -> None:
    application = deployed_alone(
        HttpApi="on", pass_seconds=1, settle_seconds=2, concurrency=1, demo_task_seconds=0.4
    )

    def fails(function: str, action: str, event: Any) -> bool:
        # A process does not repeat reads, so each try has its own group.
        group = uuid.uuid4().hex
        if function == "CreateTasks":
            event = {"tasks": [{"payload": 1, "group": group}]}
        elif event is REQUEST:
            event = event_of("POST", "/v1/tasks", {"payload": 1, "group": group})
        elif function == "Sweep":  # no ring of the stream, so that no pass is quicker
            application.queue.put("due", delay_seconds=0.01, group=group)
        else:
            application.queue.put_many([{"payload": number} for number in range(6)])
        return is_denied(application, function, action, event)

    silent = []
    for function, action, event in NEEDED:
        with without(application, function, action):
            # A pass that is under way, or that died of the action before, delays the next one.
            if not within_seconds(45, partial(fails, function, action, event)):
                silent.append(f"{function} without {action}")
    assert ", ".join(silent) == ""
