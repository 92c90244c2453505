"""A replay as a DataFrame, in the session of the recorded tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from freshq_pipeline.replays.grid import Grid
from freshq_pipeline.replays.record import COLUMNS, LOAD, recorded_loads
from freshq_pipeline.replays.scenarios import replayed
from freshq_pipeline.schemas import ddl

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_DEFAULTS: Final = Grid()
_COLUMNS: Final = {
    "queue": "string",
    "policy": "string",
    "capacity": "double",  # as a multiple of the recorded capacity
    "deadline_seconds": "double",  # null: the deadlines as recorded
    "servers": "int",
    "offered": "bigint",
    "served_in_time": "bigint",
    "served_late": "bigint",
    "failed": "bigint",
    "pending": "bigint",  # still waiting at the end of the recording
    "shed_by_reason": "map<string,bigint>",
    "shed_ratio": "double",  # of the offered tasks
    "goodput_ratio": "double",  # of the capacity
    "load": "double",  # as a multiple of the capacity
    "wasted_ratio": "double",  # of the time worked, for tasks that were not done in time
    "wait_p50_seconds": "double",  # of the tasks served in time
    "wait_p99_seconds": "double",
    "order_switches": "int",
    "recorded": "boolean",  # whether this is the recorded policy at the recorded capacity
    "difference_ratio": "double",  # of the tasks served in time, from the recording; null unless `recorded`
}


def replay(tasks: DataFrame, grid: Grid = _DEFAULTS) -> DataFrame:
    """Simulate the recorded load of each queue under other policies, capacities and deadlines.

    The result has a row for each scenario of each queue, and first of each queue its recorded policy, whose
    `difference_ratio` says how far the simulation is from what was recorded. All ratios are parts of 1.

    All rows are replayed, and read into the memory of the driver. So choose the days of long recordings, for
    example by `tasks.where("day >= '2026-01-01'")`.

    Args:
        tasks: The table `tasks`, or some of its rows.
        grid: The scenarios.

    Raises:
        BadInput: If no task was ever served, or the wanted queue has no tasks.
    """
    spark = tasks.sparkSession
    rows = tasks.where(LOAD).select(*COLUMNS).toArrow()
    result = replayed(spark, recorded_loads(rows, grid), grid)
    checks = {one["queue"]: one["check"]["difference_ratio"] for one in result["queues"]}
    rows = []
    for scenario in result["scenarios"]:
        difference = checks.pop(scenario["queue"], None)
        more = {"recorded": difference is not None, "difference_ratio": difference}
        row = scenario | more
        rows.append(tuple(row[name] for name in _COLUMNS))
    return spark.createDataFrame(rows, ddl(_COLUMNS))
