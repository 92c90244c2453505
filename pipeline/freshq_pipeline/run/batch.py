"""`run`: read the new files of a folder, compute all tables, and publish them."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from freshq_pipeline.errors import BadInput
from freshq_pipeline.ingest.inputs import input_files
from freshq_pipeline.run.stopwatch import Stopwatch
from freshq_pipeline.schemas import TABLES
from freshq_pipeline.spark.tuning import Tuning, tuning_for, uncompressed_bytes
from freshq_pipeline.storage.state import SECONDS, SUMMARY, State, current, new_run_id, publish, table_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from freshq_pipeline.run.progress import RunProgress
    from freshq_pipeline.run.request import RunRequest
    from freshq_pipeline.storage.folder import Folder

# With more silver parts than this, a run rewrites them as one.
MAX_SILVER_PARTS: Final = 16


@dataclass(frozen=True, slots=True)
class RunPlan:
    """What a run has to do.

    Attributes:
        before: State of the run to build on; None: start from nothing.
        files: All files of the folder, each with size and time.
        new: Paths of the files that no run has read yet.
    """

    before: State | None
    files: dict[str, tuple[int, int]]
    new: list[str]

    def tuning(self) -> Tuning:
        """Return the settings of Spark for the files of this run and of those before, which silver holds."""
        known = {} if self.before is None else self.before.files
        sizes_bytes = {path: seen[0] for path, seen in (known | self.files).items()}
        return tuning_for(uncompressed_bytes(sizes_bytes))


def as_before(request: RunRequest) -> RunRequest:
    """Return the request with the options that made the current tables, if these are of the same events."""
    before = current(request.out)
    if before is None or before.events != request.events.uri:
        return request
    return replace(request, options=replace(request.options, **before.options))


def plan(request: RunRequest) -> RunPlan:
    """Find the files that no run has read yet.

    Raises:
        BadInput: If there are no files, or the earlier runs read another format.
    """
    options = request.options
    files = input_files(request.events, options.form)
    before = None if options.full_refresh else current(request.out)
    if before is not None and before.form != options.form.value:
        msg = f"format: {request.out.uri} has {before.form} events; use another folder, or --full-refresh"
        raise BadInput(msg)
    # Another folder, or a file that changed after it was read: silver is no longer valid.
    if before is not None and (before.events != request.events.uri or _changed(before, files)):
        before = None
    known = set() if before is None else before.files.keys()
    return RunPlan(before, files, sorted(files.keys() - known))


def _changed(before: State, files: dict[str, tuple[int, int]]) -> bool:
    return any(path in files and list(files[path]) != seen for path, seen in before.files.items())


def execute(
    request: RunRequest,
    session: Callable[[Tuning], AbstractContextManager[SparkSession]],
    progress: RunProgress | None = None,
) -> dict[str, Any]:
    """Run, publish, and return the summary.

    Args:
        request: What to run.
        session: Starts Spark with settings for the input; not called if nothing is new.
        progress: Where to show progress; None: nowhere.

    Raises:
        PipelineError: If the run failed; nothing was published.
    """
    request = request.with_recorded_lag()
    todo = plan(request)
    before = todo.before
    if before is not None and not todo.new and before.options == request.options.of_tables():
        kept: dict[str, Any] = request.out.read_json(f"runs/{before.run_id}/{SUMMARY}")
        return kept
    watch, tuning = Stopwatch(), todo.tuning()
    if progress is not None:
        progress.begin("start", f"for a {tuning.name} input")
        watch.begun = progress.begin
    with (
        session(tuning) as spark,
        nullcontext() if progress is None else progress.follow(spark),
    ):
        return execute_plan(spark, request, todo, watch)


def execute_plan(spark: SparkSession, request: RunRequest, todo: RunPlan, watch: Stopwatch) -> dict[str, Any]:
    """Read the new files, compute all tables from all silver, publish them, and return the summary.

    Raises:
        PipelineError: If the run failed; nothing was published.
    """
    options = request.options
    state = State(new_run_id(), request.events.uri, options.form.value, options=options.of_tables())
    if todo.before is not None:
        before = todo.before
        state.silver, state.files = list(before.silver), dict(before.files)
        state.counts, state.reasons = dict(before.counts), dict(before.reasons)
        state.unknown_fields = dict(before.unknown_fields)
    try:
        return _work(spark, request, todo, state, watch)
    except BaseException:
        for folder in ("runs", "silver"):
            request.out.delete(f"{folder}/{state.run_id}")
        raise


def _work(
    spark: SparkSession, request: RunRequest, todo: RunPlan, state: State, watch: Stopwatch
) -> dict[str, Any]:
    from freshq_pipeline.run import catalog  # noqa: PLC0415 - loads Spark
    from freshq_pipeline.tables.gold import TableOptions, build  # noqa: PLC0415 - loads Spark

    out, options = request.out, request.options
    if options.iceberg is not None:
        catalog.require(spark, options.iceberg)
    if todo.new:
        with watch.part("read"):
            _ingest(spark, request, todo, state)
    if len(state.silver) > MAX_SILVER_PARTS:
        _compact(spark, out, state)
    table_options = TableOptions(options.as_of_ms, options.index_lag_seconds or 0.0)
    figures = build(spark, out, state.silver, state.run_id, table_options, watch.part)
    out.write_json(f"runs/{state.run_id}/{SECONDS}", watch.seconds)
    summary = summarize(state, figures, out)
    if options.iceberg is not None:
        summary |= catalog.commit(spark, out, state.run_id, options.iceberg)
    publish(out, state, summary, options.keep_runs)
    return summary


def _ingest(spark: SparkSession, request: RunRequest, todo: RunPlan, state: State) -> None:
    """Write the new files as a silver part, and add them to the state."""
    from freshq_pipeline.ingest.silver import ingest  # noqa: PLC0415 - loads Spark

    form, ratio = request.options.form, request.options.max_reject_ratio
    sizes_bytes = {path: todo.files[path][0] for path in todo.new}
    found = ingest(spark, request.events, sizes_bytes, form, request.out, state.run_id, ratio)
    names = ("records", "no_task", "accepted", "with_unknown_fields")
    more = {name: getattr(found, name) for name in names}
    if request.out.exists(f"silver/{state.run_id}"):
        state.silver.append(state.run_id)
    if not state.silver:
        raise BadInput("events: no file in them is readable")
    state.counts = dict(Counter(state.counts) + Counter(more))
    state.reasons = dict(Counter(state.reasons) + Counter(found.reasons))
    state.unknown_fields = dict(Counter(state.unknown_fields) + Counter(found.unknown_fields))
    state.files |= {path: list(todo.files[path]) for path in todo.new}


def _compact(spark: SparkSession, out: Folder, state: State) -> None:
    """Rewrite all silver parts as one."""
    from freshq_pipeline.ingest.silver import write_silver  # noqa: PLC0415 - loads Spark
    from freshq_pipeline.tables.gold import read_silver  # noqa: PLC0415 - loads Spark

    compacted = f"{state.run_id}-all"
    write_silver(read_silver(spark, out, state.silver), out.at(f"silver/{compacted}"))
    state.silver = [compacted]


def summarize(state: State, figures: dict[str, Any], out: Folder) -> dict[str, Any]:
    """Return the summary: records read = distinct + duplicates + after as-of + quarantined + of no task.

    Args:
        state: State of the run.
        figures: From `gold.build`.
        out: Folder with the tables.
    """
    counts = Counter(state.counts)
    figures = dict(figures)
    distinct, later = figures.pop("events_distinct"), figures.pop("events_after_as_of")
    return {
        "run_id": state.run_id,
        "events_read": counts["records"],
        "events_distinct": distinct,
        "events_duplicate": counts["accepted"] - distinct - later,
        "events_after_as_of": later,
        "events_quarantined": sum(state.reasons.values()),
        "events_no_task": counts["no_task"],
        "quarantined_by_reason": dict(sorted(state.reasons.items())),
        "events_with_unknown_fields": counts["with_unknown_fields"],
        "unknown_fields": dict(sorted(state.unknown_fields.items())),
        "index_lag_seconds": state.options["index_lag_seconds"],
        **figures,
        "tables": {name: out.at(table_path(state.run_id, name)) for name in TABLES},
    }
