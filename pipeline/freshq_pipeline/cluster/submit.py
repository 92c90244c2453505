"""`submit`: upload the package, start a run, and follow it, with progress on standard error."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import boto3
from rich.console import Console
from rich.progress import DownloadColumn, Progress

from freshq_pipeline.cluster.commands import arguments_of
from freshq_pipeline.cluster.emr import checked_address, deployed, result_of, start, wait_for_end
from freshq_pipeline.cluster.package import upload
from freshq_pipeline.errors import Interrupted, complain

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.status import Status

    from freshq_pipeline.cluster.commands import Command
    from freshq_pipeline.cluster.emr import Deployed, Ended


@dataclass(frozen=True, slots=True)
class Job:
    """What to start.

    Attributes:
        events: Address of the events; None: the one of the stack.
        out: Address of the output; None: the one of the stack.
        command: What the cluster runs.
        options: Further arguments of the command.
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
    """Start a job, follow it to its end, and return how it ended.

    Args:
        stack: Name of the pipeline's stack.
        job: What to start.
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
        # The stack's catalog and retention are for the stack's own output.
        own = out in (None, found.out)
        of_stack = ["--catalog", found.catalog, *found.options.split()] if own else []
        arguments = arguments_of(job.command, events or found.events, out or found.out, of_stack, job.options)
        run = start(found, arguments, job.settings, boto3.client("emr-serverless"))
    complain(f"run {run} of application {found.application}")
    complain(f"logs: {found.log_group}, and {found.spark_logs(run)}")
    return _follow(stack, found, run) if wait else None


def _upload(stack: Deployed, package: Path) -> None:
    bar = Progress(
        *Progress.get_default_columns(), DownloadColumn(), console=Console(stderr=True), transient=True
    )
    with bar:
        task = bar.add_task("uploading the package", total=None)
        new = upload(
            stack.bucket,
            package,
            boto3.client("s3"),
            lambda done, of: bar.update(task, completed=done, total=of),
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
            client = boto3.client("emr-serverless")
            ended = wait_for_end(found.application, run, client, _States(console, status))
    except KeyboardInterrupt:
        msg = f"the run continues; follow it: freshq-pipeline submit --stack {stack} --follow {run} ; "
        msg += "cancel it: "
        msg += f"aws emr-serverless cancel-job-run --application-id {found.application} --job-run-id {run}"
        raise Interrupted(msg) from None
    return result_of(ended, boto3.client("s3"))
