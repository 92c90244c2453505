"""Replay tasks in a DataFrame, or the published tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F

from freshq_pipeline.errors import BadInput
from freshq_pipeline.replays.grid import Grid
from freshq_pipeline.replays.record import COLUMNS, LOAD, recorded_loads
from freshq_pipeline.replays.scenarios import replayed
from freshq_pipeline.schemas import TABLES, ddl
from freshq_pipeline.storage.arrow import arrow_schema
from freshq_pipeline.storage.results import keep_replay
from freshq_pipeline.storage.state import required_current
from freshq_pipeline.storage.table_files import read_table

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from freshq_pipeline.replays.grid import ChosenDays, DayRange
    from freshq_pipeline.storage.folder import Folder


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
    "value_offered": "double",  # 0 if no task of the queue has a value
    "value_delivered": "double",
    "order_switches": "int",
    "recorded": "boolean",  # whether this is the recorded policy at the recorded capacity
    "difference_ratio": "double",  # of the tasks served in time, from the recording; null unless `recorded`
}


def replay(tasks: DataFrame, grid: Grid = _DEFAULTS) -> DataFrame:
    """Simulate the recorded load of each queue under other policies, capacities and deadlines.

    The result has a row for each scenario. The first row of each queue is its recorded policy, whose
    `difference_ratio` is the deviation of the simulation from the recording. All ratios are parts of 1.

    All rows are replayed, in the memory of the driver. For long recordings, select some days, for example
    with `tasks.where("day >= '2026-01-01'")`.

    Args:
        tasks: The table `tasks`, or a part of its rows.
        grid: The scenarios.

    Raises:
        BadInput: If no task was ever served, or the queue to replay has no tasks.
    """
    spark = tasks.sparkSession
    rows = tasks.where(LOAD).select(*COLUMNS).toArrow()
    result = replayed(spark, recorded_loads(rows, grid), grid)
    checks = {one["queue"]: one["check"]["difference_ratio"] for one in result["queues"]}
    rows = []
    for scenario in result["scenarios"]:
        difference = checks.pop(scenario["queue"], None)
        row = scenario | {"recorded": difference is not None, "difference_ratio": difference}
        rows.append(tuple(row[name] for name in _COLUMNS))
    return spark.createDataFrame(rows, ddl(_COLUMNS))


# Per task of a replay, the driver needs about 500 bytes and an executor about 100.
MAX_TASKS: Final = 5_000_000
_ONE_COLUMN: Final = arrow_schema({"created_ms": TABLES["tasks"]["created_ms"]})


def replay_published(spark: SparkSession, out: Folder, grid: Grid, days: DayRange) -> dict[str, Any]:
    """Replay the current tables, write the result to the output folder, and return it.

    Args:
        spark: The session.
        out: The output folder.
        grid: The scenarios.
        days: Days of creation of the tasks.

    Raises:
        BadInput: If there are no such tasks or too many, or none was ever served.
    """
    state = required_current(out)
    by_day = state.tables["tasks"]
    found = days.choose(by_day)
    names = [*found.before(state.days), *found.chosen]
    grid.check_queue(state.starts_us)
    rows = _read(spark, out, [path for day in names for path in by_day[day]], grid.queue, found)
    result = {
        "run_id": state.run_id,
        "events": state.events,
        "as_of_ms": state.as_of_us // 1000,
        **found.figures(),
        **replayed(spark, recorded_loads(rows, grid, found.first_us / 1000), grid),
    }
    return keep_replay(out, result)


def _read(
    spark: SparkSession, out: Folder, paths: list[str], queue: str | None, days: ChosenDays
) -> pa.Table:
    """Return the tasks of the chosen days, and earlier tasks that still waited when these days began."""
    tasks = read_table(spark, out, paths, "tasks").where(LOAD)
    gone_ms = F.coalesce("first_taken_ms", "finished_ms")
    waited = gone_ms.isNull() | (gone_ms >= days.first_us / 1000)
    tasks = tasks.where(F.col("day").isin(*days.chosen) | waited)
    tasks = tasks if queue is None else tasks.where(F.col("queue") == queue)
    at_most = out.scan(paths, _ONE_COLUMN, _ONE_COLUMN.names).count_rows()  # needs only the files' footers
    if at_most > MAX_TASKS and tasks.count() > MAX_TASKS:
        msg = f"since, until: more than {MAX_TASKS:,} tasks from {days.chosen[0]} to {days.chosen[-1]}; "
        raise BadInput(msg + "choose fewer days or one --queue")
    rows = tasks.select(*COLUMNS).toArrow()
    if not len(rows):
        msg = f"since, until: no task to replay was created from {days.chosen[0]} to {days.chosen[-1]}"
        raise BadInput(msg + ("" if queue is None else f" in the queue {queue!r}"))
    return rows
