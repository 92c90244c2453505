"""Shows the candidates of a claim, and takes none."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from freshq.model.task import Task, TaskStatus
from freshq.stores.dynamodb.items import decode_if_task

if TYPE_CHECKING:
    from freshq.stores.claim_request import ClaimMoment
    from freshq.stores.dynamodb.calls import TableCalls
    from freshq.stores.dynamodb.candidates import Candidates

# Candidates that a look reads in vain: taken by others since the index showed them, or stale.
MAX_VAIN_READS: Final = 50


def peek(calls: TableCalls, candidates: Candidates) -> list[Task]:
    """Return the candidates of a claim that may be claimed, best first."""
    limit, moment = candidates.request.limit, candidates.moment
    best_first = islice(candidates.best_first(), limit + MAX_VAIN_READS)
    found: list[Task] = []
    while len(found) < limit and (ids := list(islice(best_first, limit - len(found)))):
        tasks = {task.task_id: task for task in map(decode_if_task, calls.get_many(ids)) if task is not None}
        found += [tasks[task_id] for task_id in ids if task_id in tasks and _may_go(tasks[task_id], moment)]
    return found


def _may_go(task: Task, moment: ClaimMoment) -> bool:
    is_in_time = task.created > moment.created_after and task.deadline > moment.deadline_after
    return task.status is TaskStatus.PENDING and not task.delayed and is_in_time
