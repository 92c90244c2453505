"""A run on EMR Serverless: start it, wait for its end, and read its result."""

from __future__ import annotations

import json
import re
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from botocore.exceptions import ClientError

from freshq_pipeline.cluster.commands import RESULTS, Command
from freshq_pipeline.cluster.package import ENTRY_POINT, JOB
from freshq_pipeline.cluster.stacks import aws_errors, error_code, outputs_of
from freshq_pipeline.cluster.verdict import VERDICT
from freshq_pipeline.errors import (
    DIFFERENCE_STATUS,
    PREFIX,
    VIOLATION_STATUS,
    BadInput,
    PipelineError,
    Unfinished,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mypy_boto3_cloudformation import CloudFormationClient
    from mypy_boto3_s3 import S3Client
    from types_boto3_emr_serverless import EMRServerlessClient

POLL_SECONDS: Final = 5.0
FINAL: Final = frozenset({"SUCCESS", "FAILED", "CANCELLED"})
# EMR reports runs with these statuses as failed, though they have published everything.
PUBLISHED: Final = frozenset({VIOLATION_STATUS, DIFFERENCE_STATUS})
# Errors that say everything in their message.
_ERRORS: Final = {BadInput.status: BadInput, Unfinished.status: Unfinished}
_VERDICT_IN: Final = re.compile(rf"driverEnv\.{VERDICT}=(s3://\S+)")
_ADDRESS: Final = re.compile(r"s3://([^/\s]+)/?(\S*)")
_SETTING: Final = re.compile(r"[A-Za-z][\w.-]*=\S+")


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that has published its tables.

    Attributes:
        command: Its command.
        result: What it published: the summary or the replay.
        status: Its exit status.
        message: The last line that it printed to standard error, unless the status is 0.
    """

    command: Command
    result: dict[str, Any]
    status: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True)
class Deployed:
    """The outputs of a stack of pipeline/template.yaml.

    Attributes:
        application: Id of the application of EMR Serverless.
        bucket: Bucket for the job, its output and its logs.
        role: ARN of the role of a run.
        events: Address of the landed events.
        out: Address of the output.
        spark: Spark's parameters, which make it use the Python of the package.
        timeout_minutes: A run that takes longer is cancelled.
        log_group: Log group for the output of the command.
        catalog: Where the tables are registered.
        options: Options of runs and streams that are not given, such as `--keep-runs 5`.
    """

    application: str
    bucket: str
    role: str
    events: str
    out: str
    spark: str
    timeout_minutes: int
    log_group: str
    catalog: str
    options: str

    def spark_logs(self, run: str) -> str:
        """Return the address of Spark's logs of a run."""
        return f"s3://{self.bucket}/logs/applications/{self.application}/jobs/{run}/"


def deployed(stack: str, client: CloudFormationClient | None = None) -> Deployed:
    """Return the outputs of a stack.

    Raises:
        BadInput: If the stack does not exist, or is not one of pipeline/template.yaml.
        PipelineError: If a call to AWS failed.
    """
    outputs = outputs_of(stack, client)
    try:
        return Deployed(
            outputs["ApplicationId"],
            outputs["BucketName"],
            outputs["JobRoleArn"],
            outputs["EventsUri"],
            outputs["OutUri"],
            outputs["SparkParameters"],
            int(outputs["TimeoutMinutes"]),
            outputs["LogGroupName"],
            outputs["Catalog"],
            outputs["RunOptions"],
        )
    except KeyError as error:
        msg = f"stack: {stack!r} has no output {error}; "
        msg += "give a stack of pipeline/template.yaml, as this version deploys it"
        raise BadInput(msg) from error


def start(
    stack: Deployed, arguments: Sequence[str], settings: Sequence[str], client: EMRServerlessClient
) -> str:
    """Start a run, and return its id.

    Args:
        stack: Stack to run on.
        arguments: Arguments of the command.
        settings: Further settings of Spark, each NAME=VALUE.
        client: A client of EMR Serverless.

    Raises:
        BadInput: If a setting is not NAME=VALUE.
        PipelineError: If a call to AWS failed.
    """
    for setting in settings:
        if not _SETTING.fullmatch(setting):
            msg = f"spark-conf: must be NAME=VALUE without blanks, got {setting!r}"
            raise BadInput(msg)
    # Makes the call idempotent: retries of it start one run.
    token = uuid.uuid4().hex
    verdict = f"spark.emr-serverless.driverEnv.{VERDICT}=s3://{stack.bucket}/verdicts/{token}.json"
    confs = "".join(f" --conf {setting}" for setting in (verdict, *settings))
    with aws_errors():
        started = client.start_job_run(
            applicationId=stack.application,
            clientToken=token,
            executionRoleArn=stack.role,
            name="submitted",
            executionTimeoutMinutes=stack.timeout_minutes,
            jobDriver={
                "sparkSubmit": {
                    "entryPoint": f"s3://{stack.bucket}/{JOB}/{ENTRY_POINT}",
                    "entryPointArguments": list(arguments),
                    "sparkSubmitParameters": stack.spark + confs,
                }
            },
        )
    return started["jobRunId"]


def wait_for_end(
    application: str,
    run: str,
    client: EMRServerlessClient,
    seen: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Wait for the end of a run, and return its description.

    Args:
        application: Id of the application.
        run: Id of the run.
        client: A client of EMR Serverless.
        seen: Called with the state at each poll.
        sleep: Waits for a number of seconds.

    Raises:
        PipelineError: If a call to AWS failed. The run continues.
    """
    while True:
        with aws_errors():
            described = client.get_job_run(applicationId=application, jobRunId=run)["jobRun"]
        seen(described["state"])
        if described["state"] in FINAL:
            return dict(described)
        sleep(POLL_SECONDS)


def result_of(described: dict[str, Any], s3: S3Client) -> Ended:
    """Return how a finished run ended, with what it published.

    Args:
        described: Description of the run by EMR Serverless.
        s3: A client of S3.

    Raises:
        BadInput: If the run rejected its input.
        Unfinished: If the run published its tables, but what follows failed.
        PipelineError: If the run failed otherwise.
    """
    driver, state = described["jobDriver"]["sparkSubmit"], described["state"]
    status, message = (None, "") if state == "CANCELLED" else _verdict(driver, s3)
    if state == "FAILED" and status in _ERRORS:
        raise _ERRORS[status](message)
    if state != "SUCCESS" and status not in PUBLISHED:
        reason = message or described.get("stateDetails") or "no reason given"
        msg = f"the run {described['jobRunId']} ended as {state}: {reason}"
        raise PipelineError(msg)
    arguments = driver["entryPointArguments"]
    command = Command(arguments[0])
    out, name = arguments[arguments.index("--out") + 1].rstrip("/"), RESULTS[command]
    result = _read(s3, f"{out}/{name}")
    if result is None:
        msg = f"the run {described['jobRunId']} ended, but {out} has no {name}"
        raise PipelineError(msg)
    return Ended(command, result, status or 0, message)


def _verdict(driver: dict[str, Any], s3: S3Client) -> tuple[int | None, str]:
    """Return the exit status of a run and its last line; None and no line if there is no verdict."""
    address = _VERDICT_IN.search(driver.get("sparkSubmitParameters", ""))
    verdict = None if address is None else _read(s3, address.group(1))
    if verdict is None:
        return None, ""
    return verdict["status"], verdict["message"].removeprefix(PREFIX)


def checked_address(name: str, given: str) -> str:
    """Return an address of S3 without a slash at its end.

    Raises:
        BadInput: If it is not an address of S3.
    """
    if not _ADDRESS.fullmatch(given):
        msg = f"{name}: must begin with s3://, got {given!r}; a cluster does not see this machine's folders"
        raise BadInput(msg)
    return given.rstrip("/")


def _read(client: S3Client, address: str) -> dict[str, Any] | None:
    """Return a JSON object from S3, None if there is no such object."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        msg = f"out: not an address of S3: {address!r}"
        raise PipelineError(msg)
    with aws_errors():
        try:
            body = client.get_object(Bucket=found.group(1), Key=found.group(2))["Body"].read()
        except ClientError as error:
            if error_code(error) == "NoSuchKey":
                return None
            raise
    value: dict[str, Any] = json.loads(body)
    return value
