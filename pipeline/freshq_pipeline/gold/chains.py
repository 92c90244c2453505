"""`chains`: a row for each root whose runs put further tasks with `parent`, with the time in each hop."""

from __future__ import annotations

from bisect import bisect_right
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F

from freshq_pipeline.gold.steps import TASK, same_task
from freshq_pipeline.schemas import TABLES, ddl
from freshq_pipeline.storage.arrow import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame

    Row = dict[str, Any]

# The columns of `tasks` that chains need.
_MEMBER: Final = (
    "queue", "task_id", "life", "parent_id", "root_id", "created_ms", "deadline_ms", "finished_ms",
    "wait_seconds", "run_seconds", "outcome", "in_time",
)  # fmt: skip
# A chain that has ended has the first outcome in this order among its tasks.
_WORST: Final = ("shed", "failure", "cancelled", "success")
_ROWS_AT_A_TIME: Final = 4096
_HOP: Final = arrow_schema(
    {"hop": "int", "tasks": "bigint", "wait_seconds": "double", "run_seconds": "double", "shed": "bigint"}
)
_BY_HOP: Final = "by_hop"
_SCHEMA: Final = arrow_schema(
    {name: kind for name, kind in TABLES["chains"].items() if name != _BY_HOP}
).append(pa.field(_BY_HOP, pa.list_(pa.struct(list(_HOP)))))
_KEY: Final = itemgetter("queue", "chain")


def chains(tasks: DataFrame) -> DataFrame:
    """Return the table, without the columns that name its folders.

    A chain belongs to one queue: tasks that its runs put to another queue are a chain there. A root whose id
    was used again has a chain for each life.

    Args:
        tasks: The table `tasks`, on all days with tasks of these chains.
    """
    rows = tasks.select(*_MEMBER)
    children = rows.where("root_id is not null")
    named = children.select("queue", F.col("root_id").alias("task_id")).distinct()
    roots = rows.where("root_id is null").join(named, same_task(rows, named), "left_semi")
    members = children.unionByName(roots).withColumn("chain", F.coalesce("root_id", "task_id"))
    placed = members.repartition("chain").sortWithinPartitions("chain", "queue", "created_ms", *TASK, "life")
    return placed.mapInArrow(_chains_in, ddl(TABLES["chains"]))


def _chains_in(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the chains of tasks that are sorted by chain and queue."""
    rows = chain.from_iterable(batch.to_pylist() for batch in batches)
    found = chain.from_iterable(map(chains_of, map(list, map(itemgetter(1), groupby(rows, _KEY)))))
    while some := list(islice(found, _ROWS_AT_A_TIME)):
        yield pa.RecordBatch.from_pylist(some, schema=_SCHEMA)


def chains_of(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield the chains of a root id in a queue, one for each life of the root.

    Args:
        rows: The root's lives and all other tasks, by time of creation, each with `_MEMBER` and `chain`.
    """
    roots = [row for row in rows if row["root_id"] is None]
    begun_ms = [root["created_ms"] for root in roots]
    by_life: dict[int, list[Row]] = {}
    for row in rows:
        # Clocks differ, so a child may seem older than its root.
        place = roots.index(row) if row["root_id"] is None else bisect_right(begun_ms, row["created_ms"]) - 1
        by_life.setdefault(max(place, 0), []).append(row)
    for place, members in sorted(by_life.items()):
        if any(row["root_id"] is not None for row in members):
            yield _chain(members, roots[place] if roots else None)


def _chain(members: Sequence[Row], root: Row | None) -> Row:
    steps = _steps(members, root)
    return {
        "queue": members[0]["queue"],
        "root_id": members[0]["chain"],
        "life": root and root["life"],
        "created_ms": min(row["created_ms"] for row in members),
        "deadline_ms": root["deadline_ms"] if root else _latest(members, "deadline_ms"),
        "hops": steps[-1]["hop"],
        "tasks": len(members),
        "wait_seconds": sum(map(_wait_us, members)) / 1e6,
        "run_seconds": sum(map(_run_us, members)) / 1e6,
        "shed_hop": next((step["hop"] for step in steps if step["shed"]), None),
        "in_time": all(row["in_time"] for row in members),
        _BY_HOP: steps,
    } | _end(members)


def _steps(members: Sequence[Row], root: Row | None) -> list[Row]:
    """Return the hops of a chain, in order."""
    parents = {row["task_id"]: row["parent_id"] for row in reversed(members) if row is not root}
    depths = hops(members[0]["chain"], parents)
    by_hop: dict[int, list[Row]] = {}
    for row in members:
        by_hop.setdefault(1 if row is root else depths[row["task_id"]], []).append(row)
    return [_hop(hop, rows) for hop, rows in sorted(by_hop.items())]


def _end(members: Sequence[Row]) -> Row:
    """Return the outcome of a chain, and when it ended."""
    outcomes = {row["outcome"] for row in members}
    if not outcomes.isdisjoint(("pending", "taken")):
        return {"outcome": "pending", "ended_ms": None}
    worst = next(outcome for outcome in _WORST if outcome in outcomes)
    return {"outcome": worst, "ended_ms": _latest(members, "finished_ms")}


def _latest(members: Sequence[Row], name: str) -> float | None:
    return max((row[name] for row in members if row[name] is not None), default=None)


def hops(root_id: str, parents: dict[str, str | None]) -> dict[str, int]:
    """Return the hop of each task of a chain; the root is hop 1, and so is a parent without a record.

    Args:
        root_id: Id of the root.
        parents: The parent of each other task, by id.
    """
    found = {root_id: 1}
    for task_id in parents:
        path: dict[str, None] = {}
        at: str | None = task_id
        # An id that was used again may be its own ancestor.
        while at is not None and at in parents and at not in found and at not in path:
            path[at] = None
            at = parents[at]
        hop = 1 if at is None else found.get(at, 1)
        for passed in reversed(path):
            hop += 1
            found[passed] = hop
    return found


def _hop(hop: int, rows: Sequence[Row]) -> Row:
    return {
        "hop": hop,
        "tasks": len(rows),
        "wait_seconds": sum(map(_wait_us, rows)) / 1e6,
        "run_seconds": sum(map(_run_us, rows)) / 1e6,
        "shed": sum(row["outcome"] == "shed" for row in rows),
    }


def _wait_us(row: Row) -> int:
    """Return the time until the first claim, or until the end of a task that was never claimed."""
    waited: float | None = row["wait_seconds"]
    if waited is not None:
        return round(waited * 1e6)
    created: float = row["created_ms"]
    ended: float = created if row["finished_ms"] is None else row["finished_ms"]
    return max(0, round(ended * 1000) - round(created * 1000))


def _run_us(row: Row) -> int:
    ran: float = row["run_seconds"] or 0.0
    return round(ran * 1e6)
