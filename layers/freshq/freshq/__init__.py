"""freshq: a task queue for work that loses value with age."""

from freshq.errors import (
    FreshqError,
    IllegalTransition,
    LeaseLost,
    PutIncomplete,
    RefusedError,
    StoreError,
    TableMissing,
    TaskNotFound,
    Throttled,
    Unreachable,
)
from freshq.policy.order import Order
from freshq.queue import Claim, PutOutcome, Queue, Receipt
from freshq.stores.base import Page, Stats
from freshq.task import Task, TaskStatus

__all__ = [
    "Claim",
    "FreshqError",
    "IllegalTransition",
    "LeaseLost",
    "Order",
    "Page",
    "PutIncomplete",
    "PutOutcome",
    "Queue",
    "Receipt",
    "RefusedError",
    "Stats",
    "StoreError",
    "TableMissing",
    "Task",
    "TaskNotFound",
    "TaskStatus",
    "Throttled",
    "Unreachable",
]
