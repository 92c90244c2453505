"""`groups`: offers and successes of each group of a queue, and their fairness."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa

from freshq_pipeline.gold.sums import summed

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Amounts: TypeAlias = NDArray[np.float64]
    Owners: TypeAlias = NDArray[np.intp]


def groups(counts: pa.Table) -> pa.Table:
    """Return the table.

    Args:
        counts: From `fates`, of all days.
    """
    rows = summed(counts, ("queue", "task_group"), ("tasks", "success", "shed"))
    rows = rows.rename_columns(["queue", "task_group", "offered", "succeeded", "shed"])
    queues = rows["queue"].combine_chunks().dictionary_encode(null_encoding="encode")
    of_queue = queues.indices.to_numpy(zero_copy_only=False).astype(np.intp)
    offered, succeeded, shed = (
        rows[name].to_numpy().astype(np.float64) for name in ("offered", "succeeded", "shed")
    )
    figures = {
        "offer_share": ratio(offered, _sum(offered, of_queue)),
        "service_share": ratio(succeeded, _sum(succeeded, of_queue)),
        "shed_share": ratio(shed, _sum(shed, of_queue)),
        "jain_index": jain_index(succeeded, of_queue),
        "jain_index_of_demand": jain_index(succeeded / offered, of_queue),
    }
    for name, values in figures.items():
        rows = rows.append_column(name, values)
    return rows


def jain_index(amount: Amounts, of_queue: Owners) -> pa.Array:
    """Return Jain's fairness index: 1 if all amounts are equal, 1/n if one has everything, null if all are 0.

    Source: Jain, Chiu, Hawe, "A Quantitative Measure of Fairness and Discrimination", DEC-TR-301, 1984.

    Args:
        amount: What each group got.
        of_queue: Number of the queue of each group; the index is that of its queue.
    """
    # Floating-point sums depend on the order, so it is always the same.
    order = np.argsort(amount, kind="stable")
    total, squares = np.empty_like(amount), np.empty_like(amount)
    total[order] = _sum(amount[order], of_queue[order])
    squares[order] = _sum(amount[order] ** 2, of_queue[order])
    return ratio(total * total, _sum(np.ones_like(amount), of_queue) * squares)


def _sum(amount: Amounts, of_queue: Owners) -> Amounts:
    """Return for each group the sum over its queue, added up in the given order."""
    found: Amounts = np.bincount(of_queue, amount).astype(np.float64)[of_queue]
    return found


def ratio(amount: Amounts, of: Amounts) -> pa.Array:
    """Return quotients, null where the divisor is 0."""
    nothing = of == 0
    return pa.array(amount / np.where(nothing, 1.0, of), mask=nothing)
