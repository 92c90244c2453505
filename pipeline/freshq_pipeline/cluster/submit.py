"""What `submit` shows while it works."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import boto3
import typer
from rich.console import Console
from rich.progress import DownloadColumn, Progress

from freshq_pipeline.cluster.emr import address, deployed, follow, logs_of, outcome, start, upload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.status import Status

    from freshq_pipeline.cluster.emr import Deployed

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
    _say(f"uploaded {' and '.join(new)}" if new else "the package is there already")


class _States:
    """Shows how a run stands: on a terminal all the time, elsewhere when it changes."""

    def __init__(self, console: Console, status: Status) -> None:
        self._console = console
        self._status = status
        self._begun = time.monotonic()
        self._last = ""

    def __call__(self, state: str) -> None:
        told = f"{state.lower()}, {time.monotonic() - self._begun:,.0f} s"
        if self._console.is_terminal:
            self._status.update(told)
        elif state != self._last:
            _say(told)
        self._last = state


def _follow(stack: str, found: Deployed, run: str) -> dict[str, Any]:
    console = Console(stderr=True)
    try:
        with console.status("") as status:
            client = boto3.client("emr-serverless")
            ended = follow(found.application, run, client, _States(console, status))
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
