"""The end of a command: its report, its output on the terminal, and its exit status."""

from __future__ import annotations

import atexit
import errno
import json
import os
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typing_extensions import override

from freshq_pipeline.errors import (
    DIFFERENCE_STATUS,
    REPORT_STATUS,
    VIOLATION_STATUS,
    PipelineError,
    ReportFailed,
    Unfinished,
    cause,
    check_installed,
    complain,
    unfinished,
)
from freshq_pipeline.report.words import (
    MISSING_EVENTS,
    cell,
    conclusions,
    difference,
    duration,
    heading,
    queue_name,
    replayed_days,
    share,
)
from freshq_pipeline.storage.results import (
    NEW,
    SUMMARY,
    checked_replay,
    damage_text,
    published_summary,
    with_earlier,
    without_new,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from freshq_pipeline.report.lineage import Lineage
    from freshq_pipeline.storage.folder import Folder


_PAGE: Final = "freshq_pipeline.report.page"
# What the report needs.
PACKAGES: Final = ("altair", "pandas", "vl_convert")
# How long an ending process waits for them to load.
LOADING_SECONDS: Final = 30.0
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
    check_installed(*PACKAGES)
    loading = threading.Thread(target=_load, name="report", daemon=True)
    loading.start()
    # The process ends after this thread: Python ends a daemon thread by unwinding its stack, and C++ code of
    # a package that is being loaded would abort the process. The wait has an end, because a signal that
    # interrupts an import in the main thread may leave Python's import lock held, and this thread stuck.
    atexit.register(loading.join, LOADING_SECONDS)


def _load() -> None:
    with suppress(Exception):  # the report imports them again, and reports the error
        import_module(_PAGE)


class _Output(Console):
    """Standard output. If its reader is gone, Rich by itself would end the process with status 1."""

    @override
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def show_summary(summary: dict[str, Any], headlines: Mapping[str, str]) -> None:
    """Print the figures of a summary, of all queues together and of each.

    Args:
        summary: The summary.
        headlines: A sentence for each queue; empty if unknown.
    """
    figures = {name: value for name, value in summary.items() if not isinstance(value, dict | list)}
    console = _Output()
    if (damaged := damage_text(summary)) is not None:
        _emphasize(f"{damaged}. {MISSING_EVENTS}")
    for queue, sentence in headlines.items():
        named = f"{queue}: {sentence}" if len(headlines) > 1 else sentence
        console.print(named, style="bold", soft_wrap=True, markup=False, highlight=False)
    _print(console, "what happened", {"value": figures})
    if queues := summary["queues"]:
        _print_queues(console, queues)


def _emphasize(line: str) -> None:
    _Output().print(line, style="bold red", soft_wrap=True, markup=False, highlight=False)


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
    console = _Output()
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
    # Both would not fit a terminal.
    if row.get("value_offered"):
        last = {"value": share(row["value_delivered"], row["value_offered"])}
    else:
        last = {"p99 wait": "-" if wait is None else duration(wait)}
    more = {"shed": f"{shed:,}"} | last
    return {"servers": f"{row['servers']:,}"} | counts | more


# Exit statuses with the line that explains each, the first one first.
Warnings: TypeAlias = "list[tuple[int, str]]"
# Failures since the publication, in the line of JSON.
PROBLEMS: Final = "problems"


@dataclass(slots=True)
class Ending:
    """The end of a command: the run that it published, and everything that failed afterwards.

    Such a failure is a line of the summary and of standard error, and an exit status. It never hides the
    summary or the violations, which no later run reports as new.

    Attributes:
        out: The output folder.
        begun: Called with the name of the part `report` when it begins.
        of_each_batch: Whether to write a report after each batch of a stream, not only at its end.
        summary: Summary of the published run, for a stream with the new violations of all batches; None:
            nothing is published yet.
        problems: Failures since then. The first one decides the exit status.
        headlines: A sentence for each queue; empty if unknown.
        lineage: Events for a catalogue; None: nobody asked for them.
    """

    out: Folder
    begun: Callable[[str], None] = lambda _part: None
    lineage: Lineage | None = None
    of_each_batch: bool = False
    summary: dict[str, Any] | None = None
    problems: list[PipelineError] = field(default_factory=list)
    headlines: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def postponed(self) -> Iterator[None]:
        """Postpone an error in the block to the end of the command, if a run is published by then."""
        if self.lineage is not None:
            self.lineage.start()
        try:
            yield
        except BaseException as error:
            if self.summary is None and isinstance(error, Unfinished):
                self.summary = error.summary
            if self.summary is None or not isinstance(error, Exception):
                self._tell(error)
                raise
            known = error if isinstance(error, PipelineError) else None
            self.problems.append(known or unfinished(self.out.uri, error, self.summary))

    def take_current(self) -> None:
        """Take the summary of the current run, if this command published none.

        Raises:
            BadInput: If there is no run.
        """
        with self.postponed():
            if self.summary is None:
                self.summary = without_new(published_summary(self.out))

    def report(self) -> None:
        """Write the report of the current run."""
        self.begun("report")
        again = f"run `freshq-pipeline report --out {self.out.uri}`"
        with self._attempt("the report is not", again):
            from freshq_pipeline.report.page import write_report  # noqa: PLC0415 - loaded while Java starts

            self.headlines = write_report(self.out)

    def finish(self, *, as_json: bool) -> None:
        """Print headlines and summary; exit with `VIOLATION_STATUS` if there are new ledger violations.

        Raises:
            PipelineError: If there are problems.
        """
        warnings = self._checked(violations)
        summary = self.summary or {}
        self._print(summary if as_json else None, lambda: show_summary(summary, self.headlines))
        self._exit(warnings)

    def finish_replay(self, result: dict[str, Any] | None, *, as_json: bool) -> None:
        """Print a replay; exit with `DIFFERENCE_STATUS` if it differs too much from the recording.

        New ledger violations take precedence.

        Args:
            result: The result; None if the replay failed.
            as_json: Whether to print the result as JSON.

        Raises:
            PipelineError: If there are problems.
        """
        warnings = self._checked(violations)
        if result is not None:
            warnings += self._checked(lambda _summary: differences(result))
        new = {NEW: (self.summary or {}).get(NEW)}
        show = (lambda: None) if result is None else partial(show_replay, result)
        self._print((result or {}) | new if as_json else None, show)
        self._exit(warnings)

    def batch(self, summary: dict[str, Any]) -> None:
        """Count a published batch of a stream, and report on it if that is wanted."""
        self.summary = summary if self.summary is None else with_earlier(summary, self.summary)
        if self.lineage is not None:
            self.lineage.batch(summary)
        if not self.of_each_batch:
            return
        for _, line in self._checked(lambda _all: violations(summary)):
            complain(line)
        self.report()
        for problem in self.problems:
            complain(str(problem))
        self.problems.clear()  # the next batch tries again

    def _tell(self, error: BaseException | None) -> None:
        if self.lineage is not None:
            self.lineage.end(self.summary, error)

    def _checked(self, check: Callable[[dict[str, Any]], Warnings]) -> Warnings:
        found: Warnings = []
        with self._attempt("they cannot be checked", f"see {self.out.at(SUMMARY)}"):
            found.extend(check(self.summary or {}))
        return found

    def _print(self, as_json: dict[str, Any] | None, show: Callable[[], object]) -> None:
        """Print a result, and the problems so far."""
        said = [str(problem) for problem in self.problems]
        with self._attempt("the result is not printed", f"see {self.out.at(SUMMARY)}"):
            if as_json is not None:
                typer.echo(json.dumps(as_json | {PROBLEMS: said}))
                return
            for line in said:
                _emphasize(line)
            show()

    @contextmanager
    def _attempt(self, failed: str, then: str) -> Iterator[None]:
        """Turn any error in the block into a problem.

        Args:
            failed: What is missing then.
            then: What to do about it.
        """
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - an error in Rust, which draws charts, is no Exception
            text = f"the tables in {self.out.uri} are published, but {failed}: {cause(error)}; {then}"
            self.problems.append(ReportFailed(text))

    def _exit(self, warnings: Warnings) -> None:
        """Print all warnings and problems; exit with the status of the first problem, or else warning."""
        # An `Unfinished` command has made its tables.
        self._tell(next((one for one in self.problems if not isinstance(one, Unfinished)), None))
        for _, line in warnings:
            complain(line)
        for problem in self.problems[:0:-1]:
            complain(str(problem))
        if self.problems:
            raise self.problems[0]  # printed last, where `submit` looks for the reason
        if warnings:
            raise typer.Exit(warnings[0][0])


def violations(summary: dict[str, Any]) -> Warnings:
    """Return a warning if a summary has new ledger violations."""
    if not summary[NEW]:
        return []
    total = summary["ledger_violations"]
    text = f"ledger violations: {summary[NEW]} new, {total} in all; see the table violations"
    return [(VIOLATION_STATUS, text)]


def differences(result: dict[str, Any]) -> Warnings:
    """Return a warning for each queue of a replay that differs too much from the recording."""
    off = [one["check"] for one in result["queues"] if not one["check"]["within"]]
    begin = f"the results are written; status {DIFFERENCE_STATUS} warns about them"
    return [(DIFFERENCE_STATUS, f"{begin}: {difference(check)}") for check in off]


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
    if status == REPORT_STATUS and not of_replay:
        for _, line in violations(result):
            complain(line)
    if status:
        complain(message)
        raise typer.Exit(status)
