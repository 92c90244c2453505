"""What `submit` shows while it works."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import boto3
import typer
from rich.console import Console
from rich.progress import DownloadColumn, Progress

from freshq_pipeline.submit import address, deployed, follow, logs_of, outcome, start, upload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from freshq_pipeline.submit import Deployed

# What a shell says of a command that Ctrl-C ended.
INTERRUPTED_STATUS: Final = 130


def submit(
    stack: str,
    events: str | None,
    out: str | None,
    options: Sequence[str],
    settings: Sequence[str],
    package: Path,
    *,
    run: str | None = None,
    wait: bool = True,
) -> dict[str, Any] | None:
    """Start a run, unless one is given, follow it, and return its summary.

    Args:
        stack: Name of the pipeline's stack.
        events: Where the events are; None: where the stack says.
        out: Where the output goes; None: where the stack says.
        options: Further ones of `run`.
        settings: Of Spark, each NAME=VALUE.
        package: The folder that the package was made in.
        run: Id of a run that was started before.
        wait: Whether to follow it; if not, there is no summary.

    Raises:
        PipelineError: If the run failed, or AWS did not answer.
    """
    events, out = (given and address(name, given) for name, given in (("events", events), ("out", out)))
    found = deployed(stack)
    if run is None:
        _upload(found, package)
        arguments = ["run", "--events", events or found.events, "--out", out or found.out, *options]
        run = start(found, arguments, settings, boto3.client("emr-serverless"))
    _say(f"run {run} of application {found.application}")
    _say(f"logs: {found.log_group}, and {logs_of(found, run)}")
    return _follow(stack, found, run) if wait else None


def _upload(stack: Deployed, package: Path) -> None:
    with Progress(*Progress.get_default_columns(), DownloadColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("uploading the package", total=None)
        new = upload(
            stack.bucket,
            package,
            boto3.client("s3"),
            lambda done, of: bar.update(task, completed=done, total=of),
        )
        if not new:
            bar.update(task, description="the package is there", total=1, completed=1)


def _follow(stack: str, found: Deployed, run: str) -> dict[str, Any]:
    begun = time.monotonic()
    try:
        with Console(stderr=True).status("") as status:
            ended = follow(
                found.application,
                run,
                boto3.client("emr-serverless"),
                lambda state: status.update(f"{state.lower()}, {time.monotonic() - begun:,.0f} s"),
            )
    except KeyboardInterrupt:
        _say(f"the run goes on. Follow it: freshq-pipeline submit --stack {stack} --follow {run}")
        _say(
            "Cancel it: aws emr-serverless cancel-job-run "
            f"--application-id {found.application} --job-run-id {run}"
        )
        raise typer.Exit(INTERRUPTED_STATUS) from None
    return outcome(ended, boto3.client("s3"))


def _say(text: str) -> None:
    typer.echo(f"freshq-pipeline: {text}", err=True)
