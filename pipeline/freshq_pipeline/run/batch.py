"""`run`: everything that is new in a folder of events, to tables, a summary and a report."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from freshq_pipeline.errors import BadInput
from freshq_pipeline.ingest.inputs import input_files
from freshq_pipeline.run.stopwatch import Stopwatch
from freshq_pipeline.schemas import TABLES, Format
from freshq_pipeline.storage.state import SECONDS, SUMMARY, State, current, new_run_id, publish, table_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from freshq_pipeline.storage.folder import Folder

# Silver of more parts than this is written anew as one.
MAX_SILVER_PARTS: Final = 16
NAMESPACE: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


@dataclass(frozen=True, slots=True)
class Request:
    """What to run.

    Attributes:
        events: The folder with the files.
        out: The folder for everything that comes of them.
        form: How the files are written.
        as_of_ms: The moment to say outcomes at; None: the newest event.
        index_lag_seconds: How long a task need not be visible to claims.
        max_reject_ratio: Share of the records that may be unusable.
        keep_runs: How many runs stay.
        full_refresh: Whether to forget earlier runs and read everything again.
        iceberg: Catalog and namespace, with a dot between, that the tables go to as well; None: to none.
    """

    events: Folder
    out: Folder
    form: Format = Format.LANDED
    as_of_ms: int | None = None
    index_lag_seconds: float = 0.0
    max_reject_ratio: float = 0.2
    keep_runs: int = 5
    full_refresh: bool = False
    iceberg: str | None = None

    def __post_init__(self) -> None:
        """Check the numbers."""
        if not 0 <= self.max_reject_ratio <= 1:
            msg = f"max-reject-ratio: must be from 0 to 1, got {self.max_reject_ratio:g}"
            raise BadInput(msg)
        if self.keep_runs < 1:
            msg = f"keep-runs: must be 1 or more, got {self.keep_runs}"
            raise BadInput(msg)
        if self.as_of_ms is not None and self.as_of_ms <= 0:
            msg = f"as-of: must be milliseconds since the Unix epoch, got {self.as_of_ms}"
            raise BadInput(msg)
        if not 0 <= self.index_lag_seconds < float("inf"):
            msg = f"index-lag-seconds: must be 0 or more, got {self.index_lag_seconds:g}"
            raise BadInput(msg)
        if self.iceberg is not None and not NAMESPACE.fullmatch(self.iceberg):
            msg = f"iceberg: must be CATALOG.NAMESPACE, got {self.iceberg!r}"
            raise BadInput(msg)

    def options(self) -> dict[str, Any]:
        """Return what the tables depend on beside the events."""
        catalog = {} if self.iceberg is None else {"iceberg": self.iceberg}
        return {"as_of_ms": self.as_of_ms, "index_lag_seconds": self.index_lag_seconds} | catalog


@dataclass(frozen=True, slots=True)
class Plan:
    """What there is to do.

    Attributes:
        before: What earlier runs left, if it is built upon.
        files: All files there are.
        new: Those that were not read yet.
    """

    before: State | None
    files: dict[str, tuple[int, int]]
    new: list[str]


def as_before(request: Request) -> Request:
    """Return the request with the options of the current run of the same events, if there is one."""
    before = current(request.out)
    if before is None or before.events != request.events.uri:
        return request
    return replace(request, **before.options)


def plan(request: Request) -> Plan:
    """Look for files that were not read yet.

    Raises:
        BadInput: If there is nothing to read, or the output is of another format.
    """
    files = input_files(request.events, request.form)
    before = None if request.full_refresh else current(request.out)
    if before is not None and before.form != request.form.value:
        msg = f"format: {request.out.uri} has {before.form} events; use another folder, or --full-refresh"
        raise BadInput(msg)
    # A file that changed since it was read, or another folder: what was made of it cannot be kept.
    if before is not None and (before.events != request.events.uri or _changed(before, files)):
        before = None
    known = set() if before is None else before.files.keys()
    return Plan(before, files, sorted(files.keys() - known))


def _changed(before: State, files: dict[str, tuple[int, int]]) -> bool:
    return any(path in files and list(files[path]) != seen for path, seen in before.files.items())


def execute(request: Request, session: Callable[[], AbstractContextManager[SparkSession]]) -> dict[str, Any]:
    """Run, publish, and return the summary.

    Args:
        request: What to run.
        session: Starts Spark; not called if there is nothing new.

    Raises:
        PipelineError: If it failed; then nothing was published.
    """
    todo = plan(request)
    before = todo.before
    if before is not None and not todo.new and before.options == request.options():
        kept: dict[str, Any] = request.out.read_json(f"runs/{before.run_id}/{SUMMARY}")
        return kept
    with session() as spark:
        return advance(spark, request, todo)


def advance(spark: SparkSession, request: Request, todo: Plan) -> dict[str, Any]:
    """Read what is new, make all tables of everything, publish them, and return the summary.

    Raises:
        PipelineError: If it failed; then nothing was published.
    """
    state = State(new_run_id(), request.events.uri, request.form.value, options=request.options())
    if todo.before is not None:
        before = todo.before
        state.silver, state.files = list(before.silver), dict(before.files)
        state.counts, state.reasons = dict(before.counts), dict(before.reasons)
    try:
        return _work(spark, request, todo, state)
    except BaseException:
        for place in ("runs", "silver"):
            request.out.delete(f"{place}/{state.run_id}")
        raise


def _work(spark: SparkSession, request: Request, todo: Plan, state: State) -> dict[str, Any]:
    from freshq_pipeline.ingest.silver import ingest, write_silver  # noqa: PLC0415 - loads Spark
    from freshq_pipeline.run import catalog  # noqa: PLC0415 - loads Spark
    from freshq_pipeline.tables.gold import Choices, build, read_silver  # noqa: PLC0415 - loads Spark

    out, watch = request.out, Stopwatch()
    if request.iceberg is not None:
        catalog.require(spark, request.iceberg)
    if todo.new:
        with watch.part("read"):
            found = ingest(
                spark, request.events, todo.new, request.form, out, state.run_id, request.max_reject_ratio
            )
        state.silver = [*state.silver, state.run_id]
        more = {"records": found.records, "no_task": found.no_task, "accepted": found.accepted}
        state.counts = dict(Counter(state.counts) + Counter(more))
        state.reasons = dict(Counter(state.reasons) + Counter(found.reasons))
        state.files |= {path: list(todo.files[path]) for path in todo.new}
    if len(state.silver) > MAX_SILVER_PARTS:
        folded = f"{state.run_id}-all"
        write_silver(read_silver(spark, out, state.silver), out.at(f"silver/{folded}"))
        state.silver = [folded]
    choices = Choices(request.as_of_ms, request.index_lag_seconds)
    figures = build(spark, out, state.silver, state.run_id, choices, watch.part)
    out.write_json(f"runs/{state.run_id}/{SECONDS}", watch.seconds)
    summary = summarize(state, figures, out)
    if request.iceberg is not None:
        summary |= catalog.commit(spark, out, state.run_id, request.iceberg)
    publish(out, state, summary, request.keep_runs)
    return summary


def summarize(state: State, figures: dict[str, Any], out: Folder) -> dict[str, Any]:
    """Return the summary: records read = distinct + duplicates + quarantined + of no task.

    Args:
        state: Of the run.
        figures: From `gold.build`.
        out: Where the tables are.
    """
    counts = Counter(state.counts)
    figures = dict(figures)
    distinct = figures.pop("events_distinct")
    return {
        "run_id": state.run_id,
        "events_read": counts["records"],
        "events_distinct": distinct,
        "events_duplicate": counts["accepted"] - distinct,
        "events_quarantined": sum(state.reasons.values()),
        "events_no_task": counts["no_task"],
        "quarantined_by_reason": dict(sorted(state.reasons.items())),
        **figures,
        "tables": {name: out.at(table_path(state.run_id, name)) for name in TABLES},
    }
