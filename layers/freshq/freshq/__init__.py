"""freshq: a task queue for work that loses value with age."""

from freshq.attached import AttachedQueue
from freshq.errors import (
    AlreadyQueued,
    FreshqError,
    IllegalTransition,
    LeaseLost,
    LostRace,
    MatchLost,
    NotReady,
    Overloaded,
    PutIncomplete,
    RefusedError,
    ResourceNotFound,
    StoreError,
    TableMissing,
    TaskNotFound,
    Throttled,
    Unreachable,
    WrongResourceState,
)
from freshq.matching import Match, MatchQueue
from freshq.outcomes import Busy, Reject, Retry
from freshq.policy.order import Order
from freshq.queue import Claim, PutOutcome, Queue, Receipt
from freshq.resource import Resource, ResourceStatus
from freshq.stores.base import Page, Stats
from freshq.task import Task, TaskStatus
from freshq.worker import Outcome, RunReport, Worker

__all__ = [
    "AlreadyQueued",
    "AttachedQueue",
    "Busy",
    "Claim",
    "FreshqError",
    "IllegalTransition",
    "LeaseLost",
    "LostRace",
    "Match",
    "MatchLost",
    "MatchQueue",
    "NotReady",
    "Order",
    "Outcome",
    "Overloaded",
    "Page",
    "PutIncomplete",
    "PutOutcome",
    "Queue",
    "Receipt",
    "RefusedError",
    "Reject",
    "Resource",
    "ResourceNotFound",
    "ResourceStatus",
    "Retry",
    "RunReport",
    "Stats",
    "StoreError",
    "TableMissing",
    "Task",
    "TaskNotFound",
    "TaskStatus",
    "Throttled",
    "Unreachable",
    "Worker",
    "WrongResourceState",
]
