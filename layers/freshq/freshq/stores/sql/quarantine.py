"""Turns a claimed task whose payload cannot be decoded into a dead letter, after one try."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

from freshq.model.lifecycle import UNHELD, new_token, truncated
from freshq.model.task import TaskStatus, Verb, advance

if TYPE_CHECKING:
    from freshq.model.task import Task

logger = logging.getLogger(__name__)


def as_dead_letter(task: Task, problem: str, now: float) -> Task:
    """Return a claimed task as a dead letter.

    Args:
        task: The task.
        problem: Why its payload cannot be decoded.
        now: Current time in seconds.
    """
    logger.error("task %s of queue %r is a dead letter: %s", task.task_id, task.queue, problem)
    failed = advance(task, Verb.FAIL, TaskStatus.FAILURE, now, error=truncated(problem), **UNHELD)
    return replace(failed, request_token=new_token())
