"""How a command ends: with its report, what it prints, and its exit status."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from freshq_pipeline.errors import DIFFERENCE_STATUS, VIOLATION_STATUS, Unfinished, complain
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
    """Print headlines and summary; exit with `VIOLATION_STATUS` if there are ledger violations.

    Raises:
        Unfinished: If there are problems.
    """
    if as_json:
        typer.echo(json.dumps(summary))
    else:
        show_summary(summary, headlines)
    if summary["ledger_violations"]:
        complain(f"{summary['ledger_violations']} ledger violations; see the table violations")
    for problem in problems:
        raise problem
    if summary["ledger_violations"]:
        raise typer.Exit(VIOLATION_STATUS)


def finish_replay(result: dict[str, Any], problems: Sequence[Unfinished] = (), *, as_json: bool) -> None:
    """Print the result of a replay, and exit with `DIFFERENCE_STATUS` if it is far from the recording.

    Raises:
        Unfinished: If there are problems.
    """
    if as_json:
        typer.echo(json.dumps(result))
    else:
        show_replay(result)
    off = [one["check"] for one in result["queues"] if not one["check"]["within"]]
    for check in off:
        complain(difference(check))
    for problem in problems:
        raise problem
    if off:
        raise typer.Exit(DIFFERENCE_STATUS)
