"""What a deployed stack says of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from freshq_pipeline.errors import BadInput, PipelineError

if TYPE_CHECKING:
    from mypy_boto3_cloudformation import CloudFormationClient


def outputs_of(stack: str, client: CloudFormationClient | None = None) -> dict[str, str]:
    """Return the outputs of a stack, by name.

    Args:
        stack: Its name.
        client: A boto3 client; None for one from the environment.

    Raises:
        BadInput: If there is no such stack.
        PipelineError: If AWS did not answer.
    """
    try:
        if client is None:
            client = boto3.client("cloudformation")
        (found,) = client.describe_stacks(StackName=stack)["Stacks"]
    except ClientError as error:
        if "does not exist" in str(error):
            msg = f"stack: {stack!r} does not exist here; check its name, the region and the account"
            raise BadInput(msg) from error
        raise unreachable(error) from error
    except BotoCoreError as error:
        raise unreachable(error) from error
    return {output.get("OutputKey", ""): output.get("OutputValue", "") for output in found.get("Outputs", [])}


def unreachable(error: Exception) -> PipelineError:
    """Return the error that says that AWS did not do what it was asked."""
    return PipelineError(f"AWS did not answer as it should: {error}; check network, region and credentials")
