"""`run`: read the new files of a folder, compute the tables that change, and publish them.

A run builds on the previous one. First come the checks that this is possible, then the run itself.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from freshq_pipeline.errors import BadInput, PipelineError, once_published
from freshq_pipeline.ingest.inflation import stored_digest
from freshq_pipeline.ingest.inputs import input_files, is_redelivered
from freshq_pipeline.runs.progress import Stopwatch
from freshq_pipeline.schemas import TABLES
from freshq_pipeline.spark.tuning import INFLATION, Tuning, tuning_for, uncompressed_bytes
from freshq_pipeline.storage.addresses import normalized
from freshq_pipeline.storage.days import HOUR_US, iso, known_hours, recorded_days
from freshq_pipeline.storage.recording import IndexLag
from freshq_pipeline.storage.registration import registry_of
from freshq_pipeline.storage.results import SUMMARY, damage, without_new
from freshq_pipeline.storage.state import (
    SECONDS,
    State,
    check_current,
    current,
    draft,
    end_publication,
    new_run_id,
    only_run,
    prune_killed,
    publish,
    published_runs,
    silver_path,
)
from freshq_pipeline.storage.table_files import (
    MANIFEST,
    PUBLISHED,
    check_tables,
    has_links,
    missing_file,
    paths_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from freshq_pipeline.runs.progress import RunProgress
    from freshq_pipeline.runs.request import Options, RunRequest
    from freshq_pipeline.storage.folder import Folder
    from freshq_pipeline.storage.registration import Registry


# Fields of the previous state that a run extends.
_INHERITED: Final = (
    "days", "files", "damaged", "indexed", "ids", "starts_us", "last_us", "final_until", "counts", "reasons",
    "unknown_fields",
)  # fmt: skip


def check_same_events(request: RunRequest, before: State, files: dict[str, tuple[int, int]]) -> list[str]:
    """Check that the folder still has the files that earlier runs read; deleted files do not matter.

    Returns:
        Damaged files that arrived again.

    Raises:
        BadInput: If the folder or the format differs, or files have changed.
    """
    out, events, form = request.out.uri, request.events.uri, request.options.form.value
    anew = "use another --out, or make all tables anew with `run --full-refresh`"
    if before.form != form:
        msg = f"format: {out} has {before.form} events, not {form}; give --format {before.form}, {anew}"
        raise BadInput(msg)
    if normalized(before.events) != normalized(events):
        msg = f"events: {out} was made from {before.events}, not from {events}; {anew}"
        raise BadInput(msg)
    other = [
        path
        for path, seen in before.files.items()
        if path in files and _differs(request, path, files[path], seen)
    ]
    again = _redelivered(request, before, files, other)
    changed = [path for path in other if path not in again]
    if changed:
        gone = len(before.files.keys() - files.keys())
        msg = f"events: files in {events} changed after {out} was made from them: {_some(changed)}; {anew}"
        msg += f", which loses the events of files that are gone: {gone}" if gone else ""
        raise BadInput(msg)
    return again


def _differs(request: RunRequest, path: str, now: tuple[int, int], seen: list[Any]) -> bool:
    """Return whether a file has other content than when it was read.

    Copies, checkouts and restored backups have other times, but the same content.
    """
    size_bytes, modified_ns, digest = seen
    if now == (size_bytes, modified_ns):
        return False
    return bool(now[0] != size_bytes or stored_digest(request.events, path) != digest)


def _redelivered(
    request: RunRequest, before: State, files: dict[str, tuple[int, int]], paths: list[str]
) -> list[str]:
    """Return the damaged files that changed and now begin with the lines read earlier."""
    known, events = before.damaged, request.events
    return [
        path for path in paths if path in known and is_redelivered(events, path, files[path][0], known[path])
    ]


def _some(paths: list[str]) -> str:
    """Return the first path and the number of other paths."""
    return paths[0] + (f" and {len(paths) - 1} more" if len(paths) > 1 else "")


def changed_options(before: State, options: Options, lag: IndexLag) -> list[str]:
    """Describe the options that change all tables, and index lags, that differ from before.

    Args:
        before: State of the previous run.
        options: Options of this run.
        lag: Lags of this run.
    """
    lag_before = IndexLag(**before.index_lag)
    values = [
        (name.removesuffix("_ms").replace("_", "-"), before.options.get(name), value)
        for name, value in options.of_tables().items()
    ]
    values += [
        (f"the index lag of the queue {queue!r} in seconds", lag_before.of(queue), lag.of(queue))
        for queue in before.starts_us
    ]
    return [f"{name} was {_text(was)}, now it is {_text(now)}" for name, was, now in values if was != now]


def _text(value: object) -> str:
    return "not given" if value is None else str(value)


def check_deleted(before: State, changed: list[str]) -> None:
    """Check that no events are deleted, if an option changes all tables.

    Args:
        before: State of the previous run.
        changed: Changed options, from `changed_options`.

    Raises:
        BadInput: If an option changed and events are deleted.
    """
    gone = [day for day, known in before.days.items() if known.forgotten]
    if changed and gone:
        msg = f"options: {changed[0]}; that changes all tables, but the events of {iso(min(gone))} to "
        msg += f"{iso(max(gone))} were deleted (keep-silver-days); leave it as it was, or use --full-refresh"
        raise BadInput(msg)


def check_recorded(state: State, options: Options) -> None:
    """Check that some of the days to compute again are recorded.

    Raises:
        BadInput: If none are.
    """
    days = recorded_days(state.days, state.last_us or 0)
    if options.again() and days and not any(map(options.again_on, days)):
        name = "until" if options.since is None else "since"
        wanted = f"{options.since or 'the first'} to {options.until or 'the last'}"
        msg = f"{name}: no day from {wanted} is recorded; those from {iso(min(days))} to {iso(max(days))} are"
        raise BadInput(msg)


@contextmanager
def missing_named(out: Folder, before: State | None) -> Iterator[None]:
    """If a run fails and a file of the previous run is missing, name the file in the error.

    Checking for missing files only after a failure saves listing them before each run.

    Args:
        out: The output folder.
        before: State of the previous run; None if there is none to build on.

    Raises:
        BadInput: If the block raised anything but a PipelineError, and a file is missing.
    """
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        missing = None if before is None else _missing(out, before)
        if missing is None:
            raise
        raise missing_file(out.at(missing)) from error


def _missing(out: Folder, before: State) -> str | None:
    """Return a missing file, or day of silver, that the next run may need; None if nothing is missing."""
    needed = {path for table in before.tables for path in paths_of(before.tables, table)}
    found = {file.path for folder in {path.split("/")[0] for path in needed} for file in out.files(folder)}
    silver = {silver_path(part, day) for day, known in before.days.items() for part in known.silver}
    kept = {file.path.rpartition("/")[0] for file in out.files("silver")}
    return min((needed - found) | (silver - kept), default=None)


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The work of a run.

    Attributes:
        before: State of the run to build on; None: start from nothing.
        files: Size and time of all files in the folder, by path.
        new: Paths of the files that no run has read yet.
        lag: Index lag by queue.
        again: Whether to compute days even if they have not changed.
        registry: Catalog in which to register the tables; None: none.
        published: Ids of the newest published runs, including runs to ignore.
    """

    before: State | None
    files: dict[str, tuple[int, int]]
    new: list[str]
    lag: IndexLag = field(default_factory=IndexLag)
    again: bool = False
    registry: Registry | None = None
    published: list[str] = field(default_factory=list)

    def tuning(self) -> Tuning:
        """Return Spark's settings for the new files and the hours of silver that they may reopen."""
        new_bytes = uncompressed_bytes({path: self.files[path][0] for path in self.new})
        return tuning_for(new_bytes + INFLATION * self._silver_bytes())

    def _silver_bytes(self) -> int:
        """Return the size of silver in hours that may be computed."""
        if self.before is None:
            return 0
        open_from_us, days = self.before.as_of_us - HOUR_US, self.before.days.values()
        chosen = {hour for hour, known in known_hours(days).items() if known.last_us >= open_from_us}
        return sum(day.silver_bytes(None if self.again else chosen) for day in days)


def as_before(request: RunRequest) -> RunRequest:
    """Return the request with the options that made the current tables, if they are of the same events."""
    before = current(request.out)
    if before is None or normalized(before.events) != normalized(request.events.uri):
        return request
    options = replace(request.options, keep_runs=before.keep_runs, **before.options)
    return replace(request, options=options)


def plan(request: RunRequest) -> RunPlan:
    """Find the work for a run.

    Raises:
        BadInput: If there are no files, earlier runs read other events, or the catalog cannot be used.
    """
    options = request.options
    check_tables(request.out)
    files = input_files(request.events, options.form)
    published = published_runs(request.out)
    before = None if options.full_refresh else current(request.out)
    again = [] if before is None else check_same_events(request, before, files)
    known = set() if before is None else before.files.keys() - set(again)
    new, lag = sorted(files.keys() - known), request.index_lag()
    changed = [] if before is None else changed_options(before, options, lag)
    if before is not None:
        check_deleted(before, changed)
        if not new:
            check_recorded(before, options)
    anew = before is not None and bool(options.again() or changed)
    registry = registry_of(request.out, options.catalog)
    return RunPlan(before, files, new, lag, anew, registry, published)


def finish_last(request: RunRequest, todo: RunPlan) -> None:
    """Finish the publication of the previous run, which may have been killed or left without its catalog."""
    if todo.before is None:
        return
    end_publication(request.out, todo.before, request.options.keep_runs, todo.registry)


def execute(
    request: RunRequest,
    session: Callable[[Tuning], AbstractContextManager[SparkSession]],
    progress: RunProgress | None = None,
) -> dict[str, Any]:
    """Run, publish, and return the summary.

    Args:
        request: The request to run.
        session: Starts Spark with the given settings; not called if nothing is new.
        progress: Where to show progress; None: nowhere.

    Raises:
        Unfinished: If the run is published, but a later step failed.
        PipelineError: If the run failed; nothing was published.
    """
    todo = plan(request)
    before, tuning = todo.before, todo.tuning()
    with only_run(request.out):
        check_current(request.out, todo.published)
        prune_killed(request.out)
        if before is not None and not todo.new and not todo.again:
            kept = without_new(request.out.read_json(f"runs/{before.run_id}/{SUMMARY}"))
            with once_published(request.out.uri, [kept]):
                finish_last(request, todo)
            return kept
        watch = Stopwatch()
        if progress is not None:
            progress.begin("start", f"for a {tuning.name} input")
            watch.begun = progress.begin
        following = nullcontext if progress is None else progress.follow
        summaries = list[dict[str, Any]]()
        with once_published(request.out.uri, summaries), session(tuning) as spark, following(spark):
            summaries.append(execute_plan(spark, request, todo, watch))
        return summaries[0]


def execute_plan(spark: SparkSession, request: RunRequest, todo: RunPlan, watch: Stopwatch) -> dict[str, Any]:
    """Read the new files, compute and publish the tables, and return the summary.

    Raises:
        PipelineError: If the run failed; nothing was published.
    """
    options, before = request.options, todo.before
    inherited = {} if before is None else {name: deepcopy(getattr(before, name)) for name in _INHERITED}
    state = State(
        new_run_id(), request.events.uri, options.form.value, options=options.of_tables(),
        index_lag=asdict(todo.lag), published=list(todo.published), keep_runs=options.keep_runs, **inherited,
    )  # fmt: skip
    with draft(request.out, state), missing_named(request.out, before):
        summary = _work(spark, request, todo, state, watch)
    if todo.registry is not None:
        summary["catalog"] = str(todo.registry.name)
    publish(request.out, state, summary, options.keep_runs, todo.registry)
    return summary


def _work(
    spark: SparkSession, request: RunRequest, todo: RunPlan, state: State, watch: Stopwatch
) -> dict[str, Any]:
    from freshq_pipeline.gold.build import TableOptions, build
    from freshq_pipeline.gold.figures import with_new_violations
    from freshq_pipeline.runs.new_files import join_parts, read_new_files

    out, options = request.out, request.options
    if todo.new:
        with watch.part("read"):
            read_new_files(spark, request, {path: todo.files[path] for path in todo.new}, state)
    before = todo.before
    base = None if before is None or changed_options(before, options, todo.lag) else before
    if before is not None:
        check_recorded(state, options)
    table_options = TableOptions(options.as_of_ms, todo.lag, options.again_on, options.other_orders())
    figures = build(spark, out, state, base, table_options, watch.part)
    figures = with_new_violations(spark, figures, out, state, before)
    if options.keep_silver_days is not None:
        state.forget(options.keep_silver_days)
    join_parts(out, state)
    out.write_json(f"runs/{state.run_id}/{SECONDS}", watch.seconds)
    return summarize(state, figures, out)


def summarize(state: State, figures: dict[str, Any], out: Folder) -> dict[str, Any]:
    """Return the summary.

    Records read = distinct + duplicates + after as-of + too late + quarantined + not about a task.

    Args:
        state: State of the run.
        figures: Figures from `gold.build`.
        out: The output folder.
    """
    counts = Counter(state.counts)
    figures, lag = dict(figures), IndexLag(**state.index_lag)
    distinct, later = figures.pop("events_distinct"), figures.pop("events_after_as_of")
    return {
        "run_id": state.run_id,
        "events_read": counts["records"],
        "events_distinct": distinct,
        "events_duplicate": counts["accepted"] - distinct - later,
        "events_after_as_of": later,
        "events_too_late": counts["too_late"],
        "events_quarantined": sum(state.reasons.values()),
        "events_no_task": counts["no_task"],
        **damage(state.files, state.damaged),
        "quarantined_by_reason": dict(sorted(state.reasons.items())),
        "events_with_unknown_fields": counts["with_unknown_fields"],
        "unknown_fields": dict(sorted(state.unknown_fields.items())),
        "other_unknown_fields": counts["other_unknown_fields"],
        "index_lag_seconds": lag.seconds,
        **figures,
        "queues": [row | {"index_lag_seconds": lag.of(row["queue"])} for row in figures["queues"]],
        "tables": {name: out.at(f"{PUBLISHED}/{name}") for name in TABLES} if has_links(out) else {},
        "manifest": out.at(f"{PUBLISHED}/{MANIFEST}"),
    }
