"""freshq: a task queue for work that loses value with age.

Exports every public name. A name is loaded when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from freshq.errors import (
        AlreadyQueued,
        DamagedTaskError,
        FreshqError,
        IllegalTransition,
        LeaseLost,
        LostRace,
        MatchLost,
        MissingExtra,
        NoPosition,
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
        WaitTimeout,
        WrongResourceState,
    )
    from freshq.feeds.relay import Relay
    from freshq.feeds.schedules import Cron, Every, Schedule, Scheduler
    from freshq.matching.match import Match
    from freshq.matching.queue import MatchQueue
    from freshq.matching.resource import Caller, Resource, ResourceStatus
    from freshq.model.answers import Busy, Claim, Page, PutOutcome, Receipt, Reject, Retry, Waiting, WaitsFor
    from freshq.model.codec import Codec, JsonCodec
    from freshq.model.settlement import Settlement
    from freshq.model.task import Task, TaskStatus
    from freshq.policy.backlog_limit import BacklogLimit, WhenFull
    from freshq.policy.limits import ConcurrencyLimit, RetryBudget, SharedBucket
    from freshq.policy.order import Order
    from freshq.policy.pressure import Door
    from freshq.policy.rules import CodelRule, ReserveRule
    from freshq.queue.asyncio import AsyncAttachedQueue, AsyncQueue
    from freshq.queue.attached import AttachedQueue
    from freshq.queue.queue import Queue
    from freshq.stores.base import Stats
    from freshq.worker.handlers import Handlers
    from freshq.worker.otel import OpenTelemetry
    from freshq.worker.report import Observer, Outcome, RunReport, TaskLogFilter
    from freshq.worker.worker import Worker

__all__ = [
    "AlreadyQueued",
    "AsyncAttachedQueue",
    "AsyncQueue",
    "AttachedQueue",
    "BacklogLimit",
    "Busy",
    "Caller",
    "Claim",
    "Codec",
    "CodelRule",
    "ConcurrencyLimit",
    "Cron",
    "DamagedTaskError",
    "Door",
    "Every",
    "FreshqError",
    "Handlers",
    "IllegalTransition",
    "JsonCodec",
    "LeaseLost",
    "LostRace",
    "Match",
    "MatchLost",
    "MatchQueue",
    "MissingExtra",
    "NoPosition",
    "NotReady",
    "Observer",
    "OpenTelemetry",
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
    "Relay",
    "ReserveRule",
    "Resource",
    "ResourceNotFound",
    "ResourceStatus",
    "Retry",
    "RetryBudget",
    "RunReport",
    "Schedule",
    "Scheduler",
    "Settlement",
    "SharedBucket",
    "Stats",
    "StoreError",
    "TableMissing",
    "Task",
    "TaskLogFilter",
    "TaskNotFound",
    "TaskStatus",
    "Throttled",
    "Unreachable",
    "WaitTimeout",
    "Waiting",
    "WaitsFor",
    "WhenFull",
    "Worker",
    "WrongResourceState",
]

_MODULES: Final = {
    "AlreadyQueued": "freshq.errors",
    "AsyncAttachedQueue": "freshq.queue.asyncio",
    "AsyncQueue": "freshq.queue.asyncio",
    "AttachedQueue": "freshq.queue.attached",
    "BacklogLimit": "freshq.policy.backlog_limit",
    "Busy": "freshq.model.answers",
    "Caller": "freshq.matching.resource",
    "Claim": "freshq.model.answers",
    "Codec": "freshq.model.codec",
    "CodelRule": "freshq.policy.rules",
    "ConcurrencyLimit": "freshq.policy.limits",
    "Cron": "freshq.feeds.schedules",
    "DamagedTaskError": "freshq.errors",
    "Door": "freshq.policy.pressure",
    "Every": "freshq.feeds.schedules",
    "FreshqError": "freshq.errors",
    "Handlers": "freshq.worker.handlers",
    "IllegalTransition": "freshq.errors",
    "JsonCodec": "freshq.model.codec",
    "LeaseLost": "freshq.errors",
    "LostRace": "freshq.errors",
    "Match": "freshq.matching.match",
    "MatchLost": "freshq.errors",
    "MatchQueue": "freshq.matching.queue",
    "MissingExtra": "freshq.errors",
    "NoPosition": "freshq.errors",
    "NotReady": "freshq.errors",
    "Observer": "freshq.worker.report",
    "OpenTelemetry": "freshq.worker.otel",
    "Order": "freshq.policy.order",
    "Outcome": "freshq.worker.report",
    "Overloaded": "freshq.errors",
    "Page": "freshq.model.answers",
    "PutIncomplete": "freshq.errors",
    "PutOutcome": "freshq.model.answers",
    "Queue": "freshq.queue.queue",
    "Receipt": "freshq.model.answers",
    "RefusedError": "freshq.errors",
    "Reject": "freshq.model.answers",
    "Relay": "freshq.feeds.relay",
    "ReserveRule": "freshq.policy.rules",
    "Resource": "freshq.matching.resource",
    "ResourceNotFound": "freshq.errors",
    "ResourceStatus": "freshq.matching.resource",
    "Retry": "freshq.model.answers",
    "RetryBudget": "freshq.policy.limits",
    "RunReport": "freshq.worker.report",
    "Schedule": "freshq.feeds.schedules",
    "Scheduler": "freshq.feeds.schedules",
    "Settlement": "freshq.model.settlement",
    "SharedBucket": "freshq.policy.limits",
    "Stats": "freshq.stores.base",
    "StoreError": "freshq.errors",
    "TableMissing": "freshq.errors",
    "Task": "freshq.model.task",
    "TaskLogFilter": "freshq.worker.report",
    "TaskNotFound": "freshq.errors",
    "TaskStatus": "freshq.model.task",
    "Throttled": "freshq.errors",
    "Unreachable": "freshq.errors",
    "WaitTimeout": "freshq.errors",
    "Waiting": "freshq.model.answers",
    "WaitsFor": "freshq.model.answers",
    "WhenFull": "freshq.policy.backlog_limit",
    "Worker": "freshq.worker.worker",
    "WrongResourceState": "freshq.errors",
}

if not TYPE_CHECKING:  # otherwise a type checker would accept any name

    def __getattr__(name: str) -> object:
        """Load a public name when it is first used."""
        if name not in _MODULES:
            msg = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(msg)
        value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
