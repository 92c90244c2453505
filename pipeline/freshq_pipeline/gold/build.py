"""Compute the tables that change from silver, for batches and streams alike."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc
from pyspark.sql import functions as F

from freshq_pipeline.errors import BadInput
from freshq_pipeline.gold.chains import chains
from freshq_pipeline.gold.figures import figures
from freshq_pipeline.gold.inversions import (
    CLAIM,
    GROUP_ROWS,
    WITH_HOUR,
    index_lag_us,
    inversions,
    inversions_here,
)
from freshq_pipeline.gold.minutes import minutes
from freshq_pipeline.gold.open_hours import open_all, open_hours, release
from freshq_pipeline.gold.silver_days import index_ids, silver_files, start_us
from freshq_pipeline.gold.steps import TASK, date_of, gathered, in_hours, same_task
from freshq_pipeline.gold.tasks import lives, tasks
from freshq_pipeline.gold.totals import (
    FATES,
    KINDS,
    OF_TASK,
    SCHEMA,
    TOTAL,
    VIOLATIONS,
    WORKERS,
    count_open,
    groups,
    kinds,
    ledger,
    open_steps,
    others,
    scan_totals,
    totals_of_steps,
    totals_of_tasks,
    workers,
)
from freshq_pipeline.schemas import EVENT, TABLES, TOTALS, ddl
from freshq_pipeline.storage.arrow import arrow_schema, moments_in
from freshq_pipeline.storage.days import (
    DAY_US,
    HOUR_US,
    HOURS_A_DAY,
    Hour,
    chained_days,
    days_of,
    hours_of,
    iso,
    known_hours,
    linked_days,
    number,
    recorded_days,
)
from freshq_pipeline.storage.recording import IndexLag
from freshq_pipeline.storage.table_files import (
    FOLDERS,
    PARQUET,
    columns_with_day,
    draft_path,
    keep_rows,
    move_in,
    paths_of,
    read_table,
    replaced,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from freshq_pipeline.gold.open_hours import OpenHours
    from freshq_pipeline.storage.folder import Folder
    from freshq_pipeline.storage.state import State

INVERSIONS: Final = "inversions"
# Spark's driver keeps the size of each of these partitions for each task that writes to them.
MOST_BUCKETS: Final = 4096
HOUR_MS: Final = HOUR_US // 1000
# Tables of which a run may compute only some hours of a day, with the column of the hour and its unit.
_HOUR_IN: Final = {
    "tasks": ("created_ms", HOUR_MS),
    "minutes": ("minute_ms", HOUR_MS),
    INVERSIONS: ("hour", 1),
}
_CHANGED: Final = arrow_schema({"changed_us": EVENT["changed_us"]})
_ROOT: Final = arrow_schema({"root_id": TABLES["tasks"]["root_id"]})
# Up to this many steps, claims and waits are compared in this process, at about 100 bytes each, and up to as
# many tasks counted.
FEW_STEPS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Options that change the tables, or the hours that are computed.

    Attributes:
        as_of_ms: Epoch milliseconds at which outcomes are determined, without later events; None: the time of
            the newest event.
        index_lag: Time after which a claimable task must be visible to claims, by queue.
        again: Returns whether to compute a day even if it is unchanged.
        other_order: Queues that are not served newest first.
    """

    as_of_ms: int | None = None
    index_lag: IndexLag = field(default_factory=IndexLag)
    again: Callable[[int], bool] = lambda _day: False
    other_order: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class _Run:
    """The context of all tables of a run.

    Attributes:
        spark: The session.
        out: The output folder.
        state: State of this run, which takes the results.
        known: Files of the previous run's tables; empty if all hours are computed.
        opened: The hours to compute.
        as_of_us: End of the recording.
    """

    spark: SparkSession
    out: Folder
    state: State
    known: dict[str, dict[str, list[str]]]
    opened: OpenHours
    as_of_us: int

    def write(self, name: str, table: DataFrame, columns: dict[str, str], *partitions: str) -> DataFrame:
        """Write a table; return it as read from its files."""
        path = self.out.at(draft_path(self.state.run_id, name))
        rows = table.select(*columns)
        if partitions and self.spark.conf.get("spark.sql.adaptive.enabled") == "true":
            # Otherwise each task would write a file to each folder. Without AQE there are one or two tasks.
            rows = rows.hint("rebalance", self._buckets(), *partitions)
        rows.write.partitionBy(*partitions).parquet(path)
        if name in _HOUR_IN:
            self.keep_other_hours(name)
        return gathered(self.spark.read.schema(ddl(columns)).parquet(path))

    def _buckets(self) -> int:
        """Return a number of partitions in which folders of a day and a queue rarely share one."""
        clock = self.opened.clock
        every = recorded_days(self.state.days, self.as_of_us) if clock is None else days_of(clock)
        days = self.opened.days | every
        return max(1, min(MOST_BUCKETS, 2 * len(days) * len(self.state.starts_us)))

    def computed(self) -> dict[str, frozenset[int] | None]:
        """Return the hours that the run computes of each table in `_HOUR_IN`; None if all are."""
        return {"tasks": self.opened.tasks, "minutes": self.opened.clock, INVERSIONS: self.opened.clock}

    def replaces(self) -> dict[str, set[str] | None]:
        """Return the names of the days that the run replaces, by table; None if all are."""
        days = {name: None if some is None else days_of(some) for name, some in self.computed().items()}
        days["chains"] = _chain_days(self)
        return {name: None if some is None else set(map(iso, some)) for name, some in days.items()}

    def keep_other_hours(self, name: str) -> None:
        """Add the rows of other hours, as the previous run made them, to the drafted days of a table."""
        hours = self.computed()[name]
        if hours is not None:
            days, (column, length) = self.known.get(name, {}), _HOUR_IN[name]
            paths = [path for day in self.replaces()[name] or () for path in days.get(day, [])]
            elsewhere = ~moments_in(pc.field(column), hours, length)
            keep_rows(self.out, self.state.run_id, name, paths, elsewhere)

    def write_small(self, name: str, table: pa.Table) -> None:
        """Write a table that was computed without Spark."""
        schema = arrow_schema(TABLES[name])
        self.write_batches(name, table.select(schema.names).cast(schema).to_batches())

    def write_batches(self, name: str, batches: Iterable[pa.RecordBatch]) -> None:
        """Write a table from batches with its columns."""
        path = f"{draft_path(self.state.run_id, name)}/0{PARQUET}"
        self.out.write_parquet(path, batches, arrow_schema(TABLES[name]))


def build(
    spark: SparkSession, out: Folder, state: State, before: State | None, options: TableOptions,
    timed: Callable[[str], AbstractContextManager[None]],
) -> dict[str, Any]:  # fmt: skip
    """Write the tables of all hours that changed, and return the figures over all days.

    Args:
        spark: The session.
        out: The output folder.
        state: State of this run, with its silver; takes the figures of days, and the tables.
        before: State of the previous run, made with the same options; None: compute all hours.
        options: Options that change the tables.
        timed: Measures a block, given the name of its part.

    Raises:
        BadInput: If there are no events, or none up to as-of.
    """
    as_of_ms = options.as_of_ms
    state.as_of_us = (state.last_us or 0) if as_of_ms is None else as_of_ms * 1000
    check_as_of(state)
    with ExitStack() as held:
        run, steps = _opened(spark, out, state, before, options, timed, held)
        if steps is not None:
            _tables(run, steps, options, timed)
    return figures(out, state)


def check_as_of(state: State) -> None:
    """Raise BadInput if as-of is before the first event."""
    first_us = min(state.starts_us.values(), default=0)
    if state.as_of_us < first_us:
        as_of, first = (datetime.fromtimestamp(us // 1_000_000, UTC) for us in (state.as_of_us, first_us))
        msg = f"as-of: {state.as_of_us // 1000} ms is {as_of:%Y-%m-%d %H:%M}, before the first event, "
        msg += f"{first:%Y-%m-%d %H:%M} UTC; give milliseconds since the Unix epoch"
        raise BadInput(msg)


def _opened(
    spark: SparkSession, out: Folder, state: State, before: State | None, options: TableOptions,
    timed: Callable[[str], AbstractContextManager[None]], held: ExitStack,
) -> tuple[_Run, DataFrame | None]:  # fmt: skip
    """Return the run, and the steps of the hours to compute, which Spark keeps until `held` closes."""
    with timed("steps"), ThreadPoolExecutor(1, thread_name_prefix="ids") as beside:
        indexed = beside.submit(index_ids, spark, out, state)
        if before is None:
            opened, known = open_all(spark, out, state), {}
        else:
            indexed.result()  # links days that share ids
            again = set(filter(options.again, recorded_days(state.days, state.as_of_us)))
            opened, known = open_hours(spark, out, state, before, again), before.tables
        if opened.steps is not None:
            held.callback(release, opened.steps)
        run = _Run(spark, out, state, known, opened.hours, state.as_of_us)
        state.tables = dict(run.known)
        state.opened = sorted(map(iso, run.opened.days))
        _note_figures(run, opened.figures)
        _count_later(run, options)
        indexed.result()  # otherwise a failure would look like days that share no ids
    return run, opened.steps


def _note_figures(run: _Run, figures: list[dict[str, Any]]) -> None:
    """Store the figures of the computed hours in the state.

    Raises:
        BadInput: If there are no events.
    """
    days, hours = run.state.days, run.opened.tasks
    for day in run.opened.days:
        days[day].hours = {
            hour: known for hour, known in days[day].hours.items() if hours is not None and hour not in hours
        }
    names = [one.name for one in fields(Hour)]
    for row in figures:
        if hours is None or row["hour"] in hours:
            found = Hour(**{name: row[name] for name in names})
            days[row["hour"] // HOURS_A_DAY].hours[row["hour"]] = found
    _check_events(run)


def _check_events(run: _Run) -> None:
    """Raise BadInput if there are no events."""
    if not any(known.events for known in run.state.days.values()):
        msg = f"events: {run.state.events} has no event of a task; is the format right?"
        raise BadInput(msg)


def _count_later(run: _Run, options: TableOptions) -> None:
    """Count the events after as-of on the days to compute; without as-of there are none."""
    later = pc.field("changed_us") > run.as_of_us
    for day in run.opened.days:
        known = run.state.days[day]
        paths = [] if options.as_of_ms is None else silver_files(run.out, day, known.silver)
        known.later = run.out.scan(paths, _CHANGED, _CHANGED.names, later).count_rows() if paths else 0


def _tables(
    run: _Run, steps: DataFrame, options: TableOptions,
    timed: Callable[[str], AbstractContextManager[None]],
) -> None:  # fmt: skip
    """Write all tables, and move their files to their final place."""
    hours = run.opened.tasks
    with timed("tasks"):
        elsewhere = _open_elsewhere(run, steps)
        on_clock = steps if elsewhere is None else steps.unionByName(elsewhere, allowMissingColumns=True)
        inverted = _inverted(run, on_clock, index_lag_us(options.index_lag))
        since_us = start_us(run.state.starts_us)
        here = lives(steps).where(in_hours(F.col("created_us"), hours))
        made = tasks(here, inverted, run.as_of_us, since_us, options.other_order)
        by_day = made.withColumn("day", date_of(F.col("created_ms") * 1000))
        every = run.write("tasks", by_day, columns_with_day("tasks"), *FOLDERS)
    with timed("minutes and others"):
        _others(run, steps, on_clock, every)
        moved = {name: move_in(run.out, run.state.run_id, name) for name in (*TABLES, INVERSIONS, TOTAL)}
        run.state.tables = replaced(run.known, moved, run.replaces())


def _open_elsewhere(run: _Run, steps: DataFrame) -> DataFrame | None:
    """Return the last steps of open tasks of other hours; None if there are none."""
    days, chosen = run.state.days, run.opened.tasks
    known = known_hours(days.values()).items()
    if chosen is None or not any(one.has_open for hour, one in known if hour not in chosen):
        return None
    paths = [run.out.at(path) for path in paths_of(run.known, TOTAL)]
    found = open_steps(gathered(run.spark.read.schema(ddl(TOTALS)).parquet(*paths)), chosen)
    if linked_days(days, run.opened.days):
        here = steps.select(*TASK).distinct()
        found = found.join(here, same_task(found, here), "left_anti")
    return found


def _inverted(run: _Run, steps: DataFrame, lag_us: Column) -> DataFrame | None:
    """Write the inverted claims by day; return those of all affected days, None if there are none."""
    draft, of_steps = draft_path(run.state.run_id, INVERSIONS), (run.as_of_us, lag_us, run.opened.clock)
    if _steps_at_most(run) <= FEW_STEPS:
        found = inversions_here(steps, *of_steps)
        for day in days_of(found["hour"].unique().to_pylist()):
            rows = found.filter(moments_in(pc.field("hour"), hours_of([day]), 1))
            run.out.write_parquet(f"{draft}/day={iso(day)}/0{PARQUET}", rows.to_batches(), rows.schema)
        run.keep_other_hours(INVERSIONS)
    else:
        many = _steps_at_most(run) > GROUP_ROWS
        by_day = inversions(steps, *of_steps, many=many)
        by_day = by_day.withColumn("day", F.date_from_unix_date(F.expr(f"int(hour div {HOURS_A_DAY})")))
        run.write(INVERSIONS, by_day, WITH_HOUR | {"day": "string"}, "day")
    paths = [*(file.path for file in run.out.files(draft)), *_inverted_elsewhere(run)]
    if not paths:
        return None
    return gathered(run.spark.read.schema(ddl(CLAIM)).parquet(*map(run.out.at, paths)))


def _steps_at_most(run: _Run) -> int:
    """Return an upper bound for the number of steps that claims are compared with."""
    days, chosen = run.state.days, run.opened.tasks
    whole = linked_days(days, run.opened.days)
    steps = sum(
        known.events
        for day in run.opened.days | whole
        for hour, known in days[day].hours.items()
        if chosen is None or hour in chosen or day in whole
    )
    known = paths_of(run.known, TOTAL)
    return steps + (count_open(run.out, known) if known else 0)


def _inverted_elsewhere(run: _Run) -> list[str]:
    """Return the files of claims out of turn on other days that may belong to computed tasks."""
    replaced_days, chosen = run.replaces()[INVERSIONS], run.opened.tasks
    if replaced_days is None or chosen is None:
        return []
    hours = [one for hour, one in known_hours(run.state.days.values()).items() if hour in chosen]
    files = run.known.get(INVERSIONS, {})
    names = [name for name in files.keys() - replaced_days if _touch(hours, number(name))]
    return [path for name in names for path in files[name]]


def _touch(hours: list[Hour], day: int) -> bool:
    """Return whether events of some hours matter on a day."""
    of_day = range(day * HOURS_A_DAY, (day + 1) * HOURS_A_DAY)
    return any(hour.touches(of_day) for hour in hours)


def _others(run: _Run, steps: DataFrame, on_clock: DataFrame, every: DataFrame) -> None:
    """Write all tables except `tasks`."""
    # Tasks of other hours do not affect these minutes.
    here = every.where(in_hours(F.col("created_ms"), run.opened.tasks, HOUR_MS))
    by_minute = minutes(on_clock, here, run.as_of_us, run.opened.clock)
    by_minute = by_minute.withColumn("day", date_of(F.col("minute_ms") * 1000))
    counts = totals_of_steps(steps.where(in_hours(F.col("created_us"), run.opened.tasks)))
    few = _few_tasks(run)
    if few is None:
        counts = counts.unionByName(every.select(*OF_TASK).mapInArrow(totals_of_tasks, ddl(TOTALS)))
    # In parallel, one is computed while the other is planned or written.
    with ThreadPoolExecutor(2) as pool:
        work: list[Future[Any]] = [
            pool.submit(run.write, "minutes", by_minute, columns_with_day("minutes"), *FOLDERS),
            pool.submit(_write_chains, run, every),
            pool.submit(run.write, TOTAL, counts, TOTALS),
        ]
    for one in work:
        one.result()
    if few is not None:
        path = f"{draft_path(run.state.run_id, TOTAL)}/tasks{PARQUET}"
        run.out.write_parquet(path, totals_of_tasks(few.to_batches(columns=list(OF_TASK))), SCHEMA)
    _keep_other_totals(run)
    drafts = _drafted(run, TOTAL)
    fates = scan_totals(run.out, drafts, FATES).to_table()
    run.write_small("ledger", ledger(fates))
    run.write_small("groups", groups(fates))
    run.write_small("kinds", kinds(scan_totals(run.out, drafts, KINDS).to_table()))
    run.write_small("workers", workers(scan_totals(run.out, drafts, WORKERS).to_batches()))
    # There may be as many as tasks, if a queue's clock or archive was wrong.
    run.write_batches("violations", scan_totals(run.out, drafts, VIOLATIONS).to_batches())


def _few_tasks(run: _Run) -> Any:
    """Return the drafted tasks as a PyArrow dataset; None if they are too many to count in this process."""
    paths = _drafted(run, "tasks")
    found = run.out.dataset(paths, draft_path(run.state.run_id, "tasks"), FOLDERS) if paths else None
    return found if found is not None and found.count_rows() <= FEW_STEPS else None


def _drafted(run: _Run, name: str) -> list[str]:
    """Return the files of a drafted table."""
    return [file.path for file in run.out.files(draft_path(run.state.run_id, name))]


def _chain_days(run: _Run) -> frozenset[int] | None:
    """Return the days whose chains are computed; None for all."""
    return None if run.opened.tasks is None else frozenset(chained_days(run.state.days, run.opened.days))


def _write_chains(run: _Run, every: DataFrame) -> None:
    """Write the chains with tasks on the computed days, if there are any.

    Tasks of their other days are read as earlier runs wrote them.
    """
    rows, computed, paths = every, _chain_days(run), list[str]()
    if computed is not None:
        others = chained_days(run.state.days, computed) - run.opened.days
        paths = [path for day in others for path in run.known.get("tasks", {}).get(iso(day), [])]
        rows = every.unionByName(gathered(read_table(run.spark, run.out, paths, "tasks")))
    paths += _drafted(run, "tasks")
    # Most queues have no chains, and need no Spark job for them.
    if run.out.scan(paths, _ROOT, _ROOT.names, pc.field("root_id").is_valid()).head(1).num_rows:
        made = chains(rows).where(in_hours(F.col("created_ms"), computed, DAY_US // 1000))
        made = made.withColumn("day", date_of(F.col("created_ms") * 1000))
        run.write("chains", made, columns_with_day("chains"), *FOLDERS)


def _keep_other_totals(run: _Run) -> None:
    """Add the totals of other days and hours to the totals of the computed hours."""
    computed, known = run.opened.tasks, paths_of(run.known, TOTAL)
    if computed is None or not known:
        return
    rows = run.out.scan(known, SCHEMA, SCHEMA.names, others(computed))
    path = f"{draft_path(run.state.run_id, TOTAL)}/others{PARQUET}"
    run.out.write_parquet(path, rows.to_batches(), SCHEMA)
