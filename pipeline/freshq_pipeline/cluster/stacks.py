"""The outputs of a deployed stack, and AWS errors in one line."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import boto3
from boto3.exceptions import Boto3Error
from botocore.exceptions import BotoCoreError, ClientError

from freshq_pipeline.errors import BadInput, PipelineError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mypy_boto3_cloudformation import CloudFormationClient


@contextmanager
def aws_errors() -> Iterator[None]:
    """Turn an error of boto3 into a PipelineError."""
    try:
        yield
    except (BotoCoreError, ClientError, Boto3Error) as error:
        msg = f"a call to AWS failed: {error}; check network, region and credentials"
        raise PipelineError(msg) from error


def in_region() -> dict[str, Any]:
    """Return the arguments of a client for the region in AWS_REGION, which boto3 does not read."""
    region = os.environ.get("AWS_REGION")
    return {"region_name": region} if region else {}


def error_code(error: ClientError) -> str:
    """Return the code of an AWS error, such as NoSuchKey."""
    return error.response.get("Error", {}).get("Code", "")


def outputs_of(stack: str, client: CloudFormationClient | None = None) -> dict[str, str]:
    """Return the outputs of a stack by name.

    Args:
        stack: Name of the stack.
        client: A boto3 client; None for one from the environment.

    Raises:
        BadInput: If the stack does not exist.
        PipelineError: If a call to AWS failed.
    """
    with aws_errors():
        try:
            found = (client or boto3.client("cloudformation", **in_region())).describe_stacks(
                StackName=stack
            )["Stacks"][0]
        except ClientError as error:
            if "does not exist" not in str(error):
                raise
            msg = f"stack: {stack!r} does not exist here; check its name, the region and the account"
            raise BadInput(msg) from error
    return {output.get("OutputKey", ""): output.get("OutputValue", "") for output in found.get("Outputs", [])}
