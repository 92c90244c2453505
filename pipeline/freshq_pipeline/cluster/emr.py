"""`submit`: a run on EMR Serverless, started and followed from here."""

from __future__ import annotations

import json
import re
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from freshq_pipeline.cluster.exit_status import ADDRESS_VARIABLE
from freshq_pipeline.cluster.stacks import outputs_of, unreachable
from freshq_pipeline.errors import BAD_INPUT_STATUS, VIOLATION_STATUS, BadInput, PipelineError
from freshq_pipeline.storage.state import SUMMARY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from mypy_boto3_cloudformation import CloudFormationClient
    from mypy_boto3_s3 import S3Client
    from types_boto3_emr_serverless import EMRServerlessClient

ENTRY_POINT: Final = "main.py"
ARCHIVE: Final = "environment.tar.gz"
DESCRIPTION: Final = "package.json"
JOB: Final = "job"
DIGEST: Final = "sha256"
LOOK_SECONDS: Final = 5.0
FINAL: Final = frozenset({"SUCCESS", "FAILED", "CANCELLED"})
_STATUS_IN: Final = re.compile(rf"driverEnv\.{ADDRESS_VARIABLE}=s3://([^/\s]+)/(\S+)")
_ADDRESS: Final = re.compile(r"s3://([^/\s]+)/?(\S*)")
_SETTING: Final = re.compile(r"[A-Za-z][\w.-]*=\S+")


@dataclass(frozen=True, slots=True)
class Deployed:
    """What the pipeline's own stack, pipeline/template.yaml, says of itself.

    Attributes:
        application: Id of the application of EMR Serverless.
        bucket: For the job, its output and its logs.
        role: ARN of the role of a run.
        events: Where the landed events are.
        out: Where the output goes.
        spark: How Spark finds the job's Python.
        timeout_minutes: A run that takes longer is cancelled.
        log_group: What the command says there.
    """

    application: str
    bucket: str
    role: str
    events: str
    out: str
    spark: str
    timeout_minutes: int
    log_group: str


def deployed(stack: str, client: CloudFormationClient | None = None) -> Deployed:
    """Return what a stack says of itself.

    Raises:
        BadInput: If there is no such stack, or it is another one.
        PipelineError: If AWS did not answer.
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
        )
    except KeyError as error:
        msg = f"stack: {stack!r} has no output {error}; give the stack of pipeline/template.yaml"
        raise BadInput(msg) from error


def upload(
    bucket: str,
    package: Path,
    client: S3Client,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> list[str]:
    """Put a package where the runs take it from, unless it is there, and return the names of what was new.

    Args:
        bucket: The pipeline's.
        package: The folder that `make pipeline-package` made.
        client: Of S3.
        progress: Is told how many bytes were copied, out of how many.

    Raises:
        BadInput: If there is no package.
        PipelineError: If AWS did not answer.
    """
    try:
        digests: dict[str, str] = json.loads((package / DESCRIPTION).read_text("utf-8"))[DIGEST]
    except (OSError, ValueError, KeyError) as error:
        msg = f"package: no package in {package}; make it: make pipeline-package"
        raise BadInput(msg) from error
    try:
        stale = [name for name in (ENTRY_POINT, ARCHIVE) if _digest_of(client, bucket, name) != digests[name]]
        total_bytes = sum((package / name).stat().st_size for name in stale)
        copied_bytes = 0

        def copied(more_bytes: int) -> None:
            nonlocal copied_bytes
            copied_bytes += more_bytes
            progress(copied_bytes, total_bytes)

        for name in stale:
            noted = {"Metadata": {DIGEST: digests[name]}}
            client.upload_file(str(package / name), bucket, f"{JOB}/{name}", ExtraArgs=noted, Callback=copied)
    except (BotoCoreError, ClientError, boto3.exceptions.Boto3Error) as error:
        raise unreachable(error) from error
    return stale


def _digest_of(client: S3Client, bucket: str, name: str) -> str | None:
    """Return the noted digest of a file of the job, None if it is not there."""
    try:
        return client.head_object(Bucket=bucket, Key=f"{JOB}/{name}")["Metadata"].get(DIGEST)
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") in ("404", "NoSuchKey", "NotFound"):
            return None
        raise


def start(
    stack: Deployed, arguments: Sequence[str], settings: Sequence[str], client: EMRServerlessClient
) -> str:
    """Start a run, and return its id.

    Args:
        stack: Where.
        arguments: Of the command, as on a command line.
        settings: Further ones of Spark, each NAME=VALUE.
        client: Of EMR Serverless.

    Raises:
        BadInput: If a setting is none.
        PipelineError: If AWS did not answer.
    """
    for setting in settings:
        if not _SETTING.fullmatch(setting):
            msg = f"spark-conf: must be NAME=VALUE without blanks, got {setting!r}"
            raise BadInput(msg)
    # The same however often the call is tried again: one run is started at the most.
    token = uuid.uuid4().hex
    verdict = f"spark.emr-serverless.driverEnv.{ADDRESS_VARIABLE}=s3://{stack.bucket}/status/{token}.json"
    confs = "".join(f" --conf {setting}" for setting in (verdict, *settings))
    try:
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
    except (BotoCoreError, ClientError) as error:
        raise unreachable(error) from error
    return started["jobRunId"]


def follow(
    application: str,
    run: str,
    client: EMRServerlessClient,
    told: Callable[[str], None],
    wait: Callable[[float], None] = time.sleep,
) -> dict[str, Any]:
    """Wait for the end of a run, and return its description.

    Args:
        application: Its application.
        run: Its id.
        client: Of EMR Serverless.
        told: Is called with each state, as often as it is looked for.
        wait: Waits for so many seconds.

    Raises:
        PipelineError: If AWS did not answer. The run goes on.
    """
    while True:
        try:
            described = client.get_job_run(applicationId=application, jobRunId=run)["jobRun"]
        except (BotoCoreError, ClientError) as error:
            raise unreachable(error) from error
        told(described["state"])
        if described["state"] in FINAL:
            return dict(described)
        wait(LOOK_SECONDS)


def outcome(described: dict[str, Any], s3: S3Client) -> dict[str, Any]:
    """Return the summary that a finished run left.

    Args:
        described: The run, as EMR Serverless describes it.
        s3: A client of S3.

    Raises:
        BadInput: If the run found its input unusable.
        PipelineError: If it failed otherwise.
    """
    driver = described["jobDriver"]["sparkSubmit"]
    state, details = described["state"], described.get("stateDetails") or "no reason given"
    named = _STATUS_IN.search(driver.get("sparkSubmitParameters", ""))
    verdict = _read(s3, named.group(1), named.group(2)) if named and state != "CANCELLED" else None
    if state == "FAILED" and verdict is not None and verdict["status"] == BAD_INPUT_STATUS:
        raise BadInput(_plain(verdict["message"]))
    # A broken ledger is told by the run as a failure, but everything is published.
    published = state == "SUCCESS" or (verdict is not None and verdict["status"] == VIOLATION_STATUS)
    if not published:
        reason = _plain(verdict["message"]) if verdict is not None and verdict["status"] else details
        msg = f"the run {described['jobRunId']} ended as {state}: {reason}"
        raise PipelineError(msg)
    arguments = driver["entryPointArguments"]
    bucket, prefix = _parsed(arguments[arguments.index("--out") + 1])
    summary = _read(s3, bucket, f"{prefix}/{SUMMARY}" if prefix else SUMMARY)
    if summary is None:
        msg = f"the run {described['jobRunId']} ended, but s3://{bucket}/{prefix} has no {SUMMARY}"
        raise PipelineError(msg)
    return summary


def address(name: str, given: str) -> str:
    """Return an address of S3 without a slash at its end.

    Raises:
        BadInput: If it is none: a cluster sees no folder of this machine.
    """
    if not _ADDRESS.fullmatch(given):
        msg = f"{name}: must begin with s3://, got {given!r}; a cluster does not see this machine's folders"
        raise BadInput(msg)
    return given.rstrip("/")


def logs_of(stack: Deployed, run: str) -> str:
    """Return where Spark's logs of a run are."""
    return f"s3://{stack.bucket}/logs/applications/{stack.application}/jobs/{run}/"


def _parsed(given: str) -> tuple[str, str]:
    found = _ADDRESS.fullmatch(given)
    if found is None:
        msg = f"out: not an address of S3: {given!r}"
        raise PipelineError(msg)
    return found.group(1), found.group(2).rstrip("/")


def _read(client: S3Client, bucket: str, key: str) -> dict[str, Any] | None:
    """Return a JSON object, None if there is none."""
    try:
        value: dict[str, Any] = json.loads(client.get_object(Bucket=bucket, Key=key)["Body"].read())
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") == "NoSuchKey":
            return None
        raise unreachable(error) from error
    except BotoCoreError as error:
        raise unreachable(error) from error
    return value


def _plain(message: str) -> str:
    return message.removeprefix("freshq-pipeline: ")
