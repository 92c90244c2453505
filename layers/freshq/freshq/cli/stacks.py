"""Deployed stacks: their queues, and what contradicts in their parameters."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self, cast

from freshq.errors import RefusedError, Unreachable, needs, quoted
from freshq.model.pass_options import PassOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from freshq.queue.base import BaseQueue

# The output that names the bucket of the archive, and the prefix of events in it, as in the template.
BUCKET: Final = "ArchiveBucketName"
EVENTS: Final = "events/"


@dataclass(frozen=True)
class Stack:
    """A deployed stack.

    Attributes:
        name: Its name.
        status: Its status in CloudFormation, such as `CREATE_COMPLETE`.
        outputs: Its outputs.
        parameters: Its parameters, under the names of options, such as `max_age_seconds`.
    """

    name: str
    status: str
    outputs: dict[str, str]
    parameters: dict[str, str]

    @classmethod
    def describe(cls, name: str) -> Self:
        """Return a stack.

        Raises:
            RefusedError: If there is no such stack.
            Unreachable: If CloudFormation did not answer.
            MissingExtra: If the extra `aws` is not installed.
        """
        found = _description(name)
        given = {each["ParameterKey"]: each.get("ParameterValue", "") for each in found.get("Parameters", [])}
        outputs = {each["OutputKey"]: each.get("OutputValue", "") for each in found.get("Outputs", [])}
        parameters = {_snake_case(parameter): value for parameter, value in given.items()}
        return cls(name, found.get("StackStatus", "of an unknown status"), outputs, parameters)

    @property
    def queue_name(self) -> str:
        """The name of its own queue."""
        return self.outputs.get("QueueName") or self.parameters.get("queue_name", "default")

    def queue(self, name: str | None = None) -> BaseQueue:
        """Return a queue of the stack.

        Args:
            name: Name of the queue; None for the stack's own.

        Raises:
            RefusedError: If the stack has no queue.
        """
        with needs("aws"):
            from freshq.aws.environment import QueueSettings
        if "QueueTableName" not in self.outputs:
            msg = f"stack {self.name!r}: has no output QueueTableName ({self.status})"
            raise RefusedError(msg)
        return QueueSettings(
            table=self.outputs["QueueTableName"],
            attach_key=self.parameters.get("attach_key", ""),
            queue_name=name or self.queue_name,
        ).queue()


def contradictions(parameters: Mapping[str, str], passes: PassOptions) -> Iterator[str]:
    """Yield why a deployed stack cannot work, as far as its template cannot compare parameters.

    Args:
        parameters: The parameters of the stack, under the names of options.
        passes: The stored options of its worker passes.
    """
    yield from settle_problem(parameters, passes.settle_seconds)
    if 0 < float(parameters.get("reserved_concurrency") or 0) < passes.worker_passes:
        yield f"ReservedConcurrency: must be above worker_passes, which are {passes.worker_passes}"
    yield from environment_problem(parameters)
    if bool(parameters.get("vpc_subnet_ids")) != bool(parameters.get("vpc_security_group_ids")):
        yield "VpcSubnetIds, VpcSecurityGroupIds: give both, or neither"
    table, stream = parameters.get("attach_table"), parameters.get("attach_stream_arn")
    if table and f":table/{table}/" not in (stream or ""):
        yield f"AttachStreamArn: is not the stream of {quoted(table)}; freshq table attach --stream prints it"
    if parameters.get("snap_start") == "on" and parameters.get("runtime") == "python3.11":
        yield "SnapStart: needs Runtime=python3.12 or later"


def settle_problem(parameters: Mapping[str, str], settle_seconds: float) -> Iterator[str]:
    """Yield why the passes of a stack have no time to claim tasks, if they have none."""
    timeout_seconds = float(parameters.get("timeout_seconds") or 0)
    if 0 < timeout_seconds <= settle_seconds:
        yield (
            f"settle_seconds: {settle_seconds:g} leave no time to claim tasks, because TimeoutSeconds is "
            f"{timeout_seconds:g}; lower it with freshq configure --stack, or raise TimeoutSeconds"
        )


def environment_problem(parameters: Mapping[str, str]) -> Iterator[str]:
    """Yield why a worker refuses the variables of its runner, if it does."""
    with needs("aws"):
        from freshq.aws.environment import check_runner_environment
    try:
        check_runner_environment(parsed_environment(parameters.get("runner_environment") or "{}"))
    except ValueError as error:
        yield f"RunnerEnvironment: {error}"


def parsed_environment(text: str) -> dict[str, str]:
    """Return the variables of the parameter RunnerEnvironment.

    Raises:
        ValueError: If it is not a JSON object of strings.
    """
    try:
        found = json.loads(text)
    except ValueError as error:
        msg = f"is not JSON ({error})"
        raise ValueError(msg) from error
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError("must be a JSON object of strings")
    return found


def _snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def client_of(service: str) -> Any:
    """Return a client of a service of AWS, from the environment."""
    with needs("aws"):
        import boto3

        from freshq.stores.dynamodb.calls import own_region
    return boto3.client(cast("Any", service), own_region())


def failures() -> tuple[type[Exception], ...]:
    """Return the errors of calls of AWS."""
    with needs("aws"):
        from botocore.exceptions import BotoCoreError, ClientError
    return BotoCoreError, ClientError


def archived(bucket: str, *prefixes: str) -> Iterator[tuple[Any, str]]:
    """Yield a client and the key of each file of an archive; the keys of events begin with the hour."""
    client = client_of("s3")
    for prefix in prefixes:
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix):
            yield from ((client, each["Key"]) for each in page.get("Contents", []))


def _description(stack: str) -> dict[str, Any]:
    with needs("aws"):
        from botocore.exceptions import BotoCoreError, ClientError
        from botocore.parsers import ResponseParserError
    try:
        found = client_of("cloudformation").describe_stacks(StackName=stack)["Stacks"]
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
