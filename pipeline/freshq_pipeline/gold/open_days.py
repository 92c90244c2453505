"""Which days a run computes: those that its events change, and those whose tasks share time with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark import StorageLevel
from pyspark.sql import functions as F

from freshq_pipeline.errors import BadInput
from freshq_pipeline.gold.silver_days import events_of, partitions_for
from freshq_pipeline.gold.steps import distinct_steps
from freshq_pipeline.gold.touched import day_figures, days_of_changed_tasks, touched_days
from freshq_pipeline.storage.days import DAY_US, iso, linked_days

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import DataFrame, SparkSession

    from freshq_pipeline.storage.folder import Folder
    from freshq_pipeline.storage.state import State

_FIGURES: Final = "figures"
_CHANGED: Final = "changed"
_TOUCHED: Final = "touched"


@dataclass(frozen=True, slots=True)
class OpenDays:
    """What a run computes.

    Attributes:
        tasks: Days whose tasks are computed; the tasks of other days cannot have changed.
        clock: Days whose minutes and inverted claims are computed; None: all of them.
    """

    tasks: frozenset[int]
    clock: frozenset[int] | None


@dataclass(frozen=True, slots=True)
class Opened:
    """The steps of the days that a run computes.

    Attributes:
        days: What the run computes.
        steps: From `distinct_steps`, all events of the tasks of these days, kept in memory until the caller
            gives them up; None: there are no days to compute.
        figures: From `day_figures`.
    """

    days: OpenDays
    steps: DataFrame | None
    figures: list[dict[str, Any]]


def open_all(spark: SparkSession, out: Folder, state: State) -> Opened:
    """Return that everything is computed, with all steps.

    Args:
        spark: The session.
        out: Folder with silver.
        state: State of this run.

    Raises:
        BadInput: If silver of some days was deleted.
    """
    _check_kept(state, set(state.days))
    return _opened(spark, out, state, OpenDays(frozenset(state.days), None))


def open_days(spark: SparkSession, out: Folder, state: State, before: State, wanted: set[int]) -> Opened:
    """Return the days to compute after some files were read, with the steps of their tasks.

    New events nearly always happen after the recording ended before, and so change only the time since then.
    The steps of the days that this opens are made in any case; they tell whether more days must be opened.

    Args:
        spark: The session.
        out: Folder with silver.
        state: State of this run, with the events of its files in the part that has its name, and the links of
            the days that share ids.
        before: State of the run before, made with the same options.
        wanted: Recorded days to compute in any case.

    Raises:
        BadInput: If silver of a wanted day was deleted.
    """
    of_tasks = wanted & state.days.keys()
    _check_kept(state, of_tasks)
    known_us, as_of_us = before.as_of_us, state.as_of_us
    fresh = {day for day, known in state.days.items() if state.run_id in known.silver}
    changed = fresh | of_tasks | _changed_without_events(state, before, as_of_us)
    # The last minute of a recording may go on after it.
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
    """Return days to compute that do not depend on the events."""
    if not days.tasks:
        return Opened(days, None, [])
    steps = _steps(spark, out, state, days.tasks, None)
    return Opened(days, steps, [row.asDict() for row in day_figures(steps, state.as_of_us).collect()])


def _steps(
    spark: SparkSession, out: Folder, state: State, chosen: Collection[int], fresh: str | None
) -> DataFrame:
    """Return the steps of the tasks of some days, which are kept in memory once they are made."""
    events = up_to(events_of(spark, out, state.days, chosen, fresh), state.as_of_us)
    steps = distinct_steps(events, partitions_for(spark, state.days, chosen))
    return steps.persist(StorageLevel.MEMORY_AND_DISK)


def _surveyed(steps: DataFrame, known_us: int, as_of_us: int, *, linked: bool) -> list[dict[str, Any]]:
    """Return by one query the figures of each day, the days that fresh events touch, and those they change.

    Args:
        steps: From `distinct_steps` of events with `fresh`.
        known_us: End of the recording as of the run before.
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
    """Return changed days, with those whose tasks were waiting or in progress at the same time."""
    if state.final_until is not None:
        clock = {day for day in clock if day > state.final_until}
    beside = {day for day, known in state.days.items() if known.touches(clock)}
    tasks = {day for day in changed | beside if not state.days[day].forgotten}
    return OpenDays(frozenset(tasks), frozenset(clock))


def _changed_without_events(state: State, before: State, as_of_us: int) -> set[int]:
    """Return days whose tasks change because the recording of a queue now begins earlier, or ends later."""
    shed = {
        day
        for day, known in before.days.items()
        if known.next_deadline_us is not None and known.next_deadline_us <= as_of_us
    }
    if not any(state.starts_us[queue] < start for queue, start in before.starts_us.items()):
        return shed
    # A task whose put is missing may now violate the ledger.
    unbegun = {day for day, known in before.days.items() if known.unbegun}
    return shed | unbegun | linked_days(state.days, unbegun)


def up_to(events: DataFrame, as_of_us: int) -> DataFrame:
    """Return the events up to a time."""
    return events.where(F.col("changed_us") <= as_of_us)
