"""Silver to all tables, for batches and streams alike."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark import StorageLevel
from pyspark.sql import functions as F

from freshq_pipeline.errors import BadInput
from freshq_pipeline.gold.fates import day_of_creation
from freshq_pipeline.gold.groups import groups
from freshq_pipeline.gold.inversions import inversions
from freshq_pipeline.gold.ledger import ledger, violations
from freshq_pipeline.gold.minutes import minutes
from freshq_pipeline.gold.open_days import every_day, open_days, up_to
from freshq_pipeline.gold.percentiles import wait_percentiles
from freshq_pipeline.gold.silver_days import events_of, partitions_for, read_days
from freshq_pipeline.gold.steps import distinct_steps
from freshq_pipeline.gold.tasks import lives, tasks
from freshq_pipeline.gold.totals import FATES, WAITS, WORKERS, open_steps, totals
from freshq_pipeline.gold.touched import day_figures, day_of
from freshq_pipeline.gold.workers import summed
from freshq_pipeline.schemas import OUTCOMES, TABLES, TOTALS, ddl
from freshq_pipeline.storage.days import iso, linked_days, number
from freshq_pipeline.storage.partitions import (
    FOLDERS,
    columns_with_day,
    draft_path,
    move_in,
    paths_of,
    replaced,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession

    from freshq_pipeline.gold.open_days import OpenDays
    from freshq_pipeline.gold.percentiles import WaitPercentiles
    from freshq_pipeline.storage.folder import Folder
    from freshq_pipeline.storage.state import State

PARALLEL_TABLES: Final = 3
INVERSIONS: Final = "inversions"
TOTAL: Final = "totals"


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Options that change the tables, or which of them are computed.

    Attributes:
        as_of_ms: Epoch milliseconds at which outcomes are determined, without later events; None: the time of
            the newest event.
        index_lag_seconds: Time after which a claimable task must be visible to claims.
        again: Whether a day is to be computed in any case.
    """

    as_of_ms: int | None = None
    index_lag_seconds: float = 0.0
    again: Callable[[int], bool] = lambda _day: False


@dataclass(frozen=True, slots=True)
class _Run:
    """What is the same for all tables of a run.

    Attributes:
        spark: The session.
        out: Folder of silver and of the tables.
        state: State of this run; its days and tables become those after the run.
        known: Files of the tables of the run before; empty if everything is computed.
        opened: What to compute.
        as_of_us: End of the recording.
    """

    spark: SparkSession
    out: Folder
    state: State
    known: dict[str, dict[str, list[str]]]
    opened: OpenDays
    as_of_us: int

    def draft(self, name: str, columns: dict[str, str]) -> DataFrame:
        """Return a table that this run wrote."""
        path = self.out.at(draft_path(self.state.run_id, name))
        return self.spark.read.schema(ddl(columns)).parquet(path)

    def write(self, name: str, table: DataFrame, columns: dict[str, str], *partitions: str) -> DataFrame:
        """Write a table, and return it as read from its files."""
        path = self.out.at(draft_path(self.state.run_id, name))
        table.select(*columns).write.partitionBy(*partitions).parquet(path)
        return self.draft(name, columns)

    def names(self) -> list[str] | None:
        """Return the names of the days whose tasks are computed; None: of all."""
        return None if self.opened.clock is None else [iso(day) for day in sorted(self.opened.tasks)]

    def with_others(self, name: str, table: DataFrame, columns: dict[str, str]) -> DataFrame:
        """Return rows of the computed days, together with the rows of all other days from the run before."""
        computed = self.names()
        if computed is None:
            return table
        paths = [self.out.at(path) for path in paths_of(self.known, name)]
        others = self.spark.read.schema(ddl(columns)).parquet(*paths)
        mine = table.where(F.col("day").isin(*computed)).select(*columns)
        return mine.unionByName(others.where(~F.col("day").isin(*computed)))


def build(
    spark: SparkSession, out: Folder, state: State, before: State | None, options: TableOptions,
    timed: Callable[[str], AbstractContextManager[None]],
) -> dict[str, Any]:  # fmt: skip
    """Write the tables of all days that changed, and return the figures over all days for the summary.

    Args:
        spark: The session.
        out: Folder of silver and of the tables.
        state: State of this run, with its silver. What is known about its days and its tables is added.
        before: State of the run before, made with the same options; None: compute all days.
        options: Options that change the tables.
        timed: Measures the duration of a block, given its name.

    Raises:
        BadInput: If there are no events.
    """
    as_of_ms = options.as_of_ms
    state.as_of_us = (state.last_us or 0) if as_of_ms is None else as_of_ms * 1000
    with timed("steps"):
        if before is None:
            run = _Run(spark, out, state, {}, every_day(state), state.as_of_us)
        else:
            again = {day for day in state.days if options.again(day)}
            opened = open_days(spark, out, state, before, state.as_of_us, again)
            run = _Run(spark, out, state, before.tables, opened, state.as_of_us)
        state.tables = dict(run.known)
        state.opened = sorted(map(iso, run.opened.tasks))
        steps = _steps(run)
        if as_of_ms is not None:
            _count_later(run)
    if steps is not None:
        try:
            _tables(run, steps, round(options.index_lag_seconds * 1e6), timed)
        finally:
            steps.unpersist()
    return _figures(run)


def _steps(run: _Run) -> DataFrame | None:
    """Return the steps of the days to compute, and note what is known of these days; None: there are none."""
    chosen, days = run.opened.tasks, run.state.days
    if not chosen:
        _check_events(run)
        return None
    events = up_to(events_of(run.spark, run.out, days, chosen, None), run.as_of_us)
    steps = distinct_steps(events, partitions_for(run.spark, days, chosen))
    steps = steps.persist(StorageLevel.MEMORY_AND_DISK)
    found = {row["day"]: row for row in day_figures(steps, run.as_of_us).collect()}
    for day in chosen:
        row = found[day].asDict() if day in found else {"events": 0, "unbegun": False, "has_open": False}
        for name in ("events", "first_us", "last_us", "has_open", "next_deadline_us", "unbegun"):
            setattr(days[day], name, row.get(name))
    _check_events(run)
    return steps


def _check_events(run: _Run) -> None:
    """Raise BadInput if there are no events."""
    if not any(known.events for known in run.state.days.values()):
        raise BadInput("events: no event of a task in them, or none up to as-of; is the format right?")


def _count_later(run: _Run) -> None:
    """Count the events after as-of of the days to compute."""
    for day in run.opened.tasks:
        run.state.days[day].later = 0
    if run.opened.tasks:
        events = read_days(run.spark, run.out, run.state.days, run.opened.tasks)
        later = events.where(F.col("changed_us") > run.as_of_us).groupBy(
            day_of(F.col("created_us")).alias("day")
        )
        for row in later.count().collect():
            run.state.days[row["day"]].later = row["count"]


def _tables(
    run: _Run, steps: DataFrame, lag_us: int, timed: Callable[[str], AbstractContextManager[None]]
) -> None:
    """Write all tables, and move their files to where they stay."""
    clock = run.opened.clock
    clock_names = None if clock is None else {iso(day) for day in clock}
    task_names = run.names()
    with timed("tasks"):
        on_clock = _with_open(run, steps)
        inverted = _inverted(run, inversions(on_clock, run.as_of_us, lag_us, clock))
        made = tasks(lives(steps), inverted, run.as_of_us, run.state.first_us or 0)
        by_day = made.withColumn("day", day_of_creation())
        every = run.write("tasks", by_day, columns_with_day("tasks"), *FOLDERS)
    with timed("minutes and others"):
        _others(run, steps, on_clock, every)
        replaces = {"tasks": task_names, "minutes": clock_names, INVERSIONS: clock_names}
        moved = {
            name: move_in(run.out, run.state.run_id, name, replaces.get(name))
            for name in (*TABLES, INVERSIONS, TOTAL)
        }
        run.state.tables = replaced(run.known, moved, replaces)


def _inverted(run: _Run, found: DataFrame) -> DataFrame:
    """Write the claims that were out of turn by day, and return them with those of the other days."""
    columns = {"task_id": "string", "life": "int", "day": "string"}
    day = F.date_format(F.timestamp_seconds(F.col("day").cast("bigint") * 86_400), "yyyy-MM-dd")
    mine = run.write(INVERSIONS, found.withColumn("day", day), columns, "day")
    clock = run.opened.clock
    if clock is None:
        return mine
    computed = {iso(day) for day in clock}
    chosen = [run.state.days[day] for day in run.opened.tasks]
    paths = [
        run.out.at(path)
        for name, files in run.known.get(INVERSIONS, {}).items()
        if name not in computed and any(day.touches((number(name),)) for day in chosen)
        for path in files
    ]
    if not paths:
        return mine
    others = run.spark.read.schema("task_id string, life int").parquet(*paths)
    return mine.select("task_id", "life").unionByName(others)


def _with_open(run: _Run, steps: DataFrame) -> DataFrame:
    """Return steps with those of other days' tasks that have no end yet."""
    days, chosen = run.state.days, run.opened.tasks
    if not any(known.has_open for day, known in days.items() if day not in chosen):
        return steps
    paths = [run.out.at(path) for path in paths_of(run.known, TOTAL)]
    others = open_steps(run.spark.read.schema(ddl(TOTALS)).parquet(*paths), run.names() or [])
    if linked_days(days, chosen):
        others = others.join(steps.select("task_id").distinct(), "task_id", "left_anti")
    return steps.unionByName(others, allowMissingColumns=True)


def _others(run: _Run, steps: DataFrame, on_clock: DataFrame, every: DataFrame) -> None:
    """Write all tables except `tasks`."""
    in_days = steps
    if run.opened.clock is not None:
        in_days = steps.where(day_of(F.col("created_us")).isin(*run.opened.tasks))
    minute_day = F.date_format(F.timestamp_millis("minute_ms"), "yyyy-MM-dd")
    by_minute = minutes(on_clock, every, run.as_of_us, run.opened.clock).withColumn("day", minute_day)

    def write(name: str, table: DataFrame) -> None:
        run.write(name, table, TABLES[name])

    # These tables are small: in parallel, one is computed while another is planned or written.
    with ThreadPoolExecutor(PARALLEL_TABLES) as pool:
        work: list[Future[Any]] = [
            pool.submit(run.write, "minutes", by_minute, columns_with_day("minutes"), *FOLDERS)
        ]
        others = run.with_others("violations", violations(every), TABLES["violations"])
        work.append(pool.submit(write, "violations", others))
        counts = run.write(TOTAL, run.with_others(TOTAL, totals(in_days, every), TOTALS), TOTALS)
        by_kind = {kind: counts.where(F.col("kind") == kind) for kind in (FATES, WORKERS)}
        work += [
            pool.submit(write, "workers", summed(by_kind[WORKERS])),
            pool.submit(write, "ledger", ledger(by_kind[FATES])),
            pool.submit(write, "groups", groups(by_kind[FATES])),
        ]
    for one in work:
        one.result()


def _figures(run: _Run) -> dict[str, Any]:
    """Return the figures of all queues together, and in `queues` those of each."""
    paths = [run.out.at(path) for path in paths_of(run.state.tables, TOTAL)]
    counts = run.spark.read.schema(ddl(TOTALS)).parquet(*paths)
    sums = {name: name for name in ("tasks", *OUTCOMES, "inversions", "count")}
    sums |= {"ledger_violations": "violations"}
    least, most = F.min("shortest_us").alias("shortest_us"), F.max("longest_us").alias("longest_us")
    wanted = counts.where(F.col("kind").isin(FATES, WAITS)).groupBy("kind", "queue", "class")
    rows = wanted.agg(*(F.sum(of).alias(name) for name, of in sums.items()), least, most).collect()
    by_queue = _by_queue([row.asDict() for row in rows if row["kind"] == FATES])
    classes = (row.asDict() for row in rows if row["kind"] == WAITS)
    events = run.state.days.values()
    return {
        "events_distinct": sum(day.events for day in events),
        "events_after_as_of": sum(day.later for day in events),
        "as_of_ms": run.as_of_us // 1000,
        **_with_waits(by_queue, wait_percentiles(classes, (0.5, 0.99))),
    }


def _by_queue(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the figures of each queue, sorted by its name, without what only waits have."""
    names = ("queue", "tasks", *OUTCOMES, "inversions", "ledger_violations")
    figures = [{name: row[name] for name in names} for row in rows]
    return sorted(figures, key=lambda row: (row["queue"] is None, row["queue"] or ""))


def _with_waits(by_queue: list[dict[str, Any]], waits: WaitPercentiles) -> dict[str, Any]:
    """Return the figures of all queues together, and in `queues` those of each."""
    names = [name for name in by_queue[0] if name != "queue"]
    total = {name: sum(row[name] for row in by_queue) for name in names} | _named(waits.overall)
    nothing: list[float | None] = [None, None]
    return total | {"queues": [row | _named(waits.by_queue.get(row["queue"], nothing)) for row in by_queue]}


def _named(waits: list[float | None]) -> dict[str, float | None]:
    return dict(zip(("wait_p50_seconds", "wait_p99_seconds"), waits, strict=True))
