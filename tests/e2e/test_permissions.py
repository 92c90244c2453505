"""The emulator enforces the policies: without an action, what needs it fails, and says so.

It does not compare the keys of items with a policy, so statements with the same action cannot be told apart;
tests/unit/aws/test_permissions.py does that, on the calls that the functions make.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest

from tests.e2e.conftest import Deployment

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
