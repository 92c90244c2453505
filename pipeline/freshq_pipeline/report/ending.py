"""How a command ends: with its report, what it prints, and its exit status."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from freshq_pipeline.errors import DIFFERENCE_STATUS, VIOLATION_STATUS, Unfinished, complain
from freshq_pipeline.gold.new_violations import NEW
from freshq_pipeline.report.difference import difference
from freshq_pipeline.report.terminal import show_replay, show_summary

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from freshq_pipeline.storage.folder import Folder


@contextmanager
def postponed() -> Iterator[list[Unfinished]]:
    """Collect the error of a run that is published, so that report and summary come first."""
    problems: list[Unfinished] = []
    try:
        yield problems
    except Unfinished as error:
        problems.append(error)


def report_on(out: Folder, problems: list[Unfinished]) -> dict[str, str]:
    """Write the report of the current run, or add to the problems; return its headlines."""
    from freshq_pipeline.report.page import write_report  # noqa: PLC0415 - loaded while Java starts

    try:
        return write_report(out)
    except OSError as error:
        msg = f"the tables in {out.uri} are published, but the report is not: {error}; "
        problems.append(Unfinished(msg + "run `freshq-pipeline report`"))
        return {}


def finish(
    summary: dict[str, Any],
    headlines: Mapping[str, str],
    problems: Sequence[Unfinished] = (),
    *,
    as_json: bool,
) -> None:
    """Print headlines and summary; exit with `VIOLATION_STATUS` if there are new ledger violations.

    Raises:
        Unfinished: If there are problems.
    """
    if as_json:
        typer.echo(json.dumps(summary))
    else:
        show_summary(summary, headlines)
    has_new = violated(summary)
    for problem in problems:
        raise problem
    if has_new:
        raise typer.Exit(VIOLATION_STATUS)


def violated(summary: dict[str, Any]) -> bool:
    """Return whether there are new ledger violations, and say so."""
    if not summary[NEW]:
        return False
    total = summary["ledger_violations"]
    complain(f"ledger violations: {summary[NEW]} new, {total} in all; see the table violations")
    return True


def finish_replay(
    result: dict[str, Any],
    summary: dict[str, Any],
    problems: Sequence[Unfinished] = (),
    *,
    as_json: bool,
) -> None:
    """Print the result of a replay, and exit with `DIFFERENCE_STATUS` if it is far from the recording.

    New ledger violations in the events that it has read come first, because no later run calls them new.

    Args:
        result: The result.
        summary: Summary of the run with which it began.
        problems: What failed after the run was published.
        as_json: Whether to print the result as JSON.

    Raises:
        Unfinished: If there are problems.
    """
    if as_json:
        typer.echo(json.dumps(result | {NEW: summary[NEW]}))
    else:
        show_replay(result)
    has_new = violated(summary)
    off = [one["check"] for one in result["queues"] if not one["check"]["within"]]
    for check in off:
        complain(difference(check))
    for problem in problems:
        raise problem
    if has_new:
        raise typer.Exit(VIOLATION_STATUS)
    if off:
        raise typer.Exit(DIFFERENCE_STATUS)


def finish_submitted(
    result: dict[str, Any], status: int, message: str, *, of_replay: bool, as_json: bool
) -> None:
    """Print what a run on a cluster published, and exit with its status.

    Args:
        result: The summary or the replay.
        status: Its exit status.
        message: Its last line to standard error, unless the status is 0.
        of_replay: Whether it is a replay.
        as_json: Whether to print the result as JSON.
    """
    if as_json:
        typer.echo(json.dumps(result))
    elif of_replay:
        from freshq_pipeline.storage.last_replay import checked  # noqa: PLC0415 - an extra

        show_replay(checked(result, "the result of the run"))  # its package may be of another version
    else:
        show_summary(result, {})  # the sentences are in the report
    if status:
        complain(message)
        raise typer.Exit(status)
