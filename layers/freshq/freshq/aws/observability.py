"""Logs, metrics and traces of the functions."""

from __future__ import annotations

import logging
import os
import threading
import warnings
import zlib
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from aws_lambda_powertools import Logger, Metrics, Tracer
from aws_lambda_powertools.metrics import MetricUnit
from aws_lambda_powertools.shared.functions import strtobool
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from freshq.queue.base import BaseQueue

Handler = TypeVar("Handler", bound="Callable[..., Any]")
# At DEBUG they log requests and responses, with payloads and signing credentials.
SDK_LOGGERS: Final = ("boto3", "botocore", "s3transfer", "urllib3", "aws_xray_sdk", "aws_lambda_powertools")
# Kind of the task that a new version runs before it gets traffic, and the prefix of the queues of such tasks.
CANARY: Final = "canary"
CANARY_QUEUE: Final = "canary-"
QUEUE_VARIABLE: Final = "FRESHQ_QUEUE_NAME"
LOG_LEVEL_VARIABLE: Final = "POWERTOOLS_LOG_LEVEL"
TRACE_VARIABLE: Final = "POWERTOOLS_TRACE_DISABLED"
# Attribute of a log record that carries the fields of its line.
FIELDS: Final = "_freshq_fields"
# Lambda reads the level of a line only if its time is as in RFC 3339.
logger: Final = Logger(use_rfc3339=True)
# A disabled tracer would still load its SDK. `worker_pass` patches the other libraries.
tracer: Final = (
    None if strtobool(os.environ.get(TRACE_VARIABLE, "off")) else Tracer(patch_modules=("botocore",))
)
metrics: Final = Metrics()
# The threads of a worker share the metrics, which are not thread-safe.
_lock: Final = threading.Lock()
# Until the stored options are read, every task is sampled.
_sampling: Final = {"ratio": 1.0}


def set_log_levels(level: str | None) -> None:
    """Set the level of all loggers, and keep the SDK's loggers at INFO or above.

    The runtime sets the level of LoggingConfig, which must stay at INFO or below: WARN there would also drop
    the metrics, which are lines without a level.

    Args:
        level: Such as WARN; None keeps the level of the runtime.
    """
    if level is not None:
        # Powertools would use the level of LoggingConfig instead.
        logging.getLogger(logger.name).setLevel(level)
        logging.getLogger().setLevel(level)
    for name in SDK_LOGGERS:
        logging.getLogger(name).setLevel(max(logging.INFO, logging.getLogger().level))


def fields(**values: Any) -> dict[str, Any]:
    """Return the fields of a line for `logger`: ``logger.info("swept", **fields(found=answer))``.

    They share one name until the record exists, because `logging` refuses fields that a record already has,
    and a library of the runner may have set a record factory that adds any field.
    """
    return {FIELDS: values}


class _FieldUnpacking(logging.Filter):
    """Sets the fields of a line on its record, overriding existing ones: saved queries search for them."""

    @override
    def filter(self, record: logging.LogRecord) -> bool:
        vars(record).update(vars(record).pop(FIELDS, {}))
        return True


logger.addFilter(_FieldUnpacking())


set_log_levels(os.environ.get(LOG_LEVEL_VARIABLE))


def _measure_queue(name: str) -> None:
    """Give the metrics the dimensions of a queue."""
    metrics.clear_default_dimensions()
    metrics.clear_metrics()
    metrics.set_default_dimensions(stack=os.environ.get("FRESHQ_STACK", "none"), queue=name)


_measure_queue(os.environ.get(QUEUE_VARIABLE, "default"))
# Whether this invocation is a canary's.
_canary: Final = threading.Event()


# A handler that fails before its first metric reports the error itself.
warnings.filterwarnings("ignore", "No application metrics to publish")


def count(name: str, value: float = 1) -> None:
    """Add to a counter metric."""
    with _lock:
        metrics.add_metric(name=name, unit=MetricUnit.Count, value=value)


def measure_seconds(name: str, value: float) -> None:
    """Add a sample to a metric in seconds."""
    with _lock:
        metrics.add_metric(name=name, unit=MetricUnit.Seconds, value=value)


def sample_logs(ratio: float) -> None:
    """Set the share of the tasks whose transitions are logged at INFO, from 0 to 1."""
    _sampling["ratio"] = ratio


def is_sampled(task_id: str, ratio: float) -> bool:
    """Return whether a task is sampled. All functions agree, for all lines of the task.

    Args:
        task_id: Id of the task.
        ratio: Share of sampled tasks, from 0 to 1.
    """
    return zlib.crc32(task_id.encode(errors="replace")) < ratio * 2**32


def count_dead_letters(queue: BaseQueue) -> None:
    """Count the tasks that became dead letters in this function without a run.

    `TasksFailed` counts every task that becomes a dead letter, including these.
    """
    counts = queue.admin.take_dead_letter_counts()
    count("TasksQuarantined", counts.quarantined)
    count("TasksFailed", counts.quarantined + counts.exhausted)


def log_transition(message: str, task_id: str, **facts: Any) -> None:
    """Log a change of a task's state: at INFO if the task is sampled, else at DEBUG."""
    log = logger.info if is_sampled(task_id, _sampling["ratio"]) else logger.debug
    log(message, **fields(task_id=task_id, **facts))


def traced_handler(handler: Handler) -> Handler:
    """Return the handler with X-Ray subsegments around invocations; unchanged if tracing is off."""
    if tracer is None:
        return handler
    return cast("Handler", tracer.capture_lambda_handler(handler, capture_response=False))


def answers_canaries(*connections: Any) -> Callable[[Handler], Handler]:
    """Return a decorator for a handler that also answers the hook of a deployment, on a separate queue.

    The hook's event is ``{"canary": QUEUE, "event": EVENT}``. The metrics have the queue `canary`, so that no
    alarm sees them.

    Args:
        connections: The cached functions that connect the handler to its queue.
    """

    def decorate(handler: Handler) -> Handler:
        @wraps(handler)
        def handle(event: Any, context: Any) -> Any:
            if not isinstance(event, dict) or event.keys() != {CANARY, "event"}:
                return handler(event, context)
            with _on_queue(event[CANARY], connections):
                return handler(event["event"], context)

        return cast("Handler", handle)

    return decorate


@contextmanager
def _on_queue(name: str, connections: tuple[Any, ...]) -> Iterator[None]:
    if not str(name).startswith(CANARY_QUEUE):
        msg = f"canary: must be a queue named {CANARY_QUEUE}..., got {name!r:.60}"
        raise ValueError(msg)
    before = os.environ.get(QUEUE_VARIABLE, "default")
    try:
        _connect_to(name, CANARY, connections)
        _canary.set()
        yield
    finally:
        _canary.clear()
        _connect_to(before, before, connections)


def _connect_to(queue: str, dimension: str, connections: tuple[Any, ...]) -> None:
    os.environ[QUEUE_VARIABLE] = queue
    _measure_queue(dimension)
    for connect in connections:
        connect.cache_clear()


def is_canary() -> bool:
    """Return whether this invocation is by the hook of a deployment."""
    return _canary.is_set()
