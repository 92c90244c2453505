"""How a command ends: with its report, what it prints, and its exit status."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from freshq_pipeline.errors import DIFFERENCE_STATUS, VIOLATION_STATUS, Unfinished, complain
from freshq_pipeline.report.words import (
    NO_NAME,
    cell,
    conclusions,
    difference,
    duration,
    heading,
    replayed_days,
)
from freshq_pipeline.storage.results import NEW, with_earlier

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from freshq_pipeline.storage.folder import Folder


_PAGE: Final = "freshq_pipeline.report.page"
_PACKAGES: Final = ("altair", "pandas", "vl_convert")


def load_ahead() -> None:
    """Begin to load the report's module.

    Raises:
        ModuleNotFoundError: If a package that it needs is not installed.
    """
    for package in _PACKAGES:
        if find_spec(package) is None:
            msg = f"No module named {package!r}"
            raise ModuleNotFoundError(msg, name=package)
    threading.Thread(target=import_module, args=(_PAGE,), name="report", daemon=True).start()


# Most queues in a table.
MAX_QUEUES: Final = 6
# Shown also if it is 0.
ALWAYS: Final = ("tasks", "ledger_violations")


def show_summary(summary: dict[str, Any], headlines: Mapping[str, str]) -> None:
    """Print what became of the tasks, the figures of a summary, and those of each queue.

    Args:
        summary: The summary.
        headlines: A sentence for each queue; empty if they are not known.
    """
    figures = {name: value for name, value in summary.items() if not isinstance(value, dict | list)}
    console = Console()
    for queue, sentence in headlines.items():
        named = f"{queue}: {sentence}" if len(headlines) > 1 else sentence
        console.print(named, style="bold", soft_wrap=True, markup=False, highlight=False)
    _print(console, "what happened", {"value": figures})
    # An older package on a cluster answers without it.
    if "queues" in summary:
        _print_queues(console, summary["queues"])


def _print_queues(console: Console, queues: list[dict[str, Any]]) -> None:
    """Print a table with a column for each of the queues with the most tasks."""
    shown = sorted(queues, key=lambda row: -row["tasks"])[:MAX_QUEUES]
    title = "by queue" if len(shown) == len(queues) else f"the {MAX_QUEUES} largest of {len(queues)} queues"
    columns = {row["queue"] or NO_NAME: {name: row[name] for name in row if name != "queue"} for row in shown}
    _print(console, title, columns)


def _print(console: Console, title: str, columns: Mapping[str, Mapping[str, Any]]) -> None:
    """Print columns of figures; those that are 0 in all of them as one line below."""
    table, zeros = Table("figure", *map(escape, columns), title=title), []
    for name in next(iter(columns.values())):
        values = [column[name] for column in columns.values()]
        if name in ALWAYS or any(value != 0 for value in values):
            table.add_row(escape(heading(name)), *(escape(cell(name, value)) for value in values))
        else:
            zeros.append(heading(name))
    for column in table.columns[1:]:
        column.justify = "right"
    console.print(table)
    if zeros:
        console.print(f"Zero: {', '.join(zeros)}.", soft_wrap=True, markup=False, highlight=False)


def show_replay(result: dict[str, Any]) -> None:
    """Print for each queue what was recorded and the scenarios of a replay, and what follows from them."""
    console = Console()
    for one in result["queues"]:
        scenarios = [row for row in result["scenarios"] if row["queue"] == one["queue"]]
        title = (
            f"queue {one['queue']}: what would have happened" if one["queue"] else "what would have happened"
        )
        console.print(_scenarios(escape(title), [_recorded(one["record"]), *map(_scenario, scenarios)]))
    for text in (*conclusions(result), f"{replayed_days(result)}.", result["record"]["imputation"]):
        console.print(text, soft_wrap=True, markup=False, highlight=False)


def _scenarios(title: str, rows: list[dict[str, str]]) -> Table:
    # Columns that say nothing would make the others too narrow.
    names = [name for name in rows[0] if name in _ALWAYS or any(row[name] not in _NOTHING for row in rows)]
    table = Table(*names, title=title)
    for column in table.columns:
        column.justify, column.no_wrap = ("left" if column.header == "policy" else "right"), True
    for row in rows:
        table.add_row(*map(row.__getitem__, names), style="bold" if row["policy"] == _RECORDED else None)
    return table


_RECORDED: Final = "recorded"
_ALWAYS: Final = ("policy", "servers", "in time", "shed")
_NOTHING: Final = ("", "0", "-")


def _recorded(record: dict[str, Any]) -> dict[str, str]:
    return {"policy": _RECORDED, "max age": ""} | _counts(record, record["shed"])


def _scenario(row: dict[str, Any]) -> dict[str, str]:
    age, shed = row["deadline_seconds"], sum(row["shed_by_reason"].values())
    return {"policy": row["policy"], "max age": "" if age is None else duration(age)} | _counts(row, shed)


def _counts(row: dict[str, Any], shed: int) -> dict[str, str]:
    wait = row.get("wait_p99_seconds")
    named = {"in time": "served_in_time", "late": "served_late", "failed": "failed", "waiting": "pending"}
    counts = {title: f"{row[name]:,}" for title, name in named.items()}
    more = {"shed": f"{shed:,}", "p99 wait": "-" if wait is None else duration(wait)}
    return {"servers": f"{row['servers']:,}"} | counts | more


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
        from freshq_pipeline.storage.results import checked_replay  # noqa: PLC0415 - an extra

        show_replay(checked_replay(result, "the result of the run"))  # its package may be of another version
    else:
        show_summary(result, {})  # the sentences are in the report
    if status:
        complain(message)
        raise typer.Exit(status)


@dataclass(slots=True)
class Batches:
    """The published batches of a stream. Call it with the summary of each.

    Attributes:
        out: The output folder.
        reports: Whether the report follows each batch; if not, it is written in the end.
        summary: That of the last batch, with the new violations of all; None: there was none.
    """

    out: Folder
    reports: bool
    summary: dict[str, Any] | None = None

    def __call__(self, summary: dict[str, Any]) -> None:
        """Take the summary of a batch."""
        self.summary = summary if self.summary is None else with_earlier(summary, self.summary)
        if not self.reports:
            return
        violated(summary)
        problems: list[Unfinished] = []
        report_on(self.out, problems)
        for problem in problems:
            complain(str(problem))  # the next batch writes it again
