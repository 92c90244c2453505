"""Which days a run computes: those that its events change, and those whose tasks share time with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import functions as F

from freshq_pipeline.errors import BadInput
from freshq_pipeline.gold.id_index import index_ids
from freshq_pipeline.gold.silver_days import events_of, partitions_for
from freshq_pipeline.gold.steps import distinct_steps
from freshq_pipeline.gold.touched import days_of_changed_tasks, touched_days
from freshq_pipeline.storage.days import DAY_US, iso, linked_days

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession

    from freshq_pipeline.storage.folder import Folder
    from freshq_pipeline.storage.state import State


@dataclass(frozen=True, slots=True)
class OpenDays:
    """What a run computes.

    Attributes:
        tasks: Days whose tasks are computed; the tasks of other days cannot have changed.
        clock: Days whose minutes and inverted claims are computed; None: all of them.
    """

    tasks: frozenset[int]
    clock: frozenset[int] | None


def every_day(state: State) -> OpenDays:
    """Return that everything is computed.

    Raises:
        BadInput: If silver of some days was deleted.
    """
    refuse_forgotten(state, state.days)
    return OpenDays(frozenset(state.days), None)


def refuse_forgotten(state: State, days: Iterable[int]) -> None:
    """Raise BadInput if silver of some days was deleted."""
    gone = [day for day in days if state.days[day].forgotten]
    if gone:
        msg = f"out: silver of {iso(min(gone))} to {iso(max(gone))} was deleted (keep-silver-days), so these "
        msg += "days cannot be computed again; use --full-refresh, or leave their options as they were"
        raise BadInput(msg)


def open_days(
    spark: SparkSession, out: Folder, state: State, before: State, as_of_us: int, wanted: set[int]
) -> OpenDays:
    """Return the days to compute after some files were read.

    Args:
        spark: The session.
        out: Folder with silver.
        state: State of this run, with the events of its files in the part that has its name.
        before: State of the run before, made with the same options.
        as_of_us: End of the recording.
        wanted: Days to compute in any case.
    """
    refuse_forgotten(state, wanted)
    index_ids(spark, out, state)
    known_us = before.as_of_us
    fresh = {day for day, known in state.days.items() if state.run_id in known.silver}
    changed = fresh | wanted | _changed_without_events(state, before, as_of_us)
    # The last minute of a recording may go on after it.
    later = range(known_us // DAY_US, as_of_us // DAY_US + 1) if as_of_us > known_us else ()
    clock = wanted | set(later)
    if fresh:
        changed, touched = _changed_by_events(spark, out, state, changed, known_us, as_of_us)
        clock |= touched
    return _with_beside(state, changed, clock)


def _with_beside(state: State, changed: set[int], clock: set[int]) -> OpenDays:
    """Return changed days, with those whose tasks were waiting or in progress at the same time."""
    if state.final_until is not None:
        clock = {day for day in clock if day > state.final_until}
    beside = {day for day, known in state.days.items() if known.touches(clock)}
    tasks = {day for day in changed | beside if not state.days[day].forgotten}
    return OpenDays(frozenset(tasks), frozenset(clock))


def _changed_without_events(state: State, before: State, as_of_us: int) -> set[int]:
    """Return days whose tasks change because the recording now begins earlier or ends later."""
    shed = {
        day
        for day, known in before.days.items()
        if known.next_deadline_us is not None and known.next_deadline_us <= as_of_us
    }
    if before.first_us is None or state.first_us is None or state.first_us >= before.first_us:
        return shed
    # A task whose put is missing may now violate the ledger.
    unbegun = {day for day, known in before.days.items() if known.unbegun}
    return shed | unbegun | linked_days(state.days, unbegun)


def _changed_by_events(
    spark: SparkSession, out: Folder, state: State, changed: set[int], known_us: int, as_of_us: int
) -> tuple[set[int], set[int]]:
    """Return the days of the changed tasks, and the days whose minutes and claims they change."""
    while True:
        events = up_to(events_of(spark, out, state.days, changed, state.run_id), as_of_us)
        steps = distinct_steps(events, partitions_for(spark, state.days, changed))
        steps = steps.persist(StorageLevel.MEMORY_AND_DISK)
        try:
            if linked_days(state.days, changed):
                missing = days_of_changed_tasks(steps, known_us, as_of_us) - changed
                if missing:
                    changed = changed | missing
                    continue
            return changed, touched_days(steps, known_us, as_of_us)
        finally:
            steps.unpersist()


def up_to(events: DataFrame, as_of_us: int) -> DataFrame:
    """Return the events up to a time."""
    return events.where(F.col("changed_us") <= as_of_us)
