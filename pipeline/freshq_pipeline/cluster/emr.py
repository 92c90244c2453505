"""`submit`: upload the package, start a run on EMR Serverless, follow it, and read its result."""

from __future__ import annotations

import json
import re
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import boto3
from botocore.exceptions import ClientError
from rich.console import Console
from rich.progress import DownloadColumn, Progress

from freshq_pipeline.cluster.commands import RESULTS, Command, arguments_of
from freshq_pipeline.cluster.stacks import aws_errors, error_code, in_region, outputs_of
from freshq_pipeline.cluster.verdict import VERDICT
from freshq_pipeline.errors import (
    DIFFERENCE_STATUS,
    PREFIX,
    REPORT_STATUS,
    VIOLATION_STATUS,
    BadInput,
    Interrupted,
    PipelineError,
    Unfinished,
    complain,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from mypy_boto3_cloudformation import CloudFormationClient
    from mypy_boto3_s3 import S3Client
    from rich.status import Status
    from types_boto3_emr_serverless import EMRServerlessClient


ENTRY_POINT: Final = "main.py"
ARCHIVE: Final = "environment.tar.gz"
DESCRIPTION: Final = "package.json"
# Folder of the package in the bucket.
JOB: Final = "job"
# Name of the digests, in the description and in the metadata of uploaded files.
DIGEST: Final = "sha256"


def upload(
    bucket: str,
    package: Path,
    client: S3Client,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> list[str]:
    """Upload the files of a package that are missing or different; return their names.

    Args:
        bucket: Bucket of the pipeline.
        package: Folder with the package.
        client: A client of S3.
        progress: Called with the bytes copied so far and their total.

    Raises:
        BadInput: If there is no package.
        PipelineError: If a call to AWS failed.
    """
    try:
        digests: dict[str, str] = json.loads((package / DESCRIPTION).read_text("utf-8"))[DIGEST]
    except (OSError, ValueError, KeyError) as error:
        msg = f"package: no package in {package}; make it: make pipeline-package"
        raise BadInput(msg) from error
    with aws_errors():
        stale = [name for name in (ENTRY_POINT, ARCHIVE) if _digest_of(client, bucket, name) != digests[name]]
        total_bytes = sum((package / name).stat().st_size for name in stale)
        copied_bytes = 0

        def copied(more_bytes: int) -> None:
            nonlocal copied_bytes
            copied_bytes += more_bytes
            progress(copied_bytes, total_bytes)

        for name in stale:
            extra = {"Metadata": {DIGEST: digests[name]}}
            client.upload_file(str(package / name), bucket, f"{JOB}/{name}", ExtraArgs=extra, Callback=copied)
    return stale


def _digest_of(client: S3Client, bucket: str, name: str) -> str | None:
    """Return the digest of an uploaded file; None if it does not exist."""
    try:
        return client.head_object(Bucket=bucket, Key=f"{JOB}/{name}")["Metadata"].get(DIGEST)
    except ClientError as error:
        if error_code(error) in ("404", "NoSuchKey", "NotFound"):
            return None
        raise


POLL_SECONDS: Final = 5.0
FINAL: Final = frozenset({"SUCCESS", "FAILED", "CANCELLED"})
# EMR reports runs with these statuses as failed, although they have published everything.
PUBLISHED: Final = frozenset({VIOLATION_STATUS, DIFFERENCE_STATUS, REPORT_STATUS})
# Errors with a message that needs no prefix.
_ERRORS: Final = {BadInput.status: BadInput, Unfinished.status: Unfinished}
_VERDICT_IN: Final = re.compile(rf"driverEnv\.{VERDICT}=(s3://\S+)")
_ADDRESS: Final = re.compile(r"s3://[^/\s]\S*")
_SETTING: Final = re.compile(r"[A-Za-z][\w.-]*=\S+")


@dataclass(frozen=True, slots=True)
class Ended:
    """A run that has published its tables.

    Attributes:
        command: Command of the run.
        result: Its summary, or the result of its replay.
        status: Its exit status.
        message: Last line that it printed to standard error; empty if the status is 0.
    """

    command: Command
    result: dict[str, Any]
    status: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True)
class Deployed:
    """The outputs of a stack of pipeline/template.yaml.

    Attributes:
        application: Id of the EMR Serverless application.
        bucket: Bucket for the job, its output and its logs.
        role: ARN of the role of a run.
        events: Address of the landed events.
        out: Address of the output.
        spark: Parameters that make Spark use the Python of the package.
        timeout_minutes: Time after which a run is cancelled.
        log_group: Log group for the output of the command.
        catalog: Catalog of the tables.
        options: Default options of runs and streams, such as `--keep-runs 5`.
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
        BadInput: If the stack does not exist or is not one of pipeline/template.yaml.
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
    """Start a run; return its id.

    Args:
        stack: The stack.
        arguments: Arguments of the command.
        settings: Settings of Spark, each NAME=VALUE.
        client: A client of EMR Serverless.

    Raises:
        BadInput: If a setting is not NAME=VALUE.
        PipelineError: If a call to AWS failed.
    """
    for setting in settings:
        if not _SETTING.fullmatch(setting):
            msg = f"spark-conf: must be NAME=VALUE without blanks, got {setting!r}"
            raise BadInput(msg)
    # The token makes the call idempotent: retries start one run.
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
    application: str, run: str, client: EMRServerlessClient, seen: Callable[[str], None]
) -> dict[str, Any]:
    """Wait until a run ends; return its description.

    Args:
        application: Id of the application.
        run: Id of the run.
        client: A client of EMR Serverless.
        seen: Called with the state at each poll.

    Raises:
        PipelineError: If a call to AWS failed. The run continues.
    """
    while True:
        with aws_errors():
            described = client.get_job_run(applicationId=application, jobRunId=run)["jobRun"]
        seen(described["state"])
        if described["state"] in FINAL:
            return dict(described)
        time.sleep(POLL_SECONDS)


def result_of(described: dict[str, Any], s3: S3Client) -> Ended:
    """Return the result of a run that ended.

    Args:
        described: Description of the run by EMR Serverless.
        s3: A client of S3.

    Raises:
        BadInput: If the run rejected its input.
        Unfinished: If the run published its tables, but a later step failed.
        PipelineError: If the run failed for another reason.
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
    """Return the exit status of a run and its last line; None and an empty line if it has no verdict."""
    address = _VERDICT_IN.search(driver.get("sparkSubmitParameters", ""))
    verdict = None if address is None else _read(s3, address.group(1))
    if verdict is None:
        return None, ""
    return verdict["status"], verdict["message"].removeprefix(PREFIX)


def checked_address(name: str, given: str) -> str:
    """Return an S3 address without a trailing slash.

    Raises:
        BadInput: If it is not an S3 address.
    """
    if not _ADDRESS.fullmatch(given):
        msg = f"{name}: must begin with s3://, got {given!r}; a cluster does not see this machine's folders"
        raise BadInput(msg)
    return given.rstrip("/")


def _read(client: S3Client, address: str) -> dict[str, Any] | None:
    """Return a JSON object from S3, None if there is no such object."""
    bucket, _, key = address.removeprefix("s3://").partition("/")
    with aws_errors():
        try:
            body = client.get_object(Bucket=bucket, Key=key)["Body"].read()
        except ClientError as error:
            if error_code(error) == "NoSuchKey":
                return None
            raise
    value: dict[str, Any] = json.loads(body)
    return value


@dataclass(frozen=True, slots=True)
class Job:
    """The work for a cluster.

    Attributes:
        events: Address of the events; None: the stack's.
        out: Address of the output; None: the stack's.
        command: The command.
        options: Options of the command, as arguments.
        settings: Settings of Spark, each NAME=VALUE.
        package: Folder with the package.
    """

    events: str | None
    out: str | None
    command: Command
    options: Sequence[str]
    settings: Sequence[str]
    package: Path


def submit(stack: str, job: Job, *, run: str | None = None, wait: bool = True) -> Ended | None:
    """Start a job, follow it until it ends, and return its result.

    Args:
        stack: Name of the pipeline's stack.
        job: The job.
        run: Id of a run to follow instead.
        wait: Whether to follow the run; if not, the result is None.

    Raises:
        PipelineError: If the run or a call to AWS failed.
        Interrupted: If Ctrl-C ended the wait. The run continues.
    """
    events = None if job.events is None else checked_address("events", job.events)
    out = None if job.out is None else checked_address("out", job.out)
    found = deployed(stack)
    if run is None:
        _upload(found, job.package)
        # The stack's catalog and retention apply only to the stack's own output.
        own = out in (None, found.out)
        of_stack = ["--catalog", found.catalog, *found.options.split()] if own else []
        arguments = arguments_of(job.command, events or found.events, out or found.out, of_stack, job.options)
        run = start(found, arguments, job.settings, boto3.client("emr-serverless", **in_region()))
    complain(f"run {run} of application {found.application}")
    complain(f"logs: {found.log_group}, and {found.spark_logs(run)}")
    return _follow(stack, found, run) if wait else None


def _upload(stack: Deployed, package: Path) -> None:
    columns = (*Progress.get_default_columns(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("uploading the package", total=None)
        client = boto3.client("s3", **in_region())
        new = upload(
            stack.bucket, package, client, lambda done, of: bar.update(task, completed=done, total=of)
        )
    complain(f"uploaded {' and '.join(new)}" if new else "the package is up to date")


class _States:
    """Shows the state of a run: on a terminal at each poll, elsewhere when it changes."""

    def __init__(self, console: Console, status: Status) -> None:
        self._console = console
        self._status = status
        self._begun = time.monotonic()
        self._last = ""

    def __call__(self, state: str) -> None:
        text = f"{state.lower()}, {time.monotonic() - self._begun:,.0f} s"
        if self._console.is_terminal:
            self._status.update(text)
        elif state != self._last:
            complain(text)
        self._last = state


def _follow(stack: str, found: Deployed, run: str) -> Ended:
    console = Console(stderr=True)
    try:
        with console.status("") as status:
            client = boto3.client("emr-serverless", **in_region())
            ended = wait_for_end(found.application, run, client, _States(console, status))
    except KeyboardInterrupt:
        msg = f"the run continues; follow it: freshq-pipeline submit --stack {stack} --follow {run} ; "
        msg += f"cancel it: aws emr-serverless cancel-job-run --application-id {found.application} "
        msg += f"--job-run-id {run}"
        raise Interrupted(msg) from None
    return result_of(ended, boto3.client("s3", **in_region()))
