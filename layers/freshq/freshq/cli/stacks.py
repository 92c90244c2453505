"""Finds the queue of a deployed CloudFormation stack."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from freshq.errors import RefusedError, Unreachable, needs

if TYPE_CHECKING:
    from freshq.queue.base import BaseQueue


def stack_queue(stack: str, name: str | None = None) -> BaseQueue:
    """Return the queue of a deployed stack, with the options it was deployed with.

    Args:
        stack: Name of the CloudFormation stack.
        name: Name of the queue; None for the stack's own.

    Raises:
        RefusedError: If there is no such stack, or it has no queue.
        Unreachable: If CloudFormation did not answer.
        MissingExtra: If the extra `aws` is not installed.
    """
    with needs("aws"):
        from freshq.aws.settings import QueueSettings  # noqa: PLC0415 - an extra
    description = _description(stack)
    outputs = {entry["OutputKey"]: entry["OutputValue"] for entry in description.get("Outputs", [])}
    if "QueueTableName" not in outputs:
        msg = f"stack {stack!r}: has no output QueueTableName ({description['StackStatus']})"
        raise RefusedError(msg)
    parameters = {
        _snake_case(entry["ParameterKey"]): entry["ParameterValue"]
        for entry in description.get("Parameters", [])
    }
    options = {key: value for key, value in parameters.items() if key in QueueSettings.model_fields}
    options["table"] = outputs["QueueTableName"]
    options["queue_name"] = name or outputs.get("QueueName") or parameters.get("queue_name", "default")
    return QueueSettings(**options).queue()


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def cloudformation() -> Any:  # noqa: ANN401 - boto3 and its types do not agree on the name of this client
    """Return a client from the environment."""
    with needs("aws"):
        import boto3  # noqa: PLC0415 - an extra

    return boto3.client("cloudformation")


def _description(stack: str) -> dict[str, Any]:
    with needs("aws"):
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - an extra
        from botocore.parsers import ResponseParserError  # noqa: PLC0415 - an extra
    try:
        found = cloudformation().describe_stacks(StackName=stack)["Stacks"]
    except ClientError as error:
        problem = error.response["Error"]
        msg = f"stack {stack!r}: {problem.get('Message', problem['Code'])}"
        raise (RefusedError if problem["Code"] == "ValidationError" else Unreachable)(msg) from error
    except BotoCoreError as error:
        msg = f"stack {stack!r}: CloudFormation did not answer ({error}); check network, region, credentials"
        raise Unreachable(msg) from error
    except (ResponseParserError, KeyError) as error:
        msg = f"stack {stack!r}: the answer is not CloudFormation's; check the endpoint (AWS_ENDPOINT_URL)"
        raise Unreachable(msg) from error
    return dict(found[0])
