"""How a command ends: its report, its output on the terminal, and its exit status."""

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
    MISSING_EVENTS,
    cell,
    conclusions,
    difference,
    duration,
    heading,
    queue_name,
    replayed_days,
)
from freshq_pipeline.storage.results import NEW, checked_replay, damage_text, with_earlier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from freshq_pipeline.storage.folder import Folder


_PAGE: Final = "freshq_pipeline.report.page"
_PACKAGES: Final = ("altair", "pandas", "vl_convert")
# Number of queues in a table.
MAX_QUEUES: Final = 6
# Figures that are shown even if they are 0.
ALWAYS: Final = ("tasks", "ledger_violations")
_RECORDED: Final = "recorded"
_ALWAYS: Final = ("policy", "servers", "in time", "shed")
_NOTHING: Final = ("", "0", "-")


def load_ahead() -> None:
    """Start loading the report's modules while Java starts: they take a second, and are needed last.

    Raises:
        ModuleNotFoundError: If a package that they need is not installed.
    """
    for package in _PACKAGES:
        if find_spec(package) is None:
            msg = f"No module named {package!r}"
            raise ModuleNotFoundError(msg, name=package)
    # The process ends after this thread: Python ends a daemon thread by unwinding its stack, and C++ code of
    # a package that is being loaded would abort the process.
    threading.Thread(target=import_module, args=(_PAGE,), name="report").start()


def show_summary(summary: dict[str, Any], headlines: Mapping[str, str]) -> None:
    """Print the figures of a summary, of all queues together and of each.

    Args:
        summary: The summary.
        headlines: A sentence for each queue; empty if unknown.
    """
    figures = {name: value for name, value in summary.items() if not isinstance(value, dict | list)}
    console = Console()
    if (damaged := damage_text(summary)) is not None:
        console.print(
            f"{damaged}. {MISSING_EVENTS}", style="bold red", soft_wrap=True, markup=False, highlight=False
        )
    for queue, sentence in headlines.items():
        named = f"{queue}: {sentence}" if len(headlines) > 1 else sentence
        console.print(named, style="bold", soft_wrap=True, markup=False, highlight=False)
    _print(console, "what happened", {"value": figures})
    # Summaries of older packages on a cluster lack it.
    if "queues" in summary:
        _print_queues(console, summary["queues"])


def _print_queues(console: Console, queues: list[dict[str, Any]]) -> None:
    """Print a table with a column for each of the largest queues."""
    shown = sorted(queues, key=lambda row: -row["tasks"])[:MAX_QUEUES]
    title = "by queue" if len(shown) == len(queues) else f"the {MAX_QUEUES} largest of {len(queues)} queues"
    columns = {
        queue_name(row["queue"]): {name: row[name] for name in row if name != "queue"} for row in shown
    }
    _print(console, title, columns)


def _print(console: Console, title: str, columns: Mapping[str, Mapping[str, Any]]) -> None:
    """Print columns of figures; figures that are 0 in all columns go into one line below."""
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
    """Print the recording and the scenarios of each queue, and conclusions."""
    console = Console()
    for one in result["queues"]:
        scenarios = [row for row in result["scenarios"] if row["queue"] == one["queue"]]
        title = "what would have happened"
        if one["queue"]:
            title = f"queue {one['queue']}: {title}"
        console.print(_scenarios(escape(title), [_recorded(one["record"]), *map(_scenario, scenarios)]))
    for text in (*conclusions(result), f"{replayed_days(result)}.", result["record"]["imputation"]):
        console.print(text, soft_wrap=True, markup=False, highlight=False)


def _scenarios(title: str, rows: list[dict[str, str]]) -> Table:
    # Empty columns would make the other columns too narrow.
    names = [name for name in rows[0] if name in _ALWAYS or any(row[name] not in _NOTHING for row in rows)]
    table = Table(*names, title=title)
    for column in table.columns:
        column.justify, column.no_wrap = ("left" if column.header == "policy" else "right"), True
    for row in rows:
        table.add_row(*map(row.__getitem__, names), style="bold" if row["policy"] == _RECORDED else None)
    return table


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
    """Collect the error of a published run, so that report and summary come first."""
    problems: list[Unfinished] = []
    try:
        yield problems
    except Unfinished as error:
        problems.append(error)


def report_on(out: Folder, problems: list[Unfinished]) -> dict[str, str]:
    """Write the report of the current run; return its headlines. If it fails, add to the problems."""
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
    _exit(problems, (violated(summary), VIOLATION_STATUS))


def _exit(problems: Sequence[Unfinished], *statuses: tuple[bool, int]) -> None:
    """Raise the first problem, or otherwise exit with the first status that applies."""
    for problem in problems:
        raise problem
    for applies, status in statuses:
        if applies:
            raise typer.Exit(status)


def violated(summary: dict[str, Any]) -> bool:
    """Return whether there are new ledger violations, and report them."""
    if not summary[NEW]:
        return False
    total = summary["ledger_violations"]
    complain(f"ledger violations: {summary[NEW]} new, {total} in all; see the table violations")
    return True


def finish_replay(
    result: dict[str, Any], summary: dict[str, Any], problems: Sequence[Unfinished] = (), *, as_json: bool
) -> None:
    """Print the result of a replay; exit with `DIFFERENCE_STATUS` if it differs too much from the recording.

    New ledger violations take precedence, because no later run reports them as new.

    Args:
        result: The result.
        summary: Summary of the run that preceded the replay.
        problems: Failures after the run was published.
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
        complain(f"the results are written; status {DIFFERENCE_STATUS} warns about them: {difference(check)}")
    _exit(problems, (has_new, VIOLATION_STATUS), (bool(off), DIFFERENCE_STATUS))


def finish_submitted(
    result: dict[str, Any], status: int, message: str, *, of_replay: bool, as_json: bool
) -> None:
    """Print the result of a run on a cluster, and exit with the status of the run.

    Args:
        result: The summary, or the result of a replay.
        status: Exit status of the run.
        message: Last line that the run wrote to standard error; ignored if the status is 0.
        of_replay: Whether the run was a replay.
        as_json: Whether to print the result as JSON.
    """
    if as_json:
        typer.echo(json.dumps(result))
    elif of_replay:
        show_replay(checked_replay(result, "the result of the run"))  # the cluster's package may differ
    else:
        show_summary(result, {})  # the headlines are in the report
    if status:
        complain(message)
        raise typer.Exit(status)


@dataclass(slots=True)
class BatchReports:
    """Reports on the batches of a stream. Call it with the summary of each published batch.

    Attributes:
        out: The output folder.
        reports: Whether to write a report after each batch, not only at the end.
        begun: Called when a report begins.
        summary: Summary of the last batch, with the new violations of all batches; None: no batch yet.
    """

    out: Folder
    reports: bool
    begun: Callable[[str], None] = lambda _part: None
    summary: dict[str, Any] | None = None

    def __call__(self, summary: dict[str, Any]) -> None:
        """Report on a batch."""
        self.summary = summary if self.summary is None else with_earlier(summary, self.summary)
        if not self.reports:
            return
        violated(summary)
        problems: list[Unfinished] = []
        self.begun("report")
        report_on(self.out, problems)
        for problem in problems:
            complain(str(problem))  # the next batch tries again
