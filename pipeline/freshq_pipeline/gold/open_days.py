"""Find the days that a run must compute: days that new events change, and days whose tasks overlap in time.

New events change days through minutes, through claims, and through other events of their tasks. Only these
days are computed again. If a day were missed here, increments would differ from a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark import StorageLevel
from pyspark.sql import functions as F

from freshq_pipeline.errors import BadInput
from freshq_pipeline.gold.silver_days import events_of, partitions_for
from freshq_pipeline.gold.steps import LIVE, TASK, day_of, distinct_steps, is_open, shed_us, until_us, waits
from freshq_pipeline.storage.days import DAY_US, iso, linked_days

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import Column, DataFrame, SparkSession

    from freshq_pipeline.storage.folder import Folder
    from freshq_pipeline.storage.state import State


_FIGURES: Final = "figures"
_CHANGED: Final = "changed"
_TOUCHED: Final = "touched"


@dataclass(frozen=True, slots=True)
class OpenDays:
    """The days that a run computes.

    Attributes:
        tasks: Days whose tasks are computed; tasks of other days have not changed.
        clock: Days whose minutes and claims out of turn are computed; None: all.
    """

    tasks: frozenset[int]
    clock: frozenset[int] | None


@dataclass(frozen=True, slots=True)
class Opened:
    """The days that a run computes, and their steps.

    Attributes:
        days: The days.
        steps: All steps of the tasks of these days, cached until the caller releases them; None if there are
            no days to compute.
        figures: Figures of each day, from `day_figures`.
    """

    days: OpenDays
    steps: DataFrame | None
    figures: list[dict[str, Any]]


def open_all(spark: SparkSession, out: Folder, state: State) -> Opened:
    """Open all days.

    Args:
        spark: The session.
        out: The output folder.
        state: State of this run.

    Raises:
        BadInput: If silver of some days was deleted.
    """
    _check_kept(state, set(state.days))
    return _opened(spark, out, state, OpenDays(frozenset(state.days), None))


def open_days(spark: SparkSession, out: Folder, state: State, before: State, wanted: set[int]) -> Opened:
    """Open the days that change after new files were read.

    Nearly all new events follow the previous end of the recording, and so change only later times. The steps
    of the days opened first also show whether more days must be opened.

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
    fresh = {day for day, known in state.days.items() if state.run_id in known.silver}
    changed = fresh | of_tasks | _changed_without_events(state, before, as_of_us)
    # The last minute of a recording may continue in the next one.
    later = range(known_us // DAY_US, as_of_us // DAY_US + 1) if as_of_us > known_us else ()
    clock = wanted | set(later)
    opened = _with_beside(state, changed, clock)
    if not fresh:
        return _opened(spark, out, state, opened)
    while True:
        steps = _steps(spark, out, state, opened.tasks, state.run_id)
        found = _surveyed(steps, known_us, as_of_us, linked=bool(linked_days(state.days, opened.tasks)))
        changed = changed | _days(found, _CHANGED)
        needed = _with_beside(state, changed, clock | _days(found, _TOUCHED))
        if needed.tasks <= opened.tasks:
            figures = [row for row in found if row["what"] == _FIGURES]
            return Opened(OpenDays(opened.tasks, needed.clock), steps, figures)
        steps.unpersist()
        opened = OpenDays(opened.tasks | needed.tasks, needed.clock)


def _check_kept(state: State, days: set[int]) -> None:
    """Raise BadInput if silver of some days was deleted."""
    gone = [day for day in days if state.days[day].forgotten]
    if gone:
        msg = f"since: the events of {iso(min(gone))} to {iso(max(gone))} were deleted (keep-silver-days); "
        msg += f"give --since after {iso(max(gone))}"
        raise BadInput(msg)


def _opened(spark: SparkSession, out: Folder, state: State, days: OpenDays) -> Opened:
    """Open days that do not depend on new events."""
    if not days.tasks:
        return Opened(days, None, [])
    steps = _steps(spark, out, state, days.tasks, None)
    return Opened(days, steps, [row.asDict() for row in day_figures(steps, state.as_of_us).collect()])


def _steps(
    spark: SparkSession, out: Folder, state: State, chosen: Collection[int], fresh: str | None
) -> DataFrame:
    """Return the steps of the tasks of some days, to be cached when they are computed."""
    events = events_of(spark, out, state.days, chosen, fresh).where(F.col("changed_us") <= state.as_of_us)
    steps = distinct_steps(events, partitions_for(spark, state.days, chosen))
    return steps.persist(StorageLevel.MEMORY_AND_DISK)


def _surveyed(steps: DataFrame, known_us: int, as_of_us: int, *, linked: bool) -> list[dict[str, Any]]:
    """Return the figures of each day, and the days that fresh events touch or change, by one query.

    Args:
        steps: Steps of events with `fresh`.
        known_us: End of the recording in the previous run.
        as_of_us: End of the recording.
        linked: Whether tasks have events on several days.
    """
    rows = day_figures(steps, as_of_us).withColumn("what", F.lit(_FIGURES))
    sought = {_TOUCHED: touched_days(steps, known_us, as_of_us)}
    if linked:
        sought[_CHANGED] = days_of_changed_tasks(steps, known_us, as_of_us)
    for what, days in sought.items():
        rows = rows.unionByName(days.withColumn("what", F.lit(what)), allowMissingColumns=True)
    return [row.asDict() for row in rows.collect()]


def _days(found: list[dict[str, Any]], what: str) -> set[int]:
    return {row["day"] for row in found if row["what"] == what}


def _with_beside(state: State, changed: set[int], clock: set[int]) -> OpenDays:
    """Add the days whose tasks were waiting or in progress at the same time."""
    if state.final_until is not None:
        clock = {day for day in clock if day > state.final_until}
    beside = {day for day, known in state.days.items() if known.touches(clock)}
    tasks = {day for day in changed | beside if not state.days[day].forgotten}
    return OpenDays(frozenset(tasks), frozenset(clock))


def _changed_without_events(state: State, before: State, as_of_us: int) -> set[int]:
    """Return days whose tasks change because the recording ends later, or begins earlier for a queue."""
    shed = {
        day
        for day, known in before.days.items()
        if known.next_deadline_us is not None and known.next_deadline_us <= as_of_us
    }
    if not any(state.starts_us[queue] < start for queue, start in before.starts_us.items()):
        return shed
    # A task without a put may now violate the ledger.
    unbegun = {day for day, known in before.days.items() if known.unbegun}
    return shed | unbegun | linked_days(state.days, unbegun)


def touched_days(steps: DataFrame, known_us: int, as_of_us: int) -> DataFrame:
    """Return each `day` on which fresh events change minutes, or which claims are out of turn.

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
        day_of(since).alias("first"), day_of(F.greatest(since, until)).alias("last")
    )
    return spans.distinct().select(F.explode(F.sequence("first", "last")).alias("day")).distinct()


def _range_of_task(as_of_us: int) -> tuple[Column, Column]:
    """Return the earliest and the latest time at which a step matters."""
    low = F.least("changed_us", "created_us", "deadline_us", "before_changed_us")
    open_until = F.least(F.coalesce(until_us(), F.lit(as_of_us)), F.lit(as_of_us))
    live = ~F.col("removed") & F.col("status").isin(*LIVE)
    return low, F.greatest("changed_us", "created_us", F.when(live, open_until))


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


def days_of_changed_tasks(steps: DataFrame, known_us: int, as_of_us: int) -> DataFrame:
    """Return each `day` with events of lives that fresh events changed, or that were shed meanwhile.

    Args:
        steps: All steps of each task, of events with `fresh`.
        known_us: End of the recording in the previous run.
        as_of_us: End of the recording.
    """
    shed_since = F.coalesce((shed_us() > known_us) & (shed_us() <= as_of_us), F.lit(False))
    step = F.struct("life", day_of(F.col("created_us")).alias("day"))
    by_task = steps.groupBy(*TASK).agg(
        F.max("unsettled").alias("unsettled"),
        F.collect_set(step).alias("steps"),
        F.collect_set(F.when(F.col("fresh") | shed_since, F.col("life"))).alias("changed_lives"),
    )
    changed = F.expr(
        "transform(filter(steps, s -> unsettled or array_contains(changed_lives, s.life)), s -> s.day)"
    )
    return by_task.where("size(changed_lives) > 0").select(F.explode(changed).alias("day")).distinct()


def day_figures(steps: DataFrame, as_of_us: int) -> DataFrame:
    """Return the number of events on each day of creation, and the other figures of `Day`."""
    live = ~F.col("removed") & F.col("status").isin(*LIVE)
    # The time of a removal matters only if it ends a wait without a deadline.
    at = F.when(~F.col("removed") | F.col("deadline_us").isNull(), F.col("changed_us"))
    shed = F.when(waits("status") & F.col("is_last"), F.col("deadline_us"))
    low = F.least("created_us", at, shed)
    high = F.greatest("created_us", at, shed, F.when(live, until_us()))
    recorded = F.col("change").isin("INSERT", "SNAPSHOT")
    ahead = F.when(shed_us() > as_of_us, shed_us())
    return steps.groupBy(day_of(F.col("created_us")).alias("day")).agg(
        F.count(F.lit(1)).alias("events"),
        F.min(low).alias("first_us"),
        F.max(high).alias("last_us"),
        F.max(is_open()).alias("has_open"),
        F.min(ahead).alias("next_deadline_us"),
        F.max(F.col("begins") & ~recorded).alias("unbegun"),
    )
