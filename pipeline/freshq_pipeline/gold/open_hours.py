"""Find the hours that a run must compute: hours that new events change, or whose tasks overlap in time.

New events change hours through minutes, through claims, and through other events of their tasks. Only these
hours are computed again. If an hour were missed here, increments would differ from a batch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark import StorageLevel
from pyspark.sql import functions as F

from freshq_pipeline.errors import BadInput
from freshq_pipeline.gold.silver_days import created_hours, events_of, partitions_for
from freshq_pipeline.gold.steps import (
    LIVE,
    TASK,
    distinct_steps,
    hour_of,
    is_open,
    shed_us,
    until_us,
    waits,
)
from freshq_pipeline.storage.days import (
    HOUR_US,
    HOURS_A_DAY,
    days_of,
    hours_of,
    iso,
    known_hours,
    linked_days,
    widened,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from freshq_pipeline.storage.folder import Folder
    from freshq_pipeline.storage.state import State


# Name of a plan that reads the rows of a local checkpoint.
_CHECKPOINT: Final = "LogicalRDD"
_FIGURES: Final = "figures"
_CHANGED: Final = "changed"
_TOUCHED: Final = "touched"


@dataclass(frozen=True, slots=True)
class OpenHours:
    """The hours that a run computes.

    Attributes:
        days: Days of creation with tasks that are computed.
        tasks: Hours of creation whose tasks are computed, None: all; tasks of other hours have not changed.
        clock: Hours whose minutes and claims out of turn are computed; None: all.
    """

    days: frozenset[int]
    tasks: frozenset[int] | None = None
    clock: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """The hours that a run computes, and their steps.

    Attributes:
        hours: The hours.
        steps: All steps of the tasks of these hours, which Spark keeps at least until the caller releases
            them; None if there are no hours to compute.
        figures: Figures of each hour, from `hour_figures`.
    """

    hours: OpenHours
    steps: DataFrame | None
    figures: list[dict[str, Any]]


def open_all(spark: SparkSession, out: Folder, state: State) -> Opened:
    """Open all hours.

    Args:
        spark: The session.
        out: The output folder.
        state: State of this run.

    Raises:
        BadInput: If silver of some days was deleted.
    """
    _check_kept(state, set(state.days))
    return _opened(spark, out, state, OpenHours(frozenset(state.days)))


def open_hours(spark: SparkSession, out: Folder, state: State, before: State, wanted: set[int]) -> Opened:
    """Open the hours that change after new files were read.

    Nearly all new events follow the previous end of the recording, and so change only later times. The steps
    of the hours opened first also show whether more hours must be opened.

    Args:
        spark: The session.
        out: The output folder.
        state: State of this run, with its events in the silver part of its name, and days that share ids
            linked.
        before: State of the previous run, made with the same options.
        wanted: Recorded days to compute even if they have not changed.

    Raises:
        BadInput: If silver of a wanted day was deleted.
    """
    of_tasks = wanted & state.days.keys()
    _check_kept(state, of_tasks)
    known_us, as_of_us = before.as_of_us, state.as_of_us
    fresh = created_hours(out, state.run_id)
    changed = fresh | hours_of(of_tasks) | _changed_without_events(state, before, as_of_us)
    # The last minute of a recording may continue in the next one.
    later = range(known_us // HOUR_US, as_of_us // HOUR_US + 1) if as_of_us > known_us else ()
    clock = hours_of(wanted) | set(later)
    opened = _with_beside(state, changed, clock)
    if not fresh:
        return _opened(spark, out, state, opened)
    while True:
        steps = _steps(spark, out, state, opened, state.run_id)
        found = _surveyed(steps, known_us, as_of_us, linked=bool(linked_days(state.days, opened.days)))
        changed = changed | _hours(found, _CHANGED)
        needed = _with_beside(state, changed, clock | _hours(found, _TOUCHED))
        if (needed.tasks or set()) <= (opened.tasks or set()):
            figures = [row for row in found if row["what"] == _FIGURES]
            return Opened(OpenHours(opened.days, opened.tasks, needed.clock), steps, figures)
        release(steps)
        opened = needed


def _check_kept(state: State, days: set[int]) -> None:
    """Raise BadInput if silver of some days was deleted."""
    gone = [day for day in days if state.days[day].forgotten]
    if gone:
        msg = f"since: the events of {iso(min(gone))} to {iso(max(gone))} were deleted (keep-silver-days); "
        msg += f"give --since after {iso(max(gone))}"
        raise BadInput(msg)


def _opened(spark: SparkSession, out: Folder, state: State, hours: OpenHours) -> Opened:
    """Open hours that do not depend on new events."""
    if not hours.days:
        return Opened(hours, None, [])
    steps = _steps(spark, out, state, hours, None)
    linked = bool(linked_days(state.days, hours.days))
    figures = hour_figures(steps, state.as_of_us, linked=linked).collect()
    return Opened(hours, steps, [row.asDict() for row in figures])


def _steps(spark: SparkSession, out: Folder, state: State, chosen: OpenHours, fresh: str | None) -> DataFrame:
    """Return the steps of the tasks of the given hours, which Spark keeps when it has computed them."""
    events = events_of(spark, out, state.days, chosen.days, chosen.tasks, fresh)
    events = events.where(F.col("changed_us") <= state.as_of_us)
    steps = distinct_steps(events, partitions_for(spark, state.days, chosen.days, chosen.tasks))
    return kept(spark, steps)


def kept(spark: SparkSession, steps: DataFrame) -> DataFrame:
    """Return steps that Spark keeps in memory or on disk when it has computed them.

    Spark's cache compiles code for each set of columns that is read, which a small input does not repay. A
    local checkpoint does not. Losing an executor would lose its rows, so this is only done if Spark runs in
    one process.

    Args:
        spark: The session, with settings for the size of the input.
        steps: The steps.
    """
    compiles = spark.conf.get("spark.sql.codegen.factoryMode") != "NO_CODEGEN"
    if compiles or not re.fullmatch(r"local(\[.*\])?", str(spark.sparkContext.master)):
        return steps.persist(StorageLevel.MEMORY_AND_DISK)
    return steps.localCheckpoint(eager=False)


def release(steps: DataFrame) -> None:
    """Free the memory and the files of kept steps. They must not be used again.

    Args:
        steps: Steps from `kept`.
    """
    steps.unpersist()
    plan: Any = steps._jdf.queryExecution().logical()  # noqa: SLF001 - no public way to its rows
    # `unpersist` leaves a local checkpoint to the garbage collectors of Python and Java.
    if plan.nodeName() == _CHECKPOINT:
        plan.rdd().unpersist(False)  # noqa: FBT003 - whether to wait


def _surveyed(steps: DataFrame, known_us: int, as_of_us: int, *, linked: bool) -> list[dict[str, Any]]:
    """Return the figures of each hour, and the hours that fresh events touch or change, by one query.

    Args:
        steps: Steps of events with `fresh`.
        known_us: End of the recording in the previous run.
        as_of_us: End of the recording.
        linked: Whether tasks have events in several hours.
    """
    rows = hour_figures(steps, as_of_us, linked=linked).withColumn("what", F.lit(_FIGURES))
    sought = {_TOUCHED: touched_hours(steps, known_us, as_of_us)}
    if linked:
        sought[_CHANGED] = hours_of_changed_tasks(steps, known_us, as_of_us)
    for what, hours in sought.items():
        rows = rows.unionByName(hours.withColumn("what", F.lit(what)), allowMissingColumns=True)
    return [row.asDict() for row in rows.collect()]


def _hours(found: list[dict[str, Any]], what: str) -> set[int]:
    chosen = (row for row in found if row["what"] == what)
    return {row["hour"] + more for row in chosen for more in range(row["hours"] or 1)}


def _with_beside(state: State, changed: set[int], clock: set[int]) -> OpenHours:
    """Add the hours whose tasks were waiting or in progress at the same time."""
    clock = widened(clock)
    if state.final_until is not None:
        clock = {hour for hour in clock if hour // HOURS_A_DAY > state.final_until}
    ordered = sorted(clock)
    known = known_hours(state.days.values())
    tasks = widened(changed | {hour for hour, one in known.items() if one.touches(ordered)})
    days = days_of(tasks) & {day for day, one in state.days.items() if not one.forgotten}
    return OpenHours(days, frozenset(tasks & hours_of(days)), frozenset(clock))


def _changed_without_events(state: State, before: State, as_of_us: int) -> set[int]:
    """Return hours whose tasks change because the recording ends later, or begins earlier for a queue."""
    known = known_hours(before.days.values())
    shed = {
        hour
        for hour, one in known.items()
        if one.next_deadline_us is not None and one.next_deadline_us <= as_of_us
    }
    if not any(state.starts_us[queue] < start for queue, start in before.starts_us.items()):
        return shed
    # A task without a put may now violate the ledger.
    unbegun = {hour for hour, one in known.items() if one.unbegun}
    return shed | unbegun | hours_of(linked_days(state.days, days_of(unbegun)))


def touched_hours(steps: DataFrame, known_us: int, as_of_us: int) -> DataFrame:
    """Return each `hour` in which fresh events change minutes, or change which claims are out of turn.

    A row stands for `hours` adjacent hours: if a wrong clock created a task decades ago, it has a row a day.

    Args:
        steps: All steps of each task, of events with `fresh`.
        known_us: End of the recording in the previous run.
        as_of_us: End of the recording.
    """
    low, high = _range_of_task(as_of_us)
    fresh_low, fresh_high = _range_of_fresh(known_us, as_of_us)
    fresh = F.col("fresh")
    by_task = steps.groupBy(*TASK).agg(
        F.max("unsettled").alias("unsettled"),
        F.min(low).alias("low"),
        F.max(F.greatest(high, F.when(fresh, fresh_high))).alias("high"),
        F.min(F.when(fresh, fresh_low)).alias("fresh_low"),
        F.max(F.when(fresh, fresh_high)).alias("fresh_high"),
    )
    since = F.when(F.col("unsettled"), F.col("low")).otherwise(F.col("fresh_low"))
    until = F.when(F.col("unsettled"), F.col("high")).otherwise(F.col("fresh_high"))
    spans = by_task.where("fresh_low is not null").select(
        hour_of(since).alias("first"), hour_of(F.greatest(since, until)).alias("last")
    )
    hours = F.when(F.expr("last - first") > HOURS_A_DAY, HOURS_A_DAY).otherwise(1).alias("hours")
    spans = spans.distinct().select("first", "last", hours)
    hour = F.explode(F.expr("sequence(first - pmod(first, hours), last, hours)")).alias("hour")
    return spans.select(hour, "hours").distinct()


def _range_of_task(as_of_us: int) -> tuple[Column, Column]:
    """Return the earliest and the latest time that a step affects."""
    low = F.least("changed_us", "created_us", "deadline_us", "before_changed_us")
    open_until = F.least(F.coalesce(until_us(), F.lit(as_of_us)), F.lit(as_of_us))
    live = ~F.col("removed") & F.col("status").isin(*LIVE)
    # If TTL deletes a waiting task too early, it counts as shed at its deadline.
    early = F.when(F.col("removed") & F.col("ttl_removal") & waits("status"), F.col("deadline_us"))
    return low, F.greatest("changed_us", "created_us", F.when(live, open_until), early)


def _range_of_fresh(known_us: int, as_of_us: int) -> tuple[Column, Column]:
    """Return the earliest and the latest time that a fresh step changes if it only continues a task."""
    continues = ~F.col("begins")
    shed_before = waits("before_status") & (
        F.col("before_deadline_us") <= F.least(F.lit(known_us), F.col("changed_us"))
    )
    # TTL deletes tasks that were shed at their deadline, which changes no minute.
    swept = F.col("removed") & F.col("ttl_removal") & shed_before & ~F.col("before_fresh")
    matters = ~F.coalesce(swept, F.lit(False))
    ended_before = F.col("before_status").isin("SHED") | (F.col("before_change") == "REMOVE")
    waited_before = continues & matters & waits("before_status")
    low = F.least(
        "changed_us",
        F.when(F.col("begins"), F.col("created_us")),
        F.when(matters & waits("status"), F.col("deadline_us")),
        F.when(waited_before, F.col("before_deadline_us")),
        F.when(continues & ended_before & ~F.col("removed"), F.col("before_changed_us")),
    )
    # Until now the task may have seemed to wait, or to be in progress, until the end of the recording.
    seemed = F.least(F.lit(known_us), F.when(waits("before_status"), F.col("before_deadline_us")))
    was_open = continues & F.col("before_status").isin(*LIVE) & ~F.col("before_fresh")
    high = F.greatest(
        _range_of_task(as_of_us)[1], F.when(F.coalesce(was_open & matters, F.lit(False)), seemed)
    )
    return low, high


def hours_of_changed_tasks(steps: DataFrame, known_us: int, as_of_us: int) -> DataFrame:
    """Return each `hour` with events of lives that fresh events changed, or that were shed in the meantime.

    Args:
        steps: All steps of each task, of events with `fresh`.
        known_us: End of the recording in the previous run.
        as_of_us: End of the recording.
    """
    shed_since = F.coalesce((shed_us() > known_us) & (shed_us() <= as_of_us), F.lit(False))
    step = F.struct("life", hour_of(F.col("created_us")).alias("hour"))
    by_task = steps.groupBy(*TASK).agg(
        F.max("unsettled").alias("unsettled"),
        F.collect_set(step).alias("steps"),
        F.collect_set(F.when(F.col("fresh") | shed_since, F.col("life"))).alias("changed_lives"),
    )
    changed = F.expr(
        "transform(filter(steps, s -> unsettled or array_contains(changed_lives, s.life)), s -> s.hour)"
    )
    return by_task.where("size(changed_lives) > 0").select(F.explode(changed).alias("hour")).distinct()


def hour_figures(steps: DataFrame, as_of_us: int, *, linked: bool) -> DataFrame:
    """Return the number of events in each `hour` of creation, and the other figures of `Hour`.

    Args:
        steps: All steps of each task.
        as_of_us: End of the recording.
        linked: Whether tasks have events in several hours.
    """
    live = ~F.col("removed") & F.col("status").isin(*LIVE)
    # The time of a removal matters only if it ends a wait without a deadline.
    at = F.when(~F.col("removed") | F.col("deadline_us").isNull(), F.col("changed_us"))
    shed = F.when(waits("status") & F.col("is_last"), F.col("deadline_us"))
    first = F.min(F.least("created_us", at, shed)).alias("first_us")
    last = F.max(F.greatest("created_us", at, shed, F.when(live, until_us()))).alias("last_us")
    recorded = F.col("change").isin("INSERT", "SNAPSHOT")
    ahead = F.when(shed_us() > as_of_us, shed_us())
    hour = hour_of(F.col("created_us")).alias("hour")
    figures = steps.groupBy(hour).agg(
        F.count(F.lit(1)).alias("events"),
        first,
        last,
        F.max(is_open()).alias("has_open"),
        F.min(ahead).alias("next_deadline_us"),
        F.max(F.col("begins") & ~recorded).alias("unbegun"),
    )
    if not linked:
        return figures
    # A life with events in several hours matters to each of them, because its row in `tasks` has all.
    lives = steps.groupBy(*TASK, "life").agg(F.collect_set(hour).alias("hours"), first, last)
    lives = lives.where(F.size("hours") > 1).withColumn("hour", F.explode("hours"))
    every = figures.unionByName(lives.select("hour", "first_us", "last_us"), allowMissingColumns=True)
    how = {"events": F.sum, "first_us": F.min, "last_us": F.max, "has_open": F.max,
           "next_deadline_us": F.min, "unbegun": F.max}  # fmt: skip
    return every.groupBy("hour").agg(*(merged(name).alias(name) for name, merged in how.items()))
