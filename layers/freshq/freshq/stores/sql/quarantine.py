"""What becomes of a task that nobody can work on, since its payload cannot be decoded."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from freshq.model.lifecycle import UNHELD, new_token, truncated
from freshq.model.task import TaskStatus, Verb, advance
from freshq.stores.base import ConflictError, Guard

if TYPE_CHECKING:
    from freshq.model.task import Task
    from freshq.stores.base import Store
    from freshq.stores.sql.rows import Stored

logger = logging.getLogger(__name__)


def fit_for_work(store: Store, claimed: list[Stored], now: float) -> list[Task]:
    """Return what was claimed but for what cannot be decoded, which becomes a dead letter at once."""
    for each in claimed:
        if each.problem is not None:
            _bury(store, each.task, each.problem, now)
    return [each.task for each in claimed if each.problem is None]


def _bury(store: Store, task: Task, problem: str, now: float) -> None:
    logger.error("task %s of queue %r is a dead letter: %s", task.task_id, task.queue, problem)
    try:
        store.replace(buried(task, problem, now), Guard(TaskStatus.TAKEN, lease_token=task.lease_token))
    except ConflictError:
        logger.warning("task %s changed before it was made a dead letter", task.task_id)


def buried(task: Task, problem: str, now: float) -> Task:
    """Return a task that was taken as a dead letter."""
    failed = advance(task, Verb.FAIL, TaskStatus.FAILURE, now, error=truncated(problem), **UNHELD)
    return replace(failed, request_token=new_token())
